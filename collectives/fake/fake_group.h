#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rankloom/fake.h"

namespace rankloom {

class RankContext;

}  // namespace rankloom

namespace rankloom::internal {

struct CallRecordState;

// The one kind of FakeProcessGroup.
class FakeGroup final : public FakeProcessGroup {
 public:
  // In a world: the handle of `rank`.
  FakeGroup(RankContext& rank, std::shared_ptr<const Group> group, FakeOptions options);
  // Without one; `rank` is that in the group.
  FakeGroup(std::shared_ptr<const Group> group, int rank, FakeOptions options);

  std::string backend_name() const override { return "fake"; }
  absl::StatusOr<Work> execute(CollectiveCall&& call) override;
  const FakeOptions& options() const override { return options_; }
  void set_rank(int rank, CodeSite code) override;
  // Of this handle alone: the other members are not there. Another rank's is refused.
  void abort(std::string_view reason, CodeSite code) override;
  std::shared_ptr<ProcessGroup> make_member(const std::shared_ptr<const Group>& group,
                                            const GroupOptions& options) override;

 private:
  // The error of a call that the options refuse, or that comes after abort(); OK: it goes on.
  absl::Status checked(const CollectiveCall& call);

  const FakeOptions options_;
  absl::Status failed_;            // by abort(); OK: not yet
  bool checks_calls_;              // checked() may refuse some
  CallRecordState* const record_;  // of options_.record; null: none
  const int record_group_;         // there
};

std::shared_ptr<ProcessGroup> make_fake_member(RankContext& rank, const std::shared_ptr<const Group>& group,
                                               const FakeOptions& options);

}  // namespace rankloom::internal

#pragma once

#include <cstdint>
#include <memory>

#include "rankloom/process_group.h"

namespace rankloom {

// A fake group without a world: which member, of how many.
struct FakeWorldOptions {
  int64_t rank = 0;
  int64_t world_size = 1;
  FakeOptions options = {};
};

// Checks every call by the rules of the real groups, moves no data and has no peers: a world of any size at the cost of one
// rank. Its works are done at once. Cannot be constructed directly: make_fake_process_group() or init_process_group().
//
// What is not checked: whether the other members would make the same call; there are none. A real group compares.
class FakeProcessGroup final : public ProcessGroup {
 public:
  std::string backend_name() const override { return "fake"; }
  absl::StatusOr<Work> execute(CollectiveCall&& call) override;

  const FakeOptions& options() const { return options_; }
  // From here on, this is the group of its member `rank`: one handle can trace what each rank would do. Groups that were made
  // from it stay those of the member that made them.
  // Errors: InvalidArgument for a rank outside the group, in a world (where a rank is a thread's), and if the record
  // has calls or further groups already.
  void set_rank(int rank);

 protected:
  std::shared_ptr<ProcessGroup> make_member(const std::shared_ptr<const Group>& group,
                                            const GroupOptions& options) override;

 private:
  friend struct FakeFactory;
  FakeProcessGroup(RankContext* context, std::shared_ptr<const Group> group, FakeOptions options);
  FakeProcessGroup(std::shared_ptr<const Group> group, int rank, FakeOptions options);

  const FakeOptions options_;
  int record_group_ = -1;  // of options_.record
};

// Without any world or store: one member of a group of all ranks, named "0".
// Errors: InvalidArgument for a world_size below 1 or above 2^31 - 1, and for a rank outside the world.
std::shared_ptr<FakeProcessGroup> make_fake_process_group(const FakeWorldOptions& options);

namespace internal {
std::shared_ptr<ProcessGroup> make_fake_member(RankContext& rank, const std::shared_ptr<const Group>& group,
                                               const FakeOptions& options);
}  // namespace internal

}  // namespace rankloom

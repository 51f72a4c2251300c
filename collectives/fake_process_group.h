#pragma once

#include <memory>

#include "collectives/process_group.h"

namespace rankloom {

// How a fake group answers. An aggregate.
struct FakeOptions {
  // Every operation fails as "FakeProcessGroup collective operation error", with operation, rank, group and shapes.
  bool error_on_collective = false;
};

// A fake group without a world: which member, of how many.
struct FakeWorldOptions {
  int rank = 0;
  int world_size = 1;
  FakeOptions options = {};
};

// Checks every call by the rules of the real groups, moves no data and has no peers: a world of any size at the cost of one
// rank. Its works are done at once. Cannot be constructed directly: make_fake_process_group() or init_process_group().
class FakeProcessGroup final : public ProcessGroup {
 public:
  std::string backend_name() const override { return "fake"; }
  absl::StatusOr<Work> execute(CollectiveCall&& call) override;

 private:
  friend std::shared_ptr<ProcessGroup> make_fake_process_group(const FakeWorldOptions& options);
  friend struct FakeFactory;
  FakeProcessGroup(RankContext* context, std::shared_ptr<const Group> group, const FakeOptions& options);
  FakeProcessGroup(int rank, int world_size, const FakeOptions& options);

  const FakeOptions options_;
};

// Without any world or store. Errors: InvalidArgument for a rank outside the world or world_size < 1.
std::shared_ptr<ProcessGroup> make_fake_process_group(const FakeWorldOptions& options);

namespace internal {
std::shared_ptr<ProcessGroup> make_fake_member(RankContext& rank, const std::shared_ptr<const Group>& group,
                                               const FakeOptions& options);
}  // namespace internal

}  // namespace rankloom

#pragma once

#include <memory>
#include <string_view>

#include "collectives/process_group.h"
#include "collectives/rendezvous.h"

namespace rankloom {

// Real collectives in shared memory: members meet in a Rendezvous, and the last one runs the kernel over all buffers.
class ThreadedProcessGroup final : public ProcessGroup {
 public:
  ThreadedProcessGroup(RankContext* context, std::shared_ptr<Rendezvous> rendezvous, std::shared_ptr<const Group> group);

  std::string backend_name() const override { return "threaded"; }
  void abort(std::string_view reason) override;
  absl::StatusOr<Work> execute(CollectiveCall call) override;

 private:
  const std::shared_ptr<Rendezvous> rendezvous_;
};

namespace internal {
// `instance` tells groups of one name apart: members with equal names and instances meet.
std::shared_ptr<ProcessGroup> make_threaded_member(RankContext& rank, const std::shared_ptr<const Group>& group, std::string_view instance = {});
}  // namespace internal

}  // namespace rankloom

#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "collectives/group/group_front.h"
#include "collectives/mpi/mpi_group_core.h"
#include "rankloom/process_group.h"

namespace rankloom::internal {

// A member's handle on a group whose members are MPI processes.
class MpiProcessGroup final : public ProcessGroup {
 public:
  MpiProcessGroup(RankState* context, std::shared_ptr<MpiGroupCore> core, const GroupOptions& options);

  std::string backend_name() const override { return "mpi"; }
  absl::StatusOr<Work> execute(CollectiveCall&& call) override;
  std::shared_ptr<ProcessGroup> make_member(const std::shared_ptr<const Group>& group,
                                            const GroupOptions& options) override;
  void abort(std::string_view reason, CodeSite code) override;
  void shutdown(CodeSite code) override;

 private:
  GroupFront& front() const { return GroupFront::of(*this); }
  absl::StatusOr<Work> execute_parts(CollectiveCall&& call);

  const std::shared_ptr<MpiGroupCore> core_;
  const size_t eager_bytes_;
};

// Makes the groups of a world whose ranks are processes.
class MpiBackend final : public GroupBackend {
 public:
  explicit MpiBackend(MpiEngine* engine) : engine_(*engine) {}
  std::shared_ptr<ProcessGroup> make_member(RankState& rank, const std::shared_ptr<const Group>& group,
                                            const GroupOptions& options) override {
    return make(engine_, rank, group, options);
  }
  static std::shared_ptr<ProcessGroup> make(MpiEngine& engine, RankState& rank,
                                            const std::shared_ptr<const Group>& group, const GroupOptions& options);

 private:
  MpiEngine& engine_;
};

}  // namespace rankloom::internal

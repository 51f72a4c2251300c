#pragma once

#include <memory>
#include <string>

#include "rankloom/process_group.h"
#include "sim/faults/fault_injector.h"
#include "world/world_state.h"

namespace rankloom::internal {

// Another group, whose calls go wrong as a plan says: rankloom/faults.h. Attributes and errors are the other
// group's.
class FaultGroup final : public ProcessGroup {
 public:
  // `group` and `injector` are not null; `injector` outlives this.
  FaultGroup(RankState* context, std::shared_ptr<ProcessGroup> group, FaultInjector* injector);

  std::string backend_name() const override { return inner_->backend_name(); }
  void abort(std::string_view reason, CodeSite code) override { inner_->abort(reason, code); }
  void shutdown(CodeSite code) override;
  absl::StatusOr<Work> execute(CollectiveCall&& call) override;
  std::shared_ptr<ProcessGroup> make_member(const std::shared_ptr<const Group>& group,
                                            const GroupOptions& options) override;
  void leave() override { inner_->leave(); }

 private:
  absl::StatusOr<Work> execute_once(CollectiveCall&& call, const std::vector<Fault>& faults);

  const std::shared_ptr<ProcessGroup> inner_;
  FaultInjector* const injector_;
};

// `group` of this rank, wrapped if the world has a plan of faults.
std::shared_ptr<ProcessGroup> with_faults(RankState& rank, std::shared_ptr<ProcessGroup> group);

}  // namespace rankloom::internal

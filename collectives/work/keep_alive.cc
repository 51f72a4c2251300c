#include "collectives/work/keep_alive.h"

#include <utility>

#include "collectives/work/completion.h"
#include "sim/scheduler/call_scope.h"
#include "world/world_state.h"

namespace rankloom::internal {
namespace {

class RankOwned {
 public:
  RankOwned(std::shared_ptr<const void> owner, RankState& rank)
      : owner_(std::move(owner)), rank_(rank), world_(&rank.world().scheduler()) {
    if (StepRecord* const record = rank.world().scheduler().record(); record != nullptr) object_ = record->new_object();
  }
  ~RankOwned() {
    // No task that happens to complete the call: it must not wait, or it holds locks that the owner's destructor takes.
    // While the caller has the owner, too, nothing ends: a call that is refused.
    const Task* const task = Task::current();
    const bool here = world_.has(task) && task->info.rank == rank_.rank() && task->info.kind != TaskKind::kCompletion;
    if (OwnersEndHere::taken() || owner_.use_count() > 1) {
      if (here && !Completion::open()) return;
    }
    Completion::run_later([owner = std::move(owner_), rank = &rank_, world = world_, object = object_]() mutable {
      const WorldPin alive(world);
      if (!alive) return owner.reset();
      if (object != 0) StepRecord::name_next_task(object);  // made by the last thread to let go
      world.scheduler()->spawn({.rank = rank->rank(), .kind = TaskKind::kHelper},
                               [owner = std::move(owner), rank]() mutable {
                                 rank->world().run_helper(rank->rank(), [&owner] { owner.reset(); });
                               });
    });
  }
  RankOwned(const RankOwned&) = delete;
  RankOwned& operator=(const RankOwned&) = delete;

 private:
  std::shared_ptr<const void> owner_;
  RankState& rank_;
  const WorldRef world_;
  uint64_t object_ = 0;  // explored runs: the name of the helper
};

}  // namespace

std::shared_ptr<const void> owned_by_rank(std::shared_ptr<const void> owner, RankState& rank) {
  return std::make_shared<RankOwned>(std::move(owner), rank);
}

}  // namespace rankloom::internal

// Scheduler::make(): the one place that knows both kinds.

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/scheduler/deterministic_scheduler.h"
#include "sim/scheduler/free_scheduler.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {

absl::StatusOr<std::unique_ptr<Scheduler>> Scheduler::make(WorldOptions options, const RunHooks& hooks) {
  if (options.world_size < 1) {
    return invalid_argument("world_size is ", options.world_size, ", want at least 1");
  }
  const bool fibers = options.engine == EngineKind::kFibers;
  if (options.schedule.kind() == Schedule::Kind::kUnset)
    options.schedule = fibers ? Schedule::fifo() : Schedule::free();
  if (fibers && options.schedule.kind() == Schedule::Kind::kFree) {
    return invalid_argument("schedule free() needs threads: fibers share one thread, want fifo(), seeded(seed), ...");
  }
  if (!options.schedule.deterministic()) return std::unique_ptr<Scheduler>(new FreeScheduler(std::move(options)));
  return std::unique_ptr<Scheduler>(new DeterministicScheduler(std::move(options), hooks));
}

}  // namespace rankloom::internal

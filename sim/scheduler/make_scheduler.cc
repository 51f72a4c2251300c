// Scheduler::make(): the one place that knows both kinds.

#include <memory>
#include <utility>

#include "sim/base/dist_error.h"
#include "sim/scheduler/check_options.h"
#include "sim/scheduler/deterministic_scheduler.h"
#include "sim/scheduler/free_scheduler.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {

absl::StatusOr<std::unique_ptr<Scheduler>> Scheduler::make(WorldOptions options, const RunHooks& hooks) {
  if (absl::Status wrong = check_options(options); !wrong.ok()) return wrong;
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

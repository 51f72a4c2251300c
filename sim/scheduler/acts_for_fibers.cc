#include "sim/scheduler/acts_for_fibers.h"

#include <atomic>
#include <utility>

#include "sim/base/forked_run.h"
#include "sim/base/system.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {
namespace {

std::atomic<int> actor{0};  // the thread that is in a scope; 0: none
std::atomic<uint64_t> acted_world{0};

}  // namespace

ActsForFibers::ActsForFibers(const Scheduler& scheduler)
    : active_(scheduler.options().engine == EngineKind::kFibers && !here(scheduler.serial())) {
  if (!active_) return;
  const int64_t until_ns = monotonic_ns() + kPatienceNs;
  for (WaitTurns turns; actor.load() != this_thread(); turns.next()) {
    int none = 0;
    entered_ = actor.compare_exchange_strong(none, this_thread());
    if (entered_ || monotonic_ns() >= until_ns) break;
  }
  outer_ = std::exchange(world_, scheduler.serial());
  acted_world.store(world_);
}

ActsForFibers::~ActsForFibers() {
  if (!active_) return;
  world_ = outer_;
  acted_world.store(outer_);
  if (entered_) actor.store(0);
}

void ActsForFibers::await_others(uint64_t world) {
  const int64_t until_ns = monotonic_ns() + kPatienceNs;
  WaitTurns turns;
  while (acted_world.load() == world && actor.load() != this_thread() && monotonic_ns() < until_ns) turns.next();
}

}  // namespace rankloom::internal

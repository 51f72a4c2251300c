#include "sim/scheduler/acts_for_fibers.h"

#include <atomic>
#include <cstdint>
#include <utility>

#include "sim/base/forked_run.h"
#include "sim/base/system.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {

ActsForFibers::ActsForFibers(Scheduler& scheduler)
    : scheduler_(scheduler), active_(scheduler.options().engine == EngineKind::kFibers && !here(scheduler.serial())) {
  if (!active_) return;
  const int64_t until_ns = monotonic_ns() + kPatienceNs;
  for (WaitTurns turns;; turns.next()) {
    int none = 0;
    entered_ = scheduler.actor().compare_exchange_strong(none, this_thread());
    if (entered_ || none == this_thread() || monotonic_ns() >= until_ns) break;
  }
  outer_ = std::exchange(world_, scheduler.serial());
}

ActsForFibers::~ActsForFibers() {
  if (!active_) return;
  world_ = outer_;
  if (entered_) scheduler_.actor().store(0);
}

LongPart::LongPart(Scheduler& scheduler)
    : scheduler_(scheduler.options().engine == EngineKind::kFibers ? &scheduler : nullptr) {
  if (scheduler_ != nullptr) scheduler_->set_in_long_part(true);
}

LongPart::~LongPart() {
  if (scheduler_ == nullptr) return;
  scheduler_->moved();
  scheduler_->set_in_long_part(false);
}

void Scheduler::came_back() {
  moved();
  // Against the compiler; the processor is held to the order by fence_all_threads() of the thread that acts.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (actor_.load(std::memory_order_acquire) != 0) [[unlikely]]
    ActsForFibers::await_others(*this);
}

ChangeAtNoPoint::ChangeAtNoPoint(Scheduler* scheduler)
    : scheduler_(scheduler != nullptr && scheduler->options().engine == EngineKind::kFibers ? scheduler : nullptr) {
  if (scheduler_ != nullptr) scheduler_->came_back();
}

ChangeAtNoPoint::~ChangeAtNoPoint() {
  if (scheduler_ != nullptr) scheduler_->moved();
}

void ActsForFibers::await_others(const Scheduler& scheduler) {
  const int64_t until_ns = monotonic_ns() + kPatienceNs;
  const auto others = [actor = &scheduler.actor()] { return actor->load() != 0 && actor->load() != this_thread(); };
  for (WaitTurns turns; others() && monotonic_ns() < until_ns;) turns.next();
}

}  // namespace rankloom::internal

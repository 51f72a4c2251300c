#include "sim/scheduler/live_worlds.h"

#include <pthread.h>

#include "absl/synchronization/mutex.h"

namespace rankloom::internal {

LiveWorlds& LiveWorlds::shared() {
  static LiveWorlds* const worlds = [] {
    // A child made by fork finds the list whole and free, even if a thread of the parent held it.
    pthread_atfork([] { shared().lock_for_fork(); }, [] { shared().unlock_after_fork(); },
                   [] { shared().unlock_after_fork(); });
    return new LiveWorlds;
  }();
  return *worlds;
}

void LiveWorlds::add(Scheduler* scheduler, uint64_t serial) {
  OrderedMutexLock lock(&mu_);
  worlds_[serial].scheduler = scheduler;
}

Scheduler* LiveWorlds::pin(uint64_t serial, bool open) {
  OrderedMutexLock lock(&mu_);
  const auto it = worlds_.find(serial);
  if (it == worlds_.end() || it->second.gone || (open && it->second.over)) return nullptr;
  ++it->second.pins;
  return it->second.scheduler;
}

void LiveWorlds::unpin(uint64_t serial) {
  OrderedMutexLock lock(&mu_);
  --worlds_.at(serial).pins;
}

bool LiveWorlds::over(uint64_t serial) const {
  OrderedMutexLock lock(&mu_);
  const auto it = worlds_.find(serial);
  return it == worlds_.end() || it->second.over;
}

bool LiveWorlds::close_if(uint64_t serial, absl::FunctionRef<bool()> idle) {
  OrderedMutexLock lock(&mu_);
  return close_idle(serial, idle);
}

bool LiveWorlds::close_unpinned(uint64_t serial, absl::FunctionRef<bool()> idle) {
  OrderedMutexLock lock(&mu_);
  await_pins(serial);
  return close_idle(serial, idle);
}

bool LiveWorlds::close_idle(uint64_t serial, absl::FunctionRef<bool()> idle) {
  const auto it = worlds_.find(serial);
  if (it == worlds_.end()) return true;
  if (it->second.pins > 0 || !idle()) return false;
  return it->second.over = true;
}

bool LiveWorlds::close(uint64_t serial) {
  OrderedMutexLock lock(&mu_);
  const auto it = worlds_.find(serial);
  if (it == worlds_.end()) return false;
  it->second.over = it->second.gone = true;
  return it->second.pins > 0;
}

void LiveWorlds::remove(uint64_t serial) {
  OrderedMutexLock lock(&mu_);
  await_pins(serial);
  worlds_.erase(serial);
}

void LiveWorlds::await_pins(uint64_t serial) {
  // Looked up each time: other worlds come and go meanwhile.
  const auto free = [this, serial]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const auto it = worlds_.find(serial);
    return it == worlds_.end() || it->second.pins == 0;
  };
  mu_.await(absl::Condition(&free));
}

}  // namespace rankloom::internal

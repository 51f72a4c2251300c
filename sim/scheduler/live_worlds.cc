#include "sim/scheduler/live_worlds.h"

#include <pthread.h>

#include "absl/synchronization/mutex.h"

namespace rankloom::internal {

LiveWorlds& LiveWorlds::shared() {
  static LiveWorlds* const worlds = [] {
    // A child made by fork finds the list whole and free, whoever held it in the parent.
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
  Entry& entry = worlds_.at(serial);
  if (entry.pins > 0 || !idle()) return false;
  return entry.over = true;
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
  const auto it = worlds_.find(serial);
  if (it == worlds_.end()) return;
  const auto free = [&it] { return it->second.pins == 0; };
  mu_.await(absl::Condition(&free));
  worlds_.erase(it);
}

}  // namespace rankloom::internal

#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "sim/base/lock_order.h"

namespace rankloom::internal {

class Scheduler;

// The schedulers of this process, by serial number: where a handle that a thread of no world uses, or that has outlived
// its world, learns whether there is a world behind it. Nothing here is asked by tasks that use handles of their own
// world.
// Thread-safety: all methods; they hold the list's lock and no other, but close_if().
class LiveWorlds {
 public:
  static LiveWorlds& shared();

  void add(Scheduler* scheduler, uint64_t serial);
  // The scheduler, which stays until unpin(); null if it is gone, or, with `open`, if it takes no more calls.
  Scheduler* pin(uint64_t serial, bool open);
  void unpin(uint64_t serial);
  // The world takes no more calls, or is gone.
  bool over(uint64_t serial) const;

  // Closes the world, which takes no more calls then, if no pin is held and `idle`, asked under the lock, says so. True
  // of a world that is gone.
  bool close_if(uint64_t serial, absl::FunctionRef<bool()> idle);
  // The same, but pins are waited for. `idle` may say no then: a call that ended has begun a task.
  bool close_unpinned(uint64_t serial, absl::FunctionRef<bool()> idle);
  // Closes the world in any case, and gives no more pins. Returns whether some are held.
  bool close(uint64_t serial);
  // Returns when nobody has a pin any more. The scheduler may go.
  void remove(uint64_t serial);

 private:
  struct Entry {
    Scheduler* scheduler = nullptr;
    int pins = 0;
    bool over = false;
    bool gone = false;
  };

  void await_pins(uint64_t serial) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool close_idle(uint64_t serial, absl::FunctionRef<bool()> idle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void lock_for_fork() ABSL_NO_THREAD_SAFETY_ANALYSIS { mu_.lock(); }
  void unlock_after_fork() ABSL_NO_THREAD_SAFETY_ANALYSIS { mu_.unlock(); }

  mutable OrderedMutex mu_{LockLevel::kLiveWorlds};
  absl::flat_hash_map<uint64_t, Entry> worlds_ ABSL_GUARDED_BY(mu_);
};

}  // namespace rankloom::internal

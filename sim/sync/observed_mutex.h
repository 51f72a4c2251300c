#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "rankloom/error.h"
#include "sim/sync/rank_mutex.h"

namespace rankloom::internal {

class StepRecord;

// Guards state that tasks can come to in another order, and with another result: the state of an exhaustive search's
// objects. A task that holds a lock of one in an explored run tells the record of something meanwhile (StepRecord), or
// calls apart(); a run in which neither happens, or in which a thread that is no task takes the lock, is one that the
// search cannot vouch for, and its report says so. Whether a task tells of the right access only tests/explore shows.
// The classes whose state must be guarded so are listed in tools/check_observed.py.
class ABSL_LOCKABLE ObservedMutex : public RankMutex {
 public:
  // `scheduler` may be null: the object belongs to no world; tasks of any world, and threads outside all worlds, may
  // use it.
  ObservedMutex(const Scheduler* scheduler, LockLevel level);

 private:
  friend class ObservedMutexLock;
  const bool may_be_explored_;
  StepRecord* const record_;  // of the world
};

class ABSL_SCOPED_LOCKABLE ObservedMutexLock {
 public:
  explicit ObservedMutexLock(ObservedMutex* mu, CodeSite code = CodeSite::here()) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu)
      : mu_(*mu) {
    mu_.lock();
    if (mu_.may_be_explored_) [[unlikely]]
      begin(code);
  }
  ~ObservedMutexLock() ABSL_UNLOCK_FUNCTION() {
    if (record_ != nullptr) [[unlikely]]
      end();
    mu_.unlock();
  }
  ObservedMutexLock(const ObservedMutexLock&) = delete;
  ObservedMutexLock& operator=(const ObservedMutexLock&) = delete;

  // Ends the check for this lock. A comment beside the call says why the search need not know.
  void apart() { record_ = nullptr; }

 private:
  void begin(CodeSite code);
  void end();

  ObservedMutex& mu_;
  StepRecord* record_ = nullptr;  // of the explored run of the calling task
  uint64_t told_ = 0;             // how much the record had been told at the beginning
  CodeSite code_;
};

}  // namespace rankloom::internal

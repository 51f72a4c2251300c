#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "sim/base/code_site.h"
#include "sim/sync/rank_mutex.h"

namespace rankloom {

class StepRecord;

// Guards state that tasks can come to in another order, and with another result: the state of an exhaustive search's objects.
// Who locks one in an explored run tells the record of something meanwhile (StepRecord), or says why there is nothing to tell;
// a run in which somebody forgot is one that the search cannot vouch for, and its report says so.
// The classes whose state must be guarded so are listed in tools/check_observed.py.
class ABSL_LOCKABLE ObservedMutex : public RankMutex {
 public:
  // `scheduler` may be null: an object that tasks of any world use, and threads of none.
  explicit ObservedMutex(const Scheduler* scheduler);

 private:
  friend class ObservedMutexLock;
  const bool may_be_explored_;
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

  // There is nothing to tell: the caller's comment says why.
  void apart() { record_ = nullptr; }

 private:
  void begin(CodeSite code);
  void end();

  ObservedMutex& mu_;
  StepRecord* record_ = nullptr;  // of the explored run of the calling task
  uint64_t told_ = 0;             // how much the record had been told at the beginning
  CodeSite code_;
};

}  // namespace rankloom

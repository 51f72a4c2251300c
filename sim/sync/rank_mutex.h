#pragma once

#include <atomic>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sim/base/lock_order.h"
#include "sim/base/prefetch.h"
#include "sim/base/task.h"

namespace rankloom::internal {

class Scheduler;

// Guards state that several ranks share. Fibers share one thread and no task switches while it holds one, so there
// locking does nothing; on threads it is an absl::Mutex, under the baton too, since a helper thread may run beside its
// rank. Never held across a scheduling point, except the one that RankCondVar::await releases.
class ABSL_LOCKABLE RankMutex {
 public:
  // `scheduler` may be null: an object that belongs to no world. `level`: which locks may be taken beside it.
  RankMutex(const Scheduler* scheduler, LockLevel level);
  RankMutex(const RankMutex&) = delete;
  RankMutex& operator=(const RankMutex&) = delete;

  // False where ranks are fibers.
  bool locks() const { return real_; }
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    HeldLocks::take(level_);
    if (real_) lock_real();
  }
  void unlock() ABSL_UNLOCK_FUNCTION() {
    HeldLocks::drop(level_);  // first: the next owner of the lock may destroy this
    if (real_) unlock_real();
  }

 private:
  void lock_real() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void unlock_real() ABSL_NO_THREAD_SAFETY_ANALYSIS;

  const bool real_;
  const LockLevel level_;
  absl::Mutex mu_;
};

class ObservedMutex;

class ABSL_SCOPED_LOCKABLE RankMutexLock {
 public:
  explicit RankMutexLock(ObservedMutex* mu) = delete;  // ObservedMutexLock
  explicit RankMutexLock(RankMutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(*mu) { mu_.lock(); }
  ~RankMutexLock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }
  RankMutexLock(const RankMutexLock&) = delete;
  RankMutexLock& operator=(const RankMutexLock&) = delete;

 private:
  RankMutex& mu_;
};

// A count that several ranks change. A reader of a value sees what was written before the changes that led to it. Where
// RankMutex does nothing, neither costs this an atomic step.
class RankCounter {
 public:
  // `scheduler` may be null: an object that belongs to no world.
  explicit RankCounter(const Scheduler* scheduler);

  void add(int n) {
    if (real_) {
      value_.fetch_add(n, std::memory_order_acq_rel);
    } else {
      value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }
  }
  int value() const { return value_.load(std::memory_order_acquire); }

 private:
  const bool real_;
  std::atomic<int> value_{0};
};

// A scope in which this thread, which runs no rank, runs the hooks of a world whose ranks have all ended, among them
// the ends of its groups with callbacks and destructors. A wait there is one that only others can end, if any can:
// without a timeout of its own it fails with Aborted after `patience` of real time.
class AfterRanks {
 public:
  explicit AfterRanks(absl::Duration patience)
      : active_(Task::current() == nullptr), outer_(here_), patience_(patience) {
    if (active_) here_ = this;
  }
  ~AfterRanks() {
    if (active_) here_ = outer_;
  }
  AfterRanks(const AfterRanks&) = delete;
  AfterRanks& operator=(const AfterRanks&) = delete;

  // Null: the thread is in none, or runs a rank of another world in it.
  static const AfterRanks* here() { return Task::current() == nullptr ? here_ : nullptr; }
  absl::Duration patience() const { return patience_; }
  // The end of a wait of that length.
  absl::Status ended(std::string_view wait) const;

 private:
  static inline thread_local const AfterRanks* here_ = nullptr;
  const bool active_;  // a rank of another world waits as such
  const AfterRanks* const outer_;
  const absl::Duration patience_;
};

// Every wait of a task for another is an await() on one of these; Scheduler::sleep() parks by itself. A report of a
// stuck job is the list of their sites. Thread-safety: all methods are called with the associated mutex held.
class RankCondVar {
 public:
  RankCondVar() = default;
  RankCondVar(const RankCondVar&) = delete;
  RankCondVar& operator=(const RankCondVar&) = delete;

  // Until `done()` holds: releases `mu`, parks the calling task, takes `mu` back, asks again. `done` runs with `mu`
  // held. Returns OK once done() holds, even if the world was aborted meanwhile; else
  //   Timeout when `deadline` passed: the text names the site and, if the deadline is the call's own, the
  //     waits between ranks; or
  //   the cause, when the world was aborted.
  // A scheduling point. A thread that belongs to no world just blocks, by real time; in an AfterRanks at most for
  // its patience.
  absl::Status await(RankMutex* mu, absl::FunctionRef<bool()> done, const Site& site,
                     Deadline deadline = Deadline::never()) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Wakes all waiters, in the order in which they came: each asks its predicate again.
  void notify_all();
  // Wakes the waiter that came first, if any.
  void notify_one();
  // Wakes the waiters for a thing that one of them takes. In a deterministic run all of them: the order in which they
  // came to wait must not decide, since an explored run does not take it for a choice.
  void notify_takers();
  bool has_waiters() const { return first_ != nullptr; }
  // The memory that a notify_all() will touch. Not with kObject.
  void prefetch(Fetch step) const {
    if (step == Fetch::kPointers) {
      __builtin_prefetch(first_, /*write=*/1);
    } else if (first_ != nullptr) {
      __builtin_prefetch(first_->task, /*write=*/1);
    }
  }

 private:
  struct Waiter {
    Task* task = nullptr;
    Waiter* next = nullptr;
    bool linked = false;
  };
  absl::Status await_as(Task* self, RankMutex* mu, absl::FunctionRef<bool()> done, const Site& site, Deadline deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // A thread of no world waits on a task of its own for the length of the call.
  absl::Status await_without_task(RankMutex* mu, absl::FunctionRef<bool()> done, const Site& site, Deadline deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void link(Waiter* waiter);
  void unlink(Waiter* waiter);

  Waiter* first_ = nullptr;
  Waiter* last_ = nullptr;
};

}  // namespace rankloom::internal

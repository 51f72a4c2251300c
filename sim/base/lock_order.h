#pragma once

#include <cstdint>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace rankloom::internal {

// The library's locks, in the order in which one thread may take them: while it holds one, only such as stand further
// down. Two of one level are never held together. docs/architecture.md prints this table; the test `lock_order`
// compares the two.
enum class LockLevel : uint8_t {
  kClosing,         // the wait for the last tasks of a world
  kLiveWorlds,      // which worlds live, and which pins hold their end up
  kWatchdog,        // the worlds that the watchdog looks after
  kReport,          // free gear: the sites of sleepers, while a report reads them
  kStallTexts,      // what the watchdog told of one world
  kMadeGroups,      // the groups that ranks of fake groups make for each other
  kShared,          // objects of a world that its first user makes
  kGroupCore,       // what members of a group share
  kRendezvous,      // collectives of a group on their way, and whether the group has failed
  kInbox,           // messages to one member
  kMailbox,         // messages of a group that no inbox holds
  kCoalescedWork,   // parts of a coalesced call
  kWork,            // how a work ends
  kStreamQueue,     // the queue of a simulated stream
  kStreamWants,     // which streams wait for which
  kDeviceRuntime,   // which streams of a device wait for what
  kDeviceFailure,   // how a stream of a device failed
  kDeviceStream,    // the waits that a stream of a device was given
  kDeviceCode,      // the devices whose code is loaded
  kDevicePools,     // events and words that a device driver keeps
  kStreamPool,      // the streams of a device that are used again
  kMpi,             // calls of MPI, and what of this process waits for other processes
  kSync,            // Mutex, CondVar, Latch and Watched of rank programs
  kStore,           // the keys of a store
  kFilePoller,      // file stores that look for what other processes wrote
  kFaults,          // which faults have happened
  kWorld,           // ranks, groups and notes of a world
  kAbortListeners,  // the listeners of a world's abort
  kRecorder,        // the flight records of one rank
  kOpenOutputs,     // the outputs of one rank's calls on their way
  kCaught,          // what a rank threw
  kScheduler,       // deterministic gears: tasks, the clock, the next task
  kSchedulerInbox,  // deterministic gears: what threads beside the baton send
  kTasks,           // free gear: the list of tasks
  kStrangers,       // threads of no world that have called for a rank
  kAbortCause,      // why a run was aborted
  kThreadPool,      // threads that wait for a task
  kStepRecord,      // what an explored run was told
  kTestListeners,   // the worlds whose failed assertions are kept
  kTestFailures,    // failed assertions of one world
  kTestOutput,      // what ranks print in tests
};
inline constexpr int kLockLevels = static_cast<int>(LockLevel::kTestOutput) + 1;

// "rendezvous", "step record".
std::string_view lock_level_name(LockLevel level);

// Which levels this thread holds. A lock is never held where fibers switch, so fibers that share a thread need no list
// each. Kept and checked where RANKLOOM_CHECK_LOCK_ORDER is defined: in debug builds (-Dbuildtype=debug), in sanitizer
// builds and in the test `lock_order_test`. Not in debugoptimized ones, the default, which benchmarks and their readers
// use: the check is 5 % of a send and its recv. All sources of a program are compiled with it, or none.
class HeldLocks {
 public:
  static void take([[maybe_unused]] LockLevel level) {
#ifdef RANKLOOM_CHECK_LOCK_ORDER
    const uint64_t bit = uint64_t{1} << static_cast<int>(level);
    if (held_ >= bit) [[unlikely]]
      wrong_order(held_, level);
    held_ |= bit;
#endif
  }
  static void drop([[maybe_unused]] LockLevel level) {
#ifdef RANKLOOM_CHECK_LOCK_ORDER
    held_ &= ~(uint64_t{1} << static_cast<int>(level));
#endif
  }

 private:
  // Ends the process: names both locks, and the order.
  [[noreturn]] static void wrong_order(uint64_t held, LockLevel level);

  static inline constinit thread_local uint64_t held_ = 0;
};

// After a TryLock() that failed. In a process that a run forked, a thread that is not there any more may hold the lock:
// such a process is ended after a while (sim/base/forked_run.h).
void lock_contended(absl::Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu);

// An absl::Mutex with a level. State that ranks share is guarded by a RankMutex or an ObservedMutex (sim/sync).
class ABSL_LOCKABLE OrderedMutex {
 public:
  explicit constexpr OrderedMutex(LockLevel level) : level_(level), mu_(absl::kConstInit) {}
  OrderedMutex(const OrderedMutex&) = delete;
  OrderedMutex& operator=(const OrderedMutex&) = delete;

  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    HeldLocks::take(level_);
    if (!mu_.TryLock()) [[unlikely]]
      lock_contended(&mu_);
  }
  void unlock() ABSL_UNLOCK_FUNCTION() {
    HeldLocks::drop(level_);  // first: the next owner of the lock may destroy this
    mu_.Unlock();
  }
  void await(const absl::Condition& condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    mu_.Await(condition);
  }

 private:
  const LockLevel level_;
  absl::Mutex mu_;
};

class ABSL_SCOPED_LOCKABLE OrderedMutexLock {
 public:
  explicit OrderedMutexLock(OrderedMutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(*mu) { mu_.lock(); }
  ~OrderedMutexLock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }
  OrderedMutexLock(const OrderedMutexLock&) = delete;
  OrderedMutexLock& operator=(const OrderedMutexLock&) = delete;

 private:
  OrderedMutex& mu_;
};

}  // namespace rankloom::internal

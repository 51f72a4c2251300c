#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "rankloom/error.h"

namespace rankloom {

// For rank programs that synchronise beside the collectives: what std::mutex, std::condition_variable and std::latch
// are, but known to the scheduler. A rank that waits here lets others run (fibers, the baton), the schedule picks the
// next, and a deadlock report names the awaited object and its holder. May be shared by ranks, their helpers and
// threads of no world.
//
//   rankloom::Mutex mu("queue");
//   rankloom::CondVar filled("filled");
//   std::deque<int> queue ABSL_GUARDED_BY(mu);
//   ...
//   rankloom::MutexLock lock(&mu);
//   filled.wait(&mu, [&] { return !queue.empty(); });
//
// Each method is a scheduling point, wait() and wait_for() with a condition only where they have to wait. Names are for
// reports. Errors, thrown as DistError by what waits or asks: the cause, when the world is aborted meanwhile (nothing
// is held then, and unlocking is harmless; the first thousand uses of a Watched still go well, those of destructors,
// say); InvalidArgument for misuse.
// Thread-safety: all methods. Not copyable; must outlive its users.

namespace internal {

class MutexState;
class CondVarState;
class LatchState;
class WatchedState;

// The lock of a Watched's value, for clang's thread annotations.
class ABSL_LOCKABLE WatchedCell {
 public:
  WatchedCell();
  ~WatchedCell();
  WatchedCell(const WatchedCell&) = delete;
  WatchedCell& operator=(const WatchedCell&) = delete;

 private:
  friend class WatchedAccess;
  const Owned<WatchedState> state_;
};

// One access to a Watched, from its scheduling point to its end.
class ABSL_SCOPED_LOCKABLE WatchedAccess {
 public:
  WatchedAccess(const WatchedCell* cell, bool writes, CodeSite code)
      ABSL_EXCLUSIVE_LOCK_FUNCTION(cell) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  ~WatchedAccess() ABSL_UNLOCK_FUNCTION();
  WatchedAccess(const WatchedAccess&) = delete;
  WatchedAccess& operator=(const WatchedAccess&) = delete;

 private:
  WatchedState& state_;
};

}  // namespace internal

// A lock of rank programs, not recursive. In the free gear the task that waited longest is asked first, but one that
// runs may take it before; in deterministic runs all that wait are asked, and the schedule decides.
class ABSL_LOCKABLE Mutex final {
 public:
  explicit Mutex(std::string_view name = {});
  ~Mutex();
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  // Errors: InvalidArgument if the calling task holds it.
  void lock(CodeSite code = CodeSite::here()) ABSL_EXCLUSIVE_LOCK_FUNCTION();
  bool try_lock(CodeSite code = CodeSite::here()) ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true);
  // Errors: InvalidArgument if the calling task does not hold it; nothing happens after an abort.
  void unlock(CodeSite code = CodeSite::here()) ABSL_UNLOCK_FUNCTION();

 private:
  friend class CondVar;
  const internal::Owned<internal::MutexState> state_;
};

// Holds a Mutex for a scope, and remembers the caller's line for reports, which std::lock_guard cannot.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  // Errors: InvalidArgument if `mu` is null.
  explicit MutexLock(Mutex* mu, CodeSite code = CodeSite::here()) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu)
      : mu_(checked(mu, code)), code_(code) {
    mu_.lock(code);
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(code_); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  static Mutex& checked(Mutex* mu, CodeSite code);

  Mutex& mu_;
  const CodeSite code_;
};

// Lets ranks wait, with a Mutex freed meanwhile, until another one tells of a change. A notification that nobody waits
// for is lost: use the forms of wait() that ask for a condition.
class CondVar final {
 public:
  explicit CondVar(std::string_view name = {});
  ~CondVar();
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  // Frees `mu`, waits for a notification, locks `mu` again. May come back for no reason only after an abort, by
  // throwing.
  void wait(Mutex* mu, CodeSite code = CodeSite::here()) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Until `done()`, which is asked with `mu` held.
  void wait(Mutex* mu, absl::FunctionRef<bool()> done, CodeSite code = CodeSite::here())
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // The same for at most `timeout`, of the world's time: virtual in deterministic runs. Whether `done()` holds.
  bool wait_for(Mutex* mu, absl::Duration timeout, absl::FunctionRef<bool()> done, CodeSite code = CodeSite::here())
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Waiters wake in the order in which they came. A later one has no part in it.
  void notify_one(CodeSite code = CodeSite::here());
  void notify_all(CodeSite code = CodeSite::here());

 private:
  const internal::Owned<internal::CondVarState> state_;
};

// A value in memory that ranks share beside the store and the collectives: a global, what a lambda captured. Each
// access is a scheduling point, and an exhaustive search sees it; what it does not see it cannot reorder.
// Thread-safety: all methods; each is atomic by itself. T's copies and moves must use nothing of rankloom's.
template <typename T>
class Watched final {
 public:
  Watched() = default;
  explicit Watched(T value) : value_(std::move(value)) {}
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  T get(CodeSite code = CodeSite::here()) const {
    const internal::WatchedAccess access(&cell_, /*writes=*/false, code);
    return value_;
  }
  void set(T value, CodeSite code = CodeSite::here()) {
    const internal::WatchedAccess access(&cell_, /*writes=*/true, code);
    std::swap(value_, value);  // the old value goes after the access: its destructor may call rankloom
  }
  // Calls `change` with the value, in one access. `change` must use nothing of rankloom's.
  template <typename Change>
  void update(Change change, CodeSite code = CodeSite::here()) {
    const internal::WatchedAccess access(&cell_, /*writes=*/true, code);
    change(value_);
  }

 private:
  const internal::WatchedCell cell_;
  T value_ ABSL_GUARDED_BY(cell_){};
};

// A count that goes down to zero once; tasks that wait for zero go on then.
class Latch final {
 public:
  // Errors: InvalidArgument for a negative count.
  explicit Latch(int64_t count, std::string_view name = {}, CodeSite code = CodeSite::here());
  ~Latch();
  Latch(const Latch&) = delete;
  Latch& operator=(const Latch&) = delete;

  // Errors: InvalidArgument for n < 0 or more than what is left; nothing is counted then.
  void count_down(int64_t n = 1, CodeSite code = CodeSite::here());
  bool try_wait(CodeSite code = CodeSite::here());
  void wait(CodeSite code = CodeSite::here());
  void arrive_and_wait(CodeSite code = CodeSite::here());

 private:
  const internal::Owned<internal::LatchState> state_;
};

}  // namespace rankloom

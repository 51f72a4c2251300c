#include "rankloom/sync.h"

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sim/base/dist_error.h"
#include "sim/base/forked_run.h"
#include "sim/base/library_scope.h"
#include "sim/base/require.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "sim/schedule/step_record.h"
#include "sim/scheduler/scheduler.h"
#include "sim/sync/observed_mutex.h"

namespace rankloom {

using namespace internal;

namespace {

constexpr int kAccessesAfterAbort = 1'000;

std::string in_quotes(std::string_view name) { return name.empty() ? "" : absl::StrCat("\"", sv(name), "\""); }

void poll(const Site& site) {
  const Task* const task = Task::current();
  if (task == nullptr) return;
  if (is_forked_copy(task->scheduler)) end_forked_copy();
  task->scheduler->poll(site);
}

void point(const Site& site) {
  const Task* const task = Task::current();
  if (task == nullptr) return;
  if (is_forked_copy(task->scheduler)) end_forked_copy();
  task->scheduler->point(site);
}

// An object as the explored run of the calling task knows it; nothing in other runs.
class Told {
 public:
  explicit Told(const ObjectName& object) : record_(object.record()) {
    if (record_ != nullptr) [[unlikely]]
      object_ = object.in(*record_);
  }
  void read() const { access(Access::kRead); }
  void commute() const { access(Access::kCommute); }
  void write() const { access(Access::kWrite); }
  // Of what never comes back.
  void signal() const {
    if (record_ != nullptr) record_->signal(object_);
  }
  void await() const {
    if (record_ != nullptr) record_->await(object_);
  }
  // Of the condition that waiters of the object wait for.
  void raise() const {
    if (record_ != nullptr) record_->raise(condition());
  }
  void lower() const {
    if (record_ != nullptr) record_->lower(condition());
  }
  void miss() const {
    if (record_ != nullptr) record_->miss(condition());
  }
  void pass() const {
    if (record_ != nullptr) record_->pass(condition());
  }

 private:
  void access(Access how) const {
    if (record_ != nullptr) record_->access(object_, how);
  }
  uint64_t condition() const { return numbered_object(object_, 1); }

  StepRecord* const record_;
  uint64_t object_ = 0;
};

bool aborted() {
  const Task* const task = Task::current();
  return task != nullptr && task->scheduler->aborted();
}

// Throws unless it went well: "rank 2, mutex lock "m": ...".
void check(const absl::Status& status, const Site& site) {
  if (status.ok()) return;
  const Task* const task = Task::current();
  throw_dist_error(status, {.rank = task != nullptr ? task->info.rank : -1, .group = {}, .op = site.what});
}

// Of a call that only asks: in a run that was aborted it throws, or a loop around it would never end. Not while an
// exception unwinds, for the sake of destructors.
void check_run(const Site& site) {
  if (aborted() && std::uncaught_exceptions() == 0) check(Task::current()->scheduler->abort_cause(), site);
}

// A rank on its way out of a run that was aborted may still gather values; a loop that waits for one ends.
void check_late_access(const Site& site) {
  if (++Task::current()->late_accesses > kAccessesAfterAbort) check_run(site);
}

[[noreturn]] void misuse(const Site& site, std::string_view text) {
  const Task* const task = Task::current();
  const std::string who = task != nullptr ? absl::StrCat("rank ", task->info.rank, ", ") : "";
  internal::refuse({.rank = task != nullptr ? task->info.rank : -1, .group = {}, .op = site.what},
                   ErrorKind::kInvalidArgument, who, site_text(site), ": ", sv(text), site_place(site));
}

}  // namespace

namespace internal {

class WatchedState {
 public:
  ObservedMutex& mu() { return mu_; }
  const ObjectName& object() const { return object_; }

 private:
  const ObjectName object_;
  ObservedMutex mu_{nullptr, LockLevel::kSync};
};

WatchedCell::WatchedCell() : state_(new WatchedState()) {}
WatchedCell::~WatchedCell() = default;

WatchedAccess::WatchedAccess(const WatchedCell* cell, bool writes, CodeSite code) : state_(*cell->state_) {
  const LibraryScope library;
  const Site site{.what = writes ? "watched set" : "watched get", .code = code};
  writes ? point(site) : poll(site);
  if (aborted()) [[unlikely]]
    check_late_access(site);
  state_.mu().lock();
  const Told told(state_.object());
  writes ? told.write() : told.read();
}

WatchedAccess::~WatchedAccess() {
  const LibraryScope library;
  state_.mu().unlock();
}

class MutexState {
 public:
  explicit MutexState(std::string_view name) : name_(in_quotes(name)) {}

  const std::string& name() const { return name_; }
  // Without a point first.
  absl::Status acquire(CodeSite code);
  bool try_lock(CodeSite code);
  void release(CodeSite code);

  // Of a wait by a task of that world: the rank of it that holds the mutex; where it was locked, and if it was by a
  // rank of another world.
  void append_owner(uint64_t world, std::vector<int>* ranks) const;
  std::string owner_text(uint64_t world) const;

 private:
  void take(CodeSite code) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // "rank 3", "rank 3 of another world", "a thread of no world".
  std::string owner_in(uint64_t world) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string name_;  // in quotes; empty: none
  const ObjectName object_;
  mutable ObservedMutex mu_{nullptr, LockLevel::kSync};
  RankCondVar freed_ ABSL_GUARDED_BY(mu_);
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t owner_ ABSL_GUARDED_BY(mu_) = 0;        // Task::current_serial()
  uint64_t owner_world_ ABSL_GUARDED_BY(mu_) = 0;  // its number; 0: none
  int owner_rank_ ABSL_GUARDED_BY(mu_) = -1;
  CodeSite locked_at_ ABSL_GUARDED_BY(mu_);
};

namespace {

// Of the calling task; 0: none.
uint64_t current_world() {
  const Task* const task = Task::current();
  return task != nullptr && task->scheduler != nullptr ? task->scheduler->serial() : 0;
}

// The wait of a task for a mutex.
class MutexWait final : public WaitsFor {
 public:
  explicit MutexWait(const MutexState* mu) : mu_(*mu) {}
  void append_ranks(std::vector<int>* ranks) const override { mu_.append_owner(world_, ranks); }
  std::string remark() const override { return mu_.owner_text(world_); }

 private:
  const MutexState& mu_;
  const uint64_t world_ = current_world();
};

}  // namespace

absl::Status MutexState::acquire(CodeSite code) {
  const MutexWait wait(this);
  const Site site{.what = "mutex lock", .code = code, .detail = name_, .waits_for = &wait};
  ObservedMutexLock lock(&mu_);
  if (held_ && owner_ != 0 && owner_ == Task::current_serial()) {
    lock.apart();  // nobody else can free it meanwhile
    misuse(site,
           absl::StrCat("this task holds it already", site_place(Site{.code = locked_at_}), ", want no second lock"));
  }
  const Told told(object_);
  bool waited = false;
  const auto is_free = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (held_) told.miss();
    waited |= held_;
    return !held_;
  };
  absl::Status status = freed_.await(&mu_, is_free, site, Deadline::never());
  if (!status.ok()) return status;
  // The task that held it may have left because of the abort that this one waited through.
  if (waited && aborted()) {
    freed_.notify_takers();  // a thread of no world may wait behind it, which an abort does not wake
    return Task::current()->scheduler->abort_cause();
  }
  told.pass();
  take(code);
  return absl::OkStatus();
}

void MutexState::take(CodeSite code) {
  const Told told(object_);
  told.write();
  told.lower();
  held_ = true;
  owner_ = Task::current_serial();
  owner_world_ = current_world();
  owner_rank_ = owner_ != 0 ? Task::current()->info.rank : -1;
  locked_at_ = code;
}

bool MutexState::try_lock(CodeSite code) {
  ObservedMutexLock lock(&mu_);
  if (held_) {
    Told(object_).read();
    return false;
  }
  take(code);
  return true;
}

void MutexState::release(CodeSite code) {
  ObservedMutexLock lock(&mu_);
  const Told told(object_);
  if (!held_ || owner_ != Task::current_serial()) {
    if (aborted() || AfterRanks::here() != nullptr) return;  // a wait that failed did not lock it
    told.read();
    misuse(Site{.what = "mutex unlock", .code = code, .detail = name_},
           absl::StrCat(held_ ? absl::StrCat(owner_in(current_world()), " holds it") : "nobody holds it",
                        ", want the one that locked it"));
  }
  told.write();
  told.raise();
  held_ = false;
  owner_ = 0;
  owner_world_ = 0;
  owner_rank_ = -1;
  freed_.notify_takers();
}

void MutexState::append_owner(uint64_t world, std::vector<int>* ranks) const {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // for reports
  if (owner_rank_ >= 0 && owner_world_ == world) ranks->push_back(owner_rank_);
}

std::string MutexState::owner_text(uint64_t world) const {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // for reports
  if (!held_) return "";
  return absl::StrCat("locked at ", sv(base_name(locked_at_.file)), ":", locked_at_.line,
                      owner_rank_ >= 0 && owner_world_ != world ? absl::StrCat(" by ", owner_in(world)) : "");
}

std::string MutexState::owner_in(uint64_t world) const {
  if (owner_rank_ < 0) return "a thread of no world";
  return absl::StrCat("rank ", owner_rank_, owner_world_ != world ? " of another world" : "");
}

class CondVarState {
 public:
  explicit CondVarState(std::string_view name) : name_(in_quotes(name)) {}

  const std::string& name() const { return name_; }
  // Frees `mu`, waits for a notification, locks `mu` again. `held`: whether that came about: not where an abort ended
  // the wait.
  absl::Status wait_until(MutexState* mu, Deadline deadline, CodeSite code, bool* held);
  void notify_one();
  void notify_all();

 private:
  struct Waiter {
    RankCondVar woken;
    ObjectName object;
    bool notified = false;
    Waiter* next = nullptr;
  };
  void unlink(Waiter* waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool notify_first() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string name_;
  const ObjectName object_;
  ObservedMutex mu_{nullptr, LockLevel::kSync};
  Waiter* first_ ABSL_GUARDED_BY(mu_) = nullptr;
};

absl::Status CondVarState::wait_until(MutexState* mu, Deadline deadline, CodeSite code, bool* held) {
  *held = false;
  const Site site{.what = "condition wait", .code = code, .detail = name_};
  point(site);
  Waiter waiter;
  {
    ObservedMutexLock lock(&mu_);
    Told(object_).write();
    Waiter** last = &first_;
    while (*last != nullptr) last = &(*last)->next;
    *last = &waiter;
  }
  try {
    mu->release(code);
  } catch (...) {
    // A mutex that is not this task's: the wait never was, and a notification goes on to the next.
    ObservedMutexLock lock(&mu_);
    Told(object_).write();
    if (!waiter.notified) {
      unlink(&waiter);
    } else {
      notify_first();
    }
    throw;
  }
  absl::Status status;
  bool looked = false;  // at what notifiers change
  {
    ObservedMutexLock lock(&mu_);
    status = waiter.woken.await(
        &mu_, [&waiter] { return waiter.notified; }, site, deadline);
    if (waiter.notified) {
      const Task* const task = Task::current();
      // At its deadline the wait might have ended first.
      looked = task != nullptr && deadline.at_ns <= task->scheduler->now_ns();
      if (looked) Told(object_).read();
      Told(waiter.object).await();
    } else {
      looked = true;
      Told(object_).write();
      unlink(&waiter);
    }
  }
  // A step of its own: the wait may have ended while others held the mutex, and what follows waits for that.
  if (looked) point(site);
  if (!status.ok() && aborted()) return status;
  // After an abort a task that never lets go may hold the mutex; then this task is without it.
  const absl::Status locked = mu->acquire(code);
  *held = locked.ok();
  if (locked.ok()) return status;
  if (waiter.notified) {
    ObservedMutexLock lock(&mu_);
    notify_first();
  }
  return locked;
}

void CondVarState::unlink(Waiter* waiter) {
  Waiter** at = &first_;
  while (*at != waiter) at = &(*at)->next;
  *at = waiter->next;
}

bool CondVarState::notify_first() {
  Waiter* const waiter = first_;
  Told(object_).write();
  if (waiter == nullptr) return false;
  Told(waiter->object).signal();
  first_ = waiter->next;
  waiter->notified = true;
  waiter->woken.notify_one();
  return true;
}

void CondVarState::notify_one() {
  ObservedMutexLock lock(&mu_);
  notify_first();
}

void CondVarState::notify_all() {
  ObservedMutexLock lock(&mu_);
  while (notify_first()) {
  }
}

class LatchState final : public WaitsFor {
 public:
  LatchState(int64_t count, std::string_view name) : name_(in_quotes(name)), count_(count), left_(count) {}

  const std::string& name() const { return name_; }
  void count_down(int64_t n, const Site& site);
  bool try_wait();
  void wait(CodeSite code);

  void append_ranks(std::vector<int>*) const override {}  // the ranks that have not counted yet are not known
  std::string remark() const override;

 private:
  const std::string name_;
  const int64_t count_;
  const ObjectName object_;
  mutable ObservedMutex mu_{nullptr, LockLevel::kSync};
  RankCondVar zero_ ABSL_GUARDED_BY(mu_);
  int64_t left_ ABSL_GUARDED_BY(mu_);
};

void LatchState::count_down(int64_t n, const Site& site) {
  ObservedMutexLock lock(&mu_);
  const Told told(object_);
  if (n < 0 || n > left_) {
    told.read();
    misuse(site, absl::StrCat("n is ", n, ", want 0 <= n <= what is left = ", left_));
  }
  if (n == 0) {
    lock.apart();  // nothing is changed, and no wait ends for it
    return;
  }
  // Steps of one commute as long as something is left for each: a step that takes the last turns others into errors.
  if (n == 1) {
    told.commute();
    told.pass();
  } else {
    told.write();
  }
  told.signal();
  left_ -= n;
  if (left_ > 0) return;
  told.lower();
  zero_.notify_all();
}

bool LatchState::try_wait() {
  ObservedMutexLock lock(&mu_);
  Told(object_).read();
  return left_ == 0;
}

void LatchState::wait(CodeSite code) {
  const Site site{.what = "latch wait", .code = code, .detail = name_, .waits_for = this};
  point(site);
  ObservedMutexLock lock(&mu_);
  check(zero_.await(
            &mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return left_ == 0; }, site, Deadline::never()),
        site);
  Told(object_).await();
}

std::string LatchState::remark() const {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // for reports
  return absl::StrCat(left_, " of ", count_, " left");
}

}  // namespace internal

Mutex::Mutex(std::string_view name) : state_(new internal::MutexState(name)) {}
Mutex::~Mutex() = default;

void Mutex::lock(CodeSite code) {
  const LibraryScope library;
  const Site site{.what = "mutex lock", .code = code, .detail = state_->name()};
  point(site);
  check(state_->acquire(code), site);
}

bool Mutex::try_lock(CodeSite code) {
  const LibraryScope library;
  const Site site{.what = "mutex try_lock", .code = code, .detail = state_->name()};
  poll(site);
  check_run(site);
  return state_->try_lock(code);
}

void Mutex::unlock(CodeSite code) {
  const LibraryScope library;
  point(Site{.what = "mutex unlock", .code = code, .detail = state_->name()});
  state_->release(code);
}

CondVar::CondVar(std::string_view name) : state_(new internal::CondVarState(name)) {}
CondVar::~CondVar() = default;

namespace {

// `op`: "condition wait"; `name`: of the object that wants the mutex, in quotes, or empty.
void require_mutex(const Mutex* mu, std::string_view op, std::string_view name, CodeSite code) {
  const Task* const task = Task::current();
  require(mu, {.rank = task != nullptr ? task->info.rank : -1, .group = {}, .op = op}, code,
          task != nullptr ? absl::StrCat("rank ", task->info.rank, ", ") : "", sv(op), name.empty() ? "" : " ",
          sv(name), ": mutex");
}

}  // namespace

Mutex& MutexLock::checked(Mutex* mu, CodeSite code) {
  require_mutex(mu, "mutex lock", "", code);
  return *mu;
}

void CondVar::wait(Mutex* mu, CodeSite code) {
  const LibraryScope library;
  require_mutex(mu, "condition wait", state_->name(), code);
  bool held = false;
  check(state_->wait_until(mu->state_.get(), Deadline::never(), code, &held), Site{.what = "condition wait"});
}

void CondVar::wait(Mutex* mu, absl::FunctionRef<bool()> done, CodeSite code) {
  require_mutex(mu, "condition wait", state_->name(), code);
  while (!done()) wait(mu, code);
}

bool CondVar::wait_for(Mutex* mu, absl::Duration timeout, absl::FunctionRef<bool()> done, CodeSite code) {
  require_mutex(mu, "condition wait", state_->name(), code);
  const Task* const task = Task::current();
  const int64_t now = task != nullptr ? task->scheduler->now_ns() : monotonic_ns();
  const Deadline deadline = Deadline::after(now, timeout, /*weak=*/false);
  while (!done()) {
    bool held = false;
    const absl::Status status = [&] {
      const LibraryScope library;
      return state_->wait_until(mu->state_.get(), deadline, code, &held);
    }();
    // The cause of an abort may be a Timeout, too: then the mutex is not held.
    if (!status.ok() && held) return done();
    check(status, Site{.what = "condition wait"});
  }
  return true;
}

void CondVar::notify_one(CodeSite code) {
  const LibraryScope library;
  point(Site{.what = "condition notify_one", .code = code, .detail = state_->name()});
  state_->notify_one();
}

void CondVar::notify_all(CodeSite code) {
  const LibraryScope library;
  point(Site{.what = "condition notify_all", .code = code, .detail = state_->name()});
  state_->notify_all();
}

Latch::Latch(int64_t count, std::string_view name, CodeSite code) : state_(new internal::LatchState(count, name)) {
  if (count < 0)
    misuse(Site{.what = "latch", .code = code, .detail = state_->name()},
           absl::StrCat("count is ", count, ", want at least 0"));
}
Latch::~Latch() = default;

void Latch::count_down(int64_t n, CodeSite code) {
  const LibraryScope library;
  const Site site{.what = "latch count_down", .code = code, .detail = state_->name()};
  point(site);
  state_->count_down(n, site);
}

bool Latch::try_wait(CodeSite code) {
  const LibraryScope library;
  const Site site{.what = "latch try_wait", .code = code, .detail = state_->name()};
  poll(site);
  check_run(site);
  return state_->try_wait();
}

void Latch::wait(CodeSite code) {
  const LibraryScope library;
  state_->wait(code);
}

void Latch::arrive_and_wait(CodeSite code) {
  count_down(1, code);
  wait(code);
}

}  // namespace rankloom

#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/work/completion.h"
#include "rankloom/error.h"
#include "rankloom/tensor.h"
#include "sim/base/prefetch.h"
#include "sim/schedule/step_record.h"
#include "sim/scheduler/call_scope.h"
#include "sim/sync/observed_mutex.h"

namespace rankloom {

class Future;
class Stream;

// What a Work stands for: one call on its way. Subclass it to answer wait() and get_future() in your own way; the base
// completes once, by complete(). Held by shared_ptr, by handles and by whoever will complete it.
// Thread-safety: all methods.
class WorkState {
 public:
  // `rank`: the global rank that owns the work, -1 outside a world. `scheduler` may be null.
  // `by_any_thread`: also in a world of fibers threads of no world complete it.
  explicit WorkState(Scheduler* scheduler = nullptr, int rank = -1, bool by_any_thread = false)
      : world_(scheduler),
        rank_(rank),
        object_(name_in(scheduler)),
        outside_name_(scheduler == nullptr ? std::make_unique<const ObjectName>() : nullptr),
        mu_(by_any_thread ? nullptr : scheduler) {}
  virtual ~WorkState();
  WorkState(const WorkState&) = delete;
  WorkState& operator=(const WorkState&) = delete;

  // Blocks the calling rank until the work is done, at most `timeout`; then how it ended. A timeout here ends the wait; what
  // becomes of the work is the subclass's business (a call of a ThreadedProcessGroup is withdrawn).
  virtual absl::Status wait(absl::Duration timeout, bool timeout_is_default, CodeSite code);
  // Completes when the work does, with its result. `self`: this work, as its handle holds it.
  virtual Future get_future(const std::shared_ptr<WorkState>& self);
  // Work put on `stream` later starts only when this work is done; the caller goes on. Errors: Timeout and abort release the
  // stream and mark it failed.
  virtual void block_current_stream(const std::shared_ptr<WorkState>& self, Stream& stream, absl::Duration timeout,
                                    CodeSite code);
  // The tensors that the work wrote.
  virtual std::vector<TensorView> result() { return {}; }
  // Of a recv that is done: the rank in the group that sent. Else -1.
  virtual int source() const { return -1; }
  // The last handle went while the work was unfinished.
  virtual void dropped() noexcept {}
  // The name of the operation in error texts and reports.
  virtual const char* op() const { return "work"; }
  virtual std::string_view group() const { return {}; }
  virtual int64_t seq() const { return -1; }
  // OK, or why a wait for the work makes no sense yet.
  virtual absl::Status waitable() const { return absl::OkStatus(); }
  // A wait that has lasted so long is overdue(); it goes on.
  virtual absl::Duration warn_after() const { return absl::InfiniteDuration(); }

  bool is_completed() const {
    touched(Access::kRead);
    return is_over();
  }
  // The same of code that tells an explored run in another way of what it looks at, or does nothing that the run sees.
  bool is_over() const { return done_.load(std::memory_order_acquire); }
  // How it ended; OK while it has not.
  absl::Status status() const;
  // `callback` runs once the work is done, with its status: now on the caller if it is done already, else as the rank that
  // owns the work, on a helper task of it, so it may wait.
  void then(absl::AnyInvocable<void(const absl::Status&)> callback);

  // Tells `dependant` on whoever completes the work, just before it is done; now, if it is done already. For works that are
  // made of others: who sees this work done sees theirs done.
  void when_done(std::unique_ptr<internal::Dependant> dependant);

  // Ends the work. Only the first call counts. Wakes who waits; callbacks run later, and handles that go for it go later.
  void complete(const absl::Status& status);

  // Where a wait for it is, as reports show it.
  Site site(CodeSite code) const { return wait_site(code); }

  // What complete() will touch, fetched ahead in three steps: the work, who waits for it, its task. Only where ranks are fibers.
  enum class Ahead : uint8_t { kWork, kWaiter, kTask };
  void prefetch(Ahead step) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    switch (step) {
      case Ahead::kWork:
        prefetch_lines(this, 0, sizeof(WorkState));
        return;
      case Ahead::kWaiter:
        finished_.prefetch_waiter();
        return;
      case Ahead::kTask:
        finished_.prefetch_task();
        return;
    }
  }

  // Good as long as the world lives.
  Scheduler* scheduler() const { return world_.scheduler(); }
  const WorldRef& world_ref() const { return world_; }
  int rank() const { return rank_; }
  // What explored runs call the work; 0 in all others. For works of a world.
  uint64_t object() const { return object_; }
  // The same; 0 for works of no world, too.
  uint64_t explored_object() const { return object_ != kNamedOutside ? object_ : 0; }

  // wait() without a scheduling point before it, and without what a subclass makes of a wait that ends early: for waiters that
  // are not the work's owner, such as streams.
  absl::Status await(absl::Duration timeout, bool timeout_is_default, CodeSite code);

  // For callers that are no task of the work's world, at the beginning of a call: whether it is done for them. One whose world has
  // ended is. Throws InvalidArgument if it is not done and the caller is a task of another world.
  bool settled(const char* op) {
    if (!world_.foreign()) [[likely]]
      return false;
    return settled_elsewhere(op);
  }

 protected:
  // Of the explored run that the work is part of; null in all others.
  StepRecord* record() const;
  // What a wait shows in a report: subclasses add who could end it.
  virtual Site wait_site(CodeSite code) const {
    return Site{.what = op(), .code = code, .group = group(), .seq = seq()};
  }
  CalledHandle called(const char* op) const;
  // For constructors: let_go() is to be called, on the thread that drops the last handle, once the work is done.
  void holds_owners(bool holds) { holds_owners_ = holds; }
  virtual void let_go() noexcept {}
  // Tells of a wait that has lasted for warn_after(). On the rank that waits, with no lock held.
  virtual void overdue(absl::Duration /*timeout*/, CodeSite /*code*/) {}

 private:
  friend class Work;

  // The last handle went.
  void abandon() noexcept;

  bool settled_elsewhere(const char* op);
  // Of a work that is not done: whether it is after a scheduling point.
  bool polled(const char* what, CodeSite code);
  // A scheduling point of a task of the work's world, before something that depends on whether the work is done.
  void reached(const char* what, CodeSite code);
  // Explored runs: the name of a work that the calling task makes; else 0.
  static uint64_t name_in(const Scheduler* scheduler);
  static constexpr uint64_t kNamedOutside = 1;
  // Tells an explored run what becomes of this work, or who looks at it.
  void touched(Access how) const {
    if (object_ != 0) [[unlikely]]
      record_touch(how);
  }
  void waited() const {
    if (object_ != 0) [[unlikely]]
      record_wait();
  }
  void record_touch(Access how) const;
  void record_wait() const;
  // The work, or a part of it, in the run of `record`.
  uint64_t name_in(const StepRecord& record, uint64_t part = 0) const;
  // Whose time counts: of the work's world, else of the caller's. Null: real time, as for threads of no world.
  Scheduler* clock_of_wait() const;
  // `site`: null, and it is asked for if there is something to wait for.
  absl::Status await_from(absl::Duration timeout, bool timeout_is_default, CodeSite code, const Site* site);
  absl::Status await_until(Deadline deadline, CodeSite code, const Site* site);
  struct Callback;
  // Has them run as then() says.
  void run_callbacks(std::vector<Callback> callbacks, const absl::Status& status);
  // The last handle went. Put off while works are completed, this one perhaps among them.
  static void handles_gone(std::shared_ptr<WorkState> state) noexcept;

  const WorldRef world_;
  const int rank_;
  const uint64_t object_;  // explored runs: its name; 0 in all others; kNamedOutside: see below
  const std::unique_ptr<const ObjectName> outside_name_;  // of a work of no world, which tasks of explored runs may use
  std::atomic<int> handles_{0};
  std::atomic<bool> done_{false};
  bool holds_owners_ = false;  // const after construction
  mutable ObservedMutex mu_;   // taken after no other lock but a rendezvous'
  RankCondVar finished_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool completing_ ABSL_GUARDED_BY(mu_) = false;  // complete() is at the callbacks of when_done()
  struct Callback {
    absl::AnyInvocable<void(const absl::Status&)> run;
    std::unique_ptr<internal::Dependant> dependant;  // instead of `run`
  };
  std::vector<Callback> callbacks_ ABSL_GUARDED_BY(mu_);
};

// A handle on a call that may not be done yet. Cheap to copy; the last copy that goes while the call is unfinished withdraws
// it, and the rank is named in the report, unless the call holds the owners of its tensors (CallOptions::keep_alive).
// It may outlive its world: a work that is done then stays so, all others have failed with Aborted, "the world has ended".
// Errors: wait() throws the call's DistError.
class [[nodiscard]] Work {
 public:
  // Done, without a result.
  Work() = default;
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) { acquire(); }
  // The same for a work that no other thread knows of yet.
  static Work first(std::shared_ptr<WorkState> state) {
    Work work;
    state->handles_.store(1, std::memory_order_relaxed);
    work.state_ = std::move(state);
    return work;
  }
  Work(const Work& other) : state_(other.state_) { acquire(); }
  Work(Work&& other) noexcept : state_(std::move(other.state_)) {}
  Work& operator=(Work other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~Work() { release(); }

  // Blocks until done. The first form waits as long as the call's or group's timeout says.
  void wait(CodeSite code = CodeSite::here());
  // Timeout when `timeout` (virtual time in deterministic runs) passes first; the call is withdrawn then.
  void wait(absl::Duration timeout, CodeSite code = CodeSite::here());

  // While it is false, a scheduling point: other ranks may go on, and the work may be done meanwhile. Throws the cause of an
  // abort. A timeout of the call counts in a wait() only: a loop that asks for what nobody completes ends when
  // WorldOptions::stuck_after has passed (under a schedule), or never (in the free gear).
  bool is_completed(CodeSite code = CodeSite::here()) const {
    return state_ == nullptr || state_->is_completed() || state_->polled("is_completed", code);
  }
  // Done, and without error.
  bool is_success(CodeSite code = CodeSite::here()) const {
    return is_completed(code) && (state_ == nullptr || state_->status().ok());
  }
  // The DistError that wait() would throw, null if there is none (yet).
  std::exception_ptr exception(CodeSite code = CodeSite::here()) const;
  // The tensors that the call wrote. Waits for it.
  std::vector<TensorView> result(CodeSite code = CodeSite::here());
  // Of a recv or recv_any: the rank in the group that sent, once it is done. Else -1.
  int source(CodeSite code = CodeSite::here()) const {
    return state_ != nullptr && is_completed(code) ? state_->source() : -1;
  }
  Future get_future();
  void then(absl::AnyInvocable<void(const absl::Status&)> callback, CodeSite code = CodeSite::here());
  // Work that is put on `stream` later starts only when this is done; the caller goes on. This handle may go.
  // Errors: InvalidArgument for a negative timeout, at once. A timeout, an abort or the work's own failure releases the stream
  // and marks it failed.
  void block_current_stream(Stream& stream, absl::Duration timeout = absl::InfiniteDuration(),
                            CodeSite code = CodeSite::here());
  // As wait(): what remains to be done so that the tensors may be used.
  void synchronize(CodeSite code = CodeSite::here()) { wait(code); }

  WorkState* state() const { return state_.get(); }
  const std::shared_ptr<WorkState>& shared_state() const { return state_; }

 private:
  void acquire() {
    if (state_ != nullptr) state_->handles_.fetch_add(1, std::memory_order_relaxed);
  }
  void release() noexcept {
    if (state_ == nullptr) return;
    // The only handle cannot be copied meanwhile, so that needs no atomic step, which would cost more than the rest.
    if (state_->handles_.load(std::memory_order_acquire) > 1 &&
        state_->handles_.fetch_sub(1, std::memory_order_acq_rel) > 1) {
      return;
    }
    state_->handles_.store(0, std::memory_order_relaxed);
    state_->touched(Access::kRead);
    if (!state_->is_over()) return WorkState::handles_gone(std::move(state_));
    // Here, and not by whoever completes works, who may let the state itself go later.
    if (state_->holds_owners_) [[unlikely]]
      state_->let_go();
  }
  void check(const absl::Status& status) const;

  std::shared_ptr<WorkState> state_;
};

// The result of a work, as a value that arrives later. A handle, and counts as one of the work.
class Future {
 public:
  explicit Future(std::shared_ptr<WorkState> state) : work_(std::move(state)) {}

  bool done(CodeSite code = CodeSite::here()) const { return work_.is_completed(code); }
  // Waits; throws the work's DistError.
  std::vector<TensorView> value(CodeSite code = CodeSite::here()) { return work_.result(code); }
  void then(absl::AnyInvocable<void(const absl::Status&)> callback, CodeSite code = CodeSite::here()) {
    work_.then(std::move(callback), code);
  }
  // A work that is done when this is.
  Work work() const { return work_; }

 private:
  Work work_;
};

// Makes a work that its owner completes later, from any thread. Outside wakers: see World::outside_waker().
class Promise {
 public:
  explicit Promise(Scheduler* scheduler = nullptr, int rank = -1);

  Work work() const;
  Future future() const;
  // The first of the two counts.
  void set_value(std::vector<TensorView> result = {});
  void set_error(const absl::Status& status);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Waits for all, in order; then throws the first error, if any.
void wait_all(std::span<Work> works, CodeSite code = CodeSite::here());
// The index of a work that is done: the first such in the list. Waits until there is one. `works` is not empty.
size_t wait_any(std::span<Work> works, CodeSite code = CodeSite::here());

}  // namespace rankloom

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/work/completion.h"
#include "rankloom/error.h"
#include "rankloom/tensor.h"
#include "rankloom/work.h"
#include "sim/base/prefetch.h"
#include "sim/schedule/step_record.h"
#include "sim/scheduler/call_scope.h"
#include "sim/sync/observed_mutex.h"
#include "world/open_outputs.h"

namespace rankloom::internal {

// The state that a Work is a handle on: one call on its way. Completes once, by complete(); subclasses say what a wait
// is. Users answer wait() and get_future() in their own way by Promise::Hooks. Held by handles and by completers.
// Thread-safety: all methods.
class WorkState : public OpenCall {
 public:
  // `rank`: the global rank that owns the work, -1 outside a world. `scheduler` may be null.
  // `by_any_thread`: also in a world of fibers threads of no world complete it.
  explicit WorkState(Scheduler* scheduler = nullptr, int rank = -1, bool by_any_thread = false)
      : world_(scheduler),
        rank_(rank),
        object_(name_in(scheduler)),
        outside_name_(scheduler == nullptr ? std::make_unique<const ObjectName>() : nullptr),
        mu_(by_any_thread ? nullptr : scheduler, LockLevel::kWork) {}
  virtual ~WorkState();
  WorkState(const WorkState&) = delete;
  WorkState& operator=(const WorkState&) = delete;

  // The work of a handle; null: a handle that was made done.
  static WorkState* of(const Work& work) { return work.state_.get(); }
  static const std::shared_ptr<WorkState>& shared(const Work& work) { return work.state_; }
  static Work handle(std::shared_ptr<WorkState> state) { return Work(std::move(state)); }
  // Wraps a work that no other thread can see yet, so that the count of handles is stored without an atomic increment.
  // `work`: empty.
  static void first_handle(std::shared_ptr<WorkState> state, Work* work) {
    state->handles_.store(1, std::memory_order_relaxed);
    work->state_ = std::move(state);
  }

  // Blocks the calling rank until the work is done, at most `timeout`; then how it ended. A timeout here ends the wait;
  // what becomes of the work is the subclass's business (a call of a ThreadedProcessGroup is withdrawn).
  virtual absl::Status wait(absl::Duration timeout, bool timeout_is_default, CodeSite code);
  // Completes when the work does, with its result. `self`: a handle on this work.
  virtual Future get_future(const Work& self);
  // Work put on `stream` later starts only when this work is done; the caller goes on. Errors: Timeout and abort
  // release the stream and mark it failed.
  virtual void block_current_stream(const Work& self, Stream& stream, absl::Duration timeout, CodeSite code);
  // The tensors that the work wrote.
  virtual std::vector<TensorView> result() { return {}; }
  // Of a recv that is done, or whose whole or wrapper is: the rank in the group that sent. Else -1, or that rank.
  virtual int source() const { return -1; }
  // Of a coalesced block: source() of the block's i-th send or recv.
  virtual int source_of_message(size_t /*i*/) const { return -1; }
  // The last handle went while the work was unfinished.
  virtual void dropped() noexcept {}
  // Whether dropped() does what others see.
  virtual bool acts_when_dropped() const { return false; }
  // The name of the operation in error texts and reports.
  virtual const char* op() const { return "work"; }
  virtual std::string_view group() const { return {}; }
  virtual int64_t seq() const { return -1; }
  // OK, or why a wait for the work makes no sense yet.
  virtual absl::Status waitable() const { return absl::OkStatus(); }
  // A wait that has lasted so long is overdue(), and goes on.
  virtual absl::Duration warn_after() const { return absl::InfiniteDuration(); }

  bool is_completed() const {
    touched(Access::kRead);
    return is_over();
  }
  // The same of code that tells an explored run in another way of what it looks at, or does nothing that the run sees.
  bool is_over() const { return done_.load(std::memory_order_acquire); }
  // How it ended; OK while it has not.
  absl::Status status() const;
  // Of a work that is_over(), for code that tells an explored run nothing: without error.
  bool ended_well() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return status_.ok(); }
  absl::Status ended_as() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return status_; }
  // How a wait ends that came back with `waited`. The work may have been completed since the wait looked, at its
  // deadline or at the abort of the world: then as the work did, for the other members had that end, too.
  absl::Status ended_as(absl::Status waited) const;
  // `callback` runs once the work is done, with its status: now on the caller if it is done already, else as the rank
  // that owns the work, on a helper task of it, so it may wait.
  // `learns`: the callback is the rank's own code, or what that waits for: the work is learned() when it is done.
  void then(absl::AnyInvocable<void(const absl::Status&)> callback, bool learns = false);
  // For reports: whether a task, a work or a callback waits for the work to be done.
  bool is_awaited() const;
  // How many callbacks wait for the work to be done.
  size_t waiting_callbacks() const;

  // Of a call that has outputs: they are in this list until learned().
  void outputs_open_in(OpenOutputs* list) { open_in_.store(list, std::memory_order_release); }
  // For works that stand for another one, on which they hold a handle as long as there is one on them: a rank that
  // learned how this one ended knows it of that one.
  void learned_with(WorkState& inner) {
    open_call_ = inner.open_call_;
    outputs_open_in(inner.open_in_.load(std::memory_order_relaxed));
  }
  // The rank knows that the work is done, or holds no handle on it any more: what the call wrote is the rank's again.
  void learned() noexcept {
    OpenOutputs* const list = open_in_.load(std::memory_order_acquire);
    if (list == nullptr) return;
    if (object_ != 0 || world_.foreign()) [[unlikely]]
      return forget_outputs();
    list->remove(*open_call_);  // first: another task that finds nothing in open_in_ goes on
    open_in_.store(nullptr, std::memory_order_release);
  }
  // learned(), for the last handle that goes; of an unfinished work behind the scheduling point of the drop. Of a work
  // that stands for another one, that one's handle goes next, and may not be the last.
  void let_go() noexcept {
    if (has_open_outputs()) [[unlikely]]
      let_go_open();
  }
  // learned(), by a call that has come to no scheduling point of its own.
  void learned_at_no_point() noexcept {
    if (has_open_outputs()) [[unlikely]]
      learn_of_open();
  }
  // The rank, or a thread of the program's, retrieves how the work ended: retrieved_error().
  void retrieved(const absl::Status& status) const;
  // A task has learned that the work failed. In the free gear the group's other calls may be about to fail on another
  // thread: waits until they have, as they have in one step where a schedule decides.
  void learned_of_failure() const;
  // The wait itself, as long as a kernel takes at most. Works that stand for others hand it on.
  virtual void await_group_failure() const {}
  // A task has seen that the work is done. In the free gear the work that this one is a part of may be about to end, on
  // another thread: waits until it has, which is the same moment where a schedule decides.
  void seen_done() const {
    if (is_part_) [[unlikely]]
      await_whole();
  }
  bool is_part() const { return is_part_; }
  // The work whose end is this one's, for a stream without a handle on this one; null, if this one has its own end.
  virtual std::shared_ptr<WorkState> whole() const { return nullptr; }
  // A thread beside fibers that completed the whole may have left the part to a step of theirs: does that now, if the
  // whole is over.
  bool completed_with_whole();
  // Whether the rank has not learned of the call's end by any of the works that stand for the call. For a task of the
  // world; the list is memory of the work's rank.
  bool outputs_are_open() const {
    const OpenOutputs* const list = open_in_.load(std::memory_order_acquire);
    return list != nullptr && list->has(*open_call_);
  }
  bool has_open_outputs() const { return open_in_.load(std::memory_order_acquire) != nullptr; }
  std::string open_text() const override;

  // Tells `dependant` on the completing thread, just before the work is done; now, if done already. For works that
  // are made of others: a rank that sees this work done sees theirs done. `apart`: nothing that a run can see comes of
  // it, so an explored one is not told.
  void when_done(std::unique_ptr<Dependant> dependant, bool apart = false);
  // Tells `dependant` on the completing thread, once the work is done, and those that end with it; now, if done
  // already. No task is made for it. `owner`: who may have it forgotten.
  void once_done(std::unique_ptr<Dependant> dependant, const void* owner);
  // Drops the dependants of `owner` that were not told. Those of explored runs stay: a work whose end comes too late
  // for them says so, since it might have come first.
  void forget(const void* owner);

  // Ends the work. Only the first call counts. Wakes the waiters; callbacks run later, and handles that go for it go
  // later.
  void complete(const absl::Status& status);
  // The same for any thread. Records of ranks and works that are made of this one end with it: where ranks are fibers,
  // on their thread.
  static void complete_by_any(const std::shared_ptr<WorkState>& state, const absl::Status& status);
  // The same for a listener to another work, which any thread may have ended; does not wait.
  static void complete_with_another(const std::shared_ptr<WorkState>& state, const absl::Status& status);

  // Where a wait for it is, as reports show it.
  Site site(CodeSite code) const { return wait_site(code); }

  // The memory that complete() will touch. Only where ranks are fibers.
  void prefetch(Fetch step) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (step == Fetch::kObject) return prefetch_lines(this, 0, sizeof(WorkState));
    finished_.prefetch(step);
  }

  // Good as long as the world lives.
  Scheduler* scheduler() const { return world_.scheduler(); }
  const WorldRef& world_ref() const { return world_; }
  int rank() const { return rank_; }
  // Throws for a thread that may not touch the list of callbacks.
  void may_get_callbacks(const char* op, CodeSite code) const;
  // The name of the work in explored runs; 0 in all others. For works of a world.
  uint64_t object() const { return object_; }
  // The same; 0 for works of no world, too.
  uint64_t explored_object() const { return object_ != kNamedOutside ? object_ : 0; }
  // The flight record that ending() closes: this work's, or that of the work that this one stands for; -1: none. For
  // every other record GroupFront has it closed when the work is done.
  int64_t own_record() const { return own_record_; }

  // The end of a wait for `timeout` that another clock has measured: a call that is not done is withdrawn, and ends
  // with a Timeout. For a task of the work's rank.
  virtual absl::Status time_out(absl::Duration /*timeout*/, CodeSite code) {
    return wait(absl::ZeroDuration(), /*timeout_is_default=*/false, code);
  }

  // wait() without a scheduling point before it, and without what a subclass makes of a wait that ends early: for
  // waiters that are not the work's owner, such as streams. The owner may not know what they know of the work, so
  // the work is not learned().
  absl::Status await(absl::Duration timeout, bool timeout_is_default, CodeSite code);

  // For callers that are no task of the work's world, at the beginning of a call: whether it is done for them. One
  // whose world has ended is. Throws InvalidArgument if it is not done and the caller is a task of another world.
  bool settled(const char* op, CodeSite code) {
    if (!world_.foreign()) [[likely]]
      return false;
    return settled_elsewhere(op, code);
  }

 protected:
  // For constructors: the work ends together with another one, see seen_done().
  void ends_with_whole() { is_part_ = true; }
  virtual void await_whole() const {}
  // The wait itself, for `other`, which this one ends with.
  void await_end_of(const WorkState& other) const;
  // wait() by a task of the work's world, in no explored run, without a warning. `timeout_ns`: Deadline::kNever: for as
  // long as it takes.
  absl::Status wait_simply(const Site& site, int64_t timeout_ns, bool timeout_is_default) {
    Scheduler& scheduler = *this->scheduler();
    scheduler.point(site);
    if (is_over()) return ended_as();
    const Deadline deadline = Deadline::after(scheduler.now_ns(), timeout_ns, timeout_is_default);
    ObservedMutexLock lock(&mu_);
    absl::Status waited = finished_.await(
        &mu_, [this] { return done_.load(std::memory_order_relaxed); }, site, deadline);
    if (!waited.ok()) [[unlikely]]
      return waited;
    return status_;
  }
  // Of the explored run that the work is part of; null in all others.
  StepRecord* record() const;
  // The site of a wait in a report: subclasses add the ranks that could end it.
  virtual Site wait_site(CodeSite code) const {
    return Site{.what = op(), .code = code, .group = group(), .seq = seq()};
  }
  CalledHandle called(const char* op, CodeSite code) const;
  // Tells an explored run how the calling task touches this work.
  void touched(Access how) const {
    if (object_ != 0) [[unlikely]]
      record_touch(how);
  }
  // For constructors: release_owners() is to be called once the work is done, on the thread that drops the last handle.
  void holds_owners(bool holds) { holds_owners_ = holds; }
  virtual void release_owners() noexcept {}
  // For subclasses whose objects are works again and again: makes a new work of one that nobody holds or waits for any
  // more, in a world of fibers. first_handle() comes next.
  void renew() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (object_ != 0) [[unlikely]]
      object_ = name_in(scheduler());
    done_.store(false, std::memory_order_relaxed);
    open_in_.store(nullptr, std::memory_order_relaxed);
    open_call_ = this;
    if (!status_.ok()) [[unlikely]]
      status_ = absl::OkStatus();
    completing_ = false;
    if (!callbacks_.empty()) [[unlikely]]
      callbacks_.clear();
  }
  // For works of a world: ending() is called just before the work is done, by the completing thread, while the world
  // lives. ending() takes no lock but a flight recorder's. Not called for a work that is not done when the world ends.
  void owns_record(int64_t record_id) { own_record_ = record_id; }
  virtual void ending(bool /*ok*/) {}
  // Tells of a wait that has lasted for warn_after(). On the rank that waits, with no lock held.
  virtual void overdue(absl::Duration /*timeout*/, CodeSite /*code*/) {}
  // The line of the call.
  virtual CodeSite call_code() const { return {}; }

  // complete() of a work that nobody but waiters is to be told of, and no explored run; false: it is none, and nothing
  // happened. `close`: closes the work's record.
  template <typename Close>
  bool complete_simply(const absl::Status& status, Close close) {
    if (object_ != 0) [[unlikely]]
      return false;
    ObservedMutexLock lock(&mu_);
    if (completing_ || done_.load(std::memory_order_relaxed) || !callbacks_.empty()) [[unlikely]]
      return false;
    if (own_record_ >= 0) close();
    if (!status.ok() || !status_.ok()) [[unlikely]]
      status_ = status;
    done_.store(true, std::memory_order_release);
    if (finished_.has_waiters()) finished_.notify_all();
    return true;
  }

 private:
  friend class rankloom::Work;

  void complete(const absl::Status& status, bool world_lives);
  // The last handle went.
  void abandon() noexcept;
  void forget_outputs() noexcept;
  void let_go_open() noexcept;
  void learn_of_open() noexcept;

  bool settled_elsewhere(const char* op, CodeSite code);
  bool by_any_thread() const { return mu_.locks() || scheduler() == nullptr; }
  // Of a work that is not done: whether it is after a scheduling point.
  bool polled(const char* what, CodeSite code);
  // A scheduling point of a task of the work's world, before something that depends on whether the work is done.
  void reached(const char* what, CodeSite code);
  // Explored runs: the name of a work that the calling task makes; else 0.
  static uint64_t name_in(const Scheduler* scheduler);
  static constexpr uint64_t kNamedOutside = 1;
  void waited() const {
    if (object_ != 0) [[unlikely]]
      record_wait();
  }
  void record_touch(Access how) const;
  void record_wait() const;
  // The work, or a part of it, in the run of `record`.
  uint64_t name_in(StepRecord& record, uint64_t part = 0) const;
  // The scheduler whose time counts: of the work's world, else of the caller's. Null: real time, as for threads of no
  // world.
  Scheduler* clock_of_wait() const;
  // `site`: null, and it is asked for if there is something to wait for.
  absl::Status await_from(absl::Duration timeout, bool timeout_is_default, CodeSite code, const Site* site);
  absl::Status await_until(Deadline deadline, CodeSite code, const Site* site);
  // Tells the dependants among the callbacks. Lets go of the lock meanwhile.
  void tell_dependants(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  struct Callback;
  // Has them run as then() says.
  void run_callbacks(std::vector<Callback> callbacks, const absl::Status& status);
  // The last handle went. Put off while works are completed, this one perhaps among them.
  static void handles_gone(std::shared_ptr<WorkState> state) noexcept;
  // The same, on a thread that may change what the world's tasks use.
  static void let_all_go(std::shared_ptr<WorkState> state) noexcept;

  const WorldRef world_;
  const int rank_;
  uint64_t object_;  // const but for renew(); explored runs: its name; 0 in all others; kNamedOutside: see below
  const std::unique_ptr<const ObjectName> outside_name_;  // of a work of no world, which tasks of explored runs may use
  std::atomic<int> handles_{0};
  std::atomic<bool> done_{false};
  std::atomic<OpenOutputs*> open_in_{nullptr};  // lives as long as the world
  WorkState* open_call_ = this;                 // whose outputs are there; written before open_in_
  bool holds_owners_ = false;                   // const after construction
  bool is_part_ = false;                        // the same
  int64_t own_record_ = -1;                     // const once others have the work
  mutable ObservedMutex mu_;
  RankCondVar finished_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool completing_ ABSL_GUARDED_BY(mu_) = false;  // complete() is at the callbacks of when_done()
  struct Callback {
    absl::AnyInvocable<void(const absl::Status&)> run;
    std::unique_ptr<Dependant> dependant;  // instead of `run`
    bool learns = false;
    const void* owner = nullptr;  // of a dependant that is told once the work is done
    bool is_told_before() const { return dependant != nullptr && owner == nullptr; }
  };
  std::vector<Callback> callbacks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace rankloom::internal

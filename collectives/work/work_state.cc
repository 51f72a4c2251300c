#include "collectives/work/work_state.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "rankloom/stream.h"
#include "sim/base/dist_error.h"
#include "sim/base/forked_run.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "sim/scheduler/acts_for_fibers.h"
#include "sim/scheduler/scheduler.h"
#include "world/world_state.h"

namespace rankloom::internal {
namespace {

// numbered_object() of a work in explored runs; 2 is what its kind of work counts there.
constexpr uint64_t kCallbacks = 1;

// Where callbacks of works of no rank go, if not to the thread that completes the work.
constinit thread_local std::vector<absl::AnyInvocable<void()>>* callbacks_apart = nullptr;

}  // namespace

WorkState::~WorkState() {
  if (Completion::open()) [[unlikely]]
    fatal("a work was destroyed while works are completed");
}

bool WorkState::is_awaited() const {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // for reports
  return finished_.has_waiters() || !callbacks_.empty();
}

absl::Status WorkState::status() const {
  ObservedMutexLock lock(&mu_);
  touched(Access::kRead);
  return status_;
}

uint64_t WorkState::name_in(const Scheduler* scheduler) {
  if (scheduler == nullptr) return kNamedOutside;
  StepRecord* const record = scheduler->record();
  return record != nullptr ? record->new_object() : 0;
}

uint64_t WorkState::name_in(StepRecord& record, uint64_t part) const {
  const uint64_t name = outside_name_ != nullptr ? outside_name_->in(record) : object_;
  return part != 0 ? numbered_object(name, part) : name;
}

StepRecord* WorkState::record() const {
  if (outside_name_ != nullptr) return outside_name_->record();
  if (!world_.known() || !world_.foreign()) return record_here();
  ObjectName::uses_outer();
  return nullptr;
}

void WorkState::record_touch(Access how) const {
  StepRecord* const record = this->record();
  if (record == nullptr) return;
  record->access(name_in(*record), how);
  if (how == Access::kWrite) record->signal(name_in(*record));
}

void WorkState::record_wait() const {
  if (StepRecord* const record = this->record(); record != nullptr) record->await(name_in(*record));
}

CalledHandle WorkState::called(const char* op, CodeSite code) const {
  const std::string_view name = group();
  return {.rank = rank_,
          .handle = absl::StrCat("work (", name.empty() ? "" : absl::StrCat("group ", sv(name), ", "), this->op(),
                                 seq() >= 0 ? absl::StrCat(" seq ", seq()) : "", ")"),
          .op = op,
          .code = code};
}

bool WorkState::settled_elsewhere(const char* op, CodeSite code) {
  if (world_.ended()) {
    {
      const WorldPin alive(world_);
      std::optional<ActsForFibers> alone;
      if (alive) alone.emplace(*scheduler());
      complete(world_ended(), /*world_lives=*/false);
    }
    // Another thread may be about to complete it.
    for (WaitTurns turns; !is_over() && !Completion::open();) turns.next();
    return true;
  }
  if (Task::current() == nullptr) return false;
  ObjectName::uses_outer();
  // A task of another world may read how it ended, but not wait for it.
  if (!is_over()) CallScope::check(world_, [&] { return called(op, code); });
  return is_over();
}

void WorkState::may_get_callbacks(const char* op, CodeSite code) const {
  if (!is_over() && !by_any_thread()) CallScope::check_thread(world_, [&] { return called(op, code); });
}

bool WorkState::completed_with_whole() {
  const std::shared_ptr<WorkState> whole = is_part_ ? this->whole() : nullptr;
  if (whole == nullptr || !whole->is_over()) return false;
  complete(whole->ended_as());
  return is_completed();
}

bool WorkState::polled(const char* what, CodeSite code) {
  if (settled(what, code)) return true;
  const auto poll = [&](Scheduler* clock) {
    clock->poll({.what = what,
                 .code = code,
                 .group = group(),
                 .seq = seq(),
                 .detail = std::string_view(op()),
                 .waits_for = wait_site(code).waits_for});
    if (is_completed() || completed_with_whole()) return true;
    // A loop of questions to an aborted world would not end. A destructor may not throw.
    if (clock->aborted() && std::uncaught_exceptions() == 0)
      throw_dist_error(clock->abort_cause(), {.rank = rank_, .group = group(), .op = what, .seq = seq()});
    return false;
  };
  if (Task::current() != nullptr) return poll(clock_of_wait());
  Scheduler* world = nullptr;
  if (const WorldPin alive(world_);
      alive && scheduler() != nullptr && scheduler()->options().engine == EngineKind::kThreads)
    world = scheduler();
  if (world == nullptr) return false;
  // A thread of the rank's own: the ranks get their turn while it asks.
  const CallScope call(world_, [&] { return called(what, code); });
  return poll(world);
}

void WorkState::reached(const char* what, CodeSite code) {
  if (settled(what, code) || Task::current() == nullptr || (world_.known() && world_.foreign())) return;
  clock_of_wait()->point(
      Site{.what = what, .code = code, .group = group(), .seq = seq(), .detail = std::string_view(op())});
}

std::string WorkState::open_text() const {
  const Site site{.what = op(), .code = call_code(), .seq = seq()};
  return absl::StrCat(site_text(site), site_place(site));
}

void WorkState::forget_outputs() noexcept {
  OpenOutputs* const list = open_in_.load(std::memory_order_relaxed);
  if (list == nullptr) return;
  if (world_.foreign()) [[unlikely]] {
    const WorldPin alive(world_);
    // Then the last handle that goes does it, on the fibers' thread.
    if (alive && scheduler()->beside_fibers()) return;
    if (alive) {
      const ActsForFibers alone(*scheduler());
      list->remove(*open_call_);
    }
    open_in_.store(nullptr, std::memory_order_release);
    return;
  }
  // The list is memory of the rank, which may have given the handle to another one.
  if (object_ != 0 && Task::current()->info.rank != rank_) [[unlikely]] {
    if (StepRecord* const record = this->record(); record != nullptr) record->write_memory(rank_);
  }
  list->remove(*open_call_);
  open_in_.store(nullptr, std::memory_order_release);
}

void WorkState::retrieved(const absl::Status& status) const {
  if (!status.ok()) learned_of_failure();
  retrieved_error(world_, rank_, status);
}

void WorkState::await_end_of(const WorkState& other) const {
  if (Completion::open() || world_.ended()) return;
  const WorldPin alive(world_);
  if (!alive || scheduler()->deterministic()) return;
  for (WaitTurns turns; !other.is_over();) turns.next();
}

void WorkState::learned_of_failure() const {
  // A Completion may be that which ends the calls. Those of a world that has ended fail one by one, and whoever looks
  // at one ends it.
  if (Completion::open() || world_.ended()) return;
  if (const WorldPin alive(world_); alive) await_group_failure();
}

[[gnu::noinline]] void WorkState::let_go_open() noexcept {
  OpenOutputs* const list = open_in_.load(std::memory_order_acquire);
  if (open_call_ != this) return open_in_.store(nullptr, std::memory_order_relaxed);
  RankState* const rank = RankState::current();
  // The rank may have learned of the end by another work that stands for the call.
  if (rank != nullptr && rank->unwinding() && list == &rank->open_outputs() && list->has(*this))
    rank->lost_by_exception(open_text());
  learn_of_open();
}

[[gnu::noinline]] void WorkState::learn_of_open() noexcept {
  const ChangeAtNoPoint change(world_.known() && !world_.foreign() ? scheduler() : nullptr);
  learned();
}

void WorkState::abandon() noexcept {
  if (!world_.known()) return dropped();
  // A world that is gone, or about to, has nothing to be told.
  if (const WorldPin alive(world_); alive) dropped();
}

Scheduler* WorkState::clock_of_wait() const {
  if (scheduler() != nullptr) return scheduler();
  return Task::current() != nullptr ? Task::current()->scheduler : nullptr;
}

absl::Status WorkState::await(absl::Duration timeout, bool timeout_is_default, CodeSite code) {
  return await_from(timeout, timeout_is_default, code, nullptr);
}

absl::Status WorkState::await_from(absl::Duration timeout, bool timeout_is_default, CodeSite code, const Site* site) {
  if (is_over()) {
    timeout > absl::ZeroDuration() ? waited() : touched(Access::kRead);
    return status();
  }
  const auto deadline_after = [&](absl::Duration time) {
    if (time == absl::InfiniteDuration()) return Deadline::never();
    if (Scheduler* const clock = clock_of_wait(); clock != nullptr)
      return clock->deadline_after(time, timeout_is_default);
    return Deadline::after(monotonic_ns(), time, timeout_is_default);
  };
  const Deadline deadline = deadline_after(timeout);
  if (const absl::Duration warning = warn_after(); warning < timeout) [[unlikely]] {
    const absl::Status waited = ended_as(await_until(deadline_after(warning), code, nullptr));
    if (is_completed() || error_kind(waited) != ErrorKind::kTimeout) return waited;
    overdue(timeout, code);
  }
  return ended_as(await_until(deadline, code, site));
}

absl::Status WorkState::ended_as(absl::Status waited) const {
  return waited.ok() || !is_over() ? std::move(waited) : status();
}

absl::Status WorkState::await_until(Deadline deadline, CodeSite code, const Site* site) {
  ObservedMutexLock lock(&mu_);
  const absl::Status waited = finished_.await(
      &mu_, [this] { return done_.load(std::memory_order_relaxed); }, site != nullptr ? *site : wait_site(code),
      deadline);
  if (!waited.ok()) {
    touched(Access::kRead);  // the wait found the work not done
    return waited;
  }
  // At its deadline the wait might have ended first.
  const bool at_end = object_ != 0 && deadline.at_ns != Deadline::kNever && clock_of_wait() != nullptr &&
                      deadline.at_ns <= clock_of_wait()->now_ns();
  at_end ? touched(Access::kRead) : this->waited();
  return status_;
}

absl::Status WorkState::wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) {
  if (settled("wait", code)) [[unlikely]]
    return status();
  const CallScope call(world_, [&] { return called("wait", code); });
  const Site site = wait_site(code);
  if (scheduler() != nullptr) scheduler()->point(site);
  return await_from(timeout, timeout_is_default, code, &site);
}

void WorkState::complete(const absl::Status& status) {
  if (complete_simply(status, [&] { ending(status.ok()); })) [[likely]]
    return;
  complete(status, /*world_lives=*/true);
}

void WorkState::complete_by_any(const std::shared_ptr<WorkState>& state, const absl::Status& status) {
  if (!state->world_.foreign()) [[likely]]
    return state->complete(status);
  if (Task::current() == nullptr) tell_of_own_thread(state->world_);
  // Callbacks of no rank are this thread's, which has the work completed elsewhere.
  const auto callbacks = std::make_shared<std::vector<absl::AnyInvocable<void()>>>();
  absl::AnyInvocable<void()> complete = [state, status, callbacks] {
    std::vector<absl::AnyInvocable<void()>>* const outer = std::exchange(callbacks_apart, callbacks.get());
    const absl::Cleanup end = [outer] { callbacks_apart = outer; };
    state->complete(status);
  };
  if (!given_to_fibers(state->world_, state->rank_, "promise", &complete, /*waits=*/true))
    return state->complete(status);
  Completion later;  // as if the work had been completed here
  for (absl::AnyInvocable<void()>& callback : *callbacks) Completion::run_later(std::move(callback));
  later.end();
}

void WorkState::complete_with_another(const std::shared_ptr<WorkState>& state, const absl::Status& status) {
  if (!state->world_.foreign()) [[likely]]
    return state->complete(status);
  absl::AnyInvocable<void()> complete = [state, status] { state->complete(status); };
  if (!given_to_fibers(state->world_, state->rank_, "work", &complete)) state->complete(status);
}

void WorkState::complete(const absl::Status& status, bool world_lives) {
  Completion completion;
  std::vector<Callback> callbacks;
  {
    ObservedMutexLock lock(&mu_);
    if (completing_ || done_.load(std::memory_order_relaxed)) return touched(Access::kRead);
    touched(Access::kWrite);
    // Works that are made of this one end first: a rank that sees this one done sees them done. The record before them.
    if (own_record_ >= 0 && world_lives) ending(status.ok());
    if (!callbacks_.empty()) [[unlikely]]
      tell_dependants(status);
    status_ = status;
    done_.store(true, std::memory_order_release);
    finished_.notify_all();
    if (!callbacks_.empty()) [[unlikely]]
      callbacks.swap(callbacks_);
  }
  if (!callbacks.empty()) [[unlikely]]
    run_callbacks(std::move(callbacks), status);
  completion.end();
}

namespace {

// Behind all works that end together.
void notify_later(std::unique_ptr<Dependant> dependant, const absl::Status& status) {
  Completion::wake_later([dependant = std::move(dependant), status]() mutable {
    dependant->ended(status);
    Completion::drop(std::shared_ptr<Dependant>(std::move(dependant)));
  });
}

}  // namespace

[[gnu::noinline]] void WorkState::tell_dependants(const absl::Status& status) {
  while (!callbacks_.empty()) {
    const auto later = std::stable_partition(callbacks_.begin(), callbacks_.end(),
                                             [](const Callback& c) { return c.is_told_before(); });
    if (later == callbacks_.begin()) return;
    completing_ = true;
    std::vector<Callback> told(std::make_move_iterator(callbacks_.begin()), std::make_move_iterator(later));
    callbacks_.erase(callbacks_.begin(), later);
    mu_.unlock();
    for (Callback& callback : told) {
      callback.dependant->ended(status);
      Completion::drop(std::shared_ptr<Dependant>(std::move(callback.dependant)));
    }
    mu_.lock();
  }
}

void WorkState::run_callbacks(std::vector<Callback> callbacks, const absl::Status& status) {
  for (Callback& callback : callbacks) {
    if (callback.dependant != nullptr) notify_later(std::move(callback.dependant), status);
  }
  std::erase_if(callbacks, [](const Callback& callback) { return callback.owner != nullptr; });
  if (callbacks.empty()) return;
  if (std::any_of(callbacks.begin(), callbacks.end(), [](const Callback& callback) { return callback.learns; })) {
    learned();
    retrieved(status);
  }
  const WorldPin alive(world_);
  auto* const context = alive && rank_ >= 0 ? static_cast<RankState*>(scheduler()->user_of(rank_)) : nullptr;
  if (context == nullptr) {
    // On the thread that completes the work.
    for (Callback& callback : callbacks) {
      absl::AnyInvocable<void()> run = [run = std::move(callback.run), status]() mutable { run(status); };
      callbacks_apart != nullptr ? callbacks_apart->push_back(std::move(run)) : Completion::run_later(std::move(run));
    }
    return;
  }
  // The task is made by the thread that completes the work; in a world that has ended, which takes no more tasks, that
  // thread runs the callbacks.
  auto kept = std::make_shared<std::vector<Callback>>(std::move(callbacks));
  auto spawn = [kept, status, context, world = world_, name = object_](bool takes_tasks) {
    const WorldPin alive(world);
    if (takes_tasks && (!alive || !context->world().scheduler().takes_tasks())) return false;
    if (!alive) {
      for (Callback& callback : *kept) callback.run(status);
      return true;
    }
    if (name != 0) StepRecord::name_next_task(numbered_object(name, kCallbacks));
    context->world().scheduler().spawn({.rank = context->rank(), .kind = TaskKind::kHelper}, [kept, status, context] {
      for (Callback& callback : *kept) context->world().run_helper(context->rank(), [&] { callback.run(status); });
    });
    return true;
  };
  // Not while others, at which the callbacks of a failure may look, are still to end with this work.
  if (status.ok() && scheduler()->deterministic() && world_.has(Task::current()) && spawn(/*takes_tasks=*/true))
    return Completion::drop(std::move(kept));
  const auto spawned = std::make_shared<bool>(false);
  Completion::wake_later([spawned, spawn] { *spawned = spawn(/*takes_tasks=*/true); });
  Completion::run_later([spawned, spawn = std::move(spawn)] {
    if (!*spawned) spawn(/*takes_tasks=*/false);
  });
}

void WorkState::handles_gone(std::shared_ptr<WorkState> state) noexcept {
  if (Completion::open()) [[unlikely]]
    return Completion::run_later([state = std::move(state)]() mutable { handles_gone(std::move(state)); });
  if (state->world_ref().foreign()) [[unlikely]] {
    absl::AnyInvocable<void()> let_go = [state]() mutable { let_all_go(std::move(state)); };
    // Once the handle is gone nobody may write to the tensors of an unfinished call.
    if (given_to_fibers(state->world_ref(), state->rank(), "drop", &let_go, /*waits=*/!state->is_over())) return;
  }
  let_all_go(std::move(state));
}

void WorkState::let_all_go(std::shared_ptr<WorkState> state) noexcept {
  // Others may come first, and a drop of a call that is done means nothing. Such a call lets go of the tensors' owners
  // here.
  if (state->acts_when_dropped() && state->world_ref().known() && !state->world_ref().foreign()) {
    point_of_caller(
        Site{.what = "drop", .group = state->group(), .seq = state->seq(), .detail = std::string_view(state->op())});
  }
  state->let_go();
  if (state->is_completed()) return state->release_owners();
  state->abandon();
}

namespace {

using OnEnd = absl::AnyInvocable<void(const absl::Status&)>;

// Explored runs: in the memory of the rank that left `callback`, whose task the caller is not.
void run_as_guest(int rank, OnEnd& callback, const absl::Status& status) {
  const Task* const task = Task::current();
  StepRecord* const record = task != nullptr ? task->record : nullptr;
  if (record != nullptr) record->enter_memory(rank);
  const absl::Cleanup leave = [record, rank] {
    if (record != nullptr) record->leave_memory(rank);
  };
  callback(status);
}

}  // namespace

void WorkState::then(absl::AnyInvocable<void(const absl::Status&)> callback, bool learns) {
  absl::Status ended;
  {
    ObservedMutexLock lock(&mu_);
    touched(Access::kRead);
    if (!done_.load(std::memory_order_relaxed)) {
      // Callbacks run in the order in which they were left.
      if (StepRecord* const record = object_ != 0 ? this->record() : nullptr; record != nullptr) [[unlikely]] {
        record->access(name_in(*record, kCallbacks), Access::kWrite);
        if (const int rank = Task::current()->info.rank; rank != rank_) {
          callback = [rank, callback = std::move(callback)](const absl::Status& status) mutable {
            run_as_guest(rank, callback, status);
          };
        }
      }
      callbacks_.push_back({std::move(callback), nullptr, learns});
      return;
    }
    ended = status_;
  }
  if (learns) {
    seen_done();
    learned();
    retrieved(ended);
  }
  callback(ended);
}

void WorkState::forget(const void* owner) {
  if (object_ != 0) return;
  std::vector<Callback> dropped;  // what they hold goes without the lock
  ObservedMutexLock lock(&mu_);
  lock.apart();  // no explored run
  const auto rest = std::stable_partition(callbacks_.begin(), callbacks_.end(),
                                          [owner](const Callback& callback) { return callback.owner != owner; });
  dropped.assign(std::make_move_iterator(rest), std::make_move_iterator(callbacks_.end()));
  callbacks_.erase(rest, callbacks_.end());
}

size_t WorkState::waiting_callbacks() const {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // no then() is on its way to a work of which no handle is left; for tests
  return callbacks_.size();
}

void WorkState::once_done(std::unique_ptr<Dependant> dependant, const void* owner) {
  absl::Status ended;
  {
    ObservedMutexLock lock(&mu_);
    touched(Access::kRead);
    if (!done_.load(std::memory_order_relaxed)) {
      callbacks_.push_back({nullptr, std::move(dependant), /*learns=*/false, owner});
      return;
    }
    ended = status_;
  }
  Completion completion;
  notify_later(std::move(dependant), ended);
  completion.end();
}

void WorkState::when_done(std::unique_ptr<Dependant> dependant, bool apart) {
  absl::Status ended;
  {
    ObservedMutexLock lock(&mu_);
    apart ? lock.apart() : touched(Access::kRead);
    if (!done_.load(std::memory_order_relaxed)) {
      callbacks_.push_back({nullptr, std::move(dependant)});
      return;
    }
    ended = status_;
  }
  Completion completion;
  dependant->ended(ended);
  Completion::drop(std::shared_ptr<Dependant>(std::move(dependant)));
  completion.end();
}

Future WorkState::get_future(const Work& self) { return Future(self); }

void WorkState::block_current_stream(const Work& self, Stream& stream, absl::Duration timeout, CodeSite code) {
  stream.wait_for(self, timeout, code);
}

}  // namespace rankloom::internal

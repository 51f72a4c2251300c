#include "rankloom/work.h"

#include <algorithm>
#include <exception>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "rankloom/stream.h"
#include "rankloom/world.h"
#include "sim/base/text.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom {
namespace {

constexpr uint64_t kCallbacks = 1;  // part of a work in explored runs

}  // namespace

WorkState::~WorkState() {
  if (internal::Completion::open()) [[unlikely]]
    fatal("a work was destroyed while works are completed");
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

uint64_t WorkState::name_in(const StepRecord& record, uint64_t part) const {
  const uint64_t name = outside_name_ != nullptr ? outside_name_->in(record) : object_;
  return part != 0 ? numbered_object(name, part) : name;
}

StepRecord* WorkState::record() const {
  const Task* const task = Task::current();
  if (task == nullptr || task->scheduler == nullptr || (world_.known() && world_.foreign())) return nullptr;
  return task->record;
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

CalledHandle WorkState::called(const char* op) const {
  const std::string_view name = group();
  return {.rank = rank_,
          .handle = absl::StrCat("work (", name.empty() ? "" : absl::StrCat("group ", sv(name), ", "), this->op(),
                                 seq() >= 0 ? absl::StrCat(" seq ", seq()) : "", ")"),
          .op = op};
}

bool WorkState::settled_elsewhere(const char* op) {
  if (world_.ended()) {
    complete(world_ended());
    return true;
  }
  if (Task::current() == nullptr) return false;
  // A task of another world may read how it ended, but not wait for it.
  if (!is_over()) CallScope::check(world_, [this, op] { return called(op); });
  return is_over();
}

bool WorkState::polled(const char* what, CodeSite code) {
  if (settled(what)) return true;
  const auto poll = [&](Scheduler* clock) {
    const Site site{.what = what, .code = code, .group = group(), .seq = seq(), .detail = std::string_view(op())};
    clock->poll(site);
    if (is_completed()) return true;
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
  const CallScope call(world_, [this, what] { return called(what); });
  return poll(world);
}

void WorkState::reached(const char* what, CodeSite code) {
  if (settled(what) || Task::current() == nullptr || (world_.known() && world_.foreign())) return;
  clock_of_wait()->point(
      Site{.what = what, .code = code, .group = group(), .seq = seq(), .detail = std::string_view(op())});
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
    const absl::Status waited = await_until(deadline_after(warning), code, nullptr);
    if (is_completed() || error_kind(waited) != ErrorKind::kTimeout) return waited;
    overdue(timeout, code);
  }
  return await_until(deadline, code, site);
}

absl::Status WorkState::await_until(Deadline deadline, CodeSite code, const Site* site) {
  ObservedMutexLock lock(&mu_);
  const absl::Status waited = finished_.await(
      &mu_, [this] { return done_.load(std::memory_order_relaxed); }, site != nullptr ? *site : wait_site(code),
      deadline);
  if (!waited.ok()) {
    touched(Access::kRead);  // it found the work not done
    return waited;
  }
  // At its deadline the wait might have ended first.
  const bool at_end = object_ != 0 && deadline.at_ns != Deadline::kNever && clock_of_wait() != nullptr &&
                      deadline.at_ns <= clock_of_wait()->now_ns();
  at_end ? touched(Access::kRead) : this->waited();
  return status_;
}

absl::Status WorkState::wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) {
  if (settled("wait")) [[unlikely]]
    return status();
  const CallScope call(world_, [this] { return called("wait"); });
  const Site site = wait_site(code);
  if (scheduler() != nullptr) scheduler()->point(site);
  return await_from(timeout, timeout_is_default, code, &site);
}

void WorkState::complete(const absl::Status& status) {
  internal::Completion completion;
  std::vector<Callback> callbacks;
  {
    ObservedMutexLock lock(&mu_);
    if (completing_ || done_.load(std::memory_order_relaxed)) return touched(Access::kRead);
    touched(Access::kWrite);
    // Works that are made of this one end first: who sees this one done sees them done.
    while (!callbacks_.empty()) [[unlikely]] {
        const auto later = std::stable_partition(callbacks_.begin(), callbacks_.end(),
                                                 [](const Callback& c) { return c.dependant != nullptr; });
        if (later == callbacks_.begin()) break;
        completing_ = true;
        std::vector<Callback> told(std::make_move_iterator(callbacks_.begin()), std::make_move_iterator(later));
        callbacks_.erase(callbacks_.begin(), later);
        mu_.unlock();
        for (Callback& callback : told) {
          callback.dependant->ended(status);
          internal::Completion::drop(std::shared_ptr<internal::Dependant>(std::move(callback.dependant)));
        }
        mu_.lock();
      }
    status_ = status;
    done_.store(true, std::memory_order_release);
    finished_.notify_all();
    callbacks.swap(callbacks_);
  }
  if (!callbacks.empty()) [[unlikely]]
    run_callbacks(std::move(callbacks), status);
  completion.end();
}

void WorkState::run_callbacks(std::vector<Callback> callbacks, const absl::Status& status) {
  const WorldPin alive(world_);
  auto* const context = alive && rank_ >= 0 ? static_cast<RankContext*>(scheduler()->user_of(rank_)) : nullptr;
  if (context == nullptr) {
    for (Callback& callback : callbacks)
      internal::Completion::run_later([run = std::move(callback.run), status]() mutable { run(status); });
    return;
  }
  // Whoever completes the work makes the task. A world that ends takes no more, and its scheduler drops the body at once.
  if (object_ != 0) StepRecord::name_next_task(numbered_object(object_, kCallbacks));
  auto kept = std::make_shared<std::vector<Callback>>(std::move(callbacks));
  scheduler()->spawn({.rank = rank_, .kind = TaskKind::kHelper}, [kept, status, context] {
    for (Callback& callback : *kept) context->world().run_helper(context->rank(), [&] { callback.run(status); });
  });
  internal::Completion::drop(std::move(kept));
}

void WorkState::handles_gone(std::shared_ptr<WorkState> state) noexcept {
  if (!internal::Completion::open()) [[likely]] {
    // A call that is done at once lets go of the tensors' owners here.
    if (state->holds_owners_ && state->world_ref().known() && !state->world_ref().foreign()) state->reached("drop", {});
    if (state->is_over()) return state->let_go();
    return state->abandon();
  }
  internal::Completion::run_later([state = std::move(state)] {
    if (!state->is_over()) state->abandon();
  });
}

void WorkState::then(absl::AnyInvocable<void(const absl::Status&)> callback) {
  absl::Status ended;
  {
    ObservedMutexLock lock(&mu_);
    touched(Access::kRead);
    if (!done_.load(std::memory_order_relaxed)) {
      // Callbacks run in the order in which they were left.
      if (StepRecord* const record = object_ != 0 ? this->record() : nullptr; record != nullptr)
        record->access(name_in(*record, kCallbacks), Access::kWrite);
      callbacks_.push_back({std::move(callback), nullptr});
      return;
    }
    ended = status_;
  }
  callback(ended);
}

void WorkState::when_done(std::unique_ptr<internal::Dependant> dependant) {
  absl::Status ended;
  {
    ObservedMutexLock lock(&mu_);
    touched(Access::kRead);
    if (!done_.load(std::memory_order_relaxed)) {
      callbacks_.push_back({nullptr, std::move(dependant)});
      return;
    }
    ended = status_;
  }
  internal::Completion completion;
  dependant->ended(ended);
  internal::Completion::drop(std::shared_ptr<internal::Dependant>(std::move(dependant)));
  completion.end();
}

Future WorkState::get_future(const std::shared_ptr<WorkState>& self) { return Future(self); }

void WorkState::block_current_stream(const std::shared_ptr<WorkState>& self, Stream& stream, absl::Duration timeout,
                                     CodeSite code) {
  stream.wait_for(self, timeout, code);
}

void Work::check(const absl::Status& status) const {
  if (!status.ok())
    throw_dist_error(status,
                     {.rank = state_->rank(), .group = state_->group(), .op = state_->op(), .seq = state_->seq()});
}

void Work::wait(CodeSite code) {
  if (state_ != nullptr) check(state_->wait(absl::InfiniteDuration(), /*timeout_is_default=*/true, code));
}

void Work::wait(absl::Duration timeout, CodeSite code) {
  if (timeout < absl::ZeroDuration()) {
    throw_dist_error(make_error(ErrorKind::kInvalidArgument,
                                absl::StrCat("wait: timeout is ", absl::FormatDuration(timeout), ", want 0 or more")),
                     {.rank = state_ != nullptr ? state_->rank() : -1, .group = {}, .op = "wait"});
  }
  if (state_ != nullptr) check(state_->wait(timeout, /*timeout_is_default=*/false, code));
}

std::exception_ptr Work::exception(CodeSite code) const {
  if (state_ == nullptr || !is_completed(code)) return nullptr;
  try {
    check(state_->status());
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

std::vector<TensorView> Work::result(CodeSite code) {
  wait(code);
  return state_ != nullptr ? state_->result() : std::vector<TensorView>();
}

Future Work::get_future() {
  if (state_ == nullptr) {
    Promise done;
    done.set_value();
    return done.future();
  }
  return state_->get_future(state_);
}

void Work::then(absl::AnyInvocable<void(const absl::Status&)> callback, CodeSite code) {
  if (state_ == nullptr) {
    callback(absl::OkStatus());
  } else {
    // A call that is done at once runs the callback at once.
    if (!state_->is_completed()) state_->reached("then", code);
    state_->then(std::move(callback));
  }
}

void Work::block_current_stream(Stream& stream, absl::Duration timeout, CodeSite code) {
  if (state_ != nullptr) state_->block_current_stream(state_, stream, timeout, code);
}

struct Promise::State final : WorkState {
  State(Scheduler* scheduler, int rank) : WorkState(scheduler, rank, /*by_any_thread=*/true) {}
  std::vector<TensorView> result() override { return tensors; }
  const char* op() const override { return "promise"; }
  // Whether the caller is the first to say how it ends. Others come after the first.
  bool keep() { return !is_completed() && !kept.exchange(true); }
  std::atomic<bool> kept{false};
  std::vector<TensorView> tensors;  // written before complete(), read after it
};

Promise::Promise(Scheduler* scheduler, int rank) : state_(std::make_shared<State>(scheduler, rank)) {}

Work Promise::work() const { return Work(state_); }
Future Promise::future() const { return Future(state_); }

void Promise::set_value(std::vector<TensorView> result) {
  if (!state_->keep()) return;
  state_->tensors = std::move(result);
  state_->complete(absl::OkStatus());
}

void Promise::set_error(const absl::Status& status) {
  if (state_->keep()) state_->complete(status);
}

void wait_all(std::span<Work> works, CodeSite code) {
  std::exception_ptr first;
  for (Work& work : works) {
    try {
      work.wait(code);
    } catch (const DistError&) {
      if (first == nullptr) first = std::current_exception();
    }
  }
  if (first != nullptr) std::rethrow_exception(first);
}

namespace {

// The caller's own, completed by the first of several works that is done.
class AnyWork final : public WorkState {
 public:
  AnyWork(Scheduler* scheduler, const WorkState& first, size_t works)
      : WorkState(scheduler, first.rank(), /*by_any_thread=*/true),
        group_(first.group()),
        detail_(absl::StrCat("of ", works, works == 1 ? " work: " : " works, the first: ", first.op(),
                             first.seq() >= 0 ? absl::StrCat(" seq ", first.seq()) : "")) {}
  const char* op() const override { return "wait_any"; }
  std::string_view group() const override { return group_; }

 private:
  Site wait_site(CodeSite code) const override {
    return Site{.what = op(), .code = code, .group = group_, .detail = detail_};
  }

  const std::string group_;
  const std::string detail_;
};

}  // namespace

size_t wait_any(std::span<Work> works, CodeSite code) {
  if (works.empty())
    throw_dist_error(make_error(ErrorKind::kInvalidArgument, "wait_any: the list is empty, want at least one work"),
                     {.rank = -1, .group = {}, .op = "wait_any"});
  const auto first_done = [&]() -> size_t {
    for (size_t i = 0; i < works.size(); ++i) {
      if (works[i].state() == nullptr || works[i].state()->is_completed() || works[i].state()->settled("wait_any"))
        return i;
    }
    return works.size();
  };
  if (const size_t done = first_done(); done < works.size()) return done;
  for (const Work& work : works)
    throw_if_error(work.state()->waitable(), {.rank = work.state()->rank(), .group = {}, .op = "wait_any"});
  const WorkState& state = *works[0].state();
  const auto any = [&] {
    const WorldPin alive(state.world_ref());
    return std::make_shared<AnyWork>(alive ? state.scheduler() : nullptr, state, works.size());
  }();
  for (Work& work : works) {
    work.state()->then([any](const absl::Status&) {
      if (!any->is_completed()) any->complete(absl::OkStatus());
    });
  }
  Work(any).wait(code);
  return first_done();
}

}  // namespace rankloom

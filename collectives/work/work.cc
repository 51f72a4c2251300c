#include "rankloom/work.h"

#include <atomic>
#include <exception>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "collectives/work/work_state.h"
#include "rankloom/error.h"
#include "rankloom/stream.h"
#include "rankloom/world.h"
#include "sim/base/blame.h"
#include "sim/base/dist_error.h"
#include "sim/base/exception_text.h"
#include "sim/base/library_scope.h"
#include "sim/base/require.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom {

using namespace internal;

void Work::acquire() const { state_->handles_.fetch_add(1, std::memory_order_relaxed); }

void Work::release() noexcept {
  // The only handle cannot be copied meanwhile, so that needs no atomic step, which would cost more than the rest.
  if (state_->handles_.load(std::memory_order_acquire) > 1 &&
      state_->handles_.fetch_sub(1, std::memory_order_acq_rel) > 1) {
    // Nothing is told of which handle goes last, which matters where ranks share one.
    if (const Task* const task = Task::current();
        task != nullptr && (task->record != nullptr || task->inner != nullptr)) [[unlikely]] {
      const bool elsewhere = state_->world_ref().known() && !state_->world_ref().has(task);
      if (elsewhere) ObjectName::uses_outer();
      if (task->record != nullptr && (elsewhere || (state_->rank() >= 0 && task->info.rank != state_->rank())))
        task->record->uncovered("a handle of a work that another rank lets go");
    } else if (task == nullptr) [[unlikely]] {
      tell_of_own_thread(state_->world_ref());
    }
    return;
  }
  const LibraryScope library;
  state_->handles_.store(0, std::memory_order_relaxed);
  state_->touched(Access::kRead);
  if (!state_->is_over()) return WorkState::handles_gone(std::move(state_));
  if (state_->has_open_outputs()) [[unlikely]] {
    if (state_->world_ref().foreign()) return WorkState::handles_gone(std::move(state_));
    state_->let_go();
  }
  // Here, and not by the thread that completes works, which may let the state itself go later.
  if (state_->holds_owners_) [[unlikely]]
    state_->release_owners();
}

bool Work::is_completed(CodeSite code) const {
  if (state_ == nullptr) return true;
  const LibraryScope library;
  if (Task::current() == nullptr) [[unlikely]]
    tell_of_own_thread(state_->world_ref());
  if (!state_->is_completed() && !state_->polled("is_completed", code)) return false;
  state_->seen_done();
  state_->learned_at_no_point();
  if (!state_->ended_well()) [[unlikely]]
    state_->learned_of_failure();
  return true;
}

bool Work::is_success(CodeSite code) const {
  if (!is_completed(code)) return false;
  if (state_ == nullptr) return true;
  const absl::Status status = state_->status();
  state_->retrieved(status);
  return status.ok();
}

int Work::source(CodeSite code) const { return state_ != nullptr && is_completed(code) ? state_->source() : -1; }

void Work::check(const absl::Status& status) const {
  if (status.ok()) return;
  state_->retrieved(status);
  throw_dist_error(status,
                   {.rank = state_->rank(), .group = state_->group(), .op = state_->op(), .seq = state_->seq()});
}

namespace {

// A mistake in the wait itself has the caller's line.
absl::Status argument_at_line(absl::Status status, CodeSite code) {
  if (status.ok() || error_kind(status) != ErrorKind::kInvalidArgument || blame_of(status).has_value()) return status;
  const std::string text = located(message_of(status), code);
  return text.size() == status.message().size() ? status : make_error(ErrorKind::kInvalidArgument, text);
}

}  // namespace

void Work::wait(CodeSite code) {
  if (state_ == nullptr) return;
  const LibraryScope library;
  const absl::Status waited = state_->wait(absl::InfiniteDuration(), /*timeout_is_default=*/true, code);
  if (state_->is_over()) state_->learned();
  if (!waited.ok()) [[unlikely]]
    check(argument_at_line(waited, code));
}

void Work::wait(absl::Duration timeout, CodeSite code) {
  if (timeout < absl::ZeroDuration()) {
    refuse({.rank = state_ != nullptr ? state_->rank() : -1, .group = {}, .op = "wait"}, ErrorKind::kInvalidArgument,
           "wait: timeout is ", absl::FormatDuration(timeout), ", want 0 or more", site_place(Site{.code = code}));
  }
  if (state_ == nullptr) return;
  const LibraryScope library;
  const absl::Status waited = state_->wait(timeout, /*timeout_is_default=*/false, code);
  if (state_->is_over()) state_->learned();
  if (!waited.ok()) [[unlikely]]
    check(argument_at_line(waited, code));
}

std::exception_ptr Work::exception(CodeSite code) const {
  if (state_ == nullptr || !is_completed(code)) return nullptr;
  try {
    check(state_->status());
  } catch (...) {
    return handled_exception();
  }
  return nullptr;
}

std::vector<TensorView> Work::result(CodeSite code) {
  wait(code);
  return state_ != nullptr ? state_->result() : std::vector<TensorView>();
}

Future Work::get_future() {
  if (state_ == nullptr) return Future(*this);
  const LibraryScope library;
  return state_->get_future(*this);
}

void Work::then(Callback<void(const absl::Status&)> callback, CodeSite code) {
  require(callback, {.rank = state_ != nullptr ? state_->rank() : -1, .group = {}, .op = "then"}, code,
          "then: callback");
  if (state_ == nullptr) {
    callback(absl::OkStatus());
  } else {
    const LibraryScope library;
    if (Task::current() == nullptr) tell_of_own_thread(state_->world_ref());
    // A call that is done at once runs the callback at once.
    if (!state_->is_completed()) state_->reached("then", code);
    state_->may_get_callbacks("then", code);
    state_->learned_at_no_point();  // the callback is told, and may be all that is
    state_->then(std::move(callback), /*learns=*/true);
  }
}

std::vector<TensorView> Future::value(CodeSite code) { return work_.result(code); }
void Future::then(Callback<void(const absl::Status&)> callback, CodeSite code) {
  work_.then(std::move(callback), code);
}

void Work::block_current_stream(Stream& stream, absl::Duration timeout, CodeSite code) {
  const LibraryScope library;
  if (state_ != nullptr) state_->block_current_stream(*this, stream, timeout, code);
}

struct Promise::State final : WorkState {
  State(Scheduler* scheduler, int rank, Promise::Hooks hooks)
      : WorkState(scheduler, rank, /*by_any_thread=*/true), hooks(std::move(hooks)) {}
  absl::Status wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) override {
    return hooks.wait ? hooks.wait(timeout) : WorkState::wait(timeout, timeout_is_default, code);
  }
  Future get_future(const Work& self) override {
    return hooks.get_future ? hooks.get_future(self) : WorkState::get_future(self);
  }
  std::vector<TensorView> result() override { return tensors; }
  const char* op() const override { return "promise"; }
  // Whether the caller is the first to say how it ends. Others come after the first.
  bool keep() { return !is_completed() && !kept.exchange(true); }
  const Promise::Hooks hooks;
  std::atomic<bool> kept{false};
  std::vector<TensorView> tensors;  // written before complete(), read after it
};

Promise::Promise(Scheduler* scheduler, int rank, Hooks hooks) {
  const bool any_size = scheduler == nullptr;
  const int ranks = any_size ? 0 : scheduler->options().world_size;
  if (rank < -1 || (!any_size && rank >= ranks)) {
    throw_dist_error(any_size ? invalid_argument("Promise: rank ", rank, ", want 0 or more, or -1 for none")
                              : invalid_argument("Promise: rank ", rank, " of a world of ", ranks, ", want 0 to ",
                                                 ranks - 1, ", or -1 for none"),
                     {.rank = -1, .group = {}, .op = "Promise"});
  }
  state_ = std::make_shared<State>(scheduler, rank, std::move(hooks));
}

Promise::Promise(Scheduler* scheduler, int rank) : Promise(scheduler, rank, Hooks()) {}

Work Promise::work() const { return WorkState::handle(state_); }
Future Promise::future() const { return Future(work()); }

void Promise::set_value(std::vector<TensorView> result) {
  const LibraryScope library;
  constexpr Site kSite{.what = "promise set_value"};
  const std::shared_ptr<State> state = state_;  // the promise itself may go at a point
  point_of_caller(kSite);
  if (!state->keep()) return;
  state->tensors = std::move(result);
  WorkState::complete_by_any(state, absl::OkStatus());
  point_of_caller(kSite);
}

void Promise::set_error(const absl::Status& status) {
  const LibraryScope library;
  constexpr Site kSite{.what = "promise set_error"};
  const std::shared_ptr<State> state = state_;
  point_of_caller(kSite);
  if (!state->keep()) return;
  WorkState::complete_by_any(state, status);
  point_of_caller(kSite);
}

void wait_all(std::span<Work> works, CodeSite code) {
  std::exception_ptr first;
  for (Work& work : works) {
    try {
      work.wait(code);
    } catch (const DistError&) {
      if (first == nullptr) first = handled_exception();
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
  // One of the works has ended, however.
  static void one_ended(const std::shared_ptr<WorkState>& any, const absl::Status& /*status*/) {
    complete_with_another(any, absl::OkStatus());
  }

 private:
  Site wait_site(CodeSite code) const override {
    return Site{.what = op(), .code = code, .group = group_, .detail = detail_};
  }

  const std::string group_;
  const std::string detail_;
};

}  // namespace

size_t wait_any(std::span<Work> works, CodeSite code) {
  const LibraryScope library;
  if (works.empty())
    refuse({.rank = -1, .group = {}, .op = "wait_any"}, ErrorKind::kInvalidArgument,
           "wait_any: the list is empty, want at least one work", site_place(Site{.code = code}));
  const auto is_done = [&](const Work& work) {
    WorkState* const state = WorkState::of(work);
    return state == nullptr || state->is_completed() || state->settled("wait_any", code);
  };
  const auto first_done = [&]() -> size_t {
    auto end = works.end();
    for (;;) {
      const auto found = std::find_if(works.begin(), end, is_done);
      if (found == works.end()) return works.size();
      WorkState* const state = WorkState::of(*found);
      if (state == nullptr) return static_cast<size_t>(found - works.begin());
      const bool failed = !state->ended_well();
      if (found == end || (!failed && !state->is_part())) {
        state->learned();
        return static_cast<size_t>(found - works.begin());
      }
      // Others end with it, which may stand before it: the whole of a part, all calls of a group that failed.
      state->seen_done();
      if (failed) state->learned_of_failure();
      end = found;
    }
  };
  if (const WorkState* const first = WorkState::of(works[0]); first != nullptr)
    point_of_caller(Site{.what = "wait_any", .code = code, .group = first->group()});
  if (const size_t done = first_done(); done < works.size()) return done;
  for (const Work& work : works) {
    const WorkState& state = *WorkState::of(work);
    state.may_get_callbacks("wait_any", code);
    throw_if_error(argument_at_line(state.waitable(), code), {.rank = state.rank(), .group = {}, .op = "wait_any"});
  }
  const WorkState& state = *WorkState::of(works[0]);
  const auto any = [&] {
    const WorldPin alive(state.world_ref());
    return std::make_shared<AnyWork>(alive ? state.scheduler() : nullptr, state, works.size());
  }();
  // The works may be waited for again and again, as in a loop that takes them one by one.
  const absl::Cleanup forget = [&] {
    for (Work& work : works) WorkState::of(work)->forget(any.get());
  };
  for (Work& work : works)
    WorkState::of(work)->once_done(tell(std::weak_ptr<WorkState>(any), &AnyWork::one_ended), /*owner=*/any.get());
  WorkState::handle(any).wait(code);
  return first_done();
}

}  // namespace rankloom

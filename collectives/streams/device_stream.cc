#include "collectives/streams/device_stream.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "collectives/group/group_front.h"
#include "collectives/ops/op_table.h"
#include "collectives/streams/stream_call.h"
#include "collectives/work/completion.h"
#include "rankloom/error.h"
#include "rankloom/process_group.h"
#include "sim/base/dist_error.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {

namespace {

std::shared_ptr<DeviceRuntime> runtime_of(RankState& rank) {
  std::shared_ptr<DeviceRuntime> runtime = DeviceRuntime::of(rank.world());
  if (runtime == nullptr) fatal("a DeviceStream was made before use_device() was called for its world");
  return runtime;
}

// Nobody wants the stream any more, or an exception unwinds.
void give_up(DeviceRuntime& runtime, const DeviceStreamState& stream, const RankState& rank) noexcept {
  const WorldPin alive(runtime.world_ref());
  if (!alive) return;  // all has ended with the world
  runtime.give_up(stream, rank.unwinding());
}

// A call that was passed on at once, and may be on the device already. There nobody can take it back, but it ends: what
// stands before it is given up, too, and its end waited for, if an exception takes its memory.
class HeldOnDevice final : public HeldByStream {
 public:
  // `before`: the gates that the call is behind.
  HeldOnDevice(Work work, bool keeps_alive, const std::shared_ptr<DeviceRuntime>& runtime, const RankState& rank,
               DeviceGates before)
      : held_(std::move(work)), keeps_alive_(keeps_alive), runtime_(runtime), rank_(rank), before_(std::move(before)) {}
  const std::shared_ptr<WorkState>& state() const { return held_.state(); }

  void give_up() noexcept override {
    held_.give_up();
    if (keeps_alive_ || state() == nullptr || state()->is_over() || Completion::open() || !rank_.unwinding()) return;
    runtime_->unwind(before_, rank_.rank());
    state()->dropped();
  }
  absl::Status time_out(absl::Duration timeout, CodeSite code) override { return held_.time_out(timeout, code); }

 private:
  HeldWork held_;
  const bool keeps_alive_;
  const std::shared_ptr<DeviceRuntime> runtime_;
  const RankState& rank_;
  const DeviceGates before_;
};

}  // namespace

DeviceStream::DeviceStream(RankState& rank, int device, DeviceDriver::StreamHandle handle, std::string_view name)
    : rank_(rank),
      runtime_(runtime_of(rank)),
      device_(device),
      handle_(handle),
      state_(std::make_shared<DeviceStreamState>(rank.rank(), name)),
      wanted_(std::make_shared<WantedStream>([runtime = runtime_, state = state_, &rank] {
        const auto drop = [runtime, state, &rank] { internal::give_up(*runtime, *state, rank); };
        run_for_fibers(runtime->world_ref(), state->rank, "drop", drop, /*waits=*/true);
      })),
      keeper_(wanted_.get(), [wanted = wanted_](const void*) { wanted->let_go(); }) {}

DeviceStream::~DeviceStream() {
  if (std::uncaught_exceptions() == 0) [[likely]]
    return;
  if (const WorldPin alive(runtime_->world_ref()); alive && rank_.unwinding())
    internal::give_up(*runtime_, *state_, rank_);
}

std::string_view DeviceStream::name() const { return state_->name; }

void DeviceStream::check_rank(const char* what, CodeSite code) const {
  if (const Task* const task = Task::current();
      task != nullptr && (task->scheduler != &runtime_->scheduler() || task->info.rank != state_->rank)) {
    refuse({.rank = task->info.rank, .group = {}, .op = what}, ErrorKind::kInvalidArgument, state_->who(), what,
           " was called by rank ", task->info.rank, ", want the rank that made the stream",
           site_place(Site{.code = code}));
  }
}

void DeviceStream::point(const char* what, CodeSite code, bool polls) const {
  check_rank(what, code);
  const Site site{.what = what, .code = code, .detail = state_->name};
  polls ? runtime_->scheduler().poll(site) : runtime_->scheduler().point(site);
}

CalledHandle DeviceStream::called(const char* what, CodeSite code) const {
  return {.rank = state_->rank, .handle = absl::StrCat("stream ", state_->name), .op = what, .code = code};
}

void DeviceStream::check(const absl::Status& status, const char* what, CodeSite code) const {
  if (status.ok()) return;
  retrieved_error(runtime_->world_ref(), state_->rank, status);
  const std::string text = absl::StrCat(state_->who(), what, ": ", status.message());
  throw_dist_error(make_error(error_kind(status), located(text, code)),
                   {.rank = state_->rank, .group = {}, .op = what});
}

DeviceGates DeviceStream::gates() {
  DeviceGates opened;
  {
    OrderedMutexLock lock(&mu_);
    std::copy_if(gates_.begin(), gates_.end(), std::back_inserter(opened),
                 [](const std::shared_ptr<DeviceGate>& gate) { return gate->open.load(); });
  }
  // Before they go: another task of the rank finds the works in the gates, or in the list.
  state_->have_waited_for(runtime_->waited_for(opened));
  OrderedMutexLock lock(&mu_);
  std::erase_if(gates_, [&opened](const std::shared_ptr<DeviceGate>& gate) {
    return std::find(opened.begin(), opened.end(), gate) != opened.end();
  });
  return gates_;
}

void DeviceStream::learn_waited_for() {
  (void)gates();  // those that have opened since
  state_->learn_waited_for();
}

// Each once: streams may wait for each other's events in turn.
void DeviceStream::enter(const DeviceGates& gates) {
  OrderedMutexLock lock(&mu_);
  absl::flat_hash_set<const DeviceGate*> known;
  for (const std::shared_ptr<DeviceGate>& gate : gates_) known.insert(gate.get());
  for (const std::shared_ptr<DeviceGate>& gate : gates) {
    if (!gate->open.load() && known.insert(gate.get()).second) gates_.push_back(gate);
  }
}

absl::StatusOr<std::shared_ptr<DeviceMark>> DeviceStream::mark(std::shared_ptr<const void> hold) {
  absl::StatusOr<DeviceDriver::EventHandle> event = runtime_->driver().take_event(device_);
  if (!event.ok()) return event.status();
  auto recorded = std::make_shared<const RecordedEvent>(runtime_->shared_driver(), device_, *event);
  if (absl::Status status = runtime_->driver().record(recorded->handle(), handle_); !status.ok()) return status;
  DeviceGates before = gates();  // first: a work goes from there into the list
  return std::make_shared<DeviceMark>(runtime_, state_->rank, std::move(recorded), std::move(before),
                                      state_->waited_for(), std::move(hold));
}

absl::Status DeviceStream::block(const std::shared_ptr<WorkState>& work, std::shared_ptr<HeldByStream> held,
                                 const GateTime& time, CodeSite code) {
  if (work->is_completed()) {
    work->seen_done();
    state_->have_waited_for({work});
    if (absl::Status ended = work->status(); !ended.ok()) state_->fail(ended);
    return absl::OkStatus();
  }
  return runtime_->block(state_, device_, handle_, work, std::move(held), time, code,
                         [this](const std::shared_ptr<DeviceGate>& gate) {
                           OrderedMutexLock lock(&mu_);
                           gates_.push_back(gate);
                         });
}

void DeviceStream::wait_for(const Work& work, absl::Duration timeout, CodeSite code) {
  constexpr const char* kWhat = "block_current_stream";
  if (timeout < absl::ZeroDuration()) {
    check(invalid_argument("timeout is ", absl::FormatDuration(timeout), ", want at least 0"), kWhat, code);
  }
  const CallScope call(runtime_->world_ref(), [&] { return called(kWhat, code); });
  point(kWhat, code);
  WorkState* const waited_for = WorkState::of(work);
  if (waited_for == nullptr) return;
  waited_for->settled("block_current_stream", code);
  // A work of the user's own may answer with a future that its owner completes.
  const auto held = std::make_shared<HeldWork>(waited_for->get_future(work).work(), wanted_);
  if (held->state() == nullptr) return;
  // The world's default is one that no report counts on.
  const bool strong = timeout != absl::InfiniteDuration();
  const GateTime time{.timeout = strong ? timeout : runtime_->world().options().timeout, .strong = strong};
  check(block(held->state(), held, time, code), kWhat, code);
}

Stream::Event DeviceStream::record(CodeSite code) {
  const CallScope call(runtime_->world_ref(), [&] { return called("event record", code); });
  point("event record", code);
  absl::StatusOr<std::shared_ptr<DeviceMark>> made = mark(keeper_);
  check(made.status(), "event record", code);
  return Stream::Event(*std::move(made));
}

void DeviceStream::wait_event(const Stream::Event& event, CodeSite code) {
  constexpr const char* kWhat = "wait_event";
  if (event.state() == nullptr) return;
  const auto* const other = dynamic_cast<const DeviceMark*>(event.state().get());
  if (other == nullptr || &other->runtime()->driver() != &runtime_->driver()) {
    check(invalid_argument("the event is one of another kind of stream, want one of this kind of device"), kWhat, code);
  }
  if (other->runtime() != runtime_) {
    check(invalid_argument("the event is one of another world, want one of a stream of this world"), kWhat, code);
  }
  const CallScope call(runtime_->world_ref(), [&] { return called(kWhat, code); });
  point(kWhat, code);
  enter(other->gates());
  state_->have_waited_for(other->waited_for());
  check(runtime_->driver().wait_event(handle_, other->event()->handle()), kWhat, code);
}

void DeviceStream::synchronize(CodeSite code) {
  constexpr const char* kWhat = "stream synchronize";
  const CallScope call(runtime_->world_ref(), [&] { return called(kWhat, code); });
  point(kWhat, code);
  absl::StatusOr<std::shared_ptr<DeviceMark>> here = mark();
  check(here.status(), kWhat, code);
  absl::Status ended = runtime_->await(**here, state_->rank, kWhat, state_->name, code);
  if (ended.ok()) {
    learn_waited_for();
    ended = state_->status();
  }
  retrieved_error(runtime_->world_ref(), state_->rank, ended);
  throw_if_error(ended, {.rank = state_->rank, .group = {}, .op = kWhat});
}

bool DeviceStream::query(CodeSite code) {
  const CallScope call(runtime_->world_ref(), [&] { return called("stream query", code); });
  point("stream query", code, /*polls=*/true);
  const absl::StatusOr<bool> idle = runtime_->driver().idle(handle_);
  check(idle.status(), "stream query", code);
  if (*idle) learn_waited_for();
  return *idle;
}

absl::Status DeviceStream::status() const {
  absl::Status status = state_->status();
  retrieved_error(runtime_->world_ref(), state_->rank, status);
  return status;
}

absl::Status DeviceStream::take_status() {
  absl::Status status = state_->take_status();
  retrieved_error(runtime_->world_ref(), state_->rank, status);
  return status;
}

absl::StatusOr<Work> DeviceStream::issue(ProcessGroup& group, CollectiveCall&& call) {
  const char* const op = op_row(call.op).name;
  const CodeSite code = call.code;
  const CallScope scope(runtime_->world_ref(), [&] { return called(op, code); });
  check_rank(op, code);
  absl::StatusOr<std::shared_ptr<DeviceMark>> here = mark();
  if (!here.ok()) return here.status();
  if (call_device(call).kind != Device::Kind::kCpu) return issue_on_device(group, std::move(call), *std::move(here));
  return issue_on_host(group, std::move(call), *std::move(here));
}

absl::StatusOr<Work> DeviceStream::issue_on_device(ProcessGroup& group, CollectiveCall&& call,
                                                   std::shared_ptr<DeviceMark> here) {
  const CodeSite code = call.code;
  const absl::Duration timeout = call.timeout;
  const bool timeout_is_default = call.timeout_is_default;
  const bool keeps_alive = owns_tensors(call);
  const auto outer = std::make_shared<CallOnStream>(rank_, std::string(group.group()->name()), call, keeper_, wanted_);
  DeviceGates before = here->gates();
  call.way.ready = std::move(here);
  absl::StatusOr<Work> inner = group.execute(std::move(call));
  if (!inner.ok()) return inner.status();
  const auto held = std::make_shared<HeldOnDevice>(*std::move(inner), keeps_alive, runtime_, rank_, std::move(before));
  const std::shared_ptr<WorkState>& state = held->state();
  outer->held_as(held);
  if (state == nullptr) {
    outer->end(absl::OkStatus());
    return WorkState::handle(outer);
  }
  outer->stands_for(state);
  if (!timeout_is_default) {
    // A wait of its own withdraws the call in time.
    runtime_->scheduler().spawn({.rank = state_->rank, .kind = TaskKind::kStream}, [state, timeout, code] {
      (void)state->wait(timeout, /*timeout_is_default=*/false, code);
    });
  }
  // The device knows real time only. A timeout of the call's own is the waiting task's.
  const absl::Duration later = timeout_is_default ? absl::ZeroDuration() : runtime_->world().options().timeout;
  const GateTime time{.timeout = timeout + later, .ends_call = true};
  if (absl::Status blocked = block(state, held, time, code); !blocked.ok()) return blocked;
  // Behind the gate's listener, which tells the stream of a failure: before anybody can see that.
  state->when_done(tell(std::weak_ptr(outer), &CallOnStream::end));
  return WorkState::handle(outer);
}

// Once the stream is there, a helper of the rank issues the call and waits for it.
absl::StatusOr<Work> DeviceStream::issue_on_host(ProcessGroup& group, CollectiveCall&& call,
                                                 std::shared_ptr<DeviceMark> here) {
  const char* const op = op_row(call.op).name;
  const CodeSite code = call.code;
  // The call's time begins when the device is there, and ends in the helper's wait.
  const GateTime time{.timeout = call.timeout + runtime_->world().options().timeout};
  const std::shared_ptr<StreamCall> held =
      StreamCall::make(rank_, group, std::move(call), absl::StrCat("stream ", state_->name), keeper_, wanted_,
                       /*fail=*/nullptr);  // the gate's listener tells the stream
  if (absl::Status blocked = block(held->outer(), held, time, code); !blocked.ok()) return blocked;
  GroupFront::of(group).queued_on_stream(held->outer());
  const DeviceMark* const after = here.get();
  absl::Status asked = runtime_->launch(
      std::make_shared<DeviceLaunch>(), state_->rank, device_, Site{.what = op, .code = code}, std::nullopt,
      {&after, 1}, [scheduler = &runtime_->scheduler(), rank = state_->rank, held, here](const absl::Status& status) {
        if (!status.ok() || scheduler->aborted()) {
          (void)held->run(status.ok() ? scheduler->abort_cause() : status);
          return;
        }
        scheduler->spawn({.rank = rank, .kind = TaskKind::kStream}, [held, here] {
          WaitedWorks::learn(here->waited_for());
          (void)held->run(absl::OkStatus());
        });
      });
  if (asked.ok()) return WorkState::handle(held->outer());
  (void)held->run(asked);
  return asked;
}

}  // namespace rankloom::internal

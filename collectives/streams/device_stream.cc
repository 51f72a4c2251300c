#include "collectives/streams/device_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/ops/op_table.h"
#include "collectives/work/stream_work.h"
#include "rankloom/error.h"
#include "rankloom/process_group.h"
#include "sim/base/dist_error.h"
#include "sim/base/text.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {

namespace {

std::shared_ptr<DeviceRuntime> runtime_of(RankState& rank) {
  std::shared_ptr<DeviceRuntime> runtime = DeviceRuntime::of(rank.world());
  if (runtime == nullptr) fatal("a DeviceStream was made before use_device() was called for its world");
  return runtime;
}

}  // namespace

DeviceStream::DeviceStream(RankState& rank, int device, DeviceDriver::StreamHandle handle, std::string_view name)
    : runtime_(runtime_of(rank)),
      device_(device),
      handle_(handle),
      state_(std::make_shared<DeviceStreamState>(rank.rank(), name)) {}

DeviceStream::~DeviceStream() = default;

std::string_view DeviceStream::name() const { return state_->name; }

void DeviceStream::point(const char* what, CodeSite code, bool polls) const {
  if (const Task* const task = Task::current();
      task != nullptr && (task->scheduler != &runtime_->scheduler() || task->info.rank != state_->rank)) {
    refuse({.rank = task->info.rank, .group = {}, .op = what}, ErrorKind::kInvalidArgument, state_->who(), what,
           " was called by rank ", task->info.rank, ", want the rank that made the stream");
  }
  const Site site{.what = what, .code = code, .detail = state_->name};
  polls ? runtime_->scheduler().poll(site) : runtime_->scheduler().point(site);
}

CalledHandle DeviceStream::called(const char* what) const {
  return {.rank = state_->rank, .handle = absl::StrCat("stream ", state_->name), .op = what};
}

void DeviceStream::check(const absl::Status& status, const char* what) const {
  if (status.ok()) return;
  throw_dist_error(prefixed(status, state_->who(), what, ": "), {.rank = state_->rank, .group = {}, .op = what});
}

DeviceGates DeviceStream::gates() {
  OrderedMutexLock lock(&mu_);
  std::erase_if(gates_, [](const std::shared_ptr<DeviceGate>& gate) { return gate->open.load(); });
  return gates_;
}

absl::StatusOr<std::shared_ptr<DeviceMark>> DeviceStream::mark() {
  absl::StatusOr<DeviceDriver::EventHandle> event = runtime_->driver().take_event(device_);
  if (!event.ok()) return event.status();
  if (absl::Status recorded = runtime_->driver().record(*event, handle_); !recorded.ok()) return recorded;
  return std::make_shared<DeviceMark>(runtime_, state_->rank, device_, *event, gates());
}

absl::Status DeviceStream::block(Work work, absl::Duration timeout, CodeSite code) {
  WorkState* const state = WorkState::of(work);
  if (state == nullptr) return absl::OkStatus();
  if (state->is_completed()) {
    if (absl::Status ended = state->status(); !ended.ok()) state_->fail(ended);
    return absl::OkStatus();
  }
  absl::StatusOr<std::shared_ptr<DeviceGate>> gate =
      runtime_->block(state_, device_, handle_, std::move(work), timeout, code);
  if (!gate.ok()) return gate.status();
  OrderedMutexLock lock(&mu_);
  gates_.push_back(*std::move(gate));
  return absl::OkStatus();
}

void DeviceStream::wait_for(const Work& work, absl::Duration timeout, CodeSite code) {
  constexpr const char* kWhat = "block_current_stream";
  if (timeout < absl::ZeroDuration()) {
    check(invalid_argument("timeout is ", absl::FormatDuration(timeout), ", want at least 0"), kWhat);
  }
  const CallScope call(runtime_->world_ref(), [&] { return called(kWhat); });
  point(kWhat, code);
  WorkState* const waited_for = WorkState::of(work);
  if (waited_for == nullptr) return;
  waited_for->settled("block_current_stream");
  // A work of the user's own may answer with a future that its owner completes.
  check(block(waited_for->get_future(work).work(), timeout, code), kWhat);
}

Stream::Event DeviceStream::record(CodeSite code) {
  const CallScope call(runtime_->world_ref(), [this] { return called("event record"); });
  point("event record", code);
  absl::StatusOr<std::shared_ptr<DeviceMark>> made = mark();
  check(made.status(), "event record");
  return Stream::Event(*std::move(made));
}

void DeviceStream::wait_event(const Stream::Event& event, CodeSite code) {
  constexpr const char* kWhat = "wait_event";
  if (event.state() == nullptr) return;
  const auto* const other = dynamic_cast<const DeviceMark*>(event.state().get());
  if (other == nullptr || &other->runtime()->driver() != &runtime_->driver()) {
    check(invalid_argument("the event is one of another kind of stream, want one of this kind of device"), kWhat);
  }
  const CallScope call(runtime_->world_ref(), [&] { return called(kWhat); });
  point(kWhat, code);
  check(runtime_->driver().wait_event(handle_, other->event()), kWhat);
  OrderedMutexLock lock(&mu_);
  for (const std::shared_ptr<DeviceGate>& gate : other->gates()) {
    if (!gate->open.load()) gates_.push_back(gate);
  }
}

void DeviceStream::synchronize(CodeSite code) {
  constexpr const char* kWhat = "stream synchronize";
  const CallScope call(runtime_->world_ref(), [&] { return called(kWhat); });
  point(kWhat, code);
  absl::StatusOr<std::shared_ptr<DeviceMark>> here = mark();
  check(here.status(), kWhat);
  absl::Status ended = runtime_->await(**here, state_->rank, kWhat, state_->name, code);
  if (ended.ok()) ended = state_->status();
  throw_if_error(ended, {.rank = state_->rank, .group = {}, .op = kWhat});
}

bool DeviceStream::query(CodeSite code) {
  const CallScope call(runtime_->world_ref(), [this] { return called("stream query"); });
  point("stream query", code, /*polls=*/true);
  const absl::StatusOr<bool> idle = runtime_->driver().idle(handle_);
  check(idle.status(), "stream query");
  return *idle;
}

absl::Status DeviceStream::status() const { return state_->status(); }

absl::StatusOr<Work> DeviceStream::issue(ProcessGroup& group, CollectiveCall&& call) {
  const char* const op = op_row(call.op).name;
  const CodeSite code = call.code;
  auto outer =
      std::make_shared<StreamWork>(&runtime_->scheduler(), state_->rank, op, std::string(group.group()->name()),
                                   call.seq, std::vector<TensorView>(call.outputs.begin(), call.outputs.end()));
  absl::StatusOr<std::shared_ptr<DeviceMark>> here = mark();
  if (!here.ok()) return here.status();
  if (call_device(call).kind != Device::Kind::kCpu) {
    call.way.ready = *here;
    const absl::Duration timeout = call.timeout;
    const bool timeout_is_default = call.timeout_is_default;
    absl::StatusOr<Work> inner = group.execute(std::move(call));
    if (!inner.ok()) return inner.status();
    WorkState* const state = WorkState::of(*inner);
    if (state == nullptr) {
      outer->complete(absl::OkStatus());
      return WorkState::handle(std::move(outer));
    }
    outer->stands_for(*state);
    // Before the gate asks for the same, so that who sees the stream go on sees the call done.
    state->when_done(tell(std::weak_ptr(outer), &WorkState::complete));
    if (!timeout_is_default) {
      // A wait of its own withdraws the call in time.
      runtime_->scheduler().spawn({.rank = state_->rank, .kind = TaskKind::kStream}, [inner = *inner, timeout, code] {
        (void)WorkState::of(inner)->wait(timeout, /*timeout_is_default=*/false, code);
      });
    }
    if (absl::Status blocked = block(*inner, absl::InfiniteDuration(), code); !blocked.ok()) return blocked;
    return WorkState::handle(std::move(outer));
  }
  if (absl::Status blocked = block(WorkState::handle(outer), absl::InfiniteDuration(), code); !blocked.ok())
    return blocked;
  // Once the stream is there, a helper of the rank issues the call and waits for it.
  auto issue = [group = &group, held = group.weak_from_this().lock(), outer, call = std::move(call)]() mutable {
    const CodeSite code = call.code;
    const absl::Duration timeout = call.timeout;
    const bool timeout_is_default = call.timeout_is_default;
    outer->complete(caught(outer->op(), [&]() -> absl::Status {
      absl::StatusOr<Work> inner = group->execute(std::move(call));
      if (!inner.ok() || WorkState::of(*inner) == nullptr) return inner.status();
      return WorkState::of(*inner)->wait(timeout, timeout_is_default, code);
    }));
  };
  const DeviceMark* const after = here->get();
  absl::Status asked = runtime_->launch(std::make_shared<DeviceLaunch>(), state_->rank, device_,
                                        Site{.what = op, .code = code}, nullptr, {&after, 1},
                                        [scheduler = &runtime_->scheduler(), rank = state_->rank, outer,
                                         issue = std::move(issue)](const absl::Status& status) mutable {
                                          if (!status.ok() || scheduler->aborted()) {
                                            outer->complete(status.ok() ? scheduler->abort_cause() : status);
                                            return;
                                          }
                                          scheduler->spawn({.rank = rank, .kind = TaskKind::kStream}, std::move(issue));
                                        });
  if (!asked.ok()) {
    outer->complete(asked);
    return asked;
  }
  return WorkState::handle(std::move(outer));
}

}  // namespace rankloom::internal

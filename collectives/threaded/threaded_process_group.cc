#include "collectives/threaded/threaded_process_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/group/coalescing.h"
#include "collectives/group/group_front.h"
#include "collectives/ops/op_table.h"
#include "collectives/streams/device_runtime.h"
#include "collectives/threaded/coalesced_work.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {
namespace {

// The first tensor that is not of this kind of device, or null.
const TensorView* foreign_tensor(const CollectiveCall& call, Device::Kind home);

// The same, at once for one tensor on each side.
bool all_at_home(const CollectiveCall& call, Device::Kind home) {
  if (call.inputs.size() == 1 && call.outputs.size() == 1) [[likely]]
    return call.inputs[0].device().kind == home && call.outputs[0].device().kind == home;
  return foreign_tensor(call, home) == nullptr;
}

const TensorView* foreign_tensor(const CollectiveCall& call, Device::Kind home) {
  for (const TensorList* list : {&call.inputs, &call.outputs}) {
    for (const TensorView& tensor : *list) {
      if (tensor.device().kind != home) return &tensor;
    }
  }
  if (call.parts.empty()) return nullptr;
  for (const CollectiveCall& part : call.parts) {
    if (const TensorView* const tensor = foreign_tensor(part, home); tensor != nullptr) return tensor;
  }
  return nullptr;
}

// Why the call's `tensor`, which is no memory of the process, cannot be reached; OK if it is a device's, and use_device() was called.
// Not inlined: its locals would be part of every call's stack.
[[gnu::noinline]] absl::Status foreign(const CollectiveCall& call, const TensorView& tensor, WorldState& world) {
  if (tensor.device().kind == Device::Kind::kMeta) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a tensor is ", tensor.text(), ", want memory of this process; tensors without data need a fake group"));
  }
  if (DeviceRuntime::of(world) == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor is ", tensor.text(), ", want use_device() called for the world first (use_cuda(rank))"));
  }
  return one_device(call);
}

// The bytes of a tensor; empty: it has none.
OpenOutputs::Range range_of(const TensorView& tensor) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data());
  return {begin, begin + tensor.bytes()};
}

void append_outputs(const CollectiveCall& call, int rank, std::vector<OpenOutputs::Range>* ranges) {
  for (const CollectiveCall& part : call.parts) append_outputs(part, rank, ranges);
  if (!writes_outputs(call, rank)) return;
  for (const TensorView& output : call.outputs) {
    if (output.bytes() > 0) ranges->push_back(range_of(output));
  }
}

// Not inlined: few calls have lists.
[[gnu::noinline]] bool open_many(OpenOutputs& list, WorkState& work, const CollectiveCall& call, int rank,
                                 std::string* other) {
  std::vector<OpenOutputs::Range> ranges;
  append_outputs(call, rank, &ranges);
  return ranges.empty() || list.add(work, std::move(ranges), other);
}

// Takes note of where the call of `work` writes. False: an open call of its rank, `other`, writes there, too.
bool open_outputs(RankState& rank, WorkState& work, const CollectiveCall& call, int group_rank, std::string* other) {
  if (call.outputs.empty() || !writes_outputs(call, group_rank)) return true;
  OpenOutputs& list = rank.open_outputs();
  work.outputs_open_in(&list);
  if (call.outputs.size() > 1) return open_many(list, work, call, group_rank, other);
  return call.outputs[0].bytes() == 0 || list.add(work, range_of(call.outputs[0]), other);
}

constexpr std::string_view kOwnOutputs = "want outputs of their own";

// `who`: "rank 1, group 0, recv from rank 0: ".
[[gnu::noinline]] absl::Status refuse_outputs(std::string_view who, const CollectiveCall& call,
                                              std::string_view other) {
  return invalid_argument(sv(who), call.outputs.size() == 1 ? "its output overlaps" : "one of its outputs overlaps",
                          " that of ", sv(other), ", which this rank has not waited for, ", sv(kOwnOutputs),
                          " until wait()");
}

// InvalidArgument, if two parts of a coalesced call write to one byte.
absl::Status separate_parts(const CollectiveCall& call, int rank, std::string_view who) {
  struct Output {
    OpenOutputs::Range range;
    const CollectiveCall* part;
  };
  std::vector<Output> outputs;
  for (const CollectiveCall& part : call.parts) {
    if (!writes_outputs(part, rank)) continue;
    for (const TensorView& tensor : part.outputs) {
      if (tensor.bytes() > 0) outputs.push_back({range_of(tensor), &part});
    }
  }
  std::stable_sort(outputs.begin(), outputs.end(),
                   [](const Output& a, const Output& b) { return a.range.begin < b.range.begin; });
  for (size_t i = 1; i < outputs.size(); ++i) {
    const Output& first = outputs[i - 1];
    const Output& second = outputs[i];
    if (second.range.begin >= first.range.end) continue;
    const auto text = [](const CollectiveCall& part) {
      return absl::StrCat(op_row(part.op).name, site_place(Site{.code = part.code}));
    };
    return invalid_argument(sv(who), "the output of ", text(*first.part), " overlaps that of ", text(*second.part),
                            ", a call of the same coalesced call, ", sv(kOwnOutputs));
  }
  return absl::OkStatus();
}

// Where members of a world find the core.
std::string core_key(const Group& group) { return absl::StrCat("core of group ", group.id()); }

}  // namespace

ThreadedGroupCore::ThreadedGroupCore(WorldState* world, std::shared_ptr<const Group> group)
    : world_(*world),
      group_(std::move(group)),
      rendezvous_(std::make_shared<Rendezvous>(world, group_)),
      mu_(&world->scheduler(), LockLevel::kGroupCore) {}

std::shared_ptr<Mailbox> ThreadedGroupCore::mailbox() {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // whoever comes first makes it
  if (mailbox_ == nullptr) {
    // A group fails as a whole: who waits for a member whose other call failed would wait for ever.
    mailbox_ = std::make_shared<Mailbox>(
        &world_, group_, [rendezvous = rendezvous_](const absl::Status& cause) { rendezvous->fail(cause); });
    rendezvous_->when_failed([mailbox = std::weak_ptr<Mailbox>(mailbox_)](const absl::Status& cause) {
      if (const std::shared_ptr<Mailbox> other = mailbox.lock(); other != nullptr) other->fail(cause);
    });
  }
  return mailbox_;
}

void ThreadedGroupCore::close(const absl::Status& cause) {
  rendezvous_->note_left();
  std::shared_ptr<Mailbox> mailbox;
  {
    ObservedMutexLock lock(&mu_);
    lock.apart();  // nobody uses the group any more
    mailbox = mailbox_;
  }
  if (mailbox != nullptr) mailbox->close(cause);
  rendezvous_->fail(cause);
}

void ThreadedGroupCore::leave(int rank) {
  {
    ObservedMutexLock lock(&mu_);
    lock.apart();  // unshare() tells, of the last one
    gone_.resize(static_cast<size_t>(group_->size()));
    if (gone_[static_cast<size_t>(rank)]) return;
    gone_[static_cast<size_t>(rank)] = true;
    if (++left_ < group_->size()) return;
  }
  // Messages that nobody received hold the mailbox.
  close(make_error(ErrorKind::kAborted, "all members have left group ", sv(group_->name())));
  world_.forget_on_abort(on_abort_);
  world_.forget_at_end(at_end_);
  world_.unshare(core_key(*group_));
}

void ThreadedGroupCore::listen() {
  // A work may have no waiter but a callback: an abort completes it.
  on_abort_ = world_.on_abort([weak = weak_from_this()](const absl::Status& cause) {
    if (const std::shared_ptr<ThreadedGroupCore> core = weak.lock(); core != nullptr) core->fail(cause);
  });
  at_end_ = world_.at_end([weak = weak_from_this()] {
    if (const std::shared_ptr<ThreadedGroupCore> core = weak.lock(); core != nullptr) core->close(world_ended());
  });
  // Later ones are told to the listener.
  if (world_.scheduler().aborted()) fail(world_.scheduler().abort_cause());
}

ThreadedProcessGroup::ThreadedProcessGroup(RankState* context, std::shared_ptr<ThreadedGroupCore> core,
                                           size_t eager_bytes)
    : ProcessGroup(*context, core->group()),
      core_(std::move(core)),
      rendezvous_(core_->rendezvous()),
      eager_bytes_(eager_bytes) {
  if (context->world().options().engine == EngineKind::kFibers) front().set_places(this);
}

CallPlace ThreadedProcessGroup::fresh() {
  for (Kept& kept : kept_) {
    if (kept.building) continue;
    if (kept.state == nullptr) {
      kept.state = std::make_shared<CallState>(rendezvous_, front().context(), ProcessGroup::rank());
    } else if (kept.state.use_count() > 1) {
      continue;
    } else {
      renew(kept.state->place());
    }
    kept.building = true;
    return {.call = kept.state->place(), .building = &kept.building};
  }
  return {};
}

std::shared_ptr<CallState>* ThreadedProcessGroup::placed(const CollectiveCall& call) {
  for (Kept& kept : kept_) {
    if (kept.state != nullptr && &kept.state->call() == &call) return &kept.state;
  }
  return nullptr;
}

void ThreadedProcessGroup::abort(std::string_view reason) {
  const WorldPin alive(front().world_ref());
  if (!alive) return;  // all that was on its way has ended with the world
  core_->fail(
      make_error(ErrorKind::kAborted, "rank ", global_rank(), " aborted group ", group()->name(), ": ", sv(reason)));
}

void ThreadedProcessGroup::shutdown(CodeSite code) {
  if (front().world_ref().ended())
    return ProcessGroup::shutdown(code);  // all that was on its way has ended with the world
  const CallScope call = front().enter("shutdown");
  std::vector<std::shared_ptr<WorkState>> works = rendezvous_->unfinished(ProcessGroup::rank());
  if (mailbox_ != nullptr) {
    for (std::shared_ptr<Message>& message : mailbox_->unfinished(ProcessGroup::rank()))
      works.push_back(std::move(message));
  }
  absl::Status first;
  std::string op;
  for (const std::shared_ptr<WorkState>& work : works) {
    const absl::Status ended = work->wait(absl::InfiniteDuration(), /*timeout_is_default=*/true, code);
    if (!first.ok() || ended.ok()) continue;
    first = ended;
    op = work->op();
  }
  rendezvous_->await_leaving();
  if (mailbox_ != nullptr) mailbox_->await_moves(ProcessGroup::rank());
  ProcessGroup::shutdown(code);
  throw_if_error(first, {.rank = global_rank(), .group = group()->name(), .op = op});
}

std::shared_ptr<ProcessGroup> ThreadedProcessGroup::make_member(const std::shared_ptr<const Group>& group,
                                                                const GroupOptions& options) {
  return make_threaded_member(*front().context(), group, options);
}

absl::StatusOr<Work> ThreadedProcessGroup::execute(CollectiveCall&& call) {
  const bool on_host = all_at_home(call, Device::Kind::kCpu);  // a device has an order of its own
  if (!on_host) [[unlikely]] {
    const TensorView& tensor = *foreign_tensor(call, Device::Kind::kCpu);
    if (const absl::Status there = foreign(call, tensor, front().context()->world()); !there.ok())
      return invalid_argument(front().who(call), there.message());
  }
  if (!op_row(call.op).is_collective()) return post(std::move(call), on_host);
  if (call.op == OpType::kCoalesced) return execute_parts(std::move(call), on_host);
  const int64_t timeout_ns = front().nanoseconds(call.timeout);
  if (std::shared_ptr<CallState>* const state = placed(call); state != nullptr) [[likely]] {
    (*state)->begin(timeout_ns);
    if (call.keep_alive == nullptr) [[likely]]
      return file(*state, on_host);
    // What owns its tensors goes with the call.
    return file(std::exchange(*state, nullptr), on_host);
  }
  return file(
      std::make_shared<CallState>(rendezvous_, front().context(), ProcessGroup::rank(), std::move(call), timeout_ns),
      on_host);
}

absl::StatusOr<Work> ThreadedProcessGroup::file(std::shared_ptr<CallState> state, bool on_host) {
  Work work = WorkState::first_handle(state);
  std::string other;
  if (on_host && !open_outputs(*front().context(), *state, state->call(), ProcessGroup::rank(), &other)) [[unlikely]] {
    const absl::Status refused = refuse_outputs(front().who(state->call()), state->call(), other);
    state->complete(refused);
    return refused;
  }
  if (absl::Status filed = rendezvous_->file(std::move(state)); !filed.ok()) [[unlikely]] {
    WorkState::of(work)->complete(filed);  // so that dropping the handle means nothing
    return filed;
  }
  return work;
}

absl::StatusOr<Work> ThreadedProcessGroup::post(CollectiveCall&& call, bool on_host) {
  if (mailbox_ == nullptr) mailbox_ = core_->mailbox();
  const int64_t timeout_ns = front().nanoseconds(call.timeout);
  auto message =
      std::make_shared<Message>(mailbox_, front().context(), ProcessGroup::rank(), std::move(call), timeout_ns);
  Work work = WorkState::first_handle(message);
  std::string other;
  if (on_host && !open_outputs(*front().context(), *message, message->call(), ProcessGroup::rank(), &other))
      [[unlikely]] {
    const absl::Status refused = refuse_outputs(message->who() + ": ", message->call(), other);
    message->complete(refused);
    return refused;
  }
  if (absl::Status posted = mailbox_->post(std::move(message), eager_bytes_); !posted.ok()) [[unlikely]] {
    WorkState::of(work)->complete(posted);
    return posted;
  }
  return work;
}

absl::StatusOr<Work> ThreadedProcessGroup::execute_parts(CollectiveCall&& call, bool on_host) {
  std::vector<OpenOutputs::Range> outputs;
  if (on_host) {
    if (absl::Status apart = separate_parts(call, ProcessGroup::rank(), front().who(call)); !apart.ok()) return apart;
    append_outputs(call, ProcessGroup::rank(), &outputs);
  }
  std::vector<CollectiveCall>& parts = call.parts.mutable_get();
  const auto first_message = std::stable_partition(
      parts.begin(), parts.end(), [](const CollectiveCall& part) { return op_row(part.op).is_collective(); });
  std::vector<std::shared_ptr<Message>> messages;
  for (auto part = first_message; part != parts.end(); ++part) {
    if (mailbox_ == nullptr) mailbox_ = core_->mailbox();
    part->keep_alive = call.keep_alive;
    part->way.ready = call.way.ready;
    const int64_t timeout_ns = front().nanoseconds(part->timeout);
    messages.push_back(
        std::make_shared<Message>(mailbox_, front().context(), ProcessGroup::rank(), std::move(*part), timeout_ns));
  }
  parts.erase(first_message, parts.end());
  const int64_t timeout_ns = front().nanoseconds(call.timeout);
  auto whole = std::make_shared<CoalescedWork>(front().context(), rendezvous_, mailbox_, call, timeout_ns);
  Work work = WorkState::handle(whole);
  if (!outputs.empty()) {
    OpenOutputs& list = front().context()->open_outputs();
    whole->outputs_open_in(&list);
    if (std::string other; !list.add(*whole, std::move(outputs), &other)) {
      const absl::Status refused = refuse_outputs(front().who(call), call, other);
      whole->complete(refused);
      return refused;
    }
  }
  std::shared_ptr<CallState> collectives;
  if (!call.parts.empty()) {
    collectives =
        std::make_shared<CallState>(rendezvous_, front().context(), ProcessGroup::rank(), std::move(call), timeout_ns);
  }
  whole->watch(collectives, messages);
  const absl::Status filed = collectives != nullptr ? rendezvous_->file(collectives) : absl::OkStatus();
  absl::Status posted = filed;
  for (const std::shared_ptr<Message>& message : messages) {
    if (posted.ok()) posted = mailbox_->post(message, eager_bytes_);
  }
  if (posted.ok()) [[likely]]
    return work;
  whole->give_up(posted, filed.ok());
  return posted;
}

std::shared_ptr<ProcessGroup> make_threaded_member(RankState& rank, const std::shared_ptr<const Group>& group,
                                                   const GroupOptions& options) {
  WorldState& world = rank.world();
  std::shared_ptr<ThreadedGroupCore> core = world.shared<ThreadedGroupCore>(
      core_key(*group),
      [&] {
        auto made = std::make_shared<ThreadedGroupCore>(&world, group);
        made->listen();
        return made;
      },
      WorldState::Maker::kSame);
  return std::make_shared<ThreadedProcessGroup>(&rank, std::move(core), options.eager_bytes);
}

}  // namespace rankloom::internal

#include "collectives/threaded/threaded_process_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/group/coalescing.h"
#include "collectives/ops/op_table.h"
#include "collectives/streams/device_runtime.h"
#include "collectives/threaded/overlap.h"
#include "collectives/work/coalesced_work.h"
#include "rankloom/error.h"
#include "sim/base/blame.h"
#include "sim/base/dist_error.h"
#include "sim/base/kept_memory.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {
namespace {

// The first tensor that is not of this kind of device, or null.
const TensorView* foreign_tensor(const CollectiveCall& call, Device::Kind home);

// The same, at once for one tensor on each side.
bool all_at_home(const CollectiveCall& call, Device::Kind home) {
  const auto few = [home](const TensorList& list) {
    return list.empty() || (list.size() == 1 && list[0].device().kind == home);
  };
  return (few(call.inputs) && few(call.outputs) && call.parts.empty()) || foreign_tensor(call, home) == nullptr;
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

// Why the call's `tensor`, which is no memory of the process, cannot be reached; OK if it is a device's, and
// use_device() was called. Not inlined: its locals would be part of every call's stack.
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

// In worlds of so many ranks at most each line of calls has a kept work of its own (call_place.h), where it finds its
// last call; larger worlds save the memory.
constexpr int kMostRanksWithPlaces = 4096;

// Where members of a world find the core.
std::string core_key(const Group& group) { return absl::StrCat("core of group ", group.id()); }

}  // namespace

ThreadedGroupCore::ThreadedGroupCore(WorldState* world, std::shared_ptr<const Group> group,
                                     std::shared_ptr<MembersElsewhere> elsewhere)
    : world_(*world),
      group_(std::move(group)),
      rendezvous_(make_kept<Rendezvous>(world, group_, std::move(elsewhere))),
      mu_(&world->scheduler(), LockLevel::kGroupCore) {}

std::shared_ptr<Mailbox> ThreadedGroupCore::mailbox() {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // the first rank to come makes it
  if (mailbox_ == nullptr) {
    mailbox_ = std::make_shared<Mailbox>(&world_, group_, rendezvous_);
    const absl::Status failed = rendezvous_->fails_along(mailbox_);
    if (!failed.ok()) mailbox_->begin_failed(failed);
  }
  return mailbox_;
}

void ThreadedGroupCore::close(const absl::Status& cause) {
  // The listener, whose turn it is before that of the ranks where a schedule decides, may not have come so far.
  if (world_.scheduler().aborted()) fail(world_.scheduler().abort_cause());
  if (rendezvous_->elsewhere() != nullptr) rendezvous_->elsewhere()->left();
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
    const int members = rendezvous_->elsewhere() != nullptr ? rendezvous_->elsewhere()->here() : group_->size();
    if (++left_ < members) return;
  }
  // Messages that nobody received hold the mailbox.
  close(make_error(ErrorKind::kAborted, "all members have left group ", sv(group_->name())));
  world_.forget_on_abort(on_abort_);
  world_.forget_at_end(at_end_);
  world_.unshare(core_key(*group_));
}

void ThreadedGroupCore::listen() {
  // A work may have no waiter but a callback: an abort completes it.
  on_abort_ =
      world_.on_abort([weak = weak_from_this(), world = WorldRef(&world_.scheduler())](const absl::Status& cause) {
        const std::shared_ptr<ThreadedGroupCore> core = weak.lock();
        if (core == nullptr) return;
        run_for_fibers(world, /*rank=*/-1, "abort", [core, cause] { core->fail(cause); });
      });
  at_end_ = world_.at_end(int64_t{group_->id()} * world_.size(), [weak = weak_from_this()] {
    if (const std::shared_ptr<ThreadedGroupCore> core = weak.lock(); core != nullptr) core->close(world_ended());
  });
  // Later ones are told to the listener.
  if (world_.scheduler().aborted()) fail(world_.scheduler().abort_cause());
}

ThreadedProcessGroup::ThreadedProcessGroup(RankState* context, std::shared_ptr<ThreadedGroupCore> core,
                                           const GroupOptions& options)
    : ProcessGroup(*context, core->group()),
      core_(std::move(core)),
      rendezvous_(core_->rendezvous()),
      eager_bytes_(options.eager_bytes),
      rooted_(options.rooted),
      place_per_line_(context->world().options().world_size <= kMostRanksWithPlaces) {
  if (context->world().options().engine == EngineKind::kFibers) front().set_places(this);
  front().set_loses([this](const CollectiveCall& call, const absl::Status& cause) { lose(call, cause); });
}

void ThreadedProcessGroup::lose(const CollectiveCall& call, const absl::Status& cause) {
  RankState& rank = *front().rank_state();
  if (call.seq >= 0) rendezvous_->lose(rank, call.seq, cause);
  const auto lose_message = [&](const CollectiveCall& message) {
    if (!op_row(message.op).is_collective()) mailbox()->lose(rank, ProcessGroup::rank(), message, cause);
  };
  if (call.op != OpType::kCoalesced) return lose_message(call);
  for (const CollectiveCall& part : call.parts) lose_message(part);
}

CallPlace ThreadedProcessGroup::fresh(bool message, int line) {
  // The call will be refused, and its place would be made for a world that may be gone.
  if (front().world_ref().foreign()) [[unlikely]]
    return {};
  const size_t first = place_per_line_ ? static_cast<size_t>(line) : 0;
  if (message) {
    if (kept_messages_ == nullptr) [[unlikely]]
      kept_messages_ = std::make_unique<KeptWorks<Message>>();
    return kept_messages_->fresh(
        first, [this] { return make_kept<Message>(mailbox(), front().rank_state(), ProcessGroup::rank()); });
  }
  return kept_.fresh(
      first, [this] { return make_kept<CollectiveWork>(rendezvous_, front().rank_state(), ProcessGroup::rank()); });
}

absl::Status ThreadedProcessGroup::execute_again(const CallPlace& place, Work* work) {
  if (!place.memo->on_host || !place.memo->again) [[unlikely]] {
    absl::StatusOr<Work> executed = execute(std::move(*place.call));
    if (!executed.ok()) return executed.status();
    *work = *std::move(executed);
    return absl::OkStatus();
  }
  if (!op_row(place.call->op).is_collective()) {
    const auto& message = *static_cast<const std::shared_ptr<Message>*>(place.kept);
    message->begin(/*timeout_ns=*/0);
    WorkState::first_handle(message, work);
    return post_begun(message, /*on_host=*/true);
  }
  const auto& state = *static_cast<const std::shared_ptr<CollectiveWork>*>(place.kept);
  state->begin(/*timeout_ns=*/0);
  WorkState::first_handle(state, work);
  return file_begun(state, /*on_host=*/true);
}

const std::shared_ptr<Mailbox>& ThreadedProcessGroup::mailbox() {
  if (!has_mailbox_.load(std::memory_order_acquire)) [[unlikely]] {
    // A thread of a stream may come here beside the rank.
    std::shared_ptr<Mailbox> of_all = core_->mailbox();
    std::call_once(mailbox_once_, [&] {
      mailbox_ = std::move(of_all);
      has_mailbox_.store(true, std::memory_order_release);
    });
  }
  return mailbox_;
}

void ThreadedProcessGroup::abort(std::string_view reason, CodeSite code) {
  const WorldPin alive(front().world_ref());
  if (!alive || front().world_ref().ended()) return;  // all that was on its way ends with the world
  // Refused, as their calls are: the thread of the fibers has no locks against others.
  if (Task::current() == nullptr && front().scheduler()->beside_fibers()) (void)front().enter("abort", code);
  // Not of a task of another world, for which the pin keeps this one.
  const bool own = front().world_ref().has(Task::current());
  const Site site{.what = "abort", .code = code, .group = group()->name()};
  if (own) point_of_caller(site);
  const int by = front().calling_rank();
  const std::string text =
      located(absl::StrCat("rank ", by, " aborted group ", group()->name(), ": ", sv(reason)), code);
  std::vector<std::string> last;
  // Records of fibers have no lock against threads beside theirs.
  const bool looks = own || front().scheduler()->options().engine == EngineKind::kThreads;
  if (looks && by == global_rank()) last = front().rank_state()->recorder().last_calls(1);
  const absl::Status cause = blamed_as(
      make_error(ErrorKind::kAborted, text),
      blamed_on(by, make_error(ErrorKind::kAborted, text, last.empty() ? "" : ", after ", last.empty() ? "" : last[0]),
                front().rank_state()->unwinding()));
  const auto fail = [cause](ThreadedProcessGroup& group) {
    group.core_->fail(cause);
    // Another member may have made the group fail a moment ago, and be about to end this one's calls.
    group.rendezvous_->await_failed(group.ProcessGroup::rank());
    group.front().close_outputs();
  };
  if (const std::shared_ptr<ProcessGroup> self = own ? nullptr : weak_from_this().lock(); self != nullptr) {
    absl::AnyInvocable<void()> there = [self, fail] { fail(static_cast<ThreadedProcessGroup&>(*self)); };
    if (given_to_fibers(front().world_ref(), global_rank(), "abort", &there)) return;
  }
  fail(*this);
  if (own) point_of_caller(site);
}

void ThreadedProcessGroup::shutdown(CodeSite code) {
  if (front().world_ref().ended())
    return ProcessGroup::shutdown(code);  // all that was on its way has ended with the world
  front().need_own_rank("shutdown", code);
  const CallScope call = front().enter("shutdown", code);
  point_of_caller(Site{.what = "shutdown", .code = code, .group = group()->name()});
  std::vector<std::shared_ptr<WorkState>> works = rendezvous_->unfinished(ProcessGroup::rank());
  if (has_mailbox_.load(std::memory_order_acquire)) {
    for (std::shared_ptr<Message>& message : mailbox_->unfinished(ProcessGroup::rank()))
      works.push_back(std::move(message));
  }
  absl::Status first;
  std::string op;
  for (const std::shared_ptr<WorkState>& work : works) {
    // A caller without a line of its own tells those of the calls.
    const CodeSite site = code.line != 0 ? code : static_cast<const MemberWork&>(*work).call().code;
    const absl::Status ended = work->wait(absl::InfiniteDuration(), /*timeout_is_default=*/true, site);
    if (!first.ok() || ended.ok()) continue;
    work->retrieved(ended);
    first = ended;
    op = work->op();
  }
  rendezvous_->await_completing();
  if (has_mailbox_.load(std::memory_order_acquire)) mailbox_->await_moves(ProcessGroup::rank());
  front().close_outputs();
  ProcessGroup::shutdown(code);
  throw_if_error(first, {.rank = global_rank(), .group = group()->name(), .op = op});
}

std::shared_ptr<ProcessGroup> ThreadedProcessGroup::make_member(const std::shared_ptr<const Group>& group,
                                                                const GroupOptions& options) {
  GroupOptions mine = options;
  if (!mine.rooted.has_value()) mine.rooted = rooted_;
  RankState& rank = *front().rank_state();
  if (GroupBackend* const backend = rank.world().group_backend(); backend != nullptr)
    return backend->make_member(rank, group, mine);
  return make_threaded_member(*front().rank_state(), group, mine);
}

absl::StatusOr<Work> ThreadedProcessGroup::execute(CollectiveCall&& call) {
  const bool on_host = all_at_home(call, Device::Kind::kCpu);  // a device has an order of its own
  if (!on_host) [[unlikely]] {
    const TensorView& tensor = *foreign_tensor(call, Device::Kind::kCpu);
    if (const absl::Status there = foreign(call, tensor, front().rank_state()->world()); !there.ok())
      return invalid_argument(front().who(call), there.message());
  }
  if (!op_row(call.op).is_collective()) return post(std::move(call), on_host);
  if (call.op == OpType::kCoalesced) return execute_parts(std::move(call), on_host);
  const int64_t timeout_ns = GroupFront::nanoseconds(call.timeout);
  if (std::shared_ptr<CollectiveWork>* const state = kept_.holder(call); state != nullptr) [[likely]] {
    (*state)->memo()->on_host = on_host;
    (*state)->begin(timeout_ns);
    if (call.keep_alive == nullptr) [[likely]]
      return file(*state, on_host);
    // The owner of its tensors goes with the call.
    return file(std::exchange(*state, nullptr), on_host);
  }
  return file(std::make_shared<CollectiveWork>(rendezvous_, front().rank_state(), ProcessGroup::rank(), std::move(call),
                                               timeout_ns),
              on_host);
}

absl::StatusOr<Work> ThreadedProcessGroup::file(const std::shared_ptr<CollectiveWork>& state, bool on_host) {
  Work work;
  WorkState::first_handle(state, &work);
  if (absl::Status filed = file_begun(state, on_host); !filed.ok()) [[unlikely]]
    return filed;
  return work;
}

absl::Status ThreadedProcessGroup::file_begun(const std::shared_ptr<CollectiveWork>& state, bool on_host) {
  if (on_host) look_for_freed_memory(state->call(), ProcessGroup::rank());
  if (on_host && !open_alone(*front().rank_state(), *state)) {
    absl::Status opened =
        open_beside(*front().rank_state(), *state, ProcessGroup::rank(), [&] { return front().who(state->call()); });
    if (!opened.ok()) [[unlikely]]
      return opened;
  }
  const bool early = op_row(state->call().op).rooted != Rooted::kNo && done_early(state->call(), on_host);
  absl::Status filed = early ? rendezvous_->file_early(state) : rendezvous_->file(state);
  if (!filed.ok()) [[unlikely]]
    refused(*state, filed);
  if (early && only_gives(state->call(), ProcessGroup::rank()) && rendezvous_->ahead(state->call().seq) >= kMostAhead)
    front().scheduler()->end_turn();
  return filed;
}

[[gnu::noinline]] void ThreadedProcessGroup::refused(WorkState& state, const absl::Status& status) {
  state.complete(status);  // so that dropping the handle means nothing
  await_failure();
}

void ThreadedProcessGroup::await_failure() const {
  if (!rendezvous_->failure().ok()) rendezvous_->await_failed(ProcessGroup::rank());
}

bool ThreadedProcessGroup::done_early(const CollectiveCall& call, bool on_host) const {
  using Semantics = GroupOptions::Rooted;
  if (!on_host || call.stream != nullptr || group()->size() == 1 || rendezvous_->elsewhere() != nullptr) return false;
  const bool takes_all = op_row(call.op).rooted == Rooted::kTakes && ProcessGroup::rank() == call.root;
  if (takes_all) return false;
  WorldState& world = front().rank_state()->world();
  const auto scheduled = [&] {
    return world.rooted_each(
        {.what = op_row(call.op).name, .code = call.code, .group = group()->name(), .seq = call.seq});
  };
  if (!rooted_.has_value()) {
    const TensorList& list = common_tensors(call);
    size_t bytes = 0;
    for (const TensorView& tensor : list) bytes += tensor.bytes();
    if (call.op == OpType::kScatter)
      bytes *= static_cast<size_t>(group()->size());  // the root gives every member a part
    if (eager_bytes_ > 0 && bytes <= eager_bytes_) return true;
    return world.poison() && scheduled();
  }
  return *rooted_ == Semantics::kEach || (*rooted_ == Semantics::kBySchedule && scheduled());
}

absl::StatusOr<Work> ThreadedProcessGroup::post(CollectiveCall&& call, bool on_host) {
  const int64_t timeout_ns = GroupFront::nanoseconds(call.timeout);
  if (std::shared_ptr<Message>* const message = kept_messages_ != nullptr ? kept_messages_->holder(call) : nullptr;
      message != nullptr) [[likely]] {
    (*message)->memo()->on_host = on_host;
    (*message)->begin(timeout_ns);
    return call.keep_alive == nullptr ? post(*message, on_host) : post(std::exchange(*message, nullptr), on_host);
  }
  return post(
      std::make_shared<Message>(mailbox(), front().rank_state(), ProcessGroup::rank(), std::move(call), timeout_ns),
      on_host);
}

absl::StatusOr<Work> ThreadedProcessGroup::post(const std::shared_ptr<Message>& message, bool on_host) {
  Work work;
  WorkState::first_handle(message, &work);
  if (absl::Status posted = post_begun(message, on_host); !posted.ok()) [[unlikely]]
    return posted;
  return work;
}

absl::Status ThreadedProcessGroup::post_begun(const std::shared_ptr<Message>& message, bool on_host) {
  if (on_host) look_for_freed_memory(message->call(), ProcessGroup::rank());
  if (on_host && !open_alone(*front().rank_state(), *message)) {
    absl::Status opened =
        open_beside(*front().rank_state(), *message, ProcessGroup::rank(), [&] { return message->who() + ": "; });
    if (!opened.ok()) [[unlikely]]
      return opened;
  }
  absl::Status posted = mailbox_->post(message, eager_bytes_);
  if (!posted.ok()) [[unlikely]]
    refused(*message, posted);
  return posted;
}

absl::StatusOr<Work> ThreadedProcessGroup::execute_parts(CollectiveCall&& call, bool on_host) {
  PartRanges ranges;
  if (on_host) {
    look_for_freed_memory(call, ProcessGroup::rank());
    absl::StatusOr<PartRanges> apart = separate_parts(call, ProcessGroup::rank(), front().who(call));
    if (!apart.ok()) return apart.status();
    ranges = *std::move(apart);
  }
  std::vector<CollectiveCall>& parts = call.parts.mutable_get();
  const auto first_message = std::stable_partition(
      parts.begin(), parts.end(), [](const CollectiveCall& part) { return op_row(part.op).is_collective(); });
  const int64_t timeout_ns = GroupFront::nanoseconds(call.timeout);
  std::vector<std::shared_ptr<Message>> messages;
  for (auto part = first_message; part != parts.end(); ++part) {
    part->way.ready = call.way.ready;
    messages.push_back(
        std::make_shared<Message>(mailbox(), front().rank_state(), ProcessGroup::rank(), std::move(*part), timeout_ns));
  }
  parts.erase(first_message, parts.end());
  auto whole = std::make_shared<CoalescedWork>(front().rank_state(), group(), call, timeout_ns);
  Work work = WorkState::handle(whole);
  if (on_host) {
    absl::Status opened = open_parts(*front().rank_state(), *whole, std::move(ranges), front().who(call));
    if (!opened.ok()) return opened;
  }
  std::shared_ptr<CollectiveWork> collectives;
  if (!call.parts.empty()) {
    collectives = std::make_shared<CollectiveWork>(rendezvous_, front().rank_state(), ProcessGroup::rank(),
                                                   std::move(call), timeout_ns);
  }
  whole->watch(collectives, {messages.begin(), messages.end()});
  const absl::Status filed = collectives != nullptr ? rendezvous_->file(collectives) : absl::OkStatus();
  absl::Status posted = filed;
  bool any_filed = collectives != nullptr && filed.ok();
  for (const std::shared_ptr<Message>& message : messages) {
    if (!posted.ok()) break;
    posted = mailbox_->post(message, eager_bytes_);
    any_filed = any_filed || posted.ok();
  }
  if (posted.ok()) [[likely]]
    return work;
  // One of the parts has failed the group at once, or another member has meanwhile: all parts end with that, as they do
  // where parts are done later.
  const bool has_begun = any_filed && error_kind(posted) == ErrorKind::kAborted;
  const absl::Status failure = has_begun ? rendezvous_->failure() : absl::OkStatus();
  whole->give_up(failure.ok() ? posted : failure, filed.ok());
  if (has_begun) return work;
  await_failure();
  return posted;
}

std::shared_ptr<ProcessGroup> make_threaded_member(RankState& rank, const std::shared_ptr<const Group>& group,
                                                   const GroupOptions& options) {
  return make_threaded_member(rank, group, options, [&] { return make_kept<ThreadedGroupCore>(&rank.world(), group); });
}

std::shared_ptr<ProcessGroup> make_threaded_member(RankState& rank, const std::shared_ptr<const Group>& group,
                                                   const GroupOptions& options, MakeGroupCore make_core) {
  std::shared_ptr<ThreadedGroupCore> core = rank.world().shared<ThreadedGroupCore>(
      core_key(*group),
      [&] {
        std::shared_ptr<ThreadedGroupCore> made = make_core();
        made->listen();
        return made;
      },
      WorldState::Maker::kSame);
  return make_kept<ThreadedProcessGroup>(&rank, std::move(core), options);
}

}  // namespace rankloom::internal

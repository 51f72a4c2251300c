#include "collectives/threaded/mailbox.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/call/poison.h"
#include "collectives/kernels/copy.h"
#include "collectives/ops/mismatch.h"
#include "collectives/ops/op_table.h"
#include "collectives/streams/device_runtime.h"
#include "collectives/threaded/overlap.h"
#include "collectives/work/wait_text.h"
#include "rankloom/error.h"
#include "sim/base/blame.h"
#include "sim/base/dist_error.h"
#include "sim/base/forked_run.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "sim/scheduler/acts_for_fibers.h"
#include "sim/scheduler/scheduler.h"
#include "world/group_access.h"

namespace rankloom::internal {
namespace {

// A report that lists the possible senders of a recv_any is of use in groups up to this size only.
constexpr int kMaxAnySources = 1024;
// A report looks for sends to a wrong member in groups up to this size only: all inboxes for each rank that waits.
constexpr int kMaxStraySearch = 256;
// Channels that no message is in are dropped when there are this many.
constexpr size_t kSweepChannels = 256;
// numbered_object() of the group in explored runs; 1 are its calls (GroupAccess::calls_object()).
constexpr uint64_t kMessages = 2;
constexpr uint64_t kPosted = 2;     // the same of a work; 1 are its callbacks (work_state.cc)
constexpr size_t kMostKept = 4096;  // bytes of copies that a message keeps for the next one

}  // namespace

// Messages in the order in which they were posted, linked through themselves.
struct Mailbox::Queue {
  Message* first = nullptr;
  Message* last = nullptr;

  bool empty() const { return first == nullptr; }
  void push(Message& message) {
    message.before_ = last;
    message.after_ = nullptr;
    (last != nullptr ? last->after_ : first) = &message;
    last = &message;
  }
  void remove(Message& message) {
    (message.before_ != nullptr ? message.before_->after_ : first) = message.after_;
    (message.after_ != nullptr ? message.after_->before_ : last) = message.before_;
  }
};

// The messages from one member to another under one tag. At most one of the queues has something in it.
struct Mailbox::Channel {
  int source = 0;
  int tag = 0;
  int64_t sent = 0;      // sequence number of the last send
  int64_t expected = 0;  // and of the last recv
  Queue sends;
  Queue recvs;

  bool idle() const { return sends.empty() && recvs.empty(); }
};

// The messages that one member is sent, and those that it asked for.
struct Mailbox::Inbox {
  explicit Inbox(const Scheduler* scheduler) : unfinished_of_owner(scheduler), mu(scheduler, LockLevel::kInbox) {}

  Channel& channel(int source, int tag) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (recent != nullptr && recent->source == source && recent->tag == tag) return *recent;
    if (channels.size() >= sweep_at) sweep();
    std::unique_ptr<Channel>& slot = channels[{source, tag}];
    if (slot == nullptr)
      slot = std::make_unique<Channel>(Channel{.source = source, .tag = tag, .sends = {}, .recvs = {}});
    recent = slot.get();
    return *recent;
  }

  // A program that counts its tags up must not fill the memory. Sequence numbers of a tag that comes back begin anew.
  void sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    absl::erase_if(channels, [](const auto& entry) { return entry.second->idle(); });
    sweep_at = std::max(kSweepChannels, 2 * channels.size());
    recent = nullptr;
  }

  // The recv that takes a send: the first one posted of those that can.
  Message* match_for_send(const Channel& from) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    Message* recv = from.recvs.first;
    for (Message* any = recv_anys.first; any != nullptr; any = any->after_) {
      if (any->call_.tag != from.tag) continue;
      return recv == nullptr || any->order_ < recv->order_ ? any : recv;
    }
    return recv;
  }

  // The send that a recv_any takes: the first one of a source that the schedule chooses.
  Message* match_for_any(Scheduler& scheduler, const Message& recv) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    absl::InlinedVector<Message*, 16> heads;
    for (const auto& [key, channel] : channels) {
      if (channel->tag == recv.call_.tag && !channel->sends.empty()) heads.push_back(channel->sends.first);
    }
    if (heads.empty()) return nullptr;
    const int chosen =
        scheduler.choose(ChoiceKind::kAnySource, static_cast<int>(heads.size()), recv.wait_site(recv.call_.code));
    // In rank order: the map has an order of its own, which must not decide.
    const auto nth = heads.begin() + chosen;
    std::nth_element(heads.begin(), nth, heads.end(),
                     [](const Message* a, const Message* b) { return a->group_rank_ < b->group_rank_; });
    return *nth;
  }

  // Numbers a message that arrives; the one that it meets, or null.
  Message* match(Message& mine, Scheduler& scheduler) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    mine.order_ = ++posted;
    if (mine.call_.peer == CollectiveCall::kAnySource) {
      Message* const send = match_for_any(scheduler, mine);
      if (send != nullptr) ++static_cast<Channel*>(send->channel_)->expected;
      return send;
    }
    Channel& from = channel(mine.sender(), mine.call_.tag);
    mine.channel_ = &from;
    if (!mine.sends()) {
      mine.call_.seq = ++from.expected;
      return from.sends.first;
    }
    mine.call_.seq = ++from.sent;
    Message* const recv = match_for_send(from);
    if (recv != nullptr && recv->channel_ == nullptr) ++from.expected;
    return recv;
  }

  // The two move at some later step.
  void pair(const std::shared_ptr<Message>& send, const std::shared_ptr<Message>& recv)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    send->partner_ = recv;
    recv->partner_ = send;
    send->state_ = recv->state_ = Message::State::kMatched;
    link(*recv);
  }

  void link(Message& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { queue_of(message).push(message); }
  void unlink(Message& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { queue_of(message).remove(message); }
  Queue& queue_of(Message& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (message.state_ == Message::State::kMatched) return matched;
    if (message.state_ == Message::State::kAlone) return alone;
    if (message.channel_ == nullptr) return recv_anys;
    Channel& channel = *static_cast<Channel*>(message.channel_);
    return message.sends() ? channel.sends : channel.recvs;
  }

  // All that wait here, oldest first: queues of a hash map in the order of their messages.
  std::vector<Message*> all() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::vector<Message*> messages;
    const auto add = [&messages](const Queue& queue) {
      for (Message* message = queue.first; message != nullptr; message = message->after_) messages.push_back(message);
    };
    for (const auto& [key, channel] : channels) {
      add(channel->sends);
      add(channel->recvs);
    }
    add(recv_anys);
    add(alone);
    for (Message* recv = matched.first; recv != nullptr; recv = recv->after_) {
      messages.push_back(recv);
      messages.push_back(recv->partner_.get());
    }
    std::sort(messages.begin(), messages.end(),
              [](const Message* a, const Message* b) { return a->order_ < b->order_; });
    return messages;
  }

  // Takes out all that wait here, oldest first; `eager`: those sends too that are done for their sender.
  std::vector<std::shared_ptr<Message>> take_all(bool eager) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::vector<std::shared_ptr<Message>> taken;
    for (Message* const message : all()) {
      if (message->is_over() && !eager) continue;
      if (message->state_ == Message::State::kPending || message->state_ == Message::State::kAlone) {
        unlink(*message);
        taken.push_back(std::move(message->self_));
      } else if (message->state_ == Message::State::kMatched) {  // else it went with its partner
        unlink(message->sends() ? *message->partner_ : *message);
        std::shared_ptr<Message> partner = std::move(message->partner_);
        taken.push_back(std::move(partner->partner_));
        partner->state_ = Message::State::kTaken;
        taken.push_back(std::move(partner));
      }
      message->state_ = Message::State::kTaken;
    }
    return taken;
  }

  RankCounter unfinished_of_owner;  // its sends, which are in others' inboxes, and its recvs
  ObservedMutex mu;
  absl::flat_hash_map<std::pair<int, int>, std::unique_ptr<Channel>> channels ABSL_GUARDED_BY(mu);  // [source, tag]
  Channel* recent ABSL_GUARDED_BY(mu) = nullptr;  // most programs use one again and again
  size_t sweep_at ABSL_GUARDED_BY(mu) = kSweepChannels;
  Queue recv_anys ABSL_GUARDED_BY(mu);
  Queue matched ABSL_GUARDED_BY(mu);  // the recvs of pairs in state kMatched
  Queue alone ABSL_GUARDED_BY(mu);    // in state kAlone
  int64_t posted ABSL_GUARDED_BY(mu) = 0;
};

struct Message::Aside {
  bool used = false;         // by the call that the message is now
  std::vector<char> output;  // of a recv: what it held, to be put back if the call fails
  uint64_t sum = 0;          // of a send: the caller must not change it
};

Message::Message(std::shared_ptr<Mailbox> mailbox, RankState* context, int group_rank, CollectiveCall&& call,
                 int64_t timeout_ns)
    : MemberWork(context, std::move(call), timeout_ns), mailbox_(std::move(mailbox)), group_rank_(group_rank) {}

Message::Message(std::shared_ptr<Mailbox> mailbox, RankState* context, int group_rank)
    : MemberWork(context), mailbox_(std::move(mailbox)), group_rank_(group_rank) {}

void Message::begin(int64_t timeout_ns) {
  // Nobody holds it: it is in no queue, has no partner, and is not counted.
  MemberWork::begin(timeout_ns);
  source_.store(-1, std::memory_order_relaxed);
  state_ = State::kNew;
  channel_ = nullptr;
  travels_ = 0;
  if (payload_.capacity() > kMostKept) payload_ = {};
  if (launch_ != nullptr) [[unlikely]]
    launch_ = nullptr;
  if (aside_ == nullptr) [[likely]]
    return;
  if (aside_->output.capacity() > kMostKept) return aside_.reset();
  aside_->used = false;
}

Message::~Message() = default;

const char* Message::op() const { return call_name(call_); }
std::string_view Message::group() const { return mailbox_->group().name(); }
const Group* Message::open_group() const { return &mailbox_->group(); }

// Also for a whole or a wrapper that is done, which is so a moment before this one.
int Message::source() const {
  std::ignore = is_completed();  // a search is told
  return source_.load(std::memory_order_relaxed);
}

Site Message::wait_site(CodeSite code) const {
  return Site{
      .what = op(), .code = code, .group = group(), .seq = seq(), .detail = tag_text_.data(), .waits_for = this};
}

absl::Status Message::wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) {
  return wait_as(timeout, timeout_is_default, code, [&] { return Message::wait_site(code); });
}

void Message::append_ranks(std::vector<int>* ranks) const {
  const Group& group = mailbox_->group();
  if (call_.peer != CollectiveCall::kAnySource) {
    ranks->push_back(group.global_rank(call_.peer));
    return;
  }
  if (group.size() > kMaxAnySources) return;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank != group_rank_) ranks->push_back(group.global_rank(rank));
  }
}

const RanksElsewhere* Message::elsewhere() const { return mailbox_->elsewhere_.get(); }

absl::Status Message::explain() const {
  const absl::Status cause = mailbox_->unwound_cause(*this);
  return cause.ok() ? mailbox_->tag_difference(*this) : cause;
}

std::string Message::hint() const { return mailbox_->stray_sends(*this); }

std::string Message::open_text() const {
  return absl::StrCat(what(/*numbered=*/true), site_place(Site{.code = call_.code}));
}

std::string Message::what(bool numbered) const {
  std::string text = op();
  if (numbered && seq() >= 0) absl::StrAppend(&text, " seq ", seq());
  if (call_.peer >= 0)
    absl::StrAppend(&text, sends() ? " to" : " from", " rank ", mailbox_->group().global_rank(call_.peer));
  if (call_.tag != 0) absl::StrAppend(&text, ", tag ", call_.tag);
  return text;
}

bool Message::take_back(const Withdrawal& why, const absl::Status& ended) {
  return mailbox_->withdraw(*this, why, ended);
}

void Message::set_tag_text() {
  char* text = tag_text_.data();
  if (call_.tag != 0) {
    std::memcpy(text, "tag ", 4);
    text = std::to_chars(text + 4, text + tag_text_.size() - 1, call_.tag).ptr;
  }
  *text = '\0';
}

bool Message::poisoned() const { return aside_ != nullptr && aside_->used; }

void Message::poison() {
  if (aside_ == nullptr) aside_ = std::make_unique<Aside>();
  aside_->used = true;
  aside_->output.clear();
  if (sends()) {
    aside_->sum = checksum(tensor());
    if (StepRecord* const explored = record(); explored != nullptr)
      explored->watch_input(this, rank(), memory_of(tensor()));
    return;
  }
  const char* const bytes = static_cast<const char*>(tensor().data());
  aside_->output.assign(bytes, bytes + tensor().bytes());
  fill_with_poison(tensor());
}

bool Message::unpoison(bool failed) {
  if (StepRecord* const explored = poisoned() ? record() : nullptr; explored != nullptr) explored->forget_inputs(this);
  // An output that holds something else was written, or freed: what it held may not go there.
  if (!failed || !poisoned() || aside_->output.empty() || !holds_poison(tensor())) return false;
  std::memcpy(tensor().data(), aside_->output.data(), aside_->output.size());
  return true;
}

struct Mailbox::UnwoundMessage {
  Unwound by;
  bool sends;
  int rank;  // in the group
  int peer;  // kAnySource of a recv_any
  int tag;

  // Whether `message` is one that waits for such a one.
  bool meets(const Message& message) const {
    if (message.sends() == sends || message.call_.tag != tag || message.is_over()) return false;
    const auto means = [](int who, int whom) { return who == whom || who == CollectiveCall::kAnySource; };
    return means(peer, message.group_rank_) && means(message.call_.peer, rank);
  }
};

Mailbox::Mailbox(WorldState* world, std::shared_ptr<const Group> group, std::shared_ptr<Rendezvous> rendezvous)
    : world_(*world),
      scheduler_(world->scheduler()),
      record_(scheduler_.record()),
      rendezvous_(std::move(rendezvous)),
      group_(std::move(group)),
      elsewhere_(rendezvous_->elsewhere()),
      poison_(world->poison()),
      late_(world->late_completion()),
      mu_(&scheduler_, LockLevel::kMailbox),
      object_(GroupAccess::calls_object(*group_)),
      inboxes_(new std::atomic<Inbox*>[static_cast<size_t>(group_->size())]()) {}

Mailbox::~Mailbox() {
  for (int rank = 0; rank < group_->size(); ++rank) delete existing_inbox(rank);
}

Mailbox::Inbox* Mailbox::existing_inbox(int destination) const {
  return inboxes_[static_cast<size_t>(destination)].load(std::memory_order_acquire);
}

Mailbox::Inbox& Mailbox::inbox_of(int destination) {
  if (Inbox* const inbox = existing_inbox(destination); inbox != nullptr) [[likely]]
    return *inbox;
  ObservedMutexLock lock(&mu_);
  lock.apart();  // the first rank to come makes it
  std::atomic<Inbox*>& slot = inboxes_[static_cast<size_t>(destination)];
  if (slot.load(std::memory_order_relaxed) == nullptr) slot.store(new Inbox(&scheduler_), std::memory_order_release);
  return *slot.load(std::memory_order_relaxed);
}

absl::Status Mailbox::refusal(const Message& message) const {
  ObservedMutexLock lock(&mu_);
  touched_group(Access::kRead);
  // Of an end of the world between the call's scheduling point and here the caller hears as at the point.
  if (scheduler_.aborted() && failure_.message() == scheduler_.abort_cause().message()) return failure_;
  return blamed_as(make_error(ErrorKind::kAborted, message.who(), site_place(Site{.code = message.call_.code}),
                              ": the group failed before: ", failure_.message()),
                   failure_);
}

void Mailbox::note_travel(const std::shared_ptr<Message>& message) {
  if (!message->sends() || elsewhere_->is_here(message->receiver())) return;
  ObservedMutexLock lock(&mu_);
  lock.apart();  // of no explored run
  message->travels_ = ++travelled_;
  travelling_.emplace(message->travels_, message);
}

absl::Status Mailbox::post(const std::shared_ptr<Message>& message, size_t eager_bytes) {
  Message& mine = *message;
  const bool on_host = mine.tensor().device().kind == Device::Kind::kCpu;
  const bool eager = mine.sends() && on_host && eager_bytes > 0 && mine.tensor().bytes() <= eager_bytes;
  mine.eager_ = eager;
  mine.set_tag_text();
  if (any_unwound_.load(std::memory_order_relaxed)) [[unlikely]]
    look_at_unwound(&mine);
  if (poison_ && on_host && !eager) mine.poison();
  Inbox& inbox = inbox_of(mine.receiver());
  std::shared_ptr<Message> other;
  {
    ObservedMutexLock lock(&inbox.mu);
    if (failed_.load(std::memory_order_acquire)) [[unlikely]] {
      lock.apart();  // refusal() tells
      mine.unpoison(/*failed=*/true);
      return refusal(mine);
    }
    Message* const match = inbox.match(mine, scheduler_);
    if (record_ != nullptr) [[unlikely]]
      record_post(mine, match);
    if (match == nullptr) {
      mine.state_ = Message::State::kPending;
      mine.self_ = message;
      inbox.link(mine);
      if (elsewhere_ != nullptr) [[unlikely]]
        note_travel(message);
    } else {
      inbox.unlink(*match);
      other = std::move(match->self_);
      if (late_) {
        mine.sends() ? inbox.pair(message, other) : inbox.pair(other, message);
      } else {
        mine.state_ = other->state_ = Message::State::kTaken;
      }
    }
    if (match == nullptr || late_) eager ? copy_aside(mine) : count(mine);
    if (match == nullptr && mine.travels_ != 0 && elsewhere_->is_here(mine.sender())) [[unlikely]]
      elsewhere_->send(mine.travels_, mine.sender(), mine.call_);
    if (match == nullptr && !eager && !any_unwound_.load(std::memory_order_relaxed)) [[likely]]
      return absl::OkStatus();
  }
  if (other == nullptr) {
    eager ? finish(mine, absl::OkStatus()) : look_at_unwound();
    return absl::OkStatus();
  }
  const bool sends = mine.sends();
  if (!late_) {
    sends ? move(message, other) : move(other, message);
    return absl::OkStatus();
  }
  if (eager) finish(mine, absl::OkStatus());
  // Whichever side comes second makes the task.
  if (record_ != nullptr) StepRecord::name_next_task(numbered_object(mine.object() ^ other->object(), kPosted));
  scheduler_.post({.rank = mine.rank(), .kind = TaskKind::kCompletion}, mine.wait_site(mine.call_.code),
                  [self = shared_from_this(), send = sends ? message : other, recv = sends ? other : message] {
                    if (self->unpair(*send, *recv)) self->move(send, recv);
                  });
  return absl::OkStatus();
}

void Mailbox::arrive(int64_t number, int sender, CollectiveCall&& call, std::string_view bytes) {
  RankState& context = world_.context(group_->global_rank(sender));
  const auto send = std::make_shared<Message>(shared_from_this(), &context, sender, std::move(call), Deadline::kNever);
  send->travels_ = number;
  send->payload_.assign(bytes.begin(), bytes.end());
  const TensorView& input = send->tensor();
  send->call_.inputs = TensorList(TensorView(send->payload_.data(), input.dtype(), Dims(input.sizes())));
  if (const absl::Status posted = post(send, /*eager_bytes=*/0); !posted.ok()) finish(*send, posted);
}

void Mailbox::received(int64_t number, const absl::Status& status) {
  std::shared_ptr<Message> send;
  {
    ObservedMutexLock lock(&mu_);
    lock.apart();  // of no explored run
    const auto at = travelling_.find(number);
    if (at == travelling_.end()) return;
    send = std::move(at->second);
    travelling_.erase(at);
  }
  {
    Inbox& inbox = inbox_of(send->receiver());
    ObservedMutexLock lock(&inbox.mu);
    lock.apart();                                          // the same
    if (send->state_ != Message::State::kPending) return;  // taken back, or the group has failed
    inbox.unlink(*send);
    send->self_.reset();
    send->state_ = Message::State::kTaken;
  }
  Completion completion;
  const auto ended = [&](const absl::Status& as) { finish(*send, send->eager_ ? absl::OkStatus() : as); };
  status.ok() ? ended(status) : void(fail(status, ended));
  completion.end();
}

void Message::await_group_failure() const { mailbox_->rendezvous_->await_failed(group_rank_); }

bool Mailbox::unpair(Message& send, Message& recv) {
  Inbox& inbox = inbox_of(recv.receiver());
  ObservedMutexLock lock(&inbox.mu);
  // A withdrawal might have come first, or come later.
  touched_group(Access::kCommute);
  if (recv.state_ != Message::State::kMatched || recv.partner_.get() != &send) return false;
  inbox.unlink(recv);
  send.partner_.reset();
  recv.partner_.reset();
  send.state_ = recv.state_ = Message::State::kTaken;
  return true;
}

void Mailbox::copy_aside(Message& send) {
  const TensorView& input = send.tensor();
  const char* const bytes = static_cast<const char*>(input.data());
  send.payload_.assign(bytes, bytes + input.bytes());
  send.call_.inputs = TensorList(TensorView(send.payload_.data(), input.dtype(), Dims(input.sizes())));
}

absl::Status Mailbox::agree(const Message& send, const Message& recv) const {
  if (!op_row(OpType::kSend).same(send.call_, recv.call_)) [[unlikely]]
    return describe_difference(send, recv);
  if (send.poisoned() && checksum(send.tensor()) != send.aside_->sum) [[unlikely]]
    return touched_early(world_, send.rank(), send.who(), send.call_.code, Touched::kInput, send.goes_on_alone());
  if (recv.poisoned() && !holds_poison(recv.tensor())) [[unlikely]]
    return touched_early(world_, recv.rank(), recv.who(), recv.call_.code, Touched::kOutput, recv.goes_on_alone());
  return absl::OkStatus();
}

absl::Status Mailbox::describe_difference(const Message& send, const Message& recv) const {
  const std::array<const Message*, 2> messages = {&send, &recv};
  const std::array<const CollectiveCall*, 2> calls = {&send.call_, &recv.call_};
  const auto message = [&messages](int i) { return messages[static_cast<size_t>(i)]; };
  const auto global = [&](int i) { return message(i)->rank(); };
  const auto last_calls = [&](int i) { return message(i)->rank_state_->recorder().last_calls(5, group_.get()); };
  const auto whereabouts = [](int) { return std::string(); };
  return describe_mismatch({.group = group_->name(),
                            .seq = send.seq(),
                            .global_rank = global,
                            .last_calls = last_calls,
                            .whereabouts = whereabouts},
                           MemberCalls(calls));
}

void Mailbox::record_post(Message& mine, Message* match) {
  const auto any = [](const Message& message) { return message.call_.peer == CollectiveCall::kAnySource; };
  // Sends of several members commute, but for a recv_any that could take either.
  const uint64_t messages = numbered_object(GroupAccess::object(*group_), kMessages);
  const uint64_t inbox = numbered_object(numbered_object(messages, static_cast<uint64_t>(mine.receiver())),
                                         static_cast<uint64_t>(mine.call_.tag));
  const bool chooses = any(mine) || (match != nullptr && any(*match));
  record_->access(inbox, chooses ? Access::kWrite : Access::kCommute);
  // Messages of one source are matched in their order, and a rank may have helpers.
  if (!any(mine)) {
    const uint64_t channel = numbered_object(inbox, static_cast<uint64_t>(mine.sender()));
    record_->access(numbered_object(channel, mine.sends() ? 1 : 2), Access::kWrite);
  }
  touched_group(Access::kCommute);
  record_->signal(numbered_object(mine.object(), kPosted));
}

void Mailbox::move(const std::shared_ptr<Message>& send, const std::shared_ptr<Message>& recv) {
  if (record_ != nullptr) {
    record_->await(numbered_object(send->object(), kPosted));
    record_->await(numbered_object(recv->object(), kPosted));
  }
  if (__asan_region_is_poisoned != nullptr) [[unlikely]] {
    for (const Message* const message : {send.get(), recv.get()}) {
      if (message->tensor().device().kind == Device::Kind::kCpu)
        report_freed_memory(message->call(), message->group_rank_);
    }
  }
  absl::Status status = agree(*send, *recv);
  const TensorView& from = send->tensor();
  if (status.ok() && from.device().kind != Device::Kind::kCpu) [[unlikely]] {
    status = start_on_device(send, recv);
    if (status.ok()) return;
  } else if (status.ok()) [[likely]] {
    CopyBatch copy(static_cast<int64_t>(from.bytes()));
    copy.add(recv->tensor().data(), from.data(), from.bytes());
    const LongPart part(scheduler_);
    copy.run();
  }
  end(*send, *recv, status);
}

absl::Status Mailbox::start_on_device(const std::shared_ptr<Message>& send, const std::shared_ptr<Message>& recv) {
  const TensorView& from = send->tensor();
  const TensorView& to = recv->tensor();
  if (from.device() != to.device()) {
    return invalid_argument(recv->who(), ": the tensor is on ", to.device().name(), ", the sender's on ",
                            from.device().name(), ", want one device");
  }
  const auto launch = std::make_shared<DeviceLaunch>();
  {
    Inbox& inbox = inbox_of(recv->receiver());
    ObservedMutexLock lock(&inbox.mu);
    lock.apart();  // a search vouches for nothing that a device does
    send->launch_ = recv->launch_ = launch;
  }
  KernelPlan plan;
  plan.add_copy(to.data(), from.data(), static_cast<int64_t>(from.bytes()));
  std::vector<const DeviceMark*> ready;
  for (const Message* const message : {send.get(), recv.get()}) {
    if (message->call_.way.ready != nullptr) ready.push_back(message->call_.way.ready.get());
  }
  const auto error = [](const Message& recv, const absl::Status& status) {
    return status.ok() ? status : prefixed(status, recv.who(), ": ");
  };
  return error(*recv, DeviceRuntime::of(world_)->launch(
                          launch, recv->rank(), to.device().index, recv->wait_site(recv->call_.code), std::move(plan),
                          ready, [self = shared_from_this(), send, recv, error](const absl::Status& status) {
                            self->end(*send, *recv, error(*recv, status));
                          }));
}

void Mailbox::end(Message& send, Message& recv, const absl::Status& status) {
  recv.source_.store(send.group_rank_, std::memory_order_relaxed);
  if (recv.call_.peer == CollectiveCall::kAnySource)
    recv.rank_state_->recorder().set_peer(recv.call_.way.record_id, send.group_rank_);
  const auto ended = [&](const absl::Status& as) {
    finish(recv, as);
    finish(send, send.eager_ ? absl::OkStatus() : as);
  };
  Completion completion;
  if (!status.ok()) [[unlikely]] {
    fail(status, [&](const absl::Status& as) {
      // With members elsewhere a rank of another process may retrieve the error.
      if (elsewhere_ == nullptr && as == status) world_.not_retrieved(status);
      ended(as);
    });
  } else {
    ended(status);
  }
  completion.end();
}

void Mailbox::count(Message& message) {
  message.counted_ = true;
  inbox_of(message.group_rank_).unfinished_of_owner.add(1);
}

void Mailbox::uncount(Message& message) {
  // An eager send was never counted; its rank and the receiver may both be at its end.
  if (message.eager_) return;
  if (std::exchange(message.counted_, false)) existing_inbox(message.group_rank_)->unfinished_of_owner.add(-1);
}

void Mailbox::finish(Message& message, const absl::Status& status) {
  const bool put_back = message.unpoison(!status.ok());
  if (message.is_over()) return uncount(message);  // an eager send long ago, others by whoever looked after the end
  if (message.travels_ != 0 && !elsewhere_->is_here(message.group_rank_)) [[unlikely]]
    elsewhere_->received(message.group_rank_, message.travels_, status);
  if (record_ != nullptr) record_->settle_memory(message.rank(), put_back);
  message.complete(status);
  uncount(message);
}

Mailbox::TakenOut Mailbox::take_out(Inbox& inbox, Message& message, const Withdrawal& why) {
  TakenOut out;
  ObservedMutexLock lock(&inbox.mu);
  touched_group(Access::kWrite);
  switch (message.state_) {
    case Message::State::kPending:
    case Message::State::kAlone:
      inbox.unlink(message);
      out.self = std::move(message.self_);
      break;
    case Message::State::kMatched:
      out.partner = std::move(message.partner_);
      inbox.unlink(message.sends() ? *out.partner : message);
      out.self = std::move(out.partner->partner_);
      if (why.why == Withdrawal::Why::kFailure) {
        out.partner->state_ = Message::State::kTaken;
      } else {
        out.partner->state_ = Message::State::kAlone;
        inbox.link(*out.partner);
        out.partner->self_ = out.partner;
      }
      break;
    case Message::State::kNew:
      break;
    case Message::State::kTaken:
      out.moves = true;
      return out;
  }
  message.state_ = Message::State::kNew;
  return out;
}

void Mailbox::await_move(Inbox& inbox, const Message& message, bool unwinds) {
  std::shared_ptr<DeviceLaunch> launch;
  const auto look = [&] {
    ObservedMutexLock lock(&inbox.mu);
    lock.apart();  // the move runs beside the explored steps
    launch = message.launch_;
  };
  // No scheduling point: what takes the message back is one step.
  WaitTurns turns;
  for (look(); launch == nullptr && !message.is_over(); look()) turns.next();
  if (launch != nullptr) DeviceRuntime::of(world_)->await_device(launch, unwinds);
}

bool Mailbox::withdraw(Message& message, const Withdrawal& why, const absl::Status& ended) {
  Inbox* const inbox = existing_inbox(message.receiver());
  TakenOut out;
  if (inbox != nullptr) {
    out = take_out(*inbox, message, why);
    if (out.moves) {
      await_move(*inbox, message, why.why == Withdrawal::Why::kUnwinding);
      return false;
    }
  }
  message.unpoison(/*failed=*/true);
  if (why.why != Withdrawal::Why::kFailure) {
    if (why.why == Withdrawal::Why::kUnwinding) remember_unwound(message, why.cause);
    message.complete(ended);
    uncount(message);
    return true;
  }
  Completion completion;
  bool as_told = false;
  const bool first = fail(why.cause, [&](const absl::Status& as) {
    as_told = as == why.cause;
    message.complete(as_told ? ended : as);
    uncount(message);
    if (out.partner != nullptr) finish(*out.partner, as);
  });
  completion.end();
  return first && as_told;
}

void Mailbox::remember_unwound(const Message& message, const absl::Status& cause) {
  // take_out() told an explored run.
  remember(*message.rank_state_, message.group_rank_, message.call_, cause, /*apart=*/true);
}

void Mailbox::lose(RankState& rank, int group_rank, const CollectiveCall& call, const absl::Status& cause) {
  if (failed_.load(std::memory_order_acquire))
    return touched_group(Access::kRead);  // nobody waits for a message any more
  remember(rank, group_rank, call, cause, /*apart=*/false);
}

void Mailbox::remember(RankState& rank, int group_rank, const CollectiveCall& call, const absl::Status& cause,
                       bool apart) {
  {
    ObservedMutexLock lock(&mu_);
    apart ? lock.apart() : touched_group(Access::kWrite);
    unwound_.push_back({.by = {Task::current_serial(), cause},
                        .sends = call.op == OpType::kSend,
                        .rank = group_rank,
                        .peer = call.peer,
                        .tag = call.tag});
    any_unwound_.store(true, std::memory_order_relaxed);
  }
  rank.when_caught([weak = weak_from_this()] {
    if (const std::shared_ptr<Mailbox> self = weak.lock(); self != nullptr) self->look_at_unwound();
  });
}

[[gnu::noinline]] void Mailbox::look_at_unwound(const Message* mine) {
  std::vector<std::string> news;
  std::vector<UnwoundMessage> caught;
  {
    ObservedMutexLock lock(&mu_);
    touched_group(Access::kRead);
    for (UnwoundMessage& message : unwound_) {
      if (message.by.look()) news.emplace_back(message.by.cause.message());
      if (message.by.caught) caught.push_back(message);
    }
  }
  for (std::string& text : news) world_.note(WorldState::NoteKind::kLeftover, std::move(text));
  for (const UnwoundMessage& lost : caught) {
    bool needed = mine != nullptr && lost.by.task == Task::current_serial();
    const auto look = [&](int receiver) {
      Inbox* const inbox = existing_inbox(receiver);
      if (inbox == nullptr) return;
      ObservedMutexLock lock(&inbox->mu);
      touched_group(Access::kRead);
      for (const Message* const message : inbox->all()) needed = needed || lost.meets(*message);
    };
    look(lost.sends ? lost.peer : lost.rank);
    if (needed) return void(fail(lost.by.cause));
  }
}

absl::Status Mailbox::unwound_cause(const Message& message) const {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // for reports
  for (const UnwoundMessage& unwound : unwound_) {
    if (unwound.meets(message)) return unwound.by.cause;
  }
  return absl::OkStatus();
}

void Mailbox::begin_failed(const absl::Status& cause) {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // the post that follows tells
  if (!failure_.ok()) return;
  failure_ = cause;
  failed_.store(true, std::memory_order_release);
}

void Mailbox::set_failed(const absl::Status& cause) {
  ObservedMutexLock lock(&mu_);
  touched_group(Access::kWrite);
  failure_ = cause;
  unwound_.clear();
  ends_with_spread_.swap(travelling_);
  any_unwound_.store(false, std::memory_order_relaxed);
  failed_.store(true, std::memory_order_release);
}

void Mailbox::spread(const absl::Status& cause) {
  Completion completion;
  decltype(ends_with_spread_) travelled;
  {
    ObservedMutexLock lock(&mu_);
    lock.apart();  // told above
    travelled.swap(ends_with_spread_);
  }
  for (auto& [number, message] : travelled) Completion::drop(std::move(message));
  for (int rank = 0; rank < group_->size(); ++rank) {
    Inbox* const inbox = existing_inbox(rank);
    if (inbox == nullptr) continue;
    std::vector<std::shared_ptr<Message>> taken;
    {
      ObservedMutexLock lock(&inbox->mu);
      lock.apart();  // told above
      taken = inbox->take_all(/*eager=*/false);
    }
    for (std::shared_ptr<Message>& message : taken) {
      finish(*message, cause);
      Completion::drop(std::move(message));
    }
  }
  completion.end();
}

std::vector<std::shared_ptr<Message>> Mailbox::unfinished(int rank) const {
  std::vector<std::shared_ptr<Message>> messages;
  // Few members have messages on their way when they leave: not all have to look through all inboxes.
  const Inbox* const own = existing_inbox(rank);
  touched_group(Access::kRead);
  if (own == nullptr || own->unfinished_of_owner.value() == 0) return messages;
  const auto add = [&](int destination) {
    Inbox* const inbox = existing_inbox(destination);
    if (inbox == nullptr) return;
    ObservedMutexLock lock(&inbox->mu);
    lock.apart();  // told above
    for (Message* const message : inbox->all()) {
      if (message->group_rank_ != rank || message->is_over()) continue;
      messages.push_back(message->state_ == Message::State::kMatched ? message->partner_->partner_ : message->self_);
    }
  };
  add(rank);
  for (int destination = 0; destination < group_->size(); ++destination) {
    if (destination != rank) add(destination);
  }
  return messages;
}

void Mailbox::await_moves(int rank) const {
  if (scheduler_.deterministic()) return;  // nobody moves anything beside the calling step
  const Inbox* const own = existing_inbox(rank);
  // Messages that a stream has posted meanwhile are not on the move, and nobody waits for them here.
  WaitTurns turns;
  while (own != nullptr && own->unfinished_of_owner.value() > 0 && unfinished(rank).empty()) turns.next();
}

bool Mailbox::waits_for_ended(const Message& recv, int but) const {
  if (recv.call_.peer != CollectiveCall::kAnySource) return false;
  for (int member = 0; member < group_->size(); ++member) {
    if (member == but || member == recv.group_rank_) continue;
    if (!world_.ended_text(group_->global_rank(member)).empty()) return true;
  }
  return false;
}

absl::Status Mailbox::tag_difference(const Message& message) const {
  Inbox* const inbox = existing_inbox(message.receiver());
  if (inbox == nullptr) return absl::OkStatus();
  ObservedMutexLock lock(&inbox->mu);
  lock.apart();  // for reports
  for (const Message* const other : inbox->all()) {
    if (other->sends() == message.sends() || other->state_ != Message::State::kPending || other->is_over()) continue;
    const Message& send = message.sends() ? message : *other;
    const Message& recv = message.sends() ? *other : message;
    const bool meant = recv.call_.peer == CollectiveCall::kAnySource || recv.call_.peer == send.group_rank_;
    if (!meant || send.call_.tag == recv.call_.tag || waits_for_ended(recv, send.group_rank_)) continue;
    // A rank that waits for something else may make the call that fits next.
    if (other->is_awaited() || !other->rank_state_->world().ended_text(other->rank()).empty())
      return describe_difference(send, recv);
  }
  return absl::OkStatus();
}

std::string Mailbox::stray_sends(const Message& recv) const {
  if (recv.sends() || recv.call_.peer == CollectiveCall::kAnySource || group_->size() > kMaxStraySearch) return "";
  constexpr size_t kShown = 3;
  std::vector<std::string> sends;
  for (int receiver = 0; receiver < group_->size(); ++receiver) {
    Inbox* const inbox = existing_inbox(receiver);
    if (inbox == nullptr) continue;
    ObservedMutexLock lock(&inbox->mu);
    lock.apart();  // for reports
    for (const Message* const other : inbox->all()) {
      const bool unreceived = other->sends() && other->state_ == Message::State::kPending;
      if (unreceived && other->sender() == recv.sender()) sends.push_back(other->open_text());
    }
  }
  if (sends.empty()) return "";
  const size_t more = sends.size() > kShown ? sends.size() - kShown : 0;
  sends.resize(sends.size() - more);
  return absl::StrCat("rank ", recv.rank(), " waits for a send from rank ", group_->global_rank(recv.sender()),
                      " (tag ", recv.call_.tag, "), which has sent instead: ", absl::StrJoin(sends, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "", " (not received)");
}

void Mailbox::close(const absl::Status& cause) {
  // Of a group that failed only eager sends are left, and no call could receive those any more.
  const bool failed_before = failed_.load(std::memory_order_acquire);
  for (int rank = 0; rank < group_->size(); ++rank) {
    Inbox* const inbox = existing_inbox(rank);
    if (inbox == nullptr) continue;
    std::vector<std::shared_ptr<Message>> left;
    {
      ObservedMutexLock lock(&inbox->mu);
      lock.apart();  // nobody uses the group any more, and the fail() below tells
      left = inbox->take_all(/*eager=*/true);
    }
    // In one order, whichever rank's came first: callbacks run in it.
    std::stable_sort(left.begin(), left.end(), [](const auto& a, const auto& b) { return a->rank() < b->rank(); });
    std::vector<std::shared_ptr<Message>> ended = left;
    // Messages that are alike but for their sequence number share a line, under the first.
    for (size_t i = 0; i < left.size() && !failed_before; ++i) {
      if (left[i] == nullptr) continue;
      const std::shared_ptr<Message> first = std::move(left[i]);
      const std::string who = first->who();
      int more = 0;
      for (std::shared_ptr<Message>& other : left) {
        if (other == nullptr || other->who() != who) continue;
        other.reset();
        ++more;
      }
      std::string text = absl::StrCat(who, first->sends() ? ": was never received" : ": was never sent");
      if (more > 0)
        absl::StrAppend(&text, ", nor ", more == 1 ? "was the one" : absl::StrCat("were the ", more), " after it");
      world_.note(WorldState::NoteKind::kLeftover, absl::StrCat(text, site_place(first->wait_site(first->call_.code))));
    }
    Completion completion;
    for (std::shared_ptr<Message>& message : ended) {
      finish(*message, cause);
      Completion::drop(std::move(message));
    }
    completion.end();
  }
  fail(cause);
}

}  // namespace rankloom::internal

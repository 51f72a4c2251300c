#include "collectives/mpi/hosted_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/fixed_array.h"
#include "absl/strings/str_cat.h"
#include "collectives/kernels/kernels.h"
#include "collectives/ops/group_request.h"
#include "collectives/ops/op_table.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

constexpr size_t kAlign = 16;
size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Members whose last calls a Mismatch tells of, of a process.
constexpr size_t kMostDescribed = 64;
// A sum of so many bytes goes from process to process, though all could add up at once: fewer bytes travel so.
constexpr size_t kLargeSum = 4096;

// The tensors whose data a member gives, to whomever.
const TensorList& given(const CollectiveCall& call, int rank) {
  static const TensorList none;
  if (call.op == OpType::kBroadcast) return rank == call.root ? call.outputs : none;
  return call.inputs;
}

void append_given(const CollectiveCall& call, int rank, std::string* out) {
  for (const TensorView& tensor : given(call, rank)) {
    out->resize(aligned(out->size()));
    if (tensor.bytes() > 0) out->append(static_cast<const char*>(tensor.data()), tensor.bytes());
  }
  for (const CollectiveCall& part : call.parts) append_given(part, rank, out);
}

size_t given_bytes(const CollectiveCall& call, int rank) {
  size_t bytes = 0;
  for (const TensorView& tensor : given(call, rank)) bytes += aligned(tensor.bytes());
  for (const CollectiveCall& part : call.parts) bytes += given_bytes(part, rank);
  return bytes;
}

// Memory for the calls of members elsewhere.
class Memory {
 public:
  // Of at least one byte, as the heap aligns it.
  char* room(size_t bytes) {
    rooms_.push_back(std::make_unique<char[]>(std::max<size_t>(bytes, 1)));
    return rooms_.back().get();
  }
  // Gives the tensors of a described call memory: those that its member gave hold its data, from `*at` on.
  void put_into(CollectiveCall* call, int rank, const std::string& data, size_t* at) {
    const bool broadcast = call->op == OpType::kBroadcast;
    if (!broadcast) call->inputs = list_of(call->inputs, data, at);
    if (broadcast && rank == call->root) {
      call->outputs = list_of(call->outputs, data, at);
    } else {
      std::vector<TensorView> outputs;
      for (const TensorView& tensor : call->outputs)
        outputs.emplace_back(room(tensor.bytes()), tensor.dtype(), Dims(tensor.sizes()));
      call->outputs = joined(std::move(outputs));
    }
    for (CollectiveCall& part : call->parts.mutable_get()) put_into(&part, rank, data, at);
  }

 private:
  static TensorList joined(std::vector<TensorView> views) {
    if (views.size() == 1) return views[0];
    return views;
  }
  TensorList list_of(const TensorList& shapes, const std::string& data, size_t* at) {
    std::vector<TensorView> views;
    for (const TensorView& tensor : shapes) {
      *at = aligned(*at);
      char* const bytes = room(tensor.bytes());
      const size_t left = data.size() - std::min(data.size(), *at);
      std::memcpy(bytes, data.data() + std::min(data.size(), *at), std::min(left, tensor.bytes()));
      *at += tensor.bytes();
      views.emplace_back(bytes, tensor.dtype(), Dims(tensor.sizes()));
    }
    return joined(std::move(views));
  }

  std::vector<std::unique_ptr<char[]>> rooms_;
};

}  // namespace

HostedGroup::HostedGroup(HostChannel* channel, std::shared_ptr<const Group> group, std::string key)
    : channel_(*channel), group_(std::move(group)), key_(std::move(key)) {
  std::map<int, size_t> index;
  int last = -1;
  for (int rank = 0; rank < group_->size(); ++rank) {
    const int process = channel_.process_of(group_->global_rank(rank));
    const auto [at, added] = index.try_emplace(process, processes_.size());
    if (added) {
      processes_.push_back(process);
      members_.emplace_back();
    } else if (process != last) {
      in_order_ = false;
    }
    members_[at->second].push_back(rank);
    last = process;
  }
  mine_ = index[channel_.process()];
  for (const int process : processes_) {
    if (process != channel_.process()) others_.push_back(process);
  }
}

bool HostedGroup::is_here(int rank) const { return channel_.is_here(group_->global_rank(rank)); }

size_t HostedGroup::index_of(int process) const {
  return static_cast<size_t>(std::find(processes_.begin(), processes_.end(), process) - processes_.begin());
}

WireWriter HostedGroup::message(Kind kind) const {
  WireWriter out = HostChannel::message(HostChannel::Kind::kGroup);
  out.text(key_).number(kind);
  return out;
}

void HostedGroup::tell_others(WireWriter message) const { channel_.tell(others_, std::move(message)); }

std::shared_ptr<Rendezvous> HostedGroup::rendezvous() const {
  const std::shared_ptr<ThreadedGroupCore> core = core_.lock();
  return core != nullptr ? core->rendezvous() : nullptr;
}

HostedGroup::Meeting& HostedGroup::meeting(int64_t seq) {
  Meeting& meeting = meetings_[seq];
  if (meeting.packets.empty()) meeting.packets.resize(processes_.size());
  return meeting;
}

// ---- collectives

HostedGroup::Sum HostedGroup::sum_of(const CollectiveCall& call) const {
  if (call.op != OpType::kAllReduce && call.op != OpType::kAllReduceCoalesced && call.op != OpType::kReduce)
    return Sum::kNone;
  using Op = ReduceOp::Kind;
  const Op op = call.reduce_op.kind();
  if (op == Op::kAvg || op == Op::kPremulSum) return Sum::kNone;
  bool exact = true;
  size_t bytes = 0;
  for (const TensorView& tensor : call.inputs) {
    bytes += tensor.bytes();
    switch (tensor.dtype()) {
      case DType::kFloat16:
      case DType::kBFloat16:
        if (call.order.accumulate_in_float && op != Op::kMin && op != Op::kMax) return Sum::kNone;
        exact = false;
        break;
      case DType::kFloat32:
      case DType::kFloat64:
      case DType::kComplex64:
      case DType::kComplex128:
        exact = false;
        break;
      default:
        break;
    }
  }
  if (bytes == 0) return Sum::kNone;
  if (exact && (processes_.size() == 2 || bytes < kLargeSum || !in_order_)) return Sum::kExact;
  if (in_order_ && (exact || call.order.kind == ReduceOp::Order::Kind::kRank)) return Sum::kChain;
  return Sum::kNone;
}

std::string HostedGroup::added_up(MemberCalls calls, std::string_view before) const {
  const std::vector<int>& members = members_[mine_];
  const CollectiveCall& first = *calls[static_cast<size_t>(members[0])];
  CollectiveCall in_rank_order;
  in_rank_order.op = first.op;
  in_rank_order.reduce_op = first.reduce_op;
  in_rank_order.order = {.accumulate_in_float = first.order.accumulate_in_float};
  std::string sum;
  size_t at = 0;
  Memory memory;
  for (int i = 0; i < first.inputs.size(); ++i) {
    const TensorView& like = first.inputs[i];
    absl::FixedArray<void*, 64> inputs(members.size() + (before.empty() ? 0 : 1));
    auto next = inputs.begin();
    if (!before.empty()) {
      char* const aligned_before = memory.room(like.bytes());
      std::memcpy(aligned_before, before.data() + at, like.bytes());
      *next++ = aligned_before;
    }
    for (const int rank : members) *next++ = calls[static_cast<size_t>(rank)]->inputs[i].data();
    char* const output = memory.room(like.bytes());
    if (like.numel() > 0) reduce_gathered(in_rank_order, like.dtype(), like.numel(), inputs, output);
    sum.append(output, like.bytes());
    at += like.bytes();
  }
  return sum;
}

void HostedGroup::meet(int64_t seq, MemberCalls calls, bool alike) {
  Meeting& mine = meeting(seq);
  const std::vector<int>& members = members_[mine_];
  const CollectiveCall& first = *calls[static_cast<size_t>(members[0])];
  mine.here = true;
  mine.sum = alike ? sum_of(first) : Sum::kNone;
  if (first.op == OpType::kReduce) mine.root_process = channel_.process_of(group_->global_rank(first.root));
  const bool barrier = first.op == OpType::kBarrier || first.op == OpType::kMonitoredBarrier;
  const bool as_one = alike && (barrier || first.op == OpType::kBroadcast || mine.sum != Sum::kNone);
  WireWriter packet = message(Kind::kCalls);
  packet.number(seq);
  WireWriter body;
  std::string data;
  if (as_one) {
    body.number(Form::kAlike).number(likeness_of(first)).text(described(first));
    if (first.op == OpType::kBroadcast && is_here(first.root))
      append_given(*calls[static_cast<size_t>(first.root)], first.root, &data);
    if (mine.sum == Sum::kExact) data = added_up(calls, "");
  } else {
    // Calls of one likeness are compared by that.
    body.number(Form::kEach).number(alike ? likeness_of(first) : uint64_t{0});
    body.number(static_cast<uint32_t>(members.size()));
    size_t bytes = 0;
    for (const int rank : members) bytes += given_bytes(*calls[static_cast<size_t>(rank)], rank);
    data.reserve(bytes + kAlign * members.size());
    for (const int rank : members) {
      body.text(described(*calls[static_cast<size_t>(rank)]));
      data.resize(aligned(data.size()));
      append_given(*calls[static_cast<size_t>(rank)], rank, &data);
    }
  }
  body.text(data);
  packet.text(body.bytes());
  mine.packets[mine_] = body.take();
  ++mine.came;
  tell_others(std::move(packet));
  advance(seq);
}

namespace {

// The head of a packet.
struct Head {
  bool each = false;
  uint64_t likeness = 0;
};
Head head_of(const std::string& packet) {
  WireReader in(packet);
  Head head;
  head.each = in.number<uint8_t>() == 0;
  head.likeness = in.number<uint64_t>();
  return head;
}

// The data that go with calls that are alike.
std::string data_of(const std::string& packet) {
  WireReader in(packet);
  in.number<uint8_t>();
  in.number<uint64_t>();
  in.text();
  return in.text();
}

}  // namespace

void HostedGroup::advance(int64_t seq) {
  const auto at = meetings_.find(seq);
  if (at == meetings_.end()) return;
  Meeting& meeting = at->second;
  if (!meeting.here) return;
  if (meeting.came < processes_.size()) {
    // The first process of a chain waits for nobody: its sum is nobody's if calls differ.
    if (meeting.sum == Sum::kChain && mine_ == 0) advance_chain(seq, meeting);
    return;
  }
  const Head first = head_of(meeting.packets[0]);
  bool differ = false;
  bool each = false;
  for (const std::string& packet : meeting.packets) {
    const Head head = head_of(packet);
    differ = differ || head.likeness != first.likeness || head.each != first.each || head.likeness == 0;
    each = each || head.each;
  }
  if (differ) {
    if (!meeting.describes) return begin_describing(seq, meeting);
    if (meeting.described < processes_.size()) return;
    return finish_each(seq);
  }
  if (each) return finish_each(seq);
  WireReader in(meeting.packets[mine_]);
  in.number<uint8_t>();
  in.number<uint64_t>();
  const std::unique_ptr<DescribedCall> call = call_described_by(in.text(), *group_);
  if (meeting.sum == Sum::kChain) return advance_chain(seq, meeting);
  std::string data;
  if (call->call.op == OpType::kBroadcast) {
    const int process = channel_.process_of(group_->global_rank(call->call.root));
    data = data_of(meeting.packets[index_of(process)]);
  } else if (meeting.sum == Sum::kExact) {
    std::vector<std::string> sums;
    for (const std::string& packet : meeting.packets) sums.push_back(data_of(packet));
    size_t begin = 0;
    Memory memory;
    CollectiveCall plain;
    plain.op = call->call.op;
    plain.reduce_op = call->call.reduce_op;
    for (const TensorView& like : call->call.inputs) {
      absl::FixedArray<void*, 64> inputs(sums.size());
      for (size_t i = 0; i < sums.size(); ++i) {
        inputs[i] = memory.room(like.bytes());
        std::memcpy(inputs[i], sums[i].data() + begin, like.bytes());
      }
      char* const output = memory.room(like.bytes());
      if (like.numel() > 0) reduce_gathered(plain, like.dtype(), like.numel(), inputs, output);
      data.append(output, like.bytes());
      begin += like.bytes();
    }
  }
  finish_alike(seq, data);
}

// The process that has what those before it have added up adds its own and passes that on; the last one tells all.
void HostedGroup::advance_chain(int64_t seq, Meeting& meeting) {
  const std::shared_ptr<Rendezvous> rendezvous = this->rendezvous();
  if (rendezvous == nullptr) return;
  if (!meeting.added && (mine_ == 0 || !meeting.before.empty())) {
    std::string sum;
    rendezvous->look(seq, [&](MemberCalls calls) { sum = added_up(calls, meeting.before); });
    if (sum.empty()) return;  // a member has taken its call back
    meeting.added = true;
    const bool last = mine_ + 1 == processes_.size();
    if (last) meeting.result = sum;
    WireWriter out = message(Kind::kSum);
    out.number(seq).number(last).text(sum);
    if (!last) {
      channel_.tell(processes_[mine_ + 1], std::move(out));
    } else if (meeting.root_process < 0) {
      tell_others(std::move(out));
    } else if (meeting.root_process != channel_.process()) {
      channel_.tell(meeting.root_process, std::move(out));
    }
  }
  if (meeting.came < processes_.size()) return;
  const bool gets_result = meeting.root_process < 0 || meeting.root_process == channel_.process();
  if (gets_result ? meeting.result.empty() : !meeting.added) return;
  const std::string result = std::move(meeting.result);
  finish_alike(seq, result);
}

void HostedGroup::begin_describing(int64_t seq, Meeting& meeting) {
  meeting.describes = true;
  meeting.last_calls.resize(processes_.size());
  WireWriter out = message(Kind::kLastCalls);
  const size_t members = std::min(members_[mine_].size(), kMostDescribed);
  out.number(seq).number(static_cast<uint32_t>(members));
  for (size_t i = 0; i < members; ++i) {
    const int rank = group_->global_rank(members_[mine_][i]);
    write_texts(channel_.world().context(rank).recorder().last_calls(5, group_.get()), &out);
  }
  ++meeting.described;
  tell_others(std::move(out));
  advance(seq);
}

// Writes the result into the outputs of the members here.
void HostedGroup::finish_alike(int64_t seq, const std::string& data) {
  const std::shared_ptr<Rendezvous> rendezvous = this->rendezvous();
  meetings_.erase(seq);
  arrived_.erase(seq);
  if (rendezvous == nullptr) return;
  rendezvous->met(seq, [&](std::vector<const CollectiveCall*>& calls) {
    for (const int rank : members_[mine_]) {
      const CollectiveCall& call = *calls[static_cast<size_t>(rank)];
      if (!writes_outputs(call, rank)) continue;
      size_t at = 0;
      for (const TensorView& output : call.outputs) {
        if (output.bytes() > 0) std::memcpy(output.data(), data.data() + at, output.bytes());
        at += output.bytes();
      }
    }
    return false;
  });
}

// Makes the calls of the members elsewhere anew, so that comparison and kernel have those of all.
void HostedGroup::finish_each(int64_t seq) {
  const std::shared_ptr<Rendezvous> rendezvous = this->rendezvous();
  if (rendezvous == nullptr) {
    meetings_.erase(seq);
    return;
  }
  const Meeting& meeting = this->meeting(seq);
  std::vector<std::unique_ptr<DescribedCall>> made;
  Memory memory;
  rendezvous->met(seq, [&](std::vector<const CollectiveCall*>& calls) {
    GroupRequest* const request = calls[static_cast<size_t>(members_[mine_][0])]->way.request;
    for (size_t process = 0; process < processes_.size(); ++process) {
      if (process == mine_) continue;
      WireReader in(meeting.packets[process]);
      const bool each = in.number<uint8_t>() == 0;
      in.number<uint64_t>();
      const auto described = each ? in.number<uint32_t>() : 1;
      std::vector<std::string> texts;
      for (uint32_t i = 0; i < described; ++i) texts.push_back(in.text());
      const std::string data = in.text();
      size_t at = 0;
      for (size_t i = 0; i < members_[process].size(); ++i) {
        const int rank = members_[process][i];
        made.push_back(call_described_by(texts[std::min(i, texts.size() - 1)], *group_));
        CollectiveCall& call = made.back()->call;
        call.code.file = kept_text(made.back()->file);
        at = aligned(at);
        // Calls of processes that differ are compared only: what came with one description is that of none.
        static const std::string none;
        memory.put_into(&call, rank, each ? data : none, &at);
        if (call.way.request != nullptr && request != nullptr) {
          GroupRequest& own = *call.way.request;
          GroupRequest whole = *request;
          whole.kind = own.kind;
          whole.color = own.color;
          whole.key = own.key;
          whole.ranks = own.ranks;
          whole.made.clear();
          own = std::move(whole);
        }
        calls[static_cast<size_t>(rank)] = &call;
      }
    }
    return true;
  });
  meetings_.erase(seq);
  arrived_.erase(seq);
}

void HostedGroup::ran(MemberCalls calls) {
  for (const int rank : members_[mine_]) {
    const GroupRequest* const request = calls[static_cast<size_t>(rank)]->way.request;
    if (request == nullptr) return;
    for (const std::shared_ptr<const Group>& group : request->made)
      channel_.name_group(group, absl::StrCat(key_, "/", request->number, "/", group->name()));
  }
}

// ---- reports

bool HostedGroup::has_come(int64_t seq, int rank) const {
  if (const auto at = arrived_.find(seq); at != arrived_.end() && at->second.contains(rank)) return true;
  const auto at = meetings_.find(seq);
  if (at == meetings_.end()) return false;
  return !at->second.packets[index_of(channel_.process_of(group_->global_rank(rank)))].empty();
}

std::vector<std::string> HostedGroup::last_calls(int64_t seq, int rank) const {
  const auto at = meetings_.find(seq);
  if (at == meetings_.end() || at->second.last_calls.empty()) return {};
  const size_t process = index_of(channel_.process_of(group_->global_rank(rank)));
  const std::vector<int>& members = members_[process];
  const size_t i = static_cast<size_t>(std::lower_bound(members.begin(), members.end(), rank) - members.begin());
  const auto& told = at->second.last_calls[process];
  return i < told.size() ? told[i] : std::vector<std::string>();
}

void HostedGroup::write_arrived(WireWriter* out) const {
  const std::shared_ptr<Rendezvous> rendezvous = this->rendezvous();
  const std::vector<Rendezvous::Arrived> all =
      rendezvous != nullptr ? rendezvous->arrived() : std::vector<Rendezvous::Arrived>();
  out->number(static_cast<uint32_t>(all.size()));
  for (const Rendezvous::Arrived& call : all) {
    out->number(call.seq).number(static_cast<uint32_t>(call.ranks.size()));
    for (const int rank : call.ranks) out->number(rank);
  }
}

void HostedGroup::read_arrived(WireReader* in) {
  for (auto left = in->number<uint32_t>(); left > 0 && in->ok(); --left) {
    std::set<int>& ranks = arrived_[in->number<int64_t>()];
    for (auto members = in->number<uint32_t>(); members > 0 && in->ok(); --members) ranks.insert(in->number<int>());
  }
}

// ---- messages

void HostedGroup::send(int64_t number, int sender, const CollectiveCall& call) {
  WireWriter out = message(Kind::kSend);
  out.number(number).number(sender).number(call.way.message_seq).text(described(call));
  std::string data;
  append_given(call, sender, &data);
  out.text(data);
  channel_.tell(channel_.process_of(group_->global_rank(call.peer)), std::move(out));
}

void HostedGroup::received(int sender, int64_t number, const absl::Status& status) {
  WireWriter out = message(Kind::kReceived);
  out.number(number);
  write_status(status, &out);
  channel_.tell(channel_.process_of(group_->global_rank(sender)), std::move(out));
}

void HostedGroup::failed(const absl::Status& cause) {
  if (std::exchange(told_failure_, true) || channel_.world().scheduler().aborted()) return;
  if (channel_.world().scheduler().closed()) return;
  WireWriter out = message(Kind::kFailed);
  write_status(cause, &out);
  tell_others(std::move(out));
}

void HostedGroup::hear(int from, const std::string& bytes, size_t at) {
  WireReader in(std::string_view(bytes).substr(at));
  const auto kind = in.number<Kind>();
  const std::shared_ptr<ThreadedGroupCore> core = core_.lock();
  if (core == nullptr) return;  // all members here have left
  switch (kind) {
    case Kind::kCalls: {
      const auto seq = in.number<int64_t>();
      Meeting& its = meeting(seq);
      its.packets[index_of(from)] = in.text();
      ++its.came;
      return advance(seq);
    }
    case Kind::kSum: {
      const auto seq = in.number<int64_t>();
      Meeting& its = meeting(seq);
      const bool is_result = in.number<bool>();
      (is_result ? its.result : its.before) = in.text();
      return advance(seq);
    }
    case Kind::kLastCalls: {
      const auto seq = in.number<int64_t>();
      Meeting& its = meeting(seq);
      its.last_calls.resize(processes_.size());
      auto& of_process = its.last_calls[index_of(from)];
      for (auto left = in.number<uint32_t>(); left > 0 && in.ok(); --left) of_process.push_back(read_texts(&in));
      ++its.described;
      return advance(seq);
    }
    case Kind::kSend: {
      const auto number = in.number<int64_t>();
      const auto sender = in.number<int>();
      const auto message_seq = in.number<int64_t>();
      const std::unique_ptr<DescribedCall> made = call_described_by(in.text(), *group_);
      CollectiveCall call = std::move(made->call);
      call.code.file = kept_text(made->file);
      call.way.message_seq = message_seq;
      return core->mailbox()->arrive(number, sender, std::move(call), in.text());
    }
    case Kind::kReceived: {
      const auto number = in.number<int64_t>();
      return core->mailbox()->received(number, read_status(&in));
    }
    case Kind::kFailed:
      told_failure_ = true;
      return core->fail(read_status(&in));
  }
}

}  // namespace rankloom::internal

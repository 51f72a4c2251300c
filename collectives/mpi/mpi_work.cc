#include "collectives/mpi/mpi_work.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/mpi/mpi_engine.h"
#include "collectives/mpi/mpi_member.h"
#include "collectives/ops/op_table.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/text.h"

namespace rankloom::internal {
MpiWork::MpiWork(std::shared_ptr<MpiMember> member, RankState* context, CollectiveCall&& call, int64_t timeout_ns)
    : MemberWork(context, std::move(call), timeout_ns), member_(std::move(member)) {}

MpiWork::~MpiWork() = default;

const char* MpiWork::op() const { return op_row(call_.op).name; }
std::string_view MpiWork::group() const { return member_->group()->name(); }
const Group* MpiWork::open_group() const { return member_->group().get(); }

Site MpiWork::wait_site(CodeSite code) const {
  return Site{.what = op(), .code = code, .group = group(), .seq = seq(), .detail = call_.label, .waits_for = this};
}

absl::Status MpiWork::wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) {
  const absl::Duration given = timeout_is_default ? call_.timeout : timeout;
  constexpr int64_t kLimit = MpiEngine::kDriveNs;
  const int64_t limit = given < absl::Nanoseconds(kLimit) ? absl::ToInt64Nanoseconds(given) : kLimit;
  if (!is_over() && !world_ref().ended()) member_->engine().drive([this] { return is_over(); }, limit);
  return MemberWork::wait(timeout, timeout_is_default, code);
}

bool MpiWork::take_back_one(const Withdrawal& why, const absl::Status& ended, absl::FunctionRef<bool()> take) {
  MpiEngine& engine = member_->engine();
  const bool taken = engine.locked([&] {
    if (is_over()) return false;
    const bool took = take();
    if (why.why == Withdrawal::Why::kFailure) member_->fail(why.cause, /*told=*/false);
    return took;
  });
  if (taken) {
    complete(ended);
    return true;
  }
  // MPI has the rank's memory, and all members have come.
  while (!is_over()) engine.drive([this] { return is_over(); }, MpiEngine::kDriveNs);
  return false;
}

namespace {

// Global ranks.
std::vector<int> others_of(const MpiMember& member) {
  std::vector<int> others;
  for (int r = 0; r < member.size(); ++r) {
    if (r != member.rank()) others.push_back(member.global_rank(r));
  }
  return others;
}

}  // namespace

void MpiCollective::append_ranks(std::vector<int>* ranks) const {
  const std::vector<int> gone = member_->engine().ended_of(others_of(*member_));
  ranks->insert(ranks->end(), gone.begin(), gone.end());
}

std::vector<int> MpiCollective::awaited_ranks() const {
  std::vector<int> ranks;
  const int64_t number = member_->engine().locked([this] { return member_->call_number(*this); });
  for (const auto& [rank, position] : member_->engine().ask(member_->key(), others_of(*member_))) {
    if (!position.answered || position.calls < number) ranks.push_back(rank);
  }
  return ranks;
}

std::string MpiCollective::what(bool /*numbered*/) const { return absl::StrCat(op(), " seq ", call_.seq); }

bool MpiCollective::take_back(const Withdrawal& why, const absl::Status& ended) {
  return take_back_one(why, ended, [this] { return member_->take_back(*this); });
}

const char* MpiMessage::op() const {
  return call_.op == OpType::kSend ? "send" : call_.peer == CollectiveCall::kAnySource ? "recv_any" : "recv";
}

void MpiMessage::came_from(int source) {
  source_.store(source, std::memory_order_release);
  if (call_.peer == CollectiveCall::kAnySource) rank_state_->recorder().set_peer(call_.way.record_id, source);
}

void MpiMessage::append_ranks(std::vector<int>* ranks) const {
  if (call_.peer >= 0) return ranks->push_back(member_->global_rank(call_.peer));
  const std::vector<int> others = others_of(*member_);
  ranks->insert(ranks->end(), others.begin(), others.end());
  std::sort(ranks->begin(), ranks->end());
}

std::string MpiMessage::what(bool numbered) const {
  const std::string number = numbered && seq() >= 0 ? absl::StrCat(" seq ", seq()) : "";
  const std::string tag = call_.tag != 0 ? absl::StrCat(", tag ", call_.tag) : "";
  if (call_.peer < 0) return absl::StrCat(op(), number, tag);
  return absl::StrCat(op(), number, sends() ? " to" : " from", " rank ", member_->group()->global_rank(call_.peer),
                      tag);
}

bool MpiMessage::take_back(const Withdrawal& why, const absl::Status& ended) {
  return take_back_one(why, ended, [this] { return member_->take_back(*this); });
}

void MpiCoalesced::watch(std::shared_ptr<MpiCollective> collectives,
                         std::vector<std::shared_ptr<MpiMessage>> messages) {
  collectives_ = std::move(collectives);
  messages_ = std::move(messages);
  left_.store(messages_.size() + (collectives_ != nullptr ? 1 : 0), std::memory_order_relaxed);
  const auto self = std::static_pointer_cast<MpiCoalesced>(shared_from_this());
  const auto tell_of = [this, &self](WorkState& part) {
    part.when_done(tell(std::weak_ptr<MpiCoalesced>(self), &MpiCoalesced::part_done));
    if (keeps_alive_) part.when_done(held_by_part(self));
  };
  if (collectives_ != nullptr) tell_of(*collectives_);
  for (const std::shared_ptr<MpiMessage>& message : messages_) tell_of(*message);
}

void MpiCoalesced::part_done(const absl::Status& status) {
  absl::Status ended;
  {
    OrderedMutexLock lock(&mu_);
    if (first_.ok()) first_ = status;
    if (left_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    ended = first_;
  }
  complete(ended);
}

void MpiCoalesced::ending(bool ok) {
  if (collectives_ == nullptr) MemberWork::ending(ok);
}

void MpiCoalesced::append_ranks(std::vector<int>* ranks) const {
  if (collectives_ != nullptr && !collectives_->is_over()) collectives_->append_ranks(ranks);
  append_of_messages(ranks);
}

std::vector<int> MpiCoalesced::awaited_ranks() const {
  std::vector<int> ranks;
  if (collectives_ != nullptr && !collectives_->is_over()) ranks = collectives_->awaited_ranks();
  append_of_messages(&ranks);
  return ranks;
}

void MpiCoalesced::append_of_messages(std::vector<int>* ranks) const {
  for (const std::shared_ptr<MpiMessage>& message : messages_) {
    if (!message->is_over()) message->append_ranks(ranks);
  }
  std::sort(ranks->begin(), ranks->end());
  ranks->erase(std::unique(ranks->begin(), ranks->end()), ranks->end());
}

std::vector<TensorView> MpiCoalesced::result() {
  std::vector<TensorView> tensors;
  if (collectives_ != nullptr) {
    for (const CollectiveCall& part : collectives_->call().parts)
      tensors.insert(tensors.end(), part.outputs.begin(), part.outputs.end());
  }
  for (const std::shared_ptr<MpiMessage>& message : messages_) {
    for (const TensorView& tensor : message->result()) tensors.push_back(tensor);
  }
  return tensors;
}

std::string MpiCoalesced::what(bool /*numbered*/) const {
  return call_.seq >= 0 ? absl::StrCat("coalesced seq ", call_.seq) : "coalesced";
}

namespace {

absl::Status status_of_part(const Withdrawal& why) {
  return why.why == Withdrawal::Why::kFailure ? why.cause : make_error(ErrorKind::kAborted, "the call was withdrawn");
}

}  // namespace

bool MpiCoalesced::take_back(const Withdrawal& why, const absl::Status& /*ended*/) {
  const auto take = [&](MpiWork& part) { return !part.is_over() && part.withdraw(why, status_of_part(why)); };
  bool any = collectives_ != nullptr && take(*collectives_);
  for (const std::shared_ptr<MpiMessage>& message : messages_) any = take(*message) || any;
  return any;
}

void MpiCoalesced::give_up(const absl::Status& status) { (void)take_back(Withdrawal::failure(status), status); }

}  // namespace rankloom::internal

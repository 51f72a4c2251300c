#include "collectives/threaded/coalesced_work.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {
namespace {

// numbered_object() of the work in explored runs; 1 are its callbacks (work_state.cc).
constexpr uint64_t kParts = 2;

// The call as far as waits go: the parts have all else.
CollectiveCall call_of_waits(const CollectiveCall& call) {
  CollectiveCall own;
  own.op = call.op;
  own.seq = call.seq;
  own.timeout = call.timeout;
  own.timeout_is_default = call.timeout_is_default;
  own.warn_after = call.warn_after;
  own.code = call.code;
  own.way.record_id = call.way.record_id;
  return own;
}

}  // namespace

CoalescedWork::CoalescedWork(RankState* context, std::shared_ptr<Rendezvous> rendezvous,
                             std::shared_ptr<Mailbox> mailbox, const CollectiveCall& call, int64_t timeout_ns)
    : MemberWork(context, call_of_waits(call), timeout_ns),
      rendezvous_(std::move(rendezvous)),
      mailbox_(std::move(mailbox)),
      mu_(&context->world().scheduler(), LockLevel::kCoalescedWork) {
  keeps_alive_ = call.keep_alive != nullptr;  // by its parts
}

CoalescedWork::~CoalescedWork() = default;

void CoalescedWork::ending(bool ok) {
  // The flight record of collectives ends with them.
  if (collectives_ == nullptr) MemberWork::ending(ok);
}

void CoalescedWork::watch(std::shared_ptr<CollectiveWork> collectives, std::vector<std::shared_ptr<Message>> messages) {
  collectives_ = std::move(collectives);
  messages_ = std::move(messages);
  left_.store(messages_.size() + (collectives_ != nullptr ? 1 : 0), std::memory_order_relaxed);
  // Parts that own their tensors outlive a handle that was dropped.
  const auto tell_of = [this](WorkState& part) {
    part.when_done(tell(weak_from_this(), &CoalescedWork::part_done));
    if (keeps_alive_) part.when_done(held_by_part(shared_from_this()));
  };
  if (collectives_ != nullptr) tell_of(*collectives_);
  for (const std::shared_ptr<Message>& message : messages_) tell_of(*message);
}

void CoalescedWork::part_done(const absl::Status& status) {
  absl::Status ended;
  {
    ObservedMutexLock lock(&mu_);
    // The first error counts: parts that end well may end in any order.
    if (StepRecord* const record = object() != 0 ? this->record() : nullptr; record != nullptr)
      record->access(numbered_object(object(), kParts), status.ok() ? Access::kCommute : Access::kWrite);
    if (first_.ok()) first_ = status;
    if (left_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    ended = first_;
  }
  complete(ended);
}

void CoalescedWork::give_up(const absl::Status& status, bool filed) {
  const auto why = Withdrawal::failure(status);
  if (collectives_ != nullptr && !collectives_->is_over() && (!filed || rendezvous_->withdraw(*collectives_, why))) {
    collectives_->complete(status);
  }
  for (const std::shared_ptr<Message>& message : messages_) {
    if (!message->is_over() && mailbox_->withdraw(*message, why)) message->complete(status);
  }
}

std::string_view CoalescedWork::group() const { return rendezvous_->group().name(); }

std::string CoalescedWork::what(bool /*numbered*/) const {
  return seq() >= 0 ? absl::StrCat("coalesced seq ", seq()) : "coalesced";
}

Site CoalescedWork::wait_site(CodeSite code) const {
  return Site{.what = op(), .code = code, .group = group(), .seq = seq(), .waits_for = this};
}

const RanksElsewhere* CoalescedWork::elsewhere() const { return rendezvous_->elsewhere().get(); }

void CoalescedWork::append_ranks(std::vector<int>* ranks) const {
  if (collectives_ != nullptr && !collectives_->is_over()) collectives_->append_ranks(ranks);
  for (const std::shared_ptr<Message>& message : messages_) {
    if (!message->is_over()) message->append_ranks(ranks);
  }
  std::sort(ranks->begin(), ranks->end());
  ranks->erase(std::unique(ranks->begin(), ranks->end()), ranks->end());
}

absl::Status CoalescedWork::explain() const {
  absl::Status cause = collectives_ != nullptr && !collectives_->is_over() ? collectives_->explain() : absl::OkStatus();
  for (const std::shared_ptr<Message>& message : messages_) {
    if (cause.ok() && !message->is_over()) cause = message->explain();
  }
  return cause;
}

std::vector<TensorView> CoalescedWork::result() {
  std::vector<TensorView> tensors;
  if (collectives_ != nullptr) {
    for (const CollectiveCall& part : collectives_->call().parts)
      tensors.insert(tensors.end(), part.outputs.begin(), part.outputs.end());
  }
  for (const std::shared_ptr<Message>& message : messages_) {
    for (const TensorView& tensor : message->result()) tensors.push_back(tensor);
  }
  return tensors;
}

bool CoalescedWork::take_back(const Withdrawal& why, const absl::Status& /*ended*/) {
  const absl::Status ended =
      why.why == Withdrawal::Why::kFailure ? why.cause : make_error(ErrorKind::kAborted, "the call was withdrawn");
  bool any = false;
  if (collectives_ != nullptr && !collectives_->is_over() && rendezvous_->withdraw(*collectives_, why)) {
    any = true;
    collectives_->complete(ended);
  }
  for (const std::shared_ptr<Message>& message : messages_) {
    if (message->is_over() || !mailbox_->withdraw(*message, why)) continue;
    any = true;
    message->complete(ended);
  }
  return any;
}

}  // namespace rankloom::internal

#include "collectives/work/coalesced_work.h"

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

// The call as far as waits and the owners of tensors go, which leave `call`: the parts have all else.
CollectiveCall call_of_whole(CollectiveCall& call) {
  CollectiveCall own;
  own.op = call.op;
  own.seq = call.seq;
  own.timeout = call.timeout;
  own.timeout_is_default = call.timeout_is_default;
  own.warn_after = call.warn_after;
  own.code = call.code;
  own.keep_alive = std::exchange(call.keep_alive, nullptr);
  own.owned_in_part = call.owned_in_part;
  own.way.record_id = call.way.record_id;
  return own;
}

void sort_once(std::vector<int>* ranks) {
  std::sort(ranks->begin(), ranks->end());
  ranks->erase(std::unique(ranks->begin(), ranks->end()), ranks->end());
}

}  // namespace

CoalescedWork::CoalescedWork(RankState* context, std::shared_ptr<const Group> group, CollectiveCall& call,
                             int64_t timeout_ns)
    : MemberWork(context, call_of_whole(call), timeout_ns),
      group_(std::move(group)),
      mu_(&context->world().scheduler(), LockLevel::kCoalescedWork) {}

CoalescedWork::~CoalescedWork() = default;

void CoalescedWork::ending(bool ok) {
  // The flight record of collectives ends with them.
  if (collectives_ == nullptr) MemberWork::ending(ok);
}

bool CoalescedWork::ends_with(absl::FunctionRef<bool(const WorkState&)> ended) const {
  return is_over() || ((collectives_ == nullptr || ended(*collectives_)) &&
                       std::all_of(messages_.begin(), messages_.end(), [&](const auto& part) { return ended(*part); }));
}

void CoalescedWork::watch(std::shared_ptr<MemberWork> collectives, std::vector<std::shared_ptr<MemberWork>> messages) {
  collectives_ = std::move(collectives);
  messages_ = std::move(messages);
  left_.store(messages_.size() + (collectives_ != nullptr ? 1 : 0), std::memory_order_relaxed);
  // The owners are this work's, so that a search sees who lets go of them: their destructors may act. If the last
  // handle goes before the parts are done, these keep this work.
  const auto tell_of = [this](WorkState& part) {
    part.when_done(tell(weak_from_this(), &CoalescedWork::part_done));
    if (keeps_alive_) part.when_done(keep(shared_from_this()));
  };
  if (collectives_ != nullptr) tell_of(*collectives_);
  for (const std::shared_ptr<MemberWork>& message : messages_) tell_of(*message);
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
  if (collectives_ != nullptr && !filed) collectives_->complete(status);
  (void)take_back(Withdrawal::failure(status), status);
}

std::string CoalescedWork::what(bool /*numbered*/) const {
  return seq() >= 0 ? absl::StrCat("coalesced seq ", seq()) : "coalesced";
}

Site CoalescedWork::wait_site(CodeSite code) const {
  return Site{.what = op(), .code = code, .group = group(), .seq = seq(), .waits_for = this};
}

void CoalescedWork::await_group_failure() const {
  const MemberWork* const part = collectives_ != nullptr ? collectives_.get()
                                 : messages_.empty()     ? nullptr
                                                         : messages_[0].get();
  if (part != nullptr) part->await_group_failure();
}

const RanksElsewhere* CoalescedWork::elsewhere() const {
  return (collectives_ != nullptr ? collectives_ : messages_.front())->elsewhere();
}

// A warning lists those that are not.
void CoalescedWork::look_at_parts() const {
  if (StepRecord* const record = object() != 0 ? this->record() : nullptr; record != nullptr)
    record->access(numbered_object(object(), kParts), Access::kRead);
}

void CoalescedWork::append_ranks(std::vector<int>* ranks) const {
  look_at_parts();
  if (collectives_ != nullptr && !collectives_->is_over()) collectives_->append_ranks(ranks);
  for (const std::shared_ptr<MemberWork>& message : messages_) {
    if (!message->is_over()) message->append_ranks(ranks);
  }
  sort_once(ranks);
}

std::vector<int> CoalescedWork::awaited_ranks() const {
  look_at_parts();
  std::vector<int> ranks;
  if (collectives_ != nullptr && !collectives_->is_over()) ranks = collectives_->awaited_ranks();
  for (const std::shared_ptr<MemberWork>& message : messages_) {
    if (!message->is_over()) message->append_ranks(&ranks);
  }
  sort_once(&ranks);
  return ranks;
}

absl::Status CoalescedWork::explain() const {
  absl::Status cause = collectives_ != nullptr && !collectives_->is_over() ? collectives_->explain() : absl::OkStatus();
  for (const std::shared_ptr<MemberWork>& message : messages_) {
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
  for (const std::shared_ptr<MemberWork>& message : messages_) {
    for (const TensorView& tensor : message->result()) tensors.push_back(tensor);
  }
  return tensors;
}

bool CoalescedWork::take_back(const Withdrawal& why, const absl::Status& /*ended*/) {
  const absl::Status ended =
      why.why != Withdrawal::Why::kUnwinding ? why.cause : make_error(ErrorKind::kAborted, "the call was withdrawn");
  const auto take = [&](MemberWork& part) { return !part.is_over() && part.take_back(why, ended); };
  bool any = collectives_ != nullptr && take(*collectives_);
  for (const std::shared_ptr<MemberWork>& message : messages_) any = take(*message) || any;
  return any;
}

}  // namespace rankloom::internal

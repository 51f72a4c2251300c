#include "collectives/group/coalescing.h"

#include "collectives/ops/op_table.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/scheduler/scheduler.h"
#include "world/world_state.h"

namespace rankloom::internal {

absl::Status PartWork::wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) {
  if (is_completed()) {
    seen_done();
    return status();
  }
  if (absl::Status s = waitable(); !s.ok()) return s;
  // A part that was never issued may have been ended by another thread since.
  const std::shared_ptr<WorkState> whole = this->whole();
  if (whole == nullptr) return status();
  absl::Status waited = whole->wait(timeout, timeout_is_default, code);
  if (!is_over()) completed_with_whole();
  return waited;
}

absl::Status PartWork::waitable() const {
  if ((came_.load(std::memory_order_acquire) & kIssued) != 0 || is_over()) return absl::OkStatus();
  return invalid_argument("rank ", rank(), ", group ", group_, ", ", op(),
                          ": wait() before end_coalescing(): the call was not issued yet");
}

void PartWork::await_whole() const {
  if (const std::shared_ptr<WorkState> whole = this->whole(); whole != nullptr) await_end_of(*whole);
}

void PartWork::issued(Work whole) {
  whole_ = std::move(whole);
  state_of_whole_ = WorkState::shared(whole_);
  if (state_of_whole_ != nullptr) learned_with(*state_of_whole_);
  touched(Access::kCommute);  // the wait() of another rank may have come before
  if ((came_.fetch_or(kIssued, std::memory_order_acq_rel) & kDropped) != 0) let_go_of_whole();
}

void PartWork::dropped() noexcept {
  if ((came_.fetch_or(kDropped, std::memory_order_acq_rel) & kIssued) != 0) let_go_of_whole();
}

void PartWork::let_go_of_whole() {
  const Work whole = std::move(whole_);
  WorkState* const state = WorkState::of(whole);
  if (state == nullptr || waiting_callbacks() == 0) return;
  state->when_done(keep(shared_from_this(), &WorkState::complete_with_another));
}

int PartWork::source() const {
  const std::shared_ptr<WorkState> whole = message_ >= 0 && is_completed() ? this->whole() : nullptr;
  return whole != nullptr ? whole->source_of_message(static_cast<size_t>(message_)) : -1;
}

const char* PartWork::op() const { return op_row(op_).name; }

}  // namespace rankloom::internal

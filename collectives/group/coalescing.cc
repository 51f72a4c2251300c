#include "collectives/group/coalescing.h"

#include "collectives/ops/op_table.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "world/world_state.h"

namespace rankloom::internal {

absl::Status PartWork::wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) {
  if (is_completed()) return status();
  if (absl::Status s = waitable(); !s.ok()) return s;
  return WorkState::of(whole_)->wait(timeout, timeout_is_default, code);
}

absl::Status PartWork::waitable() const {
  if ((stage_.load(std::memory_order_acquire) & kIssued) != 0 || is_over()) return absl::OkStatus();
  return invalid_argument("rank ", rank(), ", group ", group_, ", ", op(),
                          ": wait() before end_coalescing(): the call was not issued yet");
}

void PartWork::issued(Work whole) {
  whole_ = std::move(whole);
  if (WorkState* const state = WorkState::of(whole_); state != nullptr) learned_with(*state);
  if ((stage_.fetch_or(kIssued, std::memory_order_acq_rel) & kGone) != 0) let_go_of_whole();
}

void PartWork::dropped() noexcept {
  if ((stage_.fetch_or(kGone, std::memory_order_acq_rel) & kIssued) != 0) let_go_of_whole();
}

void PartWork::let_go_of_whole() noexcept {
  const Work whole = std::move(whole_);
  WorkState* const state = WorkState::of(whole);
  if (state == nullptr || waiting_callbacks() == 0) return;
  struct Kept final : Dependant {
    explicit Kept(std::shared_ptr<PartWork> part) : part(std::move(part)) {}
    void ended(const absl::Status& status) override {
      part->complete(status);
      Completion::drop(std::move(part));
    }
    std::shared_ptr<PartWork> part;
  };
  state->when_done(std::make_unique<Kept>(shared_from_this()));
}

const char* PartWork::op() const { return op_row(op_).name; }

}  // namespace rankloom::internal

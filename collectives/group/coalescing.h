#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/work/completion.h"
#include "collectives/work/work_state.h"
#include "rankloom/collective_call.h"

namespace rankloom::internal {

// The work of one call of many. The work is done when the whole is. The whole does not hold a part that nobody waits
// for; a part holds the whole while somebody holds the part.
class PartWork final : public WorkState, public std::enable_shared_from_this<PartWork> {
 public:
  // `message`: the number of a send or recv among those of the block, from 0; -1: the call is a collective.
  PartWork(Scheduler* scheduler, int rank, std::string group, const CollectiveCall& call, int message)
      : WorkState(scheduler, rank),
        group_(std::move(group)),
        op_(call.op),
        message_(message),
        outputs_(call.outputs.begin(), call.outputs.end()) {
    holds_owners(true);  // by the whole
    ends_with_whole();
  }

  absl::Status wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) override;
  absl::Status waitable() const override;
  std::vector<TensorView> result() override { return outputs_; }
  int source() const override;
  const char* op() const override;
  std::string_view group() const override { return group_; }

  // By the part's rank, so that wait() needs no lock. Handles may go meanwhile on other threads.
  void issued(Work whole);
  void dropped() noexcept override;
  // Null before issued(), and if the calls were done when they were issued, or never were.
  std::shared_ptr<WorkState> whole() const override {
    return (came_.load(std::memory_order_acquire) & kIssued) != 0 ? state_of_whole_ : nullptr;
  }
  void await_group_failure() const override {
    if (const std::shared_ptr<WorkState> whole = this->whole(); whole != nullptr) whole->await_group_failure();
  }

 protected:
  void await_whole() const override;
  // The completing thread may keep this work a little longer.
  void release_owners() noexcept override { whole_ = Work(); }

 private:
  enum Came : unsigned { kIssued = 1, kDropped = 2 };

  // Issued and dropped: the callbacks that wait for the part are kept by the whole, and not the other way.
  void let_go_of_whole();

  const std::string group_;
  const OpType op_;
  const int message_;
  const std::vector<TensorView> outputs_;
  // Whichever of issued() and dropped() comes second lets go of the whole. Until then issued() alone touches `whole_`.
  std::atomic<unsigned> came_{0};
  Work whole_;
  // Without a handle on the whole: streams ask on their threads while the rank lets go of the last one. Const from
  // issued() on.
  std::shared_ptr<WorkState> state_of_whole_;
};

// The calls of a member since start_coalescing().
struct Coalescing {
  CodeSite begun;  // the line of start_coalescing()
  std::vector<CollectiveCall> calls;
  std::vector<std::shared_ptr<PartWork>> parts;  // their works
  std::vector<std::shared_ptr<const void>> keep_alive;
  bool owned_in_part = false;             // calls with tensors have none of these
  std::optional<absl::Duration> timeout;  // the shortest of the calls'
  bool collectives = false;
  int messages = 0;
};

}  // namespace rankloom::internal

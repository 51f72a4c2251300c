#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "collectives/work/work_state.h"
#include "rankloom/work.h"

namespace rankloom::internal {

// A thing that a stream holds for its rank, and gives up when the rank is through with the stream.
class HeldByStream {
 public:
  virtual ~HeldByStream() = default;
  // Nobody writes into the rank's memory for it afterwards. Destructors come here. A scheduling point where the last
  // handle of an unfinished call goes, as everywhere: a wait for this is at one, too.
  virtual void give_up() noexcept = 0;
};

// A work that a stream waits for. Its handle keeps the call.
class HeldWork final : public HeldByStream {
 public:
  explicit HeldWork(Work work) : state_(WorkState::shared(work)), work_(std::move(work)) {}
  const std::shared_ptr<WorkState>& state() const { return state_; }
  void give_up() noexcept override {
    if (held_.exchange(false)) work_ = Work();
  }

 private:
  const std::shared_ptr<WorkState> state_;
  std::atomic<bool> held_{true};
  Work work_;  // belongs to the thread that clears held_
};

}  // namespace rankloom::internal

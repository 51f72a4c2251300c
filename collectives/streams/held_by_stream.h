#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/streams/wanted_stream.h"
#include "collectives/work/work_state.h"
#include "rankloom/work.h"

namespace rankloom::internal {

class CallOnStream;

// A thing that a stream holds for its rank, and gives up when the rank is through with the stream.
class HeldByStream {
 public:
  virtual ~HeldByStream() = default;
  // Nobody writes into the rank's memory for it afterwards. Destructors come here. A scheduling point where the last
  // handle of an unfinished call goes, as everywhere: a wait for this is at one, too.
  virtual void give_up() noexcept = 0;
  // The end of a wait for the call that `timeout` has cut short: the call is withdrawn, with a Timeout, unless it has
  // ended meanwhile. How it ended. For a task of the rank.
  virtual absl::Status time_out(absl::Duration timeout, CodeSite code) = 0;
};

// A work that a stream waits for. Its handle keeps the call. That of a call on a stream would be taken for one of the
// program's, which keep the stream: then this one wants that stream.
class HeldWork final : public HeldByStream {
 public:
  explicit HeldWork(Work work) : state_(WorkState::shared(work)), work_(std::move(work)) {}
  // `by`: the stream that waits.
  HeldWork(Work work, const std::shared_ptr<WantedStream>& by);
  ~HeldWork() override { HeldWork::give_up(); }
  HeldWork(const HeldWork&) = delete;
  HeldWork& operator=(const HeldWork&) = delete;
  const std::shared_ptr<WorkState>& state() const { return state_; }
  void give_up() noexcept override;
  absl::Status time_out(absl::Duration timeout, CodeSite code) override {
    return state_ != nullptr ? state_->time_out(timeout, code) : absl::OkStatus();
  }

 private:
  const std::shared_ptr<WorkState> state_;
  std::atomic<bool> held_{true};
  // These belong to the thread that clears held_.
  Work work_;
  CallOnStream* call_ = nullptr;  // of state_, or of the whole that state_ is a part of
  std::shared_ptr<WorkState> whole_;
  std::shared_ptr<const void> stream_;
};

}  // namespace rankloom::internal

#pragma once

#include <memory>
#include <string>

#include "collectives/work/stream.h"

namespace rankloom {

class RankContext;

// A stream without a device. What is queued runs as a task of its own, of the rank that made the stream, under the same
// scheduler: under a seeded schedule the stream may be as far ahead of its rank or behind it as the order allows, so an
// ordering that was forgotten shows under some seed.
// Scheduling points: every method but status() and name(), and the start of everything that is queued.
class SimStream final : public Stream {
 public:
  explicit SimStream(RankContext& rank, std::string_view name = "stream");
  ~SimStream() override;
  SimStream(const SimStream&) = delete;
  SimStream& operator=(const SimStream&) = delete;

  // Queues `kernel`, which runs once all before it has ended. It may wait. What it throws marks the stream failed. In a world
  // that was aborted it does not run any more.
  void launch(absl::AnyInvocable<void()> kernel, std::string_view what = "kernel", CodeSite code = CodeSite::here());

  std::string_view name() const override;
  void wait_for(std::shared_ptr<WorkState> work, absl::Duration timeout = absl::InfiniteDuration(),
                CodeSite code = CodeSite::here()) override;
  Event record(CodeSite code = CodeSite::here()) override;
  void wait_event(const Event& event, CodeSite code = CodeSite::here()) override;
  void synchronize(CodeSite code = CodeSite::here()) override;
  bool query(CodeSite code = CodeSite::here()) override;
  absl::Status status() const override;
  absl::StatusOr<Work> issue(ProcessGroup& group, CollectiveCall&& call) override;

 private:
  struct Queue;
  const std::shared_ptr<Queue> queue_;  // shared with the task that empties it
};

}  // namespace rankloom

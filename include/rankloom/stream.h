#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rankloom/collective_call.h"
#include "rankloom/error.h"

namespace rankloom {

class ProcessGroup;
class Work;

namespace internal {

// The state behind an Event: one kind for each kind of stream.
class EventState {
 public:
  virtual ~EventState() = default;
  virtual bool done(CodeSite code) = 0;
  virtual absl::Status wait(CodeSite code) = 0;
};

}  // namespace internal

// A queue of work that runs in order, beside the rank that fills it: a CUDA stream, or a simulated one. Each entry
// starts when all before it have ended; streams know nothing of each other but what wait_event() and wait_for() say.
//
// Failure: a wait that times out, is aborted or whose work failed releases the stream, so that what follows runs, and
// marks the stream failed for good: status() says why, synchronize() throws it.
// Lifetime: a stream may go while work is queued; kernels, marks and waits still run.
// Thread-safety: a stream is filled by its rank and that rank's helpers.
class Stream {
 public:
  // A mark in a stream, made by Stream::record(). Cheap to copy; outlives its stream. A default one is done.
  // Thread-safety: all methods.
  class Event {
   public:
    Event() = default;
    explicit Event(std::shared_ptr<internal::EventState> state) : state_(std::move(state)) {}

    // Whether the stream has passed the mark. Never waits.
    bool query(CodeSite code = CodeSite::here()) const { return state_ == nullptr || state_->done(code); }
    // Blocks the calling rank until then. Throws what ended the world, if it was aborted meanwhile.
    void synchronize(CodeSite code = CodeSite::here()) const;

    const std::shared_ptr<internal::EventState>& state() const { return state_; }

   private:
    std::shared_ptr<internal::EventState> state_;
  };

  virtual ~Stream() = default;

  virtual std::string_view name() const = 0;

  // Entries that are queued later start only when `work` is done. Does not block the caller. The stream holds what it
  // needs for that, so the caller's handles may go. `timeout` counts from when the stream gets there.
  // Errors: InvalidArgument for a negative timeout.
  virtual void wait_for(const Work& work, absl::Duration timeout = absl::InfiniteDuration(),
                        CodeSite code = CodeSite::here()) = 0;

  // A mark behind all that is queued now.
  virtual Event record(CodeSite code = CodeSite::here()) = 0;
  // Entries that are queued later start only when the mark, of this or another stream of the same kind, was passed.
  virtual void wait_event(const Event& event, CodeSite code = CodeSite::here()) = 0;

  // Blocks the calling rank until all that is queued has ended. Throws status() if it is an error.
  virtual void synchronize(CodeSite code = CodeSite::here()) = 0;
  // Whether all that was queued has ended. Never waits.
  virtual bool query(CodeSite code = CodeSite::here()) = 0;
  // The first failure, OK if there was none.
  virtual absl::Status status() const = 0;

  // Queues a call, checked and numbered, that CallOptions::stream put here. Its Work is done when the call is; wait()
  // of it without a timeout returns at once, since what is queued later is behind it anyway. Called by ProcessGroup.
  virtual absl::StatusOr<Work> issue(ProcessGroup& group, CollectiveCall&& call) = 0;
};

class RankContext;

// A stream without a device. Its queue runs as a task of its own, of the rank that made the stream, under the same
// scheduler: under a seeded schedule the stream may be as far ahead of its rank or behind it as the order allows, so an
// ordering that was forgotten shows under some seed.
// Lifetime: the calls on it, and those it waits for, are kept by the stream, its events and the works of calls on it,
// and by streams that wait for it as long as these are kept. When the last of these goes, what is unfinished is
// withdrawn as a dropped Work is, but for calls with CallOptions::keep_alive; at once, and kernels that have not begun
// are left out, while an exception unwinds the rank.
// Scheduling points: every method but name(), and the start of everything that is queued.
class SimStream final : public Stream {
 public:
  explicit SimStream(RankContext& rank, std::string_view name = "stream");
  ~SimStream() override;
  SimStream(const SimStream&) = delete;
  SimStream& operator=(const SimStream&) = delete;

  // Queues `kernel`, which runs once all before it has ended, and may wait. Its exception marks the stream failed. In a
  // world that was aborted it does not run any more.
  void launch(internal::Callback<void()> kernel, std::string_view what = "kernel", CodeSite code = CodeSite::here());

  std::string_view name() const override;
  void wait_for(const Work& work, absl::Duration timeout = absl::InfiniteDuration(),
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

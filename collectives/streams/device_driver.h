#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/kernels/plan.h"
#include "sim/base/lock_order.h"

namespace rankloom::internal {

// All that rankloom asks of a kind of device: CUDA's runtime, or a test's. Handles are the device's own, opaque here.
// Errors: CollectiveError with the device's words.
// Blocking: a device may make a caller that asks for something new (an event, a word, a lane) wait for streams that are
// blocked, and meanwhile everybody else who calls it. So no lock of a pool is held in a call of the device, fill()
// makes in advance as many as most worlds take, and the functions that give back call no device, so that a thread that
// lets streams go on may call them.
// Thread-safety: all methods.
class DeviceDriver {
 public:
  using StreamHandle = void*;
  using EventHandle = void*;

  // The word that a stream can wait for: host memory that the device sees. In a cache line of its own.
  struct alignas(64) ControlWord {
    std::atomic<uint32_t> released = 0;  // 1: the stream that waits goes on
    std::atomic<uint32_t> gave_up = 0;   // 1: the stream went on without it, since its limit had passed
  };

  // A stream of rankloom's own, for one plan at a time.
  class Lane {
   public:
    virtual ~Lane() = default;
    // Work that comes later in the lane starts when the event was passed.
    virtual absl::Status wait_event(EventHandle event) = 0;
    virtual absl::Status run(KernelPlan& plan) = 0;
    // Calls `function(argument)` on a thread of the device's, which must not call into it, after all before it.
    virtual absl::Status call_host(void (*function)(void*), void* argument) = 0;
    // An error if the device failed, so that call_host() may never be answered.
    virtual absl::Status health() = 0;
  };

  DeviceDriver();
  virtual ~DeviceDriver();
  DeviceDriver(const DeviceDriver&) = delete;
  DeviceDriver& operator=(const DeviceDriver&) = delete;

  // Whether all that is in the stream has ended.
  virtual absl::StatusOr<bool> idle(StreamHandle stream) = 0;
  virtual absl::Status record(EventHandle event, StreamHandle stream) = 0;
  // True for an event that was never recorded.
  virtual absl::StatusOr<bool> passed(EventHandle event) = 0;
  virtual absl::Status wait_event(StreamHandle stream, EventHandle event) = 0;
  // Work that comes later in the stream starts when word->released is 1. `limit`: where the device itself polls, it
  // gives up after this; infinite: never.
  virtual absl::Status wait_word(StreamHandle stream, ControlWord* word, absl::Duration limit) = 0;

  // Events and words are used again and again. A word is given back when nobody will write to it any more, and used
  // again when `behind`, which the taker records behind the wait, was passed.
  struct Wait {
    ControlWord* word = nullptr;
    EventHandle behind = nullptr;
  };
  absl::StatusOr<Wait> take_wait(int device);
  void give_wait(int device, const Wait& wait);
  absl::StatusOr<EventHandle> take_event(int device);
  void give_event(int device, EventHandle event);
  // Null: as many are in use as there may be, kLanes of a device. `ready`: for work that the device can do at once.
  // Half of the lanes are for such work, so that one comes back in any case.
  absl::StatusOr<std::shared_ptr<Lane>> take_lane(int device, bool ready);
  // Null: of one that failed, and is not to be used again. `ready` as it was taken.
  void give_lane(int device, std::shared_ptr<Lane> lane, bool ready);

  // So many of each are there before a stream is blocked: fill() makes them.
  static constexpr int kLanes = 16;
  static constexpr int kEvents = 512;
  absl::Status fill(int device);

 protected:
  virtual absl::StatusOr<std::shared_ptr<Lane>> make_lane(int device) = 0;
  virtual absl::StatusOr<EventHandle> make_event(int device) = 0;
  // At least one; they are never freed while a stream could look at them.
  virtual absl::StatusOr<std::vector<ControlWord*>> make_words(int device) = 0;

 private:
  struct Pool {
    std::vector<EventHandle> events;
    std::vector<ControlWord*> words;
    std::deque<Wait> given;  // back, oldest first
    std::vector<std::shared_ptr<Lane>> lanes;
    int lanes_made = 0;     // and not lost
    int lanes_waiting = 0;  // taken for work that is not ready
  };
  absl::StatusOr<ControlWord*> take_word(int device);
  Pool& pool(int device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  OrderedMutex mu_{LockLevel::kDevicePools};
  std::vector<std::unique_ptr<Pool>> pools_ ABSL_GUARDED_BY(mu_);  // [device]
};

}  // namespace rankloom::internal

#pragma once

// A device without a device: streams that one thread works off, on memory of this process, in its own time.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/cuda/plan_tables.h"
#include "collectives/streams/device_driver.h"
#include "collectives/streams/device_stream.h"
#include "rankloom/error.h"
#include "rankloom/random.h"
#include "sim/base/parker.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

class FakeDriver final : public DeviceDriver {
 public:
  // One step of a stream; returns whether it is over.
  using Step = std::function<bool()>;

  explicit FakeDriver(uint64_t seed = 1) : prng_(seed), thread_([this] { work(); }) {}
  // As CUDA's devices may be: all lanes share one queue of the hardware, in which what is behind waits for what is
  // before; whoever asks for something new waits for streams that are blocked, and all other callers for that one.
  // Fills the pools first.
  void become_strict() {
    words_at_once_ = kEvents;
    if (!fill(/*device=*/0).ok()) std::abort();
    shared_lane_ = make_stream();
    strict_ = true;
  }
  ~FakeDriver() override {
    {
      const std::lock_guard lock(mu_);
      stop_ = true;
    }
    thread_.join();
  }

  StreamHandle make_stream() {
    const std::lock_guard lock(mu_);
    streams_.push_back(std::make_unique<Queue>());
    return streams_.back().get();
  }
  void enqueue(StreamHandle stream, Step step) {
    const std::lock_guard device_lock(device_mu_);
    const std::lock_guard lock(mu_);
    static_cast<Queue*>(stream)->steps.push_back(std::move(step));
  }
  // From now on a plan takes as long, in real time.
  void slow_down(absl::Duration plan) { plan_ns_ = absl::ToInt64Nanoseconds(plan); }
  int plans_run() const { return plans_run_; }
  // Of one plan, at most. CUDA needs one more if the tables do not fit into the launches' parameters.
  int most_launches() const { return most_launches_; }
  // The next `n` launches of plans fail.
  void fail_runs(int n) { failing_runs_ = n; }
  // From now on streams that wait for a work go on as if their time were up.
  void give_up_waits() { gives_up_ = true; }
  // From now on the device answers nothing any more and says so.
  void break_down() { broken_ = true; }
  int words_made() const { return words_made_; }

  absl::StatusOr<bool> idle(StreamHandle stream) override {
    if (broken_) return broken();
    const std::lock_guard device_lock(device_mu_);
    const std::lock_guard lock(mu_);
    return static_cast<Queue*>(stream)->steps.empty();
  }
  absl::Status record(EventHandle event, StreamHandle stream) override {
    const auto recording = std::make_shared<std::atomic<bool>>(false);
    {
      const std::lock_guard lock(mu_);
      *static_cast<Mark*>(event) = recording;
    }
    enqueue(stream, [recording] {
      *recording = true;
      return true;
    });
    return absl::OkStatus();
  }
  absl::StatusOr<bool> passed(EventHandle event) override {
    if (broken_) return broken();
    const std::lock_guard device_lock(device_mu_);
    return last_recording(event)->load();
  }
  absl::Status wait_event(StreamHandle stream, EventHandle event) override {
    enqueue(stream, [recording = last_recording(event)] { return recording->load(); });
    return absl::OkStatus();
  }
  absl::Status wait_word(StreamHandle stream, ControlWord* word, absl::Duration /*limit*/) override {
    ++blocked_streams_;
    enqueue(stream, [this, word] {
      if (gives_up_) word->gave_up.store(1);
      if (!gives_up_ && word->released.load() != 1) return false;
      --blocked_streams_;
      return true;
    });
    return absl::OkStatus();
  }

 protected:
  absl::StatusOr<std::shared_ptr<Lane>> make_lane(int /*device*/) override {
    const std::lock_guard device_lock(device_mu_);
    wait_for_blocked();
    return std::make_shared<FakeLane>(this, make_stream());
  }
  absl::StatusOr<EventHandle> make_event(int /*device*/) override {
    const std::lock_guard device_lock(device_mu_);
    wait_for_blocked();
    const std::lock_guard lock(mu_);
    marks_.push_back(std::make_unique<Mark>(std::make_shared<std::atomic<bool>>(true)));
    return marks_.back().get();
  }
  absl::StatusOr<std::vector<ControlWord*>> make_words(int /*device*/) override {
    const std::lock_guard device_lock(device_mu_);
    wait_for_blocked();
    const std::lock_guard lock(mu_);
    std::vector<ControlWord*> made;
    for (int i = 0; i < words_at_once_; ++i) {
      ++words_made_;
      words_.push_back(std::make_unique<ControlWord>());
      made.push_back(words_.back().get());
    }
    return made;
  }

 private:
  // With the device's lock. A new one of the same kind as a hundred before it would not wait; which one does is CUDA's.
  void wait_for_blocked() {
    while (strict_ && blocked_streams_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  static absl::Status broken() { return make_error(ErrorKind::kCollectiveError, "fake device: broken"); }

  struct Queue {
    std::deque<Step> steps;
  };
  // Whether the device passed the last recording. Each recording has a flag of its own, since an event is given back
  // and recorded again, in another stream maybe, before the device passes the first; waits are for the recording they
  // saw.
  using Mark = std::shared_ptr<std::atomic<bool>>;
  Mark last_recording(EventHandle event) {
    const std::lock_guard lock(mu_);
    return *static_cast<Mark*>(event);
  }

  class FakeLane final : public Lane {
   public:
    FakeLane(FakeDriver* driver, StreamHandle stream) : driver_(*driver), own_(stream) {}
    absl::Status wait_event(EventHandle event) override { return driver_.wait_event(stream(), event); }
    absl::Status run(KernelPlan& plan) override {
      if (driver_.failing_runs_ > 0) {
        --driver_.failing_runs_;
        return make_error(ErrorKind::kCollectiveError, "fake device: launch failed");
      }
      cuda::Tables tables = cuda::make_tables(plan);
      if (const auto launches = static_cast<int>(tables.batches.size()); launches > driver_.most_launches_)
        driver_.most_launches_ = launches;
      const auto begun_ns = std::make_shared<int64_t>(0);  // steps are copied
      driver_.enqueue(stream(), [driver = &driver_, begun_ns, tables = std::move(tables)] {
        const int64_t now = monotonic_ns();
        if (*begun_ns == 0) *begun_ns = now;
        if (now < *begun_ns + driver->plan_ns_) return false;
        cuda::run_tables(tables);
        ++driver->plans_run_;
        return true;
      });
      return absl::OkStatus();
    }
    absl::Status call_host(void (*function)(void*), void* argument) override {
      driver_.enqueue(stream(), [function, argument] {
        function(argument);
        return true;
      });
      return absl::OkStatus();
    }
    absl::Status health() override { return driver_.broken_ ? broken() : absl::OkStatus(); }

   private:
    StreamHandle stream() const { return driver_.shared_lane_ != nullptr ? driver_.shared_lane_ : own_; }

    FakeDriver& driver_;
    const StreamHandle own_;
  };

  // One step at a time, of a stream that the seed chooses.
  void work() {
    for (;;) {
      Queue* chosen = nullptr;
      Step step;
      bool queued = false;
      {
        const std::lock_guard lock(mu_);
        if (stop_) return;
        const size_t first = streams_.empty() ? 0 : prng_.below(streams_.size());
        for (size_t i = 0; i < streams_.size() && chosen == nullptr && !broken_; ++i) {
          Queue* const queue = streams_[(first + i) % streams_.size()].get();
          if (queue->steps.empty() || blocked_.contains(queue)) continue;
          chosen = queue;
          step = queue->steps.front();
        }
        queued = chosen != nullptr;
      }
      if (!queued) {
        blocked_.clear();
        std::this_thread::sleep_for(std::chrono::microseconds(20));
        continue;
      }
      if (!step()) {
        blocked_.insert(chosen);
        continue;
      }
      step = nullptr;
      Step over;
      const std::lock_guard lock(mu_);
      over.swap(chosen->steps.front());
      chosen->steps.pop_front();
      blocked_.clear();
    }
  }

  std::mutex device_mu_;  // before mu_: what callers of the device take
  bool strict_ = false;
  int words_at_once_ = 1;
  StreamHandle shared_lane_ = nullptr;  // null: each lane has a queue
  std::atomic<int> blocked_streams_ = 0;
  std::mutex mu_;
  std::vector<std::unique_ptr<Queue>> streams_;
  std::vector<std::unique_ptr<Mark>> marks_;
  std::vector<std::unique_ptr<ControlWord>> words_;
  bool stop_ = false;
  std::atomic<int64_t> plan_ns_ = 0;
  std::atomic<int> plans_run_ = 0;
  std::atomic<int> most_launches_ = 0;
  std::atomic<int> failing_runs_ = 0;
  std::atomic<bool> broken_ = false;
  std::atomic<bool> gives_up_ = false;
  std::atomic<int> words_made_ = 0;
  std::set<Queue*> blocked_;  // the thread's own
  Prng prng_;
  std::thread thread_;  // last
};

// A stream of it.
class FakeDeviceStream final : public DeviceStream {
 public:
  FakeDeviceStream(RankContext& rank, FakeDriver& driver, std::string_view name = "stream")
      : DeviceStream(state_of(rank), /*device=*/0, driver.make_stream(), name), driver_(driver) {}

  // Queues `kernel`.
  void launch(std::function<void()> kernel) {
    driver_.enqueue(handle(), [kernel = std::move(kernel)] {
      kernel();
      return true;
    });
  }

 private:
  FakeDriver& driver_;
};

// Memory of the process under the name of device 0.
template <typename T>
TensorView on_device(std::vector<T>& values) {
  return TensorView(values.data(), DTypeOf<T>::value, {static_cast<int64_t>(values.size())},
                    Device{Device::Kind::kCuda, 0});
}

}  // namespace rankloom

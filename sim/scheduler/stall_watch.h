#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "sim/base/lock_order.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {

// A task that stands still, and for how long at least: WorldOptions::stall or stall_is_fatal.
struct Stalled {
  Outstanding who;
  int64_t time_ns = 0;
};

// Has the process's watchdog look after a scheduler: a task that comes to no scheduling point for `stall` of real time
// is told to `on_stall` (both of the options; unset: stderr), once until it moves; one that comes to none for
// `stall_is_fatal` ends the process. The watchdog is one thread, asleep between looks and for good while nothing is
// watched; tasks pay nothing for it.
// Thread-safety: begin() from any thread.
class StallWatch {
 public:
  explicit StallWatch(Scheduler* scheduler);
  // When it returns, nobody looks at the scheduler any more, and on_stall has returned.
  ~StallWatch() { end(); }
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

  // Looks once, at `now_ns`: the texts of tasks that have stood still for too long. For the watchdog and tests.
  std::vector<std::string> look(int64_t now_ns);

  // The tasks that stood still at the last look, that for which the process is to end first; empty: none is fatal.
  const std::vector<Stalled>& fatal() const { return fatal_; }

  // Ends the run if the last look found it stuck. Listeners run: with no lock held.
  void end_if_stuck();

  // For how long a task that is outstanding has stood still, at monotonic `now_ns`; 0: it was not seen to. From any
  // thread.
  int64_t stood_ns(const Outstanding& who, int64_t now_ns) const;

  // Has the watchdog tell this at its next look. From any thread.
  void tell(std::string text);

  // The watchdog looks from the first call on. Called with no lock held.
  void begin() {
    if (!begun_.load(std::memory_order_relaxed)) begin_once();
  }
  // The same, and the watchdog looks as often as if somebody were to be told after `ns`, also where nobody ever is.
  void begin(int64_t ns) {
    if (ns < look_ns_.load(std::memory_order_relaxed)) return begin_sooner(ns);
    begin();
  }

  // The watchdog looks no more, nor does it tell any more. Not to be called by what it tells.
  void end();

 private:
  friend class Watchdog;
  void begin_once();
  void begin_sooner(int64_t ns);
  struct Seen {
    uint64_t steps = 0;
    int64_t since_ns = 0;
    int64_t stood_ns = 0;  // of that time, what this process had for itself
    bool told = false;
    uint64_t look = 0;  // the last one that saw it
  };
  // The time between looks.
  int64_t period_ns() const { return std::max<int64_t>(look_ns_.load(std::memory_order_relaxed) / 4, 1'000'000); }

  Scheduler& scheduler_;
  const int64_t stall_ns_;
  const int64_t fatal_ns_;  // Deadline::kNever: no stall is fatal
  // After which somebody is told, or looks beside; Deadline::kNever: nobody ever. Written under the watchdog's lock.
  std::atomic<int64_t> look_ns_;
  std::atomic<bool> begun_{false};
  bool ended_ = false;  // of the thread that ends the world
  // The watchdog's, under its lock.
  int64_t next_look_ns_ = 0;
  bool telling_ = false;  // its on_stall runs, or listeners of the run's end
  absl::Status stuck_;    // the error that ends the run; OK: none
  uint64_t looks_ = 0;
  int64_t last_look_ns_ = 0;
  std::vector<Stalled> fatal_;
  std::map<TaskId, Seen> seen_;

  mutable OrderedMutex texts_mu_{LockLevel::kStallTexts};
  std::vector<std::string> texts_ ABSL_GUARDED_BY(texts_mu_);
  struct Stood {
    uint64_t steps;
    int64_t since_ns;
  };
  std::map<TaskId, Stood> stood_ ABSL_GUARDED_BY(texts_mu_);  // those that did not move between two looks
};

// "rank 2 has come to no scheduling point for 10s of real time ...".
std::string stall_text(const Outstanding& who, int64_t stall_ns);

// Ends the process: prints the stalled ranks with their stacks, `everybody` and the name of the test that runs, if any.
[[noreturn]] void end_stalled(const std::vector<Stalled>& who, absl::FunctionRef<std::string()> everybody);

// The name of the test that runs now, or empty; null: nobody knows. Set by the harness.
extern std::atomic<std::string (*)()> running_test;

}  // namespace rankloom::internal

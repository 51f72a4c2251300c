#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rankloom/error.h"
#include "sim/base/kept_memory.h"
#include "sim/base/parker.h"

namespace rankloom::internal {

class Scheduler;
class StepRecord;

using TaskId = int32_t;

enum class TaskKind : uint8_t {
  kRank,        // the main task of a rank
  kHelper,      // a further thread of a rank: spawned by it, or adopted for the length of a call
  kStream,      // the queue of a simulated stream
  kCompletion,  // a call that finishes late; has no stack of its own
};

struct TaskInfo {
  int rank = -1;  // the rank that this task belongs to
  TaskKind kind = TaskKind::kRank;
};

// The thing that a blocked task waits for. Asked only when a report is written, while no task of the run moves.
class WaitsFor {
 public:
  virtual ~WaitsFor() = default;
  // Appends the global ranks that could end this wait. Leaves `ranks` alone if these are not known.
  virtual void append_ranks(std::vector<int>* ranks) const = 0;
  // A further remark for reports; empty: none.
  virtual std::string remark() const { return {}; }
  // Why nobody ends the wait, if the wait can guess: a line of a deadlock's report. Empty: no guess.
  virtual std::string hint() const { return {}; }
  // A better cause than "nobody can move", if the wait knows one: members that issued different calls. Else OK.
  virtual absl::Status explain() const { return absl::OkStatus(); }
};

// A step of a task at a scheduling point: what it is about to do, or waits in. Views must outlive the point; `what` and
// the file's name must live as long as the process, since they are told as a task's last point after it has gone on.
struct Site {
  const char* what = "start";    // the operation, as reports print it: "all_reduce", "store get", "sleep"
  CodeSite code = {};            // the caller's line
  std::string_view group = {};   // empty: no group
  int64_t seq = -1;              // sequence number of the call in its group, -1: none
  std::string_view detail = {};  // "key \"done\"", "label \"epoch\""
  const WaitsFor* waits_for = nullptr;
};

// When a wait ends by itself. Times are nanoseconds of Scheduler::now_ns().
struct Deadline {
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  int64_t at_ns = kNever;
  // A default or group timeout is weak: it still fires, but does not keep a stuck job from being reported as a
  // deadlock.
  bool weak = true;

  static Deadline never() { return {}; }
  // `timeout` after `now_ns` >= 0; one that ends beyond the clock's end, in 292 years, ends there, and only an infinite
  // one never.
  static Deadline after(int64_t now_ns, absl::Duration timeout, bool weak) {
    if (timeout == absl::InfiniteDuration()) return {.at_ns = kNever, .weak = weak};
    return at_most(now_ns, absl::ToInt64Nanoseconds(timeout), weak);  // saturates
  }
  // The same in nanoseconds; kNever: it never ends.
  static Deadline after(int64_t now_ns, int64_t timeout_ns, bool weak) {
    if (timeout_ns == kNever) return {.at_ns = kNever, .weak = weak};
    return at_most(now_ns, timeout_ns, weak);
  }

 private:
  static Deadline at_most(int64_t now_ns, int64_t ns, bool weak) {
    return {.at_ns = ns >= kNever - now_ns ? kNever - 1 : now_ns + ns, .weak = weak};
  }
};

enum class WakeCause : uint8_t { kUnparked, kTimeout };

// The scheduling point that a task came by last, as far as it can be told from another thread while the task goes on.
// Written by the task, after it has counted the step: a reader of any part of it sees that step, too.
class LastPoint {
 public:
  // A site with what, code and seq only.
  Site site() const {
    return {.what = what_.load(std::memory_order_acquire),
            .code = {file_.load(std::memory_order_acquire), line_.load(std::memory_order_acquire)},
            .seq = seq_.load(std::memory_order_acquire)};
  }
  void set(const Site& site) {
    what_.store(site.what, std::memory_order_release);
    file_.store(site.code.file, std::memory_order_release);
    line_.store(site.code.line, std::memory_order_release);
    seq_.store(site.seq, std::memory_order_release);
  }

 private:
  std::atomic<const char*> what_{"start"};
  std::atomic<const char*> file_{""};
  std::atomic<int> line_{0};
  std::atomic<int64_t> seq_{-1};
};

// One thread of control under a scheduler. Upper layers hold pointers and pass them to Scheduler; the fields are the
// scheduler's and its engine's.
struct Task : Kept {
  enum class State : uint8_t { kNew, kReady, kRunning, kParked, kDone };

  // The task that runs on this thread, or nullptr on a thread that belongs to no world.
  static Task* current() { return current_; }
  static void set_current(Task* task) { current_ = task; }
  // Owners of something beyond a call are compared by these: a task's object serves again when the task has ended, and
  // a thread that the program made is another task in each of its calls. 0: a thread that belongs to no world.
  static uint64_t current_serial() { return current_ != nullptr ? current_->serial : 0; }
  static uint64_t next_serial() {
    static std::atomic<uint64_t> last = 0;
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  static uint64_t serial_of_thread() {
    thread_local const uint64_t serial = next_serial();
    return serial;
  }

  // const after the task was made
  Scheduler* scheduler = nullptr;
  StepRecord* record = nullptr;            // of the run, if it is explored
  const struct InnerRun* inner = nullptr;  // of a run that a task of an explored one made
  TaskId id = -1;
  TaskInfo info;
  uint64_t serial = next_serial();  // of what runs as this task: another one once the object serves again
  bool adopted = false;             // a thread of the program's: a rank by World::attach(), or a helper for a call
  int late_accesses = 0;            // of Watched, after an abort; the task's own
  int for_rank = -1;                // the rank that left a store's callback which the task runs; the task's own

  // deterministic gears: guarded by the scheduler's StateLock, which fibers, on one thread, do without
  State state = State::kNew;
  bool permit = false;
  WakeCause cause = WakeCause::kUnparked;
  int polls_in_a_row = 0;                  // points since the last that did something
  uint64_t asked_at = 0;                   // `steps`, its points, when the task last polled or yielded; 0: never
  uint32_t timer = 0;                      // generation of the pending own deadline; 0: none
  int64_t deadline_ns = Deadline::kNever;  // while parked: own or default
  absl::AnyInvocable<void()> body;

  // written by the task before it stops at a point, read by reports while it is stopped
  Site site;
  std::atomic<uint64_t> steps = 0;  // scheduling points passed; relaxed
  LastPoint last;

  // The task is at a point.
  void reach(const Site& point) {
    steps.store(steps.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    last.set(point);
  }

  // engines
  std::atomic<int> thread = 0;       // threads: its id in the kernel
  Parker parker;                     // threads
  void* context = nullptr;           // fibers: boost::fibers::context* of the one that runs it
  void* fiber_state = nullptr;       // fibers: FiberState of the one that runs it
  const void* frame = nullptr;       // fibers: where its stack had come to when it stopped
  const void* next_write = nullptr;  // fibers: start of the kNextWriteBytes that the task writes first when it goes on
  void* user = nullptr;              // RankState of a rank and its helpers
  void* completions = nullptr;       // those whose actions the task runs, one within another; of the layer above

 private:
  static inline thread_local Task* current_ = nullptr;
};

}  // namespace rankloom::internal

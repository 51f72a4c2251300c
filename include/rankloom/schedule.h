#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rankloom/error.h"

namespace rankloom {

namespace internal {

// The subject of a choice. Values are part of the trace format.
enum class ChoiceKind : uint8_t {
  kNextTask = 0,    // which ready task runs next
  kAnySource = 1,   // which of several matching sends a receive takes
  kCompletion = 2,  // whether a finished call completes now or later
  kFault = 3,       // whether a planned fault happens
  kRooted = 4,      // once a run: whether members of rooted calls are done each by itself (GroupOptions::rooted)
};

}  // namespace internal

// The choices of a run, in order: what Schedule::replay() follows. Points at which only one task could run are left
// out. A report has its run's, to be saved and followed in another process:
//
//   (void)report.trace.save("failing.trace");
//   absl::StatusOr<rankloom::Trace> trace = rankloom::Trace::load("failing.trace");
//   options.schedule = rankloom::Schedule::replay(*std::move(trace));
//
// A trace holds no data and no time: the same program must make the same calls again. Thread-safety: const methods.
class Trace {
 public:
  // One choice of a run: at which task, among how many, and what.
  struct Step {
    uint8_t kind = 0;   // internal::ChoiceKind
    uint16_t what = 0;  // index into Trace::names(): the pending step of the task that was at the point
    int32_t rank = -1;  // that task's rank
    int32_t size = 0;   // how many could be chosen
    int32_t value = 0;  // which was: a TaskId for kNextTask, else 0 <= value < size
    int64_t seq = -1;   // the pending step's sequence number

    friend bool operator==(const Step&, const Step&) = default;
  };

  // The schedule under which the trace was recorded, as Schedule::text() gives it.
  const std::string& schedule() const { return schedule_; }
  void set_schedule(std::string text);
  const std::vector<Trace::Step>& steps() const { return steps_; }
  const std::vector<std::string>& names() const { return names_; }
  bool empty() const { return steps_.empty(); }

  // A trace that would get more choices drops all of them and keeps none from then on: half of one replays nothing.
  static constexpr uint64_t kWhole = std::numeric_limits<uint64_t>::max();
  void set_limit(uint64_t steps) { limit_ = steps; }
  uint64_t limit() const { return cut_ ? limit_was_ : limit_; }
  bool cut() const { return cut_; }
  // "no trace was kept: the run made more than 10 choices, ..."; empty unless cut().
  std::string why_cut() const;

  uint16_t intern(std::string_view name);
  void add(const Trace::Step& step) {
    if (steps_.size() >= limit_) [[unlikely]]
      return cut_off();
    steps_.push_back(step);
  }
  // Memory for so many steps.
  void reserve(size_t steps) { steps_.reserve(steps); }
  // "rank 2 at all_reduce seq 3, 4 ready, takes task 1".
  std::string describe(const Trace::Step& step) const;

  // Binary form, version 1: "RLTRACE1", schedule, names, then each step as variable-length integers (LEB128, as in
  // Protocol Buffers), and a 64-bit FNV-1a of all before it. Empty if cut().
  std::string serialize() const;
  // Errors: InvalidArgument that names what is wrong: no trace, another version, cut short at which step, damaged.
  static absl::StatusOr<Trace> parse(std::string_view bytes);
  // Errors: InvalidArgument that names the file and the system's reason, or why_cut().
  absl::Status save(const std::string& path) const;
  static absl::StatusOr<Trace> load(const std::string& path);

  friend bool operator==(const Trace& a, const Trace& b);

 private:
  void cut_off();

  std::string schedule_;
  std::vector<std::string> names_;
  std::vector<Trace::Step> steps_;
  uint64_t limit_ = kWhole;  // 0 once it is cut
  uint64_t limit_was_ = 0;
  bool cut_ = false;
};

// The carriers of ranks: a thread each, or fibers of one thread, of which a process can have a million.
enum class EngineKind : uint8_t { kThreads, kFibers };

// How the next task is chosen at each scheduling point. A value; cheap to copy.
//
//   rankloom::WorldOptions options{.world_size = 4};
//   options.schedule = rankloom::Schedule::seeded(7);  // the same run each time, on both engines
//
// All but free() run one task at a time; what a schedule is good for: docs/determinism.md. Thread-safety: const
// methods.
class Schedule {
 public:
  // A departure from the order in which a steered run goes by itself.
  struct Switch {
    static constexpr int kStart = -1;  // `at` before the first step of the run
    enum class Kind : uint8_t {
      kTask,        // the task `to` runs next
      kCompletion,  // the call that completes next is the one that comes `to`-th among those that could, from 0
      kValue,       // alternative `to` of a choice of another kind: which of several sends a recv_any takes
    };
    Kind kind = Kind::kTask;
    int at = kStart;  // the task at the point: a rank, or a helper's id
    int nth = 0;      // of the choices at that task, from 0: kValue counts apart from the two others
    int to = 0;

    friend bool operator==(const Switch&, const Switch&) = default;
  };

  // Where a run stops for a debugger: before this rank makes the collective with this number in
  // this group. Sends and recvs are numbered apart, and stop nothing.
  struct BreakPoint {
    int rank = -1;
    std::string group;  // its name, as reports print it: "0" for the group of all ranks
    int64_t seq = -1;

    // "2:0:15": rank, group, sequence number. Errors: InvalidArgument.
    static absl::StatusOr<BreakPoint> parse(std::string_view text);
  };

  enum class Kind : uint8_t { kUnset, kFree, kFifo, kRoundRobin, kSeeded, kPct, kStarve, kLate, kSteered, kReplay };

  // Unset: free() on threads, fifo() on fibers.
  Schedule() = default;
  Schedule(const Schedule&) = default;  // no moves: what they leave behind would be a replay of nothing
  Schedule& operator=(const Schedule&) = default;

  // All ranks at once, as the machine has it. Threads only.
  static Schedule free() { return Schedule(Kind::kFree, 0, 0); }
  // A rank runs until it blocks, yields or has passed 1,000 points (it may be polling); then the one that has been
  // ready for longest. No choice is left, so nothing is recorded.
  static Schedule fifo() { return Schedule(Kind::kFifo, 0, 0); }
  // The next ready rank by number, at every scheduling point.
  static Schedule round_robin() { return Schedule(Kind::kRoundRobin, 0, 0); }
  // Uniformly random at every scheduling point, from this seed.
  static Schedule seeded(uint64_t seed) { return Schedule(Kind::kSeeded, seed, 0); }
  // Random priorities and depth - 1 random points where the running task falls to the lowest one: finds every bug of
  // that depth with a guaranteed probability. S. Burckhardt et al., "A Randomized Scheduler with Probabilistic
  // Guarantees of Finding Bugs", ASPLOS 2010. Throws InvalidArgument unless 1 <= depth <= 1,000,000.
  static Schedule pct(uint64_t seed, int depth, CodeSite code = CodeSite::here());
  // Random, but somebody - a rank, a helper, the calls that complete - is held back for long while others can run; then
  // somebody else is.
  static Schedule starve(uint64_t seed) { return Schedule(Kind::kStarve, seed, 0); }
  // Random, but calls complete as late as possible most of the time, and in any order.
  static Schedule late_completion(uint64_t seed) { return Schedule(Kind::kLate, seed, 0); }
  // A rank runs until it blocks, yields or has passed 200 points while others can run, then the next by number; calls
  // complete when nobody else can run; but for `switches`. A switch whose task is unable to run is left out. `seed`: of
  // the ranks' own randomness.
  static Schedule steered(uint64_t seed, std::vector<Schedule::Switch> switches);
  // The choices that a run recorded. The first step that does not fit ends the run with an error that names it.
  static Schedule replay(Trace trace);

  Kind kind() const { return kind_; }
  uint64_t seed() const { return seed_; }
  int depth() const { return depth_; }
  const Trace* trace() const { return trace_.get(); }
  // The schedule that the replayed run was recorded under; any other one itself.
  Schedule recorded() const;
  const std::vector<Schedule::Switch>& switches() const;
  bool deterministic() const { return kind_ != Kind::kUnset && kind_ != Kind::kFree; }

  // Calls complete late, outputs are poisoned: all but unset, free, fifo, round robin, and replays of runs under those.
  bool explores() const;

  // "seeded:7", "pct:7:3", "steered:7:0@5>1", "fifo": what parse() reads, and RANKLOOM_SCHEDULE.
  std::string text() const;
  // Errors: InvalidArgument that lists what is known.
  static absl::StatusOr<Schedule> parse(std::string_view text);

 private:
  Schedule(Kind kind, uint64_t seed, int depth) : kind_(kind), depth_(depth), seed_(seed) {}

  Kind kind_ = Kind::kUnset;
  int depth_ = 0;
  uint64_t seed_ = 0;
  std::shared_ptr<const Trace> trace_;
  std::shared_ptr<const std::vector<Schedule::Switch>> switches_;
};

namespace internal {

// "equal", or the first step in which two runs differ, with both sides described.
std::string first_difference(const Trace& a, const Trace& b);

// "threads" or "fibers".
std::string_view engine_kind_name(EngineKind engine);

}  // namespace internal

}  // namespace rankloom

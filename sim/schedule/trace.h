#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rankloom {

// One choice of a run: at which step, among how many, and what.
struct TraceStep {
  uint8_t kind = 0;   // ChoiceKind
  uint16_t what = 0;  // index into Trace::names(): the pending step of the task that was at the point
  int32_t rank = -1;  // that task's rank
  int32_t size = 0;   // how many could be chosen
  int32_t value = 0;  // which was: a TaskId for kNextTask, else 0 <= value < size
  int64_t seq = -1;   // the pending step's sequence number

  friend bool operator==(const TraceStep&, const TraceStep&) = default;
};

// The choices of a run, in order: what Schedule::replay() follows. Points at which only one task could run are left out.
class Trace {
 public:
  // The schedule that made it, as Schedule::text() gives it.
  const std::string& schedule() const { return schedule_; }
  void set_schedule(std::string text) { schedule_ = std::move(text); }
  const std::vector<TraceStep>& steps() const { return steps_; }
  const std::vector<std::string>& names() const { return names_; }
  bool empty() const { return steps_.empty(); }

  // One that would get more steps than this keeps none from then on: half a trace replays nothing.
  static constexpr uint64_t kWhole = std::numeric_limits<uint64_t>::max();
  void set_limit(uint64_t steps) { limit_ = steps; }
  uint64_t limit() const { return cut_ ? limit_was_ : limit_; }
  bool cut() const { return cut_; }
  // "no trace was kept: the run made more than 10 choices, ..."; empty unless cut().
  std::string why_cut() const;

  uint16_t intern(std::string_view name);
  void add(const TraceStep& step) {
    if (steps_.size() >= limit_) [[unlikely]]
      return cut_off();
    steps_.push_back(step);
  }
  // "rank 2 at all_reduce seq 3, 4 ready, takes task 1".
  std::string describe(const TraceStep& step) const;

  // Binary form, version 1: "RLTRACE1", schedule, names, then each step as variable-length integers (LEB128, as in
  // Protocol Buffers), and a 64-bit FNV-1a of all before it. Empty if cut().
  std::string serialize() const;
  // Errors: InvalidArgument that names what is wrong: no trace, another version, cut short at which step, damaged.
  static absl::StatusOr<Trace> parse(std::string_view bytes);
  // Errors: InvalidArgument that names the file and the system's reason, or why_cut().
  absl::Status save(const std::string& path) const;
  static absl::StatusOr<Trace> load(const std::string& path);

  friend bool operator==(const Trace& a, const Trace& b) {
    return a.schedule_ == b.schedule_ && a.names_ == b.names_ && a.steps_ == b.steps_ && a.cut_ == b.cut_;
  }

 private:
  void cut_off();

  std::string schedule_;
  std::vector<std::string> names_;
  std::vector<TraceStep> steps_;
  uint64_t limit_ = kWhole;  // 0 once it is cut
  uint64_t limit_was_ = 0;
  bool cut_ = false;
};

// "equal", or the first step in which two runs differ, with both sides described.
std::string first_difference(const Trace& a, const Trace& b);

}  // namespace rankloom

#include "sim/schedule/policies.h"

#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "rankloom/random.h"
#include "rankloom/schedule.h"
#include "sim/base/text.h"
#include "sim/schedule/steering.h"

namespace rankloom::internal {
namespace {

class FifoPolicy final : public SchedulePolicy {
 public:
  int choose(const ChoicePoint& point) override {
    return point.kind == ChoiceKind::kNextTask ? point.ready->oldest() : 0;
  }
  ReadySet::Order order() const override { return ReadySet::Order::kQueue; }
  bool runs_to_block() const override { return true; }
};

class RoundRobinPolicy final : public SchedulePolicy {
 public:
  int choose(const ChoicePoint& point) override {
    if (point.kind != ChoiceKind::kNextTask) return 0;
    last_ = point.ready->first_after(last_);
    return last_;
  }

 private:
  TaskId last_ = -1;
};

class RandomPolicy final : public SchedulePolicy {
 public:
  explicit RandomPolicy(uint64_t seed) : prng_(seed) {}

  int choose(const ChoicePoint& point) override {
    const int i = static_cast<int>(prng_.below(static_cast<uint64_t>(point.size)));
    return point.kind == ChoiceKind::kNextTask ? point.ready->nth(i) : i;
  }
  Prng* uniform() override { return &prng_; }

 private:
  Prng prng_;
};

// Priorities are drawn when a task is first seen. The length of a run, which the change points are drawn from, is not
// known beforehand: kSteps is a guess that suits tests; a change point beyond the end of the run does nothing.
// Strict priorities starve: a task that polls would run for ever, and so would two that wait for each other in turns.
// So a task that yields falls to the bottom, and so does the one that runs whenever none has yielded or been put there
// for kPatience choices.
class PctPolicy final : public SchedulePolicy {
 public:
  PctPolicy(uint64_t seed, int depth) : prng_(seed) {
    for (int i = 1; i < depth; ++i) ++changes_at_[prng_.below(kSteps)];
  }

  int choose(const ChoicePoint& point) override {
    if (point.kind != ChoiceKind::kNextTask) return static_cast<int>(prng_.below(static_cast<uint64_t>(point.size)));
    if (point.at != nullptr) {
      if (point.yields || since_fall_ >= kPatience) {
        priority(point.at->id) = --lowest_;
        since_fall_ = 0;
      }
      if (step_ < kSteps && changes_at_[step_] > 0) priority(point.at->id) = lowest_ -= changes_at_[step_];
    }
    ++step_;
    TaskId best = -1;
    int64_t best_priority = 0;
    point.ready->for_each([&](TaskId id) {
      const int64_t p = priority(id);
      if (best < 0 || p > best_priority) {
        best = id;
        best_priority = p;
      }
    });
    ++since_fall_;
    return best;
  }

 private:
  static constexpr uint64_t kSteps = 200;
  static constexpr int kPatience = 1000;

  // Drawn ones are positive, later ones negative and ever lower.
  int64_t& priority(TaskId id) {
    while (priorities_.size() <= static_cast<size_t>(id)) {
      priorities_.push_back(static_cast<int64_t>(prng_.next() >> 2) + 1);
    }
    return priorities_[static_cast<size_t>(id)];
  }

  Prng prng_;
  uint64_t step_ = 0;
  int64_t lowest_ = 0;
  int since_fall_ = 0;                       // choices
  std::array<int, kSteps> changes_at_ = {};  // how many there are before each step
  std::vector<int64_t> priorities_;
};

// The next task is drawn at random, but for a victim that waits as long as others can run, at most kPatience choices;
// then another is drawn. All calls that complete count as one.
class StarvePolicy final : public SchedulePolicy {
 public:
  explicit StarvePolicy(uint64_t seed) : prng_(seed) {}

  int choose(const ChoicePoint& point) override {
    const int size = point.size;
    if (point.kind != ChoiceKind::kNextTask) return static_cast<int>(prng_.below(static_cast<uint64_t>(size)));
    if (left_ == 0) {
      victim_ = key(point, point.ready->nth(static_cast<int>(prng_.below(static_cast<uint64_t>(size)))));
      left_ = 1 + static_cast<int>(prng_.below(kPatience));
    }
    --left_;
    int others = 0;
    point.ready->for_each([&](TaskId id) { others += key(point, id) != victim_ ? 1 : 0; });
    if (others == 0) {
      return point.ready->nth(static_cast<int>(prng_.below(static_cast<uint64_t>(size))));
    }
    int skip = static_cast<int>(prng_.below(static_cast<uint64_t>(others)));
    TaskId chosen = -1;
    point.ready->for_each([&](TaskId id) {
      if (key(point, id) != victim_ && skip-- == 0) chosen = id;
    });
    return chosen;
  }

 private:
  static constexpr int kPatience = 60;

  static TaskId key(const ChoicePoint& point, TaskId id) {
    return point.tasks->task(id).info.kind == TaskKind::kCompletion ? -2 : id;
  }

  Prng prng_;
  TaskId victim_ = -1;
  int left_ = 0;
};

// Ranks are drawn at random; a call completes when nobody else can run, or one time in eight.
class LatePolicy final : public SchedulePolicy {
 public:
  explicit LatePolicy(uint64_t seed) : prng_(seed) {}

  int choose(const ChoicePoint& point) override {
    const auto draw = [this](int n) { return static_cast<int>(prng_.below(static_cast<uint64_t>(n))); };
    if (point.kind != ChoiceKind::kNextTask) return draw(point.size);
    const auto completes = [&point](TaskId id) { return point.tasks->task(id).info.kind == TaskKind::kCompletion; };
    int late = 0;
    point.ready->for_each([&](TaskId id) { late += completes(id) ? 1 : 0; });
    const bool now = late == point.size || (late > 0 && draw(8) == 0);
    int skip = draw(now ? late : point.size - late);
    TaskId chosen = -1;
    point.ready->for_each([&](TaskId id) {
      if (completes(id) == now && skip-- == 0) chosen = id;
    });
    return chosen;
  }

 private:
  Prng prng_;
};

constexpr std::string_view kCannotReplay = "cannot replay: ";
constexpr std::string_view kDiverged = "replay diverged at step ";
constexpr std::string_view kOfNoRun = "the trace is of no run: ";

class ReplayPolicy final : public SchedulePolicy {
 public:
  explicit ReplayPolicy(const Trace* trace) : trace_(*trace) {}

  int choose(const ChoicePoint& point) override {
    if (!failed()) check(point);
    if (failed()) return point.kind == ChoiceKind::kNextTask ? point.ready->nth(0) : 0;
    return trace_.steps()[next_++].value;
  }

 private:
  void check(const ChoicePoint& point) {
    const std::string found =
        absl::StrCat("rank ", point.at != nullptr ? point.at->info.rank : -1, " at ",
                     point.at != nullptr ? point.at->site.what : "start",
                     point.at != nullptr && point.at->site.seq >= 0 ? absl::StrCat(" seq ", point.at->site.seq) : "",
                     ", ", point.size, point.kind == ChoiceKind::kNextTask ? " ready" : " alternatives");
    if (trace_.cut()) {
      fail(absl::StrCat(sv(kCannotReplay), trace_.why_cut()));
      return;
    }
    if (next_ >= trace_.steps().size()) {
      fail(absl::StrCat(sv(kDiverged), next_, ": expected the end of the trace",
                        trace_.empty() ? ", which is empty" : "", ", found ", found));
      return;
    }
    const Trace::Step& step = trace_.steps()[next_];
    const char* what = point.at != nullptr ? point.at->site.what : "start";
    const int32_t rank = point.at != nullptr ? point.at->info.rank : -1;
    const int64_t seq = point.at != nullptr ? point.at->site.seq : -1;
    // Task ids are looked for among the ready ones.
    const bool possible = step.what < trace_.names().size() &&
                          (point.kind == ChoiceKind::kNextTask || (step.value >= 0 && step.value < step.size));
    if (!possible) {
      fail(absl::StrCat(sv(kOfNoRun), "its step ", next_, " chooses number ", step.value, " of ", step.size,
                        " at operation ", step.what, " of ", trace_.names().size()));
      return;
    }
    const bool fits = step.kind == static_cast<uint8_t>(point.kind) && step.size == point.size && step.rank == rank &&
                      step.seq == seq && trace_.names()[step.what] == what &&
                      (point.kind != ChoiceKind::kNextTask || point.ready->contains(step.value));
    if (!fits) {
      fail(absl::StrCat(sv(kDiverged), next_, ": expected ", trace_.describe(step), ", found ", found));
    }
  }

  const Trace& trace_;  // owned by the schedule in the options of the run
  size_t next_ = 0;
};

}  // namespace

bool is_error_of_replay(std::string_view error) {
  return error.starts_with(kCannotReplay) || error.starts_with(kDiverged) || error.starts_with(kOfNoRun);
}

std::unique_ptr<SchedulePolicy> make_policy(const Schedule& schedule, const RunHooks& hooks) {
  if (hooks.policies != nullptr) return hooks.policies->policy();
  switch (schedule.kind()) {
    case Schedule::Kind::kRoundRobin:
      return std::make_unique<RoundRobinPolicy>();
    case Schedule::Kind::kSeeded:
      return std::make_unique<RandomPolicy>(schedule.seed());
    case Schedule::Kind::kPct:
      return std::make_unique<PctPolicy>(schedule.seed(), schedule.depth());
    case Schedule::Kind::kStarve:
      return std::make_unique<StarvePolicy>(schedule.seed());
    case Schedule::Kind::kLate:
      return std::make_unique<LatePolicy>(schedule.seed());
    case Schedule::Kind::kSteered:
      return std::make_unique<SteeredPolicy>(schedule.switches());
    case Schedule::Kind::kReplay:
      // A fifo run records nothing: its trace is replayed by running fifo again.
      if (schedule.trace()->schedule() == "fifo") return std::make_unique<FifoPolicy>();
      if (hooks.departures != nullptr)
        return std::make_unique<SteeredPolicy>(std::make_unique<ReplayPolicy>(schedule.trace()), hooks.departures);
      return std::make_unique<ReplayPolicy>(schedule.trace());
    case Schedule::Kind::kUnset:  // Scheduler::make() has chosen
    case Schedule::Kind::kFree:   // has no policy
    case Schedule::Kind::kFifo:
      break;
  }
  return std::make_unique<FifoPolicy>();
}

}  // namespace rankloom::internal

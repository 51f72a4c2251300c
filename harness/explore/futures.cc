#include "harness/explore/futures.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "rankloom/random.h"
#include "sim/base/parker.h"
#include "sim/schedule/policy.h"
#include "sim/schedule/schedule_tree.h"

namespace rankloom::internal {
namespace {

using Futures = RunData::Search::Futures;

constexpr int kMostSchedules = 2000;
constexpr size_t kMostChoices = 200;
constexpr int kSampledRuns = 2000;           // of all choices together
constexpr int64_t kMostNs = 20'000'000'000;  // real time, for each of the two

// The first choices of a trace, then random ones.
class Continuation final : public PolicySource {
 public:
  Continuation(const Trace& trace, size_t made, uint64_t seed) : trace_(trace), made_(made), seed_(seed) {}
  std::unique_ptr<SchedulePolicy> policy() override { return std::make_unique<Policy>(trace_, made_, seed_); }

 private:
  class Policy final : public SchedulePolicy {
   public:
    Policy(const Trace& trace, size_t made, uint64_t seed) : trace_(trace), left_(made), prng_(seed) {}
    int choose(const ChoicePoint& point) override {
      const bool next_task = point.kind == ChoiceKind::kNextTask;
      if (next_ < left_) {
        const int value = trace_.steps()[next_++].value;
        if (next_task ? point.ready->contains(value) : value < point.size) return value;
        left_ = 0;
      }
      const auto index = static_cast<int>(prng_.below(static_cast<uint64_t>(point.size)));
      return next_task ? point.ready->nth(index) : index;
    }

   private:
    const Trace& trace_;
    size_t left_;
    size_t next_ = 0;
    Prng prng_;
  };

  const Trace& trace_;
  const size_t made_;
  const uint64_t seed_;
};

// All schedules; empty: there are too many.
std::vector<Futures> counted(Baseline& baseline, const WorldOptions& world, const Trace& trace) {
  const std::vector<Trace::Step>& path = trace.steps();
  std::vector<Futures> futures(path.size() + 1);
  const auto tree = std::make_shared<ScheduleTree>(/*reduce=*/false);
  const int64_t end_ns = monotonic_ns() + kMostNs;
  for (int runs = 0; tree->more(); ++runs) {
    if (runs == kMostSchedules || monotonic_ns() > end_ns) return {};
    const Outcome outcome = baseline.run(world, tree->hooks(), tree);
    const std::vector<Trace::Step>& steps = outcome.report.trace.steps();
    // Once for each way in which rooted calls are done: a run without one comes twice.
    const bool rooted = std::any_of(steps.begin(), steps.end(), [](const Trace::Step& step) {
      return step.kind == static_cast<uint8_t>(ChoiceKind::kRooted);
    });
    if (tree->second_time() && !rooted) {
      tree->advance();
      continue;
    }
    const auto parts = std::mismatch(path.begin(), path.end(), steps.begin(), steps.end());
    const auto common = static_cast<size_t>(parts.first - path.begin());
    for (size_t made = 0; made <= common; ++made) {
      ++futures[made].all;
      if (outcome.failed()) ++futures[made].fail;
    }
    tree->advance();
  }
  // The tree leaves out what polls beyond the first few come to: the run itself may be such a one.
  return futures.back().fail > 0 && tree->uncovered().empty() ? futures : std::vector<Futures>();
}

std::vector<Futures> sampled(Baseline& baseline, const WorldOptions& world, const Trace& trace) {
  const size_t choices = trace.steps().size();
  std::vector<Futures> futures(choices + 1);
  const int64_t end_ns = monotonic_ns() + kMostNs;
  const int runs = std::max(8, kSampledRuns / static_cast<int>(choices + 1));
  for (size_t made = 0; made <= choices; ++made) {
    for (int i = 0; i < runs; ++i) {
      if (monotonic_ns() > end_ns) return {};
      const auto source = std::make_shared<Continuation>(trace, made, static_cast<uint64_t>(i) + 1);
      ++futures[made].all;
      if (baseline.run(world, {.policies = source.get()}, source).failed()) ++futures[made].fail;
    }
  }
  return futures;
}

}  // namespace

void count_futures(Baseline& baseline, const WorldOptions& world, const Trace& trace, RunData::Search* search) {
  if (world.schedule.kind() != Schedule::Kind::kSteered || world.faults.rate() > 0 || trace.cut()) return;
  WorldOptions free = world;
  free.schedule = Schedule::steered(*world.seed, {});
  search->futures = counted(baseline, free, trace);
  search->sampled = search->futures.empty();
  if (search->sampled && trace.steps().size() <= kMostChoices) search->futures = sampled(baseline, free, trace);
  if (search->futures.empty()) return;
  for (const Trace::Step& step : trace.steps()) search->choices.push_back(trace.describe(step));
}

}  // namespace rankloom::internal

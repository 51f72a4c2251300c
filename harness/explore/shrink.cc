#include "harness/explore/shrink.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "harness/explore/futures.h"
#include "harness/explore/story.h"
#include "rankloom/schedule.h"
#include "sim/schedule/schedule_tree.h"
#include "world/run_data.h"
#include "world/run_options.h"

namespace rankloom::internal {
namespace {

// Delta debugging. A. Zeller, R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002. The result
// fails, and does no more without any one of its items, if `fails` has runs enough.
template <typename T>
std::vector<T> fewest(std::vector<T> items, absl::FunctionRef<bool(const std::vector<T>&)> fails) {
  if (items.empty() || fails({})) return {};
  for (size_t chunk = (items.size() + 1) / 2; chunk > 0;) {
    bool cut = false;
    for (size_t begin = 0; begin < items.size() && items.size() > 1;) {
      std::vector<T> rest(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(begin));
      rest.insert(rest.end(), items.begin() + static_cast<std::ptrdiff_t>(std::min(begin + chunk, items.size())),
                  items.end());
      if (!rest.empty() && fails(rest)) {
        items = std::move(rest);
        cut = true;
      } else {
        begin += chunk;
      }
    }
    chunk = cut ? std::min(chunk, (items.size() + 1) / 2) : chunk / 2;
  }
  return items;
}

class Shrinker {
 public:
  Shrinker(const ExploreOptions& options, WorldOptions world, const Outcome& found, Baseline* baseline)
      : options_(options),
        found_(found),
        signature_(found.signature()),
        baseline_(*baseline),
        world_(std::move(world)) {}

  ExploreReport::Failure shrink();

 private:
  // Each counts its runs.
  Outcome run(const WorldOptions& world, const RunHooks& hooks = {}, std::shared_ptr<const void> owner = nullptr);
  // The schedule that repeats a run of `world`: a replay, but where the schedule has no choices.
  static Schedule schedule_of(const WorldOptions& world, const Outcome& outcome);
  bool fails_alike(const WorldOptions& world);
  // The same, unless all runs for tries are used up.
  bool still_fails(const WorldOptions& world);
  bool may_try() const { return runs_ < options_.max_shrink_runs; }
  // `record`: of the same run once more, with texts; null: nobody asks.
  std::vector<Schedule::Switch> switches_of(const WorldOptions& world, const Outcome& outcome,
                                            const std::shared_ptr<StepRecord>& record = nullptr);
  bool find_schedule(const WorldOptions& base, Outcome* outcome, WorldOptions* found);

  // Lists the faults of the plan, call by call: drawn faults become listed ones.
  void list_faults();
  void cut_ranks();
  void cut_faults_and_switches();
  // The smallest run once more, with its story.
  void describe_smallest(ExploreReport::Failure* failure);

  WorldOptions steered(const std::vector<Schedule::Switch>& switches) const {
    WorldOptions world = world_;
    world.schedule = Schedule::steered(*world_.seed, switches);
    return world;
  }

  const ExploreOptions& options_;
  const Outcome& found_;
  const std::string signature_;
  Baseline& baseline_;
  WorldOptions world_;  // the smallest so far
  Schedule unsteered_;  // the schedule that it was found to fail under
  std::vector<Schedule::Switch> switches_;
  std::string found_story_;  // of the run before shrinking
  std::vector<int64_t> found_switch_steps_;
  int64_t runs_ = 0;
};

Outcome Shrinker::run(const WorldOptions& world, const RunHooks& hooks, std::shared_ptr<const void> owner) {
  ++runs_;
  return baseline_.run(world, hooks, std::move(owner));
}

Schedule Shrinker::schedule_of(const WorldOptions& world, const Outcome& outcome) {
  return outcome.report.trace.empty() ? world.schedule : Schedule::replay(outcome.report.trace);
}

bool Shrinker::fails_alike(const WorldOptions& world) {
  const Outcome outcome = run(world);
  return outcome.failed() && outcome.signature() == signature_;
}

bool Shrinker::still_fails(const WorldOptions& world) { return may_try() && fails_alike(world); }

std::vector<Schedule::Switch> Shrinker::switches_of(const WorldOptions& world, const Outcome& outcome,
                                                    const std::shared_ptr<StepRecord>& record) {
  std::vector<Schedule::Switch> switches;
  WorldOptions replayed = world;
  replayed.schedule = schedule_of(world, outcome);
  run(replayed, {.record = record.get(), .departures = &switches}, record);
  return switches;
}

// Whether a world of fewer ranks fails alike, under some schedule that is found quickly.
bool Shrinker::find_schedule(const WorldOptions& base, Outcome* outcome, WorldOptions* found) {
  constexpr int kTries = 40;
  const auto fails = [&](const Schedule& schedule, const std::shared_ptr<ScheduleTree>& tree = nullptr) {
    if (!may_try()) return false;
    *found = base;
    found->schedule = schedule;
    *outcome = tree != nullptr ? run(*found, tree->hooks(), tree) : run(*found);
    return outcome->failed() && outcome->signature() == signature_;
  };
  const Schedule in_default_order = Schedule::steered(*base.seed, {});
  if (fails(in_default_order)) return true;
  const auto tree = std::make_shared<ScheduleTree>();
  for (int i = 0; i < kTries && may_try() && tree->more(); ++i) {
    if (fails(in_default_order, tree)) {
      found->schedule = Schedule::replay(outcome->report.trace);
      return true;
    }
    tree->advance();
  }
  for (uint64_t seed = 1; seed <= kTries; ++seed) {
    for (const Strategy& strategy :
         {Strategy::pct(), Strategy::starve(), Strategy::late_completion(), Strategy::random()}) {
      if (fails(strategy.schedule(seed))) return true;
    }
  }
  return false;
}

void Shrinker::list_faults() {
  if (world_.faults.empty()) return;
  WorldOptions listed = steered(switches_);
  listed.faults = FaultPlan(found_.report.faults);
  if (still_fails(listed)) world_.faults = listed.faults;
}

void Shrinker::cut_ranks() {
  for (int ranks = options_.min_ranks; ranks > 0 && ranks < world_.world_size && may_try(); ++ranks) {
    WorldOptions smaller = world_;
    smaller.world_size = ranks;
    const std::optional<Outcome> first = baseline_.exchange(std::nullopt);
    if (first.has_value()) {  // its own: numbers depend on how many add up
      smaller.schedule = Schedule::steered(*world_.seed, {});
      Outcome own = run(smaller);
      if (!own.failed()) baseline_.exchange(std::move(own));
    }
    WorldOptions found;
    Outcome outcome;
    if (find_schedule(smaller, &outcome, &found)) {
      world_ = found;
      unsteered_ = found.schedule;
      switches_ = switches_of(world_, outcome);
      return;
    }
    baseline_.exchange(first);
  }
}

void Shrinker::cut_faults_and_switches() {
  world_ = steered(switches_);
  if (!fails_alike(world_)) {  // what a program draws from elsewhere cannot be steered
    world_.schedule = unsteered_;
    return;
  }
  const auto fails_with_faults = [&](const std::vector<Fault>& faults) {
    WorldOptions fewer = world_;
    fewer.faults = FaultPlan(faults);
    return still_fails(fewer);
  };
  if (world_.faults.rate() == 0) world_.faults = FaultPlan(fewest<Fault>(world_.faults.faults(), fails_with_faults));
  const auto fails_with_switches = [&](const std::vector<Schedule::Switch>& switches) {
    return still_fails(steered(switches));
  };
  world_ = steered(fewest<Schedule::Switch>(switches_, fails_with_switches));
}

void Shrinker::describe_smallest(ExploreReport::Failure* failure) {
  RunData::Search search;
  if (reports_are_wanted()) count_futures(baseline_, world_, baseline_.run(world_).report.trace, &search);
  // The last run: callers keep what its ranks leave behind.
  const auto record = std::make_shared<StepRecord>(/*texts=*/true);
  WorldOptions kept = world_;
  kept.keep_run = true;  // of a failure that is none of a rank's, too
  Outcome last = run(kept, {.record = record.get()}, record);
  failure->world = world_;
  failure->failures = last.failures;
  failure->headline = last.failed() ? last.headline() : failure->headline;
  failure->report = std::move(last.report);
  failure->story = story_text(*record, failure->report, world_.schedule.switches());
  if (failure->report.kept != nullptr) {
    failure->report.kept->story = failure->story;
    search.switch_steps = switch_steps(*record, world_.schedule.switches());
    if (found_story_ != failure->story) {
      search.found_story = found_story_;
      search.found_switch_steps = found_switch_steps_;
    }
    failure->report.kept->search = std::move(search);
  }
  failure->rerun = baseline_.rerun_of(world_);
  failure->shrink_runs = runs_;
}

ExploreReport::Failure Shrinker::shrink() {
  ExploreReport::Failure failure;
  failure.headline = found_.headline();
  unsteered_ = schedule_of(world_, found_);
  const auto record = std::make_shared<StepRecord>(/*texts=*/true);
  switches_ = switches_of(world_, found_, record);
  found_story_ = story_text(*record, found_.report, switches_);
  found_switch_steps_ = switch_steps(*record, switches_);
  failure.found_switches = static_cast<int>(switches_.size());
  failure.found = Schedule::steered(*world_.seed, switches_);
  list_faults();
  cut_ranks();
  cut_faults_and_switches();
  describe_smallest(&failure);
  return failure;
}

}  // namespace

ExploreReport::Failure shrink(const ExploreOptions& options, const WorldOptions& world, const Outcome& outcome,
                              Baseline* baseline) {
  return Shrinker(options, world, outcome, baseline).shrink();
}

}  // namespace rankloom::internal

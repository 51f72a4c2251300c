#include "harness/explore/search.h"

#include <errno.h>  // program_invocation_short_name
#include <sys/wait.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "harness/explore/check_explore_options.h"
#include "harness/explore/explore_workers.h"
#include "harness/explore/progress_line.h"
#include "harness/explore/shrink.h"
#include "rankloom/error.h"
#include "rankloom/schedule.h"
#include "sim/base/dist_error.h"
#include "sim/base/library_scope.h"
#include "sim/base/parker.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "sim/engine/fiber_engine.h"
#include "sim/schedule/schedule_tree.h"
#include "sim/scheduler/check_options.h"
#include "world/run_data.h"
#include "world/run_file.h"
#include "world/run_options.h"
#include "world/world_state.h"

namespace rankloom::internal {
namespace {

// Looks for a schedule under which the program fails, by one strategy after another, as long as there is budget.
class Search {
 public:
  Search(const ExploreOptions& options, Baseline* baseline)
      : options_(options), baseline_(*baseline), began_ns_(monotonic_ns()), told_ns_(began_ns_) {}

  // `asked`: the schedule that the environment names; unset: none.
  ExploreReport run(const Schedule& asked);

 private:
  // One run of a strategy that draws from seeds.
  struct Draw {
    size_t strategy;  // in drawn_
    uint64_t round;
  };

  void look(const Schedule& asked);
  bool make_baseline();
  void run_asked(const Schedule& asked);
  void exhaust();

  // The strategies that draw from seeds take turns, in each round one run each. Of several processes, number p does the
  // rounds p, p + count, p + 2 count, ...; this one is number 0.
  void draw();
  void draw_beside(Workers::Found* found, uint64_t worker, int count);
  static Draw draw_of(const Workers::Found& theirs) { return {static_cast<size_t>(theirs.strategy), theirs.round}; }
  // A process beside this one died in a run: that is the failure, and cannot be shrunk here.
  void found_dead(const Workers::Found& theirs);
  WorldOptions world_of(const Draw& draw) const;
  bool fails(const Draw& draw, Outcome* outcome) const;
  void found_drawn(const Draw& draw, Outcome outcome);

  // `repeats`: the same schedule fails again, so that it can be shrunk.
  void found(const std::string& strategy, int64_t run, const WorldOptions& world, Outcome outcome, bool repeats = true);

  bool budget_left() const {
    return report_.runs < options_.max_runs && elapsed_ns() < absl::ToInt64Nanoseconds(options_.max_time);
  }
  int64_t elapsed_ns() const { return monotonic_ns() - began_ns_; }
  void tell(const std::string& strategy);
  ExploreOptions::Progress progress_now() const;

  const ExploreOptions& options_;
  Baseline& baseline_;
  const int64_t began_ns_;
  int64_t told_ns_;
  ProgressLine line_{stderr};
  std::string strategy_ = "default order";  // the one that runs now
  std::vector<Strategy> drawn_;             // those of draw()
  ExploreReport report_;
};

ExploreReport Search::run(const Schedule& asked) {
  if (baseline_.world().engine == EngineKind::kFibers) {
    with_fiber_thread([&] { look(asked); });
  } else {
    look(asked);
  }
  if (!report_.failure.has_value()) report_.elapsed = absl::Nanoseconds(elapsed_ns());
  line_.clear();
  if (options_.progress) options_.progress(progress_now());
  return std::move(report_);
}

ExploreOptions::Progress Search::progress_now() const {
  ExploreOptions::Progress now{.strategy = strategy_, .runs = report_.runs, .elapsed = absl::Nanoseconds(elapsed_ns())};
  for (const ExploreReport::Share& share : report_.shares) {
    now.schedules += share.schedules;
    now.open += share.open;
  }
  return now;
}

void Search::look(const Schedule& asked) {
  if (!make_baseline()) return;
  if (asked.kind() != Schedule::Kind::kUnset) return run_asked(asked);
  for (const Strategy& strategy : options_.strategies) {
    if (strategy.kind != Strategy::Kind::kExhaustive) continue;
    exhaust();
    if (report_.verified || report_.failure.has_value()) return;
    break;
  }
  draw();
}

bool Search::make_baseline() {
  std::optional<Baseline::Failure> failure = baseline_.make(&report_.runs, options_.max_runs);
  if (!failure.has_value()) return true;
  found("default order", failure->run, failure->world, std::move(failure->outcome), failure->repeats);
  return false;
}

void Search::run_asked(const Schedule& asked) {
  const WorldOptions world = baseline_.with(asked);
  report_.shares.push_back({.strategy = asked.text(), .runs = 1});
  Outcome outcome = baseline_.run(world);
  ++report_.runs;
  if (outcome.failed()) found(asked.text(), 1, world, std::move(outcome));
}

void Search::exhaust() {
  const WorldOptions& base = baseline_.world();
  const auto kept_tree = std::make_shared<ScheduleTree>();
  ScheduleTree& tree = *kept_tree;
  const std::string name = Strategy::exhaustive().name();
  const size_t share = report_.shares.size();
  report_.shares.push_back({.strategy = name});
  const bool alone = options_.strategies.size() == 1;
  const int64_t most = alone ? options_.max_runs : report_.runs + (options_.max_runs - report_.runs + 1) / 2;
  const int64_t most_ns = absl::ToInt64Nanoseconds(options_.max_time) / (alone ? 1 : 2);
  while (tree.more() && budget_left() && report_.runs < most && elapsed_ns() < most_ns) {
    Outcome outcome = baseline_.run(baseline_.with(Schedule::steered(*base.seed, {})), tree.hooks(), kept_tree);
    ++report_.runs;
    ExploreReport::Share& mine = report_.shares[share];
    ++mine.runs;
    tell(name);
    if (outcome.failed()) {
      mine.schedules = tree.schedules() + 1;
      const WorldOptions again = baseline_.with(Schedule::replay(outcome.report.trace));
      found(name, mine.runs, again, std::move(outcome));
      return;
    }
    tree.advance();
    mine.schedules = tree.schedules();
    mine.open = tree.open();
    mine.finished = !tree.more();
    mine.unseen = tree.uncovered();
    if (mine.finished && !tree.record().saw_any() && base.world_size > 1)
      mine.unseen.emplace_back("whatever the ranks share: they use nothing of rankloom's");
  }
  // Faults that are drawn anew for each run are not all seen by one search.
  if (base.faults.rate() > 0 && options_.vary_faults)
    report_.shares[share].unseen.emplace_back("faults that each run draws anew");
  report_.verified = report_.shares[share].finished && report_.shares[share].unseen.empty();
}

// --- strategies that draw from seeds

void Search::draw() {
  const size_t first_share = report_.shares.size();
  for (const Strategy& strategy : options_.strategies) {
    if (strategy.kind == Strategy::Kind::kExhaustive) continue;
    drawn_.push_back(strategy);
    report_.shares.push_back({.strategy = strategy.name()});
  }
  if (drawn_.empty()) return;
  Workers workers(options_.processes);
  const int count = workers.count();
  workers.start([&](Workers::Found* out, int worker) { draw_beside(out, static_cast<uint64_t>(worker), count); });
  const int64_t before = report_.runs;
  int64_t own = 0;
  Outcome outcome;
  const auto end_with = [&](const Draw& draw) {
    workers.stop();
    report_.runs = before + own + workers.runs();
    found_drawn(draw, std::move(outcome));
  };
  for (uint64_t round = 0; budget_left(); round += static_cast<uint64_t>(count)) {
    for (size_t s = 0; s < drawn_.size() && budget_left(); ++s) {
      ++own;
      report_.runs = before + own * count;
      ++report_.shares[first_share + s].runs;
      tell(drawn_[s].name());
      if (fails({s, round}, &outcome)) return end_with({s, round});
    }
    if (const std::optional<Workers::Found> theirs = workers.poll(/*wait=*/false); theirs.has_value()) {
      workers.stop();
      report_.runs = before + own + workers.runs();
      if (theirs->died != 0) return found_dead(*theirs);
      if (fails(draw_of(*theirs), &outcome)) return end_with(draw_of(*theirs));
    }
  }
  while (const std::optional<Workers::Found> theirs = workers.poll(/*wait=*/true)) {
    if (theirs->died != 0) {
      workers.stop();
      report_.runs = before + own + workers.runs();
      return found_dead(*theirs);
    }
    if (fails(draw_of(*theirs), &outcome)) return end_with(draw_of(*theirs));
  }
  report_.runs = before + own + workers.runs();
}

void Search::draw_beside(Workers::Found* found, uint64_t worker, int count) {
  Outcome outcome;
  for (uint64_t round = worker; budget_left(); round += static_cast<uint64_t>(count)) {
    for (size_t s = 0; s < drawn_.size() && budget_left(); ++s) {
      report_.runs += count;  // as many as all of them make meanwhile
      ++found->runs;
      found->now_strategy = static_cast<int>(s);
      found->now_round = round;
      if (!fails({s, round}, &outcome)) continue;
      found->strategy = static_cast<int>(s);
      found->round = round;
      return;
    }
  }
}

WorldOptions Search::world_of(const Draw& draw) const {
  WorldOptions world = baseline_.with(drawn_[draw.strategy].schedule(options_.first_seed + draw.round));
  if (world.faults.rate() > 0 && options_.vary_faults) {
    FaultPlan plan = FaultPlan::seeded(world.faults.seed() + draw.round, world.faults.rate(), world.faults.kinds());
    world.faults = plan.plus(baseline_.world().faults.faults());
  }
  return world;
}

bool Search::fails(const Draw& draw, Outcome* outcome) const {
  *outcome = baseline_.run(world_of(draw));
  return outcome->failed();
}

void Search::found_drawn(const Draw& draw, Outcome outcome) {
  found(drawn_[draw.strategy].name(), static_cast<int64_t>(draw.round) + 1, world_of(draw), std::move(outcome));
}

void Search::found_dead(const Workers::Found& theirs) {
  const Draw draw{static_cast<size_t>(theirs.now_strategy), theirs.now_round};
  ExploreReport::Failure failure;
  failure.strategy = drawn_[draw.strategy].name();
  failure.run = static_cast<int64_t>(draw.round) + 1;
  failure.world = world_of(draw);
  failure.found = failure.world.schedule;
  failure.rerun = baseline_.rerun_of(failure.world);
  const std::string how = WIFSIGNALED(theirs.died) ? absl::StrCat("signal ", WTERMSIG(theirs.died), " (",
                                                                  strsignal(WTERMSIG(theirs.died)), ")")
                                                   : absl::StrCat("exit code ", WEXITSTATUS(theirs.died));
  failure.headline = absl::StrCat("the process that made this run ended with ", how, "; what it printed stands above");
  failure.failures = {failure.headline};
  report_.elapsed = absl::Nanoseconds(elapsed_ns());
  report_.failure = std::move(failure);
}

// --- what becomes of it

void Search::found(const std::string& strategy, int64_t run, const WorldOptions& world, Outcome outcome, bool repeats) {
  report_.elapsed = absl::Nanoseconds(elapsed_ns());
  ExploreReport::Failure failure;
  if (repeats) {
    if (!options_.progress) line_.tell_shrinking(progress_now());
    failure = shrink(options_, world, outcome, &baseline_);
  } else {
    failure.headline = outcome.headline();
    failure.world = world;
    failure.failures = std::move(outcome.failures);
    failure.report = std::move(outcome.report);
    failure.rerun = baseline_.rerun_of(world);
  }
  failure.report.rerun.clear();  // said once, with all that it takes
  if (failure.report.kept != nullptr) {
    failure.report.kept->strategy = strategy;
    failure.report.kept->rerun = failure.rerun;
    failure.report.kept->failures = failure.failures;
    RunData::Search& search = failure.report.kept->search;
    search.run = run;
    if (world.schedule.kind() != Schedule::Kind::kReplay) search.found = world.schedule.text();
    search.found_switches = failure.found_switches;
    search.shrink_runs = failure.shrink_runs;
    for (const ExploreReport::Share& share : report_.shares)
      search.shares.push_back({share.strategy, share.runs, share.schedules, share.open, share.finished});
  }
  failure.strategy = strategy;
  failure.run = run;
  if (world.schedule.kind() != Schedule::Kind::kReplay) failure.found = world.schedule;
  report_.failure = std::move(failure);
}

void Search::tell(const std::string& strategy) {
  strategy_ = strategy;
  if (options_.progress ? (report_.runs & 15) != 0 : !line_.shown()) return;
  const int64_t now = monotonic_ns();
  const int64_t every = options_.progress ? 1'000'000'000 : 200'000'000;
  if (now - told_ns_ < every) return;
  told_ns_ = now;
  if (options_.progress) {
    options_.progress(progress_now());
  } else {
    line_.tell(progress_now(), options_.max_runs);
  }
}

// The world of all runs and the schedule that the environment names, if any.
absl::Status prepare(const ExploreOptions& options, int number, CodeSite code, WorldOptions* world, Schedule* asked) {
  absl::Status wrong = check_explore_options(options);
  if (!wrong.ok()) return make_error(error_kind(wrong), located(message_of(wrong), code));
  *world = options.world;
  world->schedule = {};
  if (!world->seed.has_value()) world->seed = options.first_seed;
  world->max_steps = options.max_steps;
  world->trace_limit = Trace::kWhole;
  if (absl::Status status = apply_environment_to_run(number, world); !status.ok()) return status;
  const absl::StatusOr<int> ranks = ranks_from_environment(number);
  if (!ranks.ok()) return ranks.status();
  if (*ranks > 0) world->world_size = *ranks;
  if (wrong = check_options(*world); !wrong.ok()) return prefixed(wrong, "explore: ");
  *asked = std::exchange(world->schedule, {});
  if (asked->kind() == Schedule::Kind::kUnset || asked->deterministic()) return absl::OkStatus();
  return invalid_argument("explore: the schedule is ", asked->text(), ", want one that repeats itself");
}

}  // namespace

ExploreReport search(const ExploreOptions& options, int number, Program program, RunWorld run, CodeSite code) {
  WorldOptions world;
  Schedule asked;
  if (absl::Status status = prepare(options, number, code, &world, &asked); !status.ok()) {
    ExploreReport refused;
    refused.error = std::move(status);
    return refused;
  }
  Baseline baseline(options.checks, std::move(world), options.world.world_size, number, program, run);
  return Search(options, &baseline).run(asked);
}

}  // namespace rankloom::internal

namespace rankloom {

using namespace internal;

ExploreReport explore(const ExploreOptions& options, absl::FunctionRef<void(RankContext&)> program, CodeSite code) {
  const int number = next_run();
  const auto run = [code](const std::shared_ptr<World>& world, internal::Program body, std::vector<std::string>*) {
    const LibraryScope library;
    return state_of(*world).run_once(body, code);
  };
  ExploreReport report = internal::search(options, number, program, run, code);
  if (report.failure.has_value())
    write_failed_run(absl::StrCat(program_invocation_short_name, ".explore", number), &report.failure->report);
  return report;
}

}  // namespace rankloom

#include "harness/explore/search.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "harness/explore/campaign.h"
#include "harness/explore/campaign_identity.h"
#include "harness/explore/campaign_worker.h"
#include "harness/explore/check_explore_options.h"
#include "harness/explore/forked_workers.h"
#include "harness/explore/progress_line.h"
#include "harness/explore/shrink.h"
#include "rankloom/error.h"
#include "rankloom/schedule.h"
#include "sim/base/dist_error.h"
#include "sim/base/library_scope.h"
#include "sim/base/parker.h"
#include "sim/base/site_text.h"
#include "sim/base/system.h"
#include "sim/base/text.h"
#include "sim/engine/fiber_engine.h"
#include "sim/schedule/policies.h"
#include "sim/schedule/schedule_tree.h"
#include "sim/scheduler/check_options.h"
#include "world/run_data.h"
#include "world/run_file.h"
#include "world/run_options.h"
#include "world/world_state.h"

namespace rankloom::internal {
namespace {

// Looks for a schedule under which the program fails, by one strategy after another, as long as there is budget.
class Search final : private CampaignRuns {
 public:
  // `team` as in search().
  Search(const ExploreOptions& options, Baseline* baseline, SearchTeam* team)
      : options_(options),
        baseline_(*baseline),
        team_(team),
        origin_(StepRecord::origin_here()),
        began_ns_(monotonic_ns()),
        reported_ns_(began_ns_) {
    origin_.among_others = team != nullptr;
    for (const Strategy& strategy : options_.strategies) {
      if (strategy.kind != Strategy::Kind::kExhaustive) drawn_.push_back(strategy);
    }
  }

  // `asked`: the schedule that the environment names; unset: none.
  ExploreReport run(const Schedule& asked);
  // The runs that another process wants of this one.
  void serve(LeaderLink* leader, const Schedule& asked);

 private:
  // One run of a strategy that draws from seeds.
  struct Draw {
    size_t strategy;  // in drawn_
    uint64_t round;
  };

  void run_strategies(const Schedule& asked);
  std::optional<Baseline::Failure> make_baseline();
  void run_asked(const Schedule& asked);
  // The reason why a trace could not be followed, as far as that shows.
  std::string why_astray(std::string_view cause, const Trace& trace) const;
  void exhaust();
  bool exhaust_alone(const Campaign::Budget& budget, const std::string& name, ExploreReport::Share* share);
  bool exhaust_together(const Campaign::Budget& budget, const std::string& name, ExploreReport::Share* share);

  // The strategies that draw from seeds take turns, in each round one run each.
  void draw();
  void draw_alone(size_t first_share);
  void draw_together(size_t first_share);
  Draw draw_of(int64_t number) const {
    const size_t run = static_cast<size_t>(number);
    return {.strategy = run % drawn_.size(), .round = run / drawn_.size()};
  }
  Outcome run_explored(const RunHooks& hooks, std::shared_ptr<const void> owner) const override {
    return baseline_.run(baseline_.with(Schedule::steered(*baseline_.world().seed, {})), hooks, std::move(owner));
  }
  Outcome run_drawn(int64_t number) const override { return baseline_.run(world_of(draw_of(number))); }

  // Starts the processes that search beside this one, if there are to be any.
  void start_others();
  // Ends them, and keeps what became of them. Before shrinking, which is for this process alone. May be called again.
  // `found`: the failure, if any.
  void end_others(const std::string& found = {});
  // The failure of a run that one of them made.
  void found_by_other(const std::string& strategy, int64_t run, WorldOptions world, const Campaign::Failure& failure);
  WorldOptions world_of(const Draw& draw) const;
  // `repeats`: the same schedule fails again, so that it can be shrunk.
  void found(const std::string& strategy, int64_t run, const WorldOptions& world, Outcome outcome, bool repeats = true);

  bool budget_left() const {
    return report_.runs < options_.max_runs && elapsed_ns() < absl::ToInt64Nanoseconds(options_.max_time);
  }
  int64_t elapsed_ns() const { return monotonic_ns() - began_ns_; }
  int64_t ns_until(absl::Duration since_begin) const;
  void report_progress(const std::string& strategy);
  void tell_progress(const std::string& strategy);
  ExploreOptions::Progress progress_now() const;

  // On a thread that is the ranks' own, if these are fibers.
  void on_own_thread(absl::FunctionRef<void()> body) const;

  const ExploreOptions& options_;
  Baseline& baseline_;
  SearchTeam* const team_;
  StepRecord::Origin origin_;
  const int64_t began_ns_;
  int64_t reported_ns_;
  ProgressLine line_{stderr};
  std::string strategy_ = "default order";  // the one that runs now
  std::vector<Strategy> drawn_;             // those of draw()
  std::unique_ptr<ForkedWorkers> workers_;
  std::unique_ptr<Campaign> campaign_;  // null: this process searches alone
  ExploreReport report_;
};

void Search::on_own_thread(absl::FunctionRef<void()> body) const {
  if (baseline_.world().engine == EngineKind::kFibers) {
    with_fiber_thread(body);
  } else {
    body();
  }
}

ExploreReport Search::run(const Schedule& asked) {
  on_own_thread([&] { run_strategies(asked); });
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

void Search::run_strategies(const Schedule& asked) {
  std::optional<Baseline::Failure> failure = make_baseline();
  // A failure that was shrunk, to fewer ranks or faults, may be found in a world whose default order fails otherwise.
  const Schedule in_default_order = Schedule::steered(*baseline_.world().seed, {});
  const bool is_asked = asked.kind() != Schedule::Kind::kUnset;
  if (is_asked && !(failure.has_value() && asked.text() == in_default_order.text())) run_asked(asked);
  if (report_.failure.has_value() || !report_.error.ok()) return;
  if (failure.has_value())
    found("default order", failure->run, failure->world, std::move(failure->outcome), failure->repeats);
  if (is_asked || failure.has_value()) return;
  // Also where the program's own function, progress, throws: the others make runs of this search.
  const absl::Cleanup end = [this] { end_others(); };
  if (!options_.strategies.empty()) start_others();
  if (!report_.error.ok()) return;
  for (const Strategy& strategy : options_.strategies) {
    if (strategy.kind != Strategy::Kind::kExhaustive) continue;
    exhaust();
    break;
  }
  if (!report_.verified && !report_.failure.has_value() && report_.error.ok()) draw();
}

std::optional<Baseline::Failure> Search::make_baseline() {
  std::optional<Baseline::Failure> failure = baseline_.make(&report_.runs, options_.max_runs);
  if (!failure.has_value()) report_.missed_faults = baseline_.missed_faults();
  return failure;
}

void Search::run_asked(const Schedule& asked) {
  const WorldOptions world = baseline_.with(asked);
  report_.shares.push_back({.strategy = asked.text(), .runs = 1, .asked = true});
  Outcome outcome = baseline_.run(world);
  ++report_.runs;
  const std::string cause = message_of(outcome.report.cause);
  if (asked.trace() != nullptr && is_error_of_replay(cause)) {  // no schedule of the program, nor a failure of one
    report_.error = make_error(error_kind(outcome.report.cause), "explore: ", cause, why_astray(cause, *asked.trace()));
    return;
  }
  if (outcome.failed()) found(asked.text(), 1, world, std::move(outcome));
}

std::string Search::why_astray(std::string_view cause, const Trace& trace) const {
  if (!cause.starts_with("replay diverged")) return "";  // the trace itself is to blame
  const int ranks = baseline_.world().world_size;
  // All ranks can run when a run begins.
  const bool begins = !trace.empty() && trace.steps()[0].rank < 0;
  if (!begins || trace.steps()[0].size == ranks) return "; the program is another than the one that left the trace";
  return absl::StrCat("; the trace is of ", trace.steps()[0].size,
                      " ranks, want RANKLOOM_RANKS=", trace.steps()[0].size, " beside it");
}

int64_t Search::ns_until(absl::Duration since_begin) const {
  const int64_t ns = absl::ToInt64Nanoseconds(since_begin);
  return ns > std::numeric_limits<int64_t>::max() - began_ns_ ? std::numeric_limits<int64_t>::max() : began_ns_ + ns;
}

void Search::exhaust() {
  const WorldOptions& base = baseline_.world();
  const std::string name = Strategy::exhaustive().name();
  report_.shares.push_back({.strategy = name});
  ExploreReport::Share& share = report_.shares.back();
  const bool alone = options_.strategies.size() == 1;
  const int64_t left = options_.max_runs - report_.runs;
  const Campaign::Budget budget{.runs = alone ? left : (left + 1) / 2,
                                .end_ns = ns_until(alone ? options_.max_time : options_.max_time / 2),
                                .last_ns = ns_until(options_.max_time)};
  const bool saw_any =
      campaign_ != nullptr ? exhaust_together(budget, name, &share) : exhaust_alone(budget, name, &share);
  if (report_.failure.has_value() || !report_.error.ok()) return;
  if (share.finished && !saw_any && base.world_size > 1)
    share.unseen.emplace_back("whatever the ranks share: they use nothing of rankloom's");
  // Faults that are drawn anew for each run are not all seen by one search.
  if (base.faults.rate() > 0 && options_.vary_faults) share.unseen.emplace_back("faults that each run draws anew");
  report_.verified = share.finished && share.unseen.empty();
}

// Both: whether any run made a call that rankloom sees.
bool Search::exhaust_alone(const Campaign::Budget& budget, const std::string& name, ExploreReport::Share* share) {
  const auto kept_tree = std::make_shared<ScheduleTree>();
  ScheduleTree& tree = *kept_tree;
  tree.record().begin_search(origin_);
  while (tree.more() && share->runs < budget.runs && monotonic_ns() < budget.end_ns) {
    Outcome outcome = run_explored(tree.hooks(), kept_tree);
    ++report_.runs;
    ++share->runs;
    report_progress(name);
    if (outcome.failed()) {
      share->schedules = tree.schedules() + 1;
      const WorldOptions again = baseline_.with(Schedule::replay(outcome.report.trace));
      found(name, share->runs, again, std::move(outcome));
      return true;
    }
    tree.advance();
    share->schedules = tree.schedules();
    share->open = tree.open();
    share->finished = !tree.more();
    share->unseen = tree.uncovered();
  }
  return tree.record().saw_any();
}

bool Search::exhaust_together(const Campaign::Budget& budget, const std::string& name, ExploreReport::Share* share) {
  const int64_t before = report_.runs;
  const auto take = [&](const Campaign::Explored& explored) {
    report_.runs = before + explored.runs;
    share->runs = explored.runs;
    share->schedules = explored.schedules;
    share->open = explored.open;
    share->finished = explored.finished;
  };
  Campaign::Explored explored = campaign_->explore(budget, [&](const Campaign::Explored& now) {
    take(now);
    tell_progress(name);
  });
  take(explored);
  share->unseen = std::move(explored.uncovered);
  if (!explored.failure.has_value()) {
    report_.error = campaign_->error();
    return explored.saw_any;
  }
  const Campaign::Failure& failure = *explored.failure;
  Schedule schedule = Schedule::steered(*baseline_.world().seed, failure.departures);
  if (failure.died.empty()) {
    absl::StatusOr<Trace> trace = Trace::parse(failure.seen.trace);
    if (trace.ok()) schedule = Schedule::replay(*std::move(trace));
  }
  // A run that ended its process was not counted.
  const int64_t run = share->runs + (failure.died.empty() ? 0 : 1);
  found_by_other(name, run, baseline_.with(schedule), failure);
  return true;
}

// --- strategies that draw from seeds

void Search::draw() {
  if (drawn_.empty()) return;
  const size_t first_share = report_.shares.size();
  for (const Strategy& strategy : drawn_) report_.shares.push_back({.strategy = strategy.name()});
  if (campaign_ != nullptr) {
    draw_together(first_share);
  } else {
    draw_alone(first_share);
  }
}

void Search::draw_alone(size_t first_share) {
  for (int64_t number = 0; budget_left(); ++number) {
    const Draw draw = draw_of(number);
    const std::string name = drawn_[draw.strategy].name();
    ++report_.runs;
    ++report_.shares[first_share + draw.strategy].runs;
    report_progress(name);
    Outcome outcome = run_drawn(number);
    if (outcome.failed()) return found(name, static_cast<int64_t>(draw.round) + 1, world_of(draw), std::move(outcome));
  }
}

void Search::draw_together(size_t first_share) {
  const int64_t before = report_.runs;
  const auto take = [&](const Campaign::Drawn& drawn) {
    report_.runs = before + drawn.all_runs();
    for (size_t s = 0; s < drawn.runs.size(); ++s) report_.shares[first_share + s].runs = drawn.runs[s];
  };
  const int64_t end_ns = ns_until(options_.max_time);
  const Campaign::Budget budget{.runs = options_.max_runs - before, .end_ns = end_ns, .last_ns = end_ns};
  const Campaign::Drawn drawn =
      campaign_->draw(static_cast<int>(drawn_.size()), budget, [&](const Campaign::Drawn& now) {
        take(now);
        tell_progress(drawn_[static_cast<size_t>(now.all_runs()) % drawn_.size()].name());
      });
  take(drawn);
  if (!drawn.failure.has_value()) {
    report_.error = campaign_->error();
    return;
  }
  const Draw draw = draw_of(drawn.failure->run);
  found_by_other(drawn_[draw.strategy].name(), static_cast<int64_t>(draw.round) + 1, world_of(draw), *drawn.failure);
}

// --- other processes

void Search::serve(LeaderLink* leader, const Schedule& asked) {
  origin_.among_others = true;
  on_own_thread([&] {
    const std::optional<Baseline::Failure> failure = baseline_.make(&report_.runs, options_.max_runs);
    CampaignIdentity identity = campaign_identity(options_, baseline_);
    if (asked.kind() != Schedule::Kind::kUnset) absl::StrAppend(&identity.options, ", schedule ", asked.text());
    if (failure.has_value()) identity.first_run = absl::StrCat("one that fails (", failure->outcome.headline(), ")");
    CampaignWorker(*this, origin_, leader).serve(identity);
    leader->left();
  });
}

void Search::start_others() {
  if (team_ == nullptr && options_.processes == 1) return;
  const CampaignIdentity identity = campaign_identity(options_, baseline_);
  if (team_ != nullptr) {
    WorkerLinks* const links = team_->start([this, identity](LeaderLink* leader) {
      on_own_thread([&] {
        CampaignWorker(*this, origin_, leader).serve(identity);
        leader->left();
      });
    });
    campaign_ = std::make_unique<Campaign>(links, identity);
    campaign_->await_greetings(ns_until(options_.max_time));
    report_.error = campaign_->error();
    return;
  }
  workers_ = std::make_unique<ForkedWorkers>(
      [this, identity](LeaderLink* leader) { CampaignWorker(*this, origin_, leader).serve(identity); });
  const int started = workers_->start(options_.processes);
  if (started < options_.processes) {
    report_.process_notes.push_back(absl::StrCat(
        started == 0 ? "none" : absl::StrCat("only ", started), " of ", options_.processes,
        " processes could be started: ", workers_->refused(), started == 0 ? "; this one searched alone" : ""));
  }
  if (started > 0) campaign_ = std::make_unique<Campaign>(workers_.get(), identity);
}

void Search::end_others(const std::string& found) {
  if (campaign_ != nullptr) {
    const std::vector<std::string>& deaths = campaign_->deaths();
    report_.process_notes.insert(report_.process_notes.end(), deaths.begin(), deaths.end());
  }
  campaign_.reset();
  workers_.reset();
  if (team_ != nullptr) team_->end(found);
}

void Search::found_by_other(const std::string& strategy, int64_t run, WorldOptions world,
                            const Campaign::Failure& theirs) {
  const bool named = world.schedule.kind() != Schedule::Kind::kReplay;
  end_others(absl::StrCat("explore: found by ", strategy, " in its run ", run, ", not shrunk: ", theirs.seen.headline,
                          named ? absl::StrCat("\nrun it again: ", baseline_.rerun_of(world)) : ""));
  const char* again = "";
  if (theirs.died.empty()) {
    std::vector<Schedule::Switch> departures;
    const bool replays = world.schedule.kind() == Schedule::Kind::kReplay;
    Outcome outcome = baseline_.run(world, {.departures = replays ? &departures : nullptr});
    // A run that went another way there can make other choices here: their trace is at fault, not the program.
    const bool astray = replays && is_error_of_replay(message_of(outcome.report.cause));
    if (outcome.failed() && !astray) return found(strategy, run, world, std::move(outcome));
    again = astray ? "went another way" : "went well";
    // Their trace is nowhere kept.
    if (replays) world = baseline_.with(Schedule::steered(*baseline_.world().seed, std::move(departures)));
  }
  ExploreReport::Failure failure;
  failure.strategy = strategy;
  failure.run = run;
  failure.found = world.schedule;
  failure.rerun = baseline_.rerun_of(world);
  failure.world = std::move(world);
  if (theirs.died.empty()) {
    failure.headline = theirs.seen.headline;
    failure.failures = theirs.seen.failures;
    failure.failures.push_back(absl::StrCat(
        "the same run ", again, " when it was made again by another process: it depends on more than the schedule"));
  } else {
    failure.headline =
        absl::StrCat("the process that made this run ended with ", theirs.died, "; what it printed stands above");
    failure.failures = {failure.headline};
  }
  report_.elapsed = absl::Nanoseconds(elapsed_ns());
  report_.failure = std::move(failure);
}

WorldOptions Search::world_of(const Draw& draw) const {
  WorldOptions world = baseline_.with(drawn_[draw.strategy].schedule(options_.first_seed + draw.round));
  if (world.faults.rate() > 0 && options_.vary_faults) {
    FaultPlan plan = FaultPlan::seeded(world.faults.seed() + draw.round, world.faults.rate(), world.faults.kinds());
    world.faults = plan.plus(baseline_.world().faults.faults());
  }
  return world;
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
    RunData::Search& kept = failure.report.kept->search;
    kept.run = run;
    if (world.schedule.kind() != Schedule::Kind::kReplay) kept.found = world.schedule.text();
    kept.found_switches = failure.found_switches;
    kept.shrink_runs = failure.shrink_runs;
    for (const ExploreReport::Share& share : report_.shares)
      kept.shares.push_back({share.strategy, share.runs, share.schedules, share.open, share.finished});
  }
  failure.strategy = strategy;
  failure.run = run;
  if (world.schedule.kind() != Schedule::Kind::kReplay) failure.found = world.schedule;
  report_.failure = std::move(failure);
}

void Search::report_progress(const std::string& strategy) {
  strategy_ = strategy;
  if (options_.progress ? (report_.runs & 15) != 0 : !line_.shown()) return;
  tell_progress(strategy);
}

void Search::tell_progress(const std::string& strategy) {
  strategy_ = strategy;
  const int64_t now = monotonic_ns();
  const int64_t every = options_.progress ? 1'000'000'000 : 200'000'000;
  if (now - reported_ns_ < every) return;
  reported_ns_ = now;
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
  if (absl::Status status = apply_environment_to_run(number, world); !status.ok()) return status;
  world->trace_limit = Trace::kWhole;  // whatever the environment says: what was found is run again by its trace
  const absl::StatusOr<int> ranks = ranks_from_environment(number);
  if (!ranks.ok()) return ranks.status();
  if (*ranks > 0) world->world_size = *ranks;
  if (wrong = check_options(*world); !wrong.ok()) return prefixed(wrong, "explore: ");
  *asked = std::exchange(world->schedule, {});
  if (asked->kind() == Schedule::Kind::kUnset || asked->deterministic()) return absl::OkStatus();
  return invalid_argument("explore: the schedule is ", asked->text(), ", want one that repeats itself");
}

}  // namespace

ExploreReport search(const ExploreOptions& options, int number, Program program, RunWorld run, CodeSite code,
                     SearchTeam* team) {
  WorldOptions world;
  Schedule asked;
  if (absl::Status status = prepare(options, number, code, &world, &asked); !status.ok()) {
    ExploreReport refused;
    refused.error = std::move(status);
    return refused;
  }
  Baseline baseline(options.checks, std::move(world), options.world.world_size, number, program, run);
  return Search(options, &baseline, team).run(asked);
}

WorldRun PlainRuns::operator()(const std::shared_ptr<World>& world, Program program,
                               std::vector<std::string>* /*failures*/, absl::FunctionRef<void()> look) const {
  const LibraryScope library;
  RunReport report = state_of(*world).run_once(program, code);
  look();
  return report;
}

void search_for(LeaderLink* leader, const ExploreOptions& options, int number, Program program, RunWorld run,
                CodeSite code) {
  WorldOptions world;
  Schedule asked;
  if (const absl::Status status = prepare(options, number, code, &world, &asked); !status.ok()) {
    const CampaignIdentity refused{
        .program = program_identity(), .options = absl::StrCat("\"", message_of(status), "\""), .first_run = "none"};
    (void)leader->send(CampaignNews{.kind = CampaignNews::Kind::kHello, .identity = refused}.encode());
    leader->left();
    return;
  }
  Baseline baseline(options.checks, std::move(world), options.world.world_size, number, program, run);
  Search(options, &baseline, nullptr).serve(leader, asked);
}

}  // namespace rankloom::internal

namespace rankloom {

using namespace internal;

ExploreReport explore(const ExploreOptions& options, absl::FunctionRef<void(RankContext&)> program, CodeSite code) {
  const int number = next_run();
  ExploreReport report = internal::search(options, number, program, PlainRuns{code}, code);
  if (report.failure.has_value())
    write_failed_run(absl::StrCat(program_name(), ".explore", name_of_run(number)), &report.failure->report);
  return report;
}

}  // namespace rankloom

#include "rankloom/explore.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/substitute.h"
#include "harness/explore/explore_workers.h"
#include "harness/explore/story.h"
#include "rankloom/error.h"
#include "rankloom/schedule.h"
#include "sim/base/parker.h"
#include "sim/base/text.h"
#include "sim/engine/fiber_engine.h"
#include "sim/schedule/schedule_tree.h"

namespace rankloom {
namespace internal {
namespace {

using Program = absl::FunctionRef<void(RankContext&)>;

constexpr std::string_view kObservations = "observations of explore";

struct Observation {
  std::string name;
  std::string text;
  std::string bytes;
};
using Observations = std::vector<std::vector<Observation>>;  // [rank]

std::string text_of(const absl::Status& status) {
  return std::string(status.message().data(), status.message().size());
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// A failure's text without what may differ from one schedule to the next, and with another number of ranks.
std::string gist(const std::string& text) {
  std::string out;
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  for (size_t i = 0; i < std::min<size_t>(3, lines.size()); ++i) {
    for (const char c : lines[i]) {
      if (absl::ascii_isalpha(static_cast<unsigned char>(c))) out += c;
    }
    if (i == 0 && !absl::StrContains(lines[0], "Expected")) break;
  }
  return absl::StrReplaceAll(out, {{"ranks", "rank"}});
}

// What one run came to.
struct Outcome {
  RunReport report;
  std::vector<std::string> failures;  // what the report does not say
  Observations results;
  std::vector<std::vector<std::string>>
      groups_made;  // [rank] those it belongs to, in the order in which they were made
  std::vector<std::vector<std::string>> groups_called;  // [rank] those it calls, in the order of their first calls
  std::vector<std::string> keys;
  std::vector<std::string> values;

  bool failed() const { return !report.ok() || !failures.empty(); }
  std::string headline() const { return first_line(!failures.empty() ? failures[0] : report.text()); }
  // Equal for runs that fail for the same reason.
  std::string signature() const {
    if (!failures.empty()) return gist(failures[0]);
    if (report.ok()) return "";
    return absl::StrCat(sv(error_kind_name(error_kind(report.cause))), " ", gist(text_of(report.cause)));
  }
};

class Explorer {
 public:
  Explorer(const ExploreOptions& options, Program program, RunWorld run)
      : options_(options), program_(program), run_(run), began_ns_(monotonic_ns()), told_ns_(began_ns_) {
    world_ = options_.world;
    world_.schedule = {};
    if (!world_.seed.has_value()) world_.seed = options_.first_seed;
    world_.max_steps = options_.max_steps;
    world_.trace_limit = Trace::kWhole;
  }

  ExploreReport explore();

 private:
  // --- one run
  Outcome run(WorldOptions world, const RunHooks& hooks = {});
  void look_around(World& world, Outcome* outcome) const;
  void compare(const Outcome& outcome, std::vector<std::string>* failures) const;
  WorldOptions with(const Schedule& schedule) const {
    WorldOptions world = world_;
    world.schedule = schedule;
    return world;
  }

  // --- the search
  bool baseline();
  void exhaust();
  void draw(Workers* workers);
  // `repeats`: the same schedule fails again, so that it can be shrunk.
  void found(const std::string& strategy, int64_t run, const WorldOptions& world, Outcome outcome, bool repeats = true);
  bool budget_left() const;
  void tell(const std::string& strategy);
  ExploreProgress progress_now() const {
    return {.strategy = strategy_, .runs = report_.runs, .elapsed = absl::Nanoseconds(monotonic_ns() - began_ns_)};
  }

  // --- shrinking
  FoundFailure shrink(WorldOptions world, const Outcome& outcome);
  bool still_fails(const WorldOptions& world);
  bool find_with(const WorldOptions& world, Outcome* outcome, WorldOptions* found);
  std::vector<Switch> switches_of(const WorldOptions& world, const Outcome& outcome);
  template <typename T>
  std::vector<T> fewest(std::vector<T> items, absl::FunctionRef<bool(const std::vector<T>&)> fails);

  const ExploreOptions& options_;
  const Program program_;
  const RunWorld run_;
  const int64_t began_ns_;
  int64_t told_ns_;
  std::string strategy_ = "default order";  // the one that runs now
  WorldOptions world_;
  ExploreReport report_;
  std::optional<Outcome> first_;  // what all others are compared with
  std::string signature_;         // of the failure that is shrunk
  int64_t shrink_runs_ = 0;
};

Outcome Explorer::run(WorldOptions options, const RunHooks& hooks) {
  Outcome outcome;
  World world(std::move(options), hooks);
  world.keep_all_groups();
  outcome.report = run_(world, program_, &outcome.failures);
  look_around(world, &outcome);
  if (outcome.report.ok()) {
    if (options_.checks.leaks) {
      for (const std::string& note : outcome.report.notes)
        outcome.failures.push_back(absl::StrCat("left over: ", note));
    }
    if (options_.checks.keys_left && !outcome.keys.empty()) {
      outcome.failures.push_back(absl::StrCat("left over: keys in the store: ", absl::StrJoin(outcome.keys, ", ")));
    }
    if (first_.has_value() && first_->report.outcomes.size() == outcome.report.outcomes.size())
      compare(outcome, &outcome.failures);
  }
  return outcome;
}

void Explorer::look_around(World& world, Outcome* outcome) const {
  const ExploreChecks& checks = options_.checks;
  if (checks.results) {
    const std::shared_ptr<void> seen = world.shared(
        kObservations, [] { return std::make_shared<Observations>(); }, World::Maker::kSame);
    outcome->results = std::move(*std::static_pointer_cast<Observations>(seen));
  }
  const std::vector<std::shared_ptr<const Group>> all_groups = world.groups();
  if (checks.groups && all_groups.size() > 1) {
    for (int rank = 0; rank < world.size(); ++rank) {
      std::vector<std::string>& made = outcome->groups_made.emplace_back();
      for (const std::shared_ptr<const Group>& group : all_groups) {
        if (group->group_rank(rank) >= 0) made.push_back(group->name());
      }
      std::vector<std::string>& groups = outcome->groups_called.emplace_back();
      for (const FlightEntry& entry : world.context(rank).recorder().entries()) {
        const std::string name = entry.group != nullptr ? entry.group->name() : "?";
        if (std::find(groups.begin(), groups.end(), name) == groups.end()) groups.push_back(name);
      }
    }
  }
  if (!checks.store_keys && !checks.store_values && !checks.keys_left) return;
  absl::StatusOr<std::vector<std::string>> keys = world.store().list_keys_status();
  if (!keys.ok()) return;
  outcome->keys = *std::move(keys);
  if (!checks.store_values) return;
  for (const std::string& key : outcome->keys) {
    const absl::StatusOr<std::string> value = world.store().get_status(key, {.timeout = absl::ZeroDuration()});
    outcome->values.push_back(value.ok() ? *value : "");
  }
}

// What differs from the first run.
void Explorer::compare(const Outcome& outcome, std::vector<std::string>* failures) const {
  const auto differ = [&](const std::string& what, const std::string& here, const std::string& there) {
    failures->push_back(absl::StrCat("results differ between schedules: ", what, " is ", here, " here, and ", there,
                                     " under ", first_->report.schedule));
  };
  const auto name_at = [](const std::vector<Observation>& list, size_t i) {
    return i < list.size() ? absl::StrCat("\"", list[i].name, "\"") : "nothing";
  };
  for (size_t rank = 0; rank < std::max(outcome.results.size(), first_->results.size()); ++rank) {
    static const auto* const none = new std::vector<Observation>;
    const std::vector<Observation>& here = rank < outcome.results.size() ? outcome.results[rank] : *none;
    const std::vector<Observation>& there = rank < first_->results.size() ? first_->results[rank] : *none;
    for (size_t i = 0; i < std::max(here.size(), there.size()); ++i) {
      if (i >= here.size() || i >= there.size() || here[i].name != there[i].name) {
        differ(absl::StrCat("observation ", i, " of rank ", rank), name_at(here, i), name_at(there, i));
        break;
      }
      if (here[i].bytes != there[i].bytes) {
        differ(absl::StrCat("rank ", rank, "'s \"", here[i].name, "\""), here[i].text, there[i].text);
      }
    }
  }
  const auto list_text = [](const std::vector<std::string>& list) {
    return list.empty() ? std::string("nothing") : absl::StrJoin(list, ", ");
  };
  using Lists = std::vector<std::vector<std::string>>;
  const auto compare_groups = [&](const std::string& what, const Lists& here, const Lists& there) {
    for (size_t rank = 0; rank < std::min(here.size(), there.size()); ++rank) {
      if (here[rank] != there[rank])
        differ(absl::Substitute(what, rank), list_text(here[rank]), list_text(there[rank]));
    }
  };
  compare_groups("the order in which rank $0's groups are made", outcome.groups_made, first_->groups_made);
  compare_groups("the order in which rank $0 first calls its groups", outcome.groups_called, first_->groups_called);
  if (options_.checks.store_keys && outcome.keys != first_->keys) {
    differ("what the store holds at the end", list_text(outcome.keys), list_text(first_->keys));
    return;
  }
  for (size_t i = 0; i < outcome.values.size() && options_.checks.store_values; ++i) {
    if (outcome.values[i] != first_->values[i]) {
      differ(absl::StrCat("the value of key \"", outcome.keys[i], "\""), outcome.values[i], first_->values[i]);
    }
  }
}

bool Explorer::budget_left() const {
  return report_.runs < options_.max_runs && monotonic_ns() - began_ns_ < absl::ToInt64Nanoseconds(options_.max_time);
}

void Explorer::tell(const std::string& strategy) {
  strategy_ = strategy;
  if ((report_.runs & 15) != 0) return;
  const int64_t now = monotonic_ns();
  const int64_t every = options_.progress ? 1'000'000'000 : 10'000'000'000;
  if (now - told_ns_ < every) return;
  told_ns_ = now;
  const ExploreProgress progress = progress_now();
  if (options_.progress) {
    options_.progress(progress);
  } else {
    std::fprintf(stderr, "explore: %lld of at most %lld runs in %s, now %s\n", static_cast<long long>(progress.runs),
                 static_cast<long long>(options_.max_runs), absl::FormatDuration(progress.elapsed).c_str(),
                 strategy.c_str());
  }
}

void Explorer::found(const std::string& strategy, int64_t run, const WorldOptions& world, Outcome outcome,
                     bool repeats) {
  report_.elapsed = absl::Nanoseconds(monotonic_ns() - began_ns_);
  const Schedule schedule = world.schedule;
  if (repeats) {
    report_.failure = shrink(world, outcome);
  } else {
    report_.failure.emplace();
    report_.failure->headline = outcome.headline();
    report_.failure->world = world;
    report_.failure->failures = std::move(outcome.failures);
    report_.failure->report = std::move(outcome.report);
    report_.failure->rerun = rerun_command(world);
  }
  report_.failure->report.rerun.clear();  // said once, with all that it takes
  report_.failure->strategy = strategy;
  report_.failure->run = run;
  if (schedule.kind() != Schedule::Kind::kReplay) report_.failure->found = schedule;
}

// The run that others are compared with, in default order, twice. False: it fails.
bool Explorer::baseline() {
  const WorldOptions world = with(Schedule::steered(*world_.seed, {}));
  Outcome outcome = run(world);
  ++report_.runs;
  if (!outcome.failed() && options_.checks.twice) {
    first_ = std::move(outcome);
    outcome = run(world);
    ++report_.runs;
    if (first_->report.trace != outcome.report.trace) {
      outcome.failures.insert(outcome.failures.begin(), first_difference(first_->report.trace, outcome.report.trace));
    }
    if (outcome.failed()) {
      outcome.failures.insert(outcome.failures.begin(),
                              "two runs of one schedule differ: the program is not deterministic");
      found("default order", 2, world, std::move(outcome), /*repeats=*/false);
      return false;
    }
  }
  if (outcome.failed()) {
    found("default order", 1, world, std::move(outcome));
    return false;
  }
  first_ = std::move(outcome);
  return true;
}

void Explorer::exhaust() {
  ScheduleTree tree;
  const std::string name = Strategy::exhaustive().name();
  const size_t share = report_.shares.size();
  report_.shares.push_back({.strategy = name});
  const bool alone = options_.strategies.size() == 1;
  const int64_t most = alone ? options_.max_runs : report_.runs + (options_.max_runs - report_.runs + 1) / 2;
  const int64_t most_ns = absl::ToInt64Nanoseconds(options_.max_time) / (alone ? 1 : 2);
  while (tree.more() && budget_left() && report_.runs < most && monotonic_ns() - began_ns_ < most_ns) {
    Outcome outcome = run(with(Schedule::steered(*world_.seed, {})), tree.hooks());
    ++report_.runs;
    ExploreReport::Share& mine = report_.shares[share];
    ++mine.runs;
    tell(name);
    if (outcome.failed()) {
      mine.schedules = tree.schedules() + 1;
      const WorldOptions again = with(Schedule::replay(outcome.report.trace));
      found(name, mine.runs, again, std::move(outcome));
      return;
    }
    tree.advance();
    mine.schedules = tree.schedules();
    mine.open = tree.open();
    mine.finished = !tree.more();
    mine.unseen = tree.uncovered();
    if (mine.finished && !tree.record().saw_any() && world_.world_size > 1)
      mine.unseen.emplace_back("whatever the ranks share: they use nothing of rankloom's");
  }
  // Faults that are drawn anew for each run are not all seen by one search.
  const bool all_faults = world_.faults.rate() == 0 || !options_.vary_faults;
  report_.verified = report_.shares[share].finished && report_.shares[share].unseen.empty() && all_faults;
}

void Explorer::draw(Workers* workers) {
  std::vector<Strategy> drawn;
  for (const Strategy& strategy : options_.strategies) {
    if (strategy.kind != Strategy::Kind::kExhaustive) drawn.push_back(strategy);
  }
  if (drawn.empty()) return;
  const size_t first_share = report_.shares.size();
  for (const Strategy& strategy : drawn) report_.shares.push_back({.strategy = strategy.name()});
  const auto world_of = [&](size_t strategy, uint64_t round) {
    WorldOptions world = with(drawn[strategy].schedule(options_.first_seed + round));
    if (world.faults.rate() > 0 && options_.vary_faults) {
      FaultPlan plan = FaultPlan::seeded(world.faults.seed() + round, world.faults.rate(), world.faults.kinds());
      world.faults = plan.plus(world_.faults.faults());
    }
    return world;
  };
  const auto try_one = [&](size_t strategy, uint64_t round, Outcome* outcome) {
    *outcome = run(world_of(strategy, round));
    return outcome->failed();
  };
  Outcome outcome;
  const auto mine = [&](uint64_t round) { return round % static_cast<uint64_t>(workers->count()) == 0; };
  workers->start([&](Workers::Found* out, int worker) {
    Outcome theirs;
    for (uint64_t round = static_cast<uint64_t>(worker); budget_left();
         round += static_cast<uint64_t>(workers->count())) {
      for (size_t s = 0; s < drawn.size() && budget_left(); ++s) {
        report_.runs += workers->count();  // as many as all of them make meanwhile
        ++out->runs;
        if (!try_one(s, round, &theirs)) continue;
        out->strategy = static_cast<int>(s);
        out->round = round;
        return;
      }
    }
  });
  const auto tell_found = [&](size_t s, uint64_t round) {
    found(drawn[s].name(), static_cast<int64_t>(round) + 1, world_of(s, round), std::move(outcome));
  };
  const int64_t before = report_.runs;
  int64_t own = 0;
  for (uint64_t round = 0; budget_left(); ++round) {
    if (!mine(round)) continue;
    for (size_t s = 0; s < drawn.size() && budget_left(); ++s) {
      ++own;
      report_.runs = before + own * workers->count();
      ++report_.shares[first_share + s].runs;
      tell(drawn[s].name());
      if (try_one(s, round, &outcome)) {
        workers->stop();
        report_.runs = before + own + workers->runs();
        return tell_found(s, round);
      }
    }
    if (std::optional<Workers::Found> theirs = workers->poll(/*wait=*/false); theirs.has_value()) {
      workers->stop();
      report_.runs = before + own + workers->runs();
      const size_t s = static_cast<size_t>(theirs->strategy);
      if (try_one(s, theirs->round, &outcome)) return tell_found(s, theirs->round);
    }
  }
  while (std::optional<Workers::Found> theirs = workers->poll(/*wait=*/true)) {
    const size_t s = static_cast<size_t>(theirs->strategy);
    if (!try_one(s, theirs->round, &outcome)) continue;
    workers->stop();
    report_.runs = before + own + workers->runs();
    return tell_found(s, theirs->round);
  }
  report_.runs = before + own + workers->runs();
}

// --- shrinking

bool Explorer::still_fails(const WorldOptions& world) {
  if (shrink_runs_ >= options_.max_shrink_runs) return false;
  ++shrink_runs_;
  const Outcome outcome = run(world);
  return outcome.failed() && outcome.signature() == signature_;
}

std::vector<Switch> Explorer::switches_of(const WorldOptions& world, const Outcome& outcome) {
  std::vector<Switch> switches;
  WorldOptions replayed = world;
  replayed.schedule = Schedule::replay(outcome.report.trace);
  ++shrink_runs_;
  run(replayed, {.departures = &switches});
  return switches;
}

// Delta debugging. A. Zeller, R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002. What is left fails, and
// does no more without any one of its items, if max_shrink_runs allows.
template <typename T>
std::vector<T> Explorer::fewest(std::vector<T> items, absl::FunctionRef<bool(const std::vector<T>&)> fails) {
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

// Whether a world of fewer ranks fails alike, under some schedule that is found quickly.
bool Explorer::find_with(const WorldOptions& base, Outcome* outcome, WorldOptions* found) {
  constexpr int kTries = 40;
  const auto fails = [&](const Schedule& schedule, const RunHooks& hooks = {}) {
    *found = base;
    found->schedule = schedule;
    ++shrink_runs_;
    *outcome = run(*found, hooks);
    return outcome->failed() && outcome->signature() == signature_;
  };
  const Schedule in_default_order = Schedule::steered(*base.seed, {});
  if (fails(in_default_order)) return true;
  ScheduleTree tree;
  for (int i = 0; i < kTries && tree.more(); ++i) {
    if (fails(in_default_order, tree.hooks())) {
      found->schedule = Schedule::replay(outcome->report.trace);
      return true;
    }
    tree.advance();
  }
  for (uint64_t seed = 1; seed <= kTries; ++seed) {
    for (const Strategy& strategy :
         {Strategy::pct(), Strategy::starve(), Strategy::late_completion(), Strategy::random()}) {
      if (fails(strategy.schedule(seed))) return true;
    }
  }
  return false;
}

FoundFailure Explorer::shrink(WorldOptions world, const Outcome& outcome) {
  signature_ = outcome.signature();
  shrink_runs_ = 0;
  FoundFailure failure;
  failure.headline = outcome.headline();
  std::vector<Switch> switches = switches_of(world, outcome);
  failure.found_switches = static_cast<int>(switches.size());
  failure.found = Schedule::steered(*world.seed, switches);
  // What went wrong by plan, call by call: drawn faults become listed ones.
  if (!world.faults.empty()) {
    WorldOptions listed = world;
    listed.faults = FaultPlan(outcome.report.faults);
    listed.schedule = Schedule::steered(*world.seed, switches);
    if (still_fails(listed)) world.faults = listed.faults;
  }
  for (int ranks = options_.min_ranks; ranks > 0 && ranks < world.world_size; ++ranks) {
    WorldOptions smaller = world;
    smaller.world_size = ranks;
    const std::optional<Outcome> first = std::exchange(first_, std::nullopt);
    if (first.has_value()) {  // its own: numbers depend on how many add up
      smaller.schedule = Schedule::steered(*world.seed, {});
      ++shrink_runs_;
      Outcome own = run(smaller);
      if (!own.failed()) first_ = std::move(own);
    }
    WorldOptions found_world;
    Outcome smaller_outcome;
    if (find_with(smaller, &smaller_outcome, &found_world)) {
      world = found_world;
      switches = switches_of(world, smaller_outcome);
      break;
    }
    first_ = first;
  }
  world.schedule = Schedule::steered(*world.seed, switches);
  if (still_fails(world)) {
    const auto with_faults = [&](const std::vector<Fault>& faults) {
      WorldOptions fewer = world;
      fewer.faults = FaultPlan(faults);
      return still_fails(fewer);
    };
    if (world.faults.rate() == 0) world.faults = FaultPlan(fewest<Fault>(world.faults.faults(), with_faults));
    const auto with_switches = [&](const std::vector<Switch>& some) {
      WorldOptions fewer = world;
      fewer.schedule = Schedule::steered(*world.seed, some);
      return still_fails(fewer);
    };
    world.schedule = Schedule::steered(*world.seed, fewest<Switch>(switches, with_switches));
  } else {  // what a program draws from elsewhere cannot be steered
    world.schedule = Schedule::replay(outcome.report.trace);
  }
  StepRecord record(/*texts=*/true);
  ++shrink_runs_;
  Outcome last = run(world, {.record = &record});
  failure.world = world;
  failure.failures = last.failures;
  failure.headline = last.failed() ? last.headline() : failure.headline;
  failure.report = std::move(last.report);
  failure.story = story_text(record, failure.report);
  failure.rerun = rerun_command(world);
  if (world.world_size != world_.world_size)
    failure.rerun = absl::StrCat("RANKLOOM_RANKS=", world.world_size, " ", failure.rerun);
  failure.shrink_runs = shrink_runs_;
  return failure;
}

ExploreReport Explorer::explore() {
  if (absl::Status status = apply_environment(&world_); !status.ok()) {
    report_.error = std::move(status);
    return std::move(report_);
  }
  const absl::StatusOr<int> ranks = ranks_from_environment();
  if (!ranks.ok()) {
    report_.error = ranks.status();
    return std::move(report_);
  }
  if (*ranks > 0) world_.world_size = *ranks;
  const Schedule asked = std::exchange(world_.schedule, {});
  if (asked.kind() != Schedule::Kind::kUnset && !asked.deterministic()) {
    report_.error = make_error(ErrorKind::kInvalidArgument, absl::StrCat("explore: the schedule is ", asked.text(),
                                                                         ", want one that repeats itself"));
    return std::move(report_);
  }
  Workers workers(options_.processes);
  const auto search = [&] {
    if (!baseline()) return;
    if (asked.kind() != Schedule::Kind::kUnset) {
      const WorldOptions world = with(asked);
      Outcome outcome = run(world);
      ++report_.runs;
      if (outcome.failed()) found(asked.text(), 1, world, std::move(outcome));
      return;
    }
    for (const Strategy& strategy : options_.strategies) {
      if (strategy.kind != Strategy::Kind::kExhaustive) continue;
      exhaust();
      if (report_.verified || report_.failure.has_value()) return;
      break;
    }
    draw(&workers);
  };
  if (world_.engine == EngineKind::kFibers) {
    with_fiber_thread(search);
  } else {
    search();
  }
  if (!report_.failure.has_value()) report_.elapsed = absl::Nanoseconds(monotonic_ns() - began_ns_);
  if (options_.progress) options_.progress(progress_now());
  return std::move(report_);
}

}  // namespace

void observe_bytes(RankContext& rank, std::string_view name, std::string_view text, std::string_view bytes) {
  World& world = rank.world();
  const size_t ranks = static_cast<size_t>(world.size());
  const std::shared_ptr<void> seen = world.shared(
      kObservations, [ranks] { return std::make_shared<Observations>(ranks); }, World::Maker::kSame);
  (*std::static_pointer_cast<Observations>(seen))[static_cast<size_t>(rank.rank())].push_back(
      {std::string(name), std::string(text), std::string(bytes)});
}

std::string number_text(double value) { return absl::StrFormat("%.17g", value); }

ExploreReport explore_with(const ExploreOptions& options, absl::FunctionRef<void(RankContext&)> program, RunWorld run) {
  return Explorer(options, program, run).explore();
}

}  // namespace internal

ExploreReport explore(const ExploreOptions& options, absl::FunctionRef<void(RankContext&)> program) {
  return internal::explore_with(
      options, program, [](World& world, absl::FunctionRef<void(RankContext&)> body, std::vector<std::string>*) {
        return world.run(body);
      });
}

std::string Strategy::name() const {
  switch (kind) {
    case Kind::kExhaustive:
      return "exhaustive";
    case Kind::kRandom:
      return "random";
    case Kind::kPct:
      return absl::StrCat("pct(", depth, ")");
    case Kind::kStarve:
      return "starve";
    case Kind::kLateCompletion:
      return "late_completion";
  }
  return "?";
}

Schedule Strategy::schedule(uint64_t seed) const {
  switch (kind) {
    case Kind::kExhaustive:
    case Kind::kRandom:
      return Schedule::seeded(seed);
    case Kind::kPct:
      return Schedule::pct(seed, depth);
    case Kind::kStarve:
      return Schedule::starve(seed);
    case Kind::kLateCompletion:
      return Schedule::late_completion(seed);
  }
  return Schedule::seeded(seed);
}

int FoundFailure::size() const {
  return static_cast<int>(world.schedule.switches().size() + world.faults.faults().size());
}

std::string ExploreReport::text() const {
  if (!error.ok()) return std::string(error.message().data(), error.message().size());
  const double seconds = absl::ToDoubleSeconds(elapsed);
  std::string text = absl::StrFormat("explored %d runs in %.3g s (%.0f a second): %s", runs, seconds,
                                     seconds > 0 ? static_cast<double>(runs) / seconds : 0.0,
                                     failure.has_value() ? "a schedule that fails" : "no failure");
  for (const Share& share : shares) {
    absl::StrAppend(&text, "\n  ", share.strategy, ": ");
    if (share.finished) {
      absl::StrAppend(&text, share.unseen.empty() ? "verified: " : "", "all ", share.schedules,
                      share.schedules == 1 ? " schedule" : " schedules",
                      share.unseen.empty() ? " that can differ" : " that rankloom can see", ", in ", share.runs,
                      share.runs == 1 ? " run" : " runs");
      if (!share.unseen.empty()) absl::StrAppend(&text, " (not seen: ", absl::StrJoin(share.unseen, "; "), ")");
    } else if (share.schedules > 0 || share.open > 0) {
      absl::StrAppend(&text, share.schedules, " schedules that can differ, at least ", share.open,
                      " more were not run");
    } else {
      absl::StrAppend(&text, share.runs, " runs");
    }
  }
  if (!failure.has_value()) return text;
  const FoundFailure& f = *failure;
  absl::StrAppend(&text, "\nfound by ", f.strategy, " in its run ", f.run, ", schedule ");
  const std::string found = f.found.text();
  absl::StrAppend(&text, found.size() <= 100 ? found : absl::StrCat(found.substr(0, 100), "..."));
  if (f.shrink_runs > 0) {
    absl::StrAppend(&text, "\nshrunk in ", f.shrink_runs, " runs: ", f.world.world_size, " ranks, ", f.found_switches,
                    " -> ", f.world.schedule.switches().size(), " switches from the default order");
  }
  if (!f.world.faults.empty()) absl::StrAppend(&text, ", faults ", f.world.faults.text());
  absl::StrAppend(&text, "\nrun it again: ", f.rerun, "\n");
  for (const std::string& line : f.failures) absl::StrAppend(&text, line, "\n");
  if (!f.report.ok()) absl::StrAppend(&text, f.report.text(), "\n");
  if (!f.story.empty()) absl::StrAppend(&text, "what happened, in this order:\n", f.story);
  return text;
}

}  // namespace rankloom

#include "harness/explore/baseline.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <tuple>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/substitute.h"
#include "rankloom/error.h"
#include "rankloom/schedule.h"
#include "sim/base/lock_order.h"
#include "sim/base/ranks_text.h"
#include "sim/base/text.h"
#include "sim/scheduler/scheduler.h"
#include "world/poison_hint.h"
#include "world/run_options.h"
#include "world/world_state.h"

namespace rankloom::internal {
namespace {

constexpr std::string_view kObservations = "observations of explore";

using ObservationLists = std::vector<std::vector<Observation>>;  // [rank]
using Lists = std::vector<std::vector<std::string>>;             // [rank]

// The observations of a run. A rank's helpers may make some beside it.
struct Observations {
  explicit Observations(size_t ranks) : lists(ranks) {}
  OrderedMutex mu{LockLevel::kSync};
  ObservationLists lists ABSL_GUARDED_BY(mu);
};

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

bool same_faults(const FaultPlan& a, const FaultPlan& b) { return (a.empty() && b.empty()) || a.text() == b.text(); }

void look_at_groups(World& world, Outcome* outcome) {
  const std::vector<std::shared_ptr<const Group>> all_groups = world.groups();
  if (all_groups.size() <= 1) return;
  for (int rank = 0; rank < world.size(); ++rank) {
    std::vector<std::string>& made = outcome->groups_made.emplace_back();
    made.push_back(all_groups[0]->name());
    for (std::string& name : state_of(world).groups_made(rank)) made.push_back(std::move(name));
    std::vector<std::string>& called = outcome->groups_called.emplace_back();
    for (const std::string& name : state_of(world).context(rank).groups_called()) {
      if (std::find(called.begin(), called.end(), name) == called.end()) called.push_back(name);
    }
  }
}

std::string list_text(const std::vector<std::string>& list) {
  return list.empty() ? std::string("nothing") : absl::StrJoin(list, ", ");
}

// Appends to a run's failures where it differs from the first.
class Comparison {
 public:
  // `poisoned`: outputs are, in these runs.
  Comparison(const Outcome& first, bool poisoned, Outcome* here) : first_(first), poisoned_(poisoned), here_(*here) {}

  void results() {
    for (size_t rank = 0; rank < std::max(here_.results.size(), first_.results.size()); ++rank) {
      results_of(static_cast<int>(rank), at(here_.results, rank), at(first_.results, rank));
    }
    for (const Difference& found : found_) tell(found);
    for (const auto& [rank, i, here, there] : unlike_)
      differ(absl::StrCat("observation ", i, " of rank ", rank), here, there);
  }
  // `what`: with $0 for the rank.
  void lists(const std::string& what, const Lists& here, const Lists& there) {
    for (size_t rank = 0; rank < std::min(here.size(), there.size()); ++rank) {
      if (here[rank] != there[rank]) {
        differ(absl::Substitute(what, rank), list_text(here[rank]), list_text(there[rank]));
      }
    }
  }
  // The same; without a list: the rank made no group beside the world's.
  void groups_made(const std::string& what) {
    static const Lists::value_type* const none = new Lists::value_type{"0"};
    for (size_t rank = 0; rank < std::max(here_.groups_made.size(), first_.groups_made.size()); ++rank) {
      const auto& here = rank < here_.groups_made.size() ? here_.groups_made[rank] : *none;
      const auto& there = rank < first_.groups_made.size() ? first_.groups_made[rank] : *none;
      if (here != there) differ(absl::Substitute(what, rank), list_text(here), list_text(there));
    }
  }
  void store(const ExploreOptions::Checks& checks) {
    if (checks.store_keys && here_.keys != first_.keys) {
      differ("what the store holds at the end", list_text(here_.keys), list_text(first_.keys));
      return;
    }
    if (!checks.store_values) return;
    for (size_t i = 0; i < here_.keys.size(); ++i) {
      // Both are sorted. Whether both have a key is for another check.
      const auto there = std::lower_bound(first_.keys.begin(), first_.keys.end(), here_.keys[i]);
      if (there == first_.keys.end() || *there != here_.keys[i]) continue;
      const std::string& value = first_.values[static_cast<size_t>(there - first_.keys.begin())];
      if (here_.values[i] != value)
        differ(absl::StrCat("the value of key \"", here_.keys[i], "\""), here_.values[i], value);
    }
  }

 private:
  static const std::vector<Observation>& at(const ObservationLists& results, size_t rank) {
    static const auto* const none = new std::vector<Observation>;
    return rank < results.size() ? results[rank] : *none;
  }
  static std::string name_at(const std::vector<Observation>& list, size_t i) {
    return i < list.size() ? absl::StrCat("\"", list[i].name, "\"") : "nothing";
  }

  // An observation that differs, and the ranks of which it does so.
  struct Difference {
    const Observation& here;
    const Observation& there;
    std::vector<int> ranks;
  };

  // Of observations of one name the first that differs is told: a loop's later ones come of it.
  void results_of(int rank, const std::vector<Observation>& here, const std::vector<Observation>& there) {
    std::vector<std::string_view> told;
    for (size_t i = 0; i < std::max(here.size(), there.size()); ++i) {
      if (i >= here.size() || i >= there.size() || here[i].name != there[i].name) {
        if (told.empty()) unlike_.push_back({rank, i, name_at(here, i), name_at(there, i)});
        return;
      }
      if (here[i].bytes == there[i].bytes || std::find(told.begin(), told.end(), here[i].name) != told.end()) continue;
      told.push_back(here[i].name);
      const auto like = std::find_if(found_.begin(), found_.end(), [&](const Difference& other) {
        return other.here.name == here[i].name && other.here.text == here[i].text && other.here.open == here[i].open &&
               other.there.text == there[i].text && other.there.open == there[i].open;
      });
      if (like != found_.end()) {
        like->ranks.push_back(rank);
      } else {
        found_.push_back({here[i], there[i], {rank}});
      }
    }
  }
  // Ranks of one and the same difference share it. The first line is that of a rank, however many there are: it is what
  // shrinking, which makes them fewer, knows the failure by.
  void tell(const Difference& found) {
    const std::string& open = !found.here.open.empty() ? found.here.open : found.there.open;
    std::string more;
    if (found.ranks.size() > 1)
      more = absl::StrCat("\nthe same of ", ranks_text({found.ranks.begin() + 1, found.ranks.end()}));
    // A read of an output before its wait() shows the poison under one schedule only.
    if (!open.empty()) {
      more += open_outputs_hint({{ranks_text(found.ranks), open}});
    } else if (poisoned_) {
      more += poison_hint(absl::StrCat(found.here.text, " ", found.there.text));
    }
    differ(absl::StrCat("rank ", found.ranks.front(), "'s \"", found.here.name, "\""), found.here.text,
           found.there.text, more);
  }
  void differ(const std::string& what, const std::string& here, const std::string& there,
              const std::string& hint = {}) {
    here_.failures.push_back(absl::StrCat("results differ between schedules: ", what, " is ", here, " here, and ",
                                          there, " under ", first_.report.schedule, hint));
  }

  const Outcome& first_;
  const bool poisoned_;
  Outcome& here_;
  std::vector<Difference> found_;
  std::vector<std::tuple<int, size_t, std::string, std::string>> unlike_;  // rank, number, names of observations
};

}  // namespace

std::string Outcome::headline() const {
  const std::string text = !failures.empty() ? failures[0] : report.text();
  return text.substr(0, text.find('\n'));
}

std::string Outcome::signature() const {
  if (!failures.empty()) return gist(failures[0]);
  if (report.ok()) return "";
  return absl::StrCat(sv(error_kind_name(error_kind(report.cause))), " ", gist(message_of(report.cause)));
}

WorldOptions Baseline::with(const Schedule& schedule) const {
  WorldOptions world = world_;
  world.schedule = schedule;
  return world;
}

std::string Baseline::rerun_of(const WorldOptions& world) const {
  std::string command = rerun_command(world);
  // Of a failure that needs no fault: the program's own would come back.
  if (world.faults.empty() && !world_.faults.empty() && !command.empty()) command = "RANKLOOM_FAULTS= " + command;
  return rerun_with(world.world_size, std::move(command));
}

std::string Baseline::rerun_with(int ranks, std::string command) const {
  if (number_ == 0) return "";  // within a rank, whose run repeats the search
  // The program says neither how many ranks shrinking has left nor how many the environment asked for.
  if (ranks != own_ranks_ && !command.empty()) command = absl::StrCat("RANKLOOM_RANKS=", ranks, " ", command);
  return rerun_of_run(number_, std::move(command));
}

std::optional<Baseline::Failure> Baseline::make(int64_t* runs, int64_t most) {
  const WorldOptions world = with(Schedule::steered(*world_.seed, {}));
  Outcome outcome = run(world);
  ++*runs;
  if (!outcome.failed() && checks_.twice && *runs < most) {
    baseline_outcome_ = std::move(outcome);
    outcome = run(world);
    ++*runs;
    if (baseline_outcome_->report.trace != outcome.report.trace) {
      outcome.failures.insert(outcome.failures.begin(),
                              first_difference(baseline_outcome_->report.trace, outcome.report.trace));
    }
    if (outcome.failed()) {
      outcome.failures.insert(outcome.failures.begin(),
                              "two runs of one schedule differ: the program is not deterministic");
      return Failure{.world = world, .outcome = std::move(outcome), .run = 2, .repeats = false};
    }
  }
  if (outcome.failed()) return Failure{.world = world, .outcome = std::move(outcome), .run = 1, .repeats = true};
  baseline_outcome_ = std::move(outcome);
  return std::nullopt;
}

std::vector<std::string> Baseline::missed_faults() const {
  if (!baseline_outcome_.has_value()) return {};
  return baseline_outcome_->missed_faults;
}

Outcome Baseline::run(const WorldOptions& world, const RunHooks& hooks, std::shared_ptr<const void> owner) {
  Outcome outcome = run_alone(world, hooks, std::move(owner));
  const auto comparable = [&](const Outcome& first) {
    return outcome.report.ok() && !outcome.skipped && !first.skipped &&
           first.report.outcomes.size() == outcome.report.outcomes.size();
  };
  if (!baseline_outcome_.has_value() || !comparable(*baseline_outcome_)) return outcome;
  if (same_faults(outcome.faults, baseline_outcome_->faults)) {
    compare(*baseline_outcome_, &outcome);
    return outcome;
  }
  // A run may be like the baseline because of its faults, or because of the baseline's.
  const Outcome& first = first_with_faults_of(world);
  if (!first.report.ok()) {
    outcome.failures.push_back(
        absl::StrCat("with the same faults the run under ", first.report.schedule, " fails: ", first.headline()));
  } else if (comparable(first)) {
    compare(first, &outcome);
  }
  return outcome;
}

const Outcome& Baseline::first_with_faults_of(const WorldOptions& world) {
  if (!with_other_faults_.has_value() || !same_faults(with_other_faults_->faults, world.faults) ||
      with_other_faults_->report.outcomes.size() != static_cast<size_t>(world.world_size)) {
    WorldOptions in_default_order = world;
    in_default_order.schedule = Schedule::steered(*world_.seed, {});
    with_other_faults_ = run_alone(std::move(in_default_order), {}, nullptr);
  }
  return *with_other_faults_;
}

Outcome Baseline::run_alone(WorldOptions options, const RunHooks& hooks, std::shared_ptr<const void> owner) const {
  Outcome outcome;
  outcome.faults = options.faults;
  const std::shared_ptr<World> made(WorldState::make(std::move(options), hooks).release(),
                                    [owner = std::move(owner)](const World* world) { delete world; });
  World& world = *made;
  state_of(world).keep_all_groups();
  // For a run that hangs: the report's is told with the failure.
  if (hooks.policies != nullptr) {
    // The run's choices are the search's, which no schedule names before the run has ended. The search finds them
    // again.
    world.scheduler().set_rerun(program_command());
  } else if (number_ > 1 || world.size() != own_ranks_) {
    world.scheduler().set_rerun(rerun_with(world.size(), world.scheduler().rerun()));
  }
  WorldRun ran = run_(made, program_, &outcome.failures, [&] { look_around(world, &outcome); });
  outcome.report = std::move(ran.report);
  outcome.skipped = ran.skipped;
  if (outcome.skipped) return outcome;
  outcome.missed_faults = state_of(world).missed_faults();
  if (!outcome.report.ok()) return outcome;
  if (checks_.leaks) {
    for (const WorldState::Note& note : state_of(world).failing_notes()) {
      const bool left = note.kind == WorldState::NoteKind::kLeftover;
      outcome.failures.push_back(absl::StrCat(left ? "left over: " : "", note.text));
    }
  }
  if (checks_.keys_left && !outcome.keys.empty()) {
    outcome.failures.push_back(absl::StrCat("left over: keys in the store: ", absl::StrJoin(outcome.keys, ", ")));
  }
  return outcome;
}

std::vector<std::string> keys_of(Store& store) {
  absl::StatusOr<StoreReply> keys = store.execute({.op = StoreCall::Op::kListKeys});
  return keys.ok() ? std::move(keys->values) : std::vector<std::string>();
}

std::optional<std::string> value_of(Store& store, std::string_view key) {
  absl::StatusOr<StoreReply> got =
      store.execute({.op = StoreCall::Op::kGet, .keys = {&key, 1}, .timeout = absl::ZeroDuration()});
  if (!got.ok()) return std::nullopt;
  return std::move(got->value);
}

void Baseline::look_around(World& world, Outcome* outcome) const {
  if (checks_.results) {
    const std::shared_ptr<Observations> seen = state_of(world).shared<Observations>(
        kObservations, [] { return std::make_shared<Observations>(0); }, WorldState::Maker::kSame);
    OrderedMutexLock lock(&seen->mu);
    outcome->results = std::move(seen->lists);
  }
  if (checks_.groups) look_at_groups(world, outcome);
  if (!checks_.store_keys && !checks_.store_values && !checks_.keys_left) return;
  outcome->keys = keys_of(world.store());
  if (!checks_.store_values) return;
  for (const std::string& key : outcome->keys) outcome->values.push_back(value_of(world.store(), key).value_or(""));
}

void Baseline::compare(const Outcome& first, Outcome* outcome) const {
  Comparison comparison(first, world_.poison.value_or(true), outcome);
  comparison.results();
  comparison.groups_made("the order in which rank $0's groups are made");
  comparison.lists("the order in which rank $0 first calls its groups", outcome->groups_called, first.groups_called);
  comparison.store(checks_);
}

void observe_bytes(RankContext& rank, std::string_view name, std::string_view text, std::string_view bytes) {
  WorldState& world = state_of(rank).world();
  uses_memory_of(&world.scheduler(), rank.rank());
  const size_t ranks = static_cast<size_t>(world.size());
  const std::shared_ptr<Observations> seen = world.shared<Observations>(
      kObservations, [ranks] { return std::make_shared<Observations>(ranks); }, WorldState::Maker::kSame);
  Observation observation{.name = std::string(name),
                          .text = std::string(text),
                          .bytes = std::string(bytes),
                          .open = state_of(rank).open_calls_text()};
  OrderedMutexLock lock(&seen->mu);
  seen->lists[static_cast<size_t>(rank.rank())].push_back(std::move(observation));
}

std::string number_text(long double value) {
  // A double has 17 digits, and is told by them; only a long double of more bits needs 21.
  if (const double rounded = static_cast<double>(value); static_cast<long double>(rounded) == value || value != value)
    return absl::StrFormat("%.17g", rounded);
  std::array<char, 64> text;
  const int size = std::snprintf(text.data(), text.size(), "%.21Lg", value);
  return std::string(text.data(), static_cast<size_t>(size));
}

}  // namespace rankloom::internal

#include "tests/explore/searches.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "harness/explore/campaign_messages.h"
#include "rankloom/random.h"
#include "sim/engine/fiber_engine.h"
#include "sim/schedule/early_changes.h"
#include "sim/schedule/schedule_trunk.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

void add(const Outcome& outcome, const std::string& schedule, Found* found) {
  (outcome.aborted ? found->aborts : found->outcomes).emplace(outcome.text, schedule);
}

// Whether `outcome`, or one in which more of what was read too early is poison, is in `all`. Looks from `at` on.
bool found_in(const std::map<std::string, std::string>& all, const std::string& outcome, size_t at = 0) {
  if (all.contains(outcome)) return true;
  const size_t early = outcome.find(kEarly, at);
  if (early == std::string::npos) return false;
  const size_t value = early + std::strlen(kEarly);
  std::string poisoned = outcome;
  poisoned.replace(value, poisoned.find('>', value) - value, kPoison);
  return found_in(all, poisoned, value) || found_in(all, outcome, value);
}

// Those of `some` that are not in `all`, as text.
std::string missing(const std::map<std::string, std::string>& some, const std::map<std::string, std::string>& all) {
  std::string text;
  for (const auto& [outcome, schedule] : some) {
    if (!found_in(all, outcome)) absl::StrAppend(&text, "    ", outcome, "   (", schedule, ")\n");
  }
  return text;
}

std::string listed(const std::map<std::string, std::string>& outcomes) { return missing(outcomes, {}); }

bool contains_abort(const Found& found, const char* part) {
  return std::any_of(found.aborts.begin(), found.aborts.end(),
                     [part](const auto& abort) { return absl::StrContains(abort.first, part); });
}

}  // namespace

Outcome outcome_of(RunReport report, const std::vector<std::string>& seen) {
  Outcome outcome;
  if (!report.ok()) {
    std::vector<std::string> notes;
    notes.swap(report.notes);
    const std::string text = report.text();
    notes.swap(report.notes);
    // The outcome is that of the deadlock, whatever a rank does after a deadlock was told.
    const bool deadlock = absl::StartsWith(report.cause.message(), "no rank can move");
    outcome.text = deadlock ? "Deadlock: no rank can move: " : text.substr(0, text.find('\n'));
    outcome.aborted = !deadlock;
    if (outcome.aborted) return outcome;
  }
  outcome.text += absl::StrJoin(seen, " |");
  std::sort(report.notes.begin(), report.notes.end());
  for (const std::string& note : report.notes) absl::StrAppend(&outcome.text, " note: ", note);
  return outcome;
}

Outcome run_once(int ranks, const Schedule& schedule, const RunHooks& hooks,
                 absl::FunctionRef<std::string(RankContext&)> program) {
  std::vector<std::string> seen(static_cast<size_t>(ranks));
  RunReport report = WorldState::make({.world_size = ranks,
                                       .engine = EngineKind::kFibers,
                                       .schedule = schedule,
                                       .seed = 1,
                                       .max_steps = 5'000,
                                       .stall = absl::InfiniteDuration()},
                                      hooks)
                         ->run([&](RankContext& rank) { seen[static_cast<size_t>(rank.rank())] = program(rank); });
  return outcome_of(std::move(report), seen);
}

Found search_tree(RunOnce run, const ScheduleTree::Options& options, int most,
                  const std::function<bool(const StepRecord::Op&)>& leave_out) {
  ScheduleTree tree(options);
  tree.record().leave_out_for_tests(leave_out);
  const char* const name = !options.reduce ? "unreduced" : options.shuffle != 0 ? "shuffled" : "reduced";
  Found found;
  for (int i = 0; i < most && tree.more(); ++i) {
    add(run(Schedule::steered(0, {}), tree.hooks()), absl::StrCat(name, " run ", i + 1), &found);
    tree.advance();
  }
  found.schedules = tree.schedules();
  found.repeated = tree.repeated();
  found.all = !tree.more();
  for (const std::string& why : tree.uncovered()) {
    if (absl::StrContains(why, "tells of nothing")) absl::StrAppend(&found.untold, "  ", why, "\n");
    found.doubtful |= why == kEarlyChange || why == kWaitThatLooks;
  }
  return found;
}

namespace {

// A search in parts by one process.
class PartsSearch {
 public:
  PartsSearch(RunOnce run, uint64_t seed, int most, const std::function<bool(const StepRecord::Op&)>& leave_out)
      : run_(run), prng_(seed), most_(most), leave_out_(leave_out) {}

  Found search() {
    for (int rooted = 0; rooted == 0 || (rooted == 1 && rooted_asked_); ++rooted) {
      ScheduleTrunk trunk(rooted);
      parts_.clear();
      while (!trunk.finished()) {
        if (runs_ >= most_) return found_;
        if (parts_.empty() || prng_.below(3) == 0) {
          if (const int64_t number = trunk.take(); number >= 0) parts_.push_back({.number = number});
        }
        if (parts_.empty()) {
          found_.aborts.emplace("no part is left, and the search is not done", "");
          return found_;
        }
        go_on_with(static_cast<size_t>(prng_.below(parts_.size())), &trunk);
      }
    }
    found_.all = true;
    return found_;
  }

 private:
  using State = CampaignNews::State;
  struct Part {
    int64_t number;
    std::optional<TreePart> rest = {};
  };

  void go_on_with(size_t index, ScheduleTrunk* trunk) {
    Part& part = parts_[index];
    TreePart from = part.rest.has_value() ? trunk->part(part.number, *part.rest) : trunk->part(part.number);
    from.completions_write = completions_write_;
    ScheduleTree tree(std::move(from));
    tree.record().leave_out_for_tests(leave_out_);
    // Nobody hears of what a process did last.
    const bool dies = prng_.below(6) == 0;
    Found found;
    for (uint64_t turns = 1 + prng_.below(4); turns > 0 && tree.more() && runs_ < most_; --turns) {
      add(run_(Schedule::steered(0, {}), tree.hooks()), absl::StrCat("parts run ", ++runs_), &found);
      tree.advance();
    }
    if (dies) return;
    if (tree.schedules() + tree.repeated() == 0) return;
    bool fits = tree.floor() == 0 || trunk->opened(part.number, tree.step_at_floor());
    if (prng_.below(2) == 0) fits = fits && trunk->give(part.number, tree.give());
    // All else goes by a message, as between two processes.
    const CampaignNews told =
        *CampaignNews::decode(CampaignNews::of_part(&tree, tree.more() ? State::kGoing : State::kDone).encode());
    for (const TreeWish& wish : told.wishes) {
      if (!fits || !trunk->wish(part.number, wish)) found.aborts.emplace("a part does not fit", "");
    }
    if (tree.more()) {
      part.rest = told.rest;
    } else {
      trunk->finish(part.number);
      parts_.erase(parts_.begin() + static_cast<std::ptrdiff_t>(index));
    }
    found_.outcomes.merge(found.outcomes);
    found_.aborts.merge(found.aborts);
    found_.schedules += tree.schedules();
    found_.repeated += tree.repeated();
    rooted_asked_ |= told.rooted_asked;
    completions_write_ |= told.completions_write;
    for (const std::string& why : told.uncovered) {
      if (absl::StrContains(why, "tells of nothing")) absl::StrAppend(&found_.untold, "  ", why, "\n");
    }
  }

  RunOnce run_;
  Prng prng_;
  const int most_;
  const std::function<bool(const StepRecord::Op&)>& leave_out_;
  std::vector<Part> parts_;
  int runs_ = 0;
  bool rooted_asked_ = false;
  bool completions_write_ = false;
  Found found_;
};

}  // namespace

Found search_parts(RunOnce run, uint64_t seed, int most, const std::function<bool(const StepRecord::Op&)>& leave_out) {
  return PartsSearch(run, seed, most, leave_out).search();
}

Found search_seeds(RunOnce run, int seeds, bool plain) {
  Found found;
  const auto once = [&](const Schedule& schedule) {
    add(run(schedule, {}), schedule.text(), &found);
    ++found.schedules;
  };
  if (plain) {
    once(Schedule::fifo());
    once(Schedule::round_robin());
  }
  for (int i = 1; i <= seeds; ++i) {
    const uint64_t seed = static_cast<uint64_t>(i);
    once(Schedule::seeded(seed));
    once(Schedule::pct(seed, 3));
    once(Schedule::starve(seed));
    once(Schedule::late_completion(seed));
  }
  return found;
}

Found search_free(RunOnce run, int runs) {
  Found found;
  for (; found.schedules < runs; ++found.schedules) add(run(Schedule::free(), {}), "free", &found);
  return found;
}

std::ostream& operator<<(std::ostream& out, Flaw flaw) { return out << flaw_name(flaw); }

std::string flaw_name(Flaw flaw) {
  switch (flaw) {
    case Flaw::kNone:
      return "none";
    case Flaw::kLost:
      return "lost";
    case Flaw::kLostNoted:
      return "lost, with notes";
    case Flaw::kLostFailure:
      return "lost failure";
    case Flaw::kUnreducedLost:
      return "lost by the unreduced search";
    case Flaw::kInvented:
      return "invented";
    case Flaw::kOrderMatters:
      return "order of the search matters";
    case Flaw::kCountVaries:
      return "count varies";
    case Flaw::kOtherwise:
      return "not repeatable";
    case Flaw::kEndless:
      return "endless";
    case Flaw::kUntold:
      return "untold";
  }
  return "";
}

Searches search_all(RunOnce run, const SearchLimits& limits) {
  Searches searches;
  with_fiber_thread([&] {  // once, not for each of thousands of runs
    searches.unreduced = search_tree(run, {.reduce = false}, limits.unreduced);
    searches.seeds = search_seeds(run, limits.seeds, limits.plain);
  });
  Found free = search_free(run, limits.free);
  searches.seeds.outcomes.merge(free.outcomes);
  searches.seeds.aborts.merge(free.aborts);
  searches.seeds.schedules += free.schedules;
  search_reduced(run, limits, &searches);
  return searches;
}

void search_reduced(RunOnce run, const SearchLimits& limits, Searches* searches) {
  searches->shuffled.clear();
  with_fiber_thread([&] {
    searches->reduced = search_tree(run, {}, limits.reduced, limits.leave_out);
    for (int i = 1; i <= limits.shuffles; ++i) {
      searches->shuffled.push_back(
          search_tree(run, {.shuffle = static_cast<uint64_t>(i)}, limits.reduced, limits.leave_out));
    }
    // Runs of a process that was lost are made again.
    for (int i = 1; i <= limits.parts; ++i) {
      searches->shuffled.push_back(search_parts(run, static_cast<uint64_t>(i), 2 * limits.reduced, limits.leave_out));
    }
  });
}

Comparison compare_searches(RunOnce run, const SearchLimits& limits) {
  return compare(search_all(run, limits), limits);
}

Found without_outcomes(const Found& found) {
  Found none;
  none.schedules = found.schedules;
  return none;
}

Comparison compare(const Searches& searches, const SearchLimits& limits) {
  const Found& unreduced = searches.unreduced;
  const Found& reduced = searches.reduced;
  const std::vector<Found>& shuffled = searches.shuffled;
  const bool doubtful = reduced.doubtful || unreduced.doubtful;
  // Under seeds a call may be done before its rank goes on and changes a buffer, which no search tries.
  const Found seeds = doubtful ? without_outcomes(searches.seeds) : searches.seeds;
  Comparison result;
  result.unreduced_finished = unreduced.all;
  result.reduced_finished = reduced.all;
  result.runs = unreduced.schedules + unreduced.repeated + reduced.schedules + reduced.repeated + seeds.schedules;
  const auto flawed = [&result](Flaw flaw, std::string text) {
    result.flaw = flaw;
    result.text = std::move(text);
  };
  for (const Found* found : {&reduced, &unreduced}) {
    if (!contains_abort(*found, "not deterministic")) continue;
    flawed(Flaw::kOtherwise, listed(found->aborts));
    return result;
  }
  for (const Found* found : {&reduced, &unreduced, &seeds}) {
    if (!contains_abort(*found, "did not end within")) continue;
    flawed(Flaw::kEndless, listed(found->aborts));
    return result;
  }
  if (!reduced.untold.empty()) {
    flawed(Flaw::kUntold, reduced.untold);
    return result;
  }
  Found others = unreduced;
  others.outcomes.insert(seeds.outcomes.begin(), seeds.outcomes.end());
  others.aborts.insert(seeds.aborts.begin(), seeds.aborts.end());
  // explore() ends with the first failure, so nothing need come after one.
  if (reduced.all && reduced.aborts.empty()) {
    if (!others.aborts.empty()) {
      flawed(Flaw::kLostFailure, listed(others.aborts));
      return result;
    }
    if (std::string lost = missing(others.outcomes, reduced.outcomes); !lost.empty()) {
      const bool noted = std::all_of(others.outcomes.begin(), others.outcomes.end(), [&](const auto& outcome) {
        return found_in(reduced.outcomes, outcome.first) || absl::StrContains(outcome.first, " note: ");
      });
      flawed(noted ? Flaw::kLostNoted : Flaw::kLost,
             absl::StrCat("  lost, of ", others.outcomes.size(), ":\n", lost, "  found:\n", listed(reduced.outcomes)));
      return result;
    }
  }
  if (unreduced.all && unreduced.aborts.empty()) {
    std::string lost = missing(seeds.outcomes, unreduced.outcomes) + listed(seeds.aborts);
    if (!lost.empty()) {
      flawed(Flaw::kUnreducedLost, absl::StrCat("  lost, of ", others.outcomes.size() + others.aborts.size(), ":\n",
                                                lost, "  found:\n", listed(unreduced.outcomes)));
      return result;
    }
    lost = missing(reduced.outcomes, unreduced.outcomes) + listed(reduced.aborts);
    if (!lost.empty()) {
      flawed(Flaw::kInvented, absl::StrCat("  invented:\n", lost));
      return result;
    }
  }
  for (const Found& found : shuffled) {
    if (!found.all || !reduced.all || !reduced.aborts.empty() || found.doubtful || doubtful) continue;
    const std::string lost = missing(reduced.outcomes, found.outcomes);
    const std::string invented = missing(found.outcomes, reduced.outcomes) + listed(found.aborts);
    if (lost.empty() && invented.empty() && (!limits.counts || found.schedules == reduced.schedules)) continue;
    flawed(lost.empty() && invented.empty() ? Flaw::kCountVaries : Flaw::kOrderMatters,
           absl::StrCat("  ", found.schedules, " schedules, ", reduced.schedules, " in the default order\n  lost:\n",
                        lost, "  found beside:\n", invented));
    return result;
  }
  return result;
}

}  // namespace rankloom

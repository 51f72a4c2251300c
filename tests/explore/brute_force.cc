#include "tests/explore/brute_force.h"

#include <algorithm>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sim/fiber_engine.h"
#include "sim/schedule_tree.h"

namespace rankloom {
namespace {

void add(const SmallOutcome& outcome, const std::string& schedule, Found* found) {
  (outcome.aborted ? found->aborts : found->outcomes).emplace(outcome.text, schedule);
}

// Those of `some` that are not in `all`, as text.
std::string missing(const std::map<std::string, std::string>& some, const std::map<std::string, std::string>& all) {
  std::string text;
  for (const auto& [outcome, schedule] : some) {
    if (!all.contains(outcome)) absl::StrAppend(&text, "    ", outcome, "   (", schedule, ")\n");
  }
  return text;
}

std::string listed(const std::map<std::string, std::string>& outcomes) { return missing(outcomes, {}); }

bool contains_abort(const Found& found, const char* part) {
  return std::any_of(found.aborts.begin(), found.aborts.end(),
                     [part](const auto& abort) { return absl::StrContains(abort.first, part); });
}

}  // namespace

Found search_tree(const SmallProgram& program, bool reduce, int most) {
  const auto tree = std::make_shared<ScheduleTree>(reduce);
  Found found;
  for (int i = 0; i < most && tree->more(); ++i) {
    add(run_program(program, Schedule::exploring(tree)), absl::StrCat(reduce ? "reduced" : "unreduced", " run ", i + 1),
        &found);
    tree->advance();
  }
  found.schedules = tree->schedules();
  found.repeated = tree->repeated();
  found.all = !tree->more();
  return found;
}

Found search_seeds(const SmallProgram& program, int seeds) {
  Found found;
  for (int i = 1; i <= seeds; ++i) {
    const uint64_t seed = static_cast<uint64_t>(i);
    for (const Schedule& schedule :
         {Schedule::seeded(seed), Schedule::pct(seed, 3), Schedule::starve(seed), Schedule::late_completion(seed)}) {
      add(run_program(program, schedule), schedule.text(), &found);
      ++found.schedules;
    }
  }
  return found;
}

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
    case Flaw::kOtherwise:
      return "not repeatable";
    case Flaw::kEndless:
      return "endless";
  }
  return "";
}

Comparison compare_searches(const SmallProgram& program, const SearchLimits& limits) {
  Found unreduced, reduced, seeds;
  with_fiber_thread([&] {  // once, not for each of thousands of runs
    unreduced = search_tree(program, /*reduce=*/false, limits.unreduced);
    reduced = search_tree(program, /*reduce=*/true, limits.reduced);
    seeds = search_seeds(program, limits.seeds);
  });
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
        return reduced.outcomes.contains(outcome.first) || absl::StrContains(outcome.first, " note: ");
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
    if (!lost.empty()) flawed(Flaw::kInvented, absl::StrCat("  invented:\n", lost));
  }
  return result;
}

std::string shrunk_text(const SmallProgram& program, const SearchLimits& limits, Flaw flaw) {
  const SmallProgram smallest =
      shrink(program, [&](const SmallProgram& smaller) { return compare_searches(smaller, limits).flaw == flaw; });
  return absl::StrCat(flaw_name(flaw), ": ", to_text(smallest), compare_searches(smallest, limits).text);
}

}  // namespace rankloom

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "rankloom/explore.h"
#include "sim/base/text.h"

namespace rankloom {

using namespace internal;

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
      return Schedule::pct(seed, depth, /*code=*/{});
    case Kind::kStarve:
      return Schedule::starve(seed);
    case Kind::kLateCompletion:
      return Schedule::late_completion(seed);
  }
  return Schedule::seeded(seed);
}

int ExploreReport::Failure::size() const {
  return static_cast<int>(world.schedule.switches().size() + world.faults.faults().size());
}

namespace {

// "1 run", "2 runs".
std::string counted(int64_t n, std::string_view what) { return absl::StrCat(n, " ", sv(what), n == 1 ? "" : "s"); }

std::string share_text(const ExploreReport::Share& share) {
  if (share.finished) {
    return absl::StrCat(
        share.unseen.empty() ? "verified: " : "", "all ", counted(share.schedules, "schedule"),
        share.unseen.empty() ? " that can differ" : " that rankloom can see", ", in ", counted(share.runs, "run"),
        share.unseen.empty() ? "" : absl::StrCat(" (not seen: ", absl::StrJoin(share.unseen, "; "), ")"));
  }
  if (share.schedules > 0 || share.open > 0) {
    // All that is known of is under way, by another process perhaps.
    const std::string open = share.open == 0 ? "and perhaps more that were not run"
                                             : absl::StrCat("at least ", share.open,
                                                            share.open == 1 ? " more was" : " more were", " not run");
    return absl::StrCat(counted(share.schedules, "schedule"), " that can differ, ", open);
  }
  return absl::StrCat(counted(share.runs, "run"),
                      share.asked ? ", and no search: RANKLOOM_SEED or its like asks for this schedule" : "");
}

// The line that says so if the run had members of rooted calls go on by themselves, which no other step shows.
std::string rooted_text(const Trace& trace) {
  for (const Trace::Step& step : trace.steps()) {
    if (step.kind != static_cast<uint8_t>(ChoiceKind::kRooted) || step.value == 0) continue;
    return absl::StrCat("\nmembers of rooted calls go on as soon as their own part is done: first asked at rank ",
                        step.rank, "'s ", trace.names()[step.what],
                        step.seq >= 0 ? absl::StrCat(" seq ", step.seq) : "");
  }
  return "";
}

// "5 -> 1 switch from the default order".
std::string order_text(const ExploreReport::Failure& failure) {
  const Schedule& schedule = failure.world.schedule;
  if (schedule.kind() != Schedule::Kind::kSteered)
    return "the order as it was found: by its switches alone it does not fail so";
  const auto switches = static_cast<int64_t>(schedule.switches().size());
  // Fewer ranks may need another schedule than the one that was found.
  const std::string from = failure.found_switches > switches ? absl::StrCat(failure.found_switches, " -> ") : "";
  return absl::StrCat(from, switches, switches == 1 ? " switch" : " switches", " from the default order");
}

std::string failure_text(const ExploreReport::Failure& failure) {
  std::string text = absl::StrCat("found by ", failure.strategy, " in its run ", failure.run, ", schedule ");
  const std::string found = failure.found.text();
  absl::StrAppend(&text, found.size() <= 100 ? found : absl::StrCat(found.substr(0, 100), "..."));
  const WorldOptions& world = failure.world;
  if (failure.shrink_runs > 0) {
    absl::StrAppend(&text, "\nshrunk in ", counted(failure.shrink_runs, "run"), ": ", counted(world.world_size, "rank"),
                    ", ", order_text(failure));
  }
  if (!world.faults.empty()) absl::StrAppend(&text, ", faults ", world.faults.text());
  absl::StrAppend(&text, rooted_text(failure.report.trace));
  if (!failure.rerun.empty()) absl::StrAppend(&text, "\nrun it again: ", failure.rerun);
  for (const std::string& line : failure.failures) absl::StrAppend(&text, "\n", line);
  RunReport shown = failure.report;
  shown.run_file.clear();  // said last
  if (!shown.ok()) absl::StrAppend(&text, "\n", shown.text());
  if (!failure.story.empty()) absl::StrAppend(&text, "\nwhat happened, in this order:\n", failure.story);
  while (text.ends_with('\n')) text.pop_back();
  if (!failure.report.run_file.empty()) absl::StrAppend(&text, "\n", failure.report.run_file);
  return text;
}

// Why a search that found nothing has not verified the program.
std::string gap_text(const std::vector<ExploreReport::Share>& shares) {
  std::vector<std::string> drawn;
  for (const ExploreReport::Share& share : shares) {
    if (share.finished) {
      return absl::StrCat(
          share.schedules == 1 ? "the one schedule" : absl::StrCat("all ", share.schedules, " schedules"),
          " that rankloom can see; not verified because of: ", absl::StrJoin(share.unseen, "; "));
    }
    if (share.schedules > 0 || share.open > 0) {
      return absl::StrCat("not exhaustive: ", counted(share.schedules, "schedule"), " that can differ ",
                          share.schedules == 1 ? "was" : "were", " run, ",
                          share.open == 0 ? "and perhaps more were not"
                                          : absl::StrCat("at least ", share.open,
                                                         share.open == 1 ? " more was not" : " more were not"));
    }
    if (share.asked)
      return absl::StrCat("not exhaustive: ", share.strategy, " only, which RANKLOOM_SEED or its like asks for");
    if (share.runs > 0) drawn.push_back(share.strategy);
  }
  if (shares.empty()) return "not exhaustive: no strategy was asked for";
  return drawn.empty() ? "not exhaustive: the default order only"
                       : absl::StrCat("not exhaustive: ", absl::StrJoin(drawn, ", "), " only");
}

}  // namespace

std::string ExploreReport::summary() const {
  if (!error.ok()) return message_of(error);
  if (failure.has_value())
    return absl::StrCat("a schedule that fails, found by ", failure->strategy, " in its run ", failure->run, ": ",
                        failure->headline);
  std::string notes = process_notes.empty() ? "" : absl::StrCat("; ", absl::StrJoin(process_notes, "; "));
  for (const std::string& missed : missed_faults) absl::StrAppend(&notes, "; in the first run ", missed);
  if (verified) {
    for (const Share& share : shares) {
      if (share.finished) return share_text(share) + notes;
    }
  }
  return absl::StrCat("no failure in ", counted(runs, "run"), " (", gap_text(shares), ")", notes);
}

std::string ExploreReport::text() const {
  if (!error.ok()) return message_of(error);
  const double seconds = absl::ToDoubleSeconds(elapsed);
  std::string text = absl::StrFormat("explored %s in %.3g s (%.0f a second): %s", counted(runs, "run"), seconds,
                                     seconds > 0 ? static_cast<double>(runs) / seconds : 0.0,
                                     failure.has_value() ? "a schedule that fails" : "no failure");
  for (const Share& share : shares) absl::StrAppend(&text, "\n  ", share.strategy, ": ", share_text(share));
  for (const std::string& note : process_notes) absl::StrAppend(&text, "\n  ", note);
  for (const std::string& missed : missed_faults) absl::StrAppend(&text, "\n  in the first run ", missed);
  if (failure.has_value()) absl::StrAppend(&text, "\n", failure_text(*failure));
  return text;
}

}  // namespace rankloom

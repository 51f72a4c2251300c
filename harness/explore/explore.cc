#include "rankloom/explore.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "harness/explore/search.h"
#include "sim/base/text.h"

namespace rankloom {

using namespace internal;

ExploreReport explore(const ExploreOptions& options, absl::FunctionRef<void(RankContext&)> program) {
  return internal::search(options, program, [](World& world, internal::Program body, std::vector<std::string>*) {
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

int ExploreReport::Failure::size() const {
  return static_cast<int>(world.schedule.switches().size() + world.faults.faults().size());
}

namespace {

std::string share_text(const ExploreReport::Share& share) {
  if (share.finished) {
    return absl::StrCat(
        share.unseen.empty() ? "verified: " : "", "all ", share.schedules,
        share.schedules == 1 ? " schedule" : " schedules",
        share.unseen.empty() ? " that can differ" : " that rankloom can see", ", in ", share.runs,
        share.runs == 1 ? " run" : " runs",
        share.unseen.empty() ? "" : absl::StrCat(" (not seen: ", absl::StrJoin(share.unseen, "; "), ")"));
  }
  if (share.schedules > 0 || share.open > 0) {
    return absl::StrCat(share.schedules, " schedules that can differ, at least ", share.open, " more were not run");
  }
  return absl::StrCat(share.runs, " runs");
}

std::string failure_text(const ExploreReport::Failure& failure) {
  std::string text = absl::StrCat("found by ", failure.strategy, " in its run ", failure.run, ", schedule ");
  const std::string found = failure.found.text();
  absl::StrAppend(&text, found.size() <= 100 ? found : absl::StrCat(found.substr(0, 100), "..."));
  const WorldOptions& world = failure.world;
  if (failure.shrink_runs > 0) {
    absl::StrAppend(&text, "\nshrunk in ", failure.shrink_runs, " runs: ", world.world_size, " ranks, ",
                    failure.found_switches, " -> ", world.schedule.switches().size(),
                    " switches from the default order");
  }
  if (!world.faults.empty()) absl::StrAppend(&text, ", faults ", world.faults.text());
  absl::StrAppend(&text, "\nrun it again: ", failure.rerun, "\n");
  for (const std::string& line : failure.failures) absl::StrAppend(&text, line, "\n");
  if (!failure.report.ok()) absl::StrAppend(&text, failure.report.text(), "\n");
  if (!failure.story.empty()) absl::StrAppend(&text, "what happened, in this order:\n", failure.story);
  return text;
}

}  // namespace

std::string ExploreReport::text() const {
  if (!error.ok()) return message_of(error);
  const double seconds = absl::ToDoubleSeconds(elapsed);
  std::string text = absl::StrFormat("explored %d runs in %.3g s (%.0f a second): %s", runs, seconds,
                                     seconds > 0 ? static_cast<double>(runs) / seconds : 0.0,
                                     failure.has_value() ? "a schedule that fails" : "no failure");
  for (const Share& share : shares) absl::StrAppend(&text, "\n  ", share.strategy, ": ", share_text(share));
  if (failure.has_value()) absl::StrAppend(&text, "\n", failure_text(*failure));
  return text;
}

}  // namespace rankloom

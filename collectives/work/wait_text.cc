#include "collectives/work/wait_text.h"

#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/work/ranks_elsewhere.h"
#include "rankloom/error.h"
#include "sim/base/blame.h"
#include "sim/base/dist_error.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "sim/schedule/early_changes.h"
#include "sim/schedule/step_record.h"
#include "sim/scheduler/deadlock_report.h"
#include "world/world_state.h"

namespace rankloom::internal {
namespace {

// More ranks than this show no last call: one text is read by people.
constexpr size_t kMaxLastCalls = 8;

std::string awaited_text(const MemberWait& wait) {
  if (wait.awaited.empty()) return std::string(wait.otherwise);
  return targets_text(wait.awaited,
                      {.ended = [&wait](int rank) { return wait.world.ended_text(rank); }, .last_calls = {}});
}

// "12.3s".
std::string short_time(int64_t ns) {
  const absl::Duration time = absl::Nanoseconds(ns);
  const absl::Duration unit = time < absl::Seconds(1) ? absl::Milliseconds(1) : absl::Milliseconds(100);
  return absl::FormatDuration(absl::Trunc(time, unit));
}

}  // namespace

absl::Status timeout_error(const MemberWait& wait) {
  std::string text = absl::StrCat(wait.who, ": timed out after ", absl::FormatDuration(wait.timeout), " waiting for ",
                                  awaited_text(wait), site_place(wait.site));
  size_t shown = 0;
  for (const int rank : wait.awaited) {
    if (shown == kMaxLastCalls || !wait.world.ended_text(rank).empty()) continue;
    RankTold told = told_of(wait.world, rank);
    if (told.lines.empty() && wait.elsewhere != nullptr) told = wait.elsewhere->told_of(rank);
    text += told.lines;
    if (told.calls) ++shown;
  }
  return make_error(ErrorKind::kTimeout, text, wait.facts);
}

RankTold told_of(WorldState& world, int rank) {
  RankTold told;
  if (const std::optional<Site> point = world.scheduler().last_point(rank); point.has_value())
    absl::StrAppend(&told.lines, "\n  last point of rank ", rank, ": ",
                    at_start(*point) ? "none yet" : site_text(*point) + site_place(*point));
  if (const int64_t stood_ns = world.scheduler().stood_ns(rank); stood_ns > 0)
    absl::StrAppend(&told.lines, "\n  rank ", rank, " has come to no scheduling point for ", short_time(stood_ns),
                    " of real time: it computes, or it blocks in what is not rankloom's");
  for (const std::string& line : world.context(rank).recorder().last_calls(1)) {
    absl::StrAppend(&told.lines, "\n  last call of rank ", rank, ": ", line);
    told.calls = true;
  }
  return told;
}

void warn_of(const MemberWait& wait, absl::Duration waited) {
  wait.world.warn(absl::StrCat(wait.who, ": has waited ", absl::FormatDuration(waited), " for ", awaited_text(wait),
                               wait.timeout == absl::InfiniteDuration()
                                   ? ""
                                   : absl::StrCat(", times out after ", absl::FormatDuration(wait.timeout)),
                               site_place(wait.site)));
}

absl::Status touched_early(WorldState& world, int rank, std::string_view who, CodeSite code, Touched what,
                           bool dropped) {
  if (StepRecord* const record = world.scheduler().record(); record != nullptr) {
    record->found_early_change();
    record->uncovered(kEarlyChange);
    early_changes_found.fetch_add(1, std::memory_order_relaxed);
  }
  const std::optional<Site> point = world.scheduler().last_point(rank);
  absl::Status cause = blamed_on(
      rank,
      invalid_argument(
          sv(who), what == Touched::kInput ? ": an input was changed or freed" : ": an output was written or freed",
          " between the call", site_place(Site{.code = code}), " and its completion, when rank ", rank,
          point.has_value() ? absl::StrCat(" was at ", site_text(*point), site_place(*point)) : " had ended",
          what == Touched::kInput ? ", want it unchanged until wait()" : ", want it left alone until wait()",
          dropped ? "; nobody can wait for the call: its work was dropped" : ""));
  // Nor may any other member be left that is told: those of a rooted call go on by themselves.
  if (dropped)
    world.rank_failed(rank, std::make_exception_ptr(DistError(cause, {.rank = rank, .group = {}, .op = {}})));
  return cause;
}

}  // namespace rankloom::internal

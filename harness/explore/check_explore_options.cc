#include "harness/explore/check_explore_options.h"

#include <cstdint>
#include <tuple>

#include "rankloom/error.h"
#include "rankloom/schedule.h"
#include "sim/base/dist_error.h"
#include "sim/scheduler/check_options.h"

namespace rankloom::internal {
namespace {

constexpr int kMostProcesses = 1'000;  // of one machine, each with a descriptor or two of the leader's

}  // namespace

absl::Status check_explore_options(const ExploreOptions& options) {
  if (absl::Status wrong = check_options(options.world); !wrong.ok()) return prefixed(wrong, "explore: ");
  const std::tuple<const char*, int64_t, int64_t> least[] = {{"max_runs", options.max_runs, 1},
                                                             {"min_ranks", options.min_ranks, 0},
                                                             {"max_shrink_runs", options.max_shrink_runs, 0},
                                                             {"processes", options.processes, 1}};
  for (const auto& [name, have, want] : least) {
    if (have < want) return invalid_argument("explore: ", name, " is ", have, ", want ", want, " or more");
  }
  if (options.processes > kMostProcesses)
    return invalid_argument("explore: processes is ", options.processes, ", want at most ", kMostProcesses);
  if (options.min_ranks > options.world.world_size)
    return invalid_argument("explore: min_ranks is ", options.min_ranks,
                            ", want at most world_size = ", options.world.world_size);
  if (options.max_time < absl::ZeroDuration())
    return invalid_argument("explore: max_time is ", absl::FormatDuration(options.max_time), ", want 0 or more");
  for (const Strategy& strategy : options.strategies) {
    if (strategy.name() == "?")
      return invalid_argument("explore: kind of a strategy is ", static_cast<int>(strategy.kind),
                              ", want a Strategy::Kind");
    if (strategy.kind != Strategy::Kind::kPct) continue;
    try {
      (void)strategy.schedule(1);
    } catch (const DistError& error) {
      return prefixed(error.status(), "explore: ");
    }
  }
  return absl::OkStatus();
}

}  // namespace rankloom::internal

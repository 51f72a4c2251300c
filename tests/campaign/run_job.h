#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rankloom/schedule.h"
#include "rankloom/world.h"
#include "tests/campaign/oracle.h"

namespace rankloom {

// The sights of ranks in acts that say more than whether they went well.
inline constexpr const char* kRefused = "InvalidArgument";
inline constexpr const char* kTimedOut = "Timeout";
inline constexpr const char* kNestedWentWell = "went well";
inline constexpr const char* kDrawn = "the rank's own numbers";
std::string group_text(const std::vector<int>& ranks, int member);
std::string meeting_text(const Act& act, int world_size, int rank);
std::string shared_count_text(int world_size);

// An engine with a schedule.
struct Gear {
  EngineKind engine = EngineKind::kFibers;
  Schedule schedule;
  std::string text() const;
};

struct JobRun {
  RunReport report;
  JobLog log;
  std::vector<std::string> drawn;  // by rank: what its own generator gave
};

// Blocking: the calling thread.
JobRun run_job(const Plan& plan, const Gear& gear);
// The same as the program of one rank in a world that runs already; `log` outlives the world.
void run_rank(const Plan& plan, RankContext& rank, RankLog* log, std::string* drawn);

// The first thing that is wrong with a run, by the oracle; nullopt: nothing.
std::optional<std::string> wrong_with(const Plan& plan, const JobLog& expected, const JobRun& run);

}  // namespace rankloom

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rankloom/schedule.h"
#include "rankloom/world.h"
#include "tests/campaign/oracle.h"
#include "tests/campaign/rank_words.h"

namespace rankloom {

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
  std::string late;                // what was found when the world had ended; empty: all is well
};

// Things of a rank that are looked at beside its log.
struct Beside {
  std::string drawn;  // by its own generator
  Memory memory;
  absl::Duration overslept;  // at most, in a sleep
};

// Blocking: the calling thread.
JobRun run_job(const Plan& plan, const Gear& gear);
// The same as the program of one rank in a world that runs already; `log` and `beside` outlive the world.
// `arrivals`: of all ranks; null: nobody counts, as where ranks are in other processes.
void run_rank(const Plan& plan, RankContext& rank, RankLog* log, Beside* beside, std::shared_ptr<Arrivals> arrivals);

// The first thing that is wrong with a run, by the oracle; nullopt: nothing.
std::optional<std::string> wrong_with(const Plan& plan, const JobLog& expected, const JobRun& run);

}  // namespace rankloom

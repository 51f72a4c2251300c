#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/campaign/run_job.h"

namespace rankloom {

// How many runs a job is given.
enum class Effort : uint8_t {
  // Fibers under a schedule that explores; beside that one job in eight on threads one at a time, one as a replay, two
  // under fifo, one on threads that run freely.
  kQuick,
  // Fibers under a schedule that explores, the same on threads one at a time, its replay, fifo, and threads free.
  kFull,
};

struct Comparison {
  int runs = 0;
  std::optional<std::string> wrong;  // in which gear, and what
  std::optional<Gear> gear;          // of the run that was wrong, the first one; unset: where two were compared
  std::string others;                // which other gears were wrong, and which right: as far as they ran
};

// The schedule that explores, of a job's first run.
Schedule exploring(const Job& job);
// All that the first run of a job with this seed could have: those that a job of the corpus was found under may be any.
std::vector<Schedule> all_exploring(uint64_t seed);

// Blocking: the calling thread. Runs a job in several gears; each must give what the oracle says, and one seed one run.
Comparison compare_gears(const Job& job, Effort effort);
Comparison compare_gears(const Job& job, Effort effort, const Schedule& exploring);

// The smallest job found for which `fails` holds, as it does for `job`: acts, parts, faults and ranks are left out one
// by one, numbers made small. Takes no longer than `most`.
Job shrink(const Job& job, const std::function<bool(const Job&)>& fails, absl::Duration most = absl::Minutes(1));

}  // namespace rankloom

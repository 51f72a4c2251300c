#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rankloom/schedule.h"
#include "rankloom/world.h"
#include "sim/schedule/step_record.h"

namespace rankloom::internal {

// The acts of each rank in a run, one line a step, in the order in which it happened: only the steps that touch what
// others touch, those where one rank was stopped for another, and each rank's last. An act that a rank repeats is
// shown at its first and last time, with the number of times; the steps around each of `switches`, always, or, where
// that makes too many lines, around the last six. The first line then says how much is left out. `record` keeps texts.
std::string story_text(const StepRecord& record, const RunReport& report,
                       const std::vector<Schedule::Switch>& switches);

// The steps of the run to which `switches` led, ascending, as story_text() numbers them.
std::vector<int64_t> switch_steps(const StepRecord& record, const std::vector<Schedule::Switch>& switches);

}  // namespace rankloom::internal

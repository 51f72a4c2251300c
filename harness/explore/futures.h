#pragma once

#include "harness/explore/baseline.h"
#include "rankloom/schedule.h"
#include "world/run_data.h"

namespace rankloom::internal {

// Counts, after each choice of a run, its continuations and those that fail: of the schedules of `world`, whose own is
// steered(), that begin with the first 0, 1, ... choices of `trace`. Exact if there are no more than some thousand
// schedules in all; else a sample of random continuations from each choice on. Nothing if a program draws its faults,
// or if the run is too long for a sample. Costs some thousand runs, and 40 s at the most.
void count_futures(Baseline& baseline, const WorldOptions& world, const Trace& trace, RunData::Search* search);

}  // namespace rankloom::internal

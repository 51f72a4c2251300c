#pragma once

#include "harness/explore/baseline.h"
#include "rankloom/explore.h"

namespace rankloom::internal {

// As explore(); `run` runs the program in each world. `number`: which run or search this is, from 1, of the process or
// of a test, for RANKLOOM_REPLAY_RUN.
ExploreReport search(const ExploreOptions& options, int number, Program program, RunWorld run, CodeSite code);

}  // namespace rankloom::internal

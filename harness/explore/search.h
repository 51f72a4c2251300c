#pragma once

#include "harness/explore/baseline.h"
#include "rankloom/explore.h"

namespace rankloom::internal {

// As explore(); `run` runs the program in each world.
ExploreReport search(const ExploreOptions& options, Program program, RunWorld run, CodeSite code);

}  // namespace rankloom::internal

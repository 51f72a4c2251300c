#pragma once

#include "harness/explore/baseline.h"
#include "rankloom/explore.h"

namespace rankloom::internal {

// The smallest run that fails as `outcome`, the run of `world`, does: fewer ranks, fewer faults, fewer switches. The
// caller fills in which strategy found the failure, in which run. The baseline is that of the smaller number of ranks
// afterwards.
ExploreReport::Failure shrink(const ExploreOptions& options, const WorldOptions& world, const Outcome& outcome,
                              Baseline* baseline);

}  // namespace rankloom::internal

#pragma once

#include "harness/explore/baseline.h"
#include "rankloom/explore.h"

namespace rankloom::internal {

// The smallest run that fails as `outcome`, the run of `world`, does: fewer ranks, fewer faults, fewer switches. It is
// left to the caller to say which strategy found it, in which run. Changes the baseline to one of as many ranks as are
// left.
ExploreReport::Failure shrink(const ExploreOptions& options, const WorldOptions& world, const Outcome& outcome,
                              Baseline* baseline);

}  // namespace rankloom::internal

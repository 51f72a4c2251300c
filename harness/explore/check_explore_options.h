#pragma once

#include "absl/status/status.h"
#include "rankloom/explore.h"

namespace rankloom::internal {

// Errors: InvalidArgument for options with which no search makes sense: "explore: max_runs is 0, want 1 or more".
absl::Status check_explore_options(const ExploreOptions& options);

}  // namespace rankloom::internal

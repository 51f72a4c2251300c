#pragma once

#include "absl/functional/function_ref.h"
#include "gtest/gtest.h"
#include "harness/explore/explore.h"

namespace rankloom {

// explore() as an assertion: fails with the report of the smallest run that fails, whose trace is saved beside.
//   EXPECT_TRUE(no_failure_in_schedules({.world = {.world_size = 2, .engine = EngineKind::kFibers}}, body));
// Failed assertions of ranks are failures of their run: none of them reaches GoogleTest but through this one. A run that a rank
// skips counts as good.
testing::AssertionResult no_failure_in_schedules(const ExploreOptions& options,
                                                 absl::FunctionRef<void(RankContext&)> body);

// The same search with its report, for tests that expect a failure to be found: failed assertions of ranks count as failures.
ExploreReport explore_assertions(const ExploreOptions& options, absl::FunctionRef<void(RankContext&)> body);

}  // namespace rankloom

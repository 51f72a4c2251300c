#pragma once

#include "absl/functional/function_ref.h"
#include "gtest/gtest.h"
#include "world/world.h"

namespace rankloom {

// Whether `body` is deterministic: runs it twice in new worlds under the same schedule and compares what happened: the
// choices, the ranks' recorded calls, how they ended, what is in the store, which assertions failed. On a difference, names
// the first one of each kind, with rank and site. Clocks, thread ids, addresses and statics that leak into what ranks do show
// up here; data that no rank acts on and no store holds does not.
//   EXPECT_TRUE(runs_alike({.world_size = 4, .engine = GetParam(), .schedule = Schedule::seeded(7)}, body));
// An unset schedule means seeded, with options.seed or 1. The environment counts, as in MultiThreadedTestCase. A world that
// fails alike twice is alike; failed assertions of ranks fail the test beside that.
testing::AssertionResult runs_alike(WorldOptions options, absl::FunctionRef<void(RankContext&)> body);

}  // namespace rankloom

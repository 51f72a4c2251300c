#pragma once

#include "world/run_options.h"

namespace rankloom {

inline WorldOptions world_of(EngineKind engine, int ranks) { return {.world_size = ranks, .engine = engine}; }

// Nanoseconds of one park() and the unpark() that ends it, as `ranks` tasks hand a token round so many times; 0: some 200 000
// switches, of threads a twentieth.
double park_unpark_ns(EngineKind engine, int ranks, int rounds = 0);

}  // namespace rankloom

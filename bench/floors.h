#pragma once

#include <cstddef>

#include "rankloom/options.h"

namespace rankloom {

inline WorldOptions world_of(EngineKind engine, int ranks) { return {.world_size = ranks, .engine = engine}; }

// Nanoseconds of one park() and the unpark() that ends it, as `ranks` tasks hand a token round so many times; 0: some
// 200 000 switches, of threads a twentieth.
double park_unpark_ns(EngineKind engine, int ranks, int rounds = 0);

// Nanoseconds of one meeting of so many threads with nothing of ours between them: each counts itself, and gives its
// core away until all have come.
double meeting_ns(int threads);

// Nanoseconds in which all cores together copy so many bytes to elsewhere; less than a MiB by one core, from and to its
// caches.
double copy_ns(size_t bytes);

}  // namespace rankloom

// Included before any Highway header by the files that are compiled once for each target.
#pragma once

#ifdef RANKLOOM_ONE_TARGET
// Sanitizer builds look for races and bad accesses, which one target shows as well as three, at a third of the build time.
#define HWY_COMPILE_ONLY_STATIC
#endif

// Three targets on x86-64, SSE2, AVX2 and AVX3: each costs its share of a long build, and those between add little here.
// Vectors of SVE and RVV have no size at compile time and so cannot stand in an array of accumulators; on such machines NEON
// or the portable target is used.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

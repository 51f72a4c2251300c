// Included before any Highway header by the files that are compiled once for each target.
//
// On x86-64 these are AVX3 (AVX-512), AVX2 and the portable target. SSSE3 and SSE4 would add little on machines of this
// decade, and AVX3_DL nothing, while each costs its share of a long build. Vectors of SVE and RVV have no size at
// compile time and so cannot stand in an array of accumulators; such machines use NEON or the portable target.
#pragma once

#define RANKLOOM_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

#ifdef RANKLOOM_ONE_TARGET
// Sanitizer builds look for races and bad accesses. One target with vectors shows these as well as two, in less build
// time; the portable one alone would not, as it works on one element at a time.
#define HWY_DISABLED_TARGETS (RANKLOOM_DISABLED_TARGETS | HWY_AVX3)
#else
#define HWY_DISABLED_TARGETS RANKLOOM_DISABLED_TARGETS
#endif

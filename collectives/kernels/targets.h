// Included before any Highway header by the files that are compiled once for each target.
//
// On x86-64 these are AVX3 (AVX-512), AVX2 and the portable target. SSSE3 and SSE4 would add little on machines of this
// decade, and AVX3_DL nothing, while each costs its share of a long build. Vectors of SVE and RVV have no size at compile time
// and so cannot stand in an array of accumulators; such machines use NEON or the portable target.
#pragma once

#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

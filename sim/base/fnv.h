#pragma once

#include <cstdint>

namespace rankloom::internal {

// FNV-1a, 64 bits: notices a change, and resists no attack. Begin with kFnvBasis, then a step for each byte, or word.
inline constexpr uint64_t kFnvBasis = 0xcbf29ce484222325;
constexpr uint64_t fnv_step(uint64_t hash, uint64_t unit) { return (hash ^ unit) * 0x100000001b3; }

}  // namespace rankloom::internal

#pragma once

#include <cstdint>
#include <limits>

namespace rankloom::internal {

// Sums and products of counts, none of which is negative, that stop at what int64 holds: a fake world has tensors of
// any size and links of any time.
inline int64_t saturating_add(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}
inline int64_t saturating_mul(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

// Between: the sum of many, or a product that is divided.
__extension__ using WideCount = __int128;
inline int64_t at_most_int64(WideCount count) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return count > kMost ? kMost : static_cast<int64_t>(count);
}

}  // namespace rankloom::internal

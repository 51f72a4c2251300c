#pragma once

#include <cstddef>

namespace rankloom::internal {

// Fetches the cache lines of the bytes [begin, end) from `at` on.
inline void prefetch_lines(const void* at, ptrdiff_t begin, ptrdiff_t end) {
  for (ptrdiff_t i = begin; i < end; i += 64) __builtin_prefetch(static_cast<const char*>(at) + i);
}

}  // namespace rankloom::internal

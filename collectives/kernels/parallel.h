#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace rankloom::internal {

// Calls body(begin, end) for ranges that together cover [0, n) once, on all cores. Ranges start at multiples of `grain`
// (> 0). One grain or less, or one core: one call, on this thread, and oneTBB is not touched.
// Blocking: returns when all parts are done. The body must not wait, nor call into the scheduler: a part may run on a
// thread that is no rank.
void parallel_blocks(int64_t n, int64_t grain, absl::FunctionRef<void(int64_t begin, int64_t end)> body);

}  // namespace rankloom::internal

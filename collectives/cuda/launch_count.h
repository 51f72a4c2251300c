#pragma once

#include <cstdint>

namespace rankloom::internal::cuda {

// Kernels that this process has launched for calls. Those at which a stream waits are none. Thread-safety: all threads.
int64_t launches_made();

}  // namespace rankloom::internal::cuda

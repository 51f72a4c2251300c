#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace rankloom {

// Loads the kernels below: while one of them spins, loading another could wait for it.
cudaError_t load_test_kernels();

// Kernels of one thread, for tests. Errors are what a launch gives.
// Spins until *gate, mapped host memory, is not 0; at most some seconds.
cudaError_t launch_gate(const volatile int* gate, cudaStream_t stream);
// *to = *from, element by element.
cudaError_t launch_copy(int32_t* to, const int32_t* from, int64_t count, cudaStream_t stream);
// *to = value.
cudaError_t launch_fill(int32_t* to, int32_t value, int64_t count, cudaStream_t stream);

}  // namespace rankloom

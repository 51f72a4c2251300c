#pragma once

// The kernels as plain functions: between cuda_driver.cc and the files that nvcc compiles.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "collectives/cuda/batch.h"

namespace rankloom::internal::cuda {

// The table of a launch: in the launch's parameters if it is small, else in device memory.
inline constexpr size_t kNearBytes = 3584;
struct LaunchTable {
  const unsigned char* far;  // null: `near`
  int64_t tiles;
  uint32_t entries;
  alignas(16) unsigned char near[kNearBytes];
};

// Asynchronous, on `stream`, whose device must be the current one.
cudaError_t launch_copies(const LaunchTable& table, unsigned blocks, cudaStream_t stream);
// One for each family of dtypes, in a file of its own.
cudaError_t launch_floats(const Signature& signature, const LaunchTable& table, unsigned blocks, cudaStream_t stream);
cudaError_t launch_halves(const Signature& signature, const LaunchTable& table, unsigned blocks, cudaStream_t stream);
cudaError_t launch_complex(const Signature& signature, const LaunchTable& table, unsigned blocks, cudaStream_t stream);
cudaError_t launch_integers(const Signature& signature, const LaunchTable& table, unsigned blocks, cudaStream_t stream);

// Copies a table from mapped host memory; both are multiples of 16, as is `bytes`.
cudaError_t launch_fetch(void* to, const void* from, size_t bytes, cudaStream_t stream);

// Waits until word[0] is not 0, or `deadline_ns` have passed; then word[1] is 1.
cudaError_t launch_spin(unsigned* word, uint64_t deadline_ns, cudaStream_t stream);

// Loads the kernels of the current device, which must not happen while a stream is blocked: the driver may wait for all
// streams then.
cudaError_t load_copies();
cudaError_t load_floats();
cudaError_t load_halves();
cudaError_t load_complex();
cudaError_t load_integers();

}  // namespace rankloom::internal::cuda

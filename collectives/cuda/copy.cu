#include "collectives/cuda/reduce.cuh"

namespace rankloom::internal::cuda {
namespace {

__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ LaunchTable launch) {
  const Table table = table_of(launch);
  for (int64_t tile = blockIdx.x; tile < table.tiles; tile += gridDim.x) {
    copy_tile(table.find<CopyEntry>(tile), tile, static_cast<int>(threadIdx.x));
  }
}

__global__ void __launch_bounds__(kThreads) fetch_kernel(uint4* to, const uint4* from, size_t count) {
  const size_t step = size_t{gridDim.x} * kThreads;
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) to[i] = from[i];
}

__global__ void spin_kernel(volatile unsigned* word, uint64_t deadline_ns) {
  uint64_t begin;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  for (;;) {
    if (word[0] != 0) break;
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (now - begin > deadline_ns) {
      word[1] = 1;
      break;
    }
    __nanosleep(500);
  }
  __threadfence_system();
}

}  // namespace

cudaError_t launch_copies(const LaunchTable& table, unsigned blocks, cudaStream_t stream) {
  return start(copy_kernel, table, blocks, stream);
}

cudaError_t launch_fetch(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  const size_t count = bytes / sizeof(uint4);
  const size_t blocks = (count + kThreads - 1) / kThreads;
  void* arguments[] = {&to, &from, const_cast<size_t*>(&count)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(fetch_kernel), dim3(blocks < 64 ? blocks : 64), dim3(kThreads),
                          arguments, 0, stream);
}

cudaError_t launch_spin(unsigned* word, uint64_t deadline_ns, cudaStream_t stream) {
  void* arguments[] = {&word, &deadline_ns};
  return cudaLaunchKernel(reinterpret_cast<const void*>(spin_kernel), dim3(1), dim3(1), arguments, 0, stream);
}

cudaError_t load_copies() {
  cudaFuncAttributes attributes;
  cudaError_t status = cudaFuncGetAttributes(&attributes, copy_kernel);
  if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, fetch_kernel);
  if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, spin_kernel);
  return status;
}

}  // namespace rankloom::internal::cuda

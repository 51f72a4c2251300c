#include "tests/cuda/test_kernels.h"

namespace rankloom {
namespace {

__global__ void gate_kernel(const volatile int* gate) {
  // 20 seconds of nanosleeps at most: a test that fails must not hang the device.
  for (int64_t i = 0; i < 20'000'000 && *gate == 0; ++i) __nanosleep(1000);
}

__global__ void copy_kernel(int32_t* to, const int32_t* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

__global__ void fill_kernel(int32_t* to, int32_t value, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = value;
}

}  // namespace

cudaError_t load_test_kernels() {
  cudaFuncAttributes attributes;
  cudaError_t status = cudaFuncGetAttributes(&attributes, gate_kernel);
  if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, copy_kernel);
  if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, fill_kernel);
  return status;
}

cudaError_t launch_gate(const volatile int* gate, cudaStream_t stream) {
  void* arguments[] = {&gate};
  return cudaLaunchKernel(reinterpret_cast<const void*>(gate_kernel), dim3(1), dim3(1), arguments, 0, stream);
}

cudaError_t launch_copy(int32_t* to, const int32_t* from, int64_t count, cudaStream_t stream) {
  void* arguments[] = {&to, &from, &count};
  return cudaLaunchKernel(reinterpret_cast<const void*>(copy_kernel), dim3(1), dim3(1), arguments, 0, stream);
}

cudaError_t launch_fill(int32_t* to, int32_t value, int64_t count, cudaStream_t stream) {
  void* arguments[] = {&to, &value, &count};
  return cudaLaunchKernel(reinterpret_cast<const void*>(fill_kernel), dim3(1), dim3(1), arguments, 0, stream);
}

}  // namespace rankloom

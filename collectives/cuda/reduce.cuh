#pragma once

#include <cuda_runtime.h>

#include "collectives/cuda/batch.h"
#include "collectives/cuda/launch.h"

namespace rankloom::internal::cuda {

__device__ __forceinline__ Table table_of(const LaunchTable& launch) {
  return {launch.far != nullptr ? launch.far : launch.near, launch.entries, launch.tiles};
}

template <class Storage, class Op, bool kTree>
__global__ void __launch_bounds__(kThreads) reduce_kernel(const __grid_constant__ LaunchTable launch) {
  const Table table = table_of(launch);
  for (int64_t tile = blockIdx.x; tile < table.tiles; tile += gridDim.x) {
    reduce_tile<Storage, Op, kTree>(table.find<ReduceEntry>(tile), table.pointers(), tile,
                                    static_cast<int>(threadIdx.x));
  }
}

// Launches a kernel on a table. Says how this launch went: cudaGetLastError() could be about another.
inline cudaError_t start(void (*kernel)(LaunchTable), const LaunchTable& table, unsigned blocks, cudaStream_t stream) {
  void* arguments[] = {const_cast<LaunchTable*>(&table)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(kThreads), arguments, 0, stream);
}

// For the visit_...() of element_ops.h.
struct LaunchReduction {
  const Signature& signature;
  const LaunchTable& table;
  unsigned blocks;
  cudaStream_t stream;
  cudaError_t* status;

  template <class Reduction>
  bool operator()(Reduction) const {
    using Storage = typename Reduction::Storage;
    using Op = typename Reduction::Op;
    *status = signature.tree ? start(reduce_kernel<Storage, Op, true>, table, blocks, stream)
                             : start(reduce_kernel<Storage, Op, false>, table, blocks, stream);
    return true;
  }
};

struct LoadReduction {
  cudaError_t* status;

  template <class Reduction>
  bool operator()(Reduction) const {
    using Storage = typename Reduction::Storage;
    using Op = typename Reduction::Op;
    cudaFuncAttributes attributes;
    if (*status == cudaSuccess) *status = cudaFuncGetAttributes(&attributes, reduce_kernel<Storage, Op, true>);
    if (*status == cudaSuccess) *status = cudaFuncGetAttributes(&attributes, reduce_kernel<Storage, Op, false>);
    return true;
  }
};

// Calls load(kind) for every operation; which of them there are is up to it.
template <class Load>
void for_each_kind(Load load) {
  for (int kind = 0; kind <= static_cast<int>(ReduceOp::Kind::kPremulSum); ++kind) {
    load(static_cast<ReduceOp::Kind>(kind));
  }
}

}  // namespace rankloom::internal::cuda

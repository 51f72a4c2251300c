#include "collectives/cuda/reduce.cuh"

namespace rankloom::internal::cuda {

cudaError_t launch_halves(const Signature& signature, const LaunchTable& table, unsigned blocks, cudaStream_t stream) {
  cudaError_t status = cudaErrorInvalidValue;
  const LaunchReduction launch{signature, table, blocks, stream, &status};
  signature.dtype == DType::kFloat16 ? visit_halves<Float16>(signature.kind, signature.round_each, launch)
                                     : visit_halves<BFloat16Bits>(signature.kind, signature.round_each, launch);
  return status;
}

cudaError_t load_halves() {
  cudaError_t status = cudaSuccess;
  for_each_kind([&status](ReduceOp::Kind kind) {
    for (const bool round_each : {false, true}) {
      visit_halves<Float16>(kind, round_each, LoadReduction{&status});
      visit_halves<BFloat16Bits>(kind, round_each, LoadReduction{&status});
    }
  });
  return status;
}

}  // namespace rankloom::internal::cuda

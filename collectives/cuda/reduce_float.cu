#include "collectives/cuda/reduce.cuh"

namespace rankloom::internal::cuda {

cudaError_t launch_floats(const Signature& signature, const LaunchTable& table, unsigned blocks, cudaStream_t stream) {
  cudaError_t status = cudaErrorInvalidValue;
  const LaunchReduction launch{signature, table, blocks, stream, &status};
  signature.dtype == DType::kFloat32 ? visit_floats<float>(signature.kind, launch)
                                     : visit_floats<double>(signature.kind, launch);
  return status;
}

cudaError_t load_floats() {
  cudaError_t status = cudaSuccess;
  for_each_kind([&status](ReduceOp::Kind kind) {
    visit_floats<float>(kind, LoadReduction{&status});
    visit_floats<double>(kind, LoadReduction{&status});
  });
  return status;
}

}  // namespace rankloom::internal::cuda

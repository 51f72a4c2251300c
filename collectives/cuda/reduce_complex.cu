#include "collectives/cuda/reduce.cuh"

namespace rankloom::internal::cuda {

cudaError_t launch_complex(const Signature& signature, const LaunchTable& table, unsigned blocks, cudaStream_t stream) {
  cudaError_t status = cudaErrorInvalidValue;
  const LaunchReduction launch{signature, table, blocks, stream, &status};
  signature.dtype == DType::kComplex64 ? visit_complex<float>(signature.kind, launch)
                                       : visit_complex<double>(signature.kind, launch);
  return status;
}

cudaError_t load_complex() {
  cudaError_t status = cudaSuccess;
  for_each_kind([&status](ReduceOp::Kind kind) {
    visit_complex<float>(kind, LoadReduction{&status});
    visit_complex<double>(kind, LoadReduction{&status});
  });
  return status;
}

}  // namespace rankloom::internal::cuda

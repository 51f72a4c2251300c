#include "collectives/cuda/reduce.cuh"

namespace rankloom::internal::cuda {
namespace {

// visit(Reduction) for any dtype without a fraction.
template <class Visit>
bool visit_whole(DType dtype, ReduceOp::Kind kind, Visit visit) {
  switch (dtype) {
    case DType::kInt8:
      return visit_integers<int8_t>(kind, visit);
    case DType::kUInt8:
      return visit_integers<uint8_t>(kind, visit);
    case DType::kInt16:
      return visit_integers<int16_t>(kind, visit);
    case DType::kInt32:
      return visit_integers<int32_t>(kind, visit);
    case DType::kInt64:
      return visit_integers<int64_t>(kind, visit);
    case DType::kBool:
      return visit_bools(kind, visit);
    default:
      return false;
  }
}

}  // namespace

cudaError_t launch_integers(const Signature& signature, const LaunchTable& table, unsigned blocks,
                            cudaStream_t stream) {
  cudaError_t status = cudaErrorInvalidValue;
  visit_whole(signature.dtype, signature.kind, LaunchReduction{signature, table, blocks, stream, &status});
  return status;
}

cudaError_t load_integers() {
  cudaError_t status = cudaSuccess;
  for_each_kind([&status](ReduceOp::Kind kind) {
    for (const DType dtype : {DType::kInt8, DType::kUInt8, DType::kInt16, DType::kInt32, DType::kInt64, DType::kBool}) {
      visit_whole(dtype, kind, LoadReduction{&status});
    }
  });
  return status;
}

}  // namespace rankloom::internal::cuda

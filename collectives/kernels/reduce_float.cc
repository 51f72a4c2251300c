#include "collectives/kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/kernels/reduce_float.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once for each target.
#include "collectives/kernels/reduce-inl.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"

HWY_BEFORE_NAMESPACE();
namespace rankloom::internal {
namespace HWY_NAMESPACE {

template <typename T>
void reduce_floats_of(const ReduceJob& job, int64_t begin, int64_t end) {
  using Storage = PlainStorage<T>;
  switch (job.kind) {
    case ReduceOp::Kind::kSum:
      return reduce_lanes<Storage, FloatSum>(job, begin, end);
    case ReduceOp::Kind::kAvg:
      return reduce_lanes<Storage, FloatAvg>(job, begin, end);
    case ReduceOp::Kind::kProduct:
      return reduce_lanes<Storage, FloatProduct>(job, begin, end);
    case ReduceOp::Kind::kMin:
      return reduce_lanes<Storage, FloatMin>(job, begin, end);
    case ReduceOp::Kind::kMax:
      return reduce_lanes<Storage, FloatMax>(job, begin, end);
    case ReduceOp::Kind::kPremulSum:
      return reduce_lanes<Storage, FloatPremulSum>(job, begin, end);
    default:
      fatal("a reduction of floats that reduction_supported() refuses");
  }
}

void reduce_floats(const ReduceJob& job, int64_t begin, int64_t end) {
  if (job.dtype == DType::kFloat32) {
    reduce_floats_of<float>(job, begin, end);
  } else {
    reduce_floats_of<double>(job, begin, end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace rankloom::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rankloom::internal {

HWY_EXPORT(reduce_floats);
void reduce_floats(const ReduceJob& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(reduce_floats)(job, begin, end);
}

}  // namespace rankloom::internal
#endif

#include "collectives/kernels/reduce.h"

#include "hwy/detect_compiler_arch.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"

#if HWY_ARCH_X86
#include <xmmintrin.h>
#endif

namespace rankloom::internal {
namespace {

// Round to nearest and keep subnormals, whatever the calling thread has set (torch.set_flush_denormal, say): the kernel
// runs on the thread of the member that came last, and on oneTBB's. Reading the register costs about a nanosecond.
class PlainFloatEnvironment {
 public:
#if HWY_ARCH_X86
  PlainFloatEnvironment() : saved_(_mm_getcsr()) {
    if ((saved_ & kChangesResults) != 0) _mm_setcsr(saved_ & ~kChangesResults);
  }
  ~PlainFloatEnvironment() {
    if ((saved_ & kChangesResults) != 0) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kChangesResults = 0xe040;  // flush to zero, rounding control, denormals are zero
  unsigned saved_;
#else
  PlainFloatEnvironment() {}
  ~PlainFloatEnvironment() {}
#endif

 public:
  PlainFloatEnvironment(const PlainFloatEnvironment&) = delete;
  PlainFloatEnvironment& operator=(const PlainFloatEnvironment&) = delete;
};

}  // namespace

void reduce_range(const ReduceJob& job, int64_t begin, int64_t end) {
  const PlainFloatEnvironment environment;
  switch (job.dtype) {
    case DType::kFloat32:
    case DType::kFloat64:
      return reduce_floats(job, begin, end);
    case DType::kFloat16:
    case DType::kBFloat16:
      return reduce_halves(job, begin, end);
    case DType::kComplex64:
    case DType::kComplex128:
      return reduce_complex(job, begin, end);
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kBool:
      return reduce_integers(job, begin, end);
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
      break;
  }
  fatal("a reduction of a dtype that reduction_supported() refuses");
}

}  // namespace rankloom::internal

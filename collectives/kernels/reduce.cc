#include "collectives/kernels/reduce.h"

#include "hwy/detect_compiler_arch.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"

#if HWY_ARCH_X86
#include <xmmintrin.h>
#elif !HWY_ARCH_ARM_A64
#include <cfenv>
#endif

namespace rankloom::internal {
namespace {

// The modes of this thread's floating point unit, as its register has them, and the modes without what changes results.
#if HWY_ARCH_X86
unsigned float_modes() { return _mm_getcsr(); }
void set_float_modes(unsigned modes) { _mm_setcsr(modes); }
// flush to zero, rounding control, denormals are zero
unsigned plain(unsigned modes) { return modes & ~0xe040u; }
#elif HWY_ARCH_ARM_A64
uint64_t float_modes() {
  uint64_t modes;
  asm volatile("mrs %0, fpcr" : "=r"(modes));
  return modes;
}
void set_float_modes(uint64_t modes) { asm volatile("msr fpcr, %0" : : "r"(modes)); }
// default NaN, flush to zero, rounding mode, flush to zero of float16, alternate handling, flush inputs to zero
uint64_t plain(uint64_t modes) { return modes & ~uint64_t{0x3c80003}; }
#else
int float_modes() { return std::fegetround(); }
void set_float_modes(int modes) { std::fesetround(modes); }
int plain(int) { return FE_TONEAREST; }
#endif

// Round to nearest and keep subnormals, whatever the calling thread has set (torch.set_flush_denormal, say): the kernel
// runs on the thread of the member that came last, and on oneTBB's. Reading the register costs about a nanosecond.
class PlainFloatEnvironment {
 public:
  PlainFloatEnvironment() {
    if (plain(saved_) != saved_) set_float_modes(plain(saved_));
  }
  ~PlainFloatEnvironment() {
    if (plain(saved_) != saved_) set_float_modes(saved_);
  }
  PlainFloatEnvironment(const PlainFloatEnvironment&) = delete;
  PlainFloatEnvironment& operator=(const PlainFloatEnvironment&) = delete;

 private:
  const decltype(float_modes()) saved_ = float_modes();
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

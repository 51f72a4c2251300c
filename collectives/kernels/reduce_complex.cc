#include "collectives/kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/kernels/reduce_complex.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once for each target.
#include "collectives/kernels/reduce-inl.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"

HWY_BEFORE_NAMESPACE();
namespace rankloom::internal {
namespace HWY_NAMESPACE {

// Real and imaginary parts are neighbouring lanes.
template <typename T>
struct ComplexStorage : PlainStorage<T> {
  static constexpr size_t kFewestLanes = 2;
};

// (ar xr - ai xi) + i (ar xi + ai xr), each product rounded; std::complex differs where parts are infinite.
#if HWY_TARGET == HWY_SCALAR
// This target's vectors have one lane, too few for a complex number.
template <typename T>
struct Complex {
  T real;
  T imaginary;
  friend Complex operator*(Complex a, Complex x) {
    return {a.real * x.real - a.imaginary * x.imaginary, a.real * x.imaginary + a.imaginary * x.real};
  }
};

template <typename T>
Complex<T> multiply_as_tree(const ReduceJob& job, int64_t first, int64_t count, int64_t i) {
  if (count == 1) return static_cast<const Complex<T>*>(job.inputs[first])[i];
  int64_t left = 1;  // the largest power of two below `count`
  while (left * 2 < count) left *= 2;
  return multiply_as_tree<T>(job, first, left, i) * multiply_as_tree<T>(job, first + left, count - left, i);
}

template <class Storage>
void reduce_products(const ReduceJob& job, int64_t begin, int64_t end) {
  using T = typename Storage::Lane;
  const hn::ScalableTag<T> d;
  for (int64_t i = begin / 2; i < end / 2; ++i) {
    Complex<T> product = multiply_as_tree<T>(job, 0, job.tree ? job.count : 1, i);
    for (int64_t r = 1; r < job.count && !job.tree; ++r) {
      product = product * static_cast<const Complex<T>*>(job.inputs[r])[i];
    }
    product.real = hn::GetLane(canonical_nan(d, hn::Set(d, product.real)));
    product.imaginary = hn::GetLane(canonical_nan(d, hn::Set(d, product.imaginary)));
    for (int64_t r = 0; r < job.output_count; ++r) static_cast<Complex<T>*>(job.outputs[r])[i] = product;
  }
}
#else
struct ComplexProduct : FloatBase {
  using FloatBase::FloatBase;
  template <class D>
  HWY_INLINE hn::Vec<D> combine(D d, hn::Vec<D> a, hn::Vec<D> x) const {
    const auto by_real = hn::Mul(hn::DupEven(a), x);
    const auto by_imaginary = hn::Mul(hn::DupOdd(a), hn::Reverse2(d, x));
    return hn::OddEven(hn::Add(by_real, by_imaginary), hn::Sub(by_real, by_imaginary));
  }
};

template <class Storage>
void reduce_products(const ReduceJob& job, int64_t begin, int64_t end) {
  reduce_lanes<Storage, ComplexProduct>(job, begin, end);
}
#endif

template <typename T>
void reduce_complex_of(const ReduceJob& job, int64_t begin, int64_t end) {
  using Storage = ComplexStorage<T>;
  begin *= 2;
  end *= 2;
  switch (job.kind) {
    case ReduceOp::Kind::kSum:
      return reduce_lanes<Storage, FloatSum>(job, begin, end);
    case ReduceOp::Kind::kAvg:
      return reduce_lanes<Storage, FloatAvg>(job, begin, end);
    case ReduceOp::Kind::kProduct:
      return reduce_products<Storage>(job, begin, end);
    default:
      fatal("a reduction of complex numbers that reduction_supported() refuses");
  }
}

void reduce_complex(const ReduceJob& job, int64_t begin, int64_t end) {
  if (job.dtype == DType::kComplex64) {
    reduce_complex_of<float>(job, begin, end);
  } else {
    reduce_complex_of<double>(job, begin, end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace rankloom::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rankloom::internal {

HWY_EXPORT(reduce_complex);
void reduce_complex(const ReduceJob& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(reduce_complex)(job, begin, end);
}

}  // namespace rankloom::internal
#endif

#include "collectives/kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/kernels/reduce_half.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once for each target.
#include "collectives/kernels/reduce-inl.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"

HWY_BEFORE_NAMESPACE();
namespace rankloom::internal {
namespace HWY_NAMESPACE {

// Highway's own conversions of float16 truncate and lose subnormals on targets without F16C, and its DemoteTo of
// bfloat16 truncates, so both are written out; float16 uses F16C where a target has it, which gives the same bits.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
inline constexpr bool kHasF16C = true;
#else
inline constexpr bool kHasF16C = false;
#endif

struct Float16Storage {
  using Element = uint16_t;
  using Lane = float;
  static constexpr size_t kFewestLanes = 1;

  template <class D>
  static HWY_INLINE hn::Vec<D> widen(D d, hn::Vec<hn::Rebind<uint16_t, D>> h) {
    if constexpr (kHasF16C) {
      return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), h));
    } else {
      const hn::RebindToUnsigned<D> du;
      const auto all = hn::PromoteTo(du, h);
      const auto magnitude = hn::And(all, hn::Set(du, 0x7fff));
      const auto sign = hn::ShiftLeft<16>(hn::Sub(all, magnitude));
      // Shifted into a float's place the exponent is 112 too small; the product is exact, for subnormals too.
      const auto scaled = hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(magnitude)), hn::Set(d, 0x1p112f));
      const auto is_finite =
          hn::Lt(hn::BitCast(hn::RebindToSigned<D>(), magnitude), hn::Set(hn::RebindToSigned<D>(), 0x7c00));
      const auto special = hn::Or(hn::ShiftLeft<13>(magnitude), hn::Set(du, 0x7f800000));
      const auto finite = hn::BitCast(du, scaled);
      return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(hn::RebindMask(du, is_finite), finite, special)));
    }
  }

  // `v` holds no NaN but the canonical one.
  template <class D>
  static HWY_INLINE hn::Vec<hn::Rebind<uint16_t, D>> narrow(D d, hn::Vec<D> v) {
    const hn::Rebind<uint16_t, D> dh;
    if constexpr (kHasF16C) {
      return hn::BitCast(dh, hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v));
    } else {
      const hn::RebindToSigned<D> di;  // magnitudes are positive as int32, which every target can compare
      const auto all = hn::BitCast(di, v);
      const auto magnitude = hn::And(all, hn::Set(di, 0x7fffffff));
      const auto sign = hn::ShiftRight<16>(hn::BitCast(hn::RebindToUnsigned<D>(), hn::Xor(all, magnitude)));
      // Re-biased and rounded to nearest even in integers; a carry out of the mantissa belongs into the exponent.
      const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 1));
      const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, hn::Set(di, 0x0fff - (112 << 23))), odd));
      // Added to 1/2, whose last bit is 2^-24, the float addition itself rounds to a multiple of the smallest
      // subnormal.
      const auto half = hn::Set(d, 0.5f);
      const auto subnormal = hn::Sub(hn::BitCast(di, hn::Add(hn::BitCast(d, magnitude), half)), hn::BitCast(di, half));
      const auto infinite_or_nan =
          hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7f800000)), hn::Set(di, 0x7e00), hn::Set(di, 0x7c00));
      auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x38800000)), subnormal, normal);
      result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x477fffff)), infinite_or_nan, result);
      return hn::DemoteTo(dh, hn::Or(result, hn::BitCast(di, sign)));
    }
  }

  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const Element* from) {
    return widen(d, hn::LoadU(hn::Rebind<uint16_t, D>(), from));
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> v, Element* to) {
    hn::StoreU(narrow(d, v), hn::Rebind<uint16_t, D>(), to);
  }
  static const Element* at(const void* base, int64_t i) { return static_cast<const Element*>(base) + i; }
  static Element* at(void* base, int64_t i) { return static_cast<Element*>(base) + i; }
};

struct BFloat16Storage {
  using Element = uint16_t;
  using Lane = float;
  static constexpr size_t kFewestLanes = 1;

  template <class D>
  static HWY_INLINE hn::Vec<D> widen(D d, hn::Vec<hn::Rebind<uint16_t, D>> h) {
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<D>(), h)));
  }

  // `v` holds no NaN but the canonical one, which rounding does not carry into its sign.
  template <class D>
  static HWY_INLINE hn::Vec<hn::Rebind<uint16_t, D>> narrow(D, hn::Vec<D> v) {
    const hn::RebindToUnsigned<D> du;
    const auto all = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(all), hn::Set(du, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(all, hn::Set(du, 0x7fff)), odd));
    return hn::DemoteTo(hn::Rebind<uint16_t, D>(), hn::BitCast(hn::RebindToSigned<D>(), rounded));
  }

  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const Element* from) {
    return widen(d, hn::LoadU(hn::Rebind<uint16_t, D>(), from));
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> v, Element* to) {
    hn::StoreU(narrow(d, v), hn::Rebind<uint16_t, D>(), to);
  }
  static const Element* at(const void* base, int64_t i) { return static_cast<const Element*>(base) + i; }
  static Element* at(void* base, int64_t i) { return static_cast<Element*>(base) + i; }
};

// Op as hardware without wider accumulators does it: what each step gives is rounded to the element's type,
// premul_sum's factor as well.
template <class Op, class Storage>
struct RoundEach : Op {
  explicit RoundEach(const ReduceJob& job) : Op(with_rounded_factor(job)) {}

  template <class D>
  static HWY_INLINE hn::Vec<D> round(D d, hn::Vec<D> v) {
    return Storage::widen(d, Storage::narrow(d, canonical_nan(d, v)));
  }
  template <class D>
  HWY_INLINE hn::Vec<D> map(D d, hn::Vec<D> x) const {
    return round(d, Op::map(d, x));
  }
  template <class D>
  HWY_INLINE hn::Vec<D> combine(D d, hn::Vec<D> a, hn::Vec<D> x) const {
    return round(d, Op::combine(d, a, x));
  }

  static ReduceJob with_rounded_factor(const ReduceJob& job) {
    ReduceJob rounded = job;
    const auto factor = static_cast<float>(job.factor);
    rounded.factor = std::is_same_v<Storage, Float16Storage> ? static_cast<float>(Half(factor))
                                                             : static_cast<float>(BFloat16(factor));
    return rounded;
  }
};

template <class Storage, class Op>
void reduce_halves_by(const ReduceJob& job, int64_t begin, int64_t end) {
  if (job.round_each) {
    reduce_lanes<Storage, RoundEach<Op, Storage>, (kManyVectors < 4 ? kManyVectors : 4)>(job, begin, end);
  } else {
    reduce_lanes<Storage, Op>(job, begin, end);
  }
}

template <class Storage>
void reduce_halves_of(const ReduceJob& job, int64_t begin, int64_t end) {
  switch (job.kind) {
    case ReduceOp::Kind::kSum:
      return reduce_halves_by<Storage, FloatSum>(job, begin, end);
    case ReduceOp::Kind::kAvg:
      return reduce_halves_by<Storage, FloatAvg>(job, begin, end);
    case ReduceOp::Kind::kProduct:
      return reduce_halves_by<Storage, FloatProduct>(job, begin, end);
    // Min and max round nothing.
    case ReduceOp::Kind::kMin:
      return reduce_lanes<Storage, FloatMin>(job, begin, end);
    case ReduceOp::Kind::kMax:
      return reduce_lanes<Storage, FloatMax>(job, begin, end);
    case ReduceOp::Kind::kPremulSum:
      return reduce_halves_by<Storage, FloatPremulSum>(job, begin, end);
    default:
      fatal("a reduction of 16-bit floats that reduction_supported() refuses");
  }
}

void reduce_halves(const ReduceJob& job, int64_t begin, int64_t end) {
  if (job.dtype == DType::kFloat16) {
    reduce_halves_of<Float16Storage>(job, begin, end);
  } else {
    reduce_halves_of<BFloat16Storage>(job, begin, end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace rankloom::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rankloom::internal {

HWY_EXPORT(reduce_halves);
void reduce_halves(const ReduceJob& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(reduce_halves)(job, begin, end);
}

}  // namespace rankloom::internal
#endif

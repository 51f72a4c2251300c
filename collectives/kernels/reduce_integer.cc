#include "collectives/kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/kernels/reduce_integer.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once for each target.
#include "collectives/kernels/reduce-inl.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"

HWY_BEFORE_NAMESPACE();
namespace rankloom::internal {
namespace HWY_NAMESPACE {

struct IntegerBase {
  explicit IntegerBase(const ReduceJob&) {}
  template <class D>
  HWY_INLINE hn::Vec<D> map(D, hn::Vec<D> x) const {
    return x;
  }
  template <class D>
  HWY_INLINE hn::Vec<D> finish(D, hn::Vec<D> a) const {
    return a;
  }
};

struct IntegerSum : IntegerBase {
  using IntegerBase::IntegerBase;
  template <class D>
  HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> a, hn::Vec<D> x) const {
    return hn::Add(a, x);
  }
};

struct IntegerProduct : IntegerBase {
  using IntegerBase::IntegerBase;
  template <class D>
  HWY_INLINE hn::Vec<D> combine(D d, hn::Vec<D> a, hn::Vec<D> x) const {
    if constexpr (sizeof(hn::TFromD<D>) > 1) {
      return hn::Mul(a, x);
    } else if constexpr (MaxLanes(D()) == 1) {
      return hn::Set(d, static_cast<uint8_t>(hn::GetLane(a) * hn::GetLane(x)));
    } else {
      // There is no product of bytes: even and odd ones apart, as the low and the high byte of 16 bits.
      const hn::Repartition<uint16_t, D> wide;
      const auto a16 = hn::BitCast(wide, a);
      const auto x16 = hn::BitCast(wide, x);
      const auto low = hn::And(hn::Mul(a16, x16), hn::Set(wide, 0x00ff));
      const auto high = hn::Mul(hn::ShiftRight<8>(a16), hn::And(x16, hn::Set(wide, 0xff00)));
      return hn::BitCast(d, hn::Or(low, high));
    }
  }
};

struct IntegerMin : IntegerBase {
  using IntegerBase::IntegerBase;
  template <class D>
  HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> a, hn::Vec<D> x) const {
    return hn::Min(a, x);
  }
};
struct IntegerMax : IntegerBase {
  using IntegerBase::IntegerBase;
  template <class D>
  HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> a, hn::Vec<D> x) const {
    return hn::Max(a, x);
  }
};
struct IntegerAnd : IntegerBase {
  using IntegerBase::IntegerBase;
  template <class D>
  HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> a, hn::Vec<D> x) const {
    return hn::And(a, x);
  }
};
struct IntegerOr : IntegerBase {
  using IntegerBase::IntegerBase;
  template <class D>
  HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> a, hn::Vec<D> x) const {
    return hn::Or(a, x);
  }
};
struct IntegerXor : IntegerBase {
  using IntegerBase::IntegerBase;
  template <class D>
  HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> a, hn::Vec<D> x) const {
    return hn::Xor(a, x);
  }
};

// Any value but 0 is true, and true is 1.
template <class Op>
struct OfBools : Op {
  using Op::Op;
  template <class D>
  HWY_INLINE hn::Vec<D> map(D d, hn::Vec<D> x) const {
    return hn::Min(x, hn::Set(d, uint8_t{1}));
  }
};

// Only min and max see a sign. The rest works on unsigned lanes, where wrapping is defined.
template <typename T>
void reduce_integers_of(const ReduceJob& job, int64_t begin, int64_t end) {
  using Unsigned = PlainStorage<std::make_unsigned_t<T>>;
  switch (job.kind) {
    case ReduceOp::Kind::kSum:
      return reduce_lanes<Unsigned, IntegerSum>(job, begin, end);
    case ReduceOp::Kind::kProduct:
      return reduce_lanes<Unsigned, IntegerProduct>(job, begin, end);
    case ReduceOp::Kind::kMin:
      return reduce_lanes<PlainStorage<T>, IntegerMin>(job, begin, end);
    case ReduceOp::Kind::kMax:
      return reduce_lanes<PlainStorage<T>, IntegerMax>(job, begin, end);
    case ReduceOp::Kind::kBand:
      return reduce_lanes<Unsigned, IntegerAnd>(job, begin, end);
    case ReduceOp::Kind::kBor:
      return reduce_lanes<Unsigned, IntegerOr>(job, begin, end);
    case ReduceOp::Kind::kBxor:
      return reduce_lanes<Unsigned, IntegerXor>(job, begin, end);
    default:
      fatal("a reduction of integers that reduction_supported() refuses");
  }
}

void reduce_bools(const ReduceJob& job, int64_t begin, int64_t end) {
  using Bytes = PlainStorage<uint8_t>;
  switch (job.kind) {
    case ReduceOp::Kind::kSum:
    case ReduceOp::Kind::kMax:
    case ReduceOp::Kind::kBor:
      return reduce_lanes<Bytes, OfBools<IntegerOr>>(job, begin, end);
    case ReduceOp::Kind::kProduct:
    case ReduceOp::Kind::kMin:
    case ReduceOp::Kind::kBand:
      return reduce_lanes<Bytes, OfBools<IntegerAnd>>(job, begin, end);
    case ReduceOp::Kind::kBxor:
      return reduce_lanes<Bytes, OfBools<IntegerXor>>(job, begin, end);
    default:
      fatal("a reduction of bools that reduction_supported() refuses");
  }
}

void reduce_integers(const ReduceJob& job, int64_t begin, int64_t end) {
  switch (job.dtype) {
    case DType::kInt8:
      return reduce_integers_of<int8_t>(job, begin, end);
    case DType::kUInt8:
      return reduce_integers_of<uint8_t>(job, begin, end);
    case DType::kInt16:
      return reduce_integers_of<int16_t>(job, begin, end);
    case DType::kInt32:
      return reduce_integers_of<int32_t>(job, begin, end);
    case DType::kInt64:
      return reduce_integers_of<int64_t>(job, begin, end);
    default:
      return reduce_bools(job, begin, end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace rankloom::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rankloom::internal {

HWY_EXPORT(reduce_integers);
void reduce_integers(const ReduceJob& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(reduce_integers)(job, begin, end);
}

}  // namespace rankloom::internal
#endif

#pragma once

// The device's reduction of one element: the same arithmetic as the kernels of collectives/kernels, bit by
// bit. Plain C++ that compiles for the host too, so that its bits are tested without a GPU.

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "rankloom/collective_call.h"
#include "rankloom/tensor.h"

#if defined(__CUDACC__)
#define RANKLOOM_HD __host__ __device__ __forceinline__
#else
#define RANKLOOM_HD inline
#endif

namespace rankloom::internal::cuda {

template <typename To, typename From>
RANKLOOM_HD To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

// The positive quiet NaN in place of any NaN.
RANKLOOM_HD float canonical_nan(float v) { return v == v ? v : bits_as<float>(uint32_t{0x7fc00000}); }
RANKLOOM_HD double canonical_nan(double v) { return v == v ? v : bits_as<double>(uint64_t{0x7ff8000000000000}); }

// ---- storages: how an Element lies in memory, and the Value that operations work on

template <typename T>
struct Plain {
  using Element = T;
  using Value = T;
  static RANKLOOM_HD Value load(Element e) { return e; }
  static RANKLOOM_HD Element store(Value v) { return v; }
};

struct Float16 {
  using Element = uint16_t;
  using Value = float;
  static RANKLOOM_HD Value load(Element e) {
    const uint32_t magnitude = e & 0x7fffu;
    const uint32_t sign = (e & 0x8000u) << 16;
    // Shifted into a float's place the exponent is 112 too small; the product is exact, for subnormals too.
    const uint32_t finite = bits_as<uint32_t>(bits_as<float>(magnitude << 13) * bits_as<float>(uint32_t{239} << 23));
    return bits_as<float>(sign | (magnitude < 0x7c00 ? finite : (magnitude << 13 | 0x7f800000)));
  }
  // `v` is no NaN but the canonical one.
  static RANKLOOM_HD Element store(Value v) {
    const uint32_t all = bits_as<uint32_t>(v);
    const uint32_t magnitude = all & 0x7fffffff;
    const uint32_t sign = (all ^ magnitude) >> 16;
    uint32_t result;
    if (magnitude > 0x477fffff) {
      result = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    } else if (magnitude < 0x38800000) {
      // Added to 1/2, whose last bit is 2^-24, the float addition itself rounds to a multiple of the smallest
      // subnormal.
      result = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - bits_as<uint32_t>(0.5f);
    } else {
      // Re-biased and rounded to nearest even; a carry out of the mantissa belongs into the exponent.
      result = (magnitude - (uint32_t{112} << 23) + 0x0fff + ((magnitude >> 13) & 1)) >> 13;
    }
    return static_cast<Element>(sign | result);
  }
};

struct BFloat16Bits {
  using Element = uint16_t;
  using Value = float;
  static RANKLOOM_HD Value load(Element e) { return bits_as<float>(static_cast<uint32_t>(e) << 16); }
  // `v` is no NaN but the canonical one, which rounding does not carry into its sign.
  static RANKLOOM_HD Element store(Value v) {
    const uint32_t all = bits_as<uint32_t>(v);
    return static_cast<Element>((all + 0x7fff + ((all >> 16) & 1)) >> 16);
  }
};

template <typename T>
struct ComplexOf {
  T real;
  T imaginary;
};

// ---- operations: map each input, combine it with what the earlier ones gave, finish once

// The parameters of an operation in its job.
struct OpArgs {
  double factor = 1;
  int64_t count = 1;
};

template <typename T>
struct FloatBase {
  RANKLOOM_HD explicit FloatBase(const OpArgs&) {}
  RANKLOOM_HD T map(T x) const { return x; }
  RANKLOOM_HD T finish(T a) const { return canonical_nan(a); }
};
template <typename T>
struct FloatSum : FloatBase<T> {
  using FloatBase<T>::FloatBase;
  RANKLOOM_HD T combine(T a, T x) const { return a + x; }
};
template <typename T>
struct FloatAvg : FloatSum<T> {
  RANKLOOM_HD explicit FloatAvg(const OpArgs& args) : FloatSum<T>(args), count(static_cast<T>(args.count)) {}
  RANKLOOM_HD T finish(T a) const { return canonical_nan(a / count); }
  T count;
};
template <typename T>
struct FloatPremulSum : FloatSum<T> {
  RANKLOOM_HD explicit FloatPremulSum(const OpArgs& args) : FloatSum<T>(args), factor(static_cast<T>(args.factor)) {}
  RANKLOOM_HD T map(T x) const { return x * factor; }
  T factor;
};
template <typename T>
struct FloatProduct : FloatBase<T> {
  using FloatBase<T>::FloatBase;
  RANKLOOM_HD T combine(T a, T x) const { return a * x; }
};
// x is taken if it is better or NaN; a NaN in `a` compares false with everything and so stays. Of equals the earlier
// stays.
template <typename T>
struct FloatMin : FloatBase<T> {
  using FloatBase<T>::FloatBase;
  RANKLOOM_HD T combine(T a, T x) const { return x < a || x != x ? x : a; }
};
template <typename T>
struct FloatMax : FloatBase<T> {
  using FloatBase<T>::FloatBase;
  RANKLOOM_HD T combine(T a, T x) const { return x > a || x != x ? x : a; }
};

// A float operation on 16-bit elements that rounds what each step gives to the element's type, premul_sum's factor as
// well.
template <class Op, class Storage>
struct RoundEach : Op {
  RANKLOOM_HD explicit RoundEach(const OpArgs& args)
      : Op(OpArgs{Storage::load(Storage::store(canonical_nan(static_cast<float>(args.factor)))), args.count}) {}
  static RANKLOOM_HD float round(float v) { return Storage::load(Storage::store(canonical_nan(v))); }
  RANKLOOM_HD float map(float x) const { return round(Op::map(x)); }
  RANKLOOM_HD float combine(float a, float x) const { return round(Op::combine(a, x)); }
};

template <typename T>
struct ComplexSum {
  using Value = ComplexOf<T>;
  RANKLOOM_HD explicit ComplexSum(const OpArgs&) {}
  RANKLOOM_HD Value map(Value x) const { return x; }
  RANKLOOM_HD Value combine(Value a, Value x) const { return {a.real + x.real, a.imaginary + x.imaginary}; }
  RANKLOOM_HD Value finish(Value a) const { return {canonical_nan(a.real), canonical_nan(a.imaginary)}; }
};
template <typename T>
struct ComplexAvg : ComplexSum<T> {
  using Value = ComplexOf<T>;
  RANKLOOM_HD explicit ComplexAvg(const OpArgs& args) : ComplexSum<T>(args), count(static_cast<T>(args.count)) {}
  RANKLOOM_HD Value finish(Value a) const {
    return {canonical_nan(a.real / count), canonical_nan(a.imaginary / count)};
  }
  T count;
};
// Each product rounded; std::complex differs where parts are infinite.
template <typename T>
struct ComplexProduct : ComplexSum<T> {
  using Value = ComplexOf<T>;
  using ComplexSum<T>::ComplexSum;
  RANKLOOM_HD Value combine(Value a, Value x) const {
    return {a.real * x.real - a.imaginary * x.imaginary, a.real * x.imaginary + a.imaginary * x.real};
  }
};

// T is unsigned for all but min and max: there wrapping is defined.
template <typename T>
struct IntegerBase {
  RANKLOOM_HD explicit IntegerBase(const OpArgs&) {}
  RANKLOOM_HD T map(T x) const { return x; }
  RANKLOOM_HD T finish(T a) const { return a; }
};
template <typename T>
struct IntegerSum : IntegerBase<T> {
  using IntegerBase<T>::IntegerBase;
  RANKLOOM_HD T combine(T a, T x) const { return static_cast<T>(a + x); }
};
template <typename T>
struct IntegerProduct : IntegerBase<T> {
  using IntegerBase<T>::IntegerBase;
  RANKLOOM_HD T combine(T a, T x) const {
    using Wide = std::conditional_t<(sizeof(T) < 4), uint32_t, T>;  // not int, which could overflow
    return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(x));
  }
};
template <typename T>
struct IntegerMin : IntegerBase<T> {
  using IntegerBase<T>::IntegerBase;
  RANKLOOM_HD T combine(T a, T x) const { return x < a ? x : a; }
};
template <typename T>
struct IntegerMax : IntegerBase<T> {
  using IntegerBase<T>::IntegerBase;
  RANKLOOM_HD T combine(T a, T x) const { return x > a ? x : a; }
};
template <typename T>
struct IntegerAnd : IntegerBase<T> {
  using IntegerBase<T>::IntegerBase;
  RANKLOOM_HD T combine(T a, T x) const { return static_cast<T>(a & x); }
};
template <typename T>
struct IntegerOr : IntegerBase<T> {
  using IntegerBase<T>::IntegerBase;
  RANKLOOM_HD T combine(T a, T x) const { return static_cast<T>(a | x); }
};
template <typename T>
struct IntegerXor : IntegerBase<T> {
  using IntegerBase<T>::IntegerBase;
  RANKLOOM_HD T combine(T a, T x) const { return static_cast<T>(a ^ x); }
};
// Any value but 0 is true, and true is 1.
template <class Op>
struct OfBools : Op {
  using Op::Op;
  RANKLOOM_HD uint8_t map(uint8_t x) const { return x != 0 ? 1 : 0; }
};

// ---- which of them a reduction is

// The properties by which reductions go into one launch.
struct Signature {
  DType dtype = DType::kFloat32;
  ReduceOp::Kind kind = ReduceOp::Kind::kSum;
  bool tree = false;
  bool round_each = false;  // false unless the dtype and the operation round
  friend bool operator==(const Signature&, const Signature&) = default;
};

template <class S, class O>
struct Reduction {
  using Storage = S;
  using Op = O;
};

// Calls visit(Reduction<Storage, Op>()) for a family of dtypes. False: there is no such reduction in the family.
template <typename T, class Visit>
bool visit_floats(ReduceOp::Kind kind, Visit visit) {
  using Kind = ReduceOp::Kind;
  if (kind == Kind::kSum) return visit(Reduction<Plain<T>, FloatSum<T>>());
  if (kind == Kind::kAvg) return visit(Reduction<Plain<T>, FloatAvg<T>>());
  if (kind == Kind::kProduct) return visit(Reduction<Plain<T>, FloatProduct<T>>());
  if (kind == Kind::kMin) return visit(Reduction<Plain<T>, FloatMin<T>>());
  if (kind == Kind::kMax) return visit(Reduction<Plain<T>, FloatMax<T>>());
  if (kind == Kind::kPremulSum) return visit(Reduction<Plain<T>, FloatPremulSum<T>>());
  return false;
}

// Min and max round nothing.
inline bool rounds(DType dtype, ReduceOp::Kind kind) {
  return (dtype == DType::kFloat16 || dtype == DType::kBFloat16) && kind != ReduceOp::Kind::kMin &&
         kind != ReduceOp::Kind::kMax;
}

template <class S, class Visit>
bool visit_halves(ReduceOp::Kind kind, bool round_each, Visit visit) {
  using Kind = ReduceOp::Kind;
  if (kind == Kind::kMin) return visit(Reduction<S, FloatMin<float>>());
  if (kind == Kind::kMax) return visit(Reduction<S, FloatMax<float>>());
  if (round_each) {
    if (kind == Kind::kSum) return visit(Reduction<S, RoundEach<FloatSum<float>, S>>());
    if (kind == Kind::kAvg) return visit(Reduction<S, RoundEach<FloatAvg<float>, S>>());
    if (kind == Kind::kProduct) return visit(Reduction<S, RoundEach<FloatProduct<float>, S>>());
    if (kind == Kind::kPremulSum) return visit(Reduction<S, RoundEach<FloatPremulSum<float>, S>>());
    return false;
  }
  if (kind == Kind::kSum) return visit(Reduction<S, FloatSum<float>>());
  if (kind == Kind::kAvg) return visit(Reduction<S, FloatAvg<float>>());
  if (kind == Kind::kProduct) return visit(Reduction<S, FloatProduct<float>>());
  if (kind == Kind::kPremulSum) return visit(Reduction<S, FloatPremulSum<float>>());
  return false;
}

template <typename T, class Visit>
bool visit_complex(ReduceOp::Kind kind, Visit visit) {
  using Kind = ReduceOp::Kind;
  if (kind == Kind::kSum) return visit(Reduction<Plain<ComplexOf<T>>, ComplexSum<T>>());
  if (kind == Kind::kAvg) return visit(Reduction<Plain<ComplexOf<T>>, ComplexAvg<T>>());
  if (kind == Kind::kProduct) return visit(Reduction<Plain<ComplexOf<T>>, ComplexProduct<T>>());
  return false;
}

template <typename T, class Visit>
bool visit_integers(ReduceOp::Kind kind, Visit visit) {
  using Kind = ReduceOp::Kind;
  using U = std::make_unsigned_t<T>;
  if (kind == Kind::kSum) return visit(Reduction<Plain<U>, IntegerSum<U>>());
  if (kind == Kind::kProduct) return visit(Reduction<Plain<U>, IntegerProduct<U>>());
  if (kind == Kind::kMin) return visit(Reduction<Plain<T>, IntegerMin<T>>());
  if (kind == Kind::kMax) return visit(Reduction<Plain<T>, IntegerMax<T>>());
  if (kind == Kind::kBand) return visit(Reduction<Plain<U>, IntegerAnd<U>>());
  if (kind == Kind::kBor) return visit(Reduction<Plain<U>, IntegerOr<U>>());
  if (kind == Kind::kBxor) return visit(Reduction<Plain<U>, IntegerXor<U>>());
  return false;
}

template <class Visit>
bool visit_bools(ReduceOp::Kind kind, Visit visit) {
  using Kind = ReduceOp::Kind;
  using Bytes = Plain<uint8_t>;
  if (kind == Kind::kSum || kind == Kind::kMax || kind == Kind::kBor)
    return visit(Reduction<Bytes, OfBools<IntegerOr<uint8_t>>>());
  if (kind == Kind::kProduct || kind == Kind::kMin || kind == Kind::kBand)
    return visit(Reduction<Bytes, OfBools<IntegerAnd<uint8_t>>>());
  if (kind == Kind::kBxor) return visit(Reduction<Bytes, OfBools<IntegerXor<uint8_t>>>());
  return false;
}

}  // namespace rankloom::internal::cuda

// The loops of a reduction, for one Highway target. Included once for each target by the files that name the dtypes, so
// the guard below is Highway's toggle in place of #pragma once.
//
// A dtype is a Storage: how its Elements are loaded into vectors of Lanes and stored back. An operation is an Op:
//   map(d, x)         of each input, before anything else (premul_sum, bool)
//   combine(d, a, x)  one step, a from the earlier inputs
//   finish(d, a)      once, at the end (avg, NaN)

#if defined(RANKLOOM_COLLECTIVES_KERNELS_REDUCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RANKLOOM_COLLECTIVES_KERNELS_REDUCE_INL_H_
#undef RANKLOOM_COLLECTIVES_KERNELS_REDUCE_INL_H_
#else
#define RANKLOOM_COLLECTIVES_KERNELS_REDUCE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "collectives/kernels/reduce.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace rankloom::internal {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Elements that are lanes as they lie in memory.
template <typename T>
struct PlainStorage {
  using Element = T;
  using Lane = T;
  static constexpr size_t kFewestLanes = 1;  // that an operation can work on

  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const Element* from) {
    return hn::LoadU(d, from);
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> v, Element* to) {
    hn::StoreU(v, d, to);
  }
  static const Element* at(const void* base, int64_t i) { return static_cast<const Element*>(base) + i; }
  static Element* at(void* base, int64_t i) { return static_cast<Element*>(base) + i; }
};

// The positive quiet NaN in place of any NaN.
template <class D>
HWY_INLINE hn::Vec<D> canonical_nan(D d, hn::Vec<D> v) {
  using T = hn::TFromD<D>;
  using Bits = hn::RebindToUnsigned<D>;
  constexpr auto kQuietNan = sizeof(T) == 4 ? uint64_t{0x7fc00000} : uint64_t{0x7ff8000000000000};
  const Bits bits;
  const auto nan = hn::BitCast(d, hn::Set(bits, static_cast<hn::TFromD<Bits>>(kQuietNan)));
  return hn::IfThenElse(hn::Eq(v, v), v, nan);
}

// How many vectors of accumulators to keep in registers: docs/decisions/0005-kernels.md has the measurement. More of
// them cost time to compile, which the portable target and sanitizers' builds cannot make good.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
inline constexpr size_t kManyVectors = 1;
#elif defined(RANKLOOM_ONE_TARGET)
inline constexpr size_t kManyVectors = 2;
#else
inline constexpr size_t kManyVectors = 8;
#endif

struct FloatBase {
  explicit FloatBase(const ReduceJob&) {}
  template <class D>
  HWY_INLINE hn::Vec<D> map(D, hn::Vec<D> x) const {
    return x;
  }
  template <class D>
  HWY_INLINE hn::Vec<D> finish(D d, hn::Vec<D> a) const {
    return canonical_nan(d, a);
  }
};

struct FloatSum : FloatBase {
  using FloatBase::FloatBase;
  template <class D>
  HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> a, hn::Vec<D> x) const {
    return hn::Add(a, x);
  }
};

struct FloatAvg : FloatSum {
  explicit FloatAvg(const ReduceJob& job) : FloatSum(job), count(static_cast<double>(job.count)) {}
  template <class D>
  HWY_INLINE hn::Vec<D> finish(D d, hn::Vec<D> a) const {
    // A division, as a user writes it: the product with a reciprocal has other bits.
    return canonical_nan(d, hn::Div(a, hn::Set(d, static_cast<hn::TFromD<D>>(count))));
  }
  double count;
};

struct FloatPremulSum : FloatSum {
  explicit FloatPremulSum(const ReduceJob& job) : FloatSum(job), factor(job.factor) {}
  template <class D>
  HWY_INLINE hn::Vec<D> map(D d, hn::Vec<D> x) const {
    return hn::Mul(x, hn::Set(d, static_cast<hn::TFromD<D>>(factor)));
  }
  double factor;
};

struct FloatProduct : FloatBase {
  using FloatBase::FloatBase;
  template <class D>
  HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> a, hn::Vec<D> x) const {
    return hn::Mul(a, x);
  }
};

// Min and max are compares, since the targets' own instructions differ on NaN and on -0 against +0. x is taken if it is
// better or NaN; a NaN in `a` compares false with everything and so stays. Of equals the earlier stays.
struct FloatMin : FloatBase {
  using FloatBase::FloatBase;
  template <class D>
  HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> a, hn::Vec<D> x) const {
    return hn::IfThenElse(hn::Or(hn::Lt(x, a), hn::IsNaN(x)), x, a);
  }
};
struct FloatMax : FloatBase {
  using FloatBase::FloatBase;
  template <class D>
  HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> a, hn::Vec<D> x) const {
    return hn::IfThenElse(hn::Or(hn::Gt(x, a), hn::IsNaN(x)), x, a);
  }
};

// The order of a reduction from the first input to the last: kVectors vectors at a time stay in registers while all
// inputs pass by, so each input is loaded once and nothing is spilled to the stack of a fiber.
template <class Storage, class Op, class D, size_t... kVectors>
HWY_INLINE void reduce_vectors(D d, const Op& op, const ReduceJob& job, int64_t i, std::index_sequence<kVectors...>) {
  constexpr size_t kLanes = MaxLanes(D());
  const void* const* HWY_RESTRICT inputs = job.inputs;
  const auto* first = Storage::at(inputs[0], i);
  hn::Vec<D> sums[] = {op.map(d, Storage::load(d, first + kVectors * kLanes))...};
  for (int64_t r = 1; r < job.count; ++r) {
    const auto* input = Storage::at(inputs[r], i);
    ((sums[kVectors] = op.combine(d, sums[kVectors], op.map(d, Storage::load(d, input + kVectors * kLanes)))), ...);
  }
  ((sums[kVectors] = op.finish(d, sums[kVectors])), ...);
  void* const* HWY_RESTRICT outputs = job.outputs;
  for (int64_t r = 0; r < job.output_count; ++r) {
    auto* output = Storage::at(outputs[r], i);
    (Storage::store(d, sums[kVectors], output + kVectors * kLanes), ...);
  }
}

// The order of a tree: partial results of 1, 2, 4, ... inputs wait on a stack until their neighbour is as large, as in
// a binary counter; what remains at the end is joined from the right.
template <class Storage, class Op, class D>
HWY_INLINE void reduce_vector_as_tree(D d, const Op& op, const ReduceJob& job, int64_t i) {
  using Lane = hn::TFromD<D>;
  constexpr size_t kLanes = MaxLanes(D());
  constexpr size_t kLevels = 32;  // 2^32 ranks, in 2 KiB at most
  HWY_ALIGN_MAX Lane waiting[kLevels * kLanes];
  size_t depth = 0;
  for (int64_t r = 0; r < job.count; ++r) {
    auto sum = op.map(d, Storage::load(d, Storage::at(job.inputs[r], i)));
    for (int64_t merged = r; (merged & 1) != 0; merged >>= 1) {
      --depth;
      sum = op.combine(d, hn::Load(d, waiting + depth * kLanes), sum);
    }
    hn::Store(sum, d, waiting + depth * kLanes);
    ++depth;
  }
  --depth;
  auto sum = hn::Load(d, waiting + depth * kLanes);
  while (depth > 0) {
    --depth;
    sum = op.combine(d, hn::Load(d, waiting + depth * kLanes), sum);
  }
  sum = op.finish(d, sum);
  for (int64_t r = 0; r < job.output_count; ++r) Storage::store(d, sum, Storage::at(job.outputs[r], i));
}

template <class Storage, class Op, size_t kVectors, class D>
HWY_INLINE int64_t reduce_whole_vectors(D d, const Op& op, const ReduceJob& job, int64_t i, int64_t end) {
  constexpr int64_t kStep = static_cast<int64_t>(kVectors * MaxLanes(D()));
  for (; i + kStep <= end; i += kStep) reduce_vectors<Storage>(d, op, job, i, std::make_index_sequence<kVectors>());
  return i;
}

template <class Storage, class Op, class D>
HWY_INLINE int64_t reduce_whole_vectors_as_tree(D d, const Op& op, const ReduceJob& job, int64_t i, int64_t end) {
  constexpr int64_t kStep = static_cast<int64_t>(MaxLanes(D()));
  for (; i + kStep <= end; i += kStep) reduce_vector_as_tree<Storage>(d, op, job, i);
  return i;
}

// Lanes [begin, end): large steps first, then smaller ones, down to one element. All of them do the same to an element.
template <class Storage, class Op, size_t kVectors = kManyVectors>
HWY_NOINLINE void reduce_lanes(const ReduceJob& job, int64_t begin, int64_t end) {
  using Lane = typename Storage::Lane;
  const hn::ScalableTag<Lane> full;
  const hn::CappedTag<Lane, 16 / sizeof(Lane)> quarter;
  const hn::CappedTag<Lane, Storage::kFewestLanes> one;
  const Op op(job);
  int64_t i = begin;
  if (job.tree) {
    i = reduce_whole_vectors_as_tree<Storage>(full, op, job, i, end);
    reduce_whole_vectors_as_tree<Storage>(one, op, job, i, end);
    return;
  }
  if constexpr (kVectors > 1) i = reduce_whole_vectors<Storage, Op, kVectors>(full, op, job, i, end);
  if constexpr (kVectors > 4) i = reduce_whole_vectors<Storage, Op, 4>(full, op, job, i, end);
  i = reduce_whole_vectors<Storage, Op, 1>(full, op, job, i, end);
  if constexpr (MaxLanes(full) > MaxLanes(quarter)) {
    i = reduce_whole_vectors<Storage, Op, 1>(quarter, op, job, i, end);
  }
  reduce_whole_vectors<Storage, Op, 1>(one, op, job, i, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace rankloom::internal
HWY_AFTER_NAMESPACE();

#endif

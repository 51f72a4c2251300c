#pragma once

#include <cstdint>
#include <string>

namespace rankloom {

// How elements of several ranks become one. A value.
//   sum, product, min, max: every dtype with arithmetic (min and max: not complex); bool counts as 0 or 1, its sum is `or`.
//   avg: sum divided by the group's size; floating and complex dtypes only.
//   band, bor, bxor: integers and bool only.
//   premul_sum(x): every input is multiplied by x first; floating dtypes only.
// Integer overflow wraps. NaN: min and max give NaN if any input is NaN, as PyTorch's do.
class ReduceOp {
 public:
  enum class Kind : uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor, kPremulSum };

  constexpr ReduceOp() = default;
  constexpr ReduceOp(Kind kind) : kind_(kind) {}  // NOLINT: implicit, so that ReduceOp::kSum is one
  static constexpr ReduceOp premul_sum(double factor) {
    ReduceOp op(Kind::kPremulSum);
    op.factor_ = factor;
    return op;
  }

  static constexpr Kind kSum = Kind::kSum;
  static constexpr Kind kAvg = Kind::kAvg;
  static constexpr Kind kProduct = Kind::kProduct;
  static constexpr Kind kMin = Kind::kMin;
  static constexpr Kind kMax = Kind::kMax;
  static constexpr Kind kBand = Kind::kBand;
  static constexpr Kind kBor = Kind::kBor;
  static constexpr Kind kBxor = Kind::kBxor;

  constexpr Kind kind() const { return kind_; }
  constexpr double factor() const { return factor_; }  // of premul_sum, else 1
  std::string name() const;                            // "sum", "premul_sum(0.5)"

  friend constexpr bool operator==(const ReduceOp&, const ReduceOp&) = default;

 private:
  Kind kind_ = Kind::kSum;
  double factor_ = 1.0;
};

// In which order a reduction adds up. Floating-point results depend on it; integers do not.
struct ReduceOrder {
  enum class Kind : uint8_t {
    kRank,      // ((r0 + r1) + r2) + ...
    kReversed,  // ((rn-1 + rn-2) + ...) + r0
    kRing,      // chunk c starts at rank c + 1 and goes round, as a ring reduce-scatter does
    kTree,      // neighbours in pairs, then pairs of pairs
    kSeeded,    // a permutation from the seed, for all elements of a call the same
  };
  Kind kind = Kind::kRank;
  uint64_t seed = 0;
  // float16 and bfloat16: add up in float32 and round once at the end (the default), or round after each step.
  bool accumulate_in_float = true;

  friend constexpr bool operator==(const ReduceOrder&, const ReduceOrder&) = default;
};

}  // namespace rankloom

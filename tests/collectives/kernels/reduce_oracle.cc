#include "tests/collectives/kernels/reduce_oracle.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "collectives/call/complex.h"
#include "rankloom/random.h"

namespace rankloom {

using namespace internal;

namespace {

using Kind = ReduceOp::Kind;

// Bool tensors are bytes, any of which may be true.
struct BoolByte {
  uint8_t byte;
};

template <typename T>
constexpr bool kIsHalf = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

template <typename T>
auto widen(T value) {
  if constexpr (kIsHalf<T>) {
    return static_cast<float>(value);
  } else {
    return value;
  }
}

template <typename T, typename A>
T narrow(A value) {
  return T(value);
}

template <typename A>
A combine(Kind kind, A a, A x) {
  if constexpr (std::is_same_v<A, BoolByte>) {
    const bool left = a.byte != 0;
    const bool right = x.byte != 0;
    switch (kind) {
      case Kind::kSum:
      case Kind::kMax:
      case Kind::kBor:
        return {left || right};
      case Kind::kBxor:
        return {left != right};
      default:
        return {left && right};
    }
  } else if constexpr (std::is_integral_v<A>) {
    const auto left = static_cast<uint64_t>(a);
    const auto right = static_cast<uint64_t>(x);
    switch (kind) {
      case Kind::kSum:
        return static_cast<A>(left + right);
      case Kind::kProduct:
        return static_cast<A>(left * right);
      case Kind::kMin:
        return x < a ? x : a;
      case Kind::kMax:
        return x > a ? x : a;
      case Kind::kBand:
        return static_cast<A>(left & right);
      case Kind::kBor:
        return static_cast<A>(left | right);
      default:
        return static_cast<A>(left ^ right);
    }
  } else if constexpr (std::is_floating_point_v<A>) {
    switch (kind) {
      case Kind::kProduct:
        return a * x;
      case Kind::kMin:
        return std::isnan(a) ? a : std::isnan(x) || x < a ? x : a;
      case Kind::kMax:
        return std::isnan(a) ? a : std::isnan(x) || x > a ? x : a;
      default:
        return a + x;
    }
  } else {
    if (kind != Kind::kProduct) return {a.real() + x.real(), a.imag() + x.imag()};
    return {a.real() * x.real() - a.imag() * x.imag(), a.real() * x.imag() + a.imag() * x.real()};
  }
}

template <typename A>
A canonical(A value) {
  if constexpr (std::is_floating_point_v<A>) {
    return std::isnan(value) ? std::numeric_limits<A>::quiet_NaN() : value;
  } else if constexpr (std::is_same_v<A, Complex64> || std::is_same_v<A, Complex128>) {
    return {canonical(value.real()), canonical(value.imag())};
  } else if constexpr (std::is_same_v<A, BoolByte>) {
    return {value.byte != 0};
  } else {
    return value;
  }
}

// The ranks in the order of the reduction.
std::vector<size_t> ranks_in_order(const ReduceOp::Order& order, size_t ranks, size_t chunk) {
  std::vector<size_t> in_order;
  for (size_t i = 0; i < ranks; ++i) {
    switch (order.kind) {
      case ReduceOp::Order::Kind::kReversed:
        in_order.push_back(ranks - 1 - i);
        break;
      case ReduceOp::Order::Kind::kRing:
        in_order.push_back((chunk + 1 + i) % ranks);
        break;
      default:
        in_order.push_back(i);
    }
  }
  if (order.kind == ReduceOp::Order::Kind::kSeeded) {
    Prng prng(order.seed);
    for (size_t i = ranks; i > 1; --i) std::swap(in_order[i - 1], in_order[prng.below(i)]);
  }
  return in_order;
}

// One element, from the ranks' values in the order of the reduction.
template <typename T>
T reduce_element(ReduceOp op, const ReduceOp::Order& order, const std::vector<T>& inputs) {
  using A = decltype(widen(T()));
  [[maybe_unused]] const bool rounds = kIsHalf<T> && !order.accumulate_in_float;
  const auto rounded = [&](A value) {
    if constexpr (kIsHalf<T>) {
      if (rounds) return widen(narrow<T>(value));
    }
    return value;
  };
  const auto prepared = [&](T input) {
    A value = widen(input);
    if constexpr (std::is_floating_point_v<A>) {
      if (op.kind() == Kind::kPremulSum) value = rounded(value * rounded(static_cast<A>(op.factor())));
    }
    return value;
  };
  A result = prepared(inputs[0]);
  if (order.kind == ReduceOp::Order::Kind::kTree) {
    std::vector<A> level;
    for (const T input : inputs) level.push_back(prepared(input));
    while (level.size() > 1) {
      std::vector<A> next;
      for (size_t i = 0; i < level.size(); i += 2) {
        next.push_back(i + 1 < level.size() ? rounded(combine(op.kind(), level[i], level[i + 1])) : level[i]);
      }
      level = next;
    }
    result = level[0];
  } else {
    for (size_t i = 1; i < inputs.size(); ++i) result = rounded(combine(op.kind(), result, prepared(inputs[i])));
  }
  if constexpr (std::is_floating_point_v<A>) {
    if (op.kind() == Kind::kAvg) result = result / static_cast<A>(inputs.size());
  } else if constexpr (std::is_same_v<A, Complex64> || std::is_same_v<A, Complex128>) {
    const auto count = static_cast<typename A::value_type>(inputs.size());
    if (op.kind() == Kind::kAvg) result = {result.real() / count, result.imag() / count};
  }
  return narrow<T>(canonical(result));
}

// All elements of the inputs' tensors; chunk_of(element) is the ring's chunk.
template <typename T>
Bytes reduce_tensors(ReduceOp op, const ReduceOp::Order& order, const std::vector<Bytes>& inputs,
                     absl::FunctionRef<size_t(size_t)> chunk_of) {
  const size_t numel = inputs[0].size() / sizeof(T);
  Bytes result(inputs[0].size());
  std::vector<T> values(inputs.size());
  std::vector<size_t> ranks;
  size_t chunk = 0;
  for (size_t i = 0; i < numel; ++i) {
    if (ranks.empty() || chunk_of(i) != chunk) {
      chunk = chunk_of(i);
      ranks = ranks_in_order(order, inputs.size(), chunk);
    }
    for (size_t r = 0; r < ranks.size(); ++r) {
      std::memcpy(&values[r], inputs[ranks[r]].data() + i * sizeof(T), sizeof(T));
    }
    const T value = reduce_element(op, order, values);
    std::memcpy(result.data() + i * sizeof(T), &value, sizeof(T));
  }
  return result;
}

}  // namespace

Bytes expected_reduction(DType dtype, ReduceOp op, const ReduceOp::Order& order, const std::vector<Bytes>& inputs,
                         absl::FunctionRef<size_t(size_t)> chunk_of) {
  switch (dtype) {
    case DType::kFloat16:
      return reduce_tensors<Half>(op, order, inputs, chunk_of);
    case DType::kBFloat16:
      return reduce_tensors<BFloat16>(op, order, inputs, chunk_of);
    case DType::kFloat32:
      return reduce_tensors<float>(op, order, inputs, chunk_of);
    case DType::kFloat64:
      return reduce_tensors<double>(op, order, inputs, chunk_of);
    case DType::kInt8:
      return reduce_tensors<int8_t>(op, order, inputs, chunk_of);
    case DType::kUInt8:
      return reduce_tensors<uint8_t>(op, order, inputs, chunk_of);
    case DType::kInt16:
      return reduce_tensors<int16_t>(op, order, inputs, chunk_of);
    case DType::kInt32:
      return reduce_tensors<int32_t>(op, order, inputs, chunk_of);
    case DType::kInt64:
      return reduce_tensors<int64_t>(op, order, inputs, chunk_of);
    case DType::kBool:
      return reduce_tensors<BoolByte>(op, order, inputs, chunk_of);
    case DType::kComplex64:
      return reduce_tensors<Complex64>(op, order, inputs, chunk_of);
    default:
      return reduce_tensors<Complex128>(op, order, inputs, chunk_of);
  }
}

}  // namespace rankloom

#include "tests/campaign/mpi_reduction.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <type_traits>

namespace rankloom {

namespace {

using Kind = ReduceOp::Kind;

#ifdef OPEN_MPI
constexpr bool kSumsSaturate = true;
constexpr bool kBytesAreSigned = false;
#else
constexpr bool kSumsSaturate = false;
constexpr bool kBytesAreSigned = true;
#endif

Kind kind_of(const JobCall& call) { return static_cast<Kind>(call.reduce); }

template <typename T>
constexpr bool kIsComplex = !std::is_arithmetic_v<T>;

template <typename T>
T value_of(const Bytes& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

template <typename T, typename Change>
void change_each(Bytes* bytes, const Change& change) {
  for (size_t at = 0; at < bytes->size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes->data() + at, sizeof(T));
    value = change(value);
    std::memcpy(bytes->data() + at, &value, sizeof(T));
  }
}

// The same bits, or two NaNs.
template <typename T>
bool alike(T a, T b) {
  if constexpr (kIsComplex<T>) {
    return alike(a.real(), b.real()) && alike(a.imag(), b.imag());
  } else {
    return std::memcmp(&a, &b, sizeof(T)) == 0 || (std::isnan(a) && std::isnan(b));
  }
}

// The results of combining all values, two at a time, in every order.
template <typename T, typename Combine>
std::vector<T> in_every_order(const std::vector<T>& values, const Combine& combine) {
  std::vector<std::vector<T>> results(size_t{1} << values.size());  // [some of the values, a bit each]
  for (size_t i = 0; i < values.size(); ++i) results[size_t{1} << i] = {values[i]};
  for (size_t some = 1; some < results.size(); ++some) {
    for (size_t left = (some - 1) & some; left != 0; left = (left - 1) & some) {
      const size_t right = some ^ left;
      if (left < right) continue;  // a + b is b + a
      for (const T a : results[left]) {
        for (const T b : results[right]) results[some].push_back(combine(a, b));
      }
    }
  }
  return results.back();
}

template <typename T>
bool is_of_an_order(const JobCall& call, const std::vector<T>& values, T have, T (*combine)(T, T)) {
  const std::vector<T> results = in_every_order(values, combine);
  return std::any_of(results.begin(), results.end(), [&](T result) {
    Bytes bytes(sizeof(T));
    std::memcpy(bytes.data(), &result, sizeof(T));
    return alike(value_of<T>(finished(call, values.size(), bytes)), have);
  });
}

template <typename T>
T sum(T a, T b) {
  return a + b;
}

template <typename T>
T product(T a, T b) {
  if constexpr (kIsComplex<T>) {
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  } else {
    return a * b;
  }
}

template <typename T>
T product_of_c(T a, T b) {
  return a * b;
}

// The sums of the values whose bits `which` has, in every order, each step saturated or wrapped round: vector code does
// the former, the code for what is left of a tensor behind it the latter, and steps have different lengths.
template <typename T>
std::set<T> narrow_sums(const std::vector<T>& values, unsigned which) {
  using Limits = std::numeric_limits<T>;
  std::set<T> sums;
  for (unsigned some = (which - 1) & which; some != 0; some = (some - 1) & which) {
    for (const T a : narrow_sums(values, some)) {
      for (const T b : narrow_sums(values, which & ~some)) {
        sums.insert(static_cast<T>(a + b));
        sums.insert(static_cast<T>(std::clamp<int>(a + b, Limits::min(), Limits::max())));
      }
    }
  }
  for (size_t i = 0; sums.empty() && i < values.size(); ++i) {
    if (which == 1u << i) sums.insert(values[i]);
  }
  return sums;
}

// By their bits as signed numbers.
template <typename T>
T signed_extreme(Kind kind, const std::vector<T>& values) {
  const auto below = [](T a, T b) {
    return static_cast<std::make_signed_t<T>>(a) < static_cast<std::make_signed_t<T>>(b);
  };
  return kind == Kind::kMin ? *std::min_element(values.begin(), values.end(), below)
                            : *std::max_element(values.begin(), values.end(), below);
}

template <typename T>
std::optional<Difference> difference_of_integers(const JobCall& call, const std::vector<T>& values, T have) {
  if (kind_of(call) == Kind::kSum) {
    const bool saturates = narrow_sums<T>(values, (1u << values.size()) - 1).contains(have);
    return saturates ? std::optional(Difference::kSaturates) : std::nullopt;
  }
  return have == signed_extreme(kind_of(call), values) ? std::optional(Difference::kSigned) : std::nullopt;
}

template <typename T>
std::optional<Difference> difference_of_numbers(const JobCall& call, const std::vector<T>& values, T have, T want) {
  if (alike(have, want)) return Difference::kNan;
  const bool multiplies = kind_of(call) == Kind::kProduct;
  const bool in_order = is_of_an_order<T>(call, values, have, multiplies ? product<T> : sum<T>);
  if constexpr (kIsComplex<T>) {
    if (multiplies && in_order && have == want) return Difference::kZeros;
    if (multiplies && static_cast<Values>(call.values) == Values::kSmall) return std::nullopt;
    if (multiplies && !in_order && is_of_an_order<T>(call, values, have, product_of_c<T>)) {
      return Difference::kComplexInfinity;
    }
  } else if (kind_of(call) == Kind::kMin || kind_of(call) == Kind::kMax) {
    const bool beside_nan = std::any_of(values.begin(), values.end(), [](T value) { return std::isnan(value); });
    const bool one_of_them = std::any_of(values.begin(), values.end(), [have](T value) { return alike(value, have); });
    if (!one_of_them) return std::nullopt;
    if (have == want) return Difference::kZeros;
    return beside_nan ? std::optional(Difference::kNanPassedOver) : std::nullopt;
  }
  return in_order ? std::optional(Difference::kOrder) : std::nullopt;
}

template <typename T>
std::optional<Difference> difference_of(const JobCall& call, const std::vector<Bytes>& inputs, const Bytes& have,
                                        const Bytes& want) {
  std::vector<T> values;
  for (const Bytes& input : inputs) values.push_back(value_of<T>(input));
  if constexpr (std::is_integral_v<T>) {
    return difference_of_integers<T>(call, values, value_of<T>(have));
  } else {
    return difference_of_numbers<T>(call, values, value_of<T>(have), value_of<T>(want));
  }
}

}  // namespace

std::optional<MpiReduction> mpi_reduction(const JobCall& call) {
  static const std::map<DType, MPI_Datatype> kTypes = {
      {DType::kFloat32, MPI_FLOAT},
      {DType::kFloat64, MPI_DOUBLE},
      {DType::kInt8, MPI_INT8_T},
      {DType::kUInt8, MPI_UINT8_T},
      {DType::kInt16, MPI_INT16_T},
      {DType::kInt32, MPI_INT32_T},
      {DType::kInt64, MPI_INT64_T},
      {DType::kBool, MPI_C_BOOL},
      {DType::kComplex64, MPI_C_FLOAT_COMPLEX},
      {DType::kComplex128, MPI_C_DOUBLE_COMPLEX},
  };
  const auto type = kTypes.find(call.element());
  if (type == kTypes.end()) return std::nullopt;
  const bool truth = call.element() == DType::kBool;
  switch (kind_of(call)) {
    case Kind::kSum:
    case Kind::kAvg:
    case Kind::kPremulSum:
      return MpiReduction{type->second, truth ? MPI_LOR : MPI_SUM};
    case Kind::kProduct:
      return MpiReduction{type->second, truth ? MPI_LAND : MPI_PROD};
    case Kind::kMin:
      return MpiReduction{type->second, truth ? MPI_LAND : MPI_MIN};
    case Kind::kMax:
      return MpiReduction{type->second, truth ? MPI_LOR : MPI_MAX};
    case Kind::kBand:
      return MpiReduction{type->second, truth ? MPI_LAND : MPI_BAND};
    case Kind::kBor:
      return MpiReduction{type->second, truth ? MPI_LOR : MPI_BOR};
    case Kind::kBxor:
      return MpiReduction{type->second, truth ? MPI_LXOR : MPI_BXOR};
  }
  return std::nullopt;
}

Bytes prepared(const JobCall& call, Bytes bytes) {
  if (call.element() == DType::kBool) {
    for (uint8_t& byte : bytes) byte = byte != 0;
  }
  if (kind_of(call) != Kind::kPremulSum) return bytes;
  const double factor = reduce_of(call).factor();
  if (call.element() == DType::kFloat32) {
    change_each<float>(&bytes, [factor](float value) { return value * static_cast<float>(factor); });
  } else {
    change_each<double>(&bytes, [factor](double value) { return value * factor; });
  }
  return bytes;
}

Bytes finished(const JobCall& call, size_t size, Bytes bytes) {
  if (kind_of(call) != Kind::kAvg) return bytes;
  const bool wide = call.element() == DType::kFloat64 || call.element() == DType::kComplex128;
  if (wide) {
    change_each<double>(&bytes, [size](double value) { return value / static_cast<double>(size); });
  } else {
    change_each<float>(&bytes, [size](float value) { return value / static_cast<float>(size); });
  }
  return bytes;
}

bool is_exact(const JobCall& call) {
  const DType dtype = call.element();
  if (static_cast<Values>(call.values) == Values::kSmall) {
    // A factor may round, and the parts of a product are zeros of both signs.
    const bool rounds = kind_of(call) == Kind::kPremulSum;
    return !rounds && !(internal::is_complex(dtype) && kind_of(call) == Kind::kProduct);
  }
  const bool narrow = dtype == DType::kInt8 || dtype == DType::kUInt8 || dtype == DType::kInt16;
  if (narrow && kind_of(call) == Kind::kSum) return !kSumsSaturate;
  const bool extreme = kind_of(call) == Kind::kMin || kind_of(call) == Kind::kMax;
  if (dtype == DType::kUInt8 && extreme) return !kBytesAreSigned;
  return internal::is_integral(dtype) || dtype == DType::kBool;
}

std::optional<Difference> difference_of(const JobCall& call, const std::vector<Bytes>& inputs, const Bytes& have,
                                        const Bytes& want) {
  if (is_exact(call)) return std::nullopt;
  switch (call.element()) {
    case DType::kFloat32:
      return difference_of<float>(call, inputs, have, want);
    case DType::kFloat64:
      return difference_of<double>(call, inputs, have, want);
    case DType::kComplex64:
      return difference_of<std::complex<float>>(call, inputs, have, want);
    case DType::kComplex128:
      return difference_of<std::complex<double>>(call, inputs, have, want);
    case DType::kInt8:
      return difference_of<int8_t>(call, inputs, have, want);
    case DType::kUInt8:
      return difference_of<uint8_t>(call, inputs, have, want);
    case DType::kInt16:
      return difference_of<int16_t>(call, inputs, have, want);
    default:
      return std::nullopt;
  }
}

}  // namespace rankloom

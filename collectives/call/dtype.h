#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "collectives/call/half.h"

namespace rankloom {

// Element types. Values are part of no format.
enum class DType : uint8_t {
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kInt8,
  kUInt8,
  kInt16,
  kInt32,
  kInt64,
  kBool,          // one byte; any value but 0 is true
  kComplex64,     // two float32
  kComplex128,    // two float64
  kFloat8E4M3FN,  // moves only: no arithmetic
  kFloat8E5M2,    // moves only: no arithmetic
};
inline constexpr int kDTypeCount = 14;

// False: a value that is none of the above, from a cast. Calls refuse it.
constexpr bool is_dtype(DType dtype) { return static_cast<int>(dtype) < kDTypeCount; }

// "float32", "bfloat16", "float8_e4m3fn": PyTorch's names. "an unknown dtype" for a value that is none.
std::string_view dtype_name(DType dtype);
// Bytes of one element; 0 for a value that is none.
size_t dtype_size(DType dtype);
bool is_floating(DType dtype);  // float16, bfloat16, float32, float64
bool is_complex(DType dtype);
bool is_integral(DType dtype);  // int8 ... int64, uint8; not bool

// The dtype of a C++ type; undefined for types that have none.
template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<Half> {
  static constexpr DType value = DType::kFloat16;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::kBFloat16;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kFloat32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kFloat64;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::kInt8;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kUInt8;
};
template <>
struct DTypeOf<int16_t> {
  static constexpr DType value = DType::kInt16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kInt32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kInt64;
};
template <>
struct DTypeOf<long long> {
  static constexpr DType value = DType::kInt64;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::kBool;
};
template <>
struct DTypeOf<Complex64> {
  static constexpr DType value = DType::kComplex64;
};
template <>
struct DTypeOf<Complex128> {
  static constexpr DType value = DType::kComplex128;
};
template <>
struct DTypeOf<Float8E4M3FN> {
  static constexpr DType value = DType::kFloat8E4M3FN;
};
template <>
struct DTypeOf<Float8E5M2> {
  static constexpr DType value = DType::kFloat8E5M2;
};

template <typename T>
concept TensorElement = requires {
  DTypeOf<T>::value;
};

}  // namespace rankloom

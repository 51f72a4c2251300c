#include <array>

#include "rankloom/tensor.h"

namespace rankloom {

using namespace internal;

namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  size_t size;
};
constexpr std::array<DTypeRow, kDTypeCount> kRows{{
    {DType::kFloat16, "float16", 2},
    {DType::kBFloat16, "bfloat16", 2},
    {DType::kFloat32, "float32", 4},
    {DType::kFloat64, "float64", 8},
    {DType::kInt8, "int8", 1},
    {DType::kUInt8, "uint8", 1},
    {DType::kInt16, "int16", 2},
    {DType::kInt32, "int32", 4},
    {DType::kInt64, "int64", 8},
    {DType::kBool, "bool", 1},
    {DType::kComplex64, "complex64", 8},
    {DType::kComplex128, "complex128", 16},
    {DType::kFloat8E4M3FN, "float8_e4m3fn", 1},
    {DType::kFloat8E5M2, "float8_e5m2", 1},
}};

constexpr bool rows_are_in_enum_order() {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (static_cast<int>(kRows[static_cast<size_t>(i)].dtype) != i) return false;
  }
  return true;
}
static_assert(rows_are_in_enum_order());
static_assert(sizeof(Half) == 2 && sizeof(BFloat16) == 2 && sizeof(Float8E4M3FN) == 1 && sizeof(Float8E5M2) == 1);
static_assert(sizeof(bool) == 1, "bool tensors are bytes");

}  // namespace

std::string_view dtype_name(DType dtype) {
  return is_dtype(dtype) ? kRows[static_cast<size_t>(dtype)].name : "an unknown dtype";
}

size_t dtype_size(DType dtype) { return is_dtype(dtype) ? kRows[static_cast<size_t>(dtype)].size : 0; }

bool internal::is_floating(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 || dtype == DType::kFloat32 || dtype == DType::kFloat64;
}

bool internal::is_complex(DType dtype) { return dtype == DType::kComplex64 || dtype == DType::kComplex128; }

bool internal::is_integral(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kUInt8 || dtype == DType::kInt16 || dtype == DType::kInt32 ||
         dtype == DType::kInt64;
}

}  // namespace rankloom

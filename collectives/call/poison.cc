#include "collectives/call/poison.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "collectives/call/complex.h"
#include "rankloom/tensor.h"
#include "sim/base/fnv.h"

namespace rankloom::internal {
namespace {

template <typename T>
void fill_with(const TensorView& tensor, T value) {
  std::fill_n(static_cast<T*>(tensor.data()), tensor.numel(), value);
}

}  // namespace

bool overlap(const TensorView& a, const TensorView& b) {
  const auto begin_a = reinterpret_cast<uintptr_t>(a.data());
  const auto begin_b = reinterpret_cast<uintptr_t>(b.data());
  return begin_a < begin_b + b.bytes() && begin_b < begin_a + a.bytes();
}

uint64_t checksum(const TensorView& tensor) {
  const auto* const bytes = static_cast<const unsigned char*>(tensor.data());
  uint64_t hash = kFnvBasis;
  size_t i = 0;
  for (; i + 8 <= tensor.bytes(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes + i, 8);
    hash = fnv_step(hash, word);
  }
  for (; i < tensor.bytes(); ++i) hash = fnv_step(hash, bytes[i]);
  return hash;
}

bool holds_poison(const TensorView& tensor) {
  if (tensor.bytes() == 0) return true;
  struct Element {
    alignas(16) char bytes[16];
  };
  static const auto* const elements = [] {
    auto* const made = new std::array<Element, kDTypeCount>();
    for (size_t dtype = 0; dtype < made->size(); ++dtype)
      fill_with_poison(TensorView((*made)[dtype].bytes, static_cast<DType>(dtype), {1}));
    return made;
  }();
  const size_t size = dtype_size(tensor.dtype());
  const char* const element = (*elements)[static_cast<size_t>(tensor.dtype())].bytes;
  const auto* const bytes = static_cast<const char*>(tensor.data());
  return std::memcmp(bytes, element, size) == 0 && std::memcmp(bytes, bytes + size, tensor.bytes() - size) == 0;
}

void fill_with_poison(const TensorView& tensor) {
  switch (tensor.dtype()) {
    case DType::kFloat32:
      fill_with(tensor, std::numeric_limits<float>::quiet_NaN());
      break;
    case DType::kFloat64:
      fill_with(tensor, std::numeric_limits<double>::quiet_NaN());
      break;
    case DType::kFloat16:
      fill_with(tensor, Half::from_bits(0x7e00));
      break;
    case DType::kBFloat16:
      fill_with(tensor, BFloat16::from_bits(0x7fc0));
      break;
    case DType::kComplex64:
      fill_with(tensor, Complex64(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::quiet_NaN()));
      break;
    case DType::kComplex128:
      fill_with(tensor, Complex128(std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()));
      break;
    default:
      if (tensor.bytes() > 0) std::memset(tensor.data(), 0xEB, tensor.bytes());
  }
}

}  // namespace rankloom::internal

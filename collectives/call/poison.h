#pragma once

#include <cstdint>
#include <string_view>

#include "rankloom/tensor.h"

namespace rankloom::internal {

// Marks that poisoned runs leave in buffers, so that a program that touches one between call and wait() is found out.

// Whether two tensors share a byte.
bool overlap(const TensorView& a, const TensorView& b);

inline std::string_view memory_of(const TensorView& tensor) {
  return {static_cast<const char*>(tensor.data()), tensor.bytes()};
}

// Notices a change of the bytes; no defence against an attack.
uint64_t checksum(const TensorView& tensor);

// NaN in floating and complex tensors, else bytes 0xEB: a value that a program which reads too early does not expect.
void fill_with_poison(const TensorView& tensor);
// Whether all of it is as fill_with_poison() left it.
bool holds_poison(const TensorView& tensor);

}  // namespace rankloom::internal

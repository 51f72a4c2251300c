#pragma once

#include <cstdint>

#include "rankloom/tensor.h"

namespace rankloom::internal {

// Marks that poisoned runs leave in buffers, so that a program that touches one between call and wait() is found out.

// Whether two tensors share a byte.
bool overlap(const TensorView& a, const TensorView& b);

// Notices a change of the bytes; no defence against an attack.
uint64_t checksum(const TensorView& tensor);

// NaN in floating and complex tensors, else bytes 0xEB: a value that a program which reads too early does not expect.
void fill_with_poison(const TensorView& tensor);
// Whether all of it is as fill_with_poison() left it.
bool holds_poison(const TensorView& tensor);

}  // namespace rankloom::internal

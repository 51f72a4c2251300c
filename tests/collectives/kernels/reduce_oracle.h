#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rankloom/collective_call.h"
#include "rankloom/tensor.h"

namespace rankloom {

using Bytes = std::vector<uint8_t>;

// The result that a reduction of the ranks' tensors must have: one element at a time, in plain C++, with nothing from
// the kernels. `inputs`: by rank, all of one size. chunk_of(element): the chunk of a ring, kRing only.
Bytes expected_reduction(DType dtype, ReduceOp op, const ReduceOp::Order& order, const std::vector<Bytes>& inputs,
                         absl::FunctionRef<size_t(size_t)> chunk_of);

}  // namespace rankloom

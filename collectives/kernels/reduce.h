#pragma once

#include <cstdint>

#include "rankloom/collective_call.h"
#include "rankloom/tensor.h"

namespace rankloom::internal {

// The job of a reduction: the same elements of `count` inputs into one result, which every output gets.
struct ReduceJob {
  DType dtype = DType::kFloat32;
  ReduceOp::Kind kind = ReduceOp::Kind::kSum;
  bool tree = false;                    // neighbours in pairs; else from the first input to the last
  bool round_each = false;              // float16, bfloat16: round after each step
  double factor = 1;                    // of premul_sum
  const void* const* inputs = nullptr;  // in the order of the reduction
  int64_t count = 0;                    // > 0
  void* const* outputs = nullptr;
  int64_t output_count = 0;
};

// Reduces elements [begin, end). An output may be an input, at the same address: every element is read from all inputs
// before it is written to any output.
// Determinism: an element's bits depend on the job only: not on the target that Highway chose, nor on begin and end,
//   nor on the thread (its rounding mode and flush-to-zero flags are put aside). Every NaN result is the positive quiet
//   NaN without payload, since which of two payloads an addition keeps is up to the compiler.
void reduce_range(const ReduceJob& job, int64_t begin, int64_t end);

// One for each family of dtypes, in a file of its own, so that they compile side by side.
void reduce_floats(const ReduceJob& job, int64_t begin, int64_t end);    // float32, float64
void reduce_halves(const ReduceJob& job, int64_t begin, int64_t end);    // float16, bfloat16
void reduce_complex(const ReduceJob& job, int64_t begin, int64_t end);   // complex64, complex128
void reduce_integers(const ReduceJob& job, int64_t begin, int64_t end);  // int8 ... int64, bool

}  // namespace rankloom::internal

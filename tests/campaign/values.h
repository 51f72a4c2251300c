#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/campaign/job.h"

namespace rankloom {

using Bytes = std::vector<uint8_t>;

// The sizes of one member's tensors, in elements.
struct CallShape {
  std::vector<int64_t> inputs;
  std::vector<int64_t> outputs;
  bool same = false;  // the inputs are the outputs: broadcast, all_reduce, all_reduce_coalesced, reduce
};
// Tensors that lie in place: a member's input in its part of the outputs, or its output in its part of the inputs.
// Where a member has none of these, as in gather() and scatter() but at the root, there is no such place.
enum class Within : uint8_t { kNothing, kOutputs, kInputs };
Within within_of(const JobCall& call, const CallShape& shape);
CallShape shape_of(const JobCall& call, int size, int member);
// Elements, or rows of all_to_all_single, that pass from member i to member j.
int64_t between(const JobCall& call, int i, int j);
ReduceOp reduce_of(const JobCall& call);
ReduceOp::Order order_of(const JobCall& call, int act);
// The call with the order that counts: its own, or that of its job's groups.
JobCall in_order_of(const Job& job, JobCall call);

// The values that a rank gives, drawn from the act, its part, the rank, the number of the tensor and all that the rank
// has seen.
Bytes input_bytes(const JobCall& call, int act, int part, int global_rank, size_t tensor, int64_t numel,
                  uint64_t state);

// All that a rank has seen, as one word.
uint64_t first_state(int global_rank);
uint64_t fold(uint64_t state, int act, std::string_view saw);

}  // namespace rankloom

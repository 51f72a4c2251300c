#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "rankloom/error.h"
#include "rankloom/records.h"
#include "sim/base/printable.h"

// The common part of the trace formats.
namespace rankloom::internal {

// "[1, 2]"; at most `limit` of them, then "...".
std::string json_list(const std::vector<int64_t>& values, size_t limit = ~size_t{0});

// Microseconds, to the nanosecond: "1234567.891".
std::string json_micros(absl::Duration time);

// PyTorch's words: "Float", "BFloat16"; "allreduce", "_allgather_base".
const char* torch_dtype(DType dtype);
const char* torch_collective(OpType op);

// Of the first tensor; float32 if there is none, as for a barrier.
DType dtype_of(const CallRecord::Call& call);
int64_t input_elements(const CallRecord::Call& call);
int64_t output_elements(const CallRecord::Call& call);

// In the world.
std::vector<int64_t> first_ranks(const Group& group, int limit);
// Between neighbours; 0: they are not evenly spaced.
int rank_stride(const Group& group);

// Puts `text` into the file. Errors: DistError (InvalidArgument) if it cannot be written; `op` asks.
void write_file(std::string_view path, std::string_view text, const char* op, CodeSite code);

// InvalidArgument if one is null. `op`: "write_perfetto".
void require_records(const std::vector<std::shared_ptr<CallRecord>>& ranks, const char* op, CodeSite code);

}  // namespace rankloom::internal

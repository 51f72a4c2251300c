#include "collectives/records/trace_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/require.h"
#include "sim/base/saturating.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "sim/base/write_file.h"

namespace rankloom::internal {
namespace {

int64_t elements(const std::vector<CallRecord::Call::Tensor>& tensors) {
  int64_t sum = 0;
  for (const CallRecord::Call::Tensor& tensor : tensors) sum = saturating_add(sum, tensor.numel());
  return sum;
}

}  // namespace

std::string json_list(const std::vector<int64_t>& values, size_t limit) {
  std::string text = "[";
  for (size_t i = 0; i < values.size() && i < limit; ++i) absl::StrAppend(&text, i == 0 ? "" : ", ", values[i]);
  return absl::StrCat(text, values.size() > limit ? ", ...]" : "]");
}

std::string json_micros(absl::Duration time) { return absl::StrFormat("%.3f", absl::ToDoubleMicroseconds(time)); }

const char* torch_dtype(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return "Half";
    case DType::kBFloat16:
      return "BFloat16";
    case DType::kFloat32:
      return "Float";
    case DType::kFloat64:
      return "Double";
    case DType::kInt8:
      return "Char";
    case DType::kUInt8:
      return "Byte";
    case DType::kInt16:
      return "Short";
    case DType::kInt32:
      return "Int";
    case DType::kInt64:
      return "Long";
    case DType::kBool:
      return "Bool";
    case DType::kComplex64:
      return "ComplexFloat";
    case DType::kComplex128:
      return "ComplexDouble";
    case DType::kFloat8E4M3FN:
      return "Float8_e4m3fn";
    case DType::kFloat8E5M2:
      return "Float8_e5m2";
  }
  return "";
}

const char* torch_collective(OpType op) {
  switch (op) {
    case OpType::kBroadcast:
      return "broadcast";
    case OpType::kAllReduce:
      return "allreduce";
    case OpType::kAllReduceCoalesced:
      return "allreduce_coalesced";
    case OpType::kReduce:
      return "reduce";
    case OpType::kAllGather:
      return "all_gather";
    case OpType::kAllGatherIntoTensor:
      return "_allgather_base";
    case OpType::kAllGatherIntoTensorCoalesced:
      return "allgather_into_tensor_coalesced";
    case OpType::kGather:
      return "gather";
    case OpType::kScatter:
      return "scatter";
    case OpType::kReduceScatter:
      return "reduce_scatter";
    case OpType::kReduceScatterTensor:
      return "_reduce_scatter_base";
    case OpType::kReduceScatterTensorCoalesced:
      return "reduce_scatter_tensor_coalesced";
    case OpType::kAllToAll:
      return "all_to_all";
    case OpType::kAllToAllSingle:
      return "all_to_allv";
    case OpType::kBarrier:
    case OpType::kMonitoredBarrier:
      return "barrier";
    case OpType::kSend:
      return "send";
    case OpType::kRecv:
      return "recv";
    case OpType::kCoalesced:
      return "coalesced";
    case OpType::kNewGroup:
    case OpType::kSplitGroup:
      return "split";
  }
  return "";
}

DType dtype_of(const CallRecord::Call& call) {
  if (!call.inputs.empty()) return call.inputs[0].dtype;
  return call.outputs.empty() ? DType::kFloat32 : call.outputs[0].dtype;
}

int64_t input_elements(const CallRecord::Call& call) { return elements(call.inputs); }
int64_t output_elements(const CallRecord::Call& call) { return elements(call.outputs); }

std::vector<int64_t> first_ranks(const Group& group, int limit) {
  std::vector<int64_t> ranks;
  for (int i = 0; i < std::min(limit, group.size()); ++i) ranks.push_back(group.global_rank(i));
  return ranks;
}

int rank_stride(const Group& group) {
  if (group.size() < 2) return 1;
  const int stride = group.global_rank(1) - group.global_rank(0);
  for (int i = 2; !group.evenly_spaced() && i < group.size(); ++i) {
    if (group.global_rank(i) - group.global_rank(i - 1) != stride) return 0;
  }
  return stride;
}

void write_file(std::string_view path, std::string_view text, const char* op, CodeSite code) {
  const absl::Status written = internal::write_file(std::string(path), text);
  if (written.ok()) return;
  refuse({.rank = -1, .group = {}, .op = op}, ErrorKind::kInvalidArgument, op, ": ", written.message(),
         site_place(Site{.code = code}));
}

void require_records(const std::vector<std::shared_ptr<CallRecord>>& ranks, const char* op, CodeSite code) {
  for (size_t i = 0; i < ranks.size(); ++i)
    require(ranks[i], {.rank = -1, .group = {}, .op = op}, code, op, ": record ", i);
}

}  // namespace rankloom::internal

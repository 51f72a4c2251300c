#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/records/call_record_state.h"
#include "collectives/records/trace_text.h"
#include "rankloom/records.h"
#include "sim/base/saturating.h"

namespace rankloom {

using namespace internal;

namespace {

constexpr int64_t kRoot = 1;    // its own parent
constexpr int64_t kThread = 2;  // under the root; everything else is under it
constexpr int kListedRanks = 1 << 16;

// As PyTorch's observer prints C++ types.
const char* type_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return "c10::Half";
    case DType::kBFloat16:
      return "c10::BFloat16";
    case DType::kFloat32:
      return "float";
    case DType::kFloat64:
      return "double";
    case DType::kInt8:
      return "signed char";
    case DType::kUInt8:
      return "unsigned char";
    case DType::kInt16:
      return "short int";
    case DType::kInt32:
      return "int";
    case DType::kInt64:
      return "long int";
    case DType::kBool:
      return "bool";
    case DType::kComplex64:
      return "c10::complex<float>";
    case DType::kComplex128:
      return "c10::complex<double>";
    case DType::kFloat8E4M3FN:
      return "c10::Float8_e4m3fn";
    case DType::kFloat8E5M2:
      return "c10::Float8_e5m2";
  }
  return "";
}

// Of one node: its values with their shapes, types and strides.
struct Values {
  std::vector<std::string> values, shapes, types, strides;

  std::string json() const {
    const auto list = [](const std::vector<std::string>& parts) {
      std::string text = "[";
      for (size_t i = 0; i < parts.size(); ++i) absl::StrAppend(&text, i == 0 ? "" : ", ", parts[i]);
      return text + "]";
    };
    return absl::StrCat("{\"values\": ", list(values), ", \"shapes\": ", list(shapes), ", \"types\": ", list(types),
                        ", \"strides\": ", list(strides), "}");
  }
};

class TraceWriter {
 public:
  explicit TraceWriter(const CallRecord& record) : record_(record) {}

  std::string write() {
    node(kRoot, kRoot, "[pytorch|profiler|execution_trace|process]", {}, {}, 0, -1, "");
    node(kThread, kRoot, "[pytorch|profiler|execution_trace|thread]", {}, {}, 1, -1, "");
    next_ = kThread + 1;
    Values groups;
    groups.values = {json_string(group_table())};
    groups.shapes = {"[]"};
    groups.types = {"\"String\""};
    groups.strides = {"[]"};
    node(next_++, kThread, "## process_group:init ##", groups, {}, 1, -1, "");
    for (size_t i = 0; i < record_.size(); ++i) call_node(record_[i], CallRecordState::of(record_).scope_at(i));
    return absl::StrCat("{\"schema\": \"1.1.1-chakra.0.0.4\", \"pid\": ", record_.global_rank(),
                        ", \"time\": \"1970-01-01 00:00:00\", \"start_ts\": 0,\n\"nodes\": [", nodes_,
                        "\n],\n\"finish_ts\": ", absl::ToInt64Microseconds(record_.end()), "}\n");
  }

 private:
  std::string group_table() const {
    std::string text = "[";
    for (const CallRecord::GroupInfo& info : record_.groups()) {
      const Group& group = *info.group;
      // As torch has it, no ranks stand for all of them.
      const bool all = group.size() == record_.world_size() && group.evenly_spaced();
      absl::StrAppend(&text, text.size() > 1 ? ", " : "", "{\"pg_name\": ", json_string(group.name()),
                      ", \"pg_desc\": ", json_string(group.description()),
                      ", \"backend_config\": \"cpu:rankloom\", \"ranks\": ",
                      all ? "[]" : json_list(internal::first_ranks(group, kListedRanks)),
                      ", \"group_size\": ", group.size(), ", \"group_count\": ", record_.groups().size(), "}");
    }
    return text + "]";
  }

  void call_node(const CallRecord::Call& call, std::string_view scope) {
    const int64_t id = next_++;
    if (call.is_compute) return node(id, kThread, call.name, {}, {}, 1, -1, times(call));
    const CallRecord::GroupInfo& info = record_.groups()[static_cast<size_t>(call.group)];
    const Group& group = *info.group;
    Values inputs = tensors(call.inputs);
    const auto add = [&inputs](std::string value, const char* type) {
      inputs.values.push_back(std::move(value));
      inputs.shapes.emplace_back("[]");
      inputs.types.push_back(json_string(type));
      inputs.strides.emplace_back("[]");
    };
    const char* const name = internal::torch_collective(call.op);
    add(absl::StrCat(call.seq), "Int");
    add(absl::StrCat("[", json_string(group.name()), ", ", json_string(group.description()), "]"),
        "GenericList[String,String]");
    add(absl::StrCat(info.rank), "Int");
    add(json_string(name), "String");
    const auto attribute = [](const char* key, const char* type, const std::string& value) {
      return absl::StrCat(", {\"name\": \"", key, "\", \"type\": \"", type, "\", \"value\": ", value, "}");
    };
    std::string more =
        absl::StrCat(attribute("collective_name", "string", json_string(name)),
                     attribute("dtype", "string", json_string(internal::torch_dtype(internal::dtype_of(call)))),
                     attribute("in_msg_nelems", "uint64", absl::StrCat(internal::input_elements(call))),
                     attribute("out_msg_nelems", "uint64", absl::StrCat(internal::output_elements(call))),
                     attribute("in_split_size", "string", json_string(json_list(call.in_splits))),
                     attribute("out_split_size", "string", json_string(json_list(call.out_splits))),
                     attribute("global_rank_start", "uint64", absl::StrCat(group.global_rank(0))),
                     attribute("global_rank_stride", "uint64", absl::StrCat(internal::rank_stride(group))),
                     attribute("pg_name", "string", json_string(group.name())),
                     attribute("pg_desc", "string", json_string(group.description())),
                     attribute("pg_size", "uint64", absl::StrCat(group.size())));
    if (call.op == OpType::kSend || call.op == OpType::kRecv) {
      const bool send = call.op == OpType::kSend;
      const int peer = call.peer >= 0 ? group.global_rank(call.peer) : -1;
      absl::StrAppend(&more, attribute("src_rank", "int64", absl::StrCat(send ? record_.global_rank() : peer)),
                      attribute("dst_rank", "int64", absl::StrCat(send ? peer : record_.global_rank())));
    } else if (call.root >= 0) {
      absl::StrAppend(&more, attribute("root_rank", "int64", absl::StrCat(group.global_rank(call.root))));
    }
    if (!scope.empty()) absl::StrAppend(&more, attribute("module", "string", json_string(scope)));
    node(id, kThread, "record_param_comms", inputs, tensors(call.outputs), 1, call.seq, more + times(call));
  }

  static std::string times(const CallRecord::Call& call) {
    return absl::StrCat(", {\"name\": \"start_us\", \"type\": \"double\", \"value\": ", json_micros(call.start),
                        "}, {\"name\": \"duration_us\", \"type\": \"double\", \"value\": ", json_micros(call.duration),
                        "}");
  }

  Values tensors(const std::vector<CallRecord::Call::Tensor>& list) {
    Values values;
    for (const CallRecord::Call::Tensor& tensor : list) {
      const int64_t id = next_tensor_;
      next_tensor_ += 2;  // the tensor and its storage
      values.values.push_back(
          absl::StrCat("[", id, ", ", id + 1, ", 0, ", tensor.numel(), ", ", dtype_size(tensor.dtype), ", \"cpu\"]"));
      std::vector<int64_t> sizes(tensor.sizes.begin(), tensor.sizes.end());
      std::vector<int64_t> strides(sizes.size(), 1);
      for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = internal::saturating_mul(strides[d], sizes[d]);
      values.shapes.push_back(json_list(sizes));
      values.types.push_back(json_string(absl::StrCat("Tensor(", type_name(tensor.dtype), ")")));
      values.strides.push_back(json_list(strides));
    }
    return values;
  }

  void node(int64_t id, int64_t parent, std::string_view name, const Values& inputs, const Values& outputs, int thread,
            int64_t seq, const std::string& more) {
    absl::StrAppend(
        &nodes_, nodes_.empty() ? "\n" : ",\n", "{\"id\": ", id, ", \"name\": ", json_string(name),
        ", \"ctrl_deps\": ", parent, ", \"inputs\": ", inputs.json(), ", \"outputs\": ", outputs.json(),
        ", \"attrs\": [{\"name\": \"rf_id\", \"type\": \"uint64\", \"value\": ", id > kThread ? id - kThread : 0,
        "}, {\"name\": \"fw_parent\", \"type\": \"uint64\", \"value\": 0}, {\"name\": \"seq_id\", \"type\": \"int64\", "
        "\"value\": ",
        seq, "}, {\"name\": \"scope\", \"type\": \"uint64\", \"value\": ", id > kThread && seq >= 0 ? 0 : 7,
        "}, {\"name\": \"tid\", \"type\": \"uint64\", \"value\": ", thread,
        "}, {\"name\": \"fw_tid\", \"type\": \"uint64\", \"value\": 0}",
        ", {\"name\": \"op_schema\", \"type\": \"string\", \"value\": \"\"}",
        ", {\"name\": \"kernel_backend\", \"type\": \"string\", \"value\": \"\"}",
        ", {\"name\": \"kernel_file\", \"type\": \"string\", \"value\": \"\"}",
        ", {\"name\": \"tensor_range\", \"type\": \"string\", \"value\": \"\"}", more, "]}");
  }

  const CallRecord& record_;
  int64_t next_ = 0;
  int64_t next_tensor_ = 1 << 30;  // no number of a node
  std::string nodes_;
};

}  // namespace

std::string traces::pytorch_trace_json(const CallRecord& record) { return TraceWriter(record).write(); }

void traces::write_pytorch_trace(const CallRecord& record, std::string_view path, CodeSite code) {
  internal::write_file(path, traces::pytorch_trace_json(record), "write_pytorch_trace", code);
}

}  // namespace rankloom

#include "rankloom/chakra.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/records/call_record_state.h"
#include "collectives/records/chakra_trace.pb.h"
#include "collectives/records/trace_text.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "sim/base/printable.h"
#include "sim/base/saturating.h"
#include "sim/base/text.h"

namespace rankloom {

using namespace internal;

namespace {

constexpr int kListedRanks = 1 << 16;

using google::protobuf::RepeatedPtrField;
using Attributes = RepeatedPtrField<chakra::Attribute>;

chakra::Attribute& add(Attributes& to, std::string_view name) {
  chakra::Attribute& attribute = *to.Add();
  attribute.set_name(std::string(name));
  return attribute;
}

chakra::CollectiveType collective_type(OpType op) {
  switch (op) {
    case OpType::kAllReduce:
    case OpType::kAllReduceCoalesced:
      return chakra::ALL_REDUCE;
    case OpType::kReduce:
      return chakra::REDUCE;
    case OpType::kAllGather:
    case OpType::kAllGatherIntoTensor:
    case OpType::kAllGatherIntoTensorCoalesced:
      return chakra::ALL_GATHER;
    case OpType::kGather:
      return chakra::GATHER;
    case OpType::kScatter:
      return chakra::SCATTER;
    case OpType::kBroadcast:
      return chakra::BROADCAST;
    case OpType::kAllToAll:
    case OpType::kAllToAllSingle:
      return chakra::ALL_TO_ALL;
    case OpType::kReduceScatter:
    case OpType::kReduceScatterTensor:
    case OpType::kReduceScatterTensorCoalesced:
      return chakra::REDUCE_SCATTER;
    case OpType::kBarrier:
    case OpType::kMonitoredBarrier:
    case OpType::kSend:  // not collectives, or never recorded
    case OpType::kRecv:
    case OpType::kCoalesced:
    case OpType::kNewGroup:
    case OpType::kSplitGroup:
      return chakra::BARRIER;
  }
  return chakra::BARRIER;
}

void describe(const std::vector<CallRecord::Call::Tensor>& tensors, chakra::Tensors& to) {
  std::string shapes;
  std::string types;
  for (const CallRecord::Call::Tensor& tensor : tensors) {
    const char* const separator = shapes.empty() ? "" : ", ";
    absl::StrAppend(&shapes, separator,
                    internal::json_list(std::vector<int64_t>(tensor.sizes.begin(), tensor.sizes.end())));
    absl::StrAppend(&types, separator, "\"Tensor(", sv(dtype_name(tensor.dtype)), ")\"");
  }
  to.set_values("[]");  // a record knows shapes, not memory
  to.set_shapes(absl::StrCat("[", shapes, "]"));
  to.set_types(absl::StrCat("[", types, "]"));
}

// The dependencies of the next node of the program, while nodes are visited in its order.
class Dependencies {
 public:
  explicit Dependencies(const CallRecord& record) {
    for (size_t i = 0; i < record.size(); ++i) {
      if (const int64_t before = record[i].waited_before; before >= 0) waits_[static_cast<size_t>(before)].push_back(i);
    }
  }

  // Of node `index`, ascending indices.
  const std::set<size_t>& of(size_t index, const CallRecord::Call& call) {
    if (const auto waited = waits_.find(index); waited != waits_.end()) {
      for (const size_t done : waited->second) {
        // The dependencies of that call are done, too.
        for (const size_t older : dependencies_[done]) done_.erase(older);
        done_.insert(done);
        dependencies_.erase(done);
      }
      waits_.erase(waited);
    }
    std::set<size_t>& mine = dependencies_[index];
    mine = done_;
    if (call.is_compute) {
      done_ = {index};
    } else {
      const auto [last, first] = last_of_line_.emplace(line_of(call), index);
      if (!first) mine.insert(std::exchange(last->second, index));
    }
    return mine;
  }

 private:
  // Collectives of a group follow each other. Messages wait for no collective, and for those alone that go the same way
  // between the same two: stages of a pipeline send and receive at once, each its send first, and none of the sends is
  // done before the other side's receive is there.
  enum class Way { kCollective, kSend, kRecv };
  using Line = std::tuple<int, Way, int>;  // group, way, peer

  static Line line_of(const CallRecord::Call& call) {
    if (call.op == OpType::kSend) return {call.group, Way::kSend, call.peer};
    if (call.op == OpType::kRecv) return {call.group, Way::kRecv, call.peer};
    return {call.group, Way::kCollective, 0};
  }

  std::map<size_t, std::vector<size_t>> waits_;  // by the node that comes after the wait
  std::set<size_t> done_;                        // what the program has behind it, but for what that depends on
  std::map<Line, size_t> last_of_line_;
  std::map<size_t, std::set<size_t>> dependencies_;  // of calls that were not waited for yet
};

struct Collective {
  chakra::CollectiveType type = chakra::ALL_REDUCE;
  int64_t bytes = 0;  // that each member puts in
};

// One of the four kinds that ASTRA-sim runs. The busiest member of a ring sends as many bytes as before.
Collective lowered(chakra::CollectiveType type, int64_t bytes, const CallRecord::Call& call, int64_t size) {
  switch (type) {
    case chakra::BROADCAST:
      return {.type = chakra::ALL_GATHER, .bytes = bytes / size + (bytes % size != 0 ? 1 : 0)};
    case chakra::REDUCE:
      return {.type = chakra::REDUCE_SCATTER, .bytes = bytes};
    case chakra::GATHER:
      return {.type = chakra::ALL_GATHER, .bytes = bytes};
    case chakra::SCATTER:
      return {.type = chakra::REDUCE_SCATTER, .bytes = internal::saturating_mul(size, call.output_bytes())};
    case chakra::BARRIER:
      return {.type = chakra::ALL_REDUCE, .bytes = size};
    default:
      return {.type = type, .bytes = bytes};
  }
}

void fill_call(const CallRecord& record, const CallRecord::Call& call, bool lower, chakra::Node& node) {
  const CallRecord::GroupInfo& info = record.groups()[static_cast<size_t>(call.group)];
  Attributes& attributes = *node.mutable_attributes();
  add(attributes, "is_cpu_op").set_bool_value(false);
  Collective collective = {.type = collective_type(call.op),
                           .bytes = call.input_bytes() > 0 ? call.input_bytes() : call.output_bytes()};
  if (lower) {
    if (call.op != OpType::kSend && call.op != OpType::kRecv)
      collective = lowered(collective.type, collective.bytes, call, info.group->size());
    collective.bytes = std::max(collective.bytes, int64_t{1});
  }
  add(attributes, "comm_size").set_int64_value(collective.bytes);
  add(attributes, "comm_priority").set_int32_value(0);
  add(attributes, "pg_name").set_string_value(info.name());
  add(attributes, "collective").set_string_value(call.name);
  add(attributes, "seq").set_int64_value(call.seq);
  if (call.op == OpType::kSend || call.op == OpType::kRecv) {
    const bool send = call.op == OpType::kSend;
    const int peer = call.peer >= 0 ? info.group->global_rank(call.peer) : -1;
    node.set_type(send ? chakra::SEND : chakra::RECEIVE);
    add(attributes, "comm_src").set_int32_value(send ? record.global_rank() : peer);
    add(attributes, "comm_dst").set_int32_value(send ? peer : record.global_rank());
    add(attributes, "comm_tag").set_int32_value(call.tag);
  } else {
    node.set_type(chakra::COLLECTIVE);
    add(attributes, "comm_type").set_int64_value(collective.type);
    if (call.root >= 0) add(attributes, "root").set_int32_value(info.group->global_rank(call.root));
  }
  describe(call.inputs, *node.mutable_inputs());
  describe(call.outputs, *node.mutable_outputs());
}

chakra::GlobalMetadata metadata(const CallRecord& record) {
  chakra::GlobalMetadata metadata;
  metadata.set_version("0.0.4");
  Attributes& attributes = *metadata.mutable_attributes();
  add(attributes, "rank").set_int64_value(record.global_rank());
  add(attributes, "world_size").set_int64_value(record.world_size());
  for (const CallRecord::GroupInfo& info : record.groups()) {
    const Group& group = *info.group;
    const std::string name = absl::StrCat("process_group ", info.name());
    const auto put = [&attributes](const std::string& key, const std::vector<int64_t>& values) {
      chakra::Int64List& list = *add(attributes, key).mutable_int64_list();
      list.mutable_values()->Add(values.begin(), values.end());
    };
    if (group.size() <= kListedRanks) {
      put(name, internal::first_ranks(group, kListedRanks));
    } else {
      put(name + " first, stride, size", {group.global_rank(0), internal::rank_stride(group), group.size()});
    }
  }
  return metadata;
}

}  // namespace

std::string traces::chakra_trace(const CallRecord& record, bool lower) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream out(&stream);
    const auto write = [&out](const google::protobuf::MessageLite& message) {
      out.WriteVarint32(static_cast<uint32_t>(message.ByteSizeLong()));
      message.SerializeToCodedStream(&out);
    };
    write(metadata(record));
    Dependencies dependencies(record);
    for (size_t i = 0; i < record.size(); ++i) {
      const CallRecord::Call call = record[i];
      chakra::Node node;
      node.set_id(i + 1);
      node.set_name(utf8_text(call.name));
      node.set_start_time_micros(static_cast<uint64_t>(absl::ToInt64Microseconds(call.start)));
      node.set_duration_micros(static_cast<uint64_t>(std::max(int64_t{0}, absl::ToInt64Microseconds(call.duration))));
      for (const size_t before : dependencies.of(i, call)) node.add_data_dependencies(before + 1);
      if (call.is_compute) {
        node.set_type(chakra::COMPUTE);
        add(*node.mutable_attributes(), "is_cpu_op").set_bool_value(false);
      } else {
        fill_call(record, call, lower, node);
        const std::string_view scope = CallRecordState::of(record).scope_at(i);
        if (!scope.empty()) add(*node.mutable_attributes(), "module").set_string_value(utf8_text(scope));
      }
      write(node);
    }
  }
  return bytes;
}

std::vector<std::string> traces::write_chakra(const std::vector<std::shared_ptr<CallRecord>>& ranks,
                                              std::string_view prefix, bool lower, CodeSite code) {
  require_records(ranks, "write_chakra", code);
  std::vector<std::string> paths;
  for (const std::shared_ptr<CallRecord>& record : ranks) {
    paths.push_back(absl::StrCat(sv(prefix), ".", record->global_rank(), ".et"));
    internal::write_file(paths.back(), traces::chakra_trace(*record, lower), "write_chakra", code);
  }
  return paths;
}

}  // namespace rankloom

#include "collectives/ops/op_table.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/kernels/kernels.h"
#include "collectives/kernels/plan.h"
#include "collectives/ops/group_request.h"
#include "collectives/ops/shape_rules.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

// Lists in texts are cut after this many tensors.
constexpr int kMaxListed = 8;

// ---- the fields ----

bool equal_op(const CollectiveCall& a, const CollectiveCall& b) { return a.op == b.op; }
std::string text_op(const CollectiveCall& call) { return op_row(call.op).name; }

bool equal_reduce_op(const CollectiveCall& a, const CollectiveCall& b) {
  // By bits: a factor that is no number is still the same one on every member.
  return a.reduce_op.kind() == b.reduce_op.kind() &&
         std::bit_cast<uint64_t>(a.reduce_op.factor()) == std::bit_cast<uint64_t>(b.reduce_op.factor());
}
std::string text_reduce_op(const CollectiveCall& call) { return call.reduce_op.name(); }

bool equal_order(const CollectiveCall& a, const CollectiveCall& b) { return a.order == b.order; }
std::string text_order(const CollectiveCall& call) {
  std::string text;
  switch (call.order.kind) {
    case ReduceOp::Order::Kind::kRank:
      text = "rank";
      break;
    case ReduceOp::Order::Kind::kReversed:
      text = "reversed";
      break;
    case ReduceOp::Order::Kind::kRing:
      text = "ring";
      break;
    case ReduceOp::Order::Kind::kTree:
      text = "tree";
      break;
    case ReduceOp::Order::Kind::kSeeded:
      text = "seeded";
      break;
  }
  const bool has_seed = call.order.kind == ReduceOp::Order::Kind::kSeeded || call.order.seed != 0;
  if (has_seed) absl::StrAppend(&text, "(", call.order.seed, ")");
  if (!call.order.accumulate_in_float) text += ", rounded at each step";
  return text;
}

bool equal_root(const CollectiveCall& a, const CollectiveCall& b) { return a.root == b.root; }
std::string text_root(const CollectiveCall& call) { return absl::StrCat(call.root); }

[[gnu::always_inline]] inline bool equal_dtype(const CollectiveCall& a, const CollectiveCall& b) {
  const TensorList& list_a = common_tensors(a);
  const TensorList& list_b = common_tensors(b);
  if (list_a.size() != list_b.size()) return false;
  if (list_a.size() == 1) [[likely]]
    return list_a[0].dtype() == list_b[0].dtype();
  for (int i = 0; i < list_a.size(); ++i) {
    if (list_a[i].dtype() != list_b[i].dtype()) return false;
  }
  return true;
}
std::string text_dtype(const CollectiveCall& call) {  // "float32", "2 x float32, 1 x int64"
  const TensorList& list = common_tensors(call);
  if (list.size() == 1) return std::string(dtype_name(list[0].dtype()));
  std::string text;
  for (int begin = 0, end = 0; begin < list.size(); begin = end) {
    while (end < list.size() && list[end].dtype() == list[begin].dtype()) ++end;
    absl::StrAppend(&text, begin == 0 ? "" : ", ", end - begin, " x ", sv(dtype_name(list[begin].dtype())));
  }
  return text.empty() ? "none" : text;
}

Device::Kind device_kind(const CollectiveCall& call) {
  const TensorList& list = common_tensors(call);
  return list.empty() ? Device::Kind::kCpu : list[0].device().kind;
}
bool equal_device(const CollectiveCall& a, const CollectiveCall& b) { return device_kind(a) == device_kind(b); }
std::string text_device(const CollectiveCall& call) {
  switch (device_kind(call)) {
    case Device::Kind::kCpu:
      return "cpu";
    case Device::Kind::kCuda:
      return "cuda";
    case Device::Kind::kMeta:
      return "meta";
  }
  return "";
}

[[gnu::always_inline]] inline bool equal_shape(const CollectiveCall& a, const CollectiveCall& b) {
  const TensorList& list_a = common_tensors(a);
  const TensorList& list_b = common_tensors(b);
  if (list_a.size() != list_b.size()) return false;
  if (list_a.size() == 1) [[likely]]
    return list_a[0].numel() == list_b[0].numel();
  for (int i = 0; i < list_a.size(); ++i) {
    if (list_a[i].numel() != list_b[i].numel()) return false;
  }
  return true;
}
std::string text_shape(const CollectiveCall& call) {  // "[2, 3]", "[2], [4]"
  const TensorList& list = common_tensors(call);
  std::string text;
  for (int i = 0; i < list.size() && i < kMaxListed; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", dims_text(list[i].sizes()));
  }
  if (list.size() > kMaxListed) absl::StrAppend(&text, ", ... (", list.size(), " tensors)");
  return text.empty() ? "none" : text;
}

bool equal_tag(const CollectiveCall& a, const CollectiveCall& b) { return a.tag == b.tag; }
std::string text_tag(const CollectiveCall& call) { return absl::StrCat(call.tag); }

bool equal_label(const CollectiveCall& a, const CollectiveCall& b) { return a.label == b.label; }
std::string text_label(const CollectiveCall& call) {
  return call.label.empty() ? "none" : absl::StrCat("\"", call.label.get(), "\"");
}

// The first collective among the parts from index `i` on.
size_t next_collective(const CollectiveCall& call, size_t i) {
  while (i < call.parts.size() && (call.parts[i].op == OpType::kSend || call.parts[i].op == OpType::kRecv)) ++i;
  return i;
}
bool equal_parts(const CollectiveCall& a, const CollectiveCall& b) {
  size_t i = next_collective(a, 0);
  size_t j = next_collective(b, 0);
  for (; i < a.parts.size() && j < b.parts.size(); i = next_collective(a, i + 1), j = next_collective(b, j + 1)) {
    if (!op_row(a.parts[i].op).same(a.parts[i], b.parts[j])) return false;
  }
  return i >= a.parts.size() && j >= b.parts.size();
}
std::string text_parts(const CollectiveCall& call) {
  const PartCalls parts = collective_parts(call);
  std::string text;
  for (size_t i = 0; i < parts.size() && i < size_t{kMaxListed}; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", op_row(parts[i]->op).name);
  }
  if (parts.size() > size_t{kMaxListed}) absl::StrAppend(&text, ", ... (", parts.size(), " calls)");
  return text.empty() ? "none" : text;
}

bool equal_ranks(const CollectiveCall& a, const CollectiveCall& b) {
  if (a.way.request == nullptr || b.way.request == nullptr) return a.way.request == b.way.request;
  return a.way.request->kind == b.way.request->kind && a.way.request->ranks == b.way.request->ranks;
}
std::string text_ranks(const CollectiveCall& call) {
  if (call.way.request == nullptr || call.way.request->kind != GroupRequest::Kind::kRanks) return "those of a mesh";
  return requested_ranks_text(*call.way.request);
}

constexpr std::array<CallFieldRow, kCallFieldCount> kFields = {{
    {CallField::kOp, "op", &equal_op, &text_op},
    {CallField::kReduceOp, "reduce op", &equal_reduce_op, &text_reduce_op},
    {CallField::kOrder, "order of reduction", &equal_order, &text_order},
    {CallField::kRoot, "root", &equal_root, &text_root},
    {CallField::kDType, "dtype", &equal_dtype, &text_dtype},
    {CallField::kDevice, "device", &equal_device, &text_device},
    {CallField::kShape, "shape", &equal_shape, &text_shape},
    {CallField::kTag, "tag", &equal_tag, &text_tag},
    {CallField::kLabel, "label", &equal_label, &text_label},
    {CallField::kParts, "calls", &equal_parts, &text_parts},
    {CallField::kRanks, "ranks", &equal_ranks, &text_ranks},
}};

// The comparison that a row's set of fields means, unrolled.
template <CallFields kSet, size_t... kIndex>
bool same_in(const CollectiveCall& a, const CollectiveCall& b, std::index_sequence<kIndex...> /*fields*/) {
  return (... && ((kSet >> kIndex & 1U) == 0 || kFields[kIndex].equal(a, b)));
}
template <CallFields kSet>
bool same_fields(const CollectiveCall& a, const CollectiveCall& b) {
  return same_in<kSet>(a, b, std::make_index_sequence<kCallFieldCount>());
}

// ---- agreements of all members ----

using FaultSink = absl::FunctionRef<bool(const PairFault&)>;

// Calls `visit` with two members that are there, for each pair of them until it returns false.
template <typename Visit>
void for_each_pair(MemberCalls calls, Visit visit) {
  const int n = static_cast<int>(calls.size());
  for (int a = 0; a < n; ++a) {
    if (calls[a] == nullptr) continue;
    for (int b = 0; b < n; ++b) {
      if (calls[b] != nullptr && !visit(a, b)) return;
    }
  }
}

// Whether to go on. `sent` and `expected` count elements.
bool compare(int sender, int receiver, int64_t sent, int64_t expected, FaultSink fault) {
  return sent == expected || fault({.sender = sender, .receiver = receiver, .sent = sent, .expected = expected});
}

// The input of `sender` goes to outputs[sender] of every member. Sizes may differ between senders.
void cross_all_gather(MemberCalls calls, FaultSink fault) {
  for_each_pair(calls, [&](int receiver, int sender) {
    return compare(sender, receiver, calls[sender]->inputs[0].numel(), calls[receiver]->outputs[sender].numel(), fault);
  });
}

void cross_all_to_all(MemberCalls calls, FaultSink fault) {
  for_each_pair(calls, [&](int sender, int receiver) {
    return compare(sender, receiver, calls[sender]->inputs[receiver].numel(), calls[receiver]->outputs[sender].numel(),
                   fault);
  });
}

void cross_all_to_all_single(MemberCalls calls, FaultSink fault) {
  const int n = static_cast<int>(calls.size());
  for_each_pair(calls, [&](int sender, int receiver) {
    const SplitRows sent = rows_sent(*calls[sender], receiver, n);
    const SplitRows expected = rows_expected(*calls[receiver], sender, n);
    if (sent.rows == expected.rows && (sent.rows == 0 || sent.row_elements == expected.row_elements)) return true;
    return fault({.sender = sender,
                  .receiver = receiver,
                  .sent = sent.rows,
                  .expected = expected.rows,
                  .in_rows = true,
                  .sent_row = sent.row_elements,
                  .expected_row = expected.row_elements});
  });
}

// ---- coalesced calls: collective k of every member belongs to that of the others ----

// Each part by its own row.
absl::Status check_coalesced(const CollectiveCall& call, int rank, int size) {
  for (size_t i = 0; i < call.parts.size(); ++i) {
    const CollectiveCall& part = call.parts[i];
    const OpRow& row = op_row(part.op);
    if (!can_be_coalesced(part.op)) {
      return invalid_argument("call ", i, " is ", row.name, ", which cannot be coalesced");
    }
    if (absl::Status s = row.check(part, rank, size); !s.ok()) {
      return invalid_argument("call ", i, ", ", row.name, ": ", s.message());
    }
  }
  return absl::OkStatus();
}

// Calls `visit` with the k-th collective of every member and the row of its operation, for all k until it returns
// false.
void for_each_part(MemberCalls calls, absl::FunctionRef<bool(const OpRow& row, MemberCalls parts)> visit) {
  absl::InlinedVector<size_t, 16> at(calls.size(), 0);
  absl::InlinedVector<const CollectiveCall*, 16> parts(calls.size(), nullptr);
  for (;;) {
    const CollectiveCall* found = nullptr;
    for (size_t i = 0; i < calls.size(); ++i) {
      if (calls[i] == nullptr) continue;
      at[i] = next_collective(*calls[i], at[i]);
      if (at[i] >= calls[i]->parts.size()) return;
      found = parts[i] = &calls[i]->parts[at[i]++];
    }
    if (found == nullptr || !visit(op_row(found->op), MemberCalls(parts.data(), parts.size()))) return;
  }
}

void cross_coalesced(MemberCalls calls, FaultSink fault) {
  bool go_on = true;
  for_each_part(calls, [&go_on, fault](const OpRow& row, MemberCalls parts) {
    if (row.cross != nullptr) row.cross(parts, [&go_on, fault](const PairFault& f) { return go_on = fault(f); });
    return go_on;
  });
}

void run_coalesced(MemberCalls calls, KernelPlan* plan) {
  for_each_part(calls, [plan](const OpRow& row, MemberCalls parts) {
    row.run(parts, plan);
    if (plan != nullptr) plan->end_stage();
    return true;
  });
}

// ---- the rows ----

template <CallField... kSet>
constexpr OpRow row(OpType op, const char* name, const char* recorder_name, Writes writes,
                    absl::Status (*check)(const CollectiveCall&, int, int), void (*cross)(MemberCalls, FaultSink),
                    void (*run)(MemberCalls, KernelPlan*)) {
  constexpr auto kBits = static_cast<CallFields>((field_bit(kSet) | ...));
  const bool from_root = op == OpType::kBroadcast || op == OpType::kScatter;
  const Rooted rooted = (kBits & field_bit(CallField::kRoot)) == 0 ? Rooted::kNo
                        : from_root                                ? Rooted::kGives
                                                                   : Rooted::kTakes;
  return {op, name, recorder_name, kBits, writes, rooted, check, &same_fields<kBits>, cross, run};
}

using enum CallField;
constexpr auto kNoCross = nullptr;
constexpr auto kNoKernel = nullptr;

// Recorder names are those of NCCL's records; all_to_all_single is "all_to_all" there, whose sizes the analyzer lets
// differ.
constexpr std::array<OpRow, kOpTypeCount> kRows = {{
    row<kOp, kRoot, kDType, kDevice, kShape>(OpType::kBroadcast, "broadcast", "broadcast", Writes::kOthers,
                                             &check_broadcast, kNoCross, &run_broadcast),
    row<kOp, kReduceOp, kOrder, kDType, kDevice, kShape>(OpType::kAllReduce, "all_reduce", "all_reduce",
                                                         Writes::kEveryone, &check_all_reduce, kNoCross,
                                                         &run_all_reduce),
    row<kOp, kReduceOp, kOrder, kDType, kDevice, kShape>(OpType::kAllReduceCoalesced, "all_reduce_coalesced",
                                                         "allreduce_coalesced", Writes::kEveryone,
                                                         &check_all_reduce_coalesced, kNoCross, &run_all_reduce),
    row<kOp, kReduceOp, kOrder, kRoot, kDType, kDevice, kShape>(OpType::kReduce, "reduce", "reduce", Writes::kRoot,
                                                                &check_reduce, kNoCross, &run_reduce),
    row<kOp, kDType, kDevice>(OpType::kAllGather, "all_gather", "all_gather", Writes::kEveryone, &check_all_gather,
                              &cross_all_gather, &run_all_gather),
    row<kOp, kDType, kDevice, kShape>(OpType::kAllGatherIntoTensor, "all_gather_into_tensor", "_all_gather_base",
                                      Writes::kEveryone, &check_all_gather_into_tensor, kNoCross,
                                      &run_all_gather_into_tensor),
    row<kOp, kDType, kDevice, kShape>(OpType::kAllGatherIntoTensorCoalesced, "all_gather_into_tensor_coalesced",
                                      "all_gather_into_tensor_coalesced", Writes::kEveryone,
                                      &check_all_gather_into_tensor_coalesced, kNoCross, &run_all_gather_into_tensor),
    row<kOp, kRoot, kDType, kDevice, kShape>(OpType::kGather, "gather", "gather", Writes::kRoot, &check_gather,
                                             kNoCross, &run_gather),
    row<kOp, kRoot, kDType, kDevice, kShape>(OpType::kScatter, "scatter", "scatter", Writes::kEveryone, &check_scatter,
                                             kNoCross, &run_scatter),
    row<kOp, kReduceOp, kOrder, kDType, kDevice, kShape>(OpType::kReduceScatter, "reduce_scatter", "reduce_scatter",
                                                         Writes::kEveryone, &check_reduce_scatter, kNoCross,
                                                         &run_reduce_scatter),
    row<kOp, kReduceOp, kOrder, kDType, kDevice, kShape>(
        OpType::kReduceScatterTensor, "reduce_scatter_tensor", "_reduce_scatter_base", Writes::kEveryone,
        &check_reduce_scatter_tensor, kNoCross, &run_reduce_scatter_tensor),
    row<kOp, kReduceOp, kOrder, kDType, kDevice, kShape>(
        OpType::kReduceScatterTensorCoalesced, "reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_coalesced",
        Writes::kEveryone, &check_reduce_scatter_tensor_coalesced, kNoCross, &run_reduce_scatter_tensor),
    row<kOp, kDType, kDevice>(OpType::kAllToAll, "all_to_all", "all_to_all", Writes::kEveryone, &check_all_to_all,
                              &cross_all_to_all, &run_all_to_all),
    row<kOp, kDType, kDevice>(OpType::kAllToAllSingle, "all_to_all_single", "all_to_all", Writes::kEveryone,
                              &check_all_to_all_single, &cross_all_to_all_single, &run_all_to_all_single),
    row<kOp, kLabel>(OpType::kBarrier, "barrier", "barrier", Writes::kNobody, &check_barrier, kNoCross, &run_nothing),
    row<kOp, kLabel>(OpType::kMonitoredBarrier, "monitored_barrier", "barrier", Writes::kNobody, &check_barrier,
                     kNoCross, &run_nothing),
    // A send and its recv are compared with each other: everything but the op.
    row<kDType, kDevice, kShape, kTag>(OpType::kSend, "send", "send", Writes::kNobody, &check_send, kNoCross,
                                       kNoKernel),
    row<kDType, kDevice, kShape, kTag>(OpType::kRecv, "recv", "recv", Writes::kEveryone, &check_recv, kNoCross,
                                       kNoKernel),
    row<kOp, kParts>(OpType::kCoalesced, "coalesced", "coalesced", Writes::kNobody, &check_coalesced, &cross_coalesced,
                     &run_coalesced),
    row<kOp, kRanks, kLabel>(OpType::kNewGroup, "new_group", "split", Writes::kNobody, &check_new_group, kNoCross,
                             &run_new_group),
    row<kOp, kLabel>(OpType::kSplitGroup, "split_group", "split", Writes::kNobody, &check_new_group, kNoCross,
                     &run_new_group),
}};

template <typename Rows, typename Key>
constexpr bool in_enum_order(const Rows& rows, Key key) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (static_cast<size_t>(rows[i].*key) != i) return false;
  }
  return true;
}
static_assert(in_enum_order(kFields, &CallFieldRow::field));
static_assert(in_enum_order(kRows, &OpRow::op));

}  // namespace

constinit const std::array<CallFieldRow, kCallFieldCount> kCallFields = kFields;
constinit const std::array<OpRow, kOpTypeCount> kOps = kRows;

PartCalls collective_parts(const CollectiveCall& call) {
  PartCalls parts;
  for (size_t i = next_collective(call, 0); i < call.parts.size(); i = next_collective(call, i + 1)) {
    parts.push_back(&call.parts[i]);
  }
  return parts;
}

bool can_be_coalesced(OpType op) {
  return op != OpType::kCoalesced && op != OpType::kNewGroup && op != OpType::kSplitGroup &&
         op != OpType::kMonitoredBarrier;
}

bool only_messages(const CollectiveCall& call) {
  return std::all_of(call.parts.begin(), call.parts.end(),
                     [](const CollectiveCall& part) { return !op_row(part.op).is_collective(); });
}

}  // namespace rankloom::internal

namespace rankloom {

std::string_view op_name(OpType op) { return internal::op_row(op).name; }

}  // namespace rankloom

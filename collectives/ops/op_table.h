#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "rankloom/collective_call.h"

namespace rankloom::internal {

class KernelPlan;

// The fields that members of a group must agree on. Each field has one definition, kCallFields: how two calls are
// compared on it and how its value reads in a report. An operation's row lists its fields, so comparison and report
// cannot drift apart.
enum class CallField : uint8_t {
  kOp,
  kReduceOp,
  kOrder,
  kRoot,
  kDType,   // of the tensors that every member has, see common_tensors()
  kDevice,  // its kind: members may use different CUDA devices
  kShape,   // compared by number of elements, as c10d does: [2, 3] agrees with [6]
  kTag,
  kLabel,
  kParts,  // kCoalesced: the collectives among the parts, in order; sends and receives are matched one by one elsewhere
  kRanks,  // of the group that new_group() makes
};
inline constexpr int kCallFieldCount = static_cast<int>(CallField::kRanks) + 1;

using CallFields = uint16_t;  // a set of fields
constexpr CallFields field_bit(CallField field) { return static_cast<CallFields>(1U << static_cast<unsigned>(field)); }

struct CallFieldRow {
  CallField field;
  const char* name;                                                 // as reports print it
  bool (*equal)(const CollectiveCall& a, const CollectiveCall& b);  // an equivalence; allocates nothing
  std::string (*text)(const CollectiveCall& call);
};
extern const std::array<CallFieldRow, kCallFieldCount> kCallFields;  // in enum order

// The list of tensors that all members have in the same form: the outputs of broadcast, scatter and recv, the inputs of
// everything else.
inline const TensorList& common_tensors(const CollectiveCall& call) {
  const bool outputs = call.op == OpType::kBroadcast || call.op == OpType::kScatter || call.op == OpType::kRecv;
  return outputs ? call.outputs : call.inputs;
}

// kCoalesced: the parts that are collectives, in order.
using PartCalls = absl::InlinedVector<const CollectiveCall*, 8>;
PartCalls collective_parts(const CollectiveCall& call);

// Two members that disagree on what one sends and the other receives, where each call alone is right. Ranks are those
// of the group.
struct PairFault {
  int sender;
  int receiver;
  int64_t sent;
  int64_t expected;
  bool in_rows = false;  // sent and expected count rows (all_to_all_single), else elements
  int64_t sent_row = 0;  // elements of a row
  int64_t expected_row = 0;
};

enum class Writes : uint8_t { kNobody, kEveryone, kRoot, kOthers };

// Which way the data of an operation with a root go.
enum class Rooted : uint8_t {
  kNo,     // there is no root
  kGives,  // from the root to the others
  kTakes,  // from the others to the root
};

// The facts of an operation. How to add one: CONTRIBUTING.md, "a new collective".
struct OpRow {
  OpType op;
  const char* name;           // torch.distributed's
  const char* recorder_name;  // the flight recorder's: a name that PyTorch's stock analyzer accepts
  CallFields fields;          // what two members must agree on
  Writes writes;              // whose outputs are written
  Rooted rooted;

  // One member's rule: InvalidArgument with a text that says what, have, want and leaves rank, group and operation to
  // the caller. `rank` is the member's rank in its group of `size`.
  absl::Status (*check)(const CollectiveCall& call, int rank, int size);

  // Whether two members' calls agree on all `fields`. An equivalence; allocates nothing.
  bool (*same)(const CollectiveCall& a, const CollectiveCall& b);

  // Null, or the agreement that pairs of members cannot show one by one: what i sends to j is what j expects of i.
  // Calls `fault` for each pair that differs until it returns false. Every call passed its check and is the same() as
  // the others; members that are null are skipped. Allocates nothing, but for kCoalesced.
  void (*cross)(MemberCalls calls, absl::FunctionRef<bool(const PairFault&)> fault);

  // The kernel, see kernels.h. Null for send and recv, which are no collectives: they are matched in pairs.
  void (*run)(MemberCalls calls, KernelPlan* plan);

  bool compares(CallField field) const { return (fields & field_bit(field)) != 0; }
  bool is_collective() const { return run != nullptr; }
};
extern const std::array<OpRow, kOpTypeCount> kOps;  // in enum order

inline const OpRow& op_row(OpType op) { return kOps[static_cast<size_t>(op)]; }

// As errors, reports and fault plans name a call.
inline const char* call_name(const CollectiveCall& call) {
  return call.op == OpType::kRecv && call.peer == CollectiveCall::kAnySource ? "recv_any" : op_row(call.op).name;
}

// Whether this member's outputs are written by the operation. kCoalesced: ask of its parts.
inline bool writes_outputs(const CollectiveCall& call, int rank) {
  switch (op_row(call.op).writes) {
    case Writes::kNobody:
      return false;
    case Writes::kEveryone:
      return true;
    case Writes::kRoot:
      return rank == call.root;
    case Writes::kOthers:
      return rank != call.root;
  }
  return false;
}

// Whether this member only gives: the root of a broadcast or scatter, the others of a reduce or gather.
inline bool only_gives(const CollectiveCall& call, int rank) {
  const Rooted rooted = op_row(call.op).rooted;
  return rooted == Rooted::kGives ? rank == call.root : rooted == Rooted::kTakes && rank != call.root;
}

// Whether the operation may stand between start_coalescing() and end_coalescing().
bool can_be_coalesced(OpType op);

// A coalesced call without collectives is none either, and takes no number among them.
bool only_messages(const CollectiveCall& call);

}  // namespace rankloom::internal

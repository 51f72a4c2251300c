// The point-to-point part of the front.

#include <utility>

#include "collectives/group/group_front.h"
#include "collectives/group/new_call.h"
#include "collectives/ops/op_table.h"
#include "rankloom/error.h"
#include "rankloom/process_group.h"
#include "sim/base/dist_error.h"
#include "sim/base/site_text.h"

namespace rankloom {

using namespace internal;

namespace {

OpType op_of(const P2POp& op) { return op.kind == P2POp::Kind::kSend ? OpType::kSend : OpType::kRecv; }

// The peer that a caller names. kAnySource is no rank: recv_any() is the way to ask for it.
int named_peer(int peer) { return peer == CollectiveCall::kAnySource ? -1 : peer; }

absl::Status check(const P2POp& op, const P2POp& first) {
  if (op.group == nullptr) return invalid_argument("group is null");
  if (op.group != first.group) {
    return invalid_argument("group is ", op.group->group_name(), ", want that of the first, ",
                            first.group->group_name());
  }
  if (op.kind != P2POp::Kind::kSend && op.kind != P2POp::Kind::kRecv) {
    return invalid_argument("kind is ", static_cast<int>(op.kind), ", want kSend or kRecv");
  }
  const OpType type = op_of(op);
  CollectiveCall call;
  call.op = type;
  (type == OpType::kSend ? call.inputs : call.outputs).set(op.tensor);
  call.peer = named_peer(op.peer);
  call.tag = op.tag;
  return op_row(type).check(call, op.group->rank(), op.group->size());
}

}  // namespace

Work ProcessGroup::send(ConstTensorView input, int destination, int tag, const CallOptions& options, CodeSite code) {
  return internal::submit(*front_, {.op = OpType::kSend, .input = &input.view(), .peer = destination, .tag = tag},
                          options, code);
}

Work ProcessGroup::recv(TensorView output, int source, int tag, const CallOptions& options, CodeSite code) {
  return internal::submit(*front_, {.op = OpType::kRecv, .output = &output, .peer = named_peer(source), .tag = tag},
                          options, code);
}

Work ProcessGroup::recv_any(TensorView output, int tag, const CallOptions& options, CodeSite code) {
  return internal::submit(
      *front_, {.op = OpType::kRecv, .output = &output, .peer = CollectiveCall::kAnySource, .tag = tag}, options, code);
}

std::vector<Work> batch_isend_irecv(const std::vector<P2POp>& ops, const CallOptions& options, CodeSite code) {
  for (size_t i = 0; i < ops.size(); ++i) {
    absl::Status checked = check(ops[i], ops[0]);
    if (checked.ok()) continue;
    const ProcessGroup* const group = ops[i].group;
    throw_dist_error(make_error(error_kind(checked), "batch_isend_irecv: operation ", i, ", ",
                                op_row(op_of(ops[i])).name, ": ", checked.message(), site_place(Site{.code = code})),
                     {.rank = group != nullptr ? group->global_rank() : -1, .group = {}, .op = "batch_isend_irecv"});
  }
  std::vector<Work> works;
  works.reserve(ops.size());
  for (const P2POp& op : ops) {
    works.push_back(op.kind == P2POp::Kind::kSend ? op.group->send(op.tensor, op.peer, op.tag, options, code)
                                                  : op.group->recv(op.tensor, op.peer, op.tag, options, code));
  }
  return works;
}

}  // namespace rankloom

#include "rankloom/collective_call.h"

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"

namespace rankloom {

using namespace internal;

TensorList::TensorList(std::vector<TensorView> views) : size_(static_cast<int>(views.size())) {
  if (size_ == 1) {
    one_ = std::move(views[0]);
  } else {
    many_ = std::move(views);
  }
}

namespace internal {
namespace {

// visit(tensor) until it returns false; whether it never did.
bool for_each_tensor(const CollectiveCall& call, absl::FunctionRef<bool(const TensorView&)> visit) {
  for (const TensorList* const list : {&call.inputs, &call.outputs}) {
    for (const TensorView& tensor : *list) {
      if (!visit(tensor)) return false;
    }
  }
  for (const CollectiveCall& part : call.parts) {
    if (!for_each_tensor(part, visit)) return false;
  }
  return true;
}

}  // namespace

Device call_device(const CollectiveCall& call) {
  if (!call.inputs.empty()) return call.inputs[0].device();
  if (!call.outputs.empty()) return call.outputs[0].device();
  for (const CollectiveCall& part : call.parts) {
    if (const Device device = call_device(part); device.kind != Device::Kind::kCpu) return device;
  }
  return {};
}

absl::Status one_device(const CollectiveCall& call) {
  const Device device = call_device(call);
  absl::Status status;
  for_each_tensor(call, [&](const TensorView& tensor) {
    if (tensor.device() == device) return true;
    status = absl::InvalidArgumentError(
        absl::StrCat("tensors are on ", device.name(), " and ", tensor.device().name(), ", want one device"));
    return false;
  });
  return status;
}

void renew(CollectiveCall* call) {
  // A new field is seen to here, unless the front writes it in each call: the test compares with a new call. Each list
  // has as many names as there are fields, or does not compile.
  [[maybe_unused]] const auto& [op, reduce_op, order, root, peer, tag, seq, inputs, outputs, in_splits, out_splits,
                                timeout, timeout_is_default, owned_in_part, warn_after, code, label, keep_alive, stream,
                                parts, way] = *call;
  [[maybe_unused]] const auto& [record_id, request, ready, wait_until_ns, message_seq, gate] = way;
  const auto clear = [](auto& rare) {
    if (!rare.empty()) [[unlikely]]
      rare = {};
  };
  call->reduce_op = ReduceOp();
  call->order = {};
  call->root = -1;
  call->peer = -1;
  call->tag = 0;
  call->inputs.clear();
  call->outputs.clear();
  clear(call->in_splits);
  clear(call->out_splits);
  clear(call->label);
  clear(call->parts);
  if (call->keep_alive != nullptr) [[unlikely]]
    call->keep_alive.reset();
  call->owned_in_part = false;
  call->stream = nullptr;
  call->way.record_id = -1;
  call->way.request = nullptr;
  if (call->way.ready != nullptr) [[unlikely]]
    call->way.ready.reset();
  call->way.wait_until_ns = 0;
  call->way.message_seq = -1;
  call->way.gate = nullptr;
}

}  // namespace internal
}  // namespace rankloom

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

}  // namespace internal
}  // namespace rankloom

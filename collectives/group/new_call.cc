#include "collectives/group/new_call.h"

#include <bit>
#include <cstdint>

namespace rankloom::internal {
namespace {

bool is(const TensorList& list, const TensorView* view) {
  if (view == nullptr) return list.empty();
  if (list.size() != 1) return false;
  const TensorView& own = list[0];
  return own.data() == view->data() && own.numel() == view->numel() && own.dtype() == view->dtype() &&
         own.device() == view->device() && own.is_contiguous() && view->is_contiguous() &&
         own.sizes().size() == view->sizes().size() && (own.sizes().size() == 1 || own.sizes() == view->sizes());
}

// Whether the call of a place, which passed its checks, is that one.
bool is(const CallPlace& place, const PlainCall& plain) {
  const CollectiveCall& call = *place.call;
  if (call.op != plain.op || !is(call.outputs, plain.output)) return false;
  // Of a call in place the two are one, unless the input's memory is a copy.
  const bool one = place.memo->in_place && plain.input != nullptr && plain.input == plain.output &&
                   call.inputs.size() == 1 && call.inputs[0].data() == plain.input->data();
  return (one || is(call.inputs, plain.input)) && call.reduce_op.kind() == plain.reduce_op.kind() &&
         std::bit_cast<uint64_t>(call.reduce_op.factor()) == std::bit_cast<uint64_t>(plain.reduce_op.factor()) &&
         call.root == plain.root && call.peer == plain.peer && call.tag == plain.tag;
}

void fill(CollectiveCall& call, const PlainCall& plain) {
  call.op = plain.op;
  if (plain.input != nullptr) call.inputs.set(*plain.input);
  if (plain.output != nullptr) call.outputs.set(*plain.output);
  call.reduce_op = plain.reduce_op;
  call.root = plain.root;
  call.peer = plain.peer;
  call.tag = plain.tag;
}

// Not inlined: a call on the stack would take hundreds of bytes of that of each rank that has places.
[[gnu::noinline]] Work submit_from_stack(GroupFront& front, const PlainCall& plain, const CallOptions& options,
                                         CodeSite code) {
  CollectiveCall call;
  fill(call, plain);
  return front.submit(call, options, code);
}

struct Building {
  ~Building() {
    if (place.building != nullptr) *place.building = false;
  }
  const CallPlace place;
};

}  // namespace

Work submit(GroupFront& front, const PlainCall& plain, const CallOptions& options, CodeSite code) {
  const Building building{front.fresh_place(plain.op == OpType::kSend || plain.op == OpType::kRecv, code.line)};
  const CallPlace& place = building.place;
  if (place.call == nullptr) [[unlikely]]
    return submit_from_stack(front, plain, options, code);
  const bool usual = !options.timeout.has_value() && !options.warn_after.has_value() && options.keep_alive == nullptr &&
                     !options.order.has_value() && options.stream == nullptr;
  if (usual && place.memo->terms == front.terms() && is(place, plain)) [[likely]] {
    place.memo->again = true;
    return front.submit_again(place, options, code);
  }
  renew(place.call);
  *place.memo = {.plain = usual, .in_place = plain.input != nullptr && plain.input == plain.output, .facts = {}};
  fill(*place.call, plain);
  return front.submit(*place.call, options, code, place.memo);
}

}  // namespace rankloom::internal

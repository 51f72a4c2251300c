#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "collectives/group/group_front.h"
#include "collectives/work/call_place.h"
#include "rankloom/collective_call.h"

namespace rankloom::internal {

// A call that is being built, where its group wants it.
class NewCall {
 public:
  NewCall(GroupFront& front, OpType op)
      : front_(front),
        place_(front.fresh_place(op == OpType::kSend || op == OpType::kRecv, /*line=*/0)),
        call_(place_.call != nullptr ? place_.call : new (own_) CollectiveCall) {
    if (place_.call != nullptr) {
      renew(call_);
      *place_.memo = {};
    }
    call_->op = op;
  }
  template <typename Inputs, typename Outputs>
  NewCall(GroupFront& front, OpType op, Inputs&& inputs, Outputs&& outputs) : NewCall(front, op) {
    set(call_->inputs, std::forward<Inputs>(inputs));
    set(call_->outputs, std::forward<Outputs>(outputs));
  }
  ~NewCall() {
    if (place_.call != nullptr) [[likely]] {
      *place_.building = false;
    } else {
      call_->~CollectiveCall();
    }
  }
  NewCall(const NewCall&) = delete;
  NewCall& operator=(const NewCall&) = delete;

  Work submit(const CallOptions& options, CodeSite code) { return front_.submit(*call_, options, code, place_.memo); }

  CollectiveCall* operator->() const { return call_; }
  CollectiveCall& operator*() const { return *call_; }

 private:
  static void set(TensorList& list, const TensorView& view) { list.set(view); }
  static void set(TensorList& list, TensorView&& view) { list.set(std::move(view)); }
  static void set(TensorList& list, std::vector<TensorView>&& views) { list = std::move(views); }

  GroupFront& front_;
  const CallPlace place_;
  CollectiveCall* const call_;
  alignas(CollectiveCall) std::byte own_[sizeof(CollectiveCall)];
};

// A call with at most one tensor on each side and nothing else that takes memory.
struct PlainCall {
  OpType op;
  const TensorView* input = nullptr;   // null: none
  const TensorView* output = nullptr;  // null: none
  ReduceOp reduce_op = {};
  int root = -1;
  int peer = -1;
  int tag = 0;
};

// Makes the call. One like the last of its place is that call once more.
Work submit(GroupFront& front, const PlainCall& plain, const CallOptions& options, CodeSite code);

}  // namespace rankloom::internal

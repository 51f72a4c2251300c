#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>

#include "collectives/call/collective_call.h"

namespace rankloom {

class CallRecord;

// A set of operations. A value: {OpType::kAllReduce, OpType::kSend}.
class OpSet {
 public:
  constexpr OpSet() = default;
  constexpr OpSet(std::initializer_list<OpType> ops) {
    for (const OpType op : ops) bits_ |= bit(op);
  }
  constexpr bool has(OpType op) const { return (bits_ & bit(op)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }

 private:
  static constexpr uint32_t bit(OpType op) { return uint32_t{1} << static_cast<unsigned>(op); }
  static_assert(kOpTypeCount <= 32);

  uint32_t bits_ = 0;
};

// What a fake group writes into the outputs of a call. Tensors on the meta device are never written.
enum class FakeOutputs : uint8_t {
  kShapesOnly,    // nothing
  kPassThrough,   // what PyTorch's fake group writes: this rank's own input, where an output can hold it
  kUniformRanks,  // what a real group would, if every rank held this rank's data
};

// How a fake group answers. An aggregate; every field has a default. A group that is made from this one answers alike unless
// GroupOptions::fake says otherwise.
struct FakeOptions {
  // Every operation fails as "FakeProcessGroup collective operation error", with operation, rank, group and shapes: sends and
  // recvs, the end of a coalesced block and the making of groups, too.
  bool error_on_collective = false;
  OpSet allow = {};  // these do not fail under error_on_collective
  OpSet deny = {};   // these fail in any case
  FakeOutputs outputs = FakeOutputs::kShapesOnly;
  // Where calls are kept; null: nowhere. One for each rank: groups of one rank share it.
  std::shared_ptr<CallRecord> record = {};

  // A coalesced call is refused if it is itself, or one of its parts.
  bool refuses(const CollectiveCall& call) const {
    if (call.op == OpType::kCoalesced) {
      for (const CollectiveCall& part : call.parts) {
        if (refuses(part)) return true;
      }
    }
    return deny.has(call.op) || (error_on_collective && !allow.has(call.op));
  }
};

}  // namespace rankloom

#pragma once

#include "collectives/ops/op_table.h"

namespace rankloom::internal {

// Whether all calls, [rank in group], agree: what a rendezvous finds out while they arrive, said in one go.
inline bool members_agree(MemberCalls calls) {
  const OpRow& first = op_row(calls[0]->op);
  for (size_t i = 1; i < calls.size(); ++i) {
    if (!first.same(*calls[0], *calls[i])) return false;
  }
  bool agree = true;
  if (first.cross != nullptr) {
    first.cross(calls, [&agree](const PairFault&) { return agree = false; });
  }
  return agree;
}

}  // namespace rankloom::internal

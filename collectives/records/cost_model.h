#pragma once

#include <cstdint>

#include "rankloom/collective_call.h"
#include "rankloom/records.h"

namespace rankloom::internal {

// How the members of a group pass their data on.
enum class WireAlgorithm : uint8_t {
  kRing,  // each to its neighbour; all_to_all: to each in turn
  kTree,  // in a logarithmic number of steps
};

// The cost of an operation over `bytes` (see wire_payload()) among `size` members, by the table at CostModel::WireCost.
CostModel::WireCost wire_cost(WireAlgorithm algorithm, OpType op, int size, int64_t bytes);

// S of that table, in bytes.
int64_t wire_payload(const CollectiveCall& call, int size);

}  // namespace rankloom::internal

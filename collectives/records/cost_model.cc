#include "collectives/records/cost_model.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "sim/base/saturating.h"

namespace rankloom::internal {
namespace {

int64_t log2_up(int size) { return std::bit_width(static_cast<unsigned>(size) - 1); }

// bytes * a / b, rounded up.
int64_t share(int64_t bytes, int64_t a, int64_t b) {
  return at_most_int64((static_cast<WideCount>(bytes) * a + b - 1) / b);
}

int64_t bytes_of(const TensorList& list) {
  return std::accumulate(list.begin(), list.end(), int64_t{0}, [](int64_t sum, const TensorView& tensor) {
    return saturating_add(sum, static_cast<int64_t>(tensor.bytes()));
  });
}

}  // namespace

CostModel::WireCost wire_cost(WireAlgorithm algorithm, OpType op, int size, int64_t bytes) {
  if (size <= 1) return {};
  const bool ring = algorithm == WireAlgorithm::kRing;
  const int64_t n = size;
  const int64_t lg = log2_up(size);
  switch (op) {
    case OpType::kAllReduce:
    case OpType::kAllReduceCoalesced:
      return ring ? CostModel::WireCost{2 * (n - 1), share(bytes, 2 * (n - 1), n)}
                  : CostModel::WireCost{2 * lg, saturating_mul(bytes, 2)};
    case OpType::kBroadcast:
    case OpType::kReduce:
      return {ring ? n - 1 : lg, bytes};
    case OpType::kAllGather:
    case OpType::kAllGatherIntoTensor:
    case OpType::kAllGatherIntoTensorCoalesced:
    case OpType::kGather:
    case OpType::kScatter:
    case OpType::kReduceScatter:
    case OpType::kReduceScatterTensor:
    case OpType::kReduceScatterTensorCoalesced:
      return {ring ? n - 1 : lg, share(bytes, n - 1, n)};
    case OpType::kAllToAll:
    case OpType::kAllToAllSingle:
      return ring ? CostModel::WireCost{n - 1, share(bytes, n - 1, n)} : CostModel::WireCost{lg, share(bytes, lg, 2)};
    case OpType::kSend:
    case OpType::kRecv:
      return {1, bytes};
    case OpType::kBarrier:
    case OpType::kMonitoredBarrier:
      return {ring ? 2 * (n - 1) : lg, 0};
    case OpType::kCoalesced:  // its parts cost
    case OpType::kNewGroup:
    case OpType::kSplitGroup:
      return {};
  }
  return {};
}

int64_t wire_payload(const CollectiveCall& call, int size) {
  switch (call.op) {
    case OpType::kBroadcast:
    case OpType::kAllReduce:
    case OpType::kAllReduceCoalesced:
    case OpType::kReduce:
    case OpType::kAllGather:
    case OpType::kAllGatherIntoTensor:
    case OpType::kAllGatherIntoTensorCoalesced:
    case OpType::kRecv:
      return bytes_of(call.outputs);
    case OpType::kGather:
      return saturating_mul(bytes_of(call.inputs), size);
    case OpType::kScatter:
      return saturating_mul(bytes_of(call.outputs), size);
    case OpType::kReduceScatter:
    case OpType::kReduceScatterTensor:
    case OpType::kReduceScatterTensorCoalesced:
    case OpType::kAllToAll:
    case OpType::kAllToAllSingle:
    case OpType::kSend:
      return bytes_of(call.inputs);
    case OpType::kCoalesced:
      return std::accumulate(
          call.parts.begin(), call.parts.end(), int64_t{0},
          [size](int64_t sum, const CollectiveCall& part) { return saturating_add(sum, wire_payload(part, size)); });
    case OpType::kBarrier:
    case OpType::kMonitoredBarrier:
    case OpType::kNewGroup:
    case OpType::kSplitGroup:
      return 0;
  }
  return 0;
}

}  // namespace rankloom::internal

namespace rankloom {

using namespace internal;

CostModel::LinksByDim::LinksByDim() = default;
CostModel::LinksByDim::LinksByDim(std::initializer_list<Entry> entries) : entries_(entries) {
  std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.first < b.first; });
  const auto same = [](const Entry& a, const Entry& b) { return a.first == b.first; };
  entries_.erase(std::unique(entries_.begin(), entries_.end(), same), entries_.end());
}
CostModel::LinksByDim::LinksByDim(const LinksByDim& other) = default;
CostModel::LinksByDim::LinksByDim(LinksByDim&& other) noexcept = default;
CostModel::LinksByDim& CostModel::LinksByDim::operator=(LinksByDim other) noexcept {
  std::swap(entries_, other.entries_);
  return *this;
}
CostModel::LinksByDim::~LinksByDim() = default;

size_t CostModel::LinksByDim::size() const { return entries_.size(); }
const CostModel::LinksByDim::Entry* CostModel::LinksByDim::begin() const { return entries_.data(); }

const CostModel::LinksByDim::Entry* CostModel::LinksByDim::find(std::string_view dim) const {
  return std::find_if(begin(), end(), [dim](const Entry& entry) { return entry.first == dim; });
}

links::Link& CostModel::LinksByDim::operator[](std::string_view dim) {
  auto at = std::find_if(entries_.begin(), entries_.end(), [dim](const Entry& entry) { return entry.first >= dim; });
  if (at == entries_.end() || at->first != dim) at = entries_.insert(at, {.first = std::string(dim), .second = {}});
  return at->second;
}

const links::Link* CostModel::link_of(std::string_view dim) const {
  if (const auto at = dims.find(dim); at != dims.end()) return &at->second;
  return link.has_value() ? &*link : nullptr;
}

absl::Duration CostModel::time(const links::Link& over, OpType op, int size, int64_t bytes) const {
  using internal::WireAlgorithm;
  const auto takes = [&](WireAlgorithm with) {
    const CostModel::WireCost cost = internal::wire_cost(with, op, size, bytes);
    const absl::Duration latency = over.latency * cost.steps;
    if (cost.bytes == 0) return latency;
    return latency + absl::Seconds(static_cast<double>(cost.bytes) / over.bytes_per_second);
  };
  switch (algorithm) {
    case Choice::kRing:
      return takes(WireAlgorithm::kRing);
    case Choice::kTree:
      return takes(WireAlgorithm::kTree);
    case Choice::kFaster:
      break;
  }
  return std::min(takes(WireAlgorithm::kRing), takes(WireAlgorithm::kTree));
}

}  // namespace rankloom

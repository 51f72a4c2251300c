#include "tests/campaign/job.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "rankloom/random.h"

namespace rankloom {

using namespace internal;

void no_such(std::string_view what, int number) {
  std::fprintf(stderr, "campaign: no %.*s has the number %d\n", static_cast<int>(what.size()), what.data(), number);
  std::abort();
}

bool is_reduction(OpType op) {
  switch (op) {
    case OpType::kAllReduce:
    case OpType::kAllReduceCoalesced:
    case OpType::kReduce:
    case OpType::kReduceScatter:
    case OpType::kReduceScatterTensor:
    case OpType::kReduceScatterTensorCoalesced:
      return true;
    case OpType::kBroadcast:
    case OpType::kAllGather:
    case OpType::kAllGatherIntoTensor:
    case OpType::kAllGatherIntoTensorCoalesced:
    case OpType::kGather:
    case OpType::kScatter:
    case OpType::kAllToAll:
    case OpType::kAllToAllSingle:
    case OpType::kBarrier:
    case OpType::kMonitoredBarrier:
    case OpType::kSend:
    case OpType::kRecv:
    case OpType::kCoalesced:
    case OpType::kNewGroup:
    case OpType::kSplitGroup:
      return false;
  }
  no_such("operation", static_cast<int>(op));
}

bool has_kernel(ReduceOp::Kind op, DType dtype) {
  using Kind = ReduceOp::Kind;
  if (dtype == DType::kFloat8E4M3FN || dtype == DType::kFloat8E5M2) return false;
  switch (op) {
    case Kind::kAvg:
      return is_floating(dtype) || is_complex(dtype);
    case Kind::kPremulSum:
      return is_floating(dtype);
    case Kind::kMin:
    case Kind::kMax:
      return !is_complex(dtype);
    case Kind::kBand:
    case Kind::kBor:
    case Kind::kBxor:
      return is_integral(dtype) || dtype == DType::kBool;
    default:
      return true;
  }
}

bool Job::may_fail() const {
  return std::any_of(acts.begin(), acts.end(), [](const Act& act) { return act.ends_badly(); }) ||
         std::any_of(faults.begin(), faults.end(),
                     [](const Fault& fault) { return fault.kind != Fault::Kind::kDelay; }) ||
         fault_rate != 0;
}

bool Job::has_whole_barriers() const {
  return std::none_of(acts.begin(), acts.end(), [](const Act& act) { return act.type() == ActKind::kGroupTimeout; });
}

FaultPlan Job::fault_plan() const {
  if (fault_rate == 0) return faults;
  return FaultPlan::seeded(static_cast<uint64_t>(seed), fault_rate / 1000.0).plus(faults);
}

int tag_of(const Act& act) {
  constexpr int kOthers = 2;
  const bool is_message = act.type() == ActKind::kMessage;
  return is_message && act.seed > 0 ? act.seed - 1 : kOthers + act.id;
}

Crossing crossing_of(const Act& act) {
  Prng prng(static_cast<uint64_t>(act.seed));
  Crossing crossing;
  const size_t messages = static_cast<size_t>(act.c) + 2;
  const auto first = static_cast<int>(prng.below(2));
  crossing.tags.push_back(first);
  while (crossing.tags.size() < messages) crossing.tags.push_back(static_cast<int>(prng.below(2)));
  crossing.tags.back() = 1 - first;
  // The tags in another order; of each the messages in the order of the sends.
  std::vector<int> tags = crossing.tags;
  for (size_t i = messages; i > 1; --i) std::swap(tags[i - 1], tags[prng.below(i)]);
  std::array<size_t, 2> next = {};
  for (const int tag : tags) {
    size_t& at = next[static_cast<size_t>(tag)];
    while (crossing.tags[at] != tag) ++at;
    crossing.taken.push_back(static_cast<int>(at++));
  }
  return crossing;
}

}  // namespace rankloom

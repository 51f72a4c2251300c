#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/work/member_work.h"
#include "rankloom/collective_call.h"
#include "sim/base/sanitizers.h"
#include "world/open_outputs.h"
#include "world/world_state.h"

namespace rankloom::internal {

// Memory of the process that calls of a rank use while they are on their way: no two of them write to one byte, and
// none begins to read what another writes. A call that writes to what an open one reads is not found, unless both are
// parts of a coalesced call. Each function is called by the rank that makes the call, before other members see it.

// open_beside() in the common case: a call like the last one of its place, alone on its way. False: nothing was done,
// and open_beside() is next.
inline bool open_alone(RankState& rank, MemberWork& work) {
  const CallMemo& memo = *work.memo();
  OpenOutputs& list = rank.open_outputs();
  if (!memo.again) return false;
  if (work.call().outputs.empty()) return !list.others(work);
  if (memo.writes.begin == memo.writes.end || !list.add_alone(work, memo.writes)) return false;
  work.outputs_open_in(&list);
  return true;
}

// Takes note of where the call of `work` writes. Errors: InvalidArgument, which ends the work, if an open call of its
// rank writes there, or to what this one reads. `who`: at the head of the text, "rank 1, group 0, recv from rank 0: ".
absl::Status open_beside(RankState& rank, MemberWork& work, int group_rank, absl::FunctionRef<std::string()> who);

// The bytes that a coalesced call uses.
struct PartRanges {
  std::vector<OpenOutputs::Range> outputs;
  std::vector<OpenOutputs::Range> inputs;
};
// Errors: InvalidArgument, if two parts write to one byte, or one reads what another writes.
absl::StatusOr<PartRanges> separate_parts(const CollectiveCall& call, int group_rank, std::string_view who);
// open_beside() of the whole, whose parts may be moved away.
absl::Status open_parts(RankState& rank, MemberWork& whole, PartRanges ranges, std::string_view who);

// Kernels are no code that a program's AddressSanitizer looks into. Where a program has one, freed or foreign memory
// among the tensors of a call ends the process with its report: when the call is made, and when its kernel begins.
void report_freed_memory(const CollectiveCall& call, int group_rank);
inline void look_for_freed_memory(const CollectiveCall& call, int group_rank) {
  if (__asan_region_is_poisoned != nullptr) [[unlikely]]
    report_freed_memory(call, group_rank);
}

}  // namespace rankloom::internal

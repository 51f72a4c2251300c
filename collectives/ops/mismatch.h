#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "rankloom/collective_call.h"

namespace rankloom::internal {

// The facts of a report beside the calls. The functions are asked during describe_mismatch() only, with an index into
// `by_rank`: the rank in the group, or 0 and 1 for the sender and the receiver of a pair.
struct MismatchContext {
  std::string_view group;  // its name
  int64_t seq = -1;
  absl::FunctionRef<int(int)> global_rank;
  // The member's last calls in this group, oldest first, one line each.
  absl::FunctionRef<std::vector<std::string>(int)> last_calls;
  // The state of a member that has not arrived: "has not called", "returned".
  absl::FunctionRef<std::string(int)> whereabouts;
};

// The one Mismatch that every member gets when their calls do not agree, or when some have not arrived and those that
// have differ already. by_rank[i] is null for a member that has not arrived. A send and its recv: {send, recv}.
//
// Result: kind Mismatch. Text: a headline, a table of the fields that differ (field, value, ranks, call site), pairs of
// members that expect different sizes of each other, missing ranks, the last calls of one rank of each distinct call.
// Long lists are cut. All ranks in it are global. Cost: linear in the members.
absl::Status describe_mismatch(const MismatchContext& context, MemberCalls by_rank);

}  // namespace rankloom::internal

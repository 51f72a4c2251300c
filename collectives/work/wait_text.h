#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "sim/base/task.h"

namespace rankloom::internal {

class RanksElsewhere;
class WorldState;
struct RankTold;

// A wait of a rank for other members, as texts tell of it.
struct MemberWait {
  std::string who;  // "rank 0, group 0, all_reduce seq 3"
  WorldState& world;
  std::vector<int> awaited;  // global ranks
  Site site;                 // for its place
  absl::Duration timeout;
  std::string_view otherwise = "any rank";    // what is awaited if `awaited` is empty
  const RanksElsewhere* elsewhere = nullptr;  // null: all ranks run in this process
  std::string facts = {};                     // lines below all else, each after a newline
};

// "WHO: timed out after 5s waiting for rank 1 (returned) and ranks 3-4 [group 0, train.cc:12]", and the last calls of
// some of those that still run.
absl::Status timeout_error(const MemberWait& wait);

// The lines of such a text on a rank of this process that still runs.
RankTold told_of(WorldState& world, int rank);

// Warns "WHO: has waited 1s for rank 2, times out after 30m [group 0, train.cc:12]".
void warn_of(const MemberWait& wait, absl::Duration waited);

// The tensor that a rank wrote to between a call and its completion.
enum class Touched : uint8_t { kInput, kOutput };
// "WHO: an output was written or freed between the call [train.cc:12] and its completion, when rank 1 was at wait
// [train.cc:14], want it left alone until wait()", and if `dropped`, "; nobody can wait for the call: its work was
// dropped", which fails the rank, too. `code`: of the call. An explored run is told: before what it fails completes. No
// lock may be held.
absl::Status touched_early(WorldState& world, int rank, std::string_view who, CodeSite code, Touched what,
                           bool dropped);

}  // namespace rankloom::internal

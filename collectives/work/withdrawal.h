#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "sim/base/task.h"
#include "world/world_state.h"

namespace rankloom::internal {

// Why a rank takes a call back.
struct Withdrawal {
  enum class Why : uint8_t {
    kFailure,    // of the call, for this rank: the group fails with `cause`
    kAbort,      // of the world, for `cause`, which tells all members
    kUnwinding,  // an exception that may end the rank: the group fails with `cause` once the rank is seen to go on
  };
  Why why = Why::kAbort;
  absl::Status cause;

  // After a wait of `rank` that ended early with `waited`: a Timeout is a failure, all else is the world's abort.
  static Withdrawal of_wait(const absl::Status& waited, int rank);
  static Withdrawal failure(const absl::Status& cause) { return {Why::kFailure, cause}; }
};

// Of a work of `context`'s rank whose last handle went, unfinished. `who`: "rank 0, group 0, send to rank 1"; `what`:
// "send seq 1 to rank 1"; `lost`: "the message can never arrive". `site`: of the call.
Withdrawal withdrawal_of_drop(RankState& context, const std::string& who, const std::string& what, const char* lost,
                              const Site& site);

// A rank that unwound out of a call.
struct Unwound {
  uint64_t task;  // Task::current_serial() in it
  absl::Status cause;
  bool caught = false;  // the rank was seen to go on: `cause` holds for ranks that need the call

  // The calling task is not unwinding any more, or never was. True: that is news.
  bool look();
};

}  // namespace rankloom::internal

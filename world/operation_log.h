#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "rankloom/error.h"
#include "rankloom/store.h"
#include "sim/sync/rank_mutex.h"

namespace rankloom::internal {

// One operation of a rank on the store of its world. Steps: scheduling points that all ranks had passed; -1: none are
// known, since the run is free, or the operation has not ended. Times: Scheduler::now_ns().
struct StoreOperation {
  enum class State : uint8_t { kOpen, kDone, kFailed };
  // The first bytes of a value, and how many there are; -1: the operation has no such value.
  struct Value {
    std::string shown;
    int64_t bytes = -1;
  };

  const char* op = "";  // "store get"
  CodeSite code;
  std::string key;  // the first of `keys`; cut where it is long
  int64_t keys = 0;
  Value given;  // what the rank wrote, added or wanted to be there; of several values the first, and all bytes
  Value got;    // what the store brought back
  State state = State::kOpen;
  int64_t begun_ns = 0, ended_ns = -1;
  int64_t begun_step = -1, ended_step = -1;
};

// The entries of a run file for one rank beside its flight records: the steps of its calls, and its last operations on
// the store of its world. Kept where a file is wanted: WorldOptions::keep_run, RANKLOOM_REPORT.
// Thread-safety: call_issued(), call_ended() and steps_of() under the mutex of the rank's recorder; all others from any
// thread.
class OperationLog {
 public:
  static constexpr int kMostStoreOperations = 256;

  // `calls`: how many the rank's recorder keeps.
  OperationLog(const Scheduler* scheduler, int calls);

  struct Steps {
    int64_t issued = -1, ended = -1;
  };
  void call_issued(int64_t record_id);
  void call_ended(int64_t record_id);
  // Of a call that the recorder still has.
  Steps steps_of(int64_t record_id) const;

  // The number of an operation that begins now.
  int64_t begin(const StoreCall& call);
  void end(int64_t number, const StoreCall& call, const absl::StatusOr<StoreReply>& reply);
  // The last ones, oldest first, and the number of all.
  struct StoreOperations {
    std::vector<StoreOperation> last;
    int64_t made = 0;
  };
  StoreOperations store_operations() const;

 private:
  // -1: the run has no order of steps.
  int64_t step() const;

  const Scheduler* const scheduler_;
  const size_t calls_;
  const size_t operations_;
  std::vector<Steps> steps_;  // a ring, by record_id; guarded by the recorder's mutex
  mutable RankMutex mu_;
  std::vector<StoreOperation> ring_ ABSL_GUARDED_BY(mu_);
  int64_t made_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace rankloom::internal

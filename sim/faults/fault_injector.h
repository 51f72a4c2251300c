#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "rankloom/error.h"
#include "rankloom/faults.h"
#include "sim/sync/rank_mutex.h"

namespace rankloom::internal {

class Scheduler;

// Finds the faults of a run's calls. Belongs to a world; wrapping groups and stores ask it.
// Thread-safety: all methods.
class FaultInjector {
 public:
  struct Call {
    int rank;
    std::string_view group;         // empty: a store
    std::string_view op;            // as DistError::op() names it
    std::string_view base_op = op;  // of which it is a kind: a recv_any is a recv
    int64_t seq = -1;
    bool sends = false;
    bool reads = false;   // its first input is memory of the host
    bool writes = false;  // its first output is
  };

  // `crash` tells the world that a rank failed, and why.
  FaultInjector(FaultPlan plan, Scheduler* scheduler, int ranks, std::function<void(int, const std::string&)> crash);

  // Counts the call and returns what goes wrong in it, as faults of that one call of that rank. May be a scheduling
  // point, for faults that are `maybe`.
  std::vector<Fault> at(const Call& call);
  // One of these has come to happen.
  void struck(const Fault& fault);
  // Holds memory that a fault made for a call until `over` says that the call has ended, or the world ends.
  void keep(std::shared_ptr<const void> memory, absl::AnyInvocable<bool()> over);
  // Does what is the same for all calls: crash, hang, delay, and a store's timeout. A crash unwinds the rank. Errors:
  // what the call fails with; for a hang, the cause of the abort that ended it.
  absl::Status act(const Fault& fault, const Call& call, CodeSite code);
  // The faults that happened so far, each with the number of its call among all of its rank's: as a plan, they happen
  // again.
  std::vector<Fault> happened() const;
  // A line for each fault of the plan that could not happen in the run so far, with the reason: no call was the one
  // that it names, or none like that can go wrong in this way. None for faults that the schedule could choose.
  std::vector<std::string> missed() const;

 private:
  struct Matched {
    std::vector<int64_t> calls;   // [rank]
    std::vector<Fault> due = {};  // as at() returned them; kept until one of them strikes
    bool struck = false;
    bool offered = false;  // to the schedule, which chooses
  };
  struct Kept {
    std::shared_ptr<const void> memory;
    absl::AnyInvocable<bool()> over;
  };
  const FaultPlan plan_;
  Scheduler* const scheduler_;
  const std::function<void(int, const std::string&)> crash_;
  mutable RankMutex mu_;
  std::vector<int64_t> calls_ ABSL_GUARDED_BY(mu_);              // [rank]
  std::vector<Matched> matched_ ABSL_GUARDED_BY(mu_);            // [fault of the plan]
  std::set<std::string, std::less<>> ops_ ABSL_GUARDED_BY(mu_);  // of all calls
  std::vector<Fault> happened_ ABSL_GUARDED_BY(mu_);
  std::vector<Kept> kept_ ABSL_GUARDED_BY(mu_);
};

}  // namespace rankloom::internal

#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sim/schedule/step_record.h"
#include "sim/scheduler/call_scope.h"

namespace rankloom {

class HashStore;
class Store;
struct StoreCall;
struct StoreReply;

}  // namespace rankloom

namespace rankloom::internal {

// The common part of a store and the stores that wrap it: their world, and the timeout of waits that name none.
// Thread-safety: thread-safe.
class StoreState {
 public:
  explicit StoreState(Scheduler* scheduler);

  // A wait takes the calling task's time.
  const WorldRef& world() const { return world_; }

  // set_timeout() and timeout() tell an explored run, and are no scheduling points.
  void set_timeout(absl::Duration timeout);  // 0 or more
  absl::Duration timeout() const;
  // Why the caller's run was aborted; OK if it was not, or for a thread of no run, unless that of the store was.
  absl::Status abort_cause() const;

 private:
  // Tells that the timeout is changed, or decides on a wait.
  void tell_timeout(Access how) const;

  const WorldRef world_;
  const ObjectName timeout_object_;
  std::atomic<int64_t> timeout_ns_;  // INT64_MAX: for ever
};

// Whether a call, which anybody may make by Store::execute(), has the keys and values that its operation wants, a
// callback if it is a watch, and no negative timeout.
bool is_well_formed(const StoreCall& call);
// The error of one that has not. `kind`: Store::kind().
absl::Status why_malformed(std::string_view kind, const StoreCall& call);

// The way of the library from a store to its state.
struct StoreAccess {
  static StoreState& state(const Store& store);  // in store.cc
  // As a method of the store that builds this call: with its scheduling point and its errors.
  static absl::StatusOr<StoreReply> submit(Store& store, StoreCall&& call);
  // KeyTable::release_watches().
  static bool release_watches(HashStore& store);  // in hash_store.cc
};

}  // namespace rankloom::internal

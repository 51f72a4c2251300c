#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "sim/sync/rank_mutex.h"

namespace rankloom {

class Group;

namespace internal {

// A call whose outputs OpenOutputs holds.
class OpenCall {
 public:
  // "all_reduce seq 3 [train.cc:12]".
  virtual std::string open_text() const = 0;
  // Null: the call is of no group.
  virtual const Group* open_group() const { return nullptr; }

 protected:
  ~OpenCall() = default;

 private:
  friend class OpenOutputs;
  size_t place_ = 0;  // among those that are open beside the first; guarded by the list's mutex
};

// Where the calls of one rank write that it has made and does not know to be done: no two may write to one byte. A call
// leaves when the rank waits for it or asks, and not when it is done, so that a program is refused under every schedule
// alike.
// Cost: a call that is made when no other is open is compared with nothing and allocates nothing.
// Thread-safety: all methods.
class OpenOutputs {
 public:
  struct Range {  // of addresses, not empty
    uintptr_t begin;
    uintptr_t end;
  };

  explicit OpenOutputs(const Scheduler* scheduler) : mu_(scheduler, LockLevel::kOpenOutputs) {}

  // False: an open call writes there, too, `other`; then nothing was added.
  bool add(OpenCall& call, Range range, std::string* other) {
    RankMutexLock lock(&mu_);
    if (first_.call != nullptr || !more_.empty()) [[unlikely]]
      return add_beside({.call = &call, .hull = range, .ranges = nullptr}, other);
    first_.call = &call;
    first_.hull = range;
    return true;
  }
  bool add(OpenCall& call, std::vector<Range> ranges, std::string* other);
  // Adds a call that is the only open one; false: it would not be, and nothing was added.
  bool add_alone(OpenCall& call, Range range) {
    RankMutexLock lock(&mu_);
    if (first_.call != nullptr || !more_.empty()) return false;
    first_.call = &call;
    first_.hull = range;
    return true;
  }
  // Does nothing for a call that is not open.
  void remove(OpenCall& call) {
    RankMutexLock lock(&mu_);
    if (first_.call != &call || first_.ranges != nullptr) [[unlikely]]
      return remove_beside(call);
    first_.call = nullptr;
  }
  bool has(const OpenCall& call) const;
  // Whether calls beside `call` are open.
  bool others(const OpenCall& call) const {
    RankMutexLock lock(&mu_);
    return !more_.empty() || (first_.call != nullptr && first_.call != &call);
  }
  // Whether an open call beside `call`, `other`, writes to one of these bytes.
  bool written_beside(const OpenCall& call, absl::Span<const Range> reads, std::string* other) const;
  // Closes the calls for which `gone` holds; it takes no lock.
  void remove_if(absl::FunctionRef<bool(const OpenCall&)> gone);
  // Of all that are open, in the order of their addresses.
  std::vector<std::string> texts() const;

 private:
  struct Entry {
    OpenCall* call = nullptr;
    Range hull = {};
    std::unique_ptr<std::vector<Range>> ranges;  // ascending; null: the hull is the only one
  };
  bool add_beside(Entry entry, std::string* other) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void remove_beside(OpenCall& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable RankMutex mu_;
  Entry first_ ABSL_GUARDED_BY(mu_);              // without a call: free
  std::vector<Entry> more_ ABSL_GUARDED_BY(mu_);  // in no order
  Range hull_ ABSL_GUARDED_BY(mu_) = {};          // holds all of `more_`, unless there are none
};

}  // namespace internal
}  // namespace rankloom

#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "rankloom/store.h"
#include "sim/base/kept_memory.h"
#include "sim/base/text.h"
#include "sim/schedule/step_record.h"
#include "sim/scheduler/call_scope.h"
#include "sim/sync/observed_mutex.h"

namespace rankloom::internal {

// The content of a store: values, queues, the waiters and watchers of each key. Waiters are kept per key, so
// that a change wakes those it concerns and nobody else. Every method that a result can depend on tells an explored run
// of it (StepRecord), so that an operation made of them need not think of that. Thread-safety: all of it is guarded by
// `mu`, a public member since the store that owns the table takes it, for several methods at a time.
class KeyTable {
 public:
  explicit KeyTable(const Scheduler* scheduler);

  // Held neither in a wait nor in a watch callback.
  ObservedMutex mu;

  // The events that operations wait for.
  // kValue: a value. kPresent: a value or a queue that is not empty. kQueued: such a queue.
  enum class Want : uint8_t { kValue, kPresent, kQueued };

  // A run that uses the table may be explored: what follows may have somebody to tell.
  bool may_be_explored() const { return may_be_explored_; }

  // --- looks

  // Null: no value. The pointer is good until the next change.
  const std::string* find(std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (may_be_explored_) [[unlikely]]
      tell(kValue, key, Access::kRead);
    return find_here(key);
  }
  // The same for reports, of which an explored run is told nothing.
  const std::string* peek(std::string_view key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return find_here(key); }
  // A value, or a queue that is not empty.
  bool present(std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (may_be_explored_) [[unlikely]]
      tell(kPresence, key, Access::kRead);
    return present_here(key);
  }
  size_t queue_len(std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (may_be_explored_) [[unlikely]]
      tell(kQueue, key, Access::kRead);
    return queue_len_here(key);
  }
  size_t size() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  std::vector<std::string> sorted_keys() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // --- waits

  // Whether the wait may end. To be asked by waits only, which then say what they make of it: the operation goes on; it
  // waits; it gives up, or might have, since its time is over.
  bool holds(std::string_view key, Want want) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void waits_on(std::string_view key, Want want) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (may_be_explored_) [[unlikely]]
      tell_wait(key, want, StepRecord::What::kMiss);
  }
  void gave_up(std::string_view key, Want want) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (may_be_explored_) [[unlikely]]
      tell_wait(key, want, StepRecord::What::kRead);
  }
  void goes_on(std::string_view key, Want want) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (may_be_explored_) [[unlikely]]
      tell_wait(key, want, StepRecord::What::kPass);
  }

  // --- changes: each wakes whom it concerns and files an event if the key is watched

  void set(std::string_view key, std::string_view value) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (may_be_explored_) [[unlikely]]
      tell_set(key);
    if (!watches_.empty()) [[unlikely]]
      file_event(key, value);
    const auto [it, added] = values_.try_emplace(key, value);
    if (!added) {
      it->second.assign(value);
    } else if (!waiters_.empty()) {
      wake(key, /*queued=*/false);
    }
  }
  void set(std::string_view key, std::string&& value) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void append(std::string_view key, std::string_view value) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  bool erase(std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void push(std::string_view key, std::string_view value) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // nullopt: empty.
  std::optional<std::string> pop(std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // The waiters of one key. `present` is for a value or a queue, `queued` for the next value of the queue: a push wakes
  // one of these, in a deterministic run all.
  struct Waiters {
    RankCondVar present;
    RankCondVar queued;
    int waiting = 0;
  };
  // Keeps the waiters of a key for as long as somebody waits; the key must outlive it.
  class WaitScope {
   public:
    WaitScope(KeyTable* table, std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(table->mu);
    ~WaitScope() ABSL_NO_THREAD_SAFETY_ANALYSIS;  // runs where the constructor ran, with the mutex held
    WaitScope(const WaitScope&) = delete;
    WaitScope& operator=(const WaitScope&) = delete;
    Waiters& operator*() { return *waiters_; }
    Waiters* operator->() { return waiters_; }

   private:
    KeyTable* const table_;
    const std::string_view key_;
    Waiters* waiters_;
  };

  void watch(std::string_view key, Store::WatchCallback callback) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Lets all watches go, after the run. Whether there were any: their destructors may have left others.
  bool release_watches() ABSL_LOCKS_EXCLUDED(mu);
  // After each operation, with whatever result: calls the callbacks of filed events. Nothing if another task, which
  // filed first, does so: that one takes the caller's along, so the order of events is kept. A task that may wait
  // before its operation ends leaves its events first.
  void deliver_events() ABSL_LOCKS_EXCLUDED(mu) {
    if (ever_watched_.load(std::memory_order_relaxed)) [[unlikely]]
      deliver_filed();
  }

  // Lets any task deliver what the caller has filed. Whether there are events that nobody is about to deliver.
  bool leave_events() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view key) const { return absl::Hash<absl::string_view>{}(sv(key)); }
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(std::string_view a, std::string_view b) const { return a == b; }
  };
  template <typename T>
  using Map = absl::flat_hash_map<std::string, T, Hash, Equal>;
  struct Watch {
    std::shared_ptr<Store::WatchCallback> callback;
    int rank;        // that left it here; -1: a thread of no world
    WorldRef world;  // of that rank
  };
  struct Event {
    Watch watch;
    std::optional<std::string> before;
    std::optional<std::string> after;
  };

  // The parts of a key that are told apart.
  enum Part : uint64_t { kValue = 1, kPresence, kQueue, kWatches };
  const std::string* find_here(std::string_view key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto it = values_.find(key);
    return it != values_.end() ? &it->second : nullptr;
  }
  bool present_here(std::string_view key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return find_here(key) != nullptr || queue_len_here(key) > 0;
  }
  size_t queue_len_here(std::string_view key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (queues_.empty()) return 0;
    const auto it = queues_.find(key);
    return it != queues_.end() ? it->second.size() : 0;
  }

  // The record of the calling task's run, if that is explored.
  StepRecord* record() const;
  static uint64_t condition(Want want, uint64_t table, std::string_view key);
  void tell(Part part, std::string_view key, Access how) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void tell_wait(std::string_view key, Want want, StepRecord::What what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void tell_set(std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void tell_keys(Access how) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // A change might have changed whether the key is present, or, if that `stays`, would have without others' changes.
  void tell_presence(std::string_view key, Part other, bool stays, bool raise) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // `raise`: the key gets its first value or the first of its queue; else it loses the last.
  void tell_condition(Want want, std::string_view key, bool raise) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void wake(std::string_view key, bool queued) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void file_event(std::string_view key, std::optional<std::string_view> after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void deliver_filed() ABSL_LOCKS_EXCLUDED(mu);
  void tell_events() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // The calling task, or thread of no world.
  static const void* caller();
  // Whether `thrown` by a callback is the failure of a rank other than the caller's; it is told of, if its world still
  // lives.
  static bool is_others_failure(const Watch& watch, const std::exception_ptr& thrown);

  const Scheduler* const scheduler_;  // null: of no world, used by tasks of any
  const bool may_be_explored_;
  const ObjectName object_;
  Map<std::string> values_ ABSL_GUARDED_BY(mu);
  // No empty ones. A deque would take 600 bytes for one value.
  Map<std::list<std::string>> queues_ ABSL_GUARDED_BY(mu);
  Map<std::unique_ptr<Waiters>> waiters_ ABSL_GUARDED_BY(mu);
  Map<std::vector<Watch>> watches_ ABSL_GUARDED_BY(mu);
  std::deque<Event, KeptAllocator<Event>> events_ ABSL_GUARDED_BY(mu);
  // The caller() that filed first; null: there are no events, or whoever comes first is to deliver them.
  const void* deliverer_ ABSL_GUARDED_BY(mu) = nullptr;
  bool delivering_ ABSL_GUARDED_BY(mu) = false;  // the deliverer_ is at the callbacks
  std::atomic<bool> ever_watched_{false};        // set with `mu` held, so the thread that filed an event sees it
};

}  // namespace rankloom::internal

#pragma once

#include <atomic>
#include <deque>
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
#include "fake_store/store.h"
#include "sim/rank_mutex.h"
#include "sim/step_record.h"
#include "sim/text.h"

namespace rankloom::internal {

// What a store knows: values, queues, who waits for which key, who watches which key. Waiters are kept per key, so that a
// change wakes those it concerns and nobody else.
// Thread-safety: everything is guarded by `mu`, which the store that owns the table takes.
class KeyTable {
 public:
  explicit KeyTable(const Scheduler* scheduler);

  // Taken after no other lock; held neither in a wait nor in a watch callback.
  RankMutex mu;

  // Null: no value. The pointer is good until the next change.
  const std::string* find(std::string_view key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto it = values_.find(key);
    return it != values_.end() ? &it->second : nullptr;
  }
  // A value, or a queue that is not empty.
  bool present(std::string_view key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return find(key) != nullptr || queue_len(key) > 0;
  }
  size_t size() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return values_.size(); }
  std::vector<std::string> sorted_keys() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Changes. Each wakes whom it concerns and files an event if the key is watched.
  void set(std::string_view key, std::string_view value) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (record_ != nullptr) [[unlikely]]
      record_set(key);
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
  size_t queue_len(std::string_view key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (queues_.empty()) return 0;
    const auto it = queues_.find(key);
    return it != queues_.end() ? it->second.size() : 0;
  }

  // What an explored run is told. Changes tell by themselves; whoever looks says what at. A look that finds nothing and
  // waits is none: the one that ends the wait is.
  enum class Look : uint8_t {
    kValue,      // what the value is, or that there is none
    kWaited,     // the value, which the operation would have waited for
    kPresence,   // whether there is a value or a queue
    kPresent,    // that there is one, which the operation would have waited for
    kQueue,      // the queue
    kQueueTake,  // as kQueue, and changes it
    kQueueWait,  // as kQueueTake, and the operation would have waited
    kAll,        // which keys there are
  };
  void looked(Look look, std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (record_ != nullptr) [[unlikely]]
      record_look(look, key);
  }

  // Those who wait for one key. `present` is for a value or a queue, `queued` for the next value of the queue: a push wakes
  // one of these.
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
  // Calls the callbacks of filed events. Nothing if another task does so already: that one takes ours along, so the order
  // of events is kept.
  void deliver_events() ABSL_LOCKS_EXCLUDED(mu) {
    if (ever_watched_.load(std::memory_order_relaxed)) [[unlikely]]
      deliver_filed();
  }

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
  struct Event {
    std::shared_ptr<Store::WatchCallback> callback;
    std::optional<std::string> before;
    std::optional<std::string> after;
  };

  void record_set(std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void record_look(Look look, std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  uint64_t object(std::string_view part, std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void wake(std::string_view key, bool queued) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void file_event(std::string_view key, std::optional<std::string_view> after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void deliver_filed() ABSL_LOCKS_EXCLUDED(mu);

  StepRecord* const record_;                 // explored runs only
  uint64_t object_ ABSL_GUARDED_BY(mu) = 0;  // the number of the store
  Map<std::string> values_ ABSL_GUARDED_BY(mu);
  Map<std::deque<std::string>> queues_ ABSL_GUARDED_BY(mu);  // no empty ones
  Map<std::unique_ptr<Waiters>> waiters_ ABSL_GUARDED_BY(mu);
  Map<std::vector<std::shared_ptr<Store::WatchCallback>>> watches_ ABSL_GUARDED_BY(mu);
  std::deque<Event> events_ ABSL_GUARDED_BY(mu);
  bool delivering_ ABSL_GUARDED_BY(mu) = false;
  std::atomic<bool> ever_watched_{false};  // set with `mu` held, so whoever filed an event sees it
};

}  // namespace rankloom::internal

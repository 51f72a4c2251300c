#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rankloom/error.h"
#include "sim/base/task.h"
#include "sim/schedule/step_record.h"
#include "sim/scheduler/call_scope.h"

namespace rankloom {

// Keys or values of one call: `{"a", "b"}`, a vector or a span of strings or views. Holds views, so it must not outlive
// what it was made from.
class StringList {
 public:
  StringList(std::initializer_list<std::string_view> items) : items_(items.begin(), items.end()) {}
  template <typename Container>
  requires requires(const Container& items) { std::string_view(*items.begin()); }
  StringList(const Container& items) {
    items_.reserve(items.size());
    for (const auto& item : items) items_.emplace_back(item);
  }

  size_t size() const { return items_.size(); }
  bool empty() const { return items_.empty(); }
  std::string_view operator[](size_t i) const { return items_[i]; }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

 private:
  absl::InlinedVector<std::string_view, 4> items_;
};

// How a blocking operation waits.
struct StoreWait {
  std::optional<absl::Duration> timeout = {};  // unset: the store's own
  CodeSite code = {};                          // the caller's line, for reports
};

// What the ranks of a job meet through: a map from keys to values, with queues beside it. Acts as torch.distributed's
// TCPStore; docs/stores.md lists what each operation does, and where PyTorch's own stores differ from one another.
// Keys and values are bytes, of any length, NUL and the empty string included.
// Atomicity: each operation takes effect at one instant, multi_set and multi_get included.
// Errors, for every method, thrown as DistError:
//   StoreError  the store cannot do it; the text names store, key, what it has and what it wants. Nothing was changed.
//   Timeout     the key did not come in time; the text names the missing keys.
//   Aborted, RankFailed, ...  the world was aborted meanwhile: its first cause. Or the world that it belongs to has ended.
// Blocking: get, wait, multi_get and queue_pop wait, at most timeout() or, for wait, what the call says. Times are virtual in a
//   deterministic run. The store's own timeout does not keep a stuck job from being reported as a deadlock; one given to
//   the call does. A timeout of zero looks once.
// Scheduling: each call is one scheduling point, before it takes effect.
// Thread-safety: thread-safe.
class Store {
 public:
  // What changed: the value before and after, nullopt where the key was or is absent.
  using WatchCallback =
      absl::AnyInvocable<void(std::optional<std::string_view> before, std::optional<std::string_view> after)>;

  static constexpr absl::Duration kDefaultTimeout = absl::Seconds(300);  // as c10d's

  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  void set(std::string_view key, std::string_view value, CodeSite code = CodeSite::here());

  // The value of `key`; waits for it.
  std::string get(std::string_view key, CodeSite code = CodeSite::here());

  // Adds `amount` to the decimal number at `key` (absent or empty: 0) and returns the sum. The value is kept as text.
  // StoreError: the value is no decimal int64, or the sum is none.
  int64_t add(std::string_view key, int64_t amount, CodeSite code = CodeSite::here());

  // Sets `key` to `desired` if its value is `expected`, or if it is absent and `expected` is empty; then returns `desired`.
  // Otherwise changes nothing and returns the value, or `expected` if the key is absent.
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          CodeSite code = CodeSite::here());

  // Waits until each key has a value or a queue with something in it, all at one instant.
  void wait(const StringList& keys, CodeSite code = CodeSite::here());
  void wait(const StringList& keys, absl::Duration timeout, CodeSite code = CodeSite::here());

  // Whether wait(keys) would return at once.
  bool check(const StringList& keys, CodeSite code = CodeSite::here());

  // False if there was no value. Queues stay.
  bool delete_key(std::string_view key, CodeSite code = CodeSite::here());

  // How many keys have a value; those of the whole store under a PrefixStore, as c10d's.
  int64_t num_keys(CodeSite code = CodeSite::here());

  // Puts `value` behind what `key` has; sets it if absent.
  void append(std::string_view key, std::string_view value, CodeSite code = CodeSite::here());

  // The values of all keys, in their order, as they are at one instant; waits until all have one.
  std::vector<std::string> multi_get(const StringList& keys, CodeSite code = CodeSite::here());

  // Sets keys[i] to values[i], all at one instant. StoreError: the lists differ in length.
  void multi_set(const StringList& keys, const StringList& values, CodeSite code = CodeSite::here());

  // Queues: first in, first out, without bound, in a name space of their own beside the values.
  void queue_push(std::string_view key, std::string_view value, CodeSite code = CodeSite::here());

  // Takes the first value of the queue. Empty: waits, or fails with a StoreError if `block` is false.
  std::string queue_pop(std::string_view key, bool block = true, CodeSite code = CodeSite::here());
  int64_t queue_len(std::string_view key, CodeSite code = CodeSite::here());

  // The keys that have a value, sorted. Under a PrefixStore: its own, without the prefix.
  std::vector<std::string> list_keys(CodeSite code = CodeSite::here());

  // Calls `callback` for each later change of the value at `key`, in the order of the changes, as long as the store
  // lives: on the thread of a rank that changes a key, after the change, with no lock held. It may use the store. What it throws
  // is a failure of the rank that left it here, and an exception of the changing call if that is the same rank.
  // Changes by other processes (FileStore) are seen when this one next uses the store.
  void watch_key(std::string_view key, WatchCallback callback, CodeSite code = CodeSite::here());

  // The store's own timeout, of all ranks that share it. absl::InfiniteDuration() waits for ever. StoreError: negative.
  void set_timeout(absl::Duration timeout, CodeSite code = CodeSite::here());
  absl::Duration timeout(CodeSite code = CodeSite::here()) const;

  // What the methods above do, without scheduling point and exception. Called by them and by wrapping stores only.
  virtual absl::Status set_status(std::string_view key, std::string_view value) = 0;
  virtual absl::StatusOr<std::string> get_status(std::string_view key, const StoreWait& wait) = 0;
  virtual absl::StatusOr<int64_t> add_status(std::string_view key, int64_t amount) = 0;
  virtual absl::StatusOr<std::string> compare_set_status(std::string_view key, std::string_view expected,
                                                         std::string_view desired) = 0;
  virtual absl::Status wait_status(const StringList& keys, const StoreWait& wait) = 0;
  virtual absl::StatusOr<bool> check_status(const StringList& keys) = 0;
  virtual absl::StatusOr<bool> delete_key_status(std::string_view key) = 0;
  virtual absl::StatusOr<int64_t> num_keys_status() = 0;
  virtual absl::Status append_status(std::string_view key, std::string_view value) = 0;
  virtual absl::StatusOr<std::vector<std::string>> multi_get_status(const StringList& keys, const StoreWait& wait) = 0;
  virtual absl::Status multi_set_status(const StringList& keys, const StringList& values) = 0;  // equal lengths
  virtual absl::Status queue_push_status(std::string_view key, std::string_view value) = 0;
  // nullopt: empty, and `block` is false.
  virtual absl::StatusOr<std::optional<std::string>> queue_pop_status(std::string_view key, bool block,
                                                                      const StoreWait& wait) = 0;
  virtual absl::StatusOr<int64_t> queue_len_status(std::string_view key) = 0;
  virtual absl::StatusOr<std::vector<std::string>> list_keys_status() = 0;
  virtual absl::Status watch_key_status(std::string_view key, WatchCallback callback) = 0;
  virtual void set_timeout_now(absl::Duration timeout);  // 0 or more
  virtual absl::Duration timeout_now() const;

  // "HashStore", ...: as error texts name it.
  virtual std::string_view kind() const = 0;

  // The world that the store belongs to; null: none. Whose time a wait takes is the calling task's.
  Scheduler* scheduler() const { return world_.scheduler(); }
  const WorldRef& world_ref() const { return world_; }

 protected:
  explicit Store(Scheduler* scheduler);
  // A wrapping store, which has no timeout of its own. The world may be gone.
  explicit Store(const WorldRef& world);

  // Tells an explored run that the store's own timeout is changed, or decides on a wait.
  void tell_timeout(Access how) const;

 private:
  // `polls`: the caller asks whether something has happened yet.
  void enter(const char* op, std::string_view key, CodeSite code, bool polls = false) const {
    if (world_.known() || Task::current() != nullptr) enter_world(op, key, code, polls);
  }
  void enter_world(const char* op, std::string_view key, CodeSite code, bool polls) const;
  void enter_as_stranger(const char* op) const;
  void check_ok(const absl::Status& status, const char* op) const {
    if (!status.ok()) [[unlikely]]
      fail(status, op);
  }
  template <typename T>
  T value_of(absl::StatusOr<T> result, const char* op) const {
    if (!result.ok()) [[unlikely]]
      fail(result.status(), op);
    return *std::move(result);
  }
  // The one place where a Store throws.
  [[noreturn]] void fail(const absl::Status& status, const char* op) const;

  const WorldRef world_;
  const ObjectName timeout_object_;
  std::atomic<int64_t> timeout_ns_{absl::ToInt64Nanoseconds(kDefaultTimeout)};  // INT64_MAX: for ever
};

// Waits until all `size` ranks have called it with this name. May be used again with the same name, by the same ranks.
// StoreError: rank or size make no sense. Timeout: names the ranks that are missing; the name is then used up.
void store_barrier(Store& store, std::string_view name, int rank, int size, std::optional<absl::Duration> timeout = {},
                   CodeSite code = CodeSite::here());

// Puts `prefix` and a slash before every key of another store, so that several users of that store do not meet. May be
// nested. num_keys() and the timeout are those of the whole store, as c10d's are; list_keys() gives the keys under the
// prefix only, without it.
class PrefixStore final : public Store {
 public:
  // `store` is not null.
  PrefixStore(std::string prefix, std::shared_ptr<Store> store);

  const std::shared_ptr<Store>& underlying() const { return store_; }

  absl::Status set_status(std::string_view key, std::string_view value) override;
  absl::StatusOr<std::string> get_status(std::string_view key, const StoreWait& wait) override;
  absl::StatusOr<int64_t> add_status(std::string_view key, int64_t amount) override;
  absl::StatusOr<std::string> compare_set_status(std::string_view key, std::string_view expected,
                                                 std::string_view desired) override;
  absl::Status wait_status(const StringList& keys, const StoreWait& wait) override;
  absl::StatusOr<bool> check_status(const StringList& keys) override;
  absl::StatusOr<bool> delete_key_status(std::string_view key) override;
  absl::StatusOr<int64_t> num_keys_status() override;
  absl::Status append_status(std::string_view key, std::string_view value) override;
  absl::StatusOr<std::vector<std::string>> multi_get_status(const StringList& keys, const StoreWait& wait) override;
  absl::Status multi_set_status(const StringList& keys, const StringList& values) override;
  absl::Status queue_push_status(std::string_view key, std::string_view value) override;
  absl::StatusOr<std::optional<std::string>> queue_pop_status(std::string_view key, bool block,
                                                              const StoreWait& wait) override;
  absl::StatusOr<int64_t> queue_len_status(std::string_view key) override;
  absl::StatusOr<std::vector<std::string>> list_keys_status() override;
  absl::Status watch_key_status(std::string_view key, WatchCallback callback) override;

  std::string_view kind() const override { return "PrefixStore"; }

 protected:
  void set_timeout_now(absl::Duration timeout) override { store_->set_timeout_now(timeout); }
  absl::Duration timeout_now() const override { return store_->timeout_now(); }

 private:
  std::string join(std::string_view key) const;
  std::vector<std::string> join_all(const StringList& keys) const;

  const std::string prefix_;  // with the slash
  const std::shared_ptr<Store> store_;
};

// Answers everything at once and holds nothing: for a fake world, where one rank stands for all and nobody else would ever
// set a key. PyTorch's FakeStore has the same purpose.
// get and multi_get give empty values, add gives `amount`, compare_set gives `desired`, check gives true, delete_key
// false, counts are 0, list_keys is empty, queue_pop gives an empty value; a watch is never called.
class FakeStore final : public Store {
 public:
  explicit FakeStore(Scheduler* scheduler = nullptr) : Store(scheduler) {}

  absl::Status set_status(std::string_view, std::string_view) override { return absl::OkStatus(); }
  absl::StatusOr<std::string> get_status(std::string_view, const StoreWait&) override { return std::string(); }
  absl::StatusOr<int64_t> add_status(std::string_view, int64_t amount) override { return amount; }
  absl::StatusOr<std::string> compare_set_status(std::string_view, std::string_view,
                                                 std::string_view desired) override {
    return std::string(desired);
  }
  absl::Status wait_status(const StringList&, const StoreWait&) override { return absl::OkStatus(); }
  absl::StatusOr<bool> check_status(const StringList&) override { return true; }
  absl::StatusOr<bool> delete_key_status(std::string_view) override { return false; }
  absl::StatusOr<int64_t> num_keys_status() override { return 0; }
  absl::Status append_status(std::string_view, std::string_view) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<std::string>> multi_get_status(const StringList& keys, const StoreWait&) override {
    return std::vector<std::string>(keys.size());
  }
  absl::Status multi_set_status(const StringList&, const StringList&) override { return absl::OkStatus(); }
  absl::Status queue_push_status(std::string_view, std::string_view) override { return absl::OkStatus(); }
  absl::StatusOr<std::optional<std::string>> queue_pop_status(std::string_view, bool, const StoreWait&) override {
    return std::optional<std::string>(std::string());
  }
  absl::StatusOr<int64_t> queue_len_status(std::string_view) override { return 0; }
  absl::StatusOr<std::vector<std::string>> list_keys_status() override { return std::vector<std::string>(); }
  absl::Status watch_key_status(std::string_view, WatchCallback) override { return absl::OkStatus(); }

  std::string_view kind() const override { return "FakeStore"; }
};

}  // namespace rankloom

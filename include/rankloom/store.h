#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "rankloom/error.h"

namespace rankloom {

namespace internal {
class FileLog;
class Scheduler;
struct StoreAccess;
struct StoreBarrier;
class StoreState;
class TableStore;
}  // namespace internal

namespace internal {

// Keys or values of one call: `{"a", "b"}`, a vector or a span of strings or views. Holds views, so it must not outlive
// what it was made from. Up to four are held without an allocation.
class StringList {
 public:
  StringList(std::initializer_list<std::string_view> items);
  template <typename Container>
  requires requires(const Container& items) { std::string_view(*items.begin()); }
  StringList(const Container& items) { assign(items); }

  const std::string_view* data() const { return size_ <= kFew ? few_ : many_.data(); }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::string_view operator[](size_t i) const { return data()[i]; }
  const std::string_view* begin() const { return data(); }
  const std::string_view* end() const { return data() + size_; }

 private:
  static constexpr size_t kFew = 4;

  template <typename Container>
  void assign(const Container& items) {
    size_ = items.size();
    std::string_view* next = size_ > kFew ? room_for_many() : few_;
    for (const auto& item : items) *next++ = std::string_view(item);
  }

  // size_ views, in many_.
  std::string_view* room_for_many();

  size_t size_ = 0;
  std::string_view few_[kFew];
  std::vector<std::string_view> many_;  // empty if there are few
};

}  // namespace internal

class Store;

namespace internal {

// The notes of the library on a call on its way.
struct StoreWay {
  const StoreBarrier* barrier = nullptr;  // whose wait this is, for reports; null: of no store_barrier()
  // The store at whose method the caller came to a scheduling point, with nothing done since. A call that comes to the
  // keys in another way (a store of a user's own between, or execute() itself) comes to one of its own before it waits.
  const Store* at_point = nullptr;
};

}  // namespace internal

// One call of a store, as data: what the methods of Store build and Store::execute() carries out. Cheap to copy. Holds
// views, which are good until execute() returns.
struct StoreCall {
  // Every operation that a store carries out. The methods of Store say what each does.
  enum class Op : uint8_t {
    kSet,
    kGet,
    kAdd,
    kCompareSet,
    kWait,
    kCheck,
    kDeleteKey,
    kNumKeys,
    kAppend,
    kMultiGet,
    kMultiSet,
    kQueuePush,
    kQueuePop,
    kQueueLen,
    kListKeys,
    kWatchKey,  // stays the last
  };

  // The change: the value before and after, nullopt where the key was or is absent.
  using WatchCallback =
      internal::Callback<void(std::optional<std::string_view> before, std::optional<std::string_view> after)>;

  Op op = Op::kGet;
  // None: num_keys, list_keys. Any number: wait, check, multi_get, multi_set. All others: one.
  absl::Span<const std::string_view> keys = {};
  // One: set, append, queue_push, compare_set, whose value is the desired one. multi_set: one for each key.
  absl::Span<const std::string_view> values = {};
  std::string_view expected = {};              // compare_set
  int64_t amount = 0;                          // add
  bool block = true;                           // queue_pop
  std::optional<absl::Duration> timeout = {};  // if it waits, 0 or more; unset: the store's own
  CodeSite code = {};                          // the caller's line, for reports
  WatchCallback* watch = nullptr;              // watch_key: to be moved from
  internal::StoreWay way = {};                 // the library's own: who passes a call on leaves it as it is

  std::string_view key() const { return keys.empty() ? std::string_view() : keys[0]; }
  std::string_view value() const { return values.empty() ? std::string_view() : values[0]; }
  const char* name() const;  // "store get", ...: as Fault::op (but for watch_key) and DistError::op() have it
  bool waits() const;        // may block until something is there
  bool writes() const;       // may change keys, values or queues
};

// The reply to a call. Members that the operation has no use for stay as they are.
struct StoreReply {
  std::string value = {};                // get, compare_set, queue_pop
  std::vector<std::string> values = {};  // multi_get: one for each key; list_keys: the keys, sorted
  int64_t number = 0;                    // add: the sum; num_keys, queue_len: the count
  bool found = false;                    // check: all keys; delete_key: a value; queue_pop: a value, false if empty
};

// The meeting place of the ranks: a map from keys to values, with queues beside it. Acts as torch.distributed's
// TCPStore; docs/stores.md lists what each operation does, and where PyTorch's own stores differ from one another.
//
//   rank.store().set("address", "here");
//   std::string where = rank.store().get("address");      // waits for the key
//   rank.store().wait({"a", "b"}, absl::Seconds(5));      // a timeout of its own
//   int64_t came = rank.store().add("arrivals", 1);
//   store_barrier(rank.store(), "epoch", rank.rank(), rank.world_size());
//
// Keys and values are bytes, of any length, NUL and the empty string included. A store holds what one job needs to
// meet: no key ever expires, and nothing but a FileStore outlives its object.
// Atomicity: each operation takes effect at one instant, multi_set and multi_get included.
// Errors, for every method, thrown as DistError:
//   StoreError  the store cannot do it; the text names store, key, what it has and what it wants. Nothing was changed.
//   Timeout     the key did not come in time; the text names the missing keys.
//   Aborted, RankFailed, ...  the world was aborted meanwhile: its first cause. Or the store's world has ended.
// Blocking: get, wait, multi_get and queue_pop wait, at most timeout() or, for wait, what the call says. Times are
//   virtual in a deterministic run. The store's own timeout does not keep a stuck job from being reported as a
//   deadlock; one given to the call does. A timeout of zero looks once.
// Scheduling: each call is one scheduling point, before it takes effect.
// Thread-safety: thread-safe.
//
// A store of your own supplies execute() and kind(). One that wraps another changes what it wants to and passes the
// rest on:
//
//   class SlowStore final : public Store {
//    public:
//     explicit SlowStore(std::shared_ptr<Store> store) : Store(store.get()), store_(std::move(store)) {}
//     absl::StatusOr<StoreReply> execute(const StoreCall& call) override {
//       RankContext* const rank = RankContext::current();  // null: a thread of no rank, or the end of the run
//       if (rank != nullptr && call.writes()) rank->sleep_for(absl::Milliseconds(10));
//       return store_->execute(call);
//     }
//     std::string_view kind() const override { return "SlowStore"; }
//     ...
class Store {
 public:
  using WatchCallback = StoreCall::WatchCallback;

  virtual ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  void set(std::string_view key, std::string_view value, CodeSite code = CodeSite::here());

  // The value of `key`; waits for it.
  std::string get(std::string_view key, CodeSite code = CodeSite::here());

  // Adds `amount` to the decimal number at `key` (absent or empty: 0) and returns the sum. The value is kept as text.
  // StoreError: the value is no decimal int64, or the sum is none.
  int64_t add(std::string_view key, int64_t amount, CodeSite code = CodeSite::here());

  // Sets `key` to `desired` if its value is `expected`, or if it is absent and `expected` is empty; then returns
  // `desired`. Otherwise changes nothing and returns the value, or `expected` if the key is absent.
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          CodeSite code = CodeSite::here());

  // Waits until each key has a value or a queue with something in it, all at one instant.
  void wait(const internal::StringList& keys, CodeSite code = CodeSite::here());
  void wait(const internal::StringList& keys, absl::Duration timeout, CodeSite code = CodeSite::here());

  // Whether wait(keys) would return at once.
  bool check(const internal::StringList& keys, CodeSite code = CodeSite::here());

  // False if there was no value. Queues stay.
  bool delete_key(std::string_view key, CodeSite code = CodeSite::here());

  // How many keys have a value; those of the whole store under a PrefixStore, as c10d's.
  int64_t num_keys(CodeSite code = CodeSite::here());

  // Puts `value` behind what `key` has; sets it if absent.
  void append(std::string_view key, std::string_view value, CodeSite code = CodeSite::here());

  // The values of all keys, in their order, as they are at one instant; waits until all have one.
  std::vector<std::string> multi_get(const internal::StringList& keys, CodeSite code = CodeSite::here());

  // Sets keys[i] to values[i], all at one instant. StoreError: the lists differ in length.
  void multi_set(const internal::StringList& keys, const internal::StringList& values,
                 CodeSite code = CodeSite::here());

  // Queues: first in, first out, without bound, in a name space of their own beside the values.
  void queue_push(std::string_view key, std::string_view value, CodeSite code = CodeSite::here());

  // Takes the first value of the queue. Empty: waits, or fails with a StoreError if `block` is false.
  std::string queue_pop(std::string_view key, bool block = true, CodeSite code = CodeSite::here());
  int64_t queue_len(std::string_view key, CodeSite code = CodeSite::here());

  // The keys that have a value, sorted. Under a PrefixStore: its own, without the prefix.
  std::vector<std::string> list_keys(CodeSite code = CodeSite::here());

  // Calls `callback` for each later change of the value at `key`, in the order of the changes, as long as the store
  // lives: after the change, without a lock, on the thread of the rank that makes it; while one calls back, others
  // leave theirs to it and go on. It may use the store. Its exception is a failure of the rank that left it here, and
  // of the changing call if that is of the same rank. Other processes' changes (FileStore) are seen in later calls.
  void watch_key(std::string_view key, WatchCallback callback, CodeSite code = CodeSite::here());

  // The store's own timeout, of all ranks that share it: 300 s at first, as c10d's, and for a world's store the
  // world's. absl::InfiniteDuration() waits for ever. StoreError: negative.
  void set_timeout(absl::Duration timeout, CodeSite code = CodeSite::here());
  absl::Duration timeout(CodeSite code = CodeSite::here()) const;

  // Carries the call out, in any thread that may use the store, and returns what fails. The methods above have come to
  // their scheduling point and checked what all stores would refuse, and throw the error that this returns.
  virtual absl::StatusOr<StoreReply> execute(const StoreCall& call) = 0;

  // "HashStore", ...: as error texts name it.
  virtual std::string_view kind() const = 0;

 protected:
  // Null: of no world, for tasks of any and threads of none.
  explicit Store(internal::Scheduler* scheduler = nullptr);
  // A store that wraps another, not null: it has that one's world, and shares its timeout.
  explicit Store(const Store* wrapped, CodeSite code = CodeSite::here());

  // timeout() without its scheduling point, for execute().
  absl::Duration own_timeout() const;

 private:
  friend struct internal::StoreAccess;

  // The way of every call: point, check, execute. The result is ok.
  absl::StatusOr<StoreReply> submit(StoreCall&& call);
  // `polls`: the caller asks whether something has happened yet.
  void enter(const char* op, std::string_view key, CodeSite code, bool polls) const;
  void enter_from_elsewhere(const char* op, CodeSite code) const;
  void check_arguments(const StoreCall& call) const;
  // Throws the error of a call, after the name of the operation.
  [[noreturn]] void fail(const absl::Status& status, const char* op) const;

  const std::shared_ptr<internal::StoreState> state_;  // the same for a store and all that wrap it
};

// Waits until all `size` ranks have called it with this name. May be used again with the same name, by the same ranks.
// StoreError: rank or size make no sense. InvalidArgument: the rank has come to this round already, so two callers give
// the same one. Timeout: names the ranks that are missing. After either of these the name is used up.
void store_barrier(Store& store, std::string_view name, int rank, int size, std::optional<absl::Duration> timeout = {},
                   CodeSite code = CodeSite::here());

// A store in memory, for the ranks of one process: what TCPStore is to a job of several. A world's own store is one.
//
//   auto store = std::make_shared<HashStore>();      // threads of no world meet through it, too
//   std::thread other([&] { store->set("key", "value"); });
//   store->get("key");
//
// Errors, blocking, thread-safety: see Store.
class HashStore final : public Store {
 public:
  // Without a scheduler the store belongs to no world: threads block by real time, and nothing reports them as stuck.
  explicit HashStore(internal::Scheduler* scheduler = nullptr);
  ~HashStore() override;

  absl::StatusOr<StoreReply> execute(const StoreCall& call) override;
  std::string_view kind() const override { return "HashStore"; }

 private:
  friend struct internal::StoreAccess;
  const internal::Owned<internal::TableStore> table_;
};

// A store in a file, for ranks of several processes on one machine, or for values that outlive a job.
//
//   auto store = FileStore::open("build/meeting_point");      // each process opens it
//   store->set("rank 3 listens at", address);
//   store->get("rank 0 listens at");                          // waits for another process
//   store_barrier(*store, "all here", rank, size);
//
// Each operation is in the file when it returns, where all its readers see it; the death of any process, by kill
// -9 too, loses nothing that was acknowledged. The death of the machine may: nothing is synced to the disk.
// Only on file systems with fcntl locks. The file is made if there is none, is never removed, and only grows.
// StoreError, besides what Store says: the file cannot be opened, read, locked or written (a full disk: the operation
// changed nothing), is damaged, was removed or cut, or is no store.
// A write to a file of RLIMIT_FSIZE bytes raises SIGXFSZ; a process that ignores the signal gets the StoreError.
// After fork() both processes may use the store, if nobody was in a call meanwhile.
// Thread-safety: thread-safe, as every Store.
class FileStore final : public Store {
 public:
  struct Options {
    internal::Scheduler* scheduler = nullptr;  // null: no world
    // Other processes, or other FileStores of this one, write the file. Then a wait takes real time, with real
    // timeouts, and counts as able to end: nobody here knows what they will do. If false, only this object changes the
    // file: waits are in the world's time and a stuck job is a deadlock, as with a HashStore.
    bool shared = true;
  };

  // Throws DistError, as the operations do.
  static std::shared_ptr<FileStore> open(std::string path) { return open(std::move(path), Options()); }
  static std::shared_ptr<FileStore> open(std::string path, const Options& options);
  ~FileStore() override;

  absl::StatusOr<StoreReply> execute(const StoreCall& call) override;
  std::string_view kind() const override { return "FileStore"; }

 private:
  FileStore(const Options& options, std::unique_ptr<internal::FileLog> log);

  const internal::Owned<internal::TableStore> table_;
};

// Puts `prefix` and a slash before every key of another store, so that several users of that store do not meet. May be
// nested.
//
//   PrefixStore mine("group 3", store);
//   mine.set("address", "here");       // store has "group 3/address"
//   mine.list_keys();                  // {"address"}
//
// num_keys() and the timeout are those of the whole store, as c10d's are; list_keys() gives the keys under the prefix
// only, without it. Errors name keys with the prefix. Blocking, thread-safety: see Store.
class PrefixStore final : public Store {
 public:
  // `store` is not null.
  PrefixStore(std::string prefix, std::shared_ptr<Store> store, CodeSite code = CodeSite::here());

  const std::shared_ptr<Store>& underlying() const { return store_; }

  absl::StatusOr<StoreReply> execute(const StoreCall& call) override;
  std::string_view kind() const override { return "PrefixStore"; }

 private:
  const std::string prefix_;  // with the slash
  const std::shared_ptr<Store> store_;
};

// Answers everything at once and holds nothing: for a fake world, where one rank stands for all and nobody else would
// ever set a key. PyTorch's FakeStore has the same purpose.
//
//   FakeStore store;
//   store.get("never set");        // "", at once
//   store.add("arrivals", 1);      // 1
//   store.check({"never set"});    // true
//
// get and multi_get give empty values, add gives `amount`, compare_set gives `desired`, check gives true, delete_key
// false, counts are 0, list_keys is empty, queue_pop gives an empty value; a watch is never called.
// Errors: none but those of every Store's arguments. Thread-safety: thread-safe.
class FakeStore final : public Store {
 public:
  explicit FakeStore(internal::Scheduler* scheduler = nullptr) : Store(scheduler) {}

  absl::StatusOr<StoreReply> execute(const StoreCall& call) override;
  std::string_view kind() const override { return "FakeStore"; }
};

}  // namespace rankloom

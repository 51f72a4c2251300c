#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "fake_store/file_log.h"
#include "fake_store/file_poller.h"
#include "fake_store/key_table.h"
#include "fake_store/store_state.h"
#include "rankloom/store.h"
#include "sim/base/kept_memory.h"
#include "sim/base/task.h"

namespace rankloom::internal {

// The operations of HashStore and FileStore, over a table in memory.
class TableStore : public Kept {
 public:
  // `kind`, which lives as long as the process, names the store in texts; `state` is the store's. With a log, every
  // change is written to it before it is made in the table. `shared`: others write the log too.
  TableStore(const char* kind, Scheduler* scheduler, const StoreState& state, std::unique_ptr<FileLog> log = nullptr,
             bool shared = false);
  ~TableStore();
  TableStore(const TableStore&) = delete;
  TableStore& operator=(const TableStore&) = delete;

  // `store`: whose table this is.
  absl::StatusOr<StoreReply> execute(const StoreCall& call, const Store& store);
  // KeyTable::release_watches().
  bool release_watches() { return table_.release_watches(); }

 private:
  class Hold;

  using Want = KeyTable::Want;
  using Reply = absl::StatusOr<StoreReply>;

  Reply carry_out(const StoreCall& call);
  Reply set(const StoreCall& call);
  Reply get(const StoreCall& call);
  Reply add(const StoreCall& call);
  Reply compare_set(const StoreCall& call);
  Reply wait(const StoreCall& call);
  Reply check(const StoreCall& call);
  Reply delete_key(const StoreCall& call);
  Reply num_keys(const StoreCall& call);
  Reply append(const StoreCall& call);
  Reply multi_get(const StoreCall& call);
  Reply multi_set(const StoreCall& call);
  Reply queue_push(const StoreCall& call);
  Reply queue_pop(const StoreCall& call);
  Reply queue_len(const StoreCall& call);
  Reply list_keys(const StoreCall& call);
  Reply watch_key(const StoreCall& call);

  Reply pop_locked(const StoreCall& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu);

  // Brings the table up to date with the log.
  absl::Status refresh() ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu);
  std::vector<std::string_view> missing_keys(const StoreCall& call, Want want) ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu);
  // Until all keys of the call are there at one instant; the mutex is held again when it returns. `deadline` is set by
  // the first wait of a call and kept for its further ones.
  absl::Status await(const StoreCall& call, Want want, std::optional<Deadline>* deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu);
  // Whether the store is one of a world that is over. Asked without the mutex, which is held before and after.
  bool world_has_ended() ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu);
  // The same of the cause of its abort; OK: none.
  absl::Status abort_cause_of_world() ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu);
  // One wait of await(), for the first of the missing keys.
  absl::Status await_table(RankCondVar* changed, const std::vector<std::string_view>& missing, Want want,
                           const Site& site, Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu);
  // Calls the watches of what other processes wrote, which may set an awaited key, unless another task does. Whether
  // there were any.
  bool deliver_in_wait() ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu);
  // One wait of await(), for a key that other processes may write, or a call of watches: at most until monotonic
  // `deadline_ns`.
  absl::Status await_log(RankCondVar* changed, std::string_view key, Want want, const Site& site, int64_t deadline_ns)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu);

  CalledHandle called(const StoreCall& call) const;
  // CallScope::check_wait(), without the lock.
  void check_wait(const StoreCall& call);
  // `HashStore get`, and with it `key "a"`.
  std::string who(const StoreCall& call) const;
  std::string who(const StoreCall& call, std::string_view key) const;
  // A failure of the log, with the caller that met it.
  absl::Status explain(const StoreCall& call, const absl::Status& status) const;
  absl::Status explain(const StoreCall& call, std::string_view key, const absl::Status& status) const;

  const char* const kind_;
  const StoreState& state_;
  KeyTable table_;
  const std::unique_ptr<FileLog> log_ ABSL_PT_GUARDED_BY(table_.mu);
  const bool shared_;
  std::unique_ptr<FilePoller> poller_ ABSL_GUARDED_BY(table_.mu);  // made by the first wait
};

}  // namespace rankloom::internal

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "fake_store/file_log.h"
#include "fake_store/file_poller.h"
#include "fake_store/key_table.h"
#include "rankloom/store.h"
#include "sim/base/task.h"

namespace rankloom::internal {

// The operations of HashStore and FileStore, over a table in memory.
class TableStore : public Store {
 public:
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

 protected:
  // With a log, every change is written to it before it is made in the table. `shared`: others write the log too.
  explicit TableStore(Scheduler* scheduler, std::unique_ptr<FileLog> log = nullptr, bool shared = false);
  ~TableStore() override;

 private:
  class Hold;

  using Want = KeyTable::Want;

  absl::StatusOr<int64_t> add_locked(std::string_view key, int64_t amount) ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu);
  absl::StatusOr<std::string> compare_set_locked(std::string_view key, std::string_view expected,
                                                 std::string_view desired) ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu);
  absl::StatusOr<std::optional<std::string>> pop_locked(std::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu);

  // Brings the table up to date with the log.
  absl::Status refresh() ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu);
  // Until all keys are there at one instant; the mutex is held again when it returns. `op` is "store get", ...
  // `deadline` is set by the first wait of an operation and kept for its further ones.
  absl::Status await(const char* op, const StringList& keys, Want want, const StoreWait& wait,
                     std::optional<Deadline>* deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu);
  // One part of it: for a key that others may write to the log, until the monotonic clock passes `deadline_ns`.
  absl::Status await_log(RankCondVar* changed, std::string_view key, Want want, const Site& site, int64_t deadline_ns)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu);

  // `HashStore get key "a"`.
  std::string who(const char* op, std::string_view key) const;
  // A failure of the log, with who met it.
  absl::Status explain(const char* op, std::string_view key, const absl::Status& status) const;
  absl::Status explain(const char* op, const absl::Status& status) const;

  KeyTable table_;
  const std::unique_ptr<FileLog> log_ ABSL_PT_GUARDED_BY(table_.mu);
  const bool shared_;
  std::unique_ptr<FilePoller> poller_ ABSL_GUARDED_BY(table_.mu);  // made by the first wait
};

}  // namespace rankloom::internal

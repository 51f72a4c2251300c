#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "fake_store/key_table.h"
#include "fake_store/store.h"
#include "sim/task.h"

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
  explicit TableStore(Scheduler* scheduler) : Store(scheduler), table_(scheduler) {}

 private:
  // What a wait is for. kValue: a value. kPresent: a value or a queue that is not empty. kQueued: such a queue.
  enum class Want { kValue, kPresent, kQueued };

  bool has(std::string_view key, Want want) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu);
  // Until all keys are there at one instant; the mutex is held again when it returns. `op` is "store get", ...
  absl::Status await(const char* op, const StringList& keys, Want want, const StoreWait& wait)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu);
  std::string who(const char* op, std::string_view key) const;

  KeyTable table_;
};

}  // namespace rankloom::internal

#pragma once

#include <memory>
#include <string>

#include "fake_store/store.h"

namespace rankloom {

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

}  // namespace rankloom

#pragma once

#include <memory>

#include "rankloom/faults.h"
#include "rankloom/store.h"

namespace rankloom {

// Another store, whose operations go wrong as a plan says. Faults name them "store set", "store get", ...
class FaultStore final : public Store {
 public:
  // `store` and `injector` are not null; `injector` outlives this.
  FaultStore(std::unique_ptr<Store> store, FaultInjector* injector);
  ~FaultStore() override;

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

  std::string_view kind() const override { return store_->kind(); }

 protected:
  void set_timeout_now(absl::Duration timeout) override { store_->set_timeout_now(timeout); }
  absl::Duration timeout_now() const override { return store_->timeout_now(); }

 private:
  // `operation`, with what goes wrong before and after it.
  template <typename Operation>
  auto with_faults(const char* op, CodeSite code, Operation operation) -> decltype(operation());

  const std::unique_ptr<Store> store_;
  FaultInjector* const injector_;
};

}  // namespace rankloom

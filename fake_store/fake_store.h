#pragma once

#include "fake_store/store.h"

namespace rankloom {

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

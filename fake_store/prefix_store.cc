#include <utility>

#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "rankloom/store.h"
#include "sim/base/text.h"

namespace rankloom {

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> store)
    : Store(store->world_ref()), prefix_(std::move(prefix) + "/"), store_(std::move(store)) {}

std::string PrefixStore::join(std::string_view key) const { return absl::StrCat(prefix_, sv(key)); }

std::vector<std::string> PrefixStore::join_all(const StringList& keys) const {
  std::vector<std::string> joined;
  joined.reserve(keys.size());
  for (std::string_view key : keys) joined.push_back(join(key));
  return joined;
}

absl::Status PrefixStore::set_status(std::string_view key, std::string_view value) {
  return store_->set_status(join(key), value);
}

absl::StatusOr<std::string> PrefixStore::get_status(std::string_view key, const StoreWait& wait) {
  return store_->get_status(join(key), wait);
}

absl::StatusOr<int64_t> PrefixStore::add_status(std::string_view key, int64_t amount) {
  return store_->add_status(join(key), amount);
}

absl::StatusOr<std::string> PrefixStore::compare_set_status(std::string_view key, std::string_view expected,
                                                            std::string_view desired) {
  return store_->compare_set_status(join(key), expected, desired);
}

absl::Status PrefixStore::wait_status(const StringList& keys, const StoreWait& wait) {
  return store_->wait_status(join_all(keys), wait);
}

absl::StatusOr<bool> PrefixStore::check_status(const StringList& keys) { return store_->check_status(join_all(keys)); }

absl::StatusOr<bool> PrefixStore::delete_key_status(std::string_view key) {
  return store_->delete_key_status(join(key));
}

absl::StatusOr<int64_t> PrefixStore::num_keys_status() { return store_->num_keys_status(); }

absl::Status PrefixStore::append_status(std::string_view key, std::string_view value) {
  return store_->append_status(join(key), value);
}

absl::StatusOr<std::vector<std::string>> PrefixStore::multi_get_status(const StringList& keys, const StoreWait& wait) {
  return store_->multi_get_status(join_all(keys), wait);
}

absl::Status PrefixStore::multi_set_status(const StringList& keys, const StringList& values) {
  return store_->multi_set_status(join_all(keys), values);
}

absl::Status PrefixStore::queue_push_status(std::string_view key, std::string_view value) {
  return store_->queue_push_status(join(key), value);
}

absl::StatusOr<std::optional<std::string>> PrefixStore::queue_pop_status(std::string_view key, bool block,
                                                                         const StoreWait& wait) {
  return store_->queue_pop_status(join(key), block, wait);
}

absl::StatusOr<int64_t> PrefixStore::queue_len_status(std::string_view key) {
  return store_->queue_len_status(join(key));
}

absl::StatusOr<std::vector<std::string>> PrefixStore::list_keys_status() {
  absl::StatusOr<std::vector<std::string>> all = store_->list_keys_status();
  if (!all.ok()) return all;
  std::vector<std::string> own;
  for (const std::string& key : *all) {
    if (key.starts_with(prefix_)) own.push_back(key.substr(prefix_.size()));
  }
  return own;  // still sorted: all had the same start
}

absl::Status PrefixStore::watch_key_status(std::string_view key, WatchCallback callback) {
  return store_->watch_key_status(join(key), std::move(callback));
}

}  // namespace rankloom

#include "fake_store/fault_store.h"

#include <utility>

#include "sim/scheduler/scheduler.h"

namespace rankloom {

FaultStore::FaultStore(std::unique_ptr<Store> store, FaultInjector* injector)
    : Store(store->world_ref()), store_(std::move(store)), injector_(injector) {}

FaultStore::~FaultStore() = default;

template <typename Operation>
auto FaultStore::with_faults(const char* op, CodeSite code, Operation operation) -> decltype(operation()) {
  const Task* const task = Task::current();
  if (task == nullptr || task->info.rank < 0) return operation();
  const FaultInjector::Call call{.rank = task->info.rank, .group = {}, .op = op};
  const std::vector<Fault> faults = injector_->at(call);
  // A store's operation takes effect at one instant: there is no inside.
  for (const Fault& fault : faults) {
    if (fault.when == Fault::When::kAfter) continue;
    if (absl::Status acted = injector_->act(fault, call, code); !acted.ok()) return acted;
  }
  auto result = operation();
  for (const Fault& fault : faults) {
    if (fault.when != Fault::When::kAfter) continue;
    if (absl::Status acted = injector_->act(fault, call, code); !acted.ok()) return acted;
  }
  return result;
}

absl::Status FaultStore::set_status(std::string_view key, std::string_view value) {
  return with_faults("store set", {}, [&] { return store_->set_status(key, value); });
}

absl::StatusOr<std::string> FaultStore::get_status(std::string_view key, const StoreWait& wait) {
  return with_faults("store get", wait.code, [&] { return store_->get_status(key, wait); });
}

absl::StatusOr<int64_t> FaultStore::add_status(std::string_view key, int64_t amount) {
  return with_faults("store add", {}, [&] { return store_->add_status(key, amount); });
}

absl::StatusOr<std::string> FaultStore::compare_set_status(std::string_view key, std::string_view expected,
                                                           std::string_view desired) {
  return with_faults("store compare_set", {}, [&] { return store_->compare_set_status(key, expected, desired); });
}

absl::Status FaultStore::wait_status(const StringList& keys, const StoreWait& wait) {
  return with_faults("store wait", wait.code, [&] { return store_->wait_status(keys, wait); });
}

absl::StatusOr<bool> FaultStore::check_status(const StringList& keys) {
  return with_faults("store check", {}, [&] { return store_->check_status(keys); });
}

absl::StatusOr<bool> FaultStore::delete_key_status(std::string_view key) {
  return with_faults("store delete_key", {}, [&] { return store_->delete_key_status(key); });
}

absl::StatusOr<int64_t> FaultStore::num_keys_status() {
  return with_faults("store num_keys", {}, [&] { return store_->num_keys_status(); });
}

absl::Status FaultStore::append_status(std::string_view key, std::string_view value) {
  return with_faults("store append", {}, [&] { return store_->append_status(key, value); });
}

absl::StatusOr<std::vector<std::string>> FaultStore::multi_get_status(const StringList& keys, const StoreWait& wait) {
  return with_faults("store multi_get", wait.code, [&] { return store_->multi_get_status(keys, wait); });
}

absl::Status FaultStore::multi_set_status(const StringList& keys, const StringList& values) {
  return with_faults("store multi_set", {}, [&] { return store_->multi_set_status(keys, values); });
}

absl::Status FaultStore::queue_push_status(std::string_view key, std::string_view value) {
  return with_faults("store queue_push", {}, [&] { return store_->queue_push_status(key, value); });
}

absl::StatusOr<std::optional<std::string>> FaultStore::queue_pop_status(std::string_view key, bool block,
                                                                        const StoreWait& wait) {
  return with_faults("store queue_pop", wait.code, [&] { return store_->queue_pop_status(key, block, wait); });
}

absl::StatusOr<int64_t> FaultStore::queue_len_status(std::string_view key) {
  return with_faults("store queue_len", {}, [&] { return store_->queue_len_status(key); });
}

absl::StatusOr<std::vector<std::string>> FaultStore::list_keys_status() {
  return with_faults("store list_keys", {}, [&] { return store_->list_keys_status(); });
}

absl::Status FaultStore::watch_key_status(std::string_view key, WatchCallback callback) {
  return store_->watch_key_status(key, std::move(callback));
}

}  // namespace rankloom

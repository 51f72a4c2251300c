#include "bridge/torch/torch_store.h"

#include "bridge/torch/job.h"
#include "bridge/torch/python_frames.h"
#include "fake_store/store_state.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::bridge {

using namespace internal;

namespace {

std::string_view view(const std::vector<uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::vector<uint8_t> bytes(std::string_view text) { return {text.begin(), text.end()}; }

}  // namespace

template <typename Call>
auto TorchStore::call(const Call& body) {
  const GilRelease no_gil;
  const CodeSite code = python_site();
  int rank = -1;
  const std::shared_ptr<Job> job = Job::acting(&rank);  // a callback's, too
  try {
    if constexpr (std::is_void_v<decltype(body(code))>) {
      body(code);
      if (job != nullptr) job->after_call(rank);
    } else {
      auto result = body(code);
      if (job != nullptr) job->after_call(rank);
      return result;
    }
  } catch (...) {
    rethrow_to_torch(job.get(), rank, code);
  }
}

void TorchStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  call([&](CodeSite code) { store_->set(key, view(value), code); });
}

std::vector<uint8_t> TorchStore::compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                            const std::vector<uint8_t>& desired) {
  return call([&](CodeSite code) { return bytes(store_->compare_set(key, view(expected), view(desired), code)); });
}

std::vector<uint8_t> TorchStore::get(const std::string& key) {
  return call([&](CodeSite code) { return bytes(store_->get(key, code)); });
}

int64_t TorchStore::add(const std::string& key, int64_t value) {
  return call([&](CodeSite code) { return store_->add(key, value, code); });
}

bool TorchStore::deleteKey(const std::string& key) {
  return call([&](CodeSite code) { return store_->delete_key(key, code); });
}

bool TorchStore::check(const std::vector<std::string>& keys) {
  return call([&](CodeSite code) { return store_->check(keys, code); });
}

int64_t TorchStore::getNumKeys() {
  return call([&](CodeSite code) { return store_->num_keys(code); });
}

void TorchStore::wait(const std::vector<std::string>& keys) {
  call([&](CodeSite code) { store_->wait(keys, code); });
}

void TorchStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  // c10d's own callers pass the store's timeout on: that is no wish of this call.
  if (timeout == getTimeout()) return wait(keys);
  call([&](CodeSite code) { store_->wait(keys, absl::FromChrono(timeout), code); });
}

void TorchStore::setTimeout(const std::chrono::milliseconds& timeout) {
  c10d::Store::setTimeout(timeout);
  internal::StoreAccess::state(*store_).set_timeout(absl::FromChrono(timeout));
}

void TorchStore::append(const std::string& key, const std::vector<uint8_t>& value) {
  call([&](CodeSite code) { store_->append(key, view(value), code); });
}

std::vector<std::vector<uint8_t>> TorchStore::multiGet(const std::vector<std::string>& keys) {
  return call([&](CodeSite code) {
    std::vector<std::vector<uint8_t>> values;
    for (const std::string& value : store_->multi_get(keys, code)) values.push_back(bytes(value));
    return values;
  });
}

void TorchStore::multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) {
  call([&](CodeSite code) {
    std::vector<std::string_view> views;
    for (const std::vector<uint8_t>& value : values) views.push_back(view(value));
    store_->multi_set(keys, views, code);
  });
}

void TorchStore::queuePush(const std::string& key, const std::vector<uint8_t>& value) {
  call([&](CodeSite code) { store_->queue_push(key, view(value), code); });
}

std::vector<uint8_t> TorchStore::queuePop(const std::string& key, bool block) {
  return call([&](CodeSite code) { return bytes(store_->queue_pop(key, block, code)); });
}

int64_t TorchStore::queueLen(const std::string& key) {
  return call([&](CodeSite code) { return store_->queue_len(key, code); });
}

std::vector<std::string> TorchStore::listKeys() {
  return call([&](CodeSite code) { return store_->list_keys(code); });
}

}  // namespace rankloom::bridge

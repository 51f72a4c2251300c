#include "fake_store/key_table.h"

#include <algorithm>
#include <utility>

namespace rankloom::internal {

std::vector<std::string> KeyTable::sorted_keys() const {
  std::vector<std::string> keys;
  keys.reserve(values_.size());
  for (const auto& [key, value] : values_) keys.push_back(key);
  std::sort(keys.begin(), keys.end());
  return keys;
}

void KeyTable::set(std::string_view key, std::string&& value) {
  if (!watches_.empty()) file_event(key, value);
  const auto [it, added] = values_.try_emplace(key);
  it->second = std::move(value);
  if (added && !waiters_.empty()) wake(key, /*queued=*/false);
}

void KeyTable::append(std::string_view key, std::string_view value) {
  const auto it = values_.find(key);
  if (it == values_.end()) return set(key, value);
  if (!watches_.empty()) {
    std::string after = it->second;
    after += value;
    file_event(key, after);
  }
  it->second += value;
}

bool KeyTable::erase(std::string_view key) {
  const auto it = values_.find(key);
  if (it == values_.end()) return false;
  if (!watches_.empty()) file_event(key, std::nullopt);
  values_.erase(it);
  return true;
}

void KeyTable::push(std::string_view key, std::string_view value) {
  queues_.try_emplace(key).first->second.emplace_back(value);
  if (!waiters_.empty()) wake(key, /*queued=*/true);
}

std::optional<std::string> KeyTable::pop(std::string_view key) {
  const auto it = queues_.find(key);
  if (it == queues_.end()) return std::nullopt;
  std::optional<std::string> value = std::move(it->second.front());
  it->second.pop_front();
  if (it->second.empty()) queues_.erase(it);
  return value;
}

void KeyTable::wake(std::string_view key, bool queued) {
  const auto it = waiters_.find(key);
  if (it == waiters_.end()) return;
  it->second->present.notify_all();
  if (queued) it->second->queued.notify_one();
}

KeyTable::WaitScope::WaitScope(KeyTable* table, std::string_view key) : table_(table), key_(key) {
  std::unique_ptr<Waiters>& waiters = table->waiters_.try_emplace(key).first->second;
  if (waiters == nullptr) waiters = std::make_unique<Waiters>();
  waiters_ = waiters.get();
  ++waiters_->waiting;
}

KeyTable::WaitScope::~WaitScope() {
  if (--waiters_->waiting == 0) table_->waiters_.erase(table_->waiters_.find(key_));
}

void KeyTable::watch(std::string_view key, Store::WatchCallback callback) {
  watches_.try_emplace(key).first->second.push_back(std::make_shared<Store::WatchCallback>(std::move(callback)));
  ever_watched_.store(true, std::memory_order_relaxed);
}

void KeyTable::file_event(std::string_view key, std::optional<std::string_view> after) {
  const auto it = watches_.find(key);
  if (it == watches_.end()) return;
  const std::string* const before = find(key);
  for (const std::shared_ptr<Store::WatchCallback>& callback : it->second) {
    Event& event = events_.emplace_back();
    event.callback = callback;
    if (before != nullptr) event.before = *before;
    if (after.has_value()) event.after.emplace(*after);
  }
}

void KeyTable::deliver_filed() {
  mu.lock();
  if (delivering_) return mu.unlock();
  delivering_ = true;
  while (!events_.empty()) {
    Event event = std::move(events_.front());
    events_.pop_front();
    mu.unlock();
    try {
      (*event.callback)(event.before, event.after);
    } catch (...) {
      mu.lock();
      delivering_ = false;
      mu.unlock();
      throw;
    }
    mu.lock();
  }
  delivering_ = false;
  mu.unlock();
}

}  // namespace rankloom::internal

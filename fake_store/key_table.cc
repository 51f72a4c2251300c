#include "fake_store/key_table.h"

#include <algorithm>
#include <utility>

#include "sim/scheduler.h"

namespace rankloom::internal {

KeyTable::KeyTable(const Scheduler* scheduler)
    : mu(scheduler), record_(scheduler != nullptr ? scheduler->record() : nullptr) {}

uint64_t KeyTable::object(std::string_view part, std::string_view key) {
  return named_object(named_object(record_->object(&object_), part), key);
}

void KeyTable::record_set(std::string_view key) {
  record_->access(object("value", key), Access::kWrite);
  if (find(key) != nullptr) return;
  // Those who wait for the key could not go on before this.
  record_->access(object("presence", key), Access::kWrite);
  record_->access(object_, Access::kCommute);
  record_->signal(object("presence", key));
}

void KeyTable::record_look(Look look, std::string_view key) {
  switch (look) {
    case Look::kWaited:
      record_->await(object("presence", key));
      [[fallthrough]];
    case Look::kValue:
      record_->access(object("value", key), Access::kRead);
      break;
    case Look::kPresent:
      record_->await(object("presence", key));
      [[fallthrough]];
    case Look::kPresence:
      record_->access(object("presence", key), Access::kRead);
      break;
    case Look::kQueueWait:
      record_->await(object("queue", key));
      [[fallthrough]];
    case Look::kQueueTake:
      record_->access(object("queue", key), Access::kWrite);
      break;
    case Look::kQueue:
      record_->access(object("queue", key), Access::kRead);
      break;
    case Look::kAll:
      record_->access(record_->object(&object_), Access::kRead);
      break;
  }
}

std::vector<std::string> KeyTable::sorted_keys() const {
  std::vector<std::string> keys;
  keys.reserve(values_.size());
  for (const auto& [key, value] : values_) keys.push_back(key);
  std::sort(keys.begin(), keys.end());
  return keys;
}

void KeyTable::set(std::string_view key, std::string&& value) {
  if (record_ != nullptr) record_set(key);
  if (!watches_.empty()) file_event(key, value);
  const auto [it, added] = values_.try_emplace(key);
  it->second = std::move(value);
  if (added && !waiters_.empty()) wake(key, /*queued=*/false);
}

void KeyTable::append(std::string_view key, std::string_view value) {
  const auto it = values_.find(key);
  if (it == values_.end()) return set(key, value);
  if (record_ != nullptr) record_set(key);
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
  if (record_ != nullptr) {
    record_->access(object("value", key), Access::kWrite);
    record_->access(object("presence", key), Access::kWrite);
    record_->access(object_, Access::kCommute);
  }
  if (!watches_.empty()) file_event(key, std::nullopt);
  values_.erase(it);
  return true;
}

void KeyTable::push(std::string_view key, std::string_view value) {
  if (record_ != nullptr) {
    record_->access(object("queue", key), Access::kWrite);
    if (queue_len(key) == 0) record_->access(object("presence", key), Access::kWrite);
    record_->signal(object("queue", key));
    record_->signal(object("presence", key));
  }
  queues_.try_emplace(key).first->second.emplace_back(value);
  if (!waiters_.empty()) wake(key, /*queued=*/true);
}

std::optional<std::string> KeyTable::pop(std::string_view key) {
  const auto it = queues_.find(key);
  if (it == queues_.end()) return std::nullopt;
  std::optional<std::string> value = std::move(it->second.front());
  it->second.pop_front();
  if (it->second.empty()) {
    if (record_ != nullptr) record_->access(object("presence", key), Access::kWrite);
    queues_.erase(it);
  }
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

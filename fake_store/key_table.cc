#include "fake_store/key_table.h"

#include <algorithm>
#include <utility>

#include "sim/base/exception_text.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {

KeyTable::KeyTable(const Scheduler* scheduler)
    : mu(scheduler, LockLevel::kStore),
      scheduler_(scheduler),
      may_be_explored_(scheduler == nullptr || scheduler->record() != nullptr),
      object_(scheduler != nullptr ? ObjectName(scheduler->record()) : ObjectName()) {}

StepRecord* KeyTable::record() const { return scheduler_ != nullptr ? record_here(scheduler_) : object_.record(); }

void KeyTable::tell(Part part, std::string_view key, Access how) {
  if (StepRecord* const record = this->record(); record != nullptr)
    record->access(named_object(numbered_object(object_.in(*record), part), key), how);
}

void KeyTable::tell_keys(Access how) {
  if (StepRecord* const record = this->record(); record != nullptr) record->access(object_.in(*record), how);
}

uint64_t KeyTable::condition(Want want, uint64_t table, std::string_view key) {
  return named_object(numbered_object(table, 16 + static_cast<uint64_t>(want)), key);
}

void KeyTable::tell_condition(Want want, std::string_view key, bool raise) {
  StepRecord* const record = this->record();
  if (record == nullptr) return;
  const uint64_t wait = condition(want, object_.in(*record), key);
  raise ? record->raise(wait) : record->lower(wait);
}

void KeyTable::tell_wait(std::string_view key, Want want, StepRecord::What what) {
  StepRecord* const record = this->record();
  if (record == nullptr) return;
  const uint64_t wait = condition(want, object_.in(*record), key);
  if (what == StepRecord::What::kMiss) return record->miss(wait);
  if (what == StepRecord::What::kPass) record->pass(wait);
  switch (want) {
    case Want::kValue:
      return tell(kValue, key, Access::kRead);
    case Want::kPresent:
      return tell(kPresence, key, Access::kRead);
    case Want::kQueued:
      return tell(kQueue, key, Access::kRead);
  }
}

void KeyTable::tell_set(std::string_view key) {
  tell(kValue, key, Access::kWrite);
  tell(kWatches, key, Access::kRead);
  if (find_here(key) != nullptr) return;
  tell_keys(Access::kCommute);
  tell_condition(Want::kValue, key, /*raise=*/true);
  tell_presence(key, kQueue, present_here(key), /*raise=*/true);
}

void KeyTable::tell_presence(std::string_view key, Part other, bool stays, bool raise) {
  // Whether the presence changes depends on the key's other part. A change that leaves the presence alone has looked at
  // it.
  tell(other, key, Access::kRead);
  tell(kPresence, key, stays ? Access::kRead : Access::kWrite);
  if (!stays) tell_condition(Want::kPresent, key, raise);
}

bool KeyTable::holds(std::string_view key, Want want) const {
  switch (want) {
    case Want::kValue:
      return find_here(key) != nullptr;
    case Want::kPresent:
      return present_here(key);
    case Want::kQueued:
      return queue_len_here(key) > 0;
  }
  return false;
}

size_t KeyTable::size() {
  if (may_be_explored_) [[unlikely]]
    tell_keys(Access::kRead);
  return values_.size();
}

std::vector<std::string> KeyTable::sorted_keys() {
  if (may_be_explored_) tell_keys(Access::kRead);
  std::vector<std::string> keys;
  keys.reserve(values_.size());
  for (const auto& [key, value] : values_) keys.push_back(key);
  std::sort(keys.begin(), keys.end());
  return keys;
}

void KeyTable::set(std::string_view key, std::string&& value) {
  if (may_be_explored_) tell_set(key);
  if (!watches_.empty()) file_event(key, value);
  const auto [it, added] = values_.try_emplace(key);
  it->second = std::move(value);
  if (added && !waiters_.empty()) wake(key, /*queued=*/false);
}

void KeyTable::append(std::string_view key, std::string_view value) {
  const auto it = values_.find(key);
  if (it == values_.end()) return set(key, value);
  if (may_be_explored_) tell_set(key);
  if (!watches_.empty()) {
    std::string after = it->second;
    after += value;
    file_event(key, after);
  }
  it->second += value;
}

bool KeyTable::erase(std::string_view key) {
  const auto it = values_.find(key);
  if (it == values_.end()) {
    if (may_be_explored_) tell(kValue, key, Access::kRead);
    return false;
  }
  if (may_be_explored_) {
    tell(kValue, key, Access::kWrite);
    tell(kWatches, key, Access::kRead);
    tell_keys(Access::kCommute);
    tell_condition(Want::kValue, key, /*raise=*/false);
    tell_presence(key, kQueue, queue_len_here(key) > 0, /*raise=*/false);
  }
  if (!watches_.empty()) file_event(key, std::nullopt);
  values_.erase(it);
  return true;
}

void KeyTable::push(std::string_view key, std::string_view value) {
  if (may_be_explored_) {
    tell(kQueue, key, Access::kWrite);
    if (queue_len_here(key) == 0) {
      tell_condition(Want::kQueued, key, /*raise=*/true);
      tell_presence(key, kValue, present_here(key), /*raise=*/true);
    }
  }
  queues_.try_emplace(key).first->second.emplace_back(value);
  if (!waiters_.empty()) wake(key, /*queued=*/true);
}

std::optional<std::string> KeyTable::pop(std::string_view key) {
  const auto it = queues_.find(key);
  if (it == queues_.end()) {
    if (may_be_explored_) tell(kQueue, key, Access::kRead);
    return std::nullopt;
  }
  std::optional<std::string> value = std::move(it->second.front());
  it->second.pop_front();
  const bool last = it->second.empty();
  if (last) queues_.erase(it);
  if (may_be_explored_) {
    tell(kQueue, key, Access::kWrite);
    if (last) {
      tell_condition(Want::kQueued, key, /*raise=*/false);
      tell_presence(key, kValue, present_here(key), /*raise=*/false);
    }
  }
  return value;
}

void KeyTable::wake(std::string_view key, bool queued) {
  const auto it = waiters_.find(key);
  if (it == waiters_.end()) return;
  it->second->present.notify_all();
  if (!queued) return;
  it->second->queued.notify_takers();
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
  if (may_be_explored_) tell(kWatches, key, Access::kWrite);
  const Task* const task = Task::current();
  watches_.try_emplace(key).first->second.push_back(
      {.callback = std::make_shared<Store::WatchCallback>(std::move(callback)),
       .rank = task != nullptr ? task->info.rank : -1,
       .world = task != nullptr ? WorldRef(task->scheduler) : WorldRef()});
  ever_watched_.store(true, std::memory_order_relaxed);
}

bool KeyTable::release_watches() {
  decltype(watches_) watches;
  {
    ObservedMutexLock lock(&mu);
    lock.apart();  // after all steps
    watches.swap(watches_);
  }
  // In the order of the keys, and of one key in that of their coming: not in a hash table's.
  std::vector<std::string> keys;
  for (const auto& [key, of_key] : watches) keys.emplace_back(key);
  std::sort(keys.begin(), keys.end());
  for (const std::string& key : keys) {
    for (auto& watch : watches.find(key)->second) watch.callback.reset();
  }
  return !watches.empty();
}

void KeyTable::tell_events() {
  if (StepRecord* const record = may_be_explored_ ? this->record() : nullptr; record != nullptr)
    record->access(numbered_object(object_.in(*record), kWatches), Access::kWrite);
}

const void* KeyTable::caller() {
  static thread_local const char of_no_world = 0;
  const Task* const task = Task::current();
  return task != nullptr ? static_cast<const void*>(task) : &of_no_world;
}

void KeyTable::file_event(std::string_view key, std::optional<std::string_view> after) {
  const auto it = watches_.find(key);
  if (it == watches_.end()) return;
  tell_events();
  if (deliverer_ == nullptr) deliverer_ = caller();
  const std::string* const before = find_here(key);
  for (const Watch& watch : it->second) {
    Event& event = events_.emplace_back();
    event.watch = watch;
    if (before != nullptr) event.before = *before;
    if (after.has_value()) event.after.emplace(*after);
  }
}

void KeyTable::deliver_filed() {
  mu.lock();
  // The caller has left its events to another one, or is in a callback, behind which the loop goes on.
  if (events_.empty() || delivering_ || (deliverer_ != nullptr && deliverer_ != caller())) return mu.unlock();
  deliverer_ = caller();
  delivering_ = true;
  StepRecord* const record = may_be_explored_ ? this->record() : nullptr;
  std::exception_ptr own;  // what the calling task's own callback threw: comes out when all events are delivered
  while (!events_.empty()) {
    Event event = std::move(events_.front());
    events_.pop_front();
    mu.unlock();
    // Others that change a watched key meanwhile leave the event to this task, and go on before they are delivered.
    if (Task* const task = Task::current(); task != nullptr && !task->scheduler->aborted())
      task->scheduler->point(Site{.what = "store watch"});
    if (record != nullptr) record->enter_memory(event.watch.rank);
    std::exception_ptr thrown;
    Task* const task = Task::current();
    const int outer = task != nullptr ? task->for_rank : -1;
    if (task != nullptr) task->for_rank = event.watch.world.has(task) ? event.watch.rank : -1;
    try {
      (*event.watch.callback)(event.before, event.after);
    } catch (...) {
      thrown = handled_exception();
    }
    if (task != nullptr) task->for_rank = outer;
    if (record != nullptr) record->leave_memory(event.watch.rank);
    if (thrown != nullptr && !is_others_failure(event.watch, thrown) && own == nullptr) own = thrown;
    thrown = nullptr;  // an exception's destructor may use the store
    mu.lock();
    tell_events();
  }
  delivering_ = false;
  deliverer_ = nullptr;
  mu.unlock();
  if (own != nullptr) std::rethrow_exception(own);
}

bool KeyTable::leave_events() {
  if (events_.empty() || delivering_) return false;
  if (deliverer_ == caller()) deliverer_ = nullptr;
  return deliverer_ == nullptr;
}

bool KeyTable::is_others_failure(const Watch& watch, const std::exception_ptr& thrown) {
  const Task* const task = Task::current();
  if (watch.rank < 0 || (watch.world.has(task) && task->info.rank == watch.rank)) return false;
  const WorldPin alive(watch.world);
  return !alive || watch.world.scheduler()->rank_failed(watch.rank, thrown);
}

}  // namespace rankloom::internal

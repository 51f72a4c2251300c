#include "fake_store/store_state.h"

#include <algorithm>
#include <limits>

#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {
namespace {

constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();
constexpr absl::Duration kDefaultTimeout = absl::Seconds(300);  // as c10d's

}  // namespace

StoreState::StoreState(Scheduler* scheduler)
    : world_(scheduler),
      timeout_object_(scheduler != nullptr ? ObjectName(scheduler->record()) : ObjectName()),
      timeout_ns_(absl::ToInt64Nanoseconds(kDefaultTimeout)) {}

absl::Status StoreState::abort_cause() const {
  const Task* const task = Task::current();
  if (task != nullptr && task->scheduler != nullptr)
    return task->scheduler->aborted() ? task->scheduler->abort_cause() : absl::OkStatus();
  const WorldPin alive(world_);
  return alive && world_.scheduler()->aborted() ? world_.scheduler()->abort_cause() : absl::OkStatus();
}

void StoreState::tell_timeout(Access how) const {
  StepRecord* const record = world_.known() ? record_here(world_.scheduler()) : timeout_object_.record();
  if (record != nullptr) record->access(timeout_object_.in(*record), how);
}

void StoreState::set_timeout(absl::Duration timeout) {
  tell_timeout(Access::kWrite);
  const int64_t ns = absl::ToInt64Nanoseconds(timeout);  // saturates
  timeout_ns_.store(timeout == absl::InfiniteDuration() ? kForEver : std::min(ns, kForEver - 1),
                    std::memory_order_relaxed);
}

absl::Duration StoreState::timeout() const {
  tell_timeout(Access::kRead);
  const int64_t ns = timeout_ns_.load(std::memory_order_relaxed);
  return ns == kForEver ? absl::InfiniteDuration() : absl::Nanoseconds(ns);
}

}  // namespace rankloom::internal

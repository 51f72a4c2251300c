#include "collectives/streams/device_driver.h"

#include <utility>

namespace rankloom::internal {

DeviceDriver::DeviceDriver() = default;
DeviceDriver::~DeviceDriver() = default;

DeviceDriver::Pool& DeviceDriver::pool(int device) {
  const auto i = static_cast<size_t>(device);
  if (pools_.size() <= i) pools_.resize(i + 1);
  if (pools_[i] == nullptr) pools_[i] = std::make_unique<Pool>();
  return *pools_[i];
}

absl::StatusOr<DeviceDriver::EventHandle> DeviceDriver::take_event(int device) {
  {
    OrderedMutexLock lock(&mu_);
    std::vector<EventHandle>& events = pool(device).events;
    if (!events.empty()) {
      const EventHandle event = events.back();
      events.pop_back();
      return event;
    }
  }
  return make_event(device);
}

void DeviceDriver::give_event(int device, EventHandle event) {
  OrderedMutexLock lock(&mu_);
  pool(device).events.push_back(event);
}

absl::StatusOr<DeviceDriver::Wait> DeviceDriver::take_wait(int device) {
  OrderedMutexLock lock(&mu_);
  Pool& mine = pool(device);
  Wait wait;
  // A few of the oldest: their streams may be blocked for long.
  for (size_t tried = 0; tried < 4 && tried < mine.given.size() && wait.word == nullptr; ++tried) {
    const Wait oldest = mine.given.front();
    const absl::StatusOr<bool> free = passed(oldest.behind);
    if (!free.ok()) return free.status();
    mine.given.pop_front();
    if (*free) {
      wait = oldest;
    } else {
      mine.given.push_back(oldest);
    }
  }
  if (wait.word == nullptr) {
    if (mine.words.empty()) {
      absl::StatusOr<std::vector<ControlWord*>> made = make_words(device);
      if (!made.ok()) return made.status();
      mine.words = *std::move(made);
    }
    absl::StatusOr<EventHandle> behind = make_event(device);
    if (!behind.ok()) return behind.status();
    wait = {.word = mine.words.back(), .behind = *behind};
    mine.words.pop_back();
  }
  wait.word->released.store(0, std::memory_order_relaxed);
  wait.word->gave_up.store(0, std::memory_order_relaxed);
  return wait;
}

void DeviceDriver::give_wait(int device, const Wait& wait) {
  OrderedMutexLock lock(&mu_);
  pool(device).given.push_back(wait);
}

}  // namespace rankloom::internal

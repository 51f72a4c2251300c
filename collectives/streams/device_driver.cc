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

absl::StatusOr<DeviceDriver::ControlWord*> DeviceDriver::take_word(int device) {
  std::vector<ControlWord*> made;
  for (;;) {
    {
      OrderedMutexLock lock(&mu_);
      std::vector<ControlWord*>& words = pool(device).words;
      words.insert(words.end(), made.begin(), made.end());
      if (!words.empty()) {
        ControlWord* const word = words.back();
        words.pop_back();
        return word;
      }
    }
    absl::StatusOr<std::vector<ControlWord*>> more = make_words(device);
    if (!more.ok()) return more.status();
    made = *std::move(more);
  }
}

absl::StatusOr<DeviceDriver::Wait> DeviceDriver::take_wait(int device) {
  Wait wait;
  // A few of the oldest: their streams may be blocked for long.
  for (int tried = 0; tried < 4 && wait.word == nullptr; ++tried) {
    Wait oldest;
    {
      OrderedMutexLock lock(&mu_);
      std::deque<Wait>& given = pool(device).given;
      if (given.empty()) break;
      oldest = given.front();
      given.pop_front();
    }
    const absl::StatusOr<bool> free = passed(oldest.behind);
    if (free.ok() && *free) {
      wait = oldest;
    } else {
      give_wait(device, oldest);
      if (!free.ok()) return free.status();
    }
  }
  if (wait.word == nullptr) {
    absl::StatusOr<EventHandle> behind = take_event(device);
    if (!behind.ok()) return behind.status();
    absl::StatusOr<ControlWord*> word = take_word(device);
    if (!word.ok()) {
      give_event(device, *behind);
      return word.status();
    }
    wait = {.word = *word, .behind = *behind};
  }
  wait.word->released.store(0, std::memory_order_relaxed);
  wait.word->gave_up.store(0, std::memory_order_relaxed);
  return wait;
}

void DeviceDriver::give_wait(int device, const Wait& wait) {
  OrderedMutexLock lock(&mu_);
  pool(device).given.push_back(wait);
}

absl::StatusOr<std::shared_ptr<DeviceDriver::Lane>> DeviceDriver::take_lane(int device, bool ready) {
  {
    OrderedMutexLock lock(&mu_);
    Pool& mine = pool(device);
    const bool none = mine.lanes.empty() && mine.lanes_made == kLanes;
    if (none || (!ready && mine.lanes_waiting == kLanes / 2)) return nullptr;
    if (!ready) ++mine.lanes_waiting;
    if (!mine.lanes.empty()) {
      std::shared_ptr<Lane> lane = std::move(mine.lanes.back());
      mine.lanes.pop_back();
      return lane;
    }
    ++mine.lanes_made;
  }
  absl::StatusOr<std::shared_ptr<Lane>> made = make_lane(device);
  if (!made.ok()) give_lane(device, nullptr, ready);
  return made;
}

void DeviceDriver::give_lane(int device, std::shared_ptr<Lane> lane, bool ready) {
  OrderedMutexLock lock(&mu_);
  Pool& mine = pool(device);
  if (!ready) --mine.lanes_waiting;
  if (lane == nullptr) {
    --mine.lanes_made;
  } else {
    mine.lanes.push_back(std::move(lane));
  }
}

absl::Status DeviceDriver::fill(int device) {
  std::vector<std::shared_ptr<Lane>> lanes;
  while (lanes.size() < kLanes) {
    absl::StatusOr<std::shared_ptr<Lane>> lane = take_lane(device, /*ready=*/true);
    if (!lane.ok()) return lane.status();
    if (*lane == nullptr) break;
    lanes.push_back(*std::move(lane));
  }
  for (std::shared_ptr<Lane>& lane : lanes) give_lane(device, std::move(lane), /*ready=*/true);
  for (int i = 0; i < kEvents; ++i) {
    absl::StatusOr<EventHandle> event = make_event(device);
    if (!event.ok()) return event.status();
    give_event(device, *event);
  }
  absl::StatusOr<std::vector<ControlWord*>> words = make_words(device);
  if (!words.ok()) return words.status();
  OrderedMutexLock lock(&mu_);
  std::vector<ControlWord*>& pooled = pool(device).words;
  pooled.insert(pooled.end(), words->begin(), words->end());
  return absl::OkStatus();
}

}  // namespace rankloom::internal

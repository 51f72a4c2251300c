#pragma once

#include <atomic>
#include <cstdint>

#include "rankloom/group.h"
#include "sim/schedule/step_record.h"

namespace rankloom::internal {

// The library's way to the part of a group that users do not see.
struct GroupAccess {
  // The name of the group in explored runs; unlike its id, the same in whatever order groups are made. 0: outside of a
  // world.
  static uint64_t object(const Group& group) { return group.object_; }
  // And its calls, which commute but for what makes the group fail.
  static uint64_t calls_object(const Group& group) { return numbered_object(group.object_, 1); }
  // A world has the group in World::groups(), until all members have left.
  static bool of_world(const Group& group) { return group.of_world_; }
  static void enter_world(Group& group, uint64_t object) {
    group.object_ = object;
    group.of_world_ = true;
  }
  // Some member has left the group.
  static bool any_left(const Group& group) { return std::atomic_ref(group.any_left_).load(std::memory_order_acquire); }
  static void set_any_left(const Group& group) {
    std::atomic_ref(group.any_left_).store(true, std::memory_order_release);
  }
};

}  // namespace rankloom::internal

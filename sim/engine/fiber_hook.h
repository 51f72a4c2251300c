#pragma once

#include <atomic>

#include "sim/base/task.h"

namespace rankloom::internal {

// For libraries that keep state per thread, which the fibers of a thread would share: told when a fiber stops and when
// it goes on, on its thread. Must not throw, nor reach a scheduling point.
struct FiberHook {
  void (*leave)(Task& task);
  void (*arrive)(Task& task);
};

// Null until somebody sets it; set once, for the life of the process.
inline std::atomic<const FiberHook*> fiber_hook{nullptr};

}  // namespace rankloom::internal

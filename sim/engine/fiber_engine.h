#pragma once

#include <cstddef>

#include "sim/engine/engine.h"

namespace rankloom::internal {

struct FiberThread;

// The fibers' switch: every task is a Boost.Fiber fiber, all on one pool thread. A switch keeps what belongs to a task
// and lives in the thread: errno and the C++ exception globals.
class FiberEngine final : public Engine {
 public:
  // `stacks`: how many tasks are expected; decides between guard pages and slabs (stack_pool.h).
  FiberEngine(size_t stack_bytes, int stacks) : stack_bytes_(stack_bytes), stacks_(stacks) {}

  void run_host(absl::FunctionRef<void()> main) override;
  void spawn(Task& task, void (*entry)(Task&)) override;
  void attach(Task& task) override;  // never called: WorldState::attach() and CallScope refuse before
  void park(Task& task) override;
  void unpark(Task& task) override;
  void pass(Task& from, Task& to) override;
  void prefetch(const Task& task, Fetch step) override;

 private:
  const size_t stack_bytes_;
  const int stacks_;
  FiberThread* thread_ = nullptr;  // of the pool thread that runs the world; set by run_host
};

// Runs `body` on a thread of the fibers: worlds of fibers that it makes run there, one after another, without a
// hand-over from thread to thread for each. An exception of `body` comes out here. The caller is no task.
void with_fiber_thread(absl::FunctionRef<void()> body);

}  // namespace rankloom::internal

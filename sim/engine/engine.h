#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "sim/base/kept_memory.h"
#include "sim/base/prefetch.h"
#include "sim/base/task.h"

namespace rankloom::internal {

// The switch between tasks, and nothing else: the next task is chosen above it. The deterministic scheduler unparks the
// next task and parks the running one; engines never choose.
class Engine : public Kept {
 public:
  virtual ~Engine() = default;

  // Runs `main` on the host: a context that is no task and that starts the run and sees its end. Fibers: on a thread of
  // our own, never on the caller's, whose fiber scheduler would be replaced.
  virtual void run_host(absl::FunctionRef<void()> main) = 0;

  // Prepares a task; at its first unpark() it begins with `entry(task)`.
  virtual void spawn(Task& task, void (*entry)(Task&)) = 0;
  // The calling thread is `task` from now on.
  virtual void attach(Task& task) = 0;

  // park() is called by the task itself (or the host). Threads keep one unpark() a task, fibers the last one of all.
  virtual void park(Task& task) = 0;
  virtual void unpark(Task& task) = 0;
  // unpark(to) and park(from) in one. `from`: the calling task.
  virtual void pass(Task& from, Task& to) {
    unpark(to);
    park(from);
  }

  // `task` is unparked soon: a hint to fetch what a switch to it touches. Never with kObject.
  virtual void prefetch(const Task& /*task*/, Fetch /*step*/) {}
};

}  // namespace rankloom::internal

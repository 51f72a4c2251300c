#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "sim/base/lock_order.h"

namespace rankloom::internal {

// Threads that are kept between worlds, so that a world of 64 ranks costs 64 wake-ups and not 64 clones. Idle threads
// hold a stack and nothing else. Process-wide, because run_world() is a plain function; it lives until the process
// ends.
// Thread-safety: all methods. After fork() the child starts with an empty pool.
class ThreadPool {
 public:
  static ThreadPool& shared();
  // Of threads that run fibers. Boost's record of the fibers stays in a thread: exit(), called there by a rank that is
  // a thread, would end in it.
  static ThreadPool& of_fibers();

  // Runs `job` on an idle thread, or on a new one. `name` (at most 15 bytes) is what a debugger shows.
  // `fresh`: on a new thread that ends with the job, so that nobody's thread_locals are seen.
  void start(std::string name, absl::AnyInvocable<void()> job, bool fresh = false);

  // Threads that wait for a job.
  int idle() const;

 private:
  struct Worker;
  void work(Worker* worker);
  static void* thread_main(void* worker);
  static void forget_after_fork();
  static ThreadPool* both();  // the shared one, and that of fibers

  mutable OrderedMutex mu_{LockLevel::kThreadPool};
  std::vector<Worker*> idle_ ABSL_GUARDED_BY(mu_);
};

}  // namespace rankloom::internal

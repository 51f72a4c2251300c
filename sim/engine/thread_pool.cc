#include "sim/engine/thread_pool.h"

#include <pthread.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "sim/base/crash.h"
#include "sim/base/dist_error.h"
#include "sim/base/forked_run.h"
#include "sim/base/library_scope.h"
#include "sim/base/parker.h"
#include "sim/base/system.h"
#include "sim/base/task.h"

namespace rankloom::internal {

struct ThreadPool::Worker {
  ThreadPool* pool = nullptr;
  Parker parker;
  std::string name;
  absl::AnyInvocable<void()> job;  // written before the permit is given
  bool fresh = false;
};

ThreadPool* ThreadPool::both() {
  static ThreadPool* const pools = [] {
    pthread_atfork(nullptr, nullptr, &ThreadPool::forget_after_fork);
    return new ThreadPool[2];  // never destroyed: idle threads wait in them until the process ends
  }();
  return pools;
}

ThreadPool& ThreadPool::shared() { return both()[0]; }
ThreadPool& ThreadPool::of_fibers() { return both()[1]; }

void ThreadPool::forget_after_fork() {
  // The child has one thread. A lock that another thread held at the fork cannot be taken here; the list is only
  // forgotten.
  for (int i = 0; i < 2; ++i) {
    ThreadPool& pool = both()[i];
    new (&pool.mu_) OrderedMutex(LockLevel::kThreadPool);
    new (&pool.idle_) std::vector<Worker*>;
  }
}

void ThreadPool::start(std::string name, absl::AnyInvocable<void()> job, bool fresh) {
  Worker* worker = nullptr;
  if (!fresh) {
    OrderedMutexLock lock(&mu_);
    if (!idle_.empty()) {
      worker = idle_.back();
      idle_.pop_back();
    }
  }
  if (worker != nullptr) {
    worker->name = std::move(name);
    worker->job = std::move(job);
    worker->parker.unpark();
    return;
  }
  worker = new Worker;
  worker->pool = this;
  worker->name = std::move(name);
  worker->job = std::move(job);
  worker->fresh = fresh;
  pthread_t thread;
  if (const int error = pthread_create(&thread, nullptr, &ThreadPool::thread_main, worker); error != 0) {
    fatal(absl::StrCat("cannot start a thread for ", worker->name, ": ", std::strerror(error)));
  }
  pthread_detach(thread);
}

int ThreadPool::idle() const {
  OrderedMutexLock lock(&mu_);
  return static_cast<int>(idle_.size());
}

void* ThreadPool::thread_main(void* worker) {
  const LibraryScope library;
  auto* const self = static_cast<Worker*>(worker);
  // Debian's Abseil checks the order of locks at every lock: 72-104 ns a pair, 24 ns without.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const stack_t signals = use_signal_stack();
  self->pool->work(self);
  free_signal_stack(signals);
  return nullptr;
}

void ThreadPool::work(Worker* worker) {
  for (;;) {
    name_this_thread(worker->name);
    worker->job();
    if (is_forked_thread()) end_forked_copy();
    worker->job = nullptr;
    if (worker->fresh) {
      delete worker;
      return;
    }
    {
      OrderedMutexLock lock(&mu_);
      idle_.push_back(worker);
    }
    worker->parker.park(Deadline::kNever);
  }
}

}  // namespace rankloom::internal

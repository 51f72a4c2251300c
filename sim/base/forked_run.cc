#include "sim/base/forked_run.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "sim/base/task.h"

namespace rankloom::internal {
namespace {

thread_local const Scheduler* forked_in = nullptr;

}  // namespace

void watch_forks() {
  static const int watched = pthread_atfork(nullptr, nullptr, [] {
    if (const Task* const task = Task::current(); task != nullptr) forked_in = task->scheduler;
  });
  (void)watched;
}

bool is_forked_copy(const Scheduler* run) { return forked_in != nullptr && forked_in == run; }

bool is_forked_thread() { return forked_in != nullptr; }

void end_forked_copy() {
  std::fprintf(stderr,
               "rankloom: a process that a run forked has come back from the run, and is ended: want it to end by "
               "itself, by _exit()\n");
  write_buffers();
  _exit(EXIT_FAILURE);
}

void write_buffers() {
  std::cout.flush();
  std::clog.flush();
  std::fflush(nullptr);
}

}  // namespace rankloom::internal

#include "sim/base/forked_run.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "sim/base/parker.h"
#include "sim/base/task.h"

namespace rankloom::internal {

void watch_forks() {
  static const int watched = pthread_atfork(nullptr, nullptr, [] {
    if (const Task* const task = Task::current(); task != nullptr) forked_in = task->scheduler;
  });
  (void)watched;
}

void WaitTurns::end_if_late() {
  constexpr int64_t kLongestNs = 2'000'000'000;
  const int64_t now_ns = monotonic_ns();
  if (until_ns_ == 0) until_ns_ = now_ns + kLongestNs;
  if (now_ns > until_ns_) end_forked_copy();
}

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

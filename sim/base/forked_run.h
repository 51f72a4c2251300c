#pragma once

#include <sched.h>

#include <cstdint>

namespace rankloom::internal {

class Scheduler;

// A process that a rank forks is a copy of its run, in which the other ranks' threads do not exist, or in which the
// ranks run a second time. Such a copy may compute, exec(), run a world of its own, and end by itself. Where it comes
// back into the run, by a call or a return, it is ended with a line on stderr: it would wait for ever, take what the
// stacks of threads held that are gone, or act for the ranks of the first process.

// From now on forks are watched. Call before the first run; costs nothing after the first call.
void watch_forks();
// Whether a task of that run forked this process. For the thread that came out of the fork.
inline bool is_forked_copy(const Scheduler* run);
// Whether this thread came out of a task's fork: the other threads of its run are not there, though their locks are.
inline bool is_forked_thread();
[[noreturn]] void end_forked_copy();

// Of this thread: the run that it came out of by a fork; null: none.
inline constinit thread_local const Scheduler* forked_in = nullptr;
inline bool is_forked_copy(const Scheduler* run) { return forked_in != nullptr && forked_in == run; }
inline bool is_forked_thread() { return forked_in != nullptr; }

// The turns of a loop in which a thread waits for what another thread does in a moment. In a forked process that other
// thread may not be there: the process is ended after 2 s, long for threads of a world that it runs itself.
class WaitTurns {
 public:
  void next() {
    if (is_forked_thread()) [[unlikely]]
      end_if_late();
    sched_yield();
  }

 private:
  void end_if_late();
  int64_t until_ns_ = 0;
};

// Writes out what the process has in its buffers, those of C++ as well.
void write_buffers();

}  // namespace rankloom::internal

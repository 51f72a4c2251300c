#pragma once

namespace rankloom::internal {

class Scheduler;

// A process that a rank forks is a copy of its run, in which the other ranks' threads do not exist, or in which the
// ranks run a second time. Such a copy may compute, exec() and end by itself. Where it comes back into the run, to wait
// or to return, it is ended with a line on stderr: it would wait for ever, or act for the ranks of the first process.

// From now on forks are watched. Call before the first run; costs nothing after the first call.
void watch_forks();
// Whether a task of that run forked this process. For the thread that came out of the fork.
bool is_forked_copy(const Scheduler* run);
// Whether this thread came out of a task's fork: the other threads of its run are not there, though their locks are.
bool is_forked_thread();
[[noreturn]] void end_forked_copy();

// Writes out what the process has in its buffers, those of C++ as well.
void write_buffers();

}  // namespace rankloom::internal

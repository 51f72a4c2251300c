#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"

// Services that systems have in different ways, each behind one name: as Linux has it, and as POSIX and a few calls of
// macOS do. -DRANKLOOM_POSIX_ONLY takes the second way on Linux as well, where tests try it (tests/meson.build).
#if defined(__linux__) && !defined(RANKLOOM_POSIX_ONLY)
#define RANKLOOM_LINUX 1
#endif

namespace rankloom::internal {

// The program's name without its folder; empty: not known.
const char* program_name();
// The words of the command line; empty: not known.
std::vector<std::string> program_arguments();
// A path by which the program's own file can be examined.
std::string program_file();
// The program's variables, "NAME=VALUE" each; the last one is null.
char** environment();
// Whether a debugger or a tracer holds this process; false where the system does not say so.
bool traced();

// The number of the calling thread, not 0: the kernel's on Linux. A thread that has asked before may ask in the handler
// of a signal.
int this_thread();
// Whether a thread of this process uses a core, or waits for one or for a disk. A thread that sleeps in a lock does
// not. Where the system does not say so: whether the thread has used a core since the last question about it.
bool thread_runs(int thread);
// A full fence on each running thread of the process; takes some microseconds. Threads that look often need none then.
void fence_all_threads();
// Sends the signal to a thread of this process. Result: 0 or an errno.
int signal_thread(int thread, int signal);
// Gives the calling thread a name for debuggers, of which some systems keep 15 bytes.
void name_this_thread(const std::string& name);

// Two sockets that are connected, kept from programs that this one starts. Writes to one whose other end is closed send
// no SIGPIPE, if they are given kNoSignal. False: errno says why.
bool make_socket_pair(int ends[2]);
extern const int kNoSignal;

#ifndef RANKLOOM_LINUX
// In place of a futex. Sleeps if `sleeps` is true, until wake_at() of the address, or for `most_ns`, or for less: the
// caller looks again. Nothing is read at the address: what was there may be gone when somebody is woken.
void sleep_at(const void* address, absl::FunctionRef<bool()> sleeps, int64_t most_ns);
void wake_at(const void* address);
#endif

}  // namespace rankloom::internal

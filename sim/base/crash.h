#pragma once

#include <signal.h>

#include <atomic>

#include "sim/base/task.h"

namespace rankloom::internal {

// Facts about a rank that crashes, which rooms above know. Asked by the handler of a signal: no memory, no locks.
struct CrashFacts {
  // Whether the fault is an overflow of the task's stack: says so in `text`, a line of at most `size` bytes with its
  // end.
  using Overflow = bool (*)(const Task& task, const siginfo_t& info, const void* context, char* text, size_t size);
  // The command that runs the task's run again; empty: none repeats it.
  using Rerun = const char* (*)(const Task& task);
  static inline std::atomic<Overflow> overflow{nullptr};
  static inline std::atomic<Rerun> rerun{nullptr};
  // A handler that is known to end the process, as an MPI library's; null: none is. A crash is told before its turn.
  using Handler = void (*)(int signal, siginfo_t* info, void* context);
  static inline std::atomic<Handler> ends_the_process{nullptr};
};

// From here on SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT (a failed assert(), std::terminate()) of a thread that
// runs a rank are told on stderr: the rank, its last point, its stack, the command that runs it again. An overflow
// ends the process by abort(); after all else, and on threads that run no rank, the signal does what it does. Where
// the program has a handler already, as in a program with AddressSanitizer, nothing is told but overflows, unless that
// handler is CrashFacts::ends_the_process, and it has its turn; nothing at all is told in a program with
// ThreadSanitizer, or by a library that is built with either. A sanitizer that ends the process for a bug that it has
// reported is told as a crash is, but for the stack, which its report has. The first call counts.
void install_crash_handler();

// Gives the calling thread a stack for handlers of signals, unless it has a large one: without, nobody can tell of an
// overflow of its own. As long as the thread, or until free_signal_stack(). Result: the stack.
stack_t use_signal_stack();
// `stack`, from use_signal_stack() of this thread, which is about to end.
void free_signal_stack(const stack_t& stack);

}  // namespace rankloom::internal

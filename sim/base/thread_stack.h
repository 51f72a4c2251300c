#pragma once

#include <string>
#include <string_view>

namespace rankloom::internal {

// Where a thread of this process is, from the innermost function out, one a line, each after `indent`: "#0 train()".
// The thread is interrupted by a signal (SIGRTMAX - 1, or SIGUSR2 where there is none; its handler is ours from then
// on) for as long as its stack is walked. If it does not answer within two seconds, the text says so. For a process
// that is about to end.
std::string thread_stack_text(int thread, std::string_view indent);

// The same of the calling thread, to a file, from the handler of a signal that came with `context`: no memory, no
// locks. Once before, outside of any handler, somebody must have called backtrace(), which loads the unwinder.
void write_signal_stack(int file, const void* context, const char* indent);
// The stack pointer of a thread when a signal with `context` came. Null: not known.
const char* stack_pointer(const void* context);

}  // namespace rankloom::internal

#pragma once

#include <string>
#include <string_view>

namespace rankloom::internal {

// Where a thread of this process is, from the innermost function out, one a line, each after `indent`: "#0 train()".
// The thread is interrupted by a signal (SIGRTMAX - 1, whose handler is ours from then on) for as long as its stack is
// walked. If it does not answer within two seconds, the text says so. For a process that is about to end.
std::string thread_stack_text(int thread, std::string_view indent);

}  // namespace rankloom::internal

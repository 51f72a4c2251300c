#pragma once

namespace rankloom::internal {

// Valgrind takes a jump from one stack to another for a frame that grows or shrinks, and marks all that lies between as
// undefined, unless it knows the stacks. A program that runs under Valgrind though this file was built where there is
// no valgrind/valgrind.h is told, once, on stderr, that its ranks had better be threads.
// Result: a number for remove_valgrind_stack(); 0 outside of Valgrind.
unsigned add_valgrind_stack(const void* bottom, const void* top);
void remove_valgrind_stack(unsigned number);

}  // namespace rankloom::internal

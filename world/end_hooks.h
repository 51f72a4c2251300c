#pragma once

#include <cstdint>

#include "sim/schedule/step_record.h"

namespace rankloom::internal {

// The hooks of at_end(), in explored runs: they run in the order in which they came. The library's own commute with one
// another, since each looks after a group or device of its own; a program's may look at anything.
inline uint64_t end_hooks_object() { return named_object(0, "hooks of at_end()"); }

}  // namespace rankloom::internal

#pragma once

#include <cstdint>

#include "sim/schedule/step_record.h"

namespace rankloom::internal {

// The hooks of at_end(), in explored runs: those of users run in the order in which they came, and may look at
// anything. The library's own have places before them, by group and rank.
inline uint64_t end_hooks_object() { return named_object(0, "hooks of at_end()"); }

}  // namespace rankloom::internal

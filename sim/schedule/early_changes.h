#pragma once

#include <atomic>
#include <cstdint>

namespace rankloom::internal {

// How often, in this process, a call of an explored run found that its rank changed a buffer too early
// (StepRecord::found_early_change()). A search in parts tells the others, whose completions write from then on as well.
inline std::atomic<uint64_t> early_changes_found{0};

}  // namespace rankloom::internal

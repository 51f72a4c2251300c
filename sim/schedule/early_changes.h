#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace rankloom::internal {

// How often, in this process, a call of an explored run found that its rank changed a buffer too early
// (StepRecord::found_early_change()). A search in parts tells the others, whose completions write from then on as well.
inline std::atomic<uint64_t> early_changes_found{0};

// StepRecord::uncovered() for such a run: no scheduling point lies between a call's issue and the change after it, so a
// call that is done between them is never tried.
inline constexpr std::string_view kEarlyChange = "buffers that ranks changed before their calls were done";

}  // namespace rankloom::internal

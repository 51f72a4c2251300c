#pragma once

#include <string>
#include <vector>

namespace rankloom::internal {

// Lists of ranks, as texts show them. `ranks` ascends, but for short_ranks(), which sorts.

// "0-1, 4".
std::string rank_ranges(const std::vector<int>& ranks);
// "rank 4", "ranks 0-1, 4".
std::string ranks_text(const std::vector<int>& ranks);
// "0, 1, 4-6": two neighbours are no range, and a long list is cut after some twenty entries: "..., 38, ... (50
// ranks)".
std::string short_ranks(std::vector<int> ranks);

}  // namespace rankloom::internal

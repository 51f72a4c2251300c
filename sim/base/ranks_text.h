#pragma once

#include <string>
#include <utility>
#include <vector>

namespace rankloom::internal {

// Lists of ranks, as all texts show them. `ranks` ascends, but for the short lists, which are sorted.

// "0-1, 4".
std::string rank_ranges(const std::vector<int>& ranks);
// "rank 4", "ranks 0-1, 4".
std::string ranks_text(const std::vector<int>& ranks);
// The same, but a long list is cut after some twenty entries: "..., 38, ... (50 ranks)".
std::string short_ranks(std::vector<int> ranks);
std::string short_ranks_text(std::vector<int> ranks);

// A text that ranks say of themselves: of one rank as it was said, of several without the number of each.
struct SaidByRanks {
  std::vector<int> ranks;  // ascending, if they came so
  std::string text;
};
// Ranks that say the same together, in the order of the first ones. Texts are the same if they differ in the number of
// the rank that says them only, at their head or after the kind of an error: "rank 2, group 0, send: ...",
// "InvalidArgument: rank 2, group 0, send: ..."; where that rank was: "..., when rank 2 was at barrier"; or in a last
// line of what is open: "...; rank 2 had all_reduce seq 1 open".
std::vector<SaidByRanks> folded_by_rank(const std::vector<std::pair<int, std::string>>& said);

}  // namespace rankloom::internal

#pragma once

#include <string>
#include <vector>

namespace rankloom::internal {

// "0, 2-5": ranks in ascending order, runs of three and more as a range, cut after some twenty runs.
std::string ranks_text(std::vector<int> ranks);

}  // namespace rankloom::internal

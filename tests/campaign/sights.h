#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/campaign/job.h"

namespace rankloom {

// Something that a rank saw, as bytes or text.
struct Sight {
  int act = 0;
  std::string saw;
  friend bool operator==(const Sight&, const Sight&) = default;
};

// All that one rank saw.
struct RankLog {
  std::vector<Sight> seen;          // in the rank's order
  std::map<int, std::string> late;  // [act] by owners of tensors, whose works nobody waited for
};
using JobLog = std::vector<RankLog>;  // by rank

// The sights of ranks in acts that say more than whether they went well.
inline constexpr const char* kRefused = "InvalidArgument";
inline constexpr const char* kTimedOut = "Timeout";
inline constexpr const char* kNestedWentWell = "went well";
inline constexpr const char* kSlept = "slept";
inline constexpr const char* kDrawn = "the rank's own numbers";
std::string group_text(const std::vector<int>& ranks, int member);
std::string meeting_text(const Act& act, int world_size, int rank);
std::string shared_count_text(int world_size);

}  // namespace rankloom

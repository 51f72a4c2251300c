#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/base/task.h"

namespace rankloom::internal {

// The facts of ranks that the layer above knows.
struct RankFacts {
  // "returned", "failed: ...", or "" for a rank that is still there.
  std::function<std::string(int rank)> ended;
  // The last calls of a rank, oldest first, one line each.
  std::function<std::vector<std::string>(int rank)> last_calls;
};

// A stuck run, as data.
struct StuckRun {
  // Ranks that wait alike.
  struct Wait {
    std::vector<int> ranks;  // ascending; a rank of several tasks that wait alike stands there for each
    TaskKind kind = TaskKind::kRank;
    std::string what, group, detail;  // of the site
    int64_t seq = -1;
    CodeSite code;
    std::vector<int> waits_for;  // ascending
    std::string remark;
  };
  std::vector<Wait> waits;
  std::vector<int> cycle;  // the first rank stands at its end, too; empty: none
};

// The headline of a deadlock's text.
inline constexpr const char* kNoRankCanMove = "no rank can move";

// The lines of a report about tasks that wait: the ranks, in what and for whom, the state of those, and the cycle if
// there is one. Each begins with a newline. Ranks that wait alike share a line: "ranks 0-6 wait in all_reduce seq 3 for
// rank 7 (returned) [group 0, train.cc:12]". `stuck`: gets the same as data.
std::string wait_lines(const std::vector<Task*>& waiting, const RankFacts& facts, StuckRun* stuck = nullptr);

// "rank 1 (returned) and ranks 3-4".
std::string targets_text(const std::vector<int>& ranks, const RankFacts& facts);

}  // namespace rankloom::internal

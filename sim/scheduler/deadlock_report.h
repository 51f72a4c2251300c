#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <set>
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

// The wait of a task, or of several that wait alike, as data: it may come from another process.
struct WaitPart {
  StuckRun::Wait wait;
  std::string hint;  // of WaitsFor::hint()
};
WaitPart wait_part(const Task& task);

// The lines of wait_lines(), of parts that are added in the order of ranks.
class WaitTable {
 public:
  explicit WaitTable(const RankFacts& facts) : facts_(facts) {}

  void add(WaitPart part);
  // One for each line.
  const std::vector<WaitPart>& parts() const { return parts_; }
  // `stuck`: gets the same as data; null: nothing does.
  std::string text(StuckRun* stuck);

 private:
  std::string last_calls() const;

  const RankFacts& facts_;
  std::vector<WaitPart> parts_;
  std::map<std::string, size_t> line_of_;  // what follows the ranks in a line: which part
  std::map<int, std::vector<int>> edges_;  // rank -> the ranks that it waits for
  std::set<int> awaited_;
  std::vector<std::string> hints_;  // each once
};

// "rank 1 (returned) and ranks 3-4".
std::string targets_text(const std::vector<int>& ranks, const RankFacts& facts);

}  // namespace rankloom::internal

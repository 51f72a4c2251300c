#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/base/task.h"
#include "sim/scheduler/deadlock_report.h"

namespace rankloom::internal {

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

}  // namespace rankloom::internal

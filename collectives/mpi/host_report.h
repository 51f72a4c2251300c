#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collectives/mpi/gathered_report.h"
#include "collectives/mpi/wire.h"
#include "collectives/work/ranks_elsewhere.h"
#include "rankloom/error.h"
#include "sim/scheduler/deadlock_report.h"
#include "world/world_state.h"

namespace rankloom::internal {

// The waits of one process's ranks, as it tells the others of them.
struct ToldWaits {
  absl::Status cause = absl::OkStatus();  // a better one than that nobody can move, if a wait knows it
  std::string moving;                     // lines on tasks that do not wait
  std::vector<WaitPart> parts;
  std::vector<int> asked;  // ranks of other processes, of which its texts tell
};
// A better cause that one of the tasks knows; else OK.
absl::Status cause_of(const std::vector<Task*>& waiting);
void write_waits(const ToldWaits& waits, WireWriter* out);
ToldWaits read_waits(WireReader* in);

// Facts on the ranks of all processes, which they tell each other before a report is written, or before time ends a
// wait, whose text tells of them, too. Of the fibers' thread.
class HostReport {
 public:
  // `process`: this one, which has the ranks `here`.
  HostReport(WorldState* world, RanksHere here, int process, int processes);

  void add_waits(int process, ToldWaits waits) { waits_[static_cast<size_t>(process)] = std::move(waits); }
  const ToldWaits& waits(int process) const { return waits_[static_cast<size_t>(process)]; }

  // After the waits of all: what this process tells of its ranks that others ask for, and of those that speak for the
  // others of a line.
  void write_ranks(WireWriter* out) const;
  void read_ranks(WireReader* in);

  // The end of a stuck run: with the waits of all. `stuck`: gets them as data.
  absl::Status end(ErrorKind kind, const std::string& headline, StuckRun* stuck) const;
  // The lines about tasks of this process that wait, and those of the others.
  std::string lines(const std::vector<Task*>& waiting) const;
  // Of a rank elsewhere.
  RankTold told_of(int rank) const;

 private:
  struct Rank {
    RankTold told;
    std::vector<std::string> last_calls;
  };
  RankFacts facts(const absl::Status& cause) const;

  WorldState& world_;
  const RanksHere here_;
  const int process_;
  std::vector<ToldWaits> waits_;  // by process
  std::map<int, Rank> ranks_;     // of other processes
};

}  // namespace rankloom::internal

#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "rankloom/error.h"
#include "rankloom/group.h"
#include "sim/scheduler/deadlock_report.h"
#include "world/flight_recorder.h"
#include "world/operation_log.h"

namespace rankloom::internal {

// The content of a run file beyond the report: a copy, which outlives the world.
struct RunData {
  struct GroupData {
    int id = -1;
    std::string name;
    std::string description;
    std::vector<int> ranks;  // global, in group order; empty: those that the next three say
    int first = 0;
    int stride = 1;
    int size = 0;
    int of = 0;  // of a lane of fake ranks: the members of its group, most of which are not there; 0: it is none
  };
  // The facts that calls share that are alike.
  struct Kind {
    const char* op = "";
    int group = -1;  // index into `groups`
    CodeSite code;
    bool is_p2p = false;
    int root = -1;
    int tag = 0;
    uint8_t dtype = 0;
    uint32_t inputs = 0;
    uint32_t outputs = 0;
    int64_t timeout_ns = -1;
    int64_t wire = -1;  // of a call of a fake rank: the bytes that a ring sends; -1: it is none
    FlightShapes shapes;
  };
  // Times since the world began; -1: not known, or not yet.
  struct Call {
    uint32_t kind = 0;  // index into `kinds`
    FlightEntry::State state = FlightEntry::State::kScheduled;
    int peer = -1;  // global rank
    int64_t seq = -1;
    int64_t issued_ns = 0;
    int64_t arrived_ns = -1;  // all members had come
    int64_t ended_ns = -1;
    int64_t issued_step = -1;  // OperationLog::Steps
    int64_t ended_step = -1;
  };
  struct Rank {
    int64_t made = 0;  // calls of the rank, of which the file has the last
    std::vector<Call> calls;
    OperationLog::StoreOperations store;
  };

  // How explore() found the run.
  struct Search {
    struct Share {
      std::string strategy;
      int64_t runs = 0;
      int64_t schedules = 0;
      int64_t open = 0;
      bool finished = false;
    };
    // How many schedules begin with the run's first choices, or continuations of a sample, and how many of these fail.
    struct Futures {
      int64_t all = 0;
      int64_t fail = 0;
    };
    int64_t run = 0;    // of the strategy, from 1
    std::string found;  // the schedule of that run; empty: a trace
    int found_switches = 0;
    int64_t shrink_runs = 0;
    std::vector<int64_t> switch_steps;  // of the shrunk run: those to which its switches led
    std::vector<Share> shares;
    std::vector<std::string> choices;  // of the shrunk run
    std::vector<Futures> futures;      // [choices made]; empty: not counted
    bool sampled = false;
    std::string found_story;                  // of the run before shrinking; empty: it is the same
    std::vector<int64_t> found_switch_steps;  // of that story
  };

  // Calls of fake ranks, by a cost model's clock, instead of a world's. Ranks of the file are lanes: a group of one
  // traced rank each, or its computation.
  struct FakeWorld {
    // Of one operation of one group, added up over the calls.
    struct Totals {
      const char* op = "";
      int group = -1;  // index into `groups`
      int64_t calls = 0;
      int64_t payload = 0;  // bytes; of the next three, too
      int64_t ring_bytes = 0;
      int64_t tree_bytes = 0;
      int64_t time_ns = 0;
    };
    struct Rank {
      int rank = -1;
      int64_t calls = 0;
      int64_t compute_ns = 0;
      int64_t end_ns = 0;
      int64_t peak_buffer_bytes = 0;
      std::vector<Totals> totals;
    };
    int world_size = 0;
    std::vector<std::string> lanes;  // names
    std::vector<Rank> ranks;         // those that were traced
    std::deque<std::string> names;   // of stretches of computation, for Kind::op
  };

  bool logged = false;   // steps of calls, and operations on the store
  int64_t begin_ns = 0;  // when the world began, by the clock of `store`
  int64_t end_ns = 0;    // when the report was made
  int recorded_calls = 0;
  int64_t most_calls = 0;  // of a rank in the file, however many the recorder has
  absl::Duration timeout, warn_after;
  std::optional<uint64_t> seed;
  std::string planned_faults;
  std::vector<GroupData> groups;
  std::vector<Kind> kinds;
  std::vector<Rank> ranks;
  StuckRun stuck;
  std::vector<std::string> failures;  // failed assertions and the like, which the report does not know
  std::string strategy;               // of explore(), that found it
  std::string story;                  // what explore() tells of it
  Search search;                      // run is 0: no search found it
  std::string rerun;                  // the command that repeats it, if the report has none
  std::optional<FakeWorld> fake;
};

// The calls of a world of `ranks`; `all` is its group of all ranks. Of more than two million calls: the last of each
// rank. `begin_ns`: when the world began. Calls of ranks meanwhile may be in it or not.
std::shared_ptr<RunData> run_data_of(int ranks, const Group& all, absl::FunctionRef<FlightEntries(int)> entries_of,
                                     int64_t begin_ns, int recorded_calls);

}  // namespace rankloom::internal

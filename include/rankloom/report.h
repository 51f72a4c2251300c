#pragma once

#include <exception>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "rankloom/faults.h"
#include "rankloom/schedule.h"

namespace rankloom {

// How one rank ended.
struct RankOutcome {
  enum class State : uint8_t {
    kRunning,  // has not ended (a world whose ranks are the caller's threads)
    kReturned,
    kFailed,   // threw, or a call of its own failed
    kStopped,  // left because the world was aborted for another's failure
  };
  State state = State::kRunning;
  std::string text;              // kFailed, kStopped: what it threw
  std::exception_ptr exception;  // kFailed: the same, to rethrow
};

// What a run left behind. A value; reading it needs no lock.
struct RunReport {
  std::vector<RankOutcome> outcomes;  // by rank
  int first_failed = -1;              // the rank whose failure came first: the headline
  absl::Status cause;                 // why the world was aborted; OK if it was not
  Trace trace;                     // replays with Schedule::replay(trace); empty in the free gear, and if it is cut()
  std::string schedule;            // "seeded:7"
  std::string engine;              // "fibers"
  uint64_t steps = 0;              // scheduling points passed
  std::vector<Fault> faults;       // those that happened; as a plan, they happen again
  std::vector<std::string> notes;  // leaks and warnings: works dropped, messages unmatched, timeouts near
  std::string rerun;               // the command that repeats this run; empty in the free gear

  // All ranks returned and nobody aborted the world.
  bool ok() const;
  // The first failure as the headline, the other ranks folded under it, the notes, and how to run it again. "ok" if ok().
  std::string text() const;
  // Throws DistError with text() unless ok(); its kind is the first failure's (RankFailed for an exception of the program).
  void throw_if_failed() const;
};

}  // namespace rankloom

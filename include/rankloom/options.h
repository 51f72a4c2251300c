#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rankloom/faults.h"
#include "rankloom/schedule.h"

namespace rankloom {

// How a world runs. An aggregate; every field has a default.
struct WorldOptions {
  int world_size = 1;
  EngineKind engine = EngineKind::kThreads;
  Schedule schedule = {};  // unset: free() on threads, fifo() on fibers

  // RankContext::rng_seed() is derived from this and the rank. Unset: the schedule's seed, or that of the replayed run.
  std::optional<uint64_t> seed = {};
  // For waits that name no timeout of their own. They fire, but do not keep a stuck job from being reported at once.
  absl::Duration timeout = absl::Minutes(30);
  // A wait for other ranks that lasts longer is reported, and goes on: in the report's notes, and to on_warning (unset:
  // stderr), which is called on the rank that waits and must not wait itself. Virtual time in deterministic runs.
  absl::Duration warn_after = absl::InfiniteDuration();
  std::function<void(const std::string&)> on_warning = {};

  // A finished call may complete as late as its wait, as the schedule says. Unset: if the schedule explores().
  std::optional<bool> late_completion = {};
  // Outputs of a call hold NaN or 0xEB bytes until it completes. Unset: if the schedule explores().
  std::optional<bool> poison = {};

  // Fibers: address space reserved for each stack, 128 KiB; pages are touched on demand. A larger local, or recursion
  // too deep, ends the process with a text.
  size_t stack_bytes = 128 * 1024;
  bool fresh_threads = false;  // threads: new ones, so that nobody's thread_locals leak in
  // Flight recorder: calls kept per rank; 0: none. Unset: 64, and in worlds of more than 4,096 ranks fewer, down to 8,
  // since every call of every rank touches that memory.
  std::optional<int> recorded_calls = {};
  // RunReport::write_run() has the calls of a run that went well, too: it keeps a copy of them when the world ends, as
  // each run that fails does. And, of any run, the steps of calls and what ranks did with the world's store, which are
  // kept where RANKLOOM_REPORT is set as well.
  bool keep_run = false;
  // Deterministic runs: how many choices the trace may have, some 24 bytes each, and about four a call. A run that
  // makes more keeps no trace, since half of one replays nothing, and its report says so; the command that repeats it
  // by its seed stays. 0: none, Trace::kWhole: no bound. Searches and comparisons of runs (explore(), runs_alike())
  // keep traces whole.
  uint64_t trace_limit = 10'000'000;

  // The faults of the run: groups and the store are wrapped accordingly.
  FaultPlan faults = {};
  // Scheduling points after which a deterministic run counts as one that will never end; 0: no bound.
  uint64_t max_steps = 0;

  // A rank that comes to no scheduling point for this long, in real time, is named with its last point: it computes, or
  // blocks in something that is not rankloom's. Nothing else happens to it. on_stall gets the text (unset: stderr), on
  // a thread of its own; it must not wait for the end of the run. InfiniteDuration: nobody looks.
  absl::Duration stall = absl::Seconds(10);
  std::function<void(const std::string&)> on_stall = {};
  // After this long, in real time, such a rank, which nobody can free, ends the process with exit code 1: stderr has
  // its backtrace and where all others are. Not while the process stands still itself or runs under a debugger. 0 or
  // InfiniteDuration: never. Unset: never; after a minute in the tests of rankloom/testing.h.
  std::optional<absl::Duration> stall_is_fatal = {};

  // No rank can move, but threads of ranks exist that are at no scheduling point and may still act: a rank's main
  // thread that sleeps beside its helper, a thread of the program's own that has called through a rank's handle and has
  // not ended. That is no deadlock. It is told as `stall` is, and the run ends with a Timeout when none of them came to
  // a point for this long, in real time, and none computed. InfiniteDuration: it goes on. Where no such thread was
  // seen, a deadlock is found at once. A deterministic run in which all that can run only ask whether something has
  // happened (is_completed(), check(), try_lock(), query()) ends with a Timeout after this long, too: a thread outside
  // might have answered.
  absl::Duration stuck_after = absl::Minutes(1);

  // The run stops where this rank is about to make this collective: on_break is called by the rank itself (unset:
  // SIGTRAP, which a debugger catches; there `call rankloom_describe()` lists the ranks).
  std::optional<Schedule::BreakPoint> break_at = {};
  std::function<void()> on_break = {};

  // Text about the ranks' places that only the embedding program knows, for a run that ends because it is stuck: stacks
  // of an interpreter. Called once, by a rank or the watchdog, with no lock held, before the run is aborted. All ranks
  // wait then, but for one whose default timeout ends and those that `stuck_after` is about. It must not wait for a
  // rank.
  std::function<std::string()> whereabouts = {};
};

// The environment's wishes, which win over what a program says:
//   RANKLOOM_ENGINE    threads | fibers
//   RANKLOOM_SEED      a number: Schedule::seeded
//   RANKLOOM_SCHEDULE  what Schedule::parse() reads
//   RANKLOOM_FAULTS    what FaultPlan::parse() reads
//   RANKLOOM_REPLAY    the path of a trace: Schedule::replay
//   RANKLOOM_BREAK_AT  RANK:GROUP:SEQ: WorldOptions::break_at
//   RANKLOOM_TRACE_LIMIT  a number: WorldOptions::trace_limit
//   RANKLOOM_STALL_IS_FATAL  a duration, "90s": WorldOptions::stall_is_fatal
// run_world(), explore() and the fixtures of rankloom/testing.h obey by themselves, and read RANKLOOM_REPLAY_RUN (of
// all runs and searches of the program, or of the test, only the N-th obeys; a trace belongs to the first),
// RANKLOOM_REPORT (a folder: runs that failed are written there as files for the command `rankloom`),
// RANKLOOM_TRACE_DIR and RANKLOOM_RANKS as well (docs/testing.md). This is for a program that makes its World itself;
// RunReport::write_run() writes the run of such a one. Errors: InvalidArgument that names the variable.
absl::Status apply_environment(WorldOptions* options);

}  // namespace rankloom

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sim/fault_plan.h"
#include "sim/schedule.h"

namespace rankloom {

// How a world runs. An aggregate; every field has a default.
struct WorldOptions {
  int world_size = 1;
  EngineKind engine = EngineKind::kThreads;
  Schedule schedule = {};  // unset: free() on threads, fifo() on fibers

  // RankContext::rng_seed() is derived from this and the rank. Unset: the schedule's seed.
  std::optional<uint64_t> seed = {};
  // For waits that name no timeout of their own. They fire, but do not keep a stuck job from being reported at once.
  absl::Duration timeout = absl::Minutes(30);

  // A finished call may complete as late as its wait, as the schedule says. Unset: in seeded and pct runs.
  std::optional<bool> late_completion = {};
  // Outputs of a call hold NaN or 0xEB bytes until it completes. Unset: in seeded and pct runs.
  std::optional<bool> poison = {};

  size_t stack_bytes = 128 * 1024;  // fibers: address space reserved for each stack; pages are touched on demand
  bool fresh_threads = false;       // threads: new ones, so that nobody's thread_locals leak in
  int recorded_calls = 64;          // flight recorder: calls kept per rank; 0: none

  // What goes wrong, and where: groups and the store are wrapped accordingly.
  FaultPlan faults = {};
  // Scheduling points after which a deterministic run counts as one that will never end; 0: no bound.
  uint64_t max_steps = 0;

  // Real time without a scheduling point after which a rank that should move is named; on_stall gets the text (unset:
  // stderr).
  absl::Duration stall = absl::Seconds(10);
  std::function<void(const std::string&)> on_stall = {};

  // What the program above knows of where its ranks are, appended to a deadlock's text: stacks of an interpreter. Called
  // with no lock held, while no rank moves.
  std::function<std::string()> whereabouts = {};
};

// The environment's wishes, which win over what a program says:
//   RANKLOOM_ENGINE    threads | fibers
//   RANKLOOM_SEED      a number: Schedule::seeded
//   RANKLOOM_SCHEDULE  what Schedule::parse() reads
//   RANKLOOM_FAULTS    what FaultPlan::parse() reads
//   RANKLOOM_REPLAY    the path of a trace: Schedule::replay
// Read here only; run_world() itself never looks at it. Errors: InvalidArgument that names the variable.
absl::Status apply_environment(WorldOptions* options);

// RANKLOOM_RANKS: how many ranks explore() shall use; 0: it does not say. Errors: InvalidArgument that names the variable.
absl::StatusOr<int> ranks_from_environment();

// The command that repeats a run of this process under `options`: variables, then the command line, quoted for a shell.
// `trace_path` not empty: the command that replays the trace saved there instead. Empty in the free gear.
std::string rerun_command(const WorldOptions& options, std::string_view trace_path = {});

// What the environment asks of whoever keeps traces (harness, bridge).
struct TraceFiles {
  std::string folder;    // RANKLOOM_TRACE_DIR: where traces of failed runs go; empty: the keeper's own choice
  int replayed_run = 1;  // RANKLOOM_REPLAY_RUN: which run of a test, from 1, the trace in RANKLOOM_REPLAY belongs to
};
// Errors: InvalidArgument that names the variable.
absl::StatusOr<TraceFiles> trace_files_from_environment();

}  // namespace rankloom

#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "rankloom/options.h"

namespace rankloom::internal {

// The number of the run, or search, that begins in this process, from 1: run_world() and explore() count together. 0
// for one within a rank, which that rank's run repeats: how many of those there are may depend on the machine's speed.
// Thread-safety: all threads.
int next_run();

// The part of a file's name for a run of this number: "3", or "-inner1" and so on for those within ranks.
// Thread-safety: all threads.
std::string name_of_run(int run);

// apply_environment() for the `run`-th run or search of this process, or of a test, from 1. RANKLOOM_REPLAY_RUN: that
// one obeys, all others run as the program says. Without it all obey, but for RANKLOOM_REPLAY: a trace fits the first
// only.
absl::Status apply_environment_to_run(int run, WorldOptions* options);

// RANKLOOM_RANKS: how many ranks the `run`-th search shall use; 0: not given, or not to this one. Errors:
// InvalidArgument that names the variable.
absl::StatusOr<int> ranks_from_environment(int run);

// A rerun command that is for the `run`-th run or search only. Empty stays empty.
std::string rerun_of_run(int run, std::string rerun);

// The command line of this process, quoted for a shell.
const std::string& program_command();

// The command that repeats a run of this process under `options`: variables, then the command line, quoted for a shell.
// `trace_path` not empty: the command that replays the trace saved there instead. Empty in the free gear.
std::string rerun_command(const WorldOptions& options, std::string_view trace_path = {});

// As one word of a shell's command line.
std::string shell_quoted(std::string_view word);

// Whether RANKLOOM_REPLAY names this file, which is not to be written then.
bool is_replayed_file(const std::string& path);

// Wishes of the environment to keepers of traces and runs (harness, bridge, run_world()).
struct RunFiles {
  std::string folder;    // RANKLOOM_TRACE_DIR: where traces of failed runs go; empty: the keeper's own choice
  std::string reports;   // RANKLOOM_REPORT: where runs that failed go as files; empty: nowhere
  int replayed_run = 1;  // RANKLOOM_REPLAY_RUN: which run, from 1, the trace in RANKLOOM_REPLAY belongs to
};
// Errors: InvalidArgument that names the variable.
absl::StatusOr<RunFiles> run_files_from_environment();
// Whether RANKLOOM_REPORT names a folder.
bool reports_are_wanted();

// How many processes an MPI launcher says that it started, and the variable that says so; 0: none did.
struct LaunchedProcesses {
  const char* variable = nullptr;
  int count = 0;
};
LaunchedProcesses launched_processes();

// Whether `stream` is a terminal that obeys escape sequences, by TERM.
bool is_terminal(std::FILE* stream);
// Whether texts on `stream` may be coloured: it is such a terminal, and NO_COLOR is unset or empty.
bool takes_colours(std::FILE* stream);

}  // namespace rankloom::internal

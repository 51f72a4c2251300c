#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "rankloom/options.h"
#include "rankloom/world.h"

namespace rankloom::internal {

// For tests, whose sources are the same for every MPI: nothing of MPI is said here.

// Initialises MPI, unless the program has. Throws DistError as run_mpi_world() does.
void need_mpi(CodeSite code = CodeSite::here());
// For explore(): the same, with the arguments of main(), by all processes of the job. Where one refuses, for its MPI or
// the version of its library, all do. `options`: what becomes of a wait for others, by `stall`. Collective.
void need_mpi_of_all(CodeSite code, const WorldOptions& options, int* argc, char*** argv);
// A call that all processes of the job make together. Throws InvalidArgument while this process is in another one, by
// another thread: the messages of two would be taken for each other's.
class CallOfJob {
 public:
  // `call`: as texts name it; a constant.
  CallOfJob(const char* call, CodeSite code);
  ~CallOfJob();
  CallOfJob(const CallOfJob&) = delete;
  CallOfJob& operator=(const CallOfJob&) = delete;
};
// While one lives, a program that ends MPI ends the job, with the text of what it did: MPI_Finalize() waits for
// processes that wait for this one. Also by exit(), if need_mpi() has initialised MPI.
class MpiInUse {
 public:
  // `call`: as texts name it; a constant.
  explicit MpiInUse(const char* call);
  ~MpiInUse();
  MpiInUse(const MpiInUse&) = delete;
  MpiInUse& operator=(const MpiInUse&) = delete;
};
// This process among those of the job, and how many they are.
int process_of_job();
int processes_of_job();
// Whether any process of the job says so. All of them ask.
bool any_process(bool mine);
// A bare MPI_Allreduce over all processes: the sum of floats. For measurements.
void bare_all_reduce(float* values, int count);

// run_mpi_world() on the first `processes` processes of the job only. All call; the others get the report, too.
RunReport run_on_first(int processes, WorldOptions options, absl::FunctionRef<void(RankContext&)> program,
                       bool compare_calls = true, CodeSite code = CodeSite::here());

// The same with several ranks in each of them.
RunReport run_on_first(int processes, WorldOptions options, int ranks_per_process,
                       absl::FunctionRef<void(RankContext&)> program, CodeSite code = CodeSite::here());

// The most bytes that processes tell each other of a run when it has ended, all of them together: 2^31 - 1, since MPI
// counts in int. Tests have less room.
extern int64_t most_report_bytes;

// So long, in real time, a process that has come to max_steps waits for the others to say where their ranks are. Tests
// have less time.
extern int64_t endless_grace_ns;

// From now on this process says to have that version of the library.
void pretend_version(std::string version);

}  // namespace rankloom::internal

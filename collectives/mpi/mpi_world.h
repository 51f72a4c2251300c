#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "rankloom/world.h"

namespace rankloom::internal {

// For tests, whose sources are the same for every MPI: nothing of MPI is said here.

// Initialises MPI, with the arguments of main() if given, unless the program has. Throws DistError as run_mpi_world()
// does; `call`: as texts name it.
void need_mpi(CodeSite code = CodeSite::here(), const char* call = "run_mpi_world", int* argc = nullptr,
              char*** argv = nullptr);
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

// From now on this process says to have that version of the library.
void pretend_version(std::string version);

}  // namespace rankloom::internal

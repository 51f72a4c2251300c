#include "collectives/mpi/abort_job.h"

#include <mpi.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

constexpr int kAbortMs = 2'000;
constexpr int kLauncherMs = 200;  // for launchers that pass on no text of processes that they end

std::atomic<bool> aborted{false};

}  // namespace

void abort_job() {
  std::fflush(nullptr);
  poll(nullptr, 0, kLauncherMs);
  // MPI_Abort() of MPICH ends the process by exit().
  aborted.store(true);
  // MPICH 4.0 over UCX waits in MPI_Abort() for messages of a process that calls MPI no more, and for ever if the
  // communicator is not MPI_COMM_WORLD. A launcher ends the job, too, when a process ends without MPI_Finalize().
  std::thread([] {
    poll(nullptr, 0, kAbortMs);
    _exit(EXIT_FAILURE);
  }).detach();
  MPI_Abort(MPI_COMM_WORLD, 1);
  _exit(EXIT_FAILURE);
}

bool job_is_aborted() { return aborted.load(); }

absl::Status first_cause(const std::vector<absl::Status>& causes) {
  for (const absl::Status& cause : causes) {
    if (!cause.ok()) return cause;
  }
  return absl::OkStatus();
}

std::string abort_text(const std::vector<absl::Status>& causes) {
  const absl::Status cause = first_cause(causes);
  return cause.ok() ? "" : absl::StrCat("\nwhy the run was aborted: ", message_of(cause));
}

}  // namespace rankloom::internal

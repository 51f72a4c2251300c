#pragma once

namespace rankloom::internal {

// Ends all processes of the job, also those that call MPI no more; what was written to stderr before is passed on by
// launchers. Some 2 s at most. Thread-safe.
[[noreturn]] void abort_job();

// Whether this process is on its way there: MPI is not finalized then.
bool job_is_aborted();

}  // namespace rankloom::internal

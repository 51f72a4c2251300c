#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace rankloom::internal {

// Ends all processes of the job, also those that call MPI no more; what was written to stderr before is passed on by
// launchers. Some 2 s at most. Thread-safe.
[[noreturn]] void abort_job();

// Whether this process is on its way there: MPI is not finalized then.
bool job_is_aborted();

// The cause of an aborted run, where each process may have told one: that of the lowest; OK: none has.
absl::Status first_cause(const std::vector<absl::Status>& causes);
// The same as the last line of the text with which a job ends; empty: the run was not aborted.
std::string abort_text(const std::vector<absl::Status>& causes);

}  // namespace rankloom::internal

#pragma once

#include <mpi.h>

#include <cstdint>
#include <string>

#include "rankloom/world.h"

namespace rankloom::internal {

// The ranks of this process.
struct RanksHere {
  int first = 0;
  int count = 1;
  bool has(int rank) const { return rank >= first && rank < first + count; }
};

// Puts together what the reports of all processes have of their own ranks, so that each has the whole: notes and faults
// in the order of ranks, and the calls and operations on the store for a run file. Times of a rank count from when its
// process began the run. Collective over `processes`.
// `most_bytes`: of all of them together, at most 2^31 - 1. A process with more than its share leaves out calls, its
// part of the run file, or notes and faults.
void gather_report(MPI_Comm processes, RanksHere here, int64_t most_bytes, RunReport* report);

// The text of process 0, in all processes. Collective.
void share_text(MPI_Comm processes, std::string* text);

}  // namespace rankloom::internal

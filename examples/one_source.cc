// The multi-rank test of README.md as a program: its ranks are threads of this process or, under mpirun, processes.
//     ./one_source
//     mpirun -n 4 ./one_source

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "rankloom/mpi.h"

using namespace rankloom;

namespace {

void adds_up_every_rank(RankContext& rank) {
  auto pg = init_process_group(rank);
  std::vector<float> x = {float(rank.rank()), 1.0f};
  pg->all_reduce(x, ReduceOp::kSum).wait();
  if (x[0] != 0 + 1 + 2 + 3 || x[1] != 4) throw std::runtime_error("the sum is wrong");
  if (rank.rank() == 0) std::printf("%d ranks add up to %g\n", rank.world_size(), x[0]);
}

// Launchers tell the processes that they start: Open MPI's; MPICH's, Intel's and Slurm's; those of PMIx.
bool under_mpi() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    if (std::getenv(variable) != nullptr) return true;
  }
  return false;
}

}  // namespace

int main() {
  const RunReport report =
      under_mpi() ? run_mpi_world({}, adds_up_every_rank) : run_world({.world_size = 4}, adds_up_every_rank);
  if (!report.ok()) std::puts(report.text().c_str());
  return report.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}

// A job of one kind each, for mpi_jobs_test.py: what goes wrong around run_mpi_world(), and what does not.

#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "collectives/mpi/mpi_engine.h"
#include "collectives/mpi/mpi_world.h"
#include "rankloom/mpi.h"

namespace {

using namespace rankloom;

int tell(const RunReport& report) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) std::printf("report: %s\n", report.text().c_str());
  std::fflush(stdout);
  return report.ok() ? 0 : 1;
}

// Before MPI is initialised.
int process() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (const char* const rank = std::getenv(variable); rank != nullptr) return std::atoi(rank);
  }
  return -1;
}

int run(const std::string& kind, const std::string& folder) {
  if (kind == "level" || (kind == "level_of_one" && process() == 1)) MPI_Init(nullptr, nullptr);
  if (kind == "finalized") {
    MPI_Init(nullptr, nullptr);
    MPI_Finalize();
  }
  WorldOptions options;
  if (kind == "size" || (kind == "size_of_one" && process() == 1)) options.world_size = 5;
  if (kind == "version" && process() == 1) internal::pretend_version("0.0.9");
  const bool compare_calls = !(kind == "comparison_of_one" && process() == 1);
  if (kind == "go_on") internal::abort_grace_ns = 1'000'000'000;
  const auto program = [&](RankContext& rank) {
    if (kind == "flight") {
      World& world = rank.world();
      world.at_end([&world, &folder] { traces::dump_flight_records(world, folder + "/fr_"); });
    }
    auto pg = init_process_group(rank);
    std::vector<float> x(100'000, static_cast<float>(rank.rank() + 1));
    pg->all_reduce(x).wait();
    if (kind == "kill" && rank.rank() == 1) kill(getpid(), SIGKILL);
    if (kind == "kill_in_call" && rank.rank() == 1) {
      Work work = pg->all_reduce(x);
      kill(getpid(), SIGKILL);
    }
    if (kind == "init" && rank.rank() == 1) MPI_Init(nullptr, nullptr);
    if (kind == "flight" && rank.rank() == 1) rank.store().wait({"0 has called", "2 has called"});
    if (kind == "flight" && rank.rank() != 1) {
      Work work = pg->all_reduce(x);
      rank.store().set(std::to_string(rank.rank()) + " has called", "");
      work.wait();
    }
    if ((kind == "throw" || kind == "flight") && rank.rank() == 1) throw std::runtime_error("the disk is full");
    if (kind == "go_on" && rank.rank() == 1) throw std::runtime_error("the disk is full");
    for (volatile bool computes = kind == "go_on"; computes;) usleep(1000);
    if (kind == "finalize" && rank.rank() == 1) MPI_Finalize();
    if (kind == "beside") {
      int sum = 0;
      const int one = 1;
      MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
      if (sum != rank.world_size()) throw std::runtime_error("MPI beside rankloom gave another sum");
    }
    pg->all_reduce(x).wait();
    if (rank.rank() == 0) std::printf("sum %g\n", static_cast<double>(x[99'999]));
  };
  return tell(run_mpi_world(options, program, compare_calls));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : ".");
  } catch (const DistError& error) {
    std::printf("refused: %s\n", error.what());
    std::fflush(stdout);
    // A launcher ends the others when a process goes without this, and what they say is lost.
    int initialized = 0;
    int finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (initialized != 0 && finalized == 0) MPI_Finalize();
    return 2;
  }
}

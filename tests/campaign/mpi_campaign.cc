// Random jobs over MPI: a process a rank, each with run_mpi_world() for one job after another. The ranks' sights must
// be those of the oracle, which has no part of MPI in it; and MPI itself makes once more what it can express of the
// job, for a comparison of the bits with the same oracle. Ends with 1 unless they agree, but for differences that are
// written down (kWrittenDifferences).
//   python3 tests/mpi/mpi_job.py ompi 4 build/tests/campaign/mpi_campaign_ompi [--jobs N] [--seed S]

#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <type_traits>

#include "rankloom/mpi.h"
#include "tests/campaign/mpi_repeated.h"
#include "tests/campaign/number_flags.h"
#include "tests/campaign/oracle.h"
#include "tests/campaign/run_job.h"
#include "tests/campaign/todays_seed.h"

namespace {

using namespace rankloom;

// The sum of what the processes have counted.
Repeated of_all_processes(const Repeated& own) {
  static_assert(std::is_trivially_copyable_v<Repeated> && sizeof(Repeated) % sizeof(int64_t) == 0);
  Repeated all;
  MPI_Allreduce(&own, &all, static_cast<int>(sizeof(Repeated) / sizeof(int64_t)), MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  return all;
}

// The fault that this process finds wrong with a job in its world.
std::optional<std::string> wrong_with_world(const Plan& plan, const JobLog& expected, int rank) {
  JobRun run;
  run.log = expected;  // other ranks' sights are those of their processes
  RankLog& mine = run.log[static_cast<size_t>(rank)];
  mine = {};
  Beside beside;
  run.report = run_mpi_world({.seed = static_cast<uint64_t>(plan.job().seed)},
                             [&](RankContext& context) { run_rank(plan, context, &mine, &beside, nullptr); });
  if (!beside.memory.rests()) return "somebody wrote to tensors after their calls were done";
  return wrong_with(plan, expected, run);
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  int size = 0, rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (const char* const asked = std::getenv("MPI_JOB_PROCESSES"); asked != nullptr && std::atoi(asked) != size) {
    std::printf("%d processes, want %s: a launcher of another MPI?\n", size, asked);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  uint64_t jobs = 200, seed = todays_seed();
  if (!read_number_flags(argc, argv, {{"--jobs", &jobs}, {"--seed", &seed}})) MPI_Abort(MPI_COMM_WORLD, 2);
  MPI_Bcast(&seed, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);  // midnight may come between two processes
  int wrong = 0;
  size_t acts = 0;
  Repeated repeated;
  for (uint64_t i = 0; i < jobs; ++i) {
    const Job job = draw_job(seed + i, Palette::kMpi, size);
    const Plan plan(job);
    Given given;
    const JobLog expected = oracle(plan, &given);
    acts += job.acts.size();
    if (const auto what = wrong_with_world(plan, expected, rank)) {
      ++wrong;
      std::printf("seed %lu, rank %d: %s\n%s", seed + i, rank, what->c_str(), to_text(job).c_str());
    }
    repeat_by_mpi(plan, given, seed + i, &repeated);
  }
  int all_wrong = 0;
  MPI_Allreduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  const Repeated all = of_all_processes(repeated);
  const Repeated::Row sum = all.sum();
  if (rank == 0) {
    std::printf(
        "%s%lu jobs of %zu acts by %d processes, seeds from %lu on: %d wrong; %ld calls by MPI itself: of %ld "
        "results %ld are exact, %ld differ in written ways, %ld otherwise\n",
        all.text().c_str(), jobs, acts, size, seed, all_wrong, sum.calls, sum.results, sum.exact, sum.written,
        sum.wrong);
  }
  MPI_Finalize();
  return all_wrong == 0 && sum.wrong == 0 && (sum.calls > 0 || size == 1 || jobs < 20) ? 0 : 1;
}

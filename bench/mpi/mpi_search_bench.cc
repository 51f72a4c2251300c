// explore() by the processes of a job beside one by each of them alone: runs a second of real time, and processor time
// of a run, whoever else uses the machine. The thread that leads tells of progress, and so of its own processor time,
// whose share is to stay under 2 % where nothing else runs: it looks for messages a thousand times a second.
//   python3 tests/mpi/mpi_job.py ompi 2 build/bench/mpi/mpi_search_bench_ompi

#include <mpi.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "rankloom/explore.h"
#include "rankloom/mpi.h"

namespace {

using namespace rankloom;

void reduce_ten_times(RankContext& rank) {
  auto pg = init_process_group(rank);
  std::vector<float> x = {1.0F + static_cast<float>(rank.rank())};
  for (int i = 0; i < 10; ++i) pg->all_reduce(x, ReduceOp::kMax).wait();
}

// Three ranks have 15! / 5!^3 = 756,756 orders of their appends.
void append_to_one_key(RankContext& rank) {
  reduce_ten_times(rank);
  for (int i = 0; i < 5; ++i) rank.store().append("log", std::to_string(rank.rank()));
}

double cpu_seconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

// Between the first and the last time that the thread that leads told of progress.
class Leading {
 public:
  void tell(int64_t runs) {
    timespec now = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    if (!told_) thread_ = std::this_thread::get_id();
    if (std::this_thread::get_id() != thread_) return;  // the last time of all is another thread's
    const double seconds = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
    if (!std::exchange(told_, true)) {
      first_seconds_ = seconds;
      first_runs_ = runs;
    }
    seconds_ = seconds - first_seconds_;
    runs_ = runs - first_runs_;
  }
  double us_of_a_run() const { return runs_ > 0 ? seconds_ * 1e6 / static_cast<double>(runs_) : 0; }

 private:
  bool told_ = false;
  std::thread::id thread_;
  double first_seconds_ = 0;
  double seconds_ = 0;
  int64_t first_runs_ = 0;
  int64_t runs_ = 0;
};

struct Measured {
  double runs_a_second = 0;
  double cpu_us = 0;  // of a run
};

Measured measured(const ExploreReport& report, double cpu, bool together) {
  if (!report.ok()) std::puts(report.text().c_str());
  double all_cpu = cpu;
  auto all_runs = static_cast<double>(report.runs);
  MPI_Allreduce(MPI_IN_PLACE, &all_cpu, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  if (!together) MPI_Allreduce(MPI_IN_PLACE, &all_runs, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return {.runs_a_second = static_cast<double>(report.runs) / absl::ToDoubleSeconds(report.elapsed),
          .cpu_us = all_cpu * 1e6 / all_runs};
}

}  // namespace

int main(int argc, char** argv) {
  (void)explore(&argc, &argv, {.max_runs = 1}, reduce_ten_times);  // starts MPI
  int process = 0;
  int processes = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &process);
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  for (const Strategy& strategy : {Strategy::random(), Strategy::exhaustive()}) {
    const bool all = strategy.kind == Strategy::Kind::kExhaustive;
    const ExploreOptions options{.world = {.world_size = all ? 3 : 4, .engine = EngineKind::kFibers},
                                 .strategies = {strategy},
                                 .max_runs = 200'000};
    const auto program = all ? append_to_one_key : reduce_ten_times;
    for (int round = 0; round < 3; ++round) {
      MPI_Barrier(MPI_COMM_WORLD);
      double cpu = cpu_seconds();
      const ExploreReport own = explore(options, program);
      cpu = cpu_seconds() - cpu;
      const Measured alone = measured(own, cpu, /*together=*/false);
      MPI_Barrier(MPI_COMM_WORLD);
      cpu = cpu_seconds();
      Leading leading;
      ExploreOptions told = options;
      told.progress = [&leading](const ExploreOptions::Progress& progress) { leading.tell(progress.runs); };
      const ExploreReport shared = explore(&argc, &argv, told, program);
      cpu = cpu_seconds() - cpu;
      const Measured together = measured(shared, cpu, /*together=*/true);
      if (process != 0) continue;
      std::printf("%s, %d processes: %.0f runs a second, %.2f times one process\n", strategy.name().c_str(), processes,
                  together.runs_a_second, together.runs_a_second / alone.runs_a_second);
      std::printf("  processor time of a run %.2f us, of one process %.2f us; of it dealing out %.3f us, %.2f %%\n",
                  together.cpu_us, alone.cpu_us, leading.us_of_a_run(), 100 * leading.us_of_a_run() / together.cpu_us);
      std::fflush(stdout);
    }
  }
  return 0;
}

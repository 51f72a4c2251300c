// A round of a world with many ranks in each process, all_reduce of one float and barrier, in milliseconds: the median
// of seven. Ranks are fibers with small stacks.
//   python3 tests/mpi/mpi_job.py mpich 2 build/bench/mpi/host_bench_mpich 250000
// With one process: the same ranks without a word to others.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/time/clock.h"
#include "collectives/mpi/mpi_world.h"
#include "rankloom/mpi.h"

namespace {

using namespace rankloom;

constexpr int kRounds = 7;

// Of rank 0, which is the first to come and the first to go on.
double median_ms(std::vector<double> rounds) {
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int each = argc > 1 ? std::atoi(argv[1]) : 1000;
  std::vector<double> reduces;
  std::vector<double> barriers;
  const auto measure = [](std::vector<double>* rounds, int rank, auto call) {
    for (int i = -1; i < kRounds; ++i) {
      const int64_t begun_ns = absl::GetCurrentTimeNanos();
      call();
      if (rank == 0 && i >= 0) rounds->push_back(static_cast<double>(absl::GetCurrentTimeNanos() - begun_ns) / 1e6);
    }
  };
  const RunReport report = run_mpi_world({.stack_bytes = 32 * 1024}, each, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    float x = 1;
    const TensorView one(&x, DType::kFloat32, Dims::of(1));
    measure(&reduces, rank.rank(), [&] { pg->all_reduce(one, ReduceOp::kMax).wait(); });
    measure(&barriers, rank.rank(), [&] { pg->barrier().wait(); });
  });
  if (internal::process_of_job() == 0 && report.ok()) {
    std::printf("%d processes of %d ranks: all_reduce %.1f ms, barrier %.1f ms\n", internal::processes_of_job(), each,
                median_ms(reduces), median_ms(barriers));
  }
  if (!report.ok()) std::puts(report.text().c_str());
  return report.ok() ? 0 : 1;
}

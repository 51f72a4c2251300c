// all_reduce of a group over MPI beside a bare MPI_Allreduce, in one job: microseconds of one call, the best of five
// rounds, since others use the machine as well. With the comparison of the members' calls and without it.
//   python3 tests/mpi/mpi_job.py ompi 2 build/bench/mpi/mpi_bench_ompi

#include <algorithm>
#include <cstdio>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/mpi/mpi_world.h"
#include "rankloom/mpi.h"

namespace {

using namespace rankloom;

constexpr int kRounds = 5;

// Of one call, each of which every rank makes.
template <typename Call>
double best_us(int calls, Call call) {
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < 3; ++i) call();
    const int64_t begun_ns = absl::GetCurrentTimeNanos();
    for (int i = 0; i < calls; ++i) call();
    const double us = static_cast<double>(absl::GetCurrentTimeNanos() - begun_ns) / 1000 / calls;
    best = round == 0 ? us : std::min(best, us);
  }
  return best;
}

void measure(bool compare_calls, bool* ok) {
  const RunReport report = run_mpi_world(
      {},
      [compare_calls](RankContext& rank) {
        auto pg = init_process_group(rank);
        for (const size_t count : {size_t{1}, size_t{1024}, size_t{1} << 20}) {
          std::vector<float> x(count);
          const int calls = count < 100'000 ? 2000 : 40;
          const double bare = best_us(calls, [&] { internal::bare_all_reduce(x.data(), static_cast<int>(x.size())); });
          const double ours = best_us(calls, [&] { pg->all_reduce(x).wait(); });
          if (rank.rank() == 0) {
            std::printf(
                "%d ranks, %zu floats, %s: MPI_Allreduce %.2f us, all_reduce %.2f us, %.2f us more, %.2f times\n",
                rank.world_size(), count, compare_calls ? "compared" : "not compared", bare, ours, ours - bare,
                ours / bare);
          }
        }
      },
      compare_calls);
  if (report.ok()) return;
  *ok = false;
  std::puts(report.text().c_str());
}

}  // namespace

int main() {
  internal::need_mpi();
  bool ok = true;
  measure(/*compare_calls=*/true, &ok);
  measure(/*compare_calls=*/false, &ok);
  return ok ? 0 : 1;
}

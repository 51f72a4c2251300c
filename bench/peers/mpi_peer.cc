// The same operations through MPI: built with the compiler wrapper of each MPI, run by its mpirun.
//   mpi_peer OP RANKS COUNT SECONDS

#include <mpi.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <vector>

#include "bench/peers/peer_bench.h"

using rankloom::peers::Question;

namespace {

// Real time: MPI_Wtime() is simulated in SMPI.
double now_ns() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 5) return 2;
  Question question{argv[1], std::atoi(argv[2]), std::atoll(argv[3]), std::atof(argv[4])};
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const int ranks = question.ranks;
  const auto count = static_cast<int>(question.elements());
  const auto part = static_cast<int>(question.part());
  std::vector<float> x(static_cast<size_t>(count), 1.0F);
  std::vector<float> y(static_cast<size_t>(count), 1.0F);
  std::function<void()> call;
  if (question.op == "all_reduce") {
    call = [&] { MPI_Allreduce(MPI_IN_PLACE, x.data(), count, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD); };
  } else if (question.op == "all_gather") {
    call = [&] { MPI_Allgather(x.data(), part, MPI_FLOAT, y.data(), part, MPI_FLOAT, MPI_COMM_WORLD); };
  } else if (question.op == "reduce_scatter") {
    call = [&] { MPI_Reduce_scatter_block(x.data(), y.data(), part, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD); };
  } else if (question.op == "all_to_all") {
    call = [&] { MPI_Alltoall(x.data(), part, MPI_FLOAT, y.data(), part, MPI_FLOAT, MPI_COMM_WORLD); };
  } else if (question.op == "broadcast") {
    call = [&] { MPI_Bcast(x.data(), count, MPI_FLOAT, 0, MPI_COMM_WORLD); };
  } else if (question.op == "send_recv") {
    call = [&] {
      MPI_Sendrecv(x.data(), count, MPI_FLOAT, (rank + 1) % ranks, 0, y.data(), count, MPI_FLOAT,
                   (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    };
  } else if (question.op == "barrier") {
    call = [] { MPI_Barrier(MPI_COMM_WORLD); };
  } else {
    return 2;
  }
  MPI_Barrier(MPI_COMM_WORLD);
  double begin = now_ns();
  for (int i = 0; i < rankloom::peers::kWarmUp; ++i) call();
  long long batch = rankloom::peers::batch_size(question.seconds, now_ns() - begin);
  MPI_Bcast(&batch, 1, MPI_LONG_LONG, 0, MPI_COMM_WORLD);
  std::vector<double> batches_ns;
  for (int b = 0; b < rankloom::peers::kBatches; ++b) {
    MPI_Barrier(MPI_COMM_WORLD);
    begin = now_ns();
    for (long long i = 0; i < batch; ++i) call();
    batches_ns.push_back(now_ns() - begin);
  }
  if (rank == 0) rankloom::peers::answer(batches_ns, batch);
  MPI_Finalize();
  return 0;
}

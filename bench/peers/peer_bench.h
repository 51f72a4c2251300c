#pragma once

// How every program of the comparison times an operation, so that only the library differs.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace rankloom::peers {

// The arguments of the command line: OP RANKS COUNT SECONDS.
//   op     all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send_recv (a ring: to the next rank, from the
//          one before), barrier, or world: set-up and tear-down, with one barrier between them
//   count  float32 elements of a member's larger buffer: the input of reduce_scatter, the output of all_gather. Rounded
//          up to a multiple of the ranks where a buffer has one part for each
struct Question {
  std::string op;
  int ranks = 0;
  int64_t count = 0;
  double seconds = 0;

  int64_t part() const { return std::max<int64_t>(1, count / ranks); }
  bool in_parts() const { return op == "all_gather" || op == "reduce_scatter" || op == "all_to_all"; }
  int64_t elements() const { return in_parts() ? part() * ranks : count; }
};

constexpr int kBatches = 5;
constexpr int kWarmUp = 3;

// Run by rank 0 between operations: from the time of the warm-up to how many operations make a batch.
inline int64_t batch_size(double seconds, double warm_up_ns) {
  const double one = std::max(1.0, warm_up_ns / kWarmUp);
  return std::clamp<int64_t>(static_cast<int64_t>(seconds * 1e9 / kBatches / one), 1, 1'000'000);
}

// One line for the script: nanoseconds of one operation over all ranks, the median of the batches.
inline void answer(std::vector<double> batches_ns, int64_t operations) {
  std::sort(batches_ns.begin(), batches_ns.end());
  std::printf("ns_per_op %.1f\n", batches_ns[batches_ns.size() / 2] / static_cast<double>(operations));
}

}  // namespace rankloom::peers

// The cost of a rank in large worlds: scale/operation/ranks, fibers, all checks on. The figures per rank stay flat if
// nothing grows faster than the world.

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "bench/floors.h"
#include "benchmark/benchmark.h"
#include "rankloom/process_group.h"
#include "rankloom/world.h"
#include "sim/base/parker.h"

namespace rankloom {

using namespace internal;

namespace {

// A line of /proc that counts KiB, such as "VmRSS:"; 0 if there is none.
int64_t kib_of(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    int64_t kib = 0;
    if (word == key && file >> kib) return kib;
  }
  return 0;
}
int64_t resident_kib() { return kib_of("/proc/self/status", "VmRSS:"); }
int64_t available_kib() { return kib_of("/proc/meminfo", "MemAvailable:"); }

// One call of every rank is a round. Counters, each for one rank:
//   round_ns        a round, the mean of several: who comes last in one comes first in the next, and sees long and
//                   short ones. Those before fill the flight recorders (calls of one element), whose memory is touched
//                     first then
//   set_up_ns       from the call of run_world() to the end of that first round
//   tear_down_ns    from the last round to the return of run_world()
//   kib             memory that the process has then, beyond what it had before
// `call` makes one call and waits for it; each rank has `elements` of each, input and output.
template <typename Call>
void scale(benchmark::State& state, int ranks, int64_t elements, Call call) {
  const int measured = static_cast<int>(std::clamp<int64_t>(1'000'000 / (ranks * elements), 8, 100));
  const int warm_up = elements > 1 ? 2 : ranks <= 10'000 ? 64 : 9;
  const int64_t need_kib = int64_t{ranks} * (12 + elements * 8 / 1024);
  if (available_kib() < need_kib) {
    state.SkipWithError(("needs " + std::to_string(need_kib >> 20) + " GiB of free memory").c_str());
    return;
  }
  for (auto _ : state) {
    const WorldOptions options = world_of(EngineKind::kFibers, ranks);
    const int64_t before_kib = resident_kib();
    std::vector<int64_t> round_ends;
    double kib = 0;
    const int64_t begin = monotonic_ns();
    run_world(options, [&](RankContext& rank) {
      const auto pg = init_process_group(rank);
      std::vector<float> x(static_cast<size_t>(elements), 1.0F);
      std::vector<float> y(static_cast<size_t>(elements));
      for (int i = 0; i < warm_up + measured; ++i) {
        call(*pg, x, y);
        if (rank.rank() == ranks - 1) round_ends.push_back(monotonic_ns());
      }
      if (rank.rank() == ranks - 1) kib = static_cast<double>(resident_kib() - before_kib);
    }).throw_if_failed();
    const int64_t end = monotonic_ns();
    const double round =
        static_cast<double>(round_ends.back() - round_ends[static_cast<size_t>(warm_up - 1)]) / measured;
    state.SetIterationTime(round * 1e-9);
    state.counters["ns_per_op"] = round;
    state.counters["round_ns"] = round / ranks;
    state.counters["set_up_ns"] = static_cast<double>(round_ends.front() - begin) / ranks;
    state.counters["tear_down_ns"] = static_cast<double>(end - round_ends.back()) / ranks;
    state.counters["kib"] = kib / ranks;
  }
}

template <typename Call>
void add(const std::string& op, Call call) {
  for (const int ranks : {1'000, 10'000, 100'000, 1'000'000}) {
    const bool to_all = op != "all_reduce" && op != "barrier";
    if (to_all && ranks > 10'000) continue;  // each rank has an element for each other
    benchmark::RegisterBenchmark(("scale/" + op + "/" + std::to_string(ranks)).c_str(),
                                 [=](benchmark::State& state) { scale(state, ranks, to_all ? ranks : 1, call); })
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond)
        ->Iterations(1);
  }
}

const int registered = [] {
  using Floats = std::vector<float>;
  add("all_reduce", [](ProcessGroup& pg, Floats& x, Floats&) { pg.all_reduce(x, ReduceOp::kMax).wait(); });
  add("barrier", [](ProcessGroup& pg, Floats&, Floats&) { pg.barrier().wait(); });
  add("all_to_all", [](ProcessGroup& pg, Floats& x, Floats& y) { pg.all_to_all_single(y, x).wait(); });
  add("all_gather", [](ProcessGroup& pg, Floats& x, Floats& y) {
    pg.all_gather_into_tensor(y, std::span<const float>(x.data(), 1)).wait();
  });
  add("reduce_scatter", [](ProcessGroup& pg, Floats& x, Floats& y) {
    pg.reduce_scatter_tensor(std::span<float>(y.data(), 1), x, ReduceOp::kMax).wait();
  });
  return 0;
}();

}  // namespace
}  // namespace rankloom

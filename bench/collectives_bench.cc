// Collectives through the front, with all checks on, against a floor that is measured in the same run:
//   N x 1         N times park + unpark of the engine
//   N x 1024      the kernel alone, plus N times park + unpark
//   N x 1048576   2 * bytes / speed of a copy by all cores over the same working set
// One operation is one call of every rank. Names: engine/operation/ranks x elements.

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/floors.h"
#include "benchmark/benchmark.h"
#include "collectives/kernels/kernels.h"
#include "collectives/process_group.h"
#include "sim/scheduler.h"
#include "world/world.h"

namespace rankloom {
namespace {

double kernel_ns(int ranks, int64_t count) {
  std::vector<std::vector<float>> buffers(static_cast<size_t>(ranks),
                                          std::vector<float>(static_cast<size_t>(count), 1.0F));
  std::vector<CollectiveCall> calls(static_cast<size_t>(ranks));
  std::vector<const CollectiveCall*> by_rank;
  for (int r = 0; r < ranks; ++r) {
    CollectiveCall& call = calls[static_cast<size_t>(r)];
    call.op = OpType::kAllReduce;
    call.reduce_op = ReduceOp::kMax;
    call.inputs.set(TensorView(buffers[static_cast<size_t>(r)]));
    call.outputs.set(TensorView(buffers[static_cast<size_t>(r)]));
    by_rank.push_back(&call);
  }
  const int rounds = static_cast<int>(std::max<int64_t>(5, 20'000'000 / (count * ranks + 1000)));
  const int64_t begin = monotonic_ns();
  for (int i = 0; i < rounds; ++i) run_all_reduce(by_rank);
  return static_cast<double>(monotonic_ns() - begin) / rounds;
}

// 2 * bytes / the speed at which all cores copy a working set of this size.
double copy_floor_ns(int ranks, int64_t count) {
  const size_t bytes = static_cast<size_t>(ranks) * static_cast<size_t>(count) * sizeof(float);
  std::vector<char> from(bytes, 1), to(bytes, 2);
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  double best = 1e18;
  for (int i = 0; i < 10; ++i) {
    const int64_t begin = monotonic_ns();
    std::vector<std::thread> threads;
    for (unsigned c = 0; c < cores; ++c) {
      threads.emplace_back(
          [&, c] { std::memcpy(to.data() + bytes / cores * c, from.data() + bytes / cores * c, bytes / cores); });
    }
    for (std::thread& thread : threads) thread.join();
    best = std::min(best, static_cast<double>(monotonic_ns() - begin));
  }
  // A copy of `bytes` reads and writes once each: 2 * bytes of traffic, as the reduction in place does.
  return best;
}

void all_reduce(benchmark::State& state, EngineKind engine, int ranks, int64_t count) {
  double floor = count <= 1       ? ranks * park_unpark_ns(engine, ranks)
                 : count <= 65536 ? kernel_ns(ranks, count) + ranks * park_unpark_ns(engine, ranks)
                                  : copy_floor_ns(ranks, count);
  int64_t operations = 0;
  int64_t spent = 0;
  for (auto _ : state) {
    const int rounds = static_cast<int>(std::max<int64_t>(10, 4'000'000 / (ranks * (count + 100))));
    int64_t ns = 0;
    run_world(world_of(engine, ranks), [&](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<float> x(static_cast<size_t>(count), 1.0F);
      for (int i = 0; i < 3; ++i) pg->all_reduce(x, ReduceOp::kMax).wait();
      const int64_t begin = monotonic_ns();
      for (int i = 0; i < rounds; ++i) pg->all_reduce(x, ReduceOp::kMax).wait();
      if (rank.rank() == 0) ns = monotonic_ns() - begin;
    }).throw_if_failed();
    operations += rounds;
    spent += ns;
    state.SetIterationTime(static_cast<double>(ns) * 1e-9);
  }
  const double per_op = static_cast<double>(spent) / static_cast<double>(operations);
  state.counters["ns_per_op"] = per_op;
  state.counters["floor_ns"] = floor;
  state.counters["ratio"] = per_op / floor;
}

// A world of this many ranks, made, run and torn down.
void world_setup(benchmark::State& state, EngineKind engine, int ranks) {
  for (auto _ : state) run_world(world_of(engine, ranks), [](RankContext&) {}).throw_if_failed();
}

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

// Seeded runs of 4 ranks and 10 collectives, from world to report.
void seeded_runs(benchmark::State& state) {
  uint64_t seed = 0;
  for (auto _ : state) {
    WorldOptions options = world_of(EngineKind::kFibers, 4);
    options.schedule = Schedule::seeded(seed++);
    run_world(options, [](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<float> x(4, 1.0F);
      for (int i = 0; i < 10; ++i) pg->all_reduce(x).wait();
    }).throw_if_failed();
  }
  state.counters["runs_per_second"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

// One all_reduce over so many fiber ranks, each with a group, checks and record: the time of a round once all have come, and
// what memory the process has then.
void many_ranks(benchmark::State& state, int ranks) {
  const int64_t need_kib = int64_t{ranks} * 12;
  if (available_kib() < need_kib) {
    state.SkipWithError(("needs " + std::to_string(need_kib >> 20) + " GiB of free memory").c_str());
    return;
  }
  constexpr int kRounds = 3;
  for (auto _ : state) {
    int64_t began = 0;
    int64_t ended = 0;
    WorldOptions options = world_of(EngineKind::kFibers, ranks);
    options.stack_bytes = 16 * 1024;
    options.recorded_calls = 4;
    const int64_t before_kib = resident_kib();
    run_world(options, [&](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<float> x(1, 1.0F);
      pg->all_reduce(x).wait();  // touches what the rounds use
      if (rank.rank() == ranks - 1) began = monotonic_ns();
      for (int i = 0; i < kRounds; ++i) pg->all_reduce(x, ReduceOp::kMax).wait();
      if (rank.rank() == ranks - 1) {
        ended = monotonic_ns();
        state.counters["gib"] = static_cast<double>(resident_kib() - before_kib) / (1 << 20);
      }
    }).throw_if_failed();
    state.SetIterationTime(static_cast<double>(ended - began) * 1e-9 / kRounds);
    state.counters["ns_per_op"] = static_cast<double>(ended - began) / kRounds;
  }
}

const int registered = [] {
  struct Shape {
    int ranks;
    int64_t count;
  };
  for (const EngineKind engine : {EngineKind::kFibers, EngineKind::kThreads}) {
    const std::string name(engine_kind_name(engine));
    for (const Shape shape : {Shape{4, 1}, Shape{4, 1024}, Shape{16, 1024}, Shape{64, 1024}, Shape{4, 1048576}}) {
      benchmark::RegisterBenchmark(
          (name + "/all_reduce/" + std::to_string(shape.ranks) + "x" + std::to_string(shape.count)).c_str(),
          [=](benchmark::State& state) { all_reduce(state, engine, shape.ranks, shape.count); })
          ->UseManualTime()
          ->Iterations(5);
    }
    benchmark::RegisterBenchmark((name + "/world/64").c_str(), [=](benchmark::State& state) {
      world_setup(state, engine, 64);
    })->UseRealTime();
  }
  benchmark::RegisterBenchmark("fibers/seeded_run/4x10", seeded_runs)->UseRealTime();
  for (const int ranks : {100'000, 1'000'000}) {
    benchmark::RegisterBenchmark(("fibers/all_reduce/" + std::to_string(ranks) + "x1").c_str(),
                                 [=](benchmark::State& state) { many_ranks(state, ranks); })
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond)
        ->Iterations(1);
  }
  return 0;
}();

}  // namespace
}  // namespace rankloom

// Collectives through the front, with all checks on, against a floor that is measured in the same run:
//   N x 1         N times park + unpark of the engine
//   N x 1024      the kernel alone, plus N times park + unpark
//   N x 1048576   2 * bytes / speed of a copy by all cores over the same working set
// One operation is one call of every rank. Names: engine/operation/ranks x elements.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bench/floors.h"
#include "benchmark/benchmark.h"
#include "collectives/kernels/kernels.h"
#include "rankloom/process_group.h"
#include "rankloom/world.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom {

using namespace internal;

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

void all_reduce(benchmark::State& state, EngineKind engine, int ranks, int64_t count) {
  double floor = count <= 1       ? ranks * park_unpark_ns(engine, ranks)
                 : count <= 65536 ? kernel_ns(ranks, count) + ranks * park_unpark_ns(engine, ranks)
                                  : copy_ns(static_cast<size_t>(ranks) * static_cast<size_t>(count) * sizeof(float));
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
  return 0;
}();

}  // namespace
}  // namespace rankloom

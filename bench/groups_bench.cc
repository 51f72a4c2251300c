// Point-to-point, groups of groups, and what the flight recorder costs:
//   p2p/ping_pong/2      one message of one element, against one park + unpark
//   p2p/ring/64x1024     every rank sends to the next one: one round of all, against 64 park + unpark and the copies
//   mesh/8x8             one all_reduce of one rank along either dimension, against the same in a world of 8
//   flight_recorder/...  one call's record, written and closed; 4 x 1 all_reduce with and without

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "bench/floors.h"
#include "benchmark/benchmark.h"
#include "rankloom/device_mesh.h"
#include "rankloom/process_group.h"
#include "rankloom/world.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

// Many short runs rather than few long ones, of which the best counts: others on the machine only add.
int repetitions(EngineKind engine) { return engine == EngineKind::kFibers ? 60 : 5; }

// Runs `program` in worlds of this kind; it returns the nanoseconds that `rounds` operations took.
template <typename Program>
double best_ns(const WorldOptions& options, int rounds, Program program) {
  double best = 0;
  for (int i = 0; i < repetitions(options.engine); ++i) {
    int64_t ns = 0;
    run_world(options, [&](RankContext& rank) {
      const int64_t mine = program(rank, rounds);
      if (rank.rank() == 0) ns = mine;
    }).throw_if_failed();
    const double per_round = static_cast<double>(ns) / rounds;
    if (i == 0 || per_round < best) best = per_round;
  }
  return best;
}

double best_park_unpark_ns(EngineKind engine, int ranks) {
  double best = park_unpark_ns(engine, ranks, 100);
  for (int i = 1; i < repetitions(engine); ++i) best = std::min(best, park_unpark_ns(engine, ranks, 100));
  return best;
}

void report(benchmark::State& state, double ns, double floor_ns) {
  for (auto _ : state) state.SetIterationTime(ns * 1e-9);
  state.counters["ns_per_op"] = ns;
  state.counters["floor_ns"] = floor_ns;
  state.counters["ratio"] = ns / floor_ns;
}

// A message there and one back: two of them.
void ping_pong(benchmark::State& state, EngineKind engine) {
  const int rounds = engine == EngineKind::kFibers ? 3'000 : 300;
  const double ns = best_ns(world_of(engine, 2), rounds, [](RankContext& rank, int n) {
    auto pg = init_process_group(rank);
    std::vector<float> x(1);
    const int other = 1 - rank.rank();
    const auto once = [&] {
      if (rank.rank() == 0) pg->send(x, other).wait();
      pg->recv(x, other).wait();
      if (rank.rank() == 1) pg->send(x, other).wait();
    };
    for (int i = 0; i < 100; ++i) once();
    const int64_t begin = monotonic_ns();
    for (int i = 0; i < n; ++i) once();
    return monotonic_ns() - begin;
  });
  report(state, ns / 2, best_park_unpark_ns(engine, 2));
}

double copies_ns(int ranks, size_t bytes) {
  std::vector<std::vector<char>> from(static_cast<size_t>(ranks), std::vector<char>(bytes, 1)), to = from;
  int64_t best = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < 500; ++i) {
    const int64_t begin = monotonic_ns();
    for (size_t r = 0; r < from.size(); ++r) std::memcpy(to[r].data(), from[r].data(), bytes);
    benchmark::ClobberMemory();
    best = std::min(best, monotonic_ns() - begin);
  }
  return static_cast<double>(best);
}

void ring(benchmark::State& state, EngineKind engine, int ranks, int64_t count) {
  const int rounds = engine == EngineKind::kFibers ? 20 : 5;
  const double ns = best_ns(world_of(engine, ranks), rounds, [count](RankContext& rank, int n) {
    auto pg = init_process_group(rank);
    std::vector<float> mine(static_cast<size_t>(count)), other(static_cast<size_t>(count));
    const int next = (pg->rank() + 1) % pg->size();
    const int last = (pg->rank() + pg->size() - 1) % pg->size();
    const auto once = [&] {
      Work sent = pg->send(mine, next);
      pg->recv(other, last).wait();
      sent.wait();
    };
    for (int i = 0; i < 10; ++i) once();
    pg->barrier().wait();
    const int64_t begin = monotonic_ns();
    for (int i = 0; i < n; ++i) once();
    pg->barrier().wait();
    return monotonic_ns() - begin;
  });
  report(state, ns,
         ranks * best_park_unpark_ns(engine, ranks) + copies_ns(ranks, static_cast<size_t>(count) * sizeof(float)));
}

// One all_reduce of 64 elements, per rank: 2 * 64 of them in a mesh of 8 x 8 whose ranks reduce along one dimension and
// then the other, 8 in a world of 8.
void mesh(benchmark::State& state, EngineKind engine) {
  const int rounds = engine == EngineKind::kFibers ? 20 : 5;
  const auto reductions = [](std::vector<std::shared_ptr<ProcessGroup>> groups, ProcessGroup& all, int n) {
    std::vector<float> x(64, 1);
    const auto once = [&] {
      for (const std::shared_ptr<ProcessGroup>& group : groups) group->all_reduce(x, ReduceOp::kMax).wait();
    };
    for (int i = 0; i < 10; ++i) once();
    all.barrier().wait();
    const int64_t begin = monotonic_ns();
    for (int i = 0; i < n; ++i) once();
    all.barrier().wait();
    return monotonic_ns() - begin;
  };
  const double of_mesh = best_ns(world_of(engine, 64), rounds, [&](RankContext& rank, int n) {
    const DeviceMesh both = init_device_mesh(rank, {8, 8});
    return reductions({both.get_group(0), both.get_group(1)}, *both.base(), n);
  });
  const double of_one = best_ns(world_of(engine, 8), rounds, [&](RankContext& rank, int n) {
    auto pg = init_process_group(rank);
    return reductions({pg}, *pg, n);
  });
  report(state, of_mesh / (2 * 64), of_one / 8);
}

// The work of ProcessGroup::record() and of the completion of a call.
void recorder(benchmark::State& state) {
  World world(world_of(EngineKind::kFibers, 1));
  RankRecorder& recorder = state_of(world).context(0).recorder();
  const Group* const group = state_of(world).world_group().get();
  const int64_t sizes[] = {1024};
  int64_t seq = 0;
  for (auto _ : state) {
    ++seq;
    const int64_t id = recorder.open({.seq = seq, .op_id = seq, .created_ns = seq}, [&](FlightFacts& facts) {
      facts.group = group;
      facts.op = facts.recorder_name = "all_reduce";
      facts.code = CodeSite::here();
      facts.inputs = facts.outputs = 1;
      facts.shapes.add(sizes, 1);
      facts.shapes.add(sizes, 1);
    });
    recorder.close(id, seq, true);
  }
}

// Nanoseconds that recording costs one call of one rank: the difference of two worlds.
void recorded_all_reduce(benchmark::State& state) {
  const auto reduce = [](int recorded_calls) {
    WorldOptions options = world_of(EngineKind::kFibers, 4);
    options.recorded_calls = recorded_calls;
    return best_ns(options, 2'000, [](RankContext& rank, int n) {
      auto pg = init_process_group(rank);
      std::vector<float> x(1);
      for (int i = 0; i < 100; ++i) pg->all_reduce(x, ReduceOp::kMax).wait();
      const int64_t begin = monotonic_ns();
      for (int i = 0; i < n; ++i) pg->all_reduce(x, ReduceOp::kMax).wait();
      return monotonic_ns() - begin;
    });
  };
  const double with = reduce(64);
  const double without = reduce(0);
  for (auto _ : state) state.SetIterationTime(with * 1e-9);
  state.counters["ns_per_op"] = with;
  state.counters["recorder_ns_per_call"] = (with - without) / 4;
}

const int registered = [] {
  for (const EngineKind engine : {EngineKind::kFibers, EngineKind::kThreads}) {
    const std::string name(engine_kind_name(engine));
    const auto add = [&name](const char* what, auto run) {
      benchmark::RegisterBenchmark((name + what).c_str(), run)->UseManualTime()->Iterations(1);
    };
    add("/p2p/ping_pong/2", [engine](benchmark::State& state) { ping_pong(state, engine); });
    add("/p2p/ring/64x1024", [engine](benchmark::State& state) { ring(state, engine, 64, 1024); });
    add("/mesh/8x8", [engine](benchmark::State& state) { mesh(state, engine); });
  }
  benchmark::RegisterBenchmark("flight_recorder/one_call", recorder);
  benchmark::RegisterBenchmark("fibers/flight_recorder/all_reduce/4x1", recorded_all_reduce)
      ->UseManualTime()
      ->Iterations(1);
  return 0;
}();

}  // namespace
}  // namespace rankloom

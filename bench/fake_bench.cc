// The fake world: what a call costs that is checked and moves nothing. Outside any world, no peer exists.

#include <cstdint>
#include <memory>
#include <vector>

#include "benchmark/benchmark.h"
#include "collectives/fake_process_group.h"

namespace rankloom {
namespace {

void checked_all_reduce(benchmark::State& state) {
  const auto pg = make_fake_process_group({.rank = 5, .world_size = 1000000});
  std::vector<float> x(1024);
  for (auto _ : state) pg->all_reduce(x).wait();
}
BENCHMARK(checked_all_reduce)->Name("fake/all_reduce/checked");

void make_world(benchmark::State& state) {
  for (auto _ : state) {
    const auto pg = make_fake_process_group({.rank = 5, .world_size = 1000000});
    benchmark::DoNotOptimize(pg.get());
  }
}
BENCHMARK(make_world)->Name("fake/init/1000000");

}  // namespace
}  // namespace rankloom

// The fake world: what a call costs that is checked and moves nothing. Outside any world, no peer exists.

#include <cstdint>
#include <memory>
#include <vector>

#include "benchmark/benchmark.h"
#include "rankloom/device_mesh.h"
#include "rankloom/fake.h"
#include "rankloom/records.h"

namespace rankloom {
namespace {

void checked_all_reduce(benchmark::State& state) {
  const auto pg = make_fake_process_group({.rank = 5, .world_size = 1000000});
  std::vector<float> x(1024);
  for (auto _ : state) pg->all_reduce(x).wait();
}
BENCHMARK(checked_all_reduce)->Name("fake/all_reduce/checked");

void recorded_all_reduce(benchmark::State& state) {
  const auto record = std::make_shared<CallRecord>(CostModel{.link = links::kNvlink4});
  const auto pg = make_fake_process_group({.rank = 5, .world_size = 1000000, .options = {.record = record}});
  std::vector<float> x(1024);
  for (auto _ : state) {
    pg->all_reduce(x).wait();
    if (record->size() == 10'000'000) record->clear();
  }
}
BENCHMARK(recorded_all_reduce)->Name("fake/all_reduce/recorded");

// Bytes that the record holds a call, after 10 million calls of 1,000 kinds.
void record_size(benchmark::State& state) {
  static constexpr int kCalls = 10'000'000;
  double per_call = 0;
  for (auto _ : state) {
    const auto record = std::make_shared<CallRecord>();
    const auto pg = make_fake_process_group({.rank = 5, .world_size = 1000000, .options = {.record = record}});
    for (int i = 0; i < kCalls; ++i) pg->all_reduce(TensorView::meta({i % 1000, 16}, DType::kBFloat16)).wait();
    per_call = static_cast<double>(record->memory_bytes()) / kCalls;
  }
  state.counters["bytes_per_call"] = per_call;
}
BENCHMARK(record_size)->Name("fake/record/10000000")->Iterations(1)->Unit(benchmark::kMillisecond);

// A rank's view of a mesh of 16,384 ranks.
void make_mesh(benchmark::State& state) {
  for (auto _ : state) {
    const auto pg = make_fake_process_group({.rank = 5, .world_size = 16384});
    const DeviceMesh mesh = init_device_mesh(pg, {4, 512, 8}, {"pp", "dp", "tp"});
    benchmark::DoNotOptimize(mesh.size());
  }
}
BENCHMARK(make_mesh)->Name("fake/mesh/16384");

void make_world(benchmark::State& state) {
  for (auto _ : state) {
    const auto pg = make_fake_process_group({.rank = 5, .world_size = 1000000});
    benchmark::DoNotOptimize(pg.get());
  }
}
BENCHMARK(make_world)->Name("fake/init/1000000");

}  // namespace
}  // namespace rankloom

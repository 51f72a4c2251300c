// Stores: short keys from one rank, several ranks on one store, and how long a key takes to reach those who wait for
// it. With one rank, times are of the CPU the rank used, so a busy machine changes them little; with several,
// wall-clock.

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "benchmark/benchmark.h"
#include "rankloom/store.h"
#include "rankloom/world.h"

namespace rankloom {
namespace {

struct Gear {
  const char* name;
  EngineKind engine;
  Schedule schedule;
};
const std::vector<Gear>& gears() {
  static const std::vector<Gear> all = {
      {"fibers fifo", EngineKind::kFibers, Schedule::fifo()},
      {"fibers seeded", EngineKind::kFibers, Schedule::seeded(1)},
      {"threads free", EngineKind::kThreads, Schedule::free()},
      {"threads baton", EngineKind::kThreads, Schedule::seeded(1)},
  };
  return all;
}

WorldOptions options(const Gear& gear, int ranks) {
  return {.world_size = ranks, .engine = gear.engine, .schedule = gear.schedule};
}

// One rank of a world, `op` in a loop on the world's HashStore.
template <typename Op>
void one_rank(benchmark::State& state, Op op) {
  const Gear& gear = gears()[static_cast<size_t>(state.range(0))];
  state.SetLabel(gear.name);
  run_world(options(gear, 1), [&](RankContext& rank) {
    rank.store().set("value", "a value");
    for (auto _ : state) op(rank.store());
  }).throw_if_failed();
  state.SetItemsProcessed(state.iterations());
}

void hash_add(benchmark::State& state) {
  one_rank(state, [](Store& store) { benchmark::DoNotOptimize(store.add("counter", 1)); });
}
void hash_get(benchmark::State& state) {
  one_rank(state, [](Store& store) { benchmark::DoNotOptimize(store.get("value")); });
}
void hash_set(benchmark::State& state) {
  one_rank(state, [](Store& store) { store.set("value", "another"); });
}
void hash_compare_set(benchmark::State& state) {
  one_rank(state, [](Store& store) { benchmark::DoNotOptimize(store.compare_set("value", "a value", "a value")); });
}
void hash_queue(benchmark::State& state) {
  one_rank(state, [](Store& store) {
    store.queue_push("queue", "x");
    benchmark::DoNotOptimize(store.queue_pop("queue"));
  });
}
void hash_set_of_100_000_keys(benchmark::State& state) {
  std::vector<std::string> keys;
  for (int i = 0; i < 100'000; ++i) keys.push_back("rank/" + std::to_string(i * 7919 % 100'000));
  size_t next = 0;
  one_rank(state, [&](Store& store) {
    store.set(keys[next], "v");
    next = next + 1 == keys.size() ? 0 : next + 1;
  });
}
BENCHMARK(hash_add)->DenseRange(0, 3);
BENCHMARK(hash_get)->DenseRange(0, 3);
BENCHMARK(hash_set)->DenseRange(0, 3);
BENCHMARK(hash_compare_set)->DenseRange(0, 0);
BENCHMARK(hash_queue)->DenseRange(0, 0);
BENCHMARK(hash_set_of_100_000_keys)->DenseRange(0, 0);

void hash_add_without_world(benchmark::State& state) {
  HashStore store;
  for (auto _ : state) benchmark::DoNotOptimize(store.add("counter", 1));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(hash_add_without_world);

void prefix_add(benchmark::State& state) {
  PrefixStore store("group 1", std::make_shared<HashStore>());
  for (auto _ : state) benchmark::DoNotOptimize(store.add("counter", 1));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(prefix_add);

// Adds of four ranks in the free gear, all together: range(0) 1: on one key, 0: on a key each.
void hash_add_by_4_threads(benchmark::State& state) {
  constexpr int kRanks = 4;
  constexpr int kAdds = 200'000;
  state.SetLabel(state.range(0) == 1 ? "one key" : "a key each");
  for (auto _ : state) {
    run_world({.world_size = kRanks, .engine = EngineKind::kThreads}, [&](RankContext& rank) {
      const std::string key = "counter" + std::to_string(state.range(0) == 1 ? 0 : rank.rank());
      for (int i = 0; i < kAdds; ++i) rank.store().add(key, 1);
    }).throw_if_failed();
  }
  state.SetItemsProcessed(state.iterations() * kRanks * kAdds);
}
BENCHMARK(hash_add_by_4_threads)->DenseRange(0, 1)->UseRealTime()->Unit(benchmark::kMillisecond);

// From the set of a key until all who wait for it have it and wait for the next: one item is one waiting rank.
void hash_wake(benchmark::State& state) {
  const Gear& gear = gears()[static_cast<size_t>(state.range(0))];
  const auto waiting = static_cast<int>(state.range(1));
  constexpr int kRounds = 100;
  state.SetLabel(gear.name);
  for (auto _ : state) {
    run_world(options(gear, waiting + 1), [&](RankContext& rank) {
      for (int round = 0; round < kRounds; ++round) {
        const std::string key = "key" + std::to_string(round);
        if (rank.rank() < waiting) {
          rank.store().wait({key});
          if (rank.store().add("had" + key, 1) == waiting) rank.store().set("next" + key, "");
        } else {
          rank.store().set(key, "");
          rank.store().wait({"next" + key});
        }
      }
    }).throw_if_failed();
  }
  state.SetItemsProcessed(state.iterations() * kRounds * waiting);
}
BENCHMARK(hash_wake)->ArgsProduct({{0, 2}, {1, 64}})->Args({0, 10'000})->UseRealTime()->Unit(benchmark::kMillisecond);

void barrier(benchmark::State& state) {
  const Gear& gear = gears()[static_cast<size_t>(state.range(0))];
  const auto ranks = static_cast<int>(state.range(1));
  constexpr int kRounds = 100;
  state.SetLabel(gear.name);
  for (auto _ : state) {
    run_world(options(gear, ranks), [&](RankContext& rank) {
      for (int round = 0; round < kRounds; ++round) store_barrier(rank.store(), "b", rank.rank(), ranks);
    }).throw_if_failed();
  }
  state.SetItemsProcessed(state.iterations() * kRounds);
}
BENCHMARK(barrier)->ArgsProduct({{0, 2}, {4, 64}})->UseRealTime()->Unit(benchmark::kMillisecond);

// A file of its own, in memory if the machine has /dev/shm.
class TempFile {
 public:
  TempFile()
      : path_((std::filesystem::exists("/dev/shm") ? "/dev/shm/rankloom_bench_" : "/tmp/rankloom_bench_") +
              std::to_string(getpid())) {}
  ~TempFile() { std::filesystem::remove(path_); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

void file_add(benchmark::State& state) {
  TempFile file;
  const std::shared_ptr<FileStore> store = FileStore::open(file.path());
  for (auto _ : state) benchmark::DoNotOptimize(store->add("counter", 1));
  state.SetItemsProcessed(state.iterations());
}
void file_get(benchmark::State& state) {
  TempFile file;
  const std::shared_ptr<FileStore> store = FileStore::open(file.path());
  store->set("key", "value");
  for (auto _ : state) benchmark::DoNotOptimize(store->get("key"));
  state.SetItemsProcessed(state.iterations());
}
// Reading a file that others wrote: range(0) records of 100 bytes.
void file_open(benchmark::State& state) {
  TempFile file;
  {
    const std::shared_ptr<FileStore> store = FileStore::open(file.path());
    for (int i = 0; i < state.range(0); ++i) store->set("key" + std::to_string(i), std::string(70, 'v'));
  }
  for (auto _ : state) benchmark::DoNotOptimize(FileStore::open(file.path())->num_keys());
  state.SetItemsProcessed(state.iterations() * state.range(0));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(std::filesystem::file_size(file.path())));
}
// A value of range(0) bytes.
void file_set(benchmark::State& state) {
  TempFile file;
  const std::shared_ptr<FileStore> store = FileStore::open(file.path());
  const std::string value(static_cast<size_t>(state.range(0)), 'v');
  for (auto _ : state) {
    store->set("key", value);
    if (std::filesystem::file_size(file.path()) > 1'000'000'000) state.SkipWithError("the file grew too large");
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(file_add);
BENCHMARK(file_get);
BENCHMARK(file_open)->Arg(100'000)->Unit(benchmark::kMillisecond);
BENCHMARK(file_set)->Arg(10'000'000)->Iterations(20)->Unit(benchmark::kMillisecond);

// From a set through one FileStore until a rank that waits on another has the value, and back: polling, so
// milliseconds.
void file_round_trip(benchmark::State& state) {
  TempFile file;
  const std::shared_ptr<FileStore> store = FileStore::open(file.path());
  std::thread echo([&] {
    const std::shared_ptr<FileStore> other = FileStore::open(file.path());
    for (int64_t i = 0;; ++i) {
      if (other->get("ping" + std::to_string(i)) == "end") return;
      other->set("pong" + std::to_string(i), "");
    }
  });
  int64_t i = 0;
  for (auto _ : state) {
    store->set("ping" + std::to_string(i), "");
    store->get("pong" + std::to_string(i));
    ++i;
  }
  store->set("ping" + std::to_string(i), "end");
  echo.join();
}
BENCHMARK(file_round_trip)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace rankloom

#include "bench/floors.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "sim/scheduler/scheduler.h"

namespace rankloom {

using namespace internal;

double park_unpark_ns(EngineKind engine, int ranks, int rounds) {
  if (rounds == 0) rounds = std::max(200, 200'000 / ranks) / (engine == EngineKind::kThreads ? 20 : 1);
  WorldOptions options;
  options.engine = engine;
  options.world_size = std::max(2, ranks);
  auto scheduler = std::move(Scheduler::make(options)).value();
  std::vector<Task*> tasks(static_cast<size_t>(options.world_size));
  std::atomic<int> there = 0;
  int64_t begin = 0;
  int64_t end = 0;
  scheduler->run([&](int rank, Task& task) {
    const Site site{.what = "token"};
    tasks[static_cast<size_t>(rank)] = &task;
    if (++there < options.world_size) {
      scheduler->park(site, Deadline::never());
    } else {
      begin = monotonic_ns();
    }
    for (int i = 0; i < rounds; ++i) {
      scheduler->unpark(*tasks[static_cast<size_t>((rank + 1) % options.world_size)]);
      if (i + 1 < rounds || rank + 1 < options.world_size) scheduler->park(site, Deadline::never());
    }
    if (rank == options.world_size - 1) end = monotonic_ns();
    scheduler->unpark(*tasks[static_cast<size_t>((rank + 1) % options.world_size)]);
  });
  return static_cast<double>(end - begin) / rounds / options.world_size;
}

double meeting_ns(int threads) {
  const int rounds = std::max(100, 20'000 / threads);
  std::atomic<int> came = 0;
  std::atomic<int> meeting = 0;
  std::vector<int64_t> round_ends;
  const auto meet = [&](int round) {
    if (came.fetch_add(1) == threads - 1) {
      came.store(0);
      round_ends.push_back(monotonic_ns());
      meeting.store(round + 1);
    }
    while (meeting.load() <= round) sched_yield();
  };
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&] {
      for (int round = 0; round <= rounds; ++round) meet(round);
    });
  }
  for (std::thread& thread : all) thread.join();
  return static_cast<double>(round_ends.back() - round_ends.front()) / rounds;
}

double copy_ns(size_t bytes) {
  if (bytes == 0) return 0;
  const std::vector<char> from(bytes, 1);
  std::vector<char> to(bytes, 2);
  const bool small = bytes < size_t{1} << 20;
  const size_t cores = small ? 1 : std::max(1U, std::thread::hardware_concurrency());
  const int copies = small ? static_cast<int>((size_t{4} << 20) / bytes) : 1;
  double best = 1e18;
  for (int i = 0; i < 10; ++i) {
    const int64_t begin = monotonic_ns();
    if (small) {
      for (int copy = 0; copy < copies; ++copy) {
        std::memcpy(to.data(), from.data(), bytes);
        asm volatile("" : : "r"(to.data()) : "memory");  // each copy counts
      }
    } else {
      std::vector<std::thread> threads;
      for (size_t core = 0; core < cores; ++core) {
        const size_t first = bytes * core / cores;
        threads.emplace_back(
            [&, first, last = bytes * (core + 1) / cores] { std::memcpy(&to[first], &from[first], last - first); });
      }
      for (std::thread& thread : threads) thread.join();
    }
    best = std::min(best, static_cast<double>(monotonic_ns() - begin) / copies);
  }
  return best;
}

}  // namespace rankloom

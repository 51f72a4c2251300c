#include "bench/floors.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "sim/scheduler.h"

namespace rankloom {

double park_unpark_ns(EngineKind engine, int ranks, int rounds) {
  if (rounds == 0) rounds = std::max(200, 200'000 / ranks) / (engine == EngineKind::kThreads ? 20 : 1);
  Scheduler::Options options;
  options.engine = engine;
  options.ranks = std::max(2, ranks);
  auto scheduler = std::move(Scheduler::make(options)).value();
  std::vector<Task*> tasks(static_cast<size_t>(options.ranks));
  std::atomic<int> there = 0;
  int64_t begin = 0;
  int64_t end = 0;
  scheduler->run([&](int rank, Task& task) {
    const Site site{.what = "token"};
    tasks[static_cast<size_t>(rank)] = &task;
    if (++there < options.ranks) {
      scheduler->park(site, Deadline::never());
    } else {
      begin = monotonic_ns();
    }
    for (int i = 0; i < rounds; ++i) {
      scheduler->unpark(*tasks[static_cast<size_t>((rank + 1) % options.ranks)]);
      if (i + 1 < rounds || rank + 1 < options.ranks) scheduler->park(site, Deadline::never());
    }
    if (rank == options.ranks - 1) end = monotonic_ns();
    scheduler->unpark(*tasks[static_cast<size_t>((rank + 1) % options.ranks)]);
  });
  return static_cast<double>(end - begin) / rounds / options.ranks;
}

}  // namespace rankloom

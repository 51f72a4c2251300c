// Ranks that share memory behind rankloom's back, as docs/exploring.md has it: built with -fsanitize=thread, and run in
// the free gear, it ends with a report.
#include <atomic>
#include <cstdio>

#include "rankloom/world.h"

int main() {
  int count = 0;
  std::atomic<int> here{0};
  const rankloom::RunReport report = rankloom::run_world({.world_size = 2}, [&](rankloom::RankContext& rank) {
    // Both ranks at once, and nothing between them that orders what follows.
    here.fetch_add(1, std::memory_order_relaxed);
    while (here.load(std::memory_order_relaxed) < 2) {
    }
    for (int i = 0; i < 1000; ++i) ++count;  // the race
    rank.store().add("done", 1);
  });
  std::printf("%s, counted %d\n", report.ok() ? "ok" : "failed", count);
}

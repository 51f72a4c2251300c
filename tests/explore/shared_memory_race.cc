// Ranks that share memory behind rankloom's back, as docs/exploring.md has it: built with -fsanitize=thread, and run in the free
// gear, it ends with a report.
#include <cstdio>

#include "world/world.h"

int main() {
  int count = 0;
  const rankloom::RunReport report = rankloom::run_world({.world_size = 2}, [&](rankloom::RankContext& rank) {
    for (int i = 0; i < 1000; ++i) ++count;  // the race
    rank.store().add("done", 1);
  });
  std::printf("%s, counted %d\n", report.ok() ? "ok" : "failed", count);
}

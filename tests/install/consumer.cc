// A user's program: the installed library by its headers, no GoogleTest.
#include <rankloom/explore.h>
#include <rankloom/rankloom.h>

#include <iostream>

int main() {
  std::cout << "rankloom " << rankloom::version() << "\n";
  rankloom::ExploreOptions options;
  options.world = {.world_size = 2, .engine = rankloom::EngineKind::kFibers};
  options.strategies = {rankloom::Strategy::exhaustive()};
  const rankloom::ExploreReport report =
      rankloom::explore(options, [](rankloom::RankContext& rank) { rank.store().add("ranks", 1); });
  std::cout << report.text() << "\n";
  return rankloom::version().empty() || !report.verified ? 1 : 0;
}

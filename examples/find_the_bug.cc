// A counter in the store that loses an update, under one schedule in many: finds that schedule, shrinks it, and says
// how to repeat it. With --fixed, shows that no schedule fails.

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

#include "rankloom/explore.h"
#include "rankloom/rankloom.h"

namespace {

using rankloom::RankContext;

void count_ranks(RankContext& rank, bool fixed) {
  auto pg = rankloom::init_process_group(rank);
  rankloom::Store& store = rank.store();
  if (rank.rank() == 0) store.set("count", "0");
  pg->barrier().wait();
  if (fixed) {
    store.add("count", 1);
  } else {
    const int count = std::stoi(store.get("count"));
    store.set("count", std::to_string(count + 1));
  }
  pg->barrier().wait();
  const std::string count = store.get("count");
  if (count != std::to_string(rank.world_size())) throw std::runtime_error("counted " + count + " ranks");
}

}  // namespace

int main(int argc, char** argv) {
  const bool fixed = argc > 1 && std::strcmp(argv[1], "--fixed") == 0;
  const rankloom::ExploreReport report =
      rankloom::explore({.world = {.world_size = 4, .engine = rankloom::EngineKind::kFibers}, .min_ranks = 2},
                        [fixed](RankContext& rank) { count_ranks(rank, fixed); });
  std::puts(report.text().c_str());
  return report.ok() ? 0 : 1;
}

// Prints the table of docs/exploring.md: how many runs each strategy needs for each known bug.
//   corpus_table [SEEDS]     the mean over so many first seeds, of at most 1,000 runs each

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "examples/known_bugs/known_bugs.h"
#include "rankloom/explore.h"

namespace rankloom {
namespace {

constexpr int kMost = 1000;

// Runs until the bug shows, from `first` on; kMost + 1: it did not.
int runs_to_find(const KnownBug& bug, const Strategy& strategy, uint64_t first) {
  const ExploreReport report = explore(
      {.world = bug.world(), .strategies = {strategy}, .max_runs = kMost, .first_seed = first, .max_shrink_runs = 0},
      bug.bug);
  if (!report.failure.has_value()) return kMost + 1;
  return report.failure->strategy == "default order" ? 1 : static_cast<int>(report.runs) - 1;
}

// In the free gear, as the peers run: all ranks at once, by the machine. Numbers are compared by the bugs themselves.
int free_runs_to_find(const KnownBug& bug) {
  for (int run = 1; run <= kMost; ++run) {
    const RunReport report = run_world({.world_size = bug.ranks, .engine = EngineKind::kThreads, .seed = 1}, bug.bug);
    if (!report.ok()) return run;
  }
  return kMost + 1;
}

std::string mean(const std::vector<int>& runs) {
  double sum = 0;
  int missed = 0;
  for (const int n : runs) {
    sum += std::min(n, kMost);
    missed += n > kMost ? 1 : 0;
  }
  if (missed == static_cast<int>(runs.size())) return "> 1000";
  return absl::StrCat(missed > 0 ? "> " : "", absl::StrFormat("%.3g", sum / static_cast<double>(runs.size())));
}

void print_table(int seeds) {
  const Strategy strategies[] = {Strategy::random(), Strategy::pct(), Strategy::starve(), Strategy::late_completion()};
  std::printf(
      "| bug | ranks | free gear | random | pct(3) | starve | late_completion | exhaustive | fix: schedules that can "
      "differ | shortest trace | by hand |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const KnownBug& bug : known_bugs()) {
    std::string row = absl::StrCat("| ", bug.name, " | ", bug.ranks, " | ", mean({free_runs_to_find(bug)}));
    for (const Strategy& strategy : strategies) {
      std::vector<int> runs;
      for (int seed = 0; seed < seeds; ++seed) {
        runs.push_back(runs_to_find(bug, strategy, 1 + static_cast<uint64_t>(seed) * kMost));
      }
      absl::StrAppend(&row, " | ", mean(runs));
    }
    absl::StrAppend(&row, " | ", mean({runs_to_find(bug, Strategy::exhaustive(), 1)}));
    const ExploreReport fixed =
        explore({.world = bug.world(), .strategies = {Strategy::exhaustive()}, .max_runs = 100'000}, bug.fix);
    const ExploreReport found = explore({.world = bug.world()}, bug.bug);
    absl::StrAppend(&row, " | ", fixed.verified ? absl::StrCat(fixed.shares[0].schedules) : "?", " | ",
                    found.failure.has_value() ? absl::StrCat(found.failure->size()) : "?", " | ", bug.minimum, " |");
    std::printf("%s\n", row.c_str());
  }
}

}  // namespace
}  // namespace rankloom

int main(int argc, char** argv) {
  rankloom::print_table(argc > 1 ? std::atoi(argv[1]) : 20);
  return 0;
}

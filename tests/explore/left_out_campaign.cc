// Leaves out, one after the other, each place in the library that tells the reduced search of an access, and looks for a
// program that shows it. Prints a line for each; those that no program shows come last: what they tell is told by others, too,
// or says only which orders cannot be, or the programs are too weak.
//   left_out_campaign [PROGRAMS [TIMES [FIRST]]]
// PROGRAMS (1,000) are drawn from seeds from FIRST (1) on; a place is tried with at most TIMES (200) of those in which it
// occurs.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "absl/debugging/symbolize.h"
#include "tests/explore/access_sites.h"
#include "tests/explore/small_program.h"

int main(int argc, char** argv) {
  using namespace rankloom;
  absl::InitializeSymbolizer(argv[0]);
  const uint64_t programs = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1'000;
  const int times = argc > 2 ? std::atoi(argv[2]) : 200;
  const uint64_t first = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;

  AccessSites sites;
  std::vector<int> tried;  // [place] so many programs
  std::vector<bool> shown;
  for (uint64_t seed = first; seed < first + programs; ++seed) {
    const SmallProgram program = draw_program(seed);
    const auto run = [&](const Schedule& schedule) { return run_program(program, schedule); };
    SearchLimits limits = {.unreduced = 1'000, .reduced = 1'000};
    std::set<int> places;
    limits.leave_out = [&](const StepRecord::Op& op) { return places.insert(sites.site(op)).second && false; };
    Searches searches = search_all(run, limits);
    // Those that the reduced search does not end for show nothing.
    if (!searches.reduced.all || compare(searches, limits).flaw != Flaw::kNone) continue;
    tried.resize(static_cast<size_t>(sites.size()));
    shown.resize(static_cast<size_t>(sites.size()));
    for (const int place : places) {
      const size_t i = static_cast<size_t>(place);
      if (shown[i] || tried[i] == times) continue;
      ++tried[i];
      limits.leave_out = [&](const StepRecord::Op& op) { return sites.site(op) == place; };
      search_reduced(run, limits, &searches);
      if (compare(searches, limits).flaw == Flaw::kNone) continue;
      shown[i] = true;
      std::printf("%s: shown by seed %lu, after %d programs\n", sites.name(place).c_str(), seed, tried[i]);
      std::fflush(stdout);
    }
  }
  std::printf("not shown:\n");
  for (size_t i = 0; i < shown.size(); ++i) {
    if (!shown[i]) std::printf("  %s: in %d programs\n", sites.name(static_cast<int>(i)).c_str(), tried[i]);
  }
  std::printf("%zu places, %td shown\n", shown.size(), std::count(shown.begin(), shown.end(), true));
  return 0;
}

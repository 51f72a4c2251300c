// Leaves out, one after the other, each place in the library that tells the reduced search of an access, and looks for
// a program that shows it: one with few runs. Those that no program shows come last: what they tell is told by others,
// too, or the programs are too weak. Those that tell only which orders cannot be are left alone. left_out_test holds
// what was found.
//   left_out_campaign [PROGRAMS [TIMES [FIRST [MINUTES [PLACE]]]]]
// PROGRAMS (1,000) are drawn from seeds from FIRST (1) on; a place is tried with at most TIMES (200) of those in which
// it occurs. After MINUTES (60) it ends. PLACE, such as "read: KeyTable::size": no other.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/explore/access_sites.h"
#include "tests/explore/small_program.h"

// Of a program with no more no smaller one is looked for.
constexpr int64_t kFewRuns = 60;

int main(int argc, char** argv) {
  using namespace rankloom;
  using namespace rankloom::internal;
  const uint64_t programs = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1'000;
  const int times = argc > 2 ? std::atoi(argv[2]) : 200;
  const uint64_t first = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;

  const absl::Time end = absl::Now() + absl::Minutes(argc > 4 ? std::atoi(argv[4]) : 60);
  const std::string only = argc > 5 ? argv[5] : "";

  struct Place {
    int tried = 0;      // programs
    uint64_t seed = 0;  // of the program with the fewest runs that shows it; 0: none yet
    int64_t runs = 0;
  };
  AccessSites sites;
  std::vector<Place> places;
  const auto wanted = [&](int i) {
    const Place& place = places[static_cast<size_t>(i)];
    return !sites.tells_of_orders(i) && place.tried < times && (place.seed == 0 || place.runs > kFewRuns) &&
           (only.empty() || sites.name(i) == only);
  };
  for (uint64_t seed = first; seed < first + programs && absl::Now() < end; ++seed) {
    const SmallProgram program = draw_program(seed);
    const auto run = [&](const Schedule& schedule, const RunHooks& hooks) {
      return run_program(program, schedule, hooks);
    };
    SearchLimits limits = {.unreduced = 200, .reduced = 200, .seeds = 2};
    std::set<int> here;
    limits.leave_out = [&](const StepRecord::Op& op) { return here.insert(sites.site(op)).second && false; };
    Searches searches;
    search_reduced(run, limits, &searches);
    places.resize(static_cast<size_t>(sites.size()));
    // Those that the reduced search does not end for show nothing.
    if (!searches.reduced.all || std::none_of(here.begin(), here.end(), wanted)) continue;
    limits.leave_out = nullptr;
    searches = search_all(run, limits);
    const Comparison whole = compare(searches, limits);
    if (whole.flaw != Flaw::kNone) continue;
    for (const int i : here) {
      Place& place = places[static_cast<size_t>(i)];
      if (!wanted(i) || (place.seed != 0 && place.runs <= whole.runs)) continue;
      ++place.tried;
      limits.leave_out = [&](const StepRecord::Op& op) { return sites.site(op) == i; };
      search_reduced(run, limits, &searches);
      if (compare(searches, limits).flaw == Flaw::kNone) continue;
      place.seed = seed;
      place.runs = whole.runs;
    }
  }
  int shown = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    const auto& [tried, seed, runs] = places[i];
    if (seed == 0) continue;
    ++shown;
    std::printf("    {\"%s\", %lu},  // %ld runs\n", sites.name(static_cast<int>(i)).c_str(), seed, runs);
  }
  std::printf("not shown:\n");
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i].seed == 0 && !sites.tells_of_orders(static_cast<int>(i)) && places[i].tried > 0)
      std::printf("    {\"%s\",\n     \"\"},  // in %d programs\n", sites.name(static_cast<int>(i)).c_str(),
                  places[i].tried);
  }
  std::printf("%zu places, %d shown\n", places.size(), shown);
  return 0;
}

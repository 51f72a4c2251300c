#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rankloom/schedule.h"
#include "rankloom/world.h"
#include "sim/schedule/schedule_tree.h"
#include "sim/schedule/step_record.h"

namespace rankloom {

using namespace internal;

// How a run ended, and all that its ranks saw.
struct Outcome {
  bool aborted = false;  // a rank failed, or the run did not end: what the others saw up to there says nothing
  std::string text;
};
// `seen`: by rank.
Outcome outcome_of(RunReport report, const std::vector<std::string>& seen);

// A value of an output that a rank read before it knew that the call was done is kEarly + value + ">" in an outcome. A
// search need not find a value there, if it finds the same outcome with kPoison instead.
inline constexpr char kEarly[] = "early<";
inline constexpr char kPoison[] = "poison";

// Runs a program once, from its beginning.
using RunOnce = absl::FunctionRef<Outcome(const Schedule&, const RunHooks&)>;

// A run of `program`, on fibers; what it returns is what the rank saw.
Outcome run_once(int ranks, const Schedule& schedule, const RunHooks& hooks,
                 absl::FunctionRef<std::string(RankContext&)> program);

// How far a program is run.
struct SearchLimits {
  int unreduced = 3'000;  // runs; 0: none
  int reduced = 3'000;
  bool counts = false;  // the number of schedules is the same in every order of the search, too
  int shuffles = 1;     // reduced searches in another order
  int parts = 0;        // reduced searches in parts, as several processes make them
  int seeds = 10;       // of each strategy that draws from seeds
  // Accesses that the reduced searches are not told of: a flaw on purpose. Null: none.
  std::function<bool(const StepRecord::Op&)> leave_out = nullptr;
  int free = 0;        // runs of threads without a schedule
  bool plain = false;  // fifo and round robin, too: calls complete at once there, which no explored run does
};

// The outcomes of a program that a search found, each with the first schedule of it.
struct Found {
  std::map<std::string, std::string> outcomes;  // of runs in which no rank failed
  std::map<std::string, std::string> aborts;    // of those in which one did
  int64_t schedules = 0;
  int64_t repeated = 0;
  bool all = false;  // the search came to its end
  // explore() would not say "verified": a rank changed a buffer too early, or set a store's timeout beside waits.
  bool doubtful = false;
  std::string untold;  // where rankloom changed or looked at something of which it told nothing; empty: nowhere
};

Found search_tree(RunOnce run, const ScheduleTree::Options& options, int most,
                  const std::function<bool(const StepRecord::Op&)>& leave_out = nullptr);
// The reduced search, in parts that are taken up, put down, given away and lost in an order that `seed` draws.
Found search_parts(RunOnce run, uint64_t seed, int most,
                   const std::function<bool(const StepRecord::Op&)>& leave_out = nullptr);
// Under so many seeds of each strategy that draws from them; with `plain`, also under fifo and round robin.
Found search_seeds(RunOnce run, int seeds, bool plain = false);
// So many runs in the free gear.
Found search_free(RunOnce run, int runs);

// The flaw of a search.
enum class Flaw : uint8_t {
  kNone,
  kLost,           // the reduced search came to its end without an outcome that others found
  kLostNoted,      // the same, and each such run leaves something over that a note tells of: a work that was dropped
  kLostFailure,    // the same for a run in which a rank fails: explore() would say "verified"
  kUnreducedLost,  // seeds found what the unreduced search, at its end, had not
  kInvented,       // the reduced search found what the unreduced one, at its end, had not
  kOrderMatters,   // a reduced search in another order found other outcomes
  kCountVaries,    // the same outcomes, but another number of schedules
  kOtherwise,      // a run under a schedule of the tree did not repeat itself
  kEndless,        // a run did not end
  kUntold,         // rankloom did something of which it did not tell: explore() would not say "verified"
};
std::string flaw_name(Flaw flaw);
std::ostream& operator<<(std::ostream& out, Flaw flaw);

struct Comparison {
  Flaw flaw = Flaw::kNone;
  std::string text;  // what is wrong, with the outcomes
  bool unreduced_finished = false;
  bool reduced_finished = false;
  int64_t runs = 0;
};
// The findings of the searches of one program.
struct Searches {
  Found unreduced;
  Found reduced;
  std::vector<Found> shuffled;  // and those in parts
  Found seeds;                  // and those of threads without a schedule
};
// Runs the program under all schedules, under the reduced ones and under seeds of every strategy.
Searches search_all(RunOnce run, const SearchLimits& limits);
// The reduced ones only, again.
void search_reduced(RunOnce run, const SearchLimits& limits, Searches* searches);
Comparison compare(const Searches& searches, const SearchLimits& limits);
Comparison compare_searches(RunOnce run, const SearchLimits& limits);

}  // namespace rankloom

#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "rankloom/faults.h"
#include "rankloom/schedule.h"
#include "rankloom/world.h"

namespace rankloom {

// A way to look for a schedule under which a program fails.
struct Strategy {
  enum class Kind : uint8_t { kExhaustive, kRandom, kPct, kStarve, kLateCompletion };
  Kind kind = Kind::kRandom;
  int depth = 3;  // kPct

  // All schedules, but only one of each set that cannot differ: only choices that can change a result branch.
  static Strategy exhaustive() { return {Kind::kExhaustive}; }
  static Strategy random() { return {Kind::kRandom}; }
  // Schedule::pct(): bugs that need `depth` orderings.
  static Strategy pct(int depth = 3) { return {Kind::kPct, depth}; }
  // Schedule::starve(): one rank, helper or stream, or all that completes, is held back for long.
  static Strategy starve() { return {Kind::kStarve}; }
  // Schedule::late_completion(): calls complete as late as they can.
  static Strategy late_completion() { return {Kind::kLateCompletion}; }

  std::string name() const;                // "pct(3)"
  Schedule schedule(uint64_t seed) const;  // not for kExhaustive
};

// How to explore. An aggregate; every field has a default.
struct ExploreOptions {
  // Checks of every run, beside that no rank fails.
  struct Checks {
    bool results = true;        // what ranks observe() is equal under all schedules
    bool groups = true;         // so is the order in which each rank's groups are made and first called, by name
    bool store_keys = true;     // so are the keys in the store at the end
    bool store_values = false;  // and their values
    // No leftovers (works dropped, messages unmatched, errors unasked for, World::note()), and no hook that throws.
    bool leaks = true;
    bool keys_left = false;  // no keys are left in the store
    bool twice = true;       // the first schedule is run twice and must repeat itself
  };
  struct Progress {
    std::string strategy;  // the one that runs now
    int64_t runs = 0;
    absl::Duration elapsed;
    int64_t schedules = 0;  // of the exhaustive strategy: those that were run
    int64_t open = 0;       // and choices that were seen and not tried yet
  };

  // Of all runs. The schedule and max_steps are explore()'s own; the seed of the ranks' own randomness is the same in
  // all (unset: first_seed).
  WorldOptions world = {.world_size = 4, .engine = EngineKind::kFibers};
  // The exhaustive one, if listed, runs first, with half of the budget (alone: all); then the others, in turns.
  std::vector<Strategy> strategies = {Strategy::exhaustive(), Strategy::pct(3), Strategy::starve(),
                                      Strategy::late_completion(), Strategy::random()};
  int64_t max_runs = 1000;                      // those of shrinking, and of vary_faults' comparisons, not counted
  absl::Duration max_time = absl::Seconds(60);  // real time, shrinking not counted
  uint64_t first_seed = 1;
  // With a rate in world.faults: each run has a seed of its own for its faults, beginning with the plan's. Results
  // whose faults are not the first one's are compared with a further run, in default order and with the same faults.
  bool vary_faults = true;
  // Shrinking may use as few ranks as this; 0: the program is for world.world_size only.
  int min_ranks = 0;
  int max_shrink_runs = 2000;  // 0: nothing is left out of the run that failed
  // How many processes search, at most 1,000. 1: this one. Else so many are forked, and this one hands out work and
  // shrinks: a crash of the program ends one of them, and is a failure. The ranks' runs write to no memory of this
  // process. Not under ThreadSanitizer, which cannot follow a fork; and mind what else the process holds.
  int processes = 1;
  Checks checks = {};
  uint64_t max_steps = 200'000;  // of a run: one that has more counts as endless
  // Told about once a second of real time, after each 16th run at the most, and at the end; never by two threads at
  // once. Unset: one line on stderr, written anew as the search goes on, if that is a terminal; and a line to stdout
  // from an expect_no_failure_in_schedules() that passes.
  std::function<void(const Progress&)> progress = {};
};

// The result of explore(): its runs, and the failure that it found, if any.
struct ExploreReport {
  // The failure that was found, and the smallest run that still has it.
  struct Failure {
    std::string headline;  // first line of what went wrong
    std::string strategy;  // that found it
    int64_t run = 0;       // in which run, from 1, of those of the strategy
    Schedule found;        // under which schedule; of an exhaustive search: steered(), with all its switches
    WorldOptions world;    // the smallest run: ranks, faults and schedule
    RunReport report;      // of that run; report.trace replays it
    std::vector<std::string> failures;  // what the report does not say: failed assertions, results that differ, leaks
    std::string story;                  // what each rank did in it, only the steps that matter
    std::string rerun;                  // the command that repeats it
    int found_switches = 0;             // switches (rankloom/schedule.h) from the default order before shrinking
    int64_t shrink_runs = 0;

    // Switches and faults of the smallest run: how long its trace is in what a reader has to follow.
    int size() const;
  };

  struct Share {
    std::string strategy;
    int64_t runs = 0;
    int64_t schedules = 0;  // exhaustive: of the runs, those that did not repeat others
    int64_t open = 0;       // exhaustive: choices seen and not tried
    bool finished = false;  // exhaustive: all were
    bool asked = false;     // a schedule that the environment names, in place of a strategy: RANKLOOM_SEED, say
    // exhaustive: what the program did that no search over schedules can vouch for
    std::vector<std::string> unseen = {};
  };
  int64_t runs = 0;
  absl::Duration elapsed;
  std::vector<Share> shares;
  // Of several processes, a line each: those that died, and whose work others have done; those that could not be
  // started.
  std::vector<std::string> process_notes;
  // Of the world's faults, a line for each that did not happen in the first run, with the reason.
  std::vector<std::string> missed_faults;
  // An exhaustive search came to its end, and noticed nothing of the program that it does not see: no schedule fails,
  // as far as docs/exploring.md says.
  bool verified = false;
  std::optional<Failure> failure;
  // The options or the environment make no sense, and nothing was run; or processes do not fit together, or none is
  // left.
  absl::Status error;

  bool ok() const { return error.ok() && !failure.has_value(); }
  // The result in a line: "verified: all 12 schedules that can differ, in 13 runs", "no failure in 1000 runs (not
  // exhaustive: ...)", with the reason, or which run fails and why.
  std::string summary() const;
  // All of it, for people. Like summary() and RunReport::text(), without a newline at its end.
  std::string text() const;
};

// Runs `program` again and again, in worlds of its own, until a schedule is found under which it fails, or the budget
// is spent, or all schedules that can differ were run. A failure is shrunk: fewer ranks, fewer faults, fewer switches.
//
//   const ExploreOptions options = {.world = {.world_size = 2, .engine = EngineKind::kFibers}};
//   const ExploreReport report = explore(options, [](RankContext& rank) {
//     observe(rank, "place", rank.store().add("arrived", 1));  // differs
//   });
//   if (!report.ok()) std::cerr << report.text();
//
// The program must be repeatable: what it keeps outside its world is its own business (reset it on rank 0's way in, or
// keep it per run). Ranks share no memory but through rankloom, or else exhaustive() misses what they do to each other
// there. The environment (rankloom/options.h) wins: under RANKLOOM_SEED, RANKLOOM_SCHEDULE or RANKLOOM_REPLAY that one
// run is made, after the one in default order that its results are compared with. RANKLOOM_RANKS then says how many
// ranks, and RANKLOOM_REPLAY_RUN of which of the program's runs and searches all this is said. Blocking: the calling
// thread, which must be no rank. No GoogleTest needed; rankloom/testing.h has that side.
ExploreReport explore(const ExploreOptions& options, absl::FunctionRef<void(RankContext&)> program,
                      CodeSite code = CodeSite::here());

namespace internal {

void observe_bytes(RankContext& rank, std::string_view name, std::string_view text, std::string_view bytes);

// A number as a text: that of another number differs.
std::string number_text(long double value);

template <typename T>
std::string number_text_of(T value) {
  if constexpr (std::is_integral_v<T>) return std::to_string(value);
  return number_text(value);
}

// Its bytes, but for those that an 80-bit long double is filled up with.
template <typename T>
std::string_view number_bytes(const T& value) {
  constexpr bool kFilled = std::is_same_v<T, long double> && std::numeric_limits<long double>::digits == 64;
  return {reinterpret_cast<const char*>(&value), kFilled ? 10 : sizeof(T)};
}

}  // namespace internal

// Notes a result of this rank under a name. explore() compares it, bit by bit, with that of the first schedule;
// elsewhere it does nothing. `value`: a string, a number, or a range of numbers.
template <typename T>
void observe(RankContext& rank, std::string_view name, const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    const std::string_view text = value;
    internal::observe_bytes(rank, name, text, text);
  } else if constexpr (std::is_arithmetic_v<T>) {
    internal::observe_bytes(rank, name, internal::number_text_of(value), internal::number_bytes(value));
  } else {
    std::string text;
    std::string bytes;
    for (const auto& element : value) {
      using Number = std::remove_cvref_t<decltype(element)>;
      static_assert(std::is_arithmetic_v<Number>, "want numbers");
      const Number number = element;
      text += (text.empty() ? "" : " ") + internal::number_text_of(number);
      bytes += internal::number_bytes(number);
    }
    internal::observe_bytes(rank, name, text, bytes);
  }
}

}  // namespace rankloom

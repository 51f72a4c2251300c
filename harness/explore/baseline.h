#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rankloom/explore.h"
#include "rankloom/store.h"
#include "rankloom/world.h"
#include "sim/schedule/run_hooks.h"

namespace rankloom::internal {

using Program = absl::FunctionRef<void(RankContext&)>;
// How a run ended. `skipped`: by a rank that skipped it, so that nothing is asked of it.
struct WorldRun {
  WorldRun(RunReport report, bool skipped = false) : report(std::move(report)), skipped(skipped) {}
  RunReport report;
  bool skipped;
};

// Runs the program in a world and appends to `failures` what the report does not say. A world that is kept beyond the
// call is closed by then: its report was made, or it ran by itself. `look`: to be called after the run, while the world
// has what users left in it.
using RunWorld = absl::FunctionRef<WorldRun(const std::shared_ptr<World>& world, Program program,
                                            std::vector<std::string>* failures, absl::FunctionRef<void()> look)>;

// A rank's calls of observe().
struct Observation {
  std::string name;
  std::string text;
  std::string bytes;
  std::string open = {};  // the rank's calls that it had not waited for, if outputs are poisoned
};

// The content of a store after a run: the keys, sorted, and the value of one, if it has one. Not for ranks.
std::vector<std::string> keys_of(Store& store);
std::optional<std::string> value_of(Store& store, std::string_view key);

// The outcome of one run.
struct Outcome {
  FaultPlan faults;  // those of the run's world
  RunReport report;
  bool skipped = false;                                 // WorldRun::skipped: good, and compared with no other
  std::vector<std::string> failures;                    // what the report does not say
  std::vector<std::vector<Observation>> results;        // [rank]
  std::vector<std::vector<std::string>> groups_made;    // [rank] those it belongs to, in the order of their making
  std::vector<std::vector<std::string>> groups_called;  // [rank] those it calls, in the order of their first calls
  std::vector<std::string> keys;
  std::vector<std::string> missed_faults;  // of the plan, with the reasons
  std::vector<std::string> values;

  bool failed() const { return !report.ok() || !failures.empty(); }
  std::string headline() const;
  // Equal for runs that fail for the same reason.
  std::string signature() const;
};

// Runs a program in worlds of its own, and compares what each run came to with the baseline, the run in default order;
// what differs because of a run's faults, with the run in default order that has the same ones.
// Thread-safety: thread-compatible.
class Baseline {
 public:
  struct Failure {
    WorldOptions world;
    Outcome outcome;
    int64_t run;   // from 1
    bool repeats;  // the same schedule fails again, so that it can be shrunk
  };

  // `world`: of all runs, without a schedule and with a seed. `own_ranks`: how many ranks the program asks for.
  // `number`: of the search, as in search().
  Baseline(const ExploreOptions::Checks& checks, WorldOptions world, int own_ranks, int number, Program program,
           RunWorld run)
      : checks_(checks),
        world_(std::move(world)),
        own_ranks_(own_ranks),
        number_(number),
        program_(program),
        run_(run) {}

  const WorldOptions& world() const { return world_; }
  // world() under this schedule.
  WorldOptions with(const Schedule& schedule) const;
  // The command that repeats this run of the search, and leaves other runs of the program as they are.
  std::string rerun_of(const WorldOptions& world) const;

  // Makes the baseline: in default order, and if ExploreOptions::Checks::twice says so and `most` runs
  // allow, twice. Adds to `runs`. nullopt: no failure.
  std::optional<Failure> make(int64_t* runs, int64_t most);
  // The choices of the baseline, as Trace::serialize() gives them; empty: there is none.
  std::string first_trace() const {
    return baseline_outcome_.has_value() ? baseline_outcome_->report.trace.serialize() : std::string();
  }
  // ExploreReport::missed_faults.
  std::vector<std::string> missed_faults() const;
  // Another baseline, or none; returns the one before.
  std::optional<Outcome> exchange(std::optional<Outcome> other) {
    return std::exchange(baseline_outcome_, std::move(other));
  }

  // One run, with the checks. `owner`: of what the hooks point to; it lives as long as the run's world.
  Outcome run(const WorldOptions& world, const RunHooks& hooks = {}, std::shared_ptr<const void> owner = nullptr);

 private:
  // Without those checks that compare runs.
  Outcome run_alone(WorldOptions world, const RunHooks& hooks, std::shared_ptr<const void> owner) const;
  void look_around(World& world, Outcome* outcome) const;
  // Appends to the outcome's failures where it differs from `first`.
  void compare(const Outcome& first, Outcome* outcome) const;
  // The run in default order with the faults and ranks of this world.
  const Outcome& first_with_faults_of(const WorldOptions& world);
  // `command`, with what the command alone does not say of a run of so many ranks.
  std::string rerun_with(int ranks, std::string command) const;

  const ExploreOptions::Checks& checks_;
  const WorldOptions world_;
  const int own_ranks_;
  const int number_;
  const Program program_;
  const RunWorld run_;
  std::optional<Outcome> baseline_outcome_;
  std::optional<Outcome> with_other_faults_;  // the latest first_with_faults_of()
};

}  // namespace rankloom::internal

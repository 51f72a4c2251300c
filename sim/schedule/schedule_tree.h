#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rankloom/random.h"
#include "sim/schedule/early_changes.h"
#include "sim/schedule/policy.h"
#include "sim/schedule/run_hooks.h"
#include "sim/schedule/steering.h"
#include "sim/schedule/step_record.h"
#include "sim/schedule/tree_part.h"

namespace rankloom::internal {

// StepRecord::uncovered() of a run with a wait in a store, by the store's own timeout, which another task sets.
inline constexpr std::string_view kWaitThatLooks = "a store's timeout that ranks set beside waits of others";

// All schedules of a program, one run at a time, depth first: each run follows the last one up to some choice, makes
// that one differently, and goes on in DefaultOrder.
// With `reduce`, only one of all schedules that differ in the order of steps which do not conflict (StepRecord) is run:
// dynamic partial-order reduction with source sets and sleep sets. P. Abdulla, S. Aronis, B. Jonsson, K. Sagonas,
// "Optimal Dynamic Partial Order Reduction", POPL 2014 (the algorithm "Source-DPOR"). Its classes are Mazurkiewicz
// traces, but for a task that finds the condition of its wait false: that step may change places with the one that
// makes the condition true. Where a condition was taken away (StepRecord::lower) before the step that let a waiter go
// on, the waiter races with the taking: the step in between is what the waiter needs, and cannot come after it.
// A look of such a step, before it finds its condition true, is hidden behind the step that made the condition true:
// where others change what it looks at, as a store's timeout, the run is told to be uncovered (kWaitThatLooks).
// A program whose rooted calls are done as the schedule says (ChoiceKind::kRooted) is searched twice: together, then
// each.
// Use: while (tree.more()) { run a world of a deterministic schedule with tree.hooks(); tree.advance(); }
// Requires: equal choices make equal runs; a run that differs ends with an error that names the step.
//
// Several processes search one tree in parts (TreePart): a tree that was made of a part runs the schedules of that part
// alone. A race that its runs find at a choice before the part's floor becomes a wish: whoever looks after that choice
// has one of the wished tasks tried there. Sleep sets need no more than an order of a choice's alternatives, which is
// the order in which they were handed out: that an earlier one's subtree is done before a later one's begins plays no
// part. So all parts together run each class once, as one search does.
class ScheduleTree final : public PolicySource {
 public:
  struct Options {
    bool reduce = true;
    // 0: depth first along the default order. Else the search goes in a random order of this seed; what it finds is the
    // same.
    uint64_t shuffle = 0;
  };
  explicit ScheduleTree(bool reduce = true) : ScheduleTree(Options{.reduce = reduce}) {}
  explicit ScheduleTree(const Options& options)
      : reduce_(options.reduce), shuffle_(options.shuffle), prng_(options.shuffle) {}

  explicit ScheduleTree(TreePart part);

  // There is a schedule that was not run.
  bool more() const { return !done_; }
  // Whether all is searched a second time, with the other answer to kRooted.
  bool second_time() const { return rooted_ == 1; }
  // After a run: finds the next.
  void advance();

  // Runs whose results may differ from those of all others.
  int64_t schedules() const { return schedules_; }
  // Runs that only repeated others, which was found out on the way.
  int64_t repeated() const { return repeated_; }
  // Choices known to be worth making differently: 0 once all is done, else a lower bound for the runs to come.
  int64_t open() const;

  // Acts of the runs that no search over schedules can vouch for: why "all" means all that rankloom can see. Empty:
  // nothing.
  const std::vector<std::string>& uncovered() const { return record_.uncovered(); }

  StepRecord& record() { return record_; }
  // Of the next run.
  RunHooks hooks() { return {.policies = this, .record = &record_}; }
  std::unique_ptr<SchedulePolicy> policy() override;

  // --- of a part, after advance()

  size_t floor() const { return floor_; }
  // The rest of the part; its path begins at the floor. Of a tree with more().
  TreePart rest() const;
  // Leaves the first choice that has untried alternatives to others: it and those before it are fixed from now on.
  // Empty: there is none yet. Else the choices from the old floor to the new one.
  std::vector<GivenNode> give();
  // The step that the choice before the floor began; of a floor above 0.
  TriedTask step_at_floor() const { return tried_of(nodes_[floor_ - 1]); }
  // The wishes since the last call.
  std::vector<TreeWish> take_wishes() { return std::exchange(wishes_, {}); }
  // Any run asked for ChoiceKind::kRooted: all has to be searched with the other answer, too.
  bool rooted_asked() const { return rooted_asked_; }
  // A run of this part, or of one whose runs came before it, found an early change.
  bool completions_write() const { return completions_write_ || early_changes_found.load() != early_changes_before_; }

 private:
  class Policy;
  using Tried = TriedTask;
  using Node = TreeNode;
  // The things that a step touches may depend on what the step finds. A race with step `first` need not be reversed,
  // since the task was tried or sleeps at that node, with ops that its step in this run lacks: what conflicts with
  // these commutes here, and no race shows that it may come before the task's step. Kept for all runs that have both
  // steps of the race: the conflicting step may be one that only a later run makes.
  struct Surplus {
    int first;
    int second;
    int task;  // number
    std::vector<StepRecord::Op> ops;
  };
  using Clock = std::vector<int>;  // [number of a task] the last step of it that comes before; -1: none

  // After the last run of a search: begins the next, if there is one.
  void end_search();
  Node& push(ChoiceKind kind);
  // A random one of the allowed `ids`; -1: none is allowed.
  TaskId any_of(const std::vector<TaskId>& ids, absl::FunctionRef<bool(TaskId)> allowed);
  void fall_asleep(const Node& before, Node* node) const;
  bool conflicts_with_step(const std::vector<StepRecord::Op>& ops, int step) const;
  int ops_begin(int step) const { return step == 0 ? 0 : record_.steps()[static_cast<size_t>(step - 1)].ops_end; }
  // The steps of the run that count.
  int last_step() const;
  class Races;
  // `known`: of steps that an earlier run made, too, and of which only the surplus is asked for.
  void race(int first, int second, bool known);
  // Has one of these tasks tried at a node.
  void want(size_t node, std::vector<TaskId> any_of);
  // The chosen task, with what its step touched in the last run.
  Tried tried_of(const Node& node) const;
  bool has_untried(const Node& node) const;
  bool settles(int step) const { return !settles_.empty() && settles_[static_cast<size_t>(step)]; }
  bool comes_before(int a, int b) const;  // as the clocks of two steps of the run say
  // The same, or `b` settles what `a` writes: before `a` it would be another step, though no race is made of the two.
  bool differs_before(int a, int b) const;
  // Whether the step of a task, tried earlier, touched something that it does not touch as this step of the run.
  bool touched_more(const Tried& tried, int step) const;
  // Has those steps tried that conflict with what only the tried ones touched.
  void find_more();

  const bool reduce_;
  const bool shuffle_;
  Prng prng_;
  StepRecord record_;
  bool done_ = false;
  bool rooted_asked_ = false;  // by any run
  int rooted_ = 0;             // the answer, of all runs of a search
  int64_t schedules_ = 0;
  int64_t repeated_ = 0;

  const bool part_ = false;  // the tree is a part of a search
  size_t floor_ = 0;
  const bool completions_write_ = false;
  const uint64_t early_changes_before_ = early_changes_found.load();
  std::vector<TreeWish> wishes_;
  std::set<TreeWish> wished_;  // all so far: none is told twice
  std::vector<Node> nodes_;    // those beyond depth_ are kept for their memory
  size_t depth_ = 0;
  size_t prefix_ = 0;      // how many of them the current run has to follow
  int repeats_from_ = -1;  // step from which on the current run only repeats others; -1: none
  int new_from_ = 0;       // first step that the last run did not make
  std::vector<int> node_of_step_;
  std::vector<Clock> clocks_;  // [step], after it
  std::vector<bool> settles_;  // [step] a call completes in it; empty: in none
  std::vector<Surplus> surplus_;
  bool knows_surplus_ = false;  // that of the steps before new_from_: a part begins in the middle of a search
  std::vector<int> born_;       // [number of a task] the step that made it
};

}  // namespace rankloom::internal

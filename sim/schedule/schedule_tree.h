#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rankloom/random.h"
#include "sim/schedule/policy.h"
#include "sim/schedule/run_hooks.h"
#include "sim/schedule/steering.h"
#include "sim/schedule/step_record.h"

namespace rankloom::internal {

// All schedules of a program, one run at a time, depth first: each run follows the last one up to some choice, makes
// that one differently, and goes on in DefaultOrder.
// With `reduce`, only one of all schedules that differ in the order of steps which do not conflict (StepRecord) is run:
// dynamic partial-order reduction with source sets and sleep sets. P. Abdulla, S. Aronis, B. Jonsson, K. Sagonas,
// "Optimal Dynamic Partial Order Reduction", POPL 2014 (the algorithm "Source-DPOR"). Its classes are Mazurkiewicz
// traces, but for a task that finds the condition of its wait false: that step may change places with the one that
// makes the condition true. Where a condition was taken away (StepRecord::lower) before the step that let a waiter go
// on, the waiter races with the taking: the step in between is what the waiter needs, and cannot come after it.
// A program whose rooted calls are done as the schedule says (ChoiceKind::kRooted) is searched twice: together, then
// each.
// Use: while (tree.more()) { run a world of a deterministic schedule with tree.hooks(); tree.advance(); }
// Requires: equal choices make equal runs; a run that differs ends with an error that names the step.
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

 private:
  class Policy;
  // A task that has been tried at a node or need not be, with what its step there touches.
  struct Tried {
    TaskId id;
    bool one_way;  // the step contained no other choice, so `ops` is all that it can touch
    std::vector<StepRecord::Op> ops;
  };
  // A choice on the path that the current run took.
  struct Node {
    ChoiceKind kind = ChoiceKind::kNextTask;
    int size = 0;               // other kinds than kNextTask: alternatives
    int chosen = 0;             // TaskId, or the alternative
    int step = 0;               // kNextTask: the step that it began; else the one after that in which it was made
    bool chose_within = false;  // kNextTask: a choice of another kind was made in the step
    std::vector<TaskId> candidates;
    std::vector<TaskId> todo;   // of the candidates: those to be tried, those tried included
    std::vector<Tried> tried;   // but for the one that runs now
    std::vector<Tried> asleep;  // the sleep set: tasks whose step here other runs have made
  };
  // The things that a step touches may depend on what the step finds. A race with step `first` need not be reversed,
  // since the task was tried or sleeps at that node, with ops that its step in this run lacks: what conflicts with
  // these commutes here, and no race shows that it may come before the task's step.
  struct Surplus {
    int first;
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
  void race(int first, int second);
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

  std::vector<Node> nodes_;  // those beyond depth_ are kept for their memory
  size_t depth_ = 0;
  size_t prefix_ = 0;      // how many of them the current run has to follow
  int repeats_from_ = -1;  // step from which on the current run only repeats others; -1: none
  int new_from_ = 0;       // first step that the last run did not make
  std::vector<int> node_of_step_;
  std::vector<Clock> clocks_;  // [step], after it
  std::vector<bool> settles_;  // [step] a call completes in it; empty: in none
  std::vector<Surplus> surplus_;
  std::vector<int> born_;  // [number of a task] the step that made it
};

}  // namespace rankloom::internal

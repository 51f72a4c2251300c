#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "rankloom/random.h"
#include "rankloom/schedule.h"
#include "sim/base/kept_memory.h"
#include "sim/base/task.h"
#include "sim/schedule/ready_set.h"

namespace rankloom::internal {

// All tasks of a run, for a policy that wants more than ids: what a ready task is, and its pending step.
class TaskTable {
 public:
  virtual const Task& task(TaskId id) const = 0;

 protected:
  ~TaskTable() = default;
};

// The view of a policy that must choose. Valid during choose() only.
struct ChoicePoint {
  ChoiceKind kind;
  int size;               // alternatives: at least 2, but for a policy that sees_all()
  const Task* at;         // the task that reached the point; its site is its pending step. Null before the first one
  const ReadySet* ready;  // kNextTask: the ready tasks, the one at the point included if it can go on
  bool yields;            // kNextTask: the task at the point waits for the others to do something
  const TaskTable* tasks;
};

// Chooses. One policy serves one run; called by one task at a time.
class SchedulePolicy : public Kept {
 public:
  virtual ~SchedulePolicy() = default;

  // kNextTask: the id of a ready task. Other kinds: 0 <= result < size.
  virtual int choose(const ChoicePoint& point) = 0;
  // Why the run cannot go on as asked (a replay that diverged); empty: it can.
  bool failed() const { return failed_; }
  const std::string& error() const { return error_; }

  // How the policy wants its ready tasks.
  virtual ReadySet::Order order() const { return ReadySet::Order::kAscending; }
  // A task goes on at a point until it blocks; points are no choices then.
  virtual bool runs_to_block() const { return false; }
  // Asked even if only one task can run. A single candidate is no choice, and is not recorded.
  virtual bool sees_all() const { return false; }
  // Not null: choose() draws each choice from this one, all alternatives alike, so that its caller may do so itself.
  virtual Prng* uniform() { return nullptr; }

 protected:
  // The first reason stays.
  void fail(std::string why) {
    if (!failed_) error_ = std::move(why);
    failed_ = true;
  }

 private:
  bool failed_ = false;
  std::string error_;
};

}  // namespace rankloom::internal

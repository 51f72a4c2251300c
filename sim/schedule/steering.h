#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rankloom/schedule.h"
#include "sim/schedule/policy.h"

namespace rankloom::internal {

// The default order (docs/words.md) of tasks: the task at the point goes on until it blocks, yields or has had
// kPatience turns while others could run; then the next rank or helper by number; what completes a call runs when
// nobody else can. A task that yields comes after all others that can run: else a run in which it polls would never
// end.
class DefaultOrder {
 public:
  // Before each next(): finds the candidates.
  void look(const ChoicePoint& point);
  // The candidate that comes first of those that are `allowed`; -1: none is.
  TaskId next(const ChoicePoint& point, absl::FunctionRef<bool(TaskId)> allowed) const;
  // After each: the chosen task.
  void chose(const ChoicePoint& point, TaskId id);

  // The tasks that an explorer may choose: all that are ready, but for those that poll: they have yielded more than
  // kYields times, and the others have not had their turn since.
  const std::vector<TaskId>& candidates() const { return candidates_; }
  // A task that is ready is no candidate.
  bool polls() const { return polls_; }

 private:
  static constexpr int kPatience = 200;
  static constexpr int kYields = 3;

  bool is_behind(TaskId id) const {
    return static_cast<size_t>(id) < behind_.size() && behind_[static_cast<size_t>(id)];
  }
  void fall_behind(TaskId id);
  bool has_polled(TaskId id) const {
    return static_cast<size_t>(id) < yields_.size() && yields_[static_cast<size_t>(id)] > kYields;
  }

  std::vector<bool> behind_;  // [TaskId] yielded or had its turns, and others can run
  bool any_behind_ = false;
  std::vector<int> yields_;  // [TaskId]
  std::vector<TaskId> candidates_;
  bool polls_ = false;
  TaskId last_ = -1;
  int in_a_row_ = 0;
};

// Follows DefaultOrder but for its switches. Or follows another policy, and notes where that one departs from the
// order.
class SteeredPolicy final : public SchedulePolicy {
 public:
  explicit SteeredPolicy(std::vector<Schedule::Switch> switches) : switches_(std::move(switches)) {}
  // `departures` outlives the run.
  SteeredPolicy(std::unique_ptr<SchedulePolicy> followed, std::vector<Schedule::Switch>* departures)
      : followed_(std::move(followed)), departures_(departures) {}

  int choose(const ChoicePoint& point) override;
  bool sees_all() const override { return true; }

 private:
  int choose_task(const ChoicePoint& point, int at, int nth);
  // The choice of the policy that is followed.
  int follow(const ChoicePoint& point);
  const Schedule::Switch* find(bool value, int at, int nth) const;

  std::vector<Schedule::Switch> switches_;
  const std::unique_ptr<SchedulePolicy> followed_;
  std::vector<Schedule::Switch>* const departures_ = nullptr;
  DefaultOrder order_;
  std::vector<int> tasks_at_;   // [task + 1] choices of the next task at it so far
  std::vector<int> values_at_;  // [task + 1] other choices
};

}  // namespace rankloom::internal

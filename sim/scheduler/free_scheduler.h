#pragma once

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "sim/base/lock_order.h"
#include "sim/scheduler/scheduler.h"
#include "sim/scheduler/stall_watch.h"

namespace rankloom::internal {

// The free gear: every task is a thread and all run at once. A stuck run is found by counting, not by a timer: the last
// task to fall asleep sees that all others are asleep, too.
//
// A report reads where sleepers wait, and a sleeper may be woken meanwhile, by a default timeout or from outside the
// run. So no task leaves park() while reporting_ is set: the reporter sets it and then looks for sleepers; a task that
// was woken has changed its parker and then looks at reporting_. Both are sequentially consistent, so one of the two
// sees the other.
class FreeScheduler final : public Scheduler {
 public:
  explicit FreeScheduler(WorldOptions&& options);
  ~FreeScheduler() override;

  void run(absl::FunctionRef<void(int rank, Task& task)> body) override;
  void spawn(const TaskInfo& info, absl::AnyInvocable<void()> body) override;
  void post(const TaskInfo& info, const Site& site, absl::AnyInvocable<void()> body) override;
  Task* attach(const TaskInfo& info) override;
  void detach(Task* task) override;
  WakeCause park(const Site& site, Deadline deadline) override;
  void unpark(Task& task) override;
  int choose(ChoiceKind kind, int n, const Site& site) override;
  int64_t now_ns() const override { return monotonic_ns(); }
  std::optional<Site> last_point(int rank) const override;
  void append_outstanding(std::vector<Outstanding>* outstanding) const override;
  int64_t stood_ns(int rank) const override;
  const Trace& trace() const override { return empty_trace_; }
  uint64_t steps() const override;
  void ranks_elsewhere(int own) override;
  absl::Status look_for_stuck(int64_t now_ns, std::vector<std::string>* texts) override;

 protected:
  void deterministic_point(const Site&, Step) override {}
  void wake_all() override;
  bool idle() const override;
  void away_changed(int n) override;
  bool await_tasks() override;
  void end_tasks(bool strangers) override;
  void end_watch() override;
  void outside_changed(int n) override;
  void while_nobody_moves(absl::FunctionRef<void(const std::vector<Task*>&)> look) override;

 private:
  // The place of a task's rank in ended_steps_of_: 0 of no rank.
  static size_t of_rank(const Task& task) { return static_cast<size_t>(task.info.rank + 1); }
  Task* add_task(const TaskInfo& info, bool adopted);
  void start_thread(Task* task, absl::AnyInvocable<void()> body);
  void finish(Task* task);
  bool nobody_can_move() const;
  // Whether all tasks are; and those that are. Lasts while reporting_ is set.
  bool all_asleep(std::vector<Task*>* sleepers) const;
  void check_deadlock();
  // Until the threads of run() and spawn() have ended and let go of this.
  void wait_for_threads();

  // Live tasks (and outside wakers, and strangers that are away) in the upper half; those asleep without an own
  // deadline in the lower half, biased, since a waker may count a sleeper off before it has counted itself on. Equal:
  // nobody can move.
  static constexpr int64_t kLive = int64_t{1} << 32;
  static constexpr int64_t kBias = int64_t{1} << 30;
  std::atomic<int64_t> counts_;

  std::atomic<int> live_ranks_;  // ranks that have not ended, attached or not

  OrderedMutex report_mu_{LockLevel::kReport};  // held while sites of sleepers are read
  std::atomic<bool> reporting_{false};
  bool ends_ ABSL_GUARDED_BY(report_mu_) = false;  // the run was found stuck, and its finder will abort it

  mutable OrderedMutex tasks_mu_{LockLevel::kTasks};
  std::vector<std::unique_ptr<Task>> tasks_ ABSL_GUARDED_BY(tasks_mu_);
  uint64_t ended_steps_ ABSL_GUARDED_BY(tasks_mu_) = 0;              // of tasks that are gone
  std::vector<uint64_t> ended_steps_of_ ABSL_GUARDED_BY(tasks_mu_);  // the same by of_rank()
  int threads_ ABSL_GUARDED_BY(tasks_mu_) = 0;                       // of run() and spawn(), that have not ended
  std::vector<bool> came_ ABSL_GUARDED_BY(tasks_mu_);                // ranks that began or attached
  Parker threads_ended_;

  // The watchdog's: since when nobody moves but for threads at no point, and at which step.
  int64_t stuck_since_ns_ = -1;
  uint64_t stuck_at_step_ = 0;
  bool stuck_told_ = false;
  const Trace empty_trace_;
  StallWatch watch_{this};  // declared last, so destroyed first: the watchdog reads the members above
};

}  // namespace rankloom::internal

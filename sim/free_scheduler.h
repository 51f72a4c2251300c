#pragma once

#include <memory>
#include <vector>

#include "sim/scheduler.h"

namespace rankloom {

// The free gear: every task is a thread and all run at once. A stuck run is found by counting, not by a timer: the last
// task to fall asleep sees that all others are asleep, too.
class FreeScheduler final : public Scheduler {
 public:
  explicit FreeScheduler(Options options);
  ~FreeScheduler() override;

  void run(absl::FunctionRef<void(int rank, Task& task)> body) override;
  Task* spawn(const TaskInfo& info, absl::AnyInvocable<void()> body) override;
  void post(const TaskInfo& info, const Site& site, absl::AnyInvocable<void()> body) override;
  Task* attach(const TaskInfo& info) override;
  void detach(Task* task) override;
  WakeCause park(const Site& site, Deadline deadline) override;
  void unpark(Task& task) override;
  int choose(ChoiceKind kind, int n, const Site& site) override;
  int64_t now_ns() const override { return monotonic_ns(); }
  std::vector<Task*> live_tasks() const override;
  const Trace& trace() const override { return empty_trace_; }
  uint64_t steps() const override;

 protected:
  void deterministic_point(const Site&) override {}
  void wake_all() override;
  void outside_changed(int n) override;

 private:
  Task* add_task(const TaskInfo& info, bool adopted);
  void finish(Task* task);
  void check_deadlock();
  void thread_ended() {
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) all_ended_.unpark();
  }
  void wait_for_threads();

  // Live tasks (and outside wakers) in the upper half; those asleep without an own deadline in the lower half, biased, since
  // a waker may count a sleeper off before it has counted itself on. Equal: nobody can move.
  static constexpr int64_t kLive = int64_t{1} << 32;
  static constexpr int64_t kBias = int64_t{1} << 30;
  std::atomic<int64_t> counts_;

  mutable absl::Mutex tasks_mu_;  // taken after no other lock
  std::vector<std::unique_ptr<Task>> tasks_ ABSL_GUARDED_BY(tasks_mu_);
  // Threads of run() and spawn() that have not ended, and the owner, who waits for them in run() or else, where the ranks
  // are the caller's threads, in the destructor.
  std::atomic<int> running_{1};
  bool owner_left_ = false;
  Parker all_ended_;
  const Trace empty_trace_;
};

}  // namespace rankloom

#include "sim/free_scheduler.h"

#include <utility>

#include "sim/thread_engine.h"
#include "sim/thread_pool.h"

namespace rankloom {

FreeScheduler::FreeScheduler(Options options)
    : Scheduler(std::move(options), /*deterministic=*/false), counts_(int64_t{options_.ranks} * kLive + kBias) {}

FreeScheduler::~FreeScheduler() { wait_for_threads(); }

void FreeScheduler::wait_for_threads() {
  if (std::exchange(owner_left_, true)) return;
  if (running_.fetch_sub(1, std::memory_order_acq_rel) != 1) all_ended_.park(Deadline::kNever);
}

Task* FreeScheduler::add_task(const TaskInfo& info, bool adopted) {
  auto task = std::make_unique<Task>();
  task->scheduler = this;
  task->info = info;
  task->user = user_of(info.rank);
  task->adopted = adopted;
  task->state = Task::State::kRunning;
  Task* const raw = task.get();
  absl::MutexLock lock(&tasks_mu_);
  for (size_t i = 0; i < tasks_.size(); ++i) {
    if (tasks_[i] == nullptr) {
      task->id = static_cast<TaskId>(i);
      tasks_[i] = std::move(task);
      return raw;
    }
  }
  task->id = static_cast<TaskId>(tasks_.size());
  tasks_.push_back(std::move(task));
  return raw;
}

void FreeScheduler::run(absl::FunctionRef<void(int rank, Task& task)> body) {
  std::vector<Task*> ranks;
  for (int rank = 0; rank < options_.ranks; ++rank)
    ranks.push_back(add_task({.rank = rank, .kind = TaskKind::kRank}, false));
  running_.fetch_add(options_.ranks, std::memory_order_relaxed);
  for (Task* task : ranks) {
    ThreadPool::shared().start(
        thread_name(task->info),
        [this, task, body] {
          Task::set_current(task);
          body(task->info.rank, *task);
          Task::set_current(nullptr);
          finish(task);
          thread_ended();
        },
        options_.fresh_threads);
  }
  wait_for_threads();
}

Task* FreeScheduler::spawn(const TaskInfo& info, absl::AnyInvocable<void()> body) {
  Task* const task = add_task(info, false);
  counts_.fetch_add(kLive, std::memory_order_acq_rel);
  running_.fetch_add(1, std::memory_order_relaxed);
  ThreadPool::shared().start(
      thread_name(info),
      [this, task, body = std::move(body)]() mutable {
        Task::set_current(task);
        body();
        body = nullptr;
        Task::set_current(nullptr);
        finish(task);
        thread_ended();
      },
      options_.fresh_threads);
  return task;
}

void FreeScheduler::post(const TaskInfo&, const Site&, absl::AnyInvocable<void()> body) { body(); }

Task* FreeScheduler::attach(const TaskInfo& info) {
  Task* const task = add_task(info, true);
  // Ranks are counted from the start, so that a world whose ranks come late is not taken for a stuck one.
  if (info.kind != TaskKind::kRank) counts_.fetch_add(kLive, std::memory_order_acq_rel);
  Task::set_current(task);
  return task;
}

void FreeScheduler::detach(Task* task) {
  Task::set_current(nullptr);
  finish(task);
}

void FreeScheduler::finish(Task* task) {
  {
    absl::MutexLock lock(&tasks_mu_);
    tasks_[static_cast<size_t>(task->id)].reset();
  }
  counts_.fetch_sub(kLive, std::memory_order_acq_rel);
  check_deadlock();
}

WakeCause FreeScheduler::park(const Site& site, Deadline deadline) {
  Task& self = *Task::current();
  self.steps.store(self.steps.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (self.parker.spin()) return WakeCause::kUnparked;
  self.site = site;
  const bool counted = deadline.weak;
  self.counted.store(counted, std::memory_order_relaxed);
  if (!self.parker.prepare()) return WakeCause::kUnparked;
  if (counted) {
    counts_.fetch_add(1, std::memory_order_acq_rel);
    check_deadlock();
  }
  if (self.parker.sleep(deadline.at_ns)) return WakeCause::kUnparked;
  if (counted) counts_.fetch_sub(1, std::memory_order_acq_rel);
  return WakeCause::kTimeout;
}

void FreeScheduler::unpark(Task& task) {
  if (!task.parker.give()) return;
  if (task.counted.load(std::memory_order_relaxed)) counts_.fetch_sub(1, std::memory_order_acq_rel);
  task.parker.wake();
}

int FreeScheduler::choose(ChoiceKind, int, const Site&) { return 0; }

void FreeScheduler::check_deadlock() {
  const int64_t counts = counts_.load(std::memory_order_acquire);
  const int64_t live = counts / kLive;
  const int64_t asleep = counts % kLive - kBias;
  if (live == 0 || asleep != live || aborted()) return;
  abort(describe_deadlock(live_tasks()));
}

void FreeScheduler::wake_all() {
  absl::MutexLock lock(&tasks_mu_);
  for (const std::unique_ptr<Task>& task : tasks_) {
    if (task != nullptr) unpark(*task);
  }
}

void FreeScheduler::outside_changed(int n) {
  counts_.fetch_add(n * kLive, std::memory_order_acq_rel);
  if (n < 0) check_deadlock();
}

std::vector<Task*> FreeScheduler::live_tasks() const {
  absl::MutexLock lock(&tasks_mu_);
  std::vector<Task*> tasks;
  for (const std::unique_ptr<Task>& task : tasks_) {
    if (task != nullptr) tasks.push_back(task.get());
  }
  return tasks;
}

uint64_t FreeScheduler::steps() const {
  uint64_t steps = 0;
  for (const Task* task : live_tasks()) steps += task->steps.load(std::memory_order_relaxed);
  return steps;
}

}  // namespace rankloom

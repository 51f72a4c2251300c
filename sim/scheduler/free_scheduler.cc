#include "sim/scheduler/free_scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "sim/base/forked_run.h"
#include "sim/base/system.h"
#include "sim/engine/thread_engine.h"
#include "sim/engine/thread_pool.h"
#include "sim/scheduler/call_scope.h"

namespace rankloom::internal {

FreeScheduler::FreeScheduler(WorldOptions&& options)
    : Scheduler(std::move(options), /*deterministic=*/false, /*record=*/nullptr),
      counts_(int64_t{options_.world_size} * kLive + kBias),
      live_ranks_(options_.world_size),
      ended_steps_of_(static_cast<size_t>(options_.world_size) + 1),
      came_(static_cast<size_t>(options_.world_size)) {}

FreeScheduler::~FreeScheduler() { close(); }

bool FreeScheduler::idle() const {
  OrderedMutexLock lock(&tasks_mu_);
  return live_ranks_.load(std::memory_order_relaxed) == 0 &&
         std::all_of(tasks_.begin(), tasks_.end(), [](const std::unique_ptr<Task>& task) { return task == nullptr; });
}

bool FreeScheduler::await_tasks() {
  if (live_ranks_.load(std::memory_order_relaxed) > 0) return false;
  // Tasks of threads of no world end with their calls, which hold pins.
  wait_for_threads();
  return true;
}

void FreeScheduler::end_tasks(bool strangers) {
  {
    OrderedMutexLock lock(&tasks_mu_);
    for (const std::unique_ptr<Task>& task : tasks_) {
      if (task != nullptr) refuse_attached(*task);
    }
  }
  if (strangers) abort(world_ended());
  // Helpers end by themselves, unless they wait for a rank that never came.
  if (live_ranks_.load(std::memory_order_relaxed) > 0) {
    abort(make_error(ErrorKind::kAborted, "the world ended before all its ranks had attached"));
  }
  wait_for_threads();
}

Task* FreeScheduler::add_task(const TaskInfo& info, bool adopted) {
  auto task = std::make_unique<Task>();
  task->scheduler = this;
  task->info = info;
  task->user = user_of(info.rank);
  task->adopted = adopted;
  if (adopted) task->serial = Task::serial_of_thread();
  task->state = Task::State::kRunning;
  Task* const raw = task.get();
  OrderedMutexLock lock(&tasks_mu_);
  if (!adopted) ++threads_;
  if (info.kind == TaskKind::kRank) came_[static_cast<size_t>(info.rank)] = true;
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

void FreeScheduler::start_thread(Task* task, absl::AnyInvocable<void()> body) {
  ThreadPool::shared().start(
      thread_name(task->info),
      [this, task, body = std::move(body)]() mutable {
        task->thread = this_thread();
        Task::set_current(task);
        body();
        body = nullptr;
        Task::set_current(nullptr);
        finish(task);
        OrderedMutexLock lock(&tasks_mu_);
        if (--threads_ == 0) threads_ended_.unpark();
      },
      options_.fresh_threads);
}

void FreeScheduler::end_watch() {
  wait_for_threads();
  watch_.end();
}

void FreeScheduler::wait_for_threads() {
  for (;;) {
    {
      // With the lock: a thread that counted itself off has let go of it, and of everything else here.
      OrderedMutexLock lock(&tasks_mu_);
      if (threads_ == 0) return;
    }
    threads_ended_.park(Deadline::kNever);
  }
}

void FreeScheduler::run(absl::FunctionRef<void(int rank, Task& task)> body) {
  watch_.begin();
  std::vector<Task*> ranks;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    ranks.push_back(add_task({.rank = rank, .kind = TaskKind::kRank}, false));
  }
  for (Task* task : ranks) {
    start_thread(task, [task, body] { body(task->info.rank, *task); });
  }
  wait_for_threads();
}

void FreeScheduler::spawn(const TaskInfo& info, absl::AnyInvocable<void()> body) {
  if (closed()) return run_after_end(body);
  Task* const task = add_task(info, false);
  counts_.fetch_add(kLive);
  start_thread(task, std::move(body));
}

void FreeScheduler::post(const TaskInfo&, const Site&, absl::AnyInvocable<void()> body) { body(); }

Task* FreeScheduler::attach(const TaskInfo& info) {
  if (info.kind == TaskKind::kRank) ranks_attached_.store(true, std::memory_order_release);
  watch_.begin();
  Task* const task = add_task(info, true);
  task->thread = this_thread();
  // Ranks are counted from the start, so that a world whose ranks come late is not taken for a stuck one.
  if (info.kind != TaskKind::kRank) counts_.fetch_add(kLive);
  Task::set_current(task);
  return task;
}

void FreeScheduler::ranks_elsewhere(int own) {
  OrderedMutexLock lock(&tasks_mu_);
  counts_.fetch_sub(int64_t{options_.world_size - 1} * kLive);
  live_ranks_.store(1, std::memory_order_relaxed);
  came_.assign(came_.size(), true);
  came_[static_cast<size_t>(own)] = false;
}

void FreeScheduler::detach(Task* task) {
  Task::set_current(nullptr);
  finish(task);
}

void FreeScheduler::finish(Task* task) {
  {
    OrderedMutexLock lock(&tasks_mu_);
    const uint64_t steps = task->steps.load(std::memory_order_relaxed);
    ended_steps_ += steps;
    ended_steps_of_[of_rank(*task)] += steps;
    if (task->info.kind == TaskKind::kRank) live_ranks_.fetch_sub(1, std::memory_order_relaxed);
    tasks_[static_cast<size_t>(task->id)].reset();
  }
  counts_.fetch_sub(kLive);
  check_deadlock();
}

WakeCause FreeScheduler::park(const Site& site, Deadline deadline) {
  Task& self = *Task::current();
  self.reach(site);
  if (self.parker.spin()) return WakeCause::kUnparked;
  self.site = site;
  const bool counted = deadline.weak || deadline.at_ns == Deadline::kNever;  // nothing but others ends the wait
  if (is_forked_copy(this)) [[unlikely]]
    end_forked_copy();
  if (!self.parker.prepare(counted)) return WakeCause::kUnparked;
  if (counted) {
    counts_.fetch_add(1);
    check_deadlock();
  }
  const bool woken = self.parker.sleep(deadline.at_ns);
  if (!woken && counted) counts_.fetch_sub(1);
  if (reporting_.load()) [[unlikely]] {
    OrderedMutexLock until_told(&report_mu_);
  }
  return woken ? WakeCause::kUnparked : WakeCause::kTimeout;
}

void FreeScheduler::unpark(Task& task) {
  // The task may run, and end, from the moment it has its permit: it is counted off by what the parker says, not by
  // what stands in the task.
  const Parker::Was was = task.parker.give();
  if (was < Parker::Was::kAsleep) return;
  if (was == Parker::Was::kAsleepCounted) counts_.fetch_sub(1);
  task.parker.wake();
}

int FreeScheduler::choose(ChoiceKind, int, const Site&) { return 0; }

bool FreeScheduler::nobody_can_move() const {
  const int64_t counts = counts_.load();
  const int64_t live = counts / kLive;
  const int64_t asleep = counts % kLive - kBias;
  return live != 0 && asleep == live;
}

bool FreeScheduler::all_asleep(std::vector<Task*>* sleepers) const {
  OrderedMutexLock lock(&tasks_mu_);
  bool all = true;
  for (const std::unique_ptr<Task>& task : tasks_) {
    if (task == nullptr) continue;
    if (task->parker.asleep()) {
      sleepers->push_back(task.get());
    } else {
      all = false;
    }
  }
  return all;
}

void FreeScheduler::check_deadlock() {
  if (!nobody_can_move() || aborted()) return;
  absl::Status end;
  {
    OrderedMutexLock lock(&report_mu_);
    if (aborted() || ends_) return;
    reporting_.store(true);
    std::vector<Task*> blocked;
    // Else somebody was woken meanwhile, by a default timeout or from outside: it will come by here again.
    ends_ = all_asleep(&blocked) && nobody_can_move();
    if (ends_) end = deadlock_error(blocked);
    reporting_.store(false);
  }
  if (!end.ok()) end_stuck(std::move(end));
}

void FreeScheduler::away_changed(int n) {
  counts_.fetch_add(n * kLive);
  if (n < 0) check_deadlock();
}

absl::Status FreeScheduler::look_for_stuck(int64_t now_ns, std::vector<std::string>* texts) {
  absl::Status end;
  {
    OrderedMutexLock lock(&report_mu_);
    if (aborted() || ends_ || !strangers_seen()) return end;
    reporting_.store(true);
    std::vector<Task*> blocked;
    all_asleep(&blocked);
    std::vector<int> beside;
    int tasks = 0;
    bool computes = strangers_compute();
    uint64_t steps = 0;
    {
      OrderedMutexLock tasks_lock(&tasks_mu_);
      steps = ended_steps_;
      for (const std::unique_ptr<Task>& task : tasks_) {
        if (task == nullptr) continue;
        ++tasks;
        steps += task->steps.load(std::memory_order_relaxed);
        if (task->parker.asleep()) continue;
        beside.push_back(task->info.rank);
        computes = computes || thread_runs(task->thread.load(std::memory_order_relaxed));
      }
    }
    const int64_t counts = counts_.load();
    // A task that waits with a deadline of its own, or for somebody outside, is not stuck.
    const bool stuck = !blocked.empty() && counts / kLive == tasks + away() &&
                       counts % kLive - kBias == static_cast<int64_t>(blocked.size()) &&
                       static_cast<size_t>(tasks) == blocked.size() + beside.size();
    if (!stuck || computes || steps != stuck_at_step_ || stuck_since_ns_ < 0) {
      stuck_since_ns_ = stuck && !computes ? now_ns : -1;
      stuck_at_step_ = steps;
      stuck_told_ = false;
    } else if (now_ns - stuck_since_ns_ >= stall_ns() && !std::exchange(stuck_told_, true)) {
      // Before the end in any case: a busy machine may come here for the first time when both are due.
      texts->push_back(absl::StrCat(stuck_headline(std::move(beside), stall_ns()), wait_lines(blocked)));
    } else if (now_ns - stuck_since_ns_ >= stuck_ns()) {
      ends_ = true;
      end = stuck_error(blocked, stuck_headline(std::move(beside), stuck_ns()));
    }
    reporting_.store(false);
  }
  return end;
}

void FreeScheduler::while_nobody_moves(absl::FunctionRef<void(const std::vector<Task*>&)> look) {
  OrderedMutexLock lock(&report_mu_);
  reporting_.store(true);
  std::vector<Task*> waiting;
  all_asleep(&waiting);
  look(waiting);
  reporting_.store(false);
}

void FreeScheduler::append_outstanding(std::vector<Outstanding>* outstanding) const {
  OrderedMutexLock lock(&tasks_mu_);
  // A step of one task of a rank moves the rank: its main thread may wait for a helper in a way of its own, or for a
  // thread that the program made, which is another task in each of its calls.
  std::vector<uint64_t> steps = ended_steps_of_;
  for (const std::unique_ptr<Task>& task : tasks_) {
    if (task != nullptr) steps[of_rank(*task)] += task->steps.load(std::memory_order_relaxed);
  }
  for (const std::unique_ptr<Task>& task : tasks_) {
    if (task == nullptr || task->parker.asleep()) continue;
    outstanding->push_back({.id = task->id,
                            .info = task->info,
                            .thread = task->thread.load(std::memory_order_relaxed),
                            .steps = steps[of_rank(*task)],
                            .last = task->last.site()});
  }
  const bool any_came = std::find(came_.begin(), came_.end(), true) != came_.end();
  for (size_t rank = 0; rank < came_.size(); ++rank) {
    if (any_came && !came_[rank]) {
      const int number = static_cast<int>(rank);
      outstanding->push_back({.id = -1 - number, .info = {.rank = number}, .attached = false, .steps = 0, .last = {}});
    }
  }
}

int64_t FreeScheduler::stood_ns(int rank) const {
  std::vector<Outstanding> outstanding;
  append_outstanding(&outstanding);
  for (const Outstanding& who : outstanding) {
    if (who.attached && who.info.rank == rank && who.info.kind == TaskKind::kRank)
      return watch_.stood_ns(who, monotonic_ns());
  }
  return 0;
}

void FreeScheduler::wake_all() {
  OrderedMutexLock lock(&tasks_mu_);
  for (const std::unique_ptr<Task>& task : tasks_) {
    if (task != nullptr) unpark(*task);
  }
}

void FreeScheduler::outside_changed(int n) {
  counts_.fetch_add(n * kLive);
  if (n < 0) check_deadlock();
}

std::optional<Site> FreeScheduler::last_point(int rank) const {
  OrderedMutexLock lock(&tasks_mu_);
  for (const std::unique_ptr<Task>& task : tasks_) {
    if (task != nullptr && task->info.rank == rank && task->info.kind == TaskKind::kRank) return task->last.site();
  }
  return std::nullopt;
}

uint64_t FreeScheduler::steps() const {
  OrderedMutexLock lock(&tasks_mu_);
  uint64_t steps = ended_steps_;
  for (const std::unique_ptr<Task>& task : tasks_) {
    if (task != nullptr) steps += task->steps.load(std::memory_order_relaxed);
  }
  return steps;
}

}  // namespace rankloom::internal

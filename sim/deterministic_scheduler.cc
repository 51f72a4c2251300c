#include "sim/deterministic_scheduler.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/dist_error.h"
#include "sim/fiber_engine.h"
#include "sim/thread_engine.h"

namespace rankloom {
namespace {

// A rank whose helper is parked counts as parked, although its main thread may be computing: before a run of threads is
// called stuck, such a thread gets this long, in real time, to come to a point.
constexpr int64_t kGraceNs = 1'000'000'000;

std::unique_ptr<Engine> make_engine(const Scheduler::Options& options) {
  if (options.engine == EngineKind::kFibers) return std::make_unique<FiberEngine>(options.stack_bytes, options.ranks);
  return std::make_unique<ThreadEngine>(options.fresh_threads);
}

}  // namespace

// Locks the state on threads. Fibers of one thread need no lock.
class DeterministicScheduler::StateLock {
 public:
  explicit StateLock(const DeterministicScheduler* scheduler) : mu_(scheduler->threads_ ? &scheduler->mu_ : nullptr) {
    lock();
  }
  ~StateLock() { unlock(); }
  void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (mu_ != nullptr) mu_->Lock();
  }
  void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (mu_ != nullptr) mu_->Unlock();
  }

 private:
  absl::Mutex* const mu_;
};

DeterministicScheduler::DeterministicScheduler(Options options)
    : Scheduler(std::move(options), /*deterministic=*/true),
      threads_(options_.engine == EngineKind::kThreads),
      engine_(make_engine(options_)),
      policy_(make_policy(options_.schedule)),
      runs_to_block_(policy_->runs_to_block()),
      recording_(!runs_to_block_),
      rank_tasks_(new Task[static_cast<size_t>(options_.ranks)]),
      ready_(policy_->order()) {
  host_.scheduler = this;
  if (threads_) running_of_rank_.resize(static_cast<size_t>(options_.ranks));
  for (int rank = 0; rank < options_.ranks; ++rank) {
    Task& task = rank_tasks_[static_cast<size_t>(rank)];
    task.scheduler = this;
    task.id = rank;
    task.info = {.rank = rank, .kind = TaskKind::kRank};
  }
  const Trace* const replayed = options_.schedule.trace();
  trace_.set_schedule(replayed != nullptr ? replayed->schedule() : options_.schedule.text());
}

DeterministicScheduler::~DeterministicScheduler() {
  // Where the ranks are the caller's threads, helpers may still be on their way out: the last one gives the host its permit.
  if (attached_ > 0 && started_) engine_->park(host_);
}

void DeterministicScheduler::task_main(Task& task) {
  auto& self = *static_cast<DeterministicScheduler*>(task.scheduler);
  if (task.info.kind == TaskKind::kRank) {
    (*self.body_)(task.info.rank, task);
  } else {
    task.body();
    task.body = nullptr;
  }
  self.end(task);
}

void DeterministicScheduler::end(Task& task) {
  Engine* const engine = engine_.get();
  Task* next = nullptr;
  {
    StateLock lock(this);
    next = finish(task, lock);
  }
  // Last: if it is the host, the scheduler may be gone as soon as it runs.
  if (next != nullptr) engine->unpark(*next);
}

void DeterministicScheduler::run(absl::FunctionRef<void(int rank, Task& task)> body) {
  body_.emplace(body);
  live_ = options_.ranks;
  engine_->run_host([this] {
    for (int rank = 0; rank < options_.ranks; ++rank)
      engine_->spawn(rank_tasks_[static_cast<size_t>(rank)], &task_main);
    {
      StateLock lock(this);
      started_ = true;
      for (int rank = 0; rank < options_.ranks; ++rank) make_ready(rank_tasks_[static_cast<size_t>(rank)]);
      Task* const first = pick(nullptr, lock);
      start_running(*first);
      engine_->unpark(*first);
    }
    engine_->park(host_);
  });
}

Task* DeterministicScheduler::add_extra(const TaskInfo& info) {
  TaskId id;
  if (!free_ids_.empty()) {
    id = free_ids_.back();
    free_ids_.pop_back();
  } else {
    id = static_cast<TaskId>(options_.ranks + static_cast<int>(extra_.size()));
    extra_.push_back(std::make_unique<Task>());
  }
  Task* const task = task_at(id);
  task->scheduler = this;
  task->id = id;
  task->info = info;
  task->user = user_of(info.rank);
  task->state = Task::State::kNew;
  task->permit = false;
  return task;
}

Task* DeterministicScheduler::spawn(const TaskInfo& info, absl::AnyInvocable<void()> body) {
  StateLock lock(this);
  Task* const task = add_extra(info);
  task->body = std::move(body);
  task->site = {};
  ++live_;
  engine_->spawn(*task, &task_main);
  make_ready(*task);
  return task;
}

void DeterministicScheduler::post(const TaskInfo& info, const Site& site, absl::AnyInvocable<void()> body) {
  StateLock lock(this);
  Task* const task = add_extra(info);
  task->body = std::move(body);
  task->site = site;
  make_ready(*task);
}

Task* DeterministicScheduler::attach(const TaskInfo& info) {
  StateLock lock(this);
  Task* task = nullptr;
  if (info.kind == TaskKind::kRank) {
    task = &rank_tasks_[static_cast<size_t>(info.rank)];
    task->adopted = true;
    task->user = user_of(info.rank);
    ++live_;
    ++attached_;
    engine_->attach(*task);
    make_ready(*task);
    // No choice before all ranks are there: who came first must not matter.
    if (attached_ == options_.ranks) {
      started_ = true;
      Task* const first = pick(nullptr, lock);
      start_running(*first);
      if (first == task) return task;
      engine_->unpark(*first);
    }
    lock.unlock();
    engine_->park(*task);
    lock.lock();
    return task;
  }
  task = add_extra(info);
  task->adopted = true;
  ++live_;
  engine_->attach(*task);
  if (baton_rank_ == info.rank) {
    start_running(*task);
  } else {
    make_ready(*task);
    if (idle_.load(std::memory_order_relaxed)) idle_parker_.unpark();
    lock.unlock();
    engine_->park(*task);
    lock.lock();
  }
  return task;
}

void DeterministicScheduler::detach(Task* task) {
  Task::set_current(nullptr);
  end(*task);
}

void DeterministicScheduler::make_ready(Task& task) {
  task.state = Task::State::kReady;
  ready_.insert(task.id);
}

void DeterministicScheduler::start_running(Task& task) {
  task.state = Task::State::kRunning;
  ++running_;
  if (!threads_ || task.id < 0) return;
  baton_rank_ = task.info.rank;
  ++running_of_rank_[static_cast<size_t>(task.info.rank)];
}

void DeterministicScheduler::stop_running(Task& task, Task::State next) {
  if (task.state == Task::State::kRunning) {
    --running_;
    if (threads_) --running_of_rank_[static_cast<size_t>(task.info.rank)];
  }
  task.state = next;
}

void DeterministicScheduler::ensure_baton(Task& self, StateLock& lock) {
  if (!threads_) return;
  while (baton_rank_ != self.info.rank) {
    stop_running(self, Task::State::kReady);
    ready_.insert(self.id);
    if (idle_.load(std::memory_order_relaxed)) idle_parker_.unpark();
    lock.unlock();
    engine_->park(self);
    lock.lock();
  }
}

void DeterministicScheduler::give_way(Task& self, StateLock& lock) {
  Task* const next = pick(&self, lock);
  start_running(*next);
  if (next == &self) return;
  engine_->unpark(*next);
  lock.unlock();
  engine_->park(self);
  lock.lock();
}

void DeterministicScheduler::deterministic_point(const Site& site) {
  Task* const self = Task::current();
  if (self == nullptr) return;
  self->site = site;
  self->steps.store(self->steps.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  steps_.store(steps_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (runs_to_block_ && !threads_) {
    if (inbox_full_.load(std::memory_order_relaxed)) drain_inbox();
    return;
  }
  StateLock lock(this);
  ensure_baton(*self, lock);
  if (runs_to_block_) return;
  stop_running(*self, Task::State::kReady);
  ready_.insert(self->id);
  give_way(*self, lock);
}

WakeCause DeterministicScheduler::park(const Site& site, Deadline deadline) {
  Task& self = *Task::current();
  self.site = site;
  self.steps.store(self.steps.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  steps_.store(steps_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  StateLock lock(this);
  ensure_baton(self, lock);
  if (self.permit) {
    self.permit = false;
    return WakeCause::kUnparked;
  }
  self.cause = WakeCause::kUnparked;
  self.deadline_ns = deadline.at_ns;
  self.timer = 0;
  if (!deadline.weak && deadline.at_ns != Deadline::kNever) {
    self.timer = ++timer_generation_;
    timers_.push({deadline.at_ns, timer_order_++, self.id, self.timer});
  }
  stop_running(self, Task::State::kParked);
  give_way(self, lock);
  self.timer = 0;
  self.site.waits_for = nullptr;
  return self.cause;
}

void DeterministicScheduler::unpark(Task& task) {
  if (!runs_here()) {
    absl::MutexLock lock(&inbox_mu_);
    inbox_.push_back(&task);
    inbox_full_.store(true, std::memory_order_release);
    idle_parker_.unpark();
    return;
  }
  StateLock lock(this);
  if (task.state == Task::State::kParked) {
    task.cause = WakeCause::kUnparked;
    make_ready(task);
    if (idle_.load(std::memory_order_relaxed)) idle_parker_.unpark();
  } else {
    task.permit = true;
  }
}

int DeterministicScheduler::choose(ChoiceKind kind, int n, const Site& site) {
  if (n <= 1) return 0;
  Task* const self = Task::current();
  if (self != nullptr) self->site = site;
  StateLock lock(this);
  const ChoicePoint point{.kind = kind, .size = n, .at = self, .ready = &ready_};
  const int value = policy_->choose(point);
  if (std::string error = policy_->error(); !error.empty()) {
    lock.unlock();
    abort(make_error(ErrorKind::kAborted, error));
    lock.lock();
  }
  record(kind, self, n, value);
  return value;
}

void DeterministicScheduler::record(ChoiceKind kind, const Task* at, int size, int value) {
  if (!recording_) return;
  trace_.add({.kind = static_cast<uint8_t>(kind),
              .what = trace_.intern(at != nullptr ? at->site.what : "start"),
              .rank = at != nullptr ? at->info.rank : -1,
              .size = size,
              .value = value,
              .seq = at != nullptr ? at->site.seq : -1});
}

TaskId DeterministicScheduler::choose_next(const Task* at) {
  const int size = ready_.size();
  if (runs_to_block_) return ready_.oldest();
  if (size == 1) return ready_.nth(0);
  const ChoicePoint point{.kind = ChoiceKind::kNextTask, .size = size, .at = at, .ready = &ready_};
  const TaskId id = policy_->choose(point);
  record(ChoiceKind::kNextTask, at, size, id);
  return id;
}

Task* DeterministicScheduler::pick(const Task* at, StateLock& lock) {
  for (;;) {
    if (inbox_full_.load(std::memory_order_relaxed)) drain_inbox();
    if (ready_.empty()) {
      if (live_ == 0) return &host_;
      nobody_ready(lock);
      continue;
    }
    const TaskId id = choose_next(at);
    ready_.remove(id);
    Task* const task = task_at(id);
    if (!runs_to_block_ && !policy_->error().empty() && !aborted()) {
      make_ready(*task);
      lock.unlock();
      abort(make_error(ErrorKind::kAborted, policy_->error()));
      lock.lock();
      continue;
    }
    if (task->info.kind != TaskKind::kCompletion) return task;
    // A posted body: it runs here, as a step of its own, and may make others ready.
    task->state = Task::State::kRunning;
    auto body = std::move(task->body);
    task->body = nullptr;
    Task* const before = Task::current();
    Task::set_current(task);
    lock.unlock();
    body();
    lock.lock();
    Task::set_current(before);
    task->state = Task::State::kDone;
    free_ids_.push_back(id);
  }
}

void DeterministicScheduler::nobody_ready(StateLock& lock) {
  // Tasks of threads that run beside the baton: see kGraceNs. The one at the point has stopped already.
  if (outside_.load(std::memory_order_acquire) > 0 || (threads_ && running_ > 0)) {
    const bool outside = outside_.load(std::memory_order_acquire) > 0;
    idle_.store(true, std::memory_order_relaxed);
    baton_rank_ = -1;
    lock.unlock();
    const bool woken = idle_parker_.park(outside ? Deadline::kNever : monotonic_ns() + kGraceNs);
    lock.lock();
    idle_.store(false, std::memory_order_relaxed);
    if (woken || !ready_.empty()) return;
  }
  if (advance_clock()) return;
  if (aborted()) {
    // Everybody was woken by the abort already; who still parks asks again and leaves.
    for (Task* task : live_tasks()) {
      if (task->state == Task::State::kParked) make_ready(*task);
    }
    if (!ready_.empty() || running_ > 0) return;
    fatal(absl::StrCat("nothing is ready and nothing is parked, but ", live_, " tasks are left"));
  }
  std::vector<Task*> blocked;
  for (Task* task : live_tasks()) {
    if (task->state == Task::State::kParked) blocked.push_back(task);
  }
  if (blocked.empty() && running_ > 0) return;  // a long computation beside the baton
  lock.unlock();
  const absl::Status cause = describe_deadlock(blocked);
  abort(cause);
  lock.lock();
}

bool DeterministicScheduler::advance_clock() {
  while (!timers_.empty()) {
    const Timer& top = timers_.top();
    const Task& task = *task_at(top.task);
    if (task.timer == top.generation && task.state == Task::State::kParked) break;
    timers_.pop();
  }
  if (timers_.empty()) return false;
  // Default timeouts keep nothing alive, but they do pass when time goes on for another reason.
  int64_t earliest = timers_.top().at_ns;
  for (Task* task : live_tasks()) {
    if (task->state == Task::State::kParked) earliest = std::min(earliest, task->deadline_ns);
  }
  clock_ns_.store(std::max(now_ns(), earliest), std::memory_order_relaxed);
  for (Task* task : live_tasks()) {
    if (task->state != Task::State::kParked || task->deadline_ns > now_ns()) continue;
    task->cause = WakeCause::kTimeout;
    task->timer = 0;
    make_ready(*task);
  }
  return true;
}

Task* DeterministicScheduler::finish(Task& task, StateLock& lock) {
  if (task.state == Task::State::kReady) fatal("a task ended while it was ready");
  const bool held = !threads_ || baton_rank_ == task.info.rank;
  stop_running(task, Task::State::kDone);
  --live_;
  if (task.id >= options_.ranks) free_ids_.push_back(task.id);
  if (!held || (threads_ && running_of_rank_[static_cast<size_t>(task.info.rank)] > 0)) {
    // Another thread of the rank goes on with the baton, or somebody else holds it.
    if (idle_.load(std::memory_order_relaxed)) idle_parker_.unpark();
    return nullptr;
  }
  Task* const next = pick(&task, lock);
  if (next == &host_) return next;
  start_running(*next);
  return next;
}

bool DeterministicScheduler::runs_here() const {
  if (threads_) return true;
  const Task* const task = Task::current();
  return task != nullptr && task->scheduler == this;
}

void DeterministicScheduler::drain_inbox() {
  std::vector<Task*> woken;
  {
    absl::MutexLock lock(&inbox_mu_);
    woken.swap(inbox_);
    inbox_full_.store(false, std::memory_order_relaxed);
  }
  for (Task* task : woken) {
    if (task->state == Task::State::kParked) {
      task->cause = WakeCause::kUnparked;
      make_ready(*task);
    } else {
      task->permit = true;
    }
  }
  if (wake_all_asked_.exchange(false, std::memory_order_acq_rel)) {
    for (Task* task : live_tasks()) {
      if (task->state == Task::State::kParked) make_ready(*task);
    }
  }
}

void DeterministicScheduler::wake_all() {
  if (!runs_here() && Task::current() == nullptr && !threads_) {
    absl::MutexLock lock(&inbox_mu_);
    wake_all_asked_.store(true, std::memory_order_release);
    inbox_full_.store(true, std::memory_order_release);
    idle_parker_.unpark();
    return;
  }
  StateLock lock(this);
  for (Task* task : live_tasks()) {
    if (task->state == Task::State::kParked) {
      task->cause = WakeCause::kUnparked;
      make_ready(*task);
    }
  }
  if (idle_.load(std::memory_order_relaxed)) idle_parker_.unpark();
}

void DeterministicScheduler::outside_changed(int n) {
  outside_.fetch_add(n, std::memory_order_acq_rel);
  if (idle_.load(std::memory_order_acquire)) idle_parker_.unpark();
}

std::vector<Task*> DeterministicScheduler::live_tasks() const {
  std::vector<Task*> tasks;
  const auto add = [&tasks](Task* task) {
    if (task->id >= 0 && task->state != Task::State::kNew && task->state != Task::State::kDone &&
        task->info.kind != TaskKind::kCompletion)
      tasks.push_back(task);
  };
  for (int rank = 0; rank < options_.ranks; ++rank) add(&rank_tasks_[static_cast<size_t>(rank)]);
  for (const std::unique_ptr<Task>& task : extra_) add(task.get());
  return tasks;
}

}  // namespace rankloom

#include "sim/scheduler/deterministic_scheduler.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/prefetch.h"
#include "sim/base/saturating.h"
#include "sim/base/site_text.h"
#include "sim/base/system.h"
#include "sim/base/text.h"
#include "sim/engine/fiber_engine.h"
#include "sim/engine/thread_engine.h"
#include "sim/engine/thread_pool.h"
#include "sim/schedule/policies.h"
#include "sim/scheduler/acts_for_fibers.h"
#include "sim/scheduler/call_scope.h"

namespace rankloom::internal {
namespace {

// A rank whose helper is parked counts as parked, although its main thread is at no point. Before time goes on, such a
// thread gets this long, in real time, to come to a point; as long as it computes, it gets more.
constexpr int64_t kGraceNs = 1'000'000'000;
constexpr int kGraceLooks = 20;
// So long virtual time stands still for threads of ranks that compute between two calls.
constexpr int64_t kMostForStrangersNs = 10'000'000'000;

// A task that asks more than this many times in a row waits for others: each further question counts as a yield.
constexpr int kPolls = 3;
// Tasks that ask and act in turns: time passes after kAsks questions of theirs, if each of them asked meanwhile, and
// does at least once in so many points; and after so many points of any kind for each task that can run, if nobody
// waits, wakes, begins or ends meanwhile. A run of threads takes about as long in real time.
constexpr uint64_t kPointsToAnAsk = 64;
constexpr int64_t kBusyPoints = 100'000;
constexpr int64_t kLongestPassNs = int64_t{3'600} * 1'000'000'000;

// How many choices the last run of this thread recorded: the next one is most often of the same program.
constexpr size_t kMostReserved = 4096;
constinit thread_local size_t choices_before = 0;

std::unique_ptr<Engine> make_engine(const WorldOptions& options) {
  if (options.engine == EngineKind::kFibers)
    return std::make_unique<FiberEngine>(options.stack_bytes, options.world_size);
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
    if (mu_ != nullptr) mu_->lock();
  }
  void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (mu_ != nullptr) mu_->unlock();
  }

 private:
  OrderedMutex* const mu_;
};

// --- the steps of each switch, before those that inline them

inline void DeterministicScheduler::make_ready(Task& task) {
  task.state = Task::State::kReady;
  ready_.insert(task.id);
  if (mover_sleeps_.load(std::memory_order_relaxed)) mover_parker_.unpark();
}

inline int& DeterministicScheduler::running_of(int rank) { return running_of_rank_[static_cast<size_t>(rank + 1)]; }

inline void DeterministicScheduler::start_running(Task& task) {
  task.state = Task::State::kRunning;
  ++running_;
  note_running(task.id < 0 ? nullptr : &task);
  if (!threads_ || task.id < 0) return;
  baton_rank_ = task.info.rank;
  ++running_of(task.info.rank);
}

inline void DeterministicScheduler::stop_running(Task& task, Task::State next) {
  if (task.state == Task::State::kRunning) {
    --running_;
    if (threads_) --running_of(task.info.rank);
  }
  task.state = next;
}

inline void DeterministicScheduler::add_choice(ChoiceKind kind, const Task* at, int size, int value) {
  if (!recording_) return;
  // Names live as long as the process, so that a name is most often the last one by its address.
  const char* const what = at != nullptr ? at->site.what : "start";
  if (what != last_what_) {
    last_what_ = what;
    last_name_ = trace_.intern(what);
  }
  trace_.add({.kind = static_cast<uint8_t>(kind),
              .what = last_name_,
              .rank = at != nullptr ? at->info.rank : -1,
              .size = size,
              .value = value,
              .seq = at != nullptr ? at->site.seq : -1});
}

inline TaskId DeterministicScheduler::choose_next(const Task* at) {
  const int size = ready_.size();
  if (runs_to_block_) return ready_.oldest();
  if (size == 1 && !sees_all_) return ready_.nth(0);
  TaskId id;
  if (uniform_ != nullptr) {
    id = ready_.nth(static_cast<int>(uniform_->below(static_cast<uint64_t>(size))));
  } else {
    id = policy_->choose({.kind = ChoiceKind::kNextTask,
                          .size = size,
                          .at = at,
                          .ready = &ready_,
                          .yields = std::exchange(gives_way_, false),
                          .tasks = this});
  }
  if (size > 1) add_choice(ChoiceKind::kNextTask, at, size, id);
  return id;
}

Task* DeterministicScheduler::pick(const Task* at, StateLock& lock) {
  points_in_a_row_ = 0;
  patience_ = kFifoPatience;
  moving_ = true;
  baton_rank_ = -1;
  for (;;) {
    if (!threads_) moved();
    if (inbox_full_.load(std::memory_order_acquire)) [[unlikely]]
      drain_inbox();
    if (steps() > most_steps_ && !aborted()) [[unlikely]]
      end_endless(ErrorKind::kDeadlock,
                  absl::StrCat("the run did not end within ", options_.max_steps, " scheduling points"), lock);
    if (misled_ && !aborted()) [[unlikely]] {
      lock.unlock();
      abort(make_error(ErrorKind::kAborted, policy_->error()));
      lock.lock();
    }
    if (ready_.empty()) [[unlikely]] {
      if (live_ == 0) {
        if (!end_unless_asked()) continue;
        moving_ = false;
        if (record_ != nullptr) record_->all_ended();
        note_running(nullptr);
        return &host_;
      }
      nobody_ready(lock);
      continue;
    }
    const TaskId id = choose_next(at);
    Task* const task = task_at(id);
    if (record_ != nullptr) [[unlikely]]
      record_->begin_step(*task, ready_);
    ready_.remove(id);
    if (prefetches_) prefetch();
    if (policy_->failed() && !aborted()) [[unlikely]] {
      make_ready(*task);
      lock.unlock();
      abort(make_error(ErrorKind::kAborted, policy_->error()));
      lock.lock();
      continue;
    }
    if (task->info.kind != TaskKind::kCompletion) return task;
    run_posted(*task, lock);
  }
}

void DeterministicScheduler::run_posted(Task& task, StateLock& lock) {
  task.state = Task::State::kRunning;
  auto body = std::move(task.body);
  task.body = nullptr;
  Task* const before = Task::current();
  Task::set_current(&task);
  note_running(&task);
  lock.unlock();
  body();
  body = nullptr;  // what it holds may spawn, too
  lock.lock();
  note_running(nullptr);
  Task::set_current(before);
  task.state = Task::State::kDone;
  free_ids_.push_back(task.id);
}

inline void DeterministicScheduler::give_way(Task& self, StateLock& lock) {
  Task* const next = pick(&self, lock);
  start_running(*next);
  if (next == &self) return;
  if (!threads_) {
    engine_->pass(self, *next);
    return;
  }
  engine_->unpark(*next);
  lock.unlock();
  engine_->park(self);
  lock.lock();
}

void DeterministicScheduler::await_baton(Task& self, StateLock& lock) {
  while (baton_rank_ != self.info.rank) {
    stop_running(self, Task::State::kReady);
    make_ready(self);
    lock.unlock();
    engine_->park(self);
    lock.lock();
  }
}

// --- a run

DeterministicScheduler::DeterministicScheduler(WorldOptions&& options, const RunHooks& hooks)
    : Scheduler(std::move(options), /*deterministic=*/true, hooks.record),
      threads_(options_.engine == EngineKind::kThreads),
      ranks_here_(options_.world_size),
      engine_(make_engine(options_)),
      policy_(make_policy(options_.schedule, hooks)),
      uniform_(policy_->uniform()),
      runs_to_block_(policy_->runs_to_block()),
      acts_in_place_(runs_to_block_ && !threads_),
      recording_(!runs_to_block_),
      sees_all_(policy_->sees_all()),
      most_steps_(options_.max_steps > 0 ? options_.max_steps : ~uint64_t{0}),
      rank_tasks_(new Task[static_cast<size_t>(options_.world_size)]),
      ready_(policy_->order()) {
  host_.scheduler = this;
  host_.record = record();
  host_.inner = inner();
  prefetches_ = !threads_ && runs_to_block_ && options_.world_size >= kPrefetchRanks;
  if (threads_) running_of_rank_.resize(static_cast<size_t>(options_.world_size) + 1);
  for (int rank = 0; rank < options_.world_size; ++rank) {
    Task& task = rank_tasks_[static_cast<size_t>(rank)];
    task.scheduler = this;
    task.record = record();
    task.inner = inner();
    task.id = rank;
    task.info = {.rank = rank, .kind = TaskKind::kRank};
  }
  if (record_ != nullptr) record_->begin_run(this, options_.world_size, threads_);
  const Trace* const replayed = options_.schedule.trace();
  trace_.set_limit(options_.trace_limit);
  if (recording_) trace_.reserve(std::min<uint64_t>(options_.trace_limit, choices_before));
  trace_.set_schedule(replayed != nullptr ? replayed->schedule() : options_.schedule.text());
}

DeterministicScheduler::~DeterministicScheduler() {
  close();
  if (!trace_.empty()) choices_before = std::min(trace_.steps().size(), kMostReserved);
}

Trace DeterministicScheduler::take_trace() {
  choices_before = std::min(trace_.steps().size(), kMostReserved);
  return std::exchange(trace_, {});
}

bool DeterministicScheduler::idle() const {
  const StateLock lock(this);
  return live_ == 0;
}

bool DeterministicScheduler::await_tasks() {
  if (!threads_) return false;  // no rank attaches
  for (;;) {
    {
      const StateLock lock(this);
      if (!moving_) return live_ == 0 && attached_ == options_.world_size;
      const std::vector<Task*> live = live_tasks();
      const auto attached = [](const Task* task) { return task->adopted && task->info.kind == TaskKind::kRank; };
      if (std::any_of(live.begin(), live.end(), attached)) return false;
    }
    engine_->park(host_);
  }
}

void DeterministicScheduler::end_tasks(bool strangers) {
  if (!threads_) return;
  {
    const StateLock lock(this);
    for (const Task* task : live_tasks()) refuse_attached(*task);
  }
  if (strangers) abort(world_ended());
  for (;;) {
    {
      StateLock lock(this);
      if (live_ == 0 && !moving_) return;
      if (!moving_) {  // helpers that began before their ranks, which never came
        set_abort_cause(make_error(ErrorKind::kAborted, "the world ended before all its ranks had attached"));
        engine_->unpark(*set_off(lock));
      }
    }
    engine_->park(host_);
  }
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
  pass_baton([this, &task](StateLock& lock) { return finish(task, lock); });
}

void DeterministicScheduler::pass_baton(absl::FunctionRef<Task*(StateLock& lock)> choose) {
  Engine* const engine = engine_.get();
  Task* next = nullptr;
  {
    StateLock lock(this);
    next = choose(lock);
    // The host takes the lock before it lets the scheduler go, so this one has let go of it by then.
    if (next == &host_) {
      engine->unpark(host_);
      return;
    }
    if (next != nullptr && next->state != Task::State::kRunning) start_running(*next);
  }
  if (next != nullptr) engine->unpark(*next);
}

void DeterministicScheduler::run(absl::FunctionRef<void(int rank, Task& task)> body) {
  body_.emplace(body);
  watch_.begin();
  engine_->run_host([this] {
    if (!threads_) fibers_thread_.store(this_thread(), std::memory_order_relaxed);
    {
      StateLock lock(this);
      live_ += ranks_here_;
      for (int rank = first_here_; rank < first_here_ + ranks_here_; ++rank) {
        engine_->spawn(rank_tasks_[static_cast<size_t>(rank)], &task_main);
        make_ready(rank_tasks_[static_cast<size_t>(rank)]);
      }
      engine_->unpark(*set_off(lock));
    }
    engine_->park(host_);
    const StateLock lock(this);
  });
}

Task* DeterministicScheduler::add_extra(const TaskInfo& info) {
  TaskId id;
  if (!free_ids_.empty()) {
    id = free_ids_.back();
    free_ids_.pop_back();
  } else {
    id = static_cast<TaskId>(options_.world_size + static_cast<int>(extra_.size()));
    extra_.push_back(std::make_unique<Task>());
    // Once: a watchdog that looks at a fiber reads the number beside the run, of a task that may be over meanwhile.
    extra_.back()->id = id;
  }
  Task* const task = task_at(id);
  busy_ = {};
  task->scheduler = this;
  task->record = record();
  task->inner = inner();
  task->info = info;
  task->user = user_of(info.rank);
  task->serial = Task::next_serial();
  task->adopted = false;
  task->late_accesses = 0;
  task->site = {};
  task->state = Task::State::kNew;
  task->permit = false;
  task->polls_in_a_row = 0;
  task->asked_at = task->steps.load(std::memory_order_relaxed);
  if (static_cast<size_t>(id) < asked_in_step_.size()) asked_in_step_[static_cast<size_t>(id)] = 0;
  const auto extra = static_cast<size_t>(id - options_.world_size);
  if (extra >= born_in_step_.size()) born_in_step_.resize(extra + 1);
  born_in_step_[extra] = steps_.load(std::memory_order_relaxed);
  task->last.set(Site{});
  task->timer = 0;
  task->deadline_ns = Deadline::kNever;
  if (record_ != nullptr) [[unlikely]]
    record_->born(id, info);
  return task;
}

void DeterministicScheduler::spawn(const TaskInfo& info, absl::AnyInvocable<void()> body) {
  const auto spawn = [this, info](absl::AnyInvocable<void()> task) { spawn_here(info, std::move(task)); };
  if (!start_before_end(&body, spawn)) run_after_end(body);
}

void DeterministicScheduler::spawn_here(const TaskInfo& info, absl::AnyInvocable<void()> body) {
  Task* const task = add_extra(info);
  task->body = std::move(body);
  task->site = {};
  ++live_;
  engine_->spawn(*task, &task_main);
  make_ready(*task);
}

void DeterministicScheduler::post(const TaskInfo& info, const Site& site, absl::AnyInvocable<void()> body) {
  const auto post = [this, info, site](absl::AnyInvocable<void()> step) { post_here(info, site, std::move(step)); };
  if (start_before_end(&body, post)) return;
  const ActsForFibers alone(*this);  // hooks of the end may run
  body();
}

template <typename Start>
bool DeterministicScheduler::start_before_end(absl::AnyInvocable<void()>* body, const Start& start) {
  if (ended_.load(std::memory_order_acquire) || closed()) return false;
  if (runs_here()) {
    const StateLock lock(this);
    if (ended_.load(std::memory_order_relaxed)) return false;
    start(std::move(*body));
    return true;
  }
  StepRecord::name_next_task(0);
  const auto sent = std::make_shared<absl::AnyInvocable<void()>>(std::move(*body));
  if (send([start, sent] { start(std::move(*sent)); })) return true;
  *body = std::move(*sent);
  return false;
}

void DeterministicScheduler::post_here(const TaskInfo& info, const Site& site, absl::AnyInvocable<void()> body) {
  Task* const task = add_extra(info);
  task->body = std::move(body);
  task->site = site;
  task->last.set(site);
  make_ready(*task);
}

Task* DeterministicScheduler::attach(const TaskInfo& info) {
  if (info.kind == TaskKind::kRank) {
    ranks_attached_.store(true, std::memory_order_release);
    watch_.begin();
  } else {
    watch_.begin(kGraceNs);
  }
  StateLock lock(this);
  Task* task = nullptr;
  if (info.kind == TaskKind::kRank) {
    task = &rank_tasks_[static_cast<size_t>(info.rank)];
    task->user = user_of(info.rank);
    ++attached_;
  } else {
    task = add_extra(info);
    ++strangers_calls_;
  }
  task->adopted = true;
  task->serial = Task::serial_of_thread();
  ++live_;
  engine_->attach(*task);
  if (info.kind != TaskKind::kRank && moving_ && baton_rank_ == info.rank) {
    start_running(*task);
    return task;
  }
  make_ready(*task);
  // No choice before all ranks are there: their order of arrival must not matter. After an abort it does not.
  const bool complete = attached_ == options_.world_size || aborted();
  if (!moving_ && (started_ || (complete && attached_ > 0))) {
    Task* const first = set_off(lock);
    if (first == task) return task;
    engine_->unpark(*first);
  }
  lock.unlock();
  engine_->park(*task);
  lock.lock();
  return task;
}

Task* DeterministicScheduler::set_off(StateLock& lock) {
  if (!started_ && attached_ > 0) {
    // Ranks attach in any order; a queue of those that are ready begins in the order of their numbers.
    for (TaskId id = 0; id < options_.world_size; ++id) {
      if (rank_tasks_[static_cast<size_t>(id)].state != Task::State::kReady) continue;
      ready_.remove(id);
      ready_.insert(id);
    }
  }
  started_ = true;
  ended_.store(false, std::memory_order_relaxed);
  Task* const first = pick(nullptr, lock);
  start_running(*first);
  return first;
}

void DeterministicScheduler::detach(Task* task) {
  Task::set_current(nullptr);
  bool waits = false;
  pass_baton([&](StateLock& lock) {
    // A thread that a rank made goes back to what it does outside, which may be what all others wait for: waiting for
    // threads beside the baton is left to another thread than this one.
    waits = task->info.kind != TaskKind::kRank && live_ > 1 && only_completions_ready() &&
            last_mover_of(task->info.rank, /*ending=*/1);
    if (!waits) return finish(*task, lock);
    leave(*task);
    baton_rank_ = -1;
    if (task->id >= options_.world_size) free_ids_.push_back(task->id);
    return static_cast<Task*>(nullptr);
  });
  if (waits) move_on_thread();
}

bool DeterministicScheduler::only_completions_ready() const {
  if (ready_.empty()) return true;
  const std::vector<const Task*> ready = ready_here();
  return std::all_of(ready.begin(), ready.end(),
                     [](const Task* task) { return task->info.kind == TaskKind::kCompletion; });
}

void DeterministicScheduler::leave(Task& task) {
  if (task.state != Task::State::kRunning) fatal("a task ended that did not run");
  stop_running(task, Task::State::kDone);
  busy_ = {};
  --live_;
}

bool DeterministicScheduler::last_mover_of(int rank, int ending) const {
  if (!threads_) return true;
  if (baton_rank_ != rank) return false;
  const Task& main = rank_tasks_[static_cast<size_t>(rank)];
  const bool joins = main.state == Task::State::kRunning && joined_at_.contains(rank) &&
                     joined_at_.at(rank) == main.steps.load(std::memory_order_relaxed) && !thread_runs(main.thread);
  return running_of_rank_[static_cast<size_t>(rank + 1)] == ending + (joins ? 1 : 0);
}

void DeterministicScheduler::move_on_thread() {
  ThreadPool::shared().start("baton", [this] { pass_baton([this](StateLock& lock) { return pick(nullptr, lock); }); });
}

void DeterministicScheduler::deterministic_point(const Site& site, Step step) {
  // No call but in place of this one, so that most points of most runs save no register: under fifo on fibers a task
  // that acts goes on.
  if (acts_in_place_ && step == Step::kAct && points_in_a_row_ + 1 < patience_) [[likely]] {
    Task* const self = Task::current();
    if (self == nullptr || self->state != Task::State::kRunning) return;  // a hook, as below
    self->reach(site);
    steps_.store(steps_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    ++points_in_a_row_;
    self->polls_in_a_row = 0;
    yields_in_a_row_ = 0;
    // After the count, at which threads look that ask, behind fence_all_threads().
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (inbox_full_.load(std::memory_order_relaxed)) [[unlikely]]
      drain_inbox();
    return;
  }
  point_at_length(site, step);
}

void DeterministicScheduler::point_at_length(const Site& site, Step step) {
  Task* const self = Task::current();
  // A hook of the run's user (whereabouts, on_abort), called while somebody picks: its task has stopped already.
  if (self == nullptr || self->state != Task::State::kRunning) return;
  self->reach(site);
  steps_.store(steps_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  const bool asks = step != Step::kAct;
  if (asks) self->asked_at = self->steps.load(std::memory_order_relaxed);
  if (step == Step::kPoll) {
    if (++self->polls_in_a_row > kPolls) step = Step::kYield;
  } else {
    self->polls_in_a_row = 0;
  }
  // Fifo goes on until it blocks, but a rank that polls must not keep its peers from what it polls for.
  const auto may_go_on = [&] { return runs_to_block_ && step != Step::kYield && ++points_in_a_row_ < patience_; };
  bool goes_on = false;
  if (!threads_) {
    if (asks) count_ask(*self);
    goes_on = may_go_on();
    if (goes_on && asks_ < asks_to_look_) {
      // The site is not stored: only reports read it, and none is written while this task runs.
      if (!asks) yields_in_a_row_ = 0;
      if (inbox_full_.load(std::memory_order_relaxed)) drain_inbox();
      return;
    }
  }
  self->site = site;
  StateLock lock(this);
  ensure_baton(*self, lock);
  if (threads_) {
    if (asks) count_ask(*self);
    goes_on = may_go_on();
  }
  if (!goes_on) busy_.points += std::max(points_in_a_row_, 1);
  if (step == Step::kYield) {
    count_yield(lock);
  } else if (!asks) {
    yields_in_a_row_ = 0;
  }
  if (asks_ >= asks_to_look_ || (!goes_on && busy_.points >= kBusyPoints)) [[unlikely]]
    let_busy_time_pass(lock);
  if (!goes_on) {
    stop_running(*self, Task::State::kReady);
    make_ready(*self);
    gives_way_ = step == Step::kYield;
    give_way(*self, lock);
  } else if (!threads_ && inbox_full_.load(std::memory_order_relaxed)) {
    drain_inbox();
  }
  self->site.waits_for = nullptr;
}

void DeterministicScheduler::end_turn() {
  const StateLock lock(this);
  patience_ = 0;
}

void DeterministicScheduler::count_ask(const Task& task) {
  ++asks_;
  const auto id = static_cast<size_t>(task.id);
  if (id >= asked_in_step_.size()) asked_in_step_.resize(std::max(id + 1, static_cast<size_t>(options_.world_size)));
  asked_in_step_[id] = steps_.load(std::memory_order_relaxed);
}

bool DeterministicScheduler::all_asked_since(uint64_t step, bool or_born) const {
  const auto asked = [&](TaskId id) {
    const auto index = static_cast<size_t>(id);
    if (index < asked_in_step_.size() && asked_in_step_[index] >= step) return true;
    const int extra = id - options_.world_size;
    return or_born && extra >= 0 && born_in_step_[static_cast<size_t>(extra)] >= step;
  };
  bool all = true;
  ready_.for_each([&](TaskId id) { all = all && asked(id); });
  return all;
}

void DeterministicScheduler::count_yield(StateLock& lock) {
  const uint64_t now = steps_.load(std::memory_order_relaxed);
  // Often enough that each task that can run had its turn, under most policies.
  const int64_t most = 4 * (ready_.size() + 16);
  if (yields_in_a_row_++ == 0) yields_ = {.since = now, .look_at = most};  // somebody has acted
  if (yields_in_a_row_ <= yields_.look_at) return;
  yields_.look_at = yields_in_a_row_ + most;
  // A task that the policy keeps waiting may do what the others poll for.
  if (!all_asked_since(yields_.since, /*or_born=*/false)) return;
  yields_.since = now;
  const bool polls_only = std::exchange(yields_.passed, true);
  if (idler_ && outside_.load(std::memory_order_acquire) > 0 && !aborted()) return idle_outside(/*polls=*/true, lock);
  const int64_t timer_ns = next_timer_ns();
  // Nobody sleeps, but a task may poll until some time has passed.
  const int64_t pass_ns = timer_ns != Deadline::kNever ? std::max<int64_t>(timer_ns - now_ns(), 0) : kShortestPassNs;
  if (!outside_lets_pass() || !in_real_time(pass_ns)) return;
  asks_ = 0;
  const bool outside = takes_real_time();
  advance_clock_by(pass_ns);
  if (timer_ns != Deadline::kNever) return;
  if (outside) {
    polling_since_ns_ = 0;  // another process may answer when it likes to
  } else if (!polls_only || polling_since_ns_ == 0) {
    polling_since_ns_ = monotonic_ns();
  } else if (monotonic_ns() - polling_since_ns_ > absl::ToInt64Nanoseconds(options_.stuck_after) && !aborted()) {
    // Perhaps a thread outside would have answered: no deadlock for certain.
    end_endless(ErrorKind::kTimeout,
                absl::StrCat("stuck for ", absl::FormatDuration(options_.stuck_after),
                             " of real time: all that can run only poll"),
                lock);
  }
}

bool DeterministicScheduler::outside_lets_pass() {
  // A thread outside acts in real time; what it did before it went may be what the polls ask for, which see it from now
  // on.
  const uint64_t outside_went = outside_went_.load(std::memory_order_acquire);
  if (std::exchange(outside_went_seen_, outside_went) != outside_went) return false;
  return real_time_passes(outside_.load(std::memory_order_acquire));
}

bool DeterministicScheduler::takes_real_time() const {
  return busy_.outside || outside_.load(std::memory_order_acquire) > 0;
}

bool DeterministicScheduler::in_real_time(int64_t ns) {
  if (!takes_real_time()) return true;
  const int64_t now = monotonic_ns();
  if (busy_.since_ns == 0) busy_.since_ns = now;
  if (now - busy_.since_ns >= ns) return true;
  sched_yield();  // to the thread that may answer
  return false;
}

void DeterministicScheduler::asked_outside() {
  const StateLock lock(this);
  busy_.outside = true;
  uncovered("something outside of the run that wakes ranks");
}

bool DeterministicScheduler::all_ask() const {
  const auto other = [](const Task& task) {
    if (task.state != Task::State::kReady && task.state != Task::State::kRunning) return false;
    return task.steps.load(std::memory_order_relaxed) - task.asked_at > kPointsToAnAsk;
  };
  return std::none_of(&rank_tasks_[0], &rank_tasks_[0] + options_.world_size, other) &&
         std::none_of(extra_.begin(), extra_.end(), [&other](const auto& task) { return other(*task); });
}

void DeterministicScheduler::let_busy_time_pass(StateLock& lock) {
  const bool asked = asks_ >= asks_to_look_;
  const bool alone = busy_.points >= kBusyPoints * std::max<int64_t>(ready_.size(), 1);
  if (!asked && !alone) return;
  const uint64_t since = asks_since_;
  if (asked) {
    asks_ = 0;
    asks_since_ = steps_.load(std::memory_order_relaxed);
  }
  if (alone) busy_.points = 0;
  if (!alone && !all_ask()) return;
  // Not so in a large world, or for a policy that keeps a task waiting. Tasks may begin and end in the loops of others.
  if (!alone && !all_asked_since(since, /*or_born=*/true)) {
    asks_to_look_ = std::min(2 * asks_to_look_, kMostAsksToLook);
    return;
  }
  asks_to_look_ = kAsks;
  if (idler_ && outside_.load(std::memory_order_acquire) > 0 && !aborted()) return idle_outside(/*polls=*/true, lock);
  if (!outside_lets_pass()) return;
  const int64_t step_ns = busy_.step_ns;
  if (!in_real_time(step_ns)) return;
  if (record_ != nullptr) record_->uncovered("tasks that ask or act again and again: time passes for them at last");
  // Further and further, while it changes nothing: a peer may sleep for an hour.
  const bool sleeps = next_timer_ns() != Deadline::kNever;
  advance_clock_by(step_ns);
  if (sleeps) busy_.step_ns = step_ns < kLongestPassNs ? 2 * step_ns : step_ns;
}

void DeterministicScheduler::advance_clock_by(int64_t ns) {
  busy_.since_ns = 0;
  const int64_t timer_ns = next_timer_ns();
  if (timer_ns != Deadline::kNever && timer_ns - now_ns() <= ns) {
    advance_clock();
    busy_.step_ns = kShortestPassNs;
    return;
  }
  // Default timeouts pass as they do when time goes on for a deadline.
  const int64_t at_ns = std::min(saturating_add(now_ns(), ns), Deadline::kNever - 1);
  let_time_pass(weak_floor_ns_ <= at_ns ? std::max(now_ns(), weak_floor_ns_) : at_ns);
  if (record_ != nullptr) record_->time_passed();
}

WakeCause DeterministicScheduler::park(const Site& site, Deadline deadline) {
  Task& self = *Task::current();
  if (self.state != Task::State::kRunning) [[unlikely]]
    fatal(absl::StrCat("a hook of the world (whereabouts, on_abort) waits in ", site_text(site),
                       ": hooks must not wait"));
  self.site = site;
  self.reach(site);
  steps_.store(steps_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  StateLock lock(this);
  ensure_baton(self, lock);
  yields_in_a_row_ = 0;
  if (self.permit) {
    self.permit = false;
    return WakeCause::kUnparked;
  }
  self.cause = WakeCause::kUnparked;
  self.deadline_ns = deadline.at_ns;
  self.timer = 0;
  if (deadline.weak) {
    weak_floor_ns_ = std::min(weak_floor_ns_, deadline.at_ns);
  } else if (deadline.at_ns != Deadline::kNever) {
    self.timer = ++timer_generation_;
    timers_.push_back({deadline.at_ns, timer_order_++, self.id, self.timer});
    std::push_heap(timers_.begin(), timers_.end(), std::greater<>());
  }
  stop_running(self, Task::State::kParked);
  busy_ = {};
  if (timers_.size() >= timers_to_forget_at_) forget_dead_timers();
  give_way(self, lock);
  self.timer = 0;
  self.site.waits_for = nullptr;
  return self.cause;
}

void DeterministicScheduler::unpark(Task& task) {
  if (!runs_here()) {
    (void)send([this, &task] { unpark_here(task); });  // a task that has ended needs none
    return;
  }
  const StateLock lock(this);
  unpark_here(task);
}

void DeterministicScheduler::unpark_here(Task& task) {
  if (task.state == Task::State::kParked) {
    task.cause = WakeCause::kUnparked;
    make_ready(task);
    busy_ = {};
  } else {
    task.permit = true;
  }
}

int DeterministicScheduler::choose(ChoiceKind kind, int n, const Site& site) {
  if (n <= 1) return 0;
  Task* const self = Task::current();
  if (self != nullptr) self->site = site;
  StateLock lock(this);
  const ChoicePoint point{.kind = kind, .size = n, .at = self, .ready = &ready_, .yields = false, .tasks = this};
  const int value = policy_->choose(point);
  // No abort here: the caller may hold a lock that listeners of the abort take.
  if (policy_->failed()) [[unlikely]]
    misled_ = true;
  add_choice(kind, self, n, value);
  return value;
}

void DeterministicScheduler::prefetch() {
  if (ready_.size() <= kTaskTurns.object) return;
  fetch_ahead(kTaskTurns, [this](int turns, Fetch step) {
    const Task& task = *task_at(ready_.oldest_after(turns));
    if (step == Fetch::kObject) return prefetch_lines(&task, 0, sizeof(Task));
    engine_->prefetch(task, step);
    if (step != Fetch::kPointers) return;
    if (task.next_write != nullptr) prefetch_lines(task.next_write, 0, kNextWriteBytes);
    if (task.site.waits_for != nullptr) prefetch_lines(task.site.waits_for, -kBeforeWaitsFor, kAfterWaitsFor);
  });
}

DeterministicScheduler::Stopped DeterministicScheduler::stopped(const std::vector<Task*>& tasks) const {
  // A task that stands at its point can be asked for whom it waits.
  const Task* const here = Task::current();
  Stopped stopped;
  for (Task* task : tasks) {
    const bool stands = task->state == Task::State::kParked || task->state == Task::State::kReady || task == here;
    if (task->state == Task::State::kParked || (stands && task->site.waits_for != nullptr)) {
      stopped.waiting.push_back(task);
    } else {
      // One that runs beside the baton is past its site, whose texts may be gone.
      absl::StrAppend(&stopped.moving, "\n  rank ", task->info.rank,
                      stands ? absl::StrCat(" is at ", site_text(task->site), site_place(task->site))
                             : absl::StrCat(" runs; ", last_point_text(task->last.site())));
    }
  }
  return stopped;
}

void DeterministicScheduler::end_endless(ErrorKind kind, std::string text, StateLock& lock) {
  if (endless_) return endless_(kind, text);
  const Stopped all = stopped(live_tasks());
  absl::StrAppend(&text, all.moving);
  lock.unlock();
  if (record_ != nullptr) record_->stop();  // before the report looks at everything
  end_stuck(wait_reporter_.end ? wait_reporter_.end(all.waiting, kind, text)
                               : make_error(kind, text, wait_lines(all.waiting)));
  lock.lock();
}

void DeterministicScheduler::nobody_ready(StateLock& lock) {
  const bool outside = outside_.load(std::memory_order_acquire) > 0;
  // Tasks that an outside waker sent before it went are seen now.
  if (inbox_full_.load(std::memory_order_acquire)) return;
  // The task at the point has stopped already: tasks that run are threads beside the baton.
  const bool due = next_timer_ns() <= now_ns();  // time need not go on for these
  if (outside && !due && idler_ && !aborted()) return idle_outside(/*polls=*/false, lock);
  if (outside && !due && await_outside(lock)) return;
  if (!due && any_timer() && (running_ > 0 ? wait_beside(kGraceNs, lock) : away() > 0 && await_strangers(lock))) return;
  if (advance_clock()) return;
  if (aborted()) {
    // The abort has woken all tasks already; one that still parks asks again and leaves.
    wake_all_here();
    if (!ready_.empty()) return;
    if (running_ > 0) {
      wait_beside(kGraceNs, lock);
      return;
    }
    fatal(absl::StrCat("nothing is ready and nothing is parked, but ", live_, " tasks are left"));
  }
  if (running_ > 0 || away() > 0) return await_threads_beside(lock);
  const std::vector<Task*> blocked = parked_tasks();
  lock.unlock();
  if (record_ != nullptr) record_->stop();  // before the report looks at everything
  end_stuck(deadlock_error(blocked));
  lock.lock();
}

void DeterministicScheduler::idle_outside(bool polls, StateLock& lock) {
  const int others = outside_.load(std::memory_order_acquire) - 1;
  const Idle idle{.deadline_ns = next_timer_ns(),
                  .weak_deadline_ns = weak_floor_ns_,
                  .beside = (running_ > 0 && !polls) || away() > 0 || (others > 0 && !real_time_passes(others)),
                  .in_real_time = others > 0 || busy_.outside,
                  .polls = polls,
                  .now_ns = now_ns(),
                  .tasks = live_};
  if (!polls) note_running(nullptr);
  lock.unlock();
  idler_(idle);
  lock.lock();
}

bool DeterministicScheduler::post_from_outside(const TaskInfo& info, const Site& site,
                                               absl::AnyInvocable<void()> body) {
  const auto post = [this, info, site](absl::AnyInvocable<void()> step) { post_here(info, site, std::move(step)); };
  return start_before_end(&body, post);
}

DeterministicScheduler::Stopped DeterministicScheduler::stopped_here() const {
  std::vector<Task*> tasks = live_tasks();
  // Those that stand for a rank of another process, which tells of it itself.
  std::erase_if(tasks, [this](const Task* task) {
    return task->info.rank < first_here_ || task->info.rank >= first_here_ + ranks_here_;
  });
  return stopped(tasks);
}

std::vector<Task*> DeterministicScheduler::due_by(int64_t at_ns) const {
  std::vector<Task*> due;
  append_due(0, at_ns, &due);
  if (weak_floor_ns_ > at_ns) return due;
  for (Task* task : live_tasks()) {
    if (task->state == Task::State::kParked && task->timer == 0 && task->deadline_ns <= at_ns) due.push_back(task);
  }
  return due;
}

// Of the heap of timers below this one: none of them is earlier.
void DeterministicScheduler::append_due(size_t timer, int64_t at_ns, std::vector<Task*>* due) const {
  if (timer >= timers_.size() || timers_[timer].at_ns > at_ns) return;
  Task* const task = alive(timers_[timer]) ? task_at(timers_[timer].task) : nullptr;
  if (task != nullptr && task->site.what != std::string_view("sleep")) due->push_back(task);
  append_due(2 * timer + 1, at_ns, due);
  append_due(2 * timer + 2, at_ns, due);
}

void DeterministicScheduler::let_time_pass(int64_t at_ns) {
  while (next_timer_ns() <= at_ns) advance_clock();
  clock_ns_.store(std::max(now_ns(), at_ns), std::memory_order_relaxed);
  if (weak_floor_ns_ > at_ns) return;
  weak_floor_ns_ = Deadline::kNever;
  for (Task* task : live_tasks()) {
    if (task->state != Task::State::kParked || task->timer != 0 || task->deadline_ns == Deadline::kNever) continue;
    if (task->deadline_ns > at_ns) {
      weak_floor_ns_ = std::min(weak_floor_ns_, task->deadline_ns);
      continue;
    }
    task->cause = WakeCause::kTimeout;
    make_ready(*task);
  }
}

std::vector<const Task*> DeterministicScheduler::ready_tasks() const {
  const StateLock lock(this);
  return ready_here();
}

std::vector<const Task*> DeterministicScheduler::ready_here() const {
  std::vector<const Task*> ready;
  for (const Task* task : live_tasks()) {
    if (task->state == Task::State::kReady) ready.push_back(task);
  }
  return ready;
}

std::vector<Task*> DeterministicScheduler::parked_tasks() const {
  std::vector<Task*> parked;
  for (Task* task : live_tasks()) {
    if (task->state == Task::State::kParked) parked.push_back(task);
  }
  return parked;
}

bool DeterministicScheduler::await_outside(StateLock& lock) {
  const int64_t now = now_ns();
  const int64_t next = real_time_passes(outside_.load(std::memory_order_acquire)) ? next_due_ns() : Deadline::kNever;
  const int64_t since = monotonic_ns();
  const int64_t until = next == Deadline::kNever ? next : saturating_add(since, next - now);
  mover_sleeps_.store(true, std::memory_order_relaxed);
  note_running(nullptr);
  lock.unlock();
  const bool moved = mover_parker_.park(until);
  lock.lock();
  mover_sleeps_.store(false, std::memory_order_relaxed);
  if (next != Deadline::kNever) {
    // Also where somebody outside came before the timer: the next wait begins at this time. No search is told: none
    // decides when somebody outside comes.
    const int64_t passed = std::min(monotonic_ns() - since, next - now);
    clock_ns_.store(std::max(now_ns(), now + passed), std::memory_order_relaxed);
  }
  return moved || !ready_.empty();
}

bool DeterministicScheduler::wait_beside(int64_t grace_ns, StateLock& lock) {
  std::vector<int> threads;
  for (const Task* task : live_tasks()) {
    if (task->state == Task::State::kRunning) threads.push_back(task->thread);
  }
  mover_sleeps_.store(true, std::memory_order_relaxed);
  note_running(nullptr);
  lock.unlock();
  bool moved = false;
  for (int i = 0; i < kGraceLooks && !moved; ++i) {
    moved = mover_parker_.park(monotonic_ns() + grace_ns / kGraceLooks) ||
            std::any_of(threads.begin(), threads.end(), [](int thread) { return thread_runs(thread); });
  }
  moved = moved || strangers_compute();
  lock.lock();
  mover_sleeps_.store(false, std::memory_order_relaxed);
  return moved || !ready_.empty();
}

bool DeterministicScheduler::await_strangers(StateLock& lock) {
  if (stranger_wait_.at_call != strangers_calls_)
    stranger_wait_ = {.at_call = strangers_calls_, .since_ns = monotonic_ns(), .over = false};
  if (stranger_wait_.over) return false;
  const bool moved = wait_beside(kGraceNs, lock);
  if (moved && (!ready_.empty() || inbox_full_.load(std::memory_order_acquire) ||
                monotonic_ns() - stranger_wait_.since_ns < std::min(kMostForStrangersNs, stall_ns())))
    return true;
  stranger_wait_.over = true;
  return false;
}

void DeterministicScheduler::await_threads_beside(StateLock& lock) {
  const auto now_beside = [this] { return std::pair<int, int>(running_, away()); };
  const std::pair<int, int> beside = now_beside();
  const int64_t slice_ns = std::min(kGraceNs, stuck_ns() / 4);
  int64_t since_ns = monotonic_ns();
  bool told = false;
  // Threads that come or go are looked at anew by the caller.
  while (ready_.empty() && !aborted() && !inbox_full_.load(std::memory_order_acquire) && now_beside() == beside) {
    if (wait_beside(slice_ns, lock)) {
      since_ns = monotonic_ns();
      continue;
    }
    const int64_t stuck_for_ns = monotonic_ns() - since_ns;
    // The warning comes before the end in any case: a busy machine may come here for the first time when both are due.
    const bool warns = !told && stuck_for_ns >= stall_ns();
    const bool ends = !warns && stuck_for_ns >= stuck_ns();
    if (!warns && !ends) continue;
    const std::vector<Task*> blocked = parked_tasks();
    if (blocked.empty()) continue;  // a long computation beside the baton
    std::vector<int> ranks;
    for (const Task* task : live_tasks()) {
      if (task->state == Task::State::kRunning) ranks.push_back(task->info.rank);
    }
    lock.unlock();
    const std::string headline = stuck_headline(std::move(ranks), ends ? stuck_ns() : stall_ns());
    if (ends) {
      end_stuck(stuck_error(blocked, headline));
    } else {
      watch_.tell(absl::StrCat(headline, wait_lines(blocked)));
    }
    lock.lock();
    told = true;
  }
}

Task* DeterministicScheduler::ready_beside(int rank) const {
  for (const std::unique_ptr<Task>& task : extra_) {
    if (task->state == Task::State::kReady && task->adopted && task->info.rank == rank) return task.get();
  }
  return nullptr;
}

// A rank may hold the baton and wait, in a way of its own, for a thread of its own: a join. If that one is ready, it
// runs beside the rank, as it would have done if it had come to its point now. If it waits for others, they get the
// baton, or, if nobody can run, time goes on. As long as the rank's main thread comes to no other point, it is taken to
// join.
absl::Status DeterministicScheduler::look_for_stuck(int64_t now_ns, std::vector<std::string>* /*texts*/) {
  if (!threads_) return absl::OkStatus();
  Task* helper = nullptr;
  {
    const StateLock lock(this);
    const uint64_t steps = steps_.load(std::memory_order_relaxed);
    bool computes = !moving_ || baton_rank_ < 0 || running_of(baton_rank_) == 0;
    bool waits = false;
    for (const Task* task : live_tasks()) {
      if (computes || task->info.rank != baton_rank_) continue;
      waits = waits || (task->adopted && task->state != Task::State::kRunning);
      if (task->state == Task::State::kRunning) computes = thread_runs(task->thread);
    }
    if (computes || !waits || steps != still_at_step_) {
      still_at_step_ = steps;
      still_since_ns_ = now_ns;
      return absl::OkStatus();
    }
    if (now_ns - still_since_ns_ < std::min(kGraceNs, stall_ns())) return absl::OkStatus();
    still_since_ns_ = now_ns;
    const Task& main = rank_tasks_[static_cast<size_t>(baton_rank_)];
    if (main.state == Task::State::kRunning) joined_at_[baton_rank_] = main.steps.load(std::memory_order_relaxed);
    helper = ready_beside(baton_rank_);
    if (helper != nullptr) {
      ready_.remove(helper->id);
      start_running(*helper);
    } else {
      baton_rank_ = -1;  // the thread below is the mover from now on
    }
  }
  helper != nullptr ? engine_->unpark(*helper) : move_on_thread();
  return absl::OkStatus();
}

void DeterministicScheduler::away_changed(int) { mover_parker_.unpark(); }

bool DeterministicScheduler::any_timer() const {
  return std::any_of(timers_.begin(), timers_.end(), [this](const Timer& timer) { return alive(timer); });
}

bool DeterministicScheduler::alive(const Timer& timer) const {
  const Task& task = *task_at(timer.task);
  return task.timer == timer.generation && task.state == Task::State::kParked;
}

void DeterministicScheduler::forget_dead_timers() {
  std::erase_if(timers_, [this](const Timer& timer) { return !alive(timer); });
  std::make_heap(timers_.begin(), timers_.end(), std::greater<>());
  timers_to_forget_at_ = std::max<size_t>(1024, 2 * timers_.size());
}

void DeterministicScheduler::take_out_timer() {
  std::pop_heap(timers_.begin(), timers_.end(), std::greater<>());
  timers_.pop_back();
}

int64_t DeterministicScheduler::next_timer_ns() {
  while (!timers_.empty() && !alive(timers_.front())) take_out_timer();
  return timers_.empty() ? Deadline::kNever : timers_.front().at_ns;
}

int64_t DeterministicScheduler::next_due_ns() {
  int64_t at_ns = next_timer_ns();
  if (at_ns == Deadline::kNever || weak_floor_ns_ > at_ns) return at_ns;
  for (const Task* task : live_tasks()) {
    if (task->state == Task::State::kParked && task->timer == 0) at_ns = std::min(at_ns, task->deadline_ns);
  }
  return at_ns;
}

bool DeterministicScheduler::advance_clock() {
  if (next_timer_ns() == Deadline::kNever) return false;
  // Default timeouts keep nothing alive, but they do pass when time goes on for another reason, each in its turn.
  int64_t at_ns = timers_.front().at_ns;
  std::vector<Task*> weak;
  if (weak_floor_ns_ <= at_ns) {
    weak_floor_ns_ = Deadline::kNever;
    for (Task* task : live_tasks()) {
      if (task->state != Task::State::kParked || task->timer != 0 || task->deadline_ns == Deadline::kNever) continue;
      if (task->deadline_ns < at_ns) {
        weak_floor_ns_ = std::min(weak_floor_ns_, at_ns);
        at_ns = task->deadline_ns;
        weak.clear();
      }
      if (task->deadline_ns == at_ns) {
        weak.push_back(task);
      } else {
        weak_floor_ns_ = std::min(weak_floor_ns_, task->deadline_ns);
      }
    }
  }
  clock_ns_.store(std::max(now_ns(), at_ns), std::memory_order_relaxed);
  if (record_ != nullptr) record_->time_passed();
  const auto time_out = [this](Task& task) {
    task.cause = WakeCause::kTimeout;
    task.timer = 0;
    make_ready(task);
  };
  while (!timers_.empty() && timers_.front().at_ns <= at_ns) {
    const Timer timer = timers_.front();
    take_out_timer();
    if (alive(timer)) time_out(*task_at(timer.task));
  }
  for (Task* task : weak) time_out(*task);
  return true;
}

Task* DeterministicScheduler::finish(Task& task, StateLock& lock) {
  leave(task);
  const bool held = !threads_ || baton_rank_ == task.info.rank;
  Task* next = nullptr;
  // Else another thread of the rank goes on with the baton, or somebody else holds it.
  if (last_mover_of(task.info.rank, /*ending=*/0)) {
    next = pick(&task, lock);
  } else if (next = held ? ready_beside(task.info.rank) : nullptr; next != nullptr) {
    // The rank's other thread may be waiting for it, in a way of its own.
    ready_.remove(next->id);
  } else if (mover_sleeps_.load(std::memory_order_relaxed)) {
    mover_parker_.unpark();
  }
  // After the pick, which may have spawned tasks.
  if (task.id >= options_.world_size) free_ids_.push_back(task.id);
  return next;
}

bool DeterministicScheduler::runs_here() const {
  if (threads_) return true;
  const Task* const task = Task::current();
  return task != nullptr && task->scheduler == this;
}

bool DeterministicScheduler::beside_fibers() const {
  const int fibers = fibers_thread();
  return fibers != 0 && fibers != this_thread() && !ended_.load(std::memory_order_acquire) &&
         !ActsForFibers::here(serial());
}

bool DeterministicScheduler::send(absl::AnyInvocable<void()> what) {
  {
    OrderedMutexLock lock(&inbox_mu_);
    if (ended_.load(std::memory_order_relaxed)) return false;
    inbox_.push_back(std::move(what));
    inbox_full_.store(true, std::memory_order_release);
  }
  mover_parker_.unpark();
  return true;
}

bool DeterministicScheduler::end_unless_asked() {
  OrderedMutexLock lock(&inbox_mu_);
  if (!inbox_.empty()) return false;
  ended_.store(true, std::memory_order_release);
  return true;
}

void DeterministicScheduler::drain_inbox() {
  std::vector<absl::AnyInvocable<void()>> asked;
  {
    OrderedMutexLock lock(&inbox_mu_);
    asked.swap(inbox_);
    inbox_full_.store(false, std::memory_order_relaxed);
  }
  if (!threads_) ActsForFibers::await_others(*this);
  for (absl::AnyInvocable<void()>& what : asked) what();
}

void DeterministicScheduler::wake_all() {
  if (!runs_here()) {
    (void)send([this] { wake_all_here(); });
    return;
  }
  StateLock lock(this);
  wake_all_here();
  // Ranks that wait for others to attach.
  if (!moving_ && attached_ > 0 && !ready_.empty()) engine_->unpark(*set_off(lock));
}

void DeterministicScheduler::wake_all_here() {
  for (Task* task : live_tasks()) {
    if (task->state != Task::State::kParked) continue;
    task->cause = WakeCause::kUnparked;
    make_ready(*task);
  }
}

void DeterministicScheduler::while_nobody_moves(absl::FunctionRef<void(const std::vector<Task*>&)> look) {
  const Task* const self = Task::current();
  StateLock lock(this);
  std::vector<Task*> waiting;
  for (Task* task : live_tasks()) {
    if (task->state == Task::State::kParked) waiting.push_back(task);
  }
  // As while somebody picks: a helper that comes to a point meanwhile queues.
  const bool moves = self != nullptr && self->scheduler == this && self->info.rank == baton_rank_;
  const int baton_rank = moves ? std::exchange(baton_rank_, -1) : baton_rank_;
  lock.unlock();
  look(waiting);
  lock.lock();
  if (moves) baton_rank_ = baton_rank;
}

void DeterministicScheduler::append_outstanding(std::vector<Outstanding>* outstanding) const {
  // As long as anybody moves, the others wait for their turn.
  const uint64_t steps = steps_.load(std::memory_order_relaxed);
  if (!threads_) {
    if (const Task* const task = runs_.load(std::memory_order_acquire); task != nullptr) {
      outstanding->push_back({.id = task->id,
                              .info = runs_info_.load(std::memory_order_relaxed),
                              .thread = fibers_thread_.load(std::memory_order_relaxed),
                              .steps = steps,
                              .last = task->last.site()});
    }
    return;
  }
  const StateLock lock(this);
  const auto add = [&](const Task& task) {
    if (task.state != Task::State::kRunning) return;
    outstanding->push_back({.id = task.id,
                            .info = task.info,
                            .thread = task.thread.load(std::memory_order_relaxed),
                            .steps = steps,
                            .last = task.last.site()});
  };
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const Task& task = rank_tasks_[static_cast<size_t>(rank)];
    add(task);
    if (!started_ && attached_ > 0 && task.state == Task::State::kNew) {
      outstanding->push_back(
          {.id = task.id, .info = task.info, .attached = false, .steps = static_cast<uint64_t>(attached_), .last = {}});
    }
  }
  for (const std::unique_ptr<Task>& task : extra_) add(*task);
}

void DeterministicScheduler::outside_changed(int n) {
  if (n < 0) outside_went_.fetch_add(1, std::memory_order_acq_rel);
  outside_.fetch_add(n, std::memory_order_acq_rel);
  // Whether or not the run is idle yet: it may be about to be.
  if (n < 0) mover_parker_.unpark();
}

std::optional<Site> DeterministicScheduler::last_point(int rank) const {
  const Task& task = rank_tasks_[static_cast<size_t>(rank)];
  if (task.state == Task::State::kNew || task.state == Task::State::kDone) return std::nullopt;
  return task.last.site();
}

std::vector<Task*> DeterministicScheduler::live_tasks() const {
  std::vector<Task*> tasks;
  const auto add = [&tasks](Task* task) {
    if (task->id >= 0 && task->state != Task::State::kNew && task->state != Task::State::kDone &&
        task->info.kind != TaskKind::kCompletion)
      tasks.push_back(task);
  };
  for (int rank = first_here_; rank < first_here_ + ranks_here_; ++rank) add(&rank_tasks_[static_cast<size_t>(rank)]);
  for (const std::unique_ptr<Task>& task : extra_) add(task.get());
  return tasks;
}

}  // namespace rankloom::internal

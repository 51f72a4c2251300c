#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "rankloom/error.h"
#include "sim/base/lock_order.h"
#include "sim/base/system.h"
#include "sim/engine/engine.h"
#include "sim/schedule/policy.h"
#include "sim/schedule/ready_set.h"
#include "sim/scheduler/scheduler.h"
#include "sim/scheduler/stall_watch.h"

namespace rankloom::internal {

// One task runs at a time; at every scheduling point the policy picks the next. The same code drives threads (the
// running one holds the baton) and fibers, so one seed gives one trace on both.
//
// On threads the baton belongs to a rank: a helper thread of that rank may run beside it. A helper that parks passes
// the baton on; a task that comes to a point while its rank does not hold the baton queues as ready.
//
// invariant: from the first pick until all tasks have ended exactly one task is the mover: it runs with the baton, or
// it picks the next. Nobody holds the baton while the mover picks, so a task that comes to a point meanwhile queues.
class DeterministicScheduler final : public Scheduler, private TaskTable {
 public:
  DeterministicScheduler(WorldOptions&& options, const RunHooks& hooks);
  ~DeterministicScheduler() override;

  void run(absl::FunctionRef<void(int rank, Task& task)> body) override;
  void spawn(const TaskInfo& info, absl::AnyInvocable<void()> body) override;
  bool takes_tasks() const override { return !ended_.load(std::memory_order_acquire) && !closed(); }
  bool awaits_ranks() const override {
    return this_thread() == maker_ && !started_.load() && !ranks_attached_.load() && takes_tasks();
  }
  bool beside_fibers() const override;
  int fibers_thread() const override { return fibers_thread_.load(std::memory_order_relaxed); }
  void ask_fibers() override {
    (void)send([] {});
  }
  void post(const TaskInfo& info, const Site& site, absl::AnyInvocable<void()> body) override;
  Task* attach(const TaskInfo& info) override;
  void detach(Task* task) override;
  void end_turn() override;
  WakeCause park(const Site& site, Deadline deadline) override;
  void unpark(Task& task) override;
  int choose(ChoiceKind kind, int n, const Site& site) override;
  int64_t now_ns() const override { return clock_ns_.load(std::memory_order_relaxed); }
  std::optional<Site> last_point(int rank) const override;
  void append_outstanding(std::vector<Outstanding>* outstanding) const override;
  const Trace& trace() const override { return trace_; }
  Trace take_trace() override;
  uint64_t steps() const override { return steps_.load(std::memory_order_relaxed); }
  void asked_outside() override;
  absl::Status look_for_stuck(int64_t now_ns, std::vector<std::string>* texts) override;

  // --- a world over several processes, on fibers: with an outside waker, so that this one alone finds no deadlock

  // Only these ranks run in this process. Before anything else.
  void host_only(int first, int ranks) {
    first_here_ = first;
    ranks_here_ = ranks;
  }
  // The moment at which no task here can move and time alone would have one move.
  struct Idle {
    int64_t deadline_ns = Deadline::kNever;       // the earliest own deadline
    int64_t weak_deadline_ns = Deadline::kNever;  // no default timeout ends before this
    // Threads of ranks, or outside wakers but the idler's, may still act; and none but those that let time pass as the
    // real one does, waits for a shared file.
    bool beside = false;
    bool in_real_time = false;
    bool polls = false;  // tasks can run, but do nothing but ask whether something happened
    int64_t now_ns = 0;
    int tasks = 0;  // that have not ended, steps excepted
  };
  // Called on the fibers' thread when no task can move, in the place of its sleep: returns when asked() says that
  // somebody sent something; if tasks poll, soon, so that they ask again. Set once, before run().
  void set_idler(std::function<void(const Idle& idle)> idler) { idler_ = std::move(idler); }
  // By a task or a step: the tasks that have not ended, steps excepted.
  int tasks() const { return live_; }
  bool asked() const { return inbox_full_.load(std::memory_order_acquire); }
  // Has a body run as a step of its own, on the fibers' thread; from any thread. False: all tasks have ended.
  bool post_from_outside(const TaskInfo& info, const Site& site, absl::AnyInvocable<void()> body);
  // By such a step: time goes on to `at_ns`, and ends waits on its way.
  void let_time_pass(int64_t at_ns);
  // By such a step, or a task, for a report of all processes: the tasks of ranks here that wait; and lines on those
  // that do not, "\n  rank 2 is at yield [train.cc:12]".
  struct Stopped {
    std::vector<Task*> waiting;
    std::string moving;
  };
  Stopped stopped_here() const;
  // The lines about tasks that wait, in texts of waits that end: those of all processes. Set once, before run().
  void set_wait_lines(std::function<std::string(const std::vector<Task*>& waiting)> lines) {
    wait_reporter_.lines = std::move(lines);
  }
  // The tasks whose waits, but for sleeps, end by then.
  std::vector<Task*> due_by(int64_t at_ns) const;
  // Called on the fibers' thread, in the place of the end of a run that has come to max_steps, at each step from then
  // on until the run is aborted. Set once, before run().
  void set_endless(std::function<void(ErrorKind kind, const std::string& headline)> endless) {
    endless_ = std::move(endless);
  }

 protected:
  void deterministic_point(const Site& site, Step step) override;
  void wake_all() override;
  bool idle() const override;
  void away_changed(int n) override;
  bool await_tasks() override;
  void end_tasks(bool strangers) override;
  void end_watch() override { watch_.end(); }
  std::vector<const Task*> ready_tasks() const override;
  void outside_changed(int n) override;
  void while_nobody_moves(absl::FunctionRef<void(const std::vector<Task*>&)> look) override;

 private:
  class StateLock;

  const Task& task(TaskId id) const override { return *task_at(id); }

  // All below run with the state locked (threads) or on the fibers' thread.
  Task* task_at(TaskId id) const {
    return id < options_.world_size ? &rank_tasks_[static_cast<size_t>(id)]
                                    : extra_[static_cast<size_t>(id - options_.world_size)].get();
  }
  Task* add_extra(const TaskInfo& info);
  void spawn_here(const TaskInfo& info, absl::AnyInvocable<void()> body);
  void post_here(const TaskInfo& info, const Site& site, absl::AnyInvocable<void()> body);
  void unpark_here(Task& task);
  void wake_all_here();
  // Steps of each switch: inlined where they are used.
  [[gnu::always_inline]] void make_ready(Task& task);
  int& running_of(int rank);  // -1: of tasks of no rank
  [[gnu::always_inline]] void start_running(Task& task);
  // `task` (null: nobody) has the fibers' thread from now on.
  void note_running(const Task* task) {
    if (threads_) return;
    if (task != nullptr) runs_info_.store(task->info, std::memory_order_relaxed);
    runs_.store(task, std::memory_order_release);
  }
  [[gnu::always_inline]] void stop_running(Task& task, Task::State next);
  [[gnu::always_inline]] void ensure_baton(Task& self, StateLock& lock) {
    if (threads_) await_baton(self, lock);
  }
  void await_baton(Task& self, StateLock& lock);
  // deterministic_point() of a task that asks, or may have to give way.
  [[gnu::noinline]] void point_at_length(const Site& site, Step step);
  // `self` yields: the clock goes on if nobody did anything else for long.
  void count_yield(StateLock& lock);
  void count_ask(const Task& task);
  // Whether each task that can run has polled or yielded from this step of the run on, or has begun since, if that will
  // do.
  bool all_asked_since(uint64_t step, bool or_born) const;
  // Tasks asked and acted again and again, often enough: time passes for them, if nothing holds it up.
  void let_busy_time_pass(StateLock& lock);
  // Whether all tasks that could run ask every now and then.
  bool all_ask() const;
  // Whether time may pass for tasks that ask: not as long as, nor right after, a thread outside may answer.
  bool outside_lets_pass();
  // Whether somebody outside may answer, so that no virtual time passes faster than real time.
  bool takes_real_time() const;
  // Whether `ns` of real time have passed since a task first asked for outside changes; true if none has asked.
  bool in_real_time(int64_t ns);
  // The clock goes on by so much, and no further than the earliest own deadline.
  void advance_clock_by(int64_t ns);
  // The task that runs next, by the policy; runs posted bodies on the way. The host when nothing is left to run.
  Task* pick(const Task* at, StateLock& lock);
  // `self` stops here until it is picked again.
  [[gnu::always_inline]] void give_way(Task& self, StateLock& lock);
  // The first pick: the caller is no task, or a ready one.
  Task* set_off(StateLock& lock);
  // Ends `task`. The one that runs next; null: nobody new.
  Task* finish(Task& task, StateLock& lock);
  void leave(Task& task);
  // Whether the rank holds the baton and nobody of it goes on but `ending` tasks, which end now.
  bool last_mover_of(int rank, int ending) const;
  bool only_completions_ready() const;
  // A thread that a rank made may be about to call, or is gone from here for good: before time goes on, waits once
  // after each call of such a thread. True: look for ready tasks again.
  bool await_strangers(StateLock& lock);
  // On a thread of its own: picks the next task.
  void move_on_thread();
  void nobody_ready(StateLock& lock);
  void idle_outside(bool polls, StateLock& lock);
  // Fetches what switches to the next tasks in the queue will touch.
  void prefetch();
  // max_steps have passed.
  void end_endless(ErrorKind kind, std::string text, StateLock& lock);
  // Waits for somebody outside to act; where virtual time passes as real time does, until a task is due: false.
  bool await_outside(StateLock& lock);
  // Waits for a thread beside the run to do something. False: nobody did within `grace_ns`, and none computes.
  bool wait_beside(int64_t grace_ns, StateLock& lock);
  // Nobody is ready and no time can pass, but threads of ranks are at no point: until somebody moves, or `stuck_after`
  // passed.
  void await_threads_beside(StateLock& lock);
  // A thread of the caller's own that is ready as a helper of `rank`; null: there is none.
  Task* ready_beside(int rank) const;
  // The tasks that have not ended, by id, and those of them that are parked.
  std::vector<Task*> live_tasks() const;
  std::vector<const Task*> ready_here() const;
  std::vector<Task*> parked_tasks() const;
  Stopped stopped(const std::vector<Task*>& tasks) const;
  void append_due(size_t timer, int64_t at_ns, std::vector<Task*>* due) const;
  bool any_timer() const;
  void end(Task& task);
  // Lets the task run that `choose` gives, with the state locked; null: nobody. The caller is no task any more.
  void pass_baton(absl::FunctionRef<Task*(StateLock& lock)> choose);
  bool advance_clock();
  // The earliest own deadline; Deadline::kNever: there is none.
  int64_t next_timer_ns();
  // When advance_clock() would let somebody time out: then, or at an earlier default timeout.
  int64_t next_due_ns();
  void take_out_timer();
  void forget_dead_timers();
  void drain_inbox();
  bool runs_here() const;
  // Has `what` done on the fibers' thread: they cannot be touched from elsewhere. False: all tasks have ended, and
  // nothing is done.
  bool send(absl::AnyInvocable<void()> what);
  // All tasks have ended, unless a request came meanwhile: false. Later requests are refused.
  bool end_unless_asked();
  // Has `start` make a task of `body`, here or on the fibers' thread. False: all tasks have ended, and `body` is as it
  // was.
  template <typename Start>
  bool start_before_end(absl::AnyInvocable<void()>* body, const Start& start);
  [[gnu::always_inline]] TaskId choose_next(const Task* at);
  [[gnu::always_inline]] void add_choice(ChoiceKind kind, const Task* at, int size, int value);
  // A posted body: a step of its own on the caller's stack, which may make others ready.
  void run_posted(Task& task, StateLock& lock);
  static void task_main(Task& task);

  // How far the clock goes on at least when it does so for tasks that ask.
  static constexpr int64_t kShortestPassNs = 1'000'000;

  const bool threads_;
  int first_here_ = 0;  // ranks that run in this process: so many, from this one on
  int ranks_here_;
  const std::unique_ptr<Engine> engine_;
  const std::unique_ptr<SchedulePolicy> policy_;
  Prng* const uniform_;  // the policy's; null: it is asked
  const bool runs_to_block_;
  const bool acts_in_place_;  // a point before an act switches nothing and takes no lock: fifo on fibers
  const bool recording_;
  const bool sees_all_;
  const uint64_t most_steps_;  // after which the run is endless

  mutable OrderedMutex mu_{LockLevel::kScheduler};  // guards all below on threads; unused on fibers
  Task host_;
  std::unique_ptr<Task[]> rank_tasks_;
  std::vector<std::unique_ptr<Task>, KeptAllocator<std::unique_ptr<Task>>> extra_;
  std::vector<TaskId, KeptAllocator<TaskId>> free_ids_;
  ReadySet ready_;
  std::optional<absl::FunctionRef<void(int, Task&)>> body_;
  int live_ = 0;                      // tasks that have not ended, posted ones excepted
  int attached_ = 0;                  // ranks that have attached
  const int maker_ = this_thread();   // the thread that made this
  std::atomic<bool> started_{false};  // choices may be drawn; changed under the lock
  bool moving_ = false;               // there is a mover
  int baton_rank_ = -1;
  std::vector<int> running_of_rank_;  // threads: tasks of the rank in state kRunning; first those of no rank
  int running_ = 0;
  int points_in_a_row_ = 0;  // of the running task since it was picked
  // Scheduling points after which a rank under fifo lets others run although it did not block.
  static constexpr int kFifoPatience = 1000;
  int patience_ = kFifoPatience;  // of the running task
  Trace trace_;
  const char* last_what_ = nullptr;  // of the last choice, and what the trace calls it
  uint16_t last_name_ = 0;
  int64_t yields_in_a_row_ = 0;  // since the last act of any task; polls are none
  // Progress of tasks that yield, since the last act.
  struct Yields {
    uint64_t since = 0;   // step from which on each task that can run must have asked, so that time passes
    int64_t look_at = 0;  // of the yields in a row
    bool passed = false;  // time has
  };
  Yields yields_;
  static constexpr int64_t kAsks = 1'000;
  static constexpr int64_t kMostAsksToLook = kAsks << 20;
  int64_t asks_ = 0;              // polls and yields since they were last looked at
  int64_t asks_to_look_ = kAsks;  // so many
  uint64_t asks_since_ = 1;       // step of the last look
  std::vector<uint64_t, KeptAllocator<uint64_t>>
      asked_in_step_;  // of the run: by task, when it last polled or yielded; 0: never
  std::vector<uint64_t, KeptAllocator<uint64_t>>
      born_in_step_;  // of the run: by task beside the ranks' own, when it began
  // Progress of tasks that ask or act in a loop and never wait. Reset whenever a task waits, wakes, begins or ends.
  struct Busy {
    int64_t points = 0;                 // since the last look
    int64_t step_ns = kShortestPassNs;  // what passes next
    bool outside = false;               // some ask for an answer from outside, in real time
    int64_t since_ns = 0;               // real time since which that holds time up; 0: it does not yet
  };
  Busy busy_;
  uint64_t outside_went_seen_ = 0;  // by outside_lets_pass()
  int64_t polling_since_ns_ = 0;    // real time since which tasks do nothing else; 0: they do
  bool misled_ = false;             // choose() asked a policy that cannot go on: the next pick() aborts the run
  bool gives_way_ = false;          // the task that gives way said so
  std::atomic<int64_t> clock_ns_{0};
  std::atomic<uint64_t> steps_{0};

  struct Timer {
    int64_t at_ns;
    uint64_t order;
    TaskId task;
    uint32_t generation;
    friend bool operator>(const Timer& a, const Timer& b) {
      return std::tie(a.at_ns, a.order) > std::tie(b.at_ns, b.order);
    }
  };
  bool alive(const Timer& timer) const;
  // A heap of own deadlines, the earliest on top; those whose wait has ended otherwise are forgotten later.
  std::vector<Timer> timers_;
  size_t timers_to_forget_at_ = 1024;
  uint64_t timer_order_ = 0;
  uint32_t timer_generation_ = 0;
  // Default deadlines are on the tasks; none of a parked task is earlier than this.
  int64_t weak_floor_ns_ = Deadline::kNever;

  // Requests of threads outside the fibers'.
  std::function<void(const Idle& idle)> idler_;
  std::function<void(ErrorKind kind, const std::string& headline)> endless_;
  OrderedMutex inbox_mu_{LockLevel::kSchedulerInbox};
  std::vector<absl::AnyInvocable<void()>> inbox_ ABSL_GUARDED_BY(inbox_mu_);
  std::atomic<bool> inbox_full_{false};
  std::atomic<bool> ended_{false};  // all tasks have
  std::atomic<int> outside_{0};
  std::atomic<uint64_t> outside_went_{0};  // how many went; counted before outside_ says so
  std::atomic<bool> mover_sleeps_{false};  // in wait_beside()
  Parker mover_parker_;

  // Fibers: the task that runs, and its facts, for the watchdog's thread; and which thread theirs is.
  std::atomic<int> fibers_thread_{0};
  std::atomic<const Task*> runs_{nullptr};
  std::atomic<TaskInfo> runs_info_{TaskInfo{}};

  uint64_t strangers_calls_ = 0;  // of threads that ranks made
  // await_strangers(): the latest wait, after which of these calls, since when in real time, and whether to its end.
  struct StrangerWait {
    uint64_t at_call = 0;
    int64_t since_ns = 0;
    bool over = true;
  };
  StrangerWait stranger_wait_;
  // The watchdog's: since when the rank with the baton stands still, and at which step.
  int64_t still_since_ns_ = 0;
  uint64_t still_at_step_ = 0;
  std::map<int, uint64_t> joined_at_;  // rank: the step of its main thread at which it stood still so

  StallWatch watch_{this};  // declared last, so destroyed first: the watchdog reads the members above
};

}  // namespace rankloom::internal

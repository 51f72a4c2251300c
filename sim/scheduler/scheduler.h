#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rankloom/options.h"
#include "rankloom/schedule.h"
#include "sim/base/forked_run.h"
#include "sim/base/kept_memory.h"
#include "sim/base/lock_order.h"
#include "sim/base/task.h"
#include "sim/schedule/run_hooks.h"
#include "sim/schedule/step_record.h"

namespace rankloom::internal {

// A task or rank that should be at a scheduling point soon: it runs outside of rankloom, or has not attached while
// others wait for it.
struct Outstanding {
  TaskId id = -1;
  TaskInfo info;
  bool attached = true;
  int thread = 0;      // that runs it, its id in the kernel; 0: none, or not known
  uint64_t steps = 0;  // as long as this stays as it is, nothing moves
  Site last;           // what, code and seq only
};

// Schedules the tasks of one run: each wait in rankloom blocks here. Two kinds: the free gear lets all threads
// run at once; the deterministic gears let one task run between scheduling points and ask a policy which task is next.
//
//   const Site here{.what = "meet"};
//   scheduler->run([&](int rank, Task& self) {
//     scheduler->point(here);                    // before each act that other tasks can see
//     scheduler->spawn({.rank = rank, .kind = TaskKind::kHelper}, [&] { scheduler->unpark(self); });
//     scheduler->park(here, Deadline::never());  // the permit is kept if it comes first
//   });
// A scheduler knows no locks, groups or stores: RankMutex and RankCondVar are made of park() and unpark(). It takes no
// choice of its own: a SchedulePolicy does, and a Trace records it. Thread-safety, unless a method says otherwise:
// tasks of this run; spawn, post, unpark, abort, strangers, add_outside and what reads how the run is: any thread.
class Scheduler : public Kept {
 public:
  // Options that only a world reads do nothing here: poison, faults, what is recorded. `hooks`: of a search.
  // Errors: those of check_options(), and InvalidArgument for free() on fibers.
  static absl::StatusOr<std::unique_ptr<Scheduler>> make(WorldOptions options, const RunHooks& hooks = {});
  virtual ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  bool deterministic() const { return deterministic_; }
  // Unlike the address, no other scheduler of this process ever has it.
  uint64_t serial() const { return serial_; }
  // With the schedule that an unset one stands for.
  const WorldOptions& options() const { return options_; }

  // --- tasks

  // Runs `body(rank, task)` once on a task per rank and returns when all tasks of the run have ended. Called once, by a
  // thread that is no task.
  virtual void run(absl::FunctionRef<void(int rank, Task& task)> body) = 0;

  // Starts a further task; it begins at some later scheduling point. Bodies must not throw. Once the run has ended they
  // run on the caller; what they throw then, being told of the end, is nobody's.
  virtual void spawn(const TaskInfo& info, absl::AnyInvocable<void()> body) = 0;

  // Runs `body` as a step of its own at some later scheduling point, on the stack of the task that gets there: `body`
  // must not wait. In the free gear it runs now.
  virtual void post(const TaskInfo& info, const Site& site, absl::AnyInvocable<void()> body) = 0;

  // Makes the calling thread a task of this run until detach(). A rank blocks here until all ranks have attached.
  // Threads only.
  virtual Task* attach(const TaskInfo& info) = 0;
  virtual void detach(Task* task) = 0;

  // --- scheduling points

  // point() of a rank that is about to make a call of a group: stops for a debugger there (SchedulerOptions::break_at),
  // if the call has that number, site.seq. Sends and recvs have none.
  void point_before_call(const Site& site) {
    point(site);
    if (breaks_) [[unlikely]]
      break_here(site);
  }
  // The policy may let others run first. The caller's step becomes visible after it.
  void point(const Site& site) { arrive(site, Step::kAct); }
  // A point of a caller that asks whether something has happened yet, and may ask again: as point(), but a task that
  // does nothing else counts as one that yields.
  void poll(const Site& site) { arrive(site, Step::kPoll); }
  // The caller can do nothing useful before other tasks did something: lets them run, under every policy, and time pass
  // if all tasks that can run only yield.
  void yield(const Site& site) {
    arrive(site, Step::kYield);
    if (deterministic_) return;
    if (is_forked_copy(this)) [[unlikely]]
      end_forked_copy();
    sched_yield();
  }

  // Under fifo the caller's turn ends at its next point, as it does after a thousand of them. No other policy has
  // turns.
  virtual void end_turn() {}

  // Blocks the calling task until unpark() (one is kept) or the deadline. May wake early for no reason.
  virtual WakeCause park(const Site& site, Deadline deadline) = 0;
  // Lets `duration` pass. Errors: the cause, when the run is aborted meanwhile.
  absl::Status sleep(const Site& site, absl::Duration duration);
  virtual void unpark(Task& task) = 0;
  // The same of any task, one without a scheduler included: a thread's own for the length of a wait.
  static void wake(Task& task) {
    if (task.scheduler != nullptr) {
      task.scheduler->unpark(task);
    } else {
      task.parker.unpark();
    }
  }

  // One of n >= 1 alternatives of this kind, by the policy; recorded. 0 in the free gear.
  virtual int choose(ChoiceKind kind, int n, const Site& site) = 0;

  // Where a run that is explored is told what each step touches; null in all others.
  StepRecord* record() const { return record_; }
  // Null, if no task of an explored run made this one, or this one is explored itself.
  const InnerRun* inner() const { return inner_.get(); }
  // StepRecord::uncovered() of this run, or of the explored one around it.
  void uncovered(std::string_view what) const;
  // Whether memory is fetched ahead (sim/base/prefetch.h).
  bool prefetches() const { return prefetches_; }

  // --- time: virtual in deterministic gears (starts at 0 and jumps when nobody can run), monotonic otherwise

  virtual int64_t now_ns() const = 0;
  // For a wait of the calling thread: by the clock of its own run, the real one if it is in none.
  Deadline deadline_after(absl::Duration timeout, bool weak) const;

  // --- ends

  // Ends the run: every park() returns, sleep() and await() with `cause`. False: it was aborted before, that cause
  // stays.
  bool abort(const absl::Status& cause);
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  absl::Status abort_cause() const;

  // The calling task has looked at what others than this run write, in real time: a file of several processes. Until
  // the tasks do something else than to ask and act, virtual time goes no faster than real time. Deterministic gears.
  virtual void asked_outside() {}

  // Counts those outside the run that may still wake a task. While the count is not 0, a stuck run is no deadlock, and
  // time does not jump. `in_real_time`: it passes as real time does if all who are counted let it, since whom they wait
  // for may be a task that sleeps.
  void add_outside(int n, bool in_real_time = false);

  // From here on handles of this run answer that the world has ended. The first form only if no task lives. The second
  // ends those that do: helpers beside the ranks are waited for, calls of threads of no world fail; the call must come
  // before what tasks use is gone, by no task of this run. A thread that is attached as a rank still is a fatal error.
  bool close_if_idle();
  void close();
  // close_if_idle() after the last detach(): waits first for helpers that outlast their ranks, and for calls of threads
  // of no world. Closes nothing while a rank is attached, nor where none ever was: the end of run() waits itself. A
  // task of this run waits for nobody.
  bool close_when_idle();
  // False: spawn() would run the body at once, on the calling thread.
  virtual bool takes_tasks() const { return !closed(); }
  // Whether the calling thread, which made the world, would wait for run(), or for a rank's attach(), since a schedule
  // decides who goes on, and has not begun. Other threads do wait: this one may be about to begin it.
  virtual bool awaits_ranks() const { return false; }
  // Whether the run is going, its ranks are fibers, which lock nothing, and the caller's thread is not theirs.
  virtual bool beside_fibers() const { return false; }
  // The thread of ranks that are fibers, by its id in the kernel; 0: none yet. Asked to, it waits at its next point for
  // those that act for it.
  virtual int fibers_thread() const { return 0; }
  virtual void ask_fibers() {}
  // The thread that is in an ActsForFibers; 0: none.
  std::atomic<int>& actor() { return actor_; }
  const std::atomic<int>& actor() const { return actor_; }
  // Fibers: whether their thread is in a LongPart.
  void set_in_long_part(bool in) { in_long_part_.store(in, std::memory_order_release); }
  bool in_long_part() const { return in_long_part_.load(std::memory_order_acquire); }
  // Fibers: a number that is another one when their thread has been within rankloom since: at a point, between two
  // tasks, at the end of a long part, or in came_back().
  uint64_t presence() const { return moves_.load(std::memory_order_acquire) + steps(); }
  void moved() { moves_.store(moves_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  // Their thread is about to change, at no point, what threads that act for the fibers change, too: waits for these.
  void came_back();
  bool closed() const { return closed_.load(std::memory_order_acquire); }

  // Threads of no world that have called through a rank's handle. Until they end they may do so again: one that is
  // away, in no call, keeps a stuck run from being a deadlock. From any thread. `thread`: its id in the kernel.
  uint64_t add_stranger(int rank, int thread);
  void stranger_away(uint64_t id, int rank, bool away);
  void stranger_ended(uint64_t id);

  // For the watchdog, beside its look at tasks that stand still. Free gear: appends what is to be told of a stuck run,
  // or returns the error to end it with, by end_stuck(). Baton: hands the baton on if the rank that has it waits for a
  // thread of its own. Fibers: nothing.
  virtual absl::Status look_for_stuck(int64_t /*now_ns*/, std::vector<std::string>* /*texts*/) {
    return absl::OkStatus();
  }

  // Aborts the run with the error of a stuck one, to which it adds the whereabouts. Call with no lock held.
  void end_stuck(absl::Status cause);

  // Whether this run was begun by a task of the run with this serial number, or by one of a run within that.
  bool is_inside(uint64_t serial) const;

  // The report of the layer above on tasks that wait; unset: that of deadlock_report.h. Set once, before run().
  struct WaitReporter {
    // The lines on who waits for whom, each after a newline. Changes nothing: Timeouts, warnings and descriptions ask,
    // too. While nobody moves.
    std::function<std::string(const std::vector<Task*>& waiting)> lines;
    // The error that a stuck run ends with: `kind`, `headline` and the lines, or a better cause. While nobody moves.
    std::function<absl::Status(const std::vector<Task*>& blocked, ErrorKind kind, const std::string& headline)> end;
    // Further text of such an error; empty: none. With no lock held, before the run is aborted.
    std::function<std::string()> whereabouts;
  };
  void set_wait_reporter(WaitReporter reporter) { wait_reporter_ = std::move(reporter); }

  // All ranks but `own` run in other processes: none of them will attach, and nobody waits for them here. Before any
  // rank has attached. Free gear only.
  virtual void ranks_elsewhere(int /*own*/) {}

  // Told once, after everybody was woken: how the run was aborted. For works that nobody waits in. On the thread that
  // aborts, with no lock held. Set once, before run().
  using AbortListener = std::function<void(const absl::Status&)>;
  void set_abort_listener(AbortListener listener) { abort_listener_ = std::move(listener); }

  // Told what code of `rank` threw while another task, or a thread of no world, ran it: a callback of a store. Set
  // once, before run().
  using FailureListener = std::function<void(int rank, std::exception_ptr failure)>;
  void set_failure_listener(FailureListener listener) { failure_listener_ = std::move(listener); }
  // False: nobody listens.
  bool rank_failed(int rank, std::exception_ptr failure) const;

  // Asked where all ranks are when a stall is fatal; by the watchdog, whose thread is no task's. Set once, before
  // run().
  void set_describer(std::function<std::string()> describer) { describer_ = std::move(describer); }
  std::string describe_world() { return describer_ ? describer_() : describe(); }

  // The command that the report of a crash asks to run. Empty: none. Set before run().
  void set_rerun(std::string command) { rerun_ = std::move(command); }
  const std::string& rerun() const { return rerun_; }

  // Gives the value of Task::user for the tasks of a rank. Set once, before run().
  void set_user(std::function<void*(int rank)> user) { user_ = std::move(user); }
  void* user_of(int rank) const { return user_ && rank >= 0 ? user_(rank) : nullptr; }

  // The lines of a deadlock's report about the tasks that wait, the calling one in `site` included: what a Timeout adds
  // to its text. Holds up no tasks but those that are woken meanwhile.
  std::string who_waits(const Site& site);

  // Where all tasks are, in lines: in which wait and for whom, ready to run, or running. For a debugger, and for a
  // task of this run; from another thread it is right only while nobody moves.
  std::string describe() {
    Described told;
    return describe([](int) { return false; }, &told);
  }
  // Main tasks of which the lines have told.
  struct Described {
    std::set<int> ranks;               // whose tasks have a line
    std::map<int, std::string> ended;  // where those are that have none: "runs; its last point: ..."
  };
  // The same without lines of the main tasks of ranks for which `ended` holds: their outcome is known.
  std::string describe(absl::FunctionRef<bool(int rank)> ended, Described* told);

  // The point that a rank's main task came by last, and may wait at: with what, code and seq only. Null: the task has
  // ended, or not begun. From any thread in the free gear, else from a task of this run.
  virtual std::optional<Site> last_point(int rank) const = 0;

  // Tasks that run outside of rankloom now, and ranks that have not attached although others have. From any thread, at
  // any time.
  virtual void append_outstanding(std::vector<Outstanding>* outstanding) const = 0;

  // For how long, in real time, the rank has come to no scheduling point, at which it does not wait either. 0: not
  // known, or it has. From any thread, with no lock held.
  virtual int64_t stood_ns(int /*rank*/) const { return 0; }

  // The choices so far (deterministic gears; empty in the free gear and under fifo).
  virtual const Trace& trace() const = 0;
  // The same, once the run has ended, for a caller that keeps it for good: trace() is empty from then on.
  virtual Trace take_trace() { return {}; }
  // Scheduling points passed by all tasks.
  virtual uint64_t steps() const = 0;

 protected:
  Scheduler(WorldOptions&& options, bool deterministic, StepRecord* record)
      : options_(std::move(options)),
        deterministic_(deterministic),
        breaks_(options_.break_at.has_value()),
        record_(record) {
    begin_life();
  }

  enum class Step : uint8_t { kAct, kPoll, kYield };
  void arrive(const Site& site, Step step) {
    Task* const task = Task::current();
    if (task != nullptr && task->scheduler != this) [[unlikely]]
      refuse_other_world(*task, site);
    if (deterministic_) {
      deterministic_point(site, step);
    } else if (task != nullptr) {
      task->reach(site);
    }
  }
  virtual void deterministic_point(const Site& site, Step step) = 0;
  static void run_after_end(absl::AnyInvocable<void()>& body) {
    try {
      body();
    } catch (...) {  // there is no rank any more that could fail
    }
  }
  virtual void wake_all() = 0;
  virtual bool idle() const = 0;
  // Returns when all tasks have ended; at once, with false, if a rank is attached, or none may go on before further
  // ones attach.
  virtual bool await_tasks() = 0;
  // Returns when all tasks have ended. `strangers`: threads of no world are in a call, which must be ended.
  virtual void end_tasks(bool strangers) = 0;
  // After it: returns when helpers have ended that threads of no world began meanwhile, and the watchdog, which may be
  // telling listeners of the run's end, has done with it.
  virtual void end_watch() = 0;
  virtual void outside_changed(int n) = 0;
  bool real_time_passes(int outside) const { return outside_in_real_time_.load(std::memory_order_acquire) >= outside; }
  // Calls `look` with the tasks that are parked; none of them leaves its wait meanwhile, if the caller is a task of
  // this run.
  virtual void while_nobody_moves(absl::FunctionRef<void(const std::vector<Task*>&)> look) = 0;

  // The first half of abort(), without telling anybody. False: the run was aborted before.
  bool set_abort_cause(const absl::Status& cause);

  // The strangers that are away: how many; and whether one of them computes.
  int away() const { return away_.load(); }
  bool strangers_seen() const;
  bool strangers_compute() const;
  virtual void away_changed(int n) = 0;
  // The headline of a run that is stuck but for threads at no point, of the ranks `beside` and strangers.
  std::string stuck_headline(std::vector<int> beside, int64_t stuck_ns) const;
  // The lines about tasks that wait, each after a newline.
  std::string wait_lines(const std::vector<Task*>& waiting) const;
  // The error that a stuck run ends with: a Deadlock, or what threads beside it did not do in time.
  absl::Status deadlock_error(const std::vector<Task*>& blocked) const;
  absl::Status stuck_error(const std::vector<Task*>& blocked, const std::string& headline) const;
  int64_t stall_ns() const { return absl::ToInt64Nanoseconds(options_.stall); }
  int64_t stuck_ns() const { return absl::ToInt64Nanoseconds(options_.stuck_after); }

  // Deterministic gears: the tasks that could run, by id; in the free gear every task that could run does. Call while
  // no task moves: a task is freed when it ends.
  virtual std::vector<const Task*> ready_tasks() const { return {}; }
  // A thread that is attached as a rank would wait for a world that is gone: ends the process. With the lock of the
  // tasks held.
  static void refuse_attached(const Task& task);

  const WorldOptions options_;
  const bool deterministic_;
  const bool breaks_;
  StepRecord* const record_;
  bool prefetches_ = false;  // fifo over many fibers; const after the scheduler was made

  WaitReporter wait_reporter_;
  AbortListener abort_listener_;
  FailureListener failure_listener_;
  std::function<std::string()> describer_;
  std::function<void*(int rank)> user_;
  std::string rerun_;
  std::atomic<int> actor_{0};
  std::atomic<bool> in_long_part_{false};
  std::atomic<uint64_t> moves_{0};
  std::atomic<bool> ranks_attached_{false};  // set by attach(), before anything else

 private:
  void begin_life();
  // A scheduling point of another run's task.
  [[noreturn]] static void refuse_other_world(const Task& task, const Site& site);
  void break_here(const Site& site);

  std::atomic<int> outside_in_real_time_{0};
  uint64_t serial_ = 0;                    // const after construction
  std::vector<uint64_t> outer_;            // of the runs that this one was begun in; const after construction
  std::unique_ptr<const InnerRun> inner_;  // const after construction
  InnerRun::Outer told_by_inner_;          // const after construction; null: this run is in no explored one
  std::atomic<bool> closed_{false};
  OrderedMutex closing_mu_{LockLevel::kClosing};

  struct Stranger {
    int rank;
    int thread;
    bool away;
  };
  mutable OrderedMutex strangers_mu_{LockLevel::kStrangers};
  std::map<uint64_t, Stranger> strangers_ ABSL_GUARDED_BY(strangers_mu_);
  uint64_t stranger_ids_ ABSL_GUARDED_BY(strangers_mu_) = 0;
  std::atomic<int> away_{0};

  std::atomic<bool> broke_{false};  // the run has stopped at break_at: further points of the call do not stop it again
  std::atomic<bool> aborted_{false};
  mutable OrderedMutex cause_mu_{LockLevel::kAbortCause};
  absl::Status cause_ ABSL_GUARDED_BY(cause_mu_);
};

}  // namespace rankloom::internal

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/lock_order.h"
#include "sim/base/task.h"
#include "sim/schedule/ready_set.h"

namespace rankloom::internal {

// A reason for which a search vouches for nothing more: see StepRecord::uncovered().
inline constexpr std::string_view kOwnThreads = "threads that ranks made by themselves";

// How a step touches an object. Two steps may change places unless they touch one object in ways that conflict: reads
// do not conflict with reads, nor kCommute with kCommute (arrivals in one collective); all else does.
enum class Access : uint8_t { kRead, kCommute, kWrite };

// The acts of one run, step by step: which task ran, what it touched, what it enabled. The layers above tell it while
// the run goes on; explorers read it afterwards. A step is what a task does from one scheduling point to its next.
//
// Objects have names: numbers that are equal in all runs that made the same choices up to the object's birth, and that
// no order of later steps changes. A name comes from the task that makes the object and the count of what that task
// made before; an object that the first task to come makes is named by what it is (named_object). Never by address, nor
// by the task that touches the object first.
//
// Waits. A wait for what, once true, stays true until the waiter has gone on (a call that completes, a latch) is a
// signal() of each step that the wait needs, and an await() by the waiter; there is nothing to reverse. A wait for what
// others can take away again (a key, a lock, a queue) is a condition: raise() and lower() where it becomes true and
// false, miss() by a task that finds it false and waits, pass() by one that finds it true. A condition's changes touch
// an object as well, which non-blocking looks and timeouts read.
//
// Calls that complete. Outputs hold poison until then, so a rank that looks too early sees it in the schedules in which
// the call completes late: a completion is a settle_memory() of the rank's memory, which steps of the rank that do not
// know of the completion are tried before, too; never the other way round, since nothing is hidden by a call that
// completes late. A call that fails writes: its outputs get back what they held before it. Where a call finds that its
// rank changed a buffer too early, a late completion does hide that it might have gone well: once any run has seen
// that, completions of all later runs write, too.
//
// Not seen: memory that ranks of one process share behind rankloom's back. Ranks of a distributed job have none.
// The memory of one rank is an object that each step of its tasks writes to, but for completions, which run no code of
// a user.
// Thread-safety: any thread may tell of a run on threads; reading is for after the run.
class StepRecord {
 public:
  enum class What : uint8_t {
    kRead,  // the first three are accesses
    kCommute,
    kWrite,
    kSignal,      // all acts before it come before those after a kAwait of this object
    kAwait,       // the task could not have come here before the signals of this object
    kRaise,       // the condition becomes true
    kLower,       // the condition becomes false
    kMiss,        // the task found the condition false, and waits
    kPass,        // the task found the condition true; it would have waited otherwise
    kBorn,        // object: the number of a task that begins after this
    kTimePassed,  // virtual time advanced: orders every earlier step before every later one
    kSettle,      // object: the memory of a rank; a call of the rank completes, so its outputs hold what they should
  };
  static bool is_access(What what) { return what <= What::kWrite; }
  struct Op {
    What what;
    uint64_t object;
  };
  struct Step {
    int task = -1;    // number of the task: ranks first, then all others in the order in which they were made
    TaskId id = -1;   // its id, which others may have had before
    int ops_end = 0;  // its ops end here; they begin where the last step's end
    int ready_end = 0;
  };
  struct TaskFacts {
    TaskInfo info;
    TaskId id;
    uint64_t name;          // as an object's
    uint64_t made = 0;      // objects and tasks that it has made
    uint64_t own_name = 0;  // within enter_name(): its own name and count
    uint64_t own_made = 0;
    std::vector<int> guest;  // ranks whose memory it touches beside its own: it runs their callbacks
  };

  // The point at which a thread began a search: how many objects it had made outside of recorded runs.
  struct Origin {
    uint64_t thread = 0;  // ObjectName's number of it
    uint64_t made = 0;
    // Processes that are copies of no common one search as well, and must come to the same names.
    bool among_others = false;
  };
  static Origin origin_here();

  // `texts`: keep what each step was about to do, for a story.
  explicit StepRecord(bool texts = false);

  // All runs are of the search that began there. Before the first; without it nothing is counted from an origin.
  void begin_search(const Origin& origin) { origin_ = origin; }

  // --- told by the scheduler

  void begin_run(const Scheduler* scheduler, int ranks, bool threads);
  void born(TaskId id, const TaskInfo& info);
  void begin_step(const Task& task, const ReadySet& ready);
  void time_passed() { add(What::kTimePassed, 0); }
  // From now on nothing counts: the world was aborted, and the ranks leave.
  void stop();
  // The world is gone; what is made from now on is made for the next run.
  void end_run();

  // --- told by the layers above

  // A name for an object that the calling task, or a thread of no task, makes now.
  uint64_t new_object();
  // Objects that the calling task makes until leave_name() are named after `name`: whichever task comes first makes it.
  // Not nested.
  void enter_name(uint64_t name);
  void leave_name();
  // Names the next task that the calling thread makes, where it is not fixed which thread makes that task.
  static void name_next_task(uint64_t name);
  void access(uint64_t object, Access how) {
    static_assert(static_cast<uint8_t>(Access::kRead) == static_cast<uint8_t>(What::kRead));
    static_assert(static_cast<uint8_t>(Access::kCommute) == static_cast<uint8_t>(What::kCommute));
    static_assert(static_cast<uint8_t>(Access::kWrite) == static_cast<uint8_t>(What::kWrite));
    add(static_cast<What>(how), object);
  }
  void signal(uint64_t object) { add(What::kSignal, object); }
  void await(uint64_t object) { add(What::kAwait, object); }
  void raise(uint64_t condition) { add(What::kRaise, condition); }
  void lower(uint64_t condition) { add(What::kLower, condition); }
  void miss(uint64_t condition) { add(What::kMiss, condition); }
  void pass(uint64_t condition) { add(What::kPass, condition); }
  // The calling task writes to the memory of `rank`, whose own tasks may look there at any time.
  void write_memory(int rank);
  // A call of `rank` completes: its tasks find other bytes in outputs that they must not look at before they know. A
  // search looks for a schedule in which they come first. `put_back`: the call failed, and outputs hold again what they
  // held before it.
  void settle_memory(int rank, bool put_back = false);
  // A call found, before it settles, that its rank changed an input or wrote to an output too early.
  void found_early_change() { completions_write_ = true; }
  // `call`, of `rank`, reads these bytes until it is done: the rank must leave them as they are. A look at them after
  // each step of the rank finds also a change that is gone when the call is done. Until forget_inputs() they are there.
  void watch_input(const void* call, int rank, std::string_view bytes);
  void forget_inputs(const void* call);
  // The calling task touches the memory of `rank`, too, until leave_memory(): it runs what that rank left with others.
  void enter_memory(int rank);
  void leave_memory(int rank);
  // The run did something whose order the record does not see, so that an exhaustive search cannot vouch for it: "a
  // device".
  void uncovered(std::string_view what);

  // --- after the run

  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<Op>& ops() const { return ops_; }
  const std::vector<TaskFacts>& tasks() const { return tasks_; }
  const std::vector<TaskId>& ready() const { return ready_; }
  const std::vector<std::string>& texts() const { return step_texts_; }
  bool stopped() const { return stopped_; }
  // How many steps had begun by stop().
  int stopped_at() const { return stopped_at_; }
  // The number of the task that has this id now.
  int number_of(TaskId id) const { return number_of_[static_cast<size_t>(id)]; }
  // The reasons that uncovered() was given, in all runs; sorted, each once.
  const std::vector<std::string>& uncovered() const { return uncovered_; }

  // In any run a task did something that the record sees.
  bool saw_any() const { return saw_any_; }
  // Objects that were made before the search, and are named by the count since then, were used in any run: other
  // processes have the same names for them if they made as many.
  bool older_objects() const { return older_objects_.load(std::memory_order_relaxed); }
  // How often anything was told in all runs.
  uint64_t told() const { return told_.load(std::memory_order_relaxed); }

  // For tests of what must be told: an op for which `skip` is true is left out. Null: none.
  void leave_out_for_tests(std::function<bool(const Op&)> skip) { skip_ = std::move(skip); }

  uint64_t run() const { return run_; }

  // A thread that is no task has come to something that the search looks after. From any thread.
  void seen_from_outside() {
    if (runs_.load(std::memory_order_relaxed)) strangers_.store(true, std::memory_order_relaxed);
  }
  // The same of something that may be part of any run: an object of users, a store of no world.
  static void stranger_came() {
    if (running_.load(std::memory_order_relaxed) > 0) strangers_came_.fetch_add(1, std::memory_order_relaxed);
  }
  // No task is left.
  void all_ended() {
    if (runs_.exchange(false, std::memory_order_relaxed)) running_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  friend class ObjectName;
  // As DeterministicScheduler's state: locked on threads, where a helper may run beside the baton.
  class Lock;
  void add(What what, uint64_t object);
  void add_here(What what, uint64_t object);  // locked
  // Null on a thread that is no task of the run.
  TaskFacts* current_facts();
  // Inputs of open calls, after a step: those of the ranks whose memory it touched.
  void look_at_inputs();

  const bool texts_;
  bool threads_ = false;
  Origin origin_;
  bool saw_any_ = false;
  std::atomic<bool> older_objects_{false};
  std::atomic<uint64_t> told_{0};
  std::atomic<bool> runs_{false};  // a task has begun, and not all have ended
  std::atomic<bool> strangers_{false};
  uint64_t came_before_ = 0;                   // strangers_came_ when the run began
  static inline std::atomic<int> running_{0};  // runs with a record, of the process
  static inline std::atomic<uint64_t> strangers_came_{0};
  bool stopped_ = false;
  int stopped_at_ = 0;
  const Scheduler* scheduler_ = nullptr;
  uint64_t run_ = 0;         // in this process, from 1
  uint64_t thread_ = 0;      // that made the run's world: ObjectName's number of it
  uint64_t end_serial_ = 0;  // ObjectName's count there when the run before had ended,
  uint64_t run_serial_ = 0;  // and when this run began
  OrderedMutex mu_{LockLevel::kStepRecord};
  std::atomic<uint64_t> made_outside_{0};  // by threads beside fibers, too
  std::vector<Step> steps_;
  std::vector<Op> ops_;
  std::vector<TaskFacts> tasks_;
  std::vector<TaskId> ready_;
  std::vector<int> number_of_;  // [TaskId]
  std::vector<std::string> step_texts_;
  std::vector<std::string> uncovered_;
  std::function<bool(const Op&)> skip_;
  bool completions_write_ = false;  // of all runs from now on; set by the task that runs
  struct Input {
    const void* call;
    int rank;
    std::string_view bytes;
    size_t hash;  // when the call was made
  };
  std::vector<Input> inputs_;  // of open calls
};

// The record of the calling task, if its run is explored. Null on a thread of no task, and for a task of another run
// than `of`, if that is given.
inline StepRecord* record_here(const Scheduler* of = nullptr) {
  const Task* const task = Task::current();
  if (task == nullptr) [[unlikely]] {
    StepRecord::stranger_came();
    return nullptr;
  }
  return of == nullptr || of == task->scheduler ? task->record : nullptr;
}

// A run that a task of an explored one made, and that is not explored itself: all of it is one step of that task.
struct InnerRun {
  // A record that inner runs tell: null once the explored run is over.
  using Outer = std::shared_ptr<std::atomic<StepRecord*>>;
  const uint64_t serial;  // the scheduler's
  const Outer outer;

  void uncovered(std::string_view what) const {
    if (StepRecord* const record = outer->load(); record != nullptr) record->uncovered(what);
  }
};

// A name for an object that has a text for one: of a key in the store `object`.
uint64_t named_object(uint64_t object, std::string_view name);
// The same for a number: of a call in a group.
uint64_t numbered_object(uint64_t object, uint64_t number);

// The name of an object that users make, inside of runs or before them: a member of the object.
// An object that a task of a run makes has a name in that run. One that was made outside is counted, by the thread that
// made it: those that the thread of StepRecord::Origin made before the search, back from there, which is alike in all
// processes that search; those made for one run (by a thread that runs the program again and again) from the end of the
// run before; all others from the thread's beginning, by the number of the thread, which is this process's own.
class ObjectName {
 public:
  ObjectName();
  // Of an object that belongs to a world, whose record is this; null: the world is not explored.
  explicit ObjectName(StepRecord* record);
  // Tells the record where the name is not the same in all runs, or in all processes of the search.
  uint64_t in(StepRecord& record) const;
  // record_here(), for an object of no world. A task of an InnerRun has none: uses_outer(), if it did not make the
  // object itself.
  StepRecord* record() const;
  // The calling task uses an object that it did not make. If it is one of an InnerRun, the explored run around that is
  // told that no search sees what becomes of the object there.
  static void uses_outer();

 private:
  uint64_t name_ = 0;    // in the run below
  uint64_t run_ = 0;     // 0: made outside of recorded runs
  uint64_t thread_ = 0;  // that made it, outside
  uint64_t serial_ = 0;  // among those that it made outside
  uint64_t inner_ = 0;   // the InnerRun, if a task of one made it
};

}  // namespace rankloom::internal

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "sim/ready_set.h"
#include "sim/task.h"

namespace rankloom {

// How a step touches an object. Two steps may change places unless they touch one object in ways that conflict: reads do not
// conflict with reads, nor kCommute with kCommute (arrivals in one collective); all else does.
enum class Access : uint8_t { kRead, kCommute, kWrite };

// What happened in one run, step by step: which task ran, what it touched, what it enabled. The layers above tell it while
// the run goes on; explorers read it afterwards. A step is what a task does from one scheduling point to its next.
// Objects are numbers that are equal in runs of equal choices: new_object(), or hashes of names with one.
// What is missed: memory that ranks of one process share behind rankloom's back. Ranks of a distributed job have none.
// Thread-safety: under the baton any thread may tell; reading is for after the run.
class StepRecord {
 public:
  enum class What : uint8_t {
    kRead,
    kCommute,
    kWrite,
    kSignal,   // what was done before is before what is done after a kAwait of this object
    kAwait,    // the task could not have come here before the signals of this object
    kBorn,     // object: the number of a task that begins after this
    kAllWere,  // all steps so far are before whatever follows: time has passed
  };
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
  };

  // `texts`: keep what each step was about to do, for a story.
  explicit StepRecord(bool texts = false) : texts_(texts) {}

  // --- told by the scheduler

  void begin_run(int ranks, bool threads);
  void born(TaskId id, const TaskInfo& info);
  void begin_step(const Task& task, const ReadySet& ready);
  void time_passed() { add(What::kAllWere, 0); }
  // From now on nothing counts: the world was aborted, and the ranks leave.
  void stop();

  // --- told by the layers above

  uint64_t new_object() { return ++objects_; }
  // new_object() for an object that keeps its number: the first use makes it. 0: none yet.
  uint64_t object(uint64_t* number) {
    if (*number == 0) *number = new_object();
    return *number;
  }
  // For an object that may be older than the run: numbered by the order of first use, as far as its address is its own.
  uint64_t object_at(const void* address, int part = 0);
  void access(uint64_t object, Access how) { add(static_cast<What>(how), object); }
  void signal(uint64_t object) { add(What::kSignal, object); }
  void await(uint64_t object) { add(What::kAwait, object); }

  // --- after the run

  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<Op>& ops() const { return ops_; }
  const std::vector<TaskFacts>& tasks() const { return tasks_; }
  const std::vector<TaskId>& ready() const { return ready_; }
  const std::vector<std::string>& texts() const { return step_texts_; }
  // How many steps had begun by stop().
  bool stopped() const { return stopped_; }
  int stopped_at() const { return stopped_at_; }
  // The number of the task that has this id now.
  int number_of(TaskId id) const { return number_of_[static_cast<size_t>(id)]; }

 private:
  // As DeterministicScheduler's state: locked on threads, where a helper may run beside the baton.
  class Lock;
  void add(What what, uint64_t object);

  const bool texts_;
  bool threads_ = false;
  bool stopped_ = false;
  int stopped_at_ = 0;
  absl::Mutex mu_;  // taken after all others
  uint64_t objects_ = 0;
  std::vector<Step> steps_;
  std::vector<Op> ops_;
  std::vector<TaskFacts> tasks_;
  std::vector<TaskId> ready_;
  std::vector<int> number_of_;  // [TaskId]
  std::vector<bool> helped_;    // [rank]: it has a helper, so its tasks share its memory
  std::vector<std::string> step_texts_;
  absl::flat_hash_map<std::pair<const void*, int>, uint64_t> addresses_;
};

// A number for an object that has a name: of a key in the store `object`.
uint64_t named_object(uint64_t object, std::string_view name);

}  // namespace rankloom

#include "sim/schedule/step_record.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <utility>

#include "sim/base/fnv.h"
#include "sim/base/site_text.h"
#include "sim/schedule/early_changes.h"

namespace rankloom::internal {
namespace {

std::atomic<uint64_t> runs{0};  // of all records of the process

// A thread that makes objects outside of recorded runs.
struct Maker {
  Maker() : thread(threads.fetch_add(1) + 1) {}
  static inline std::atomic<uint64_t> threads{0};
  const uint64_t thread;
  uint64_t made = 0;
};
Maker& maker_here() {
  thread_local Maker maker;
  return maker;
}

// The numbers that names begin with, so that names of different kinds differ.
constexpr uint64_t kRankTask = 0x9ae16a3b2f90404f;
constexpr uint64_t kMemory = 0xc949d7c7509e6557;
constexpr uint64_t kOutside = 0xff51afd7ed558ccd;
constexpr uint64_t kOlder = 0xb492b66fbe98f273;
constexpr uint64_t kBetweenRuns = 0x9ddfea08eb382d69;
constexpr uint64_t kBeforeSearch = 0x2127599bf4325c37;

thread_local uint64_t next_task_name = 0;

uint64_t memory_of(int rank) { return numbered_object(kMemory, static_cast<uint64_t>(rank)); }

}  // namespace

uint64_t numbered_object(uint64_t object, uint64_t number) {
  // The finalizer of SplitMix64 over both. G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number
  // Generators", 2014.
  uint64_t z = object * 0x9e3779b97f4a7c15 + number + 0x632be59bd9b4e019;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

uint64_t named_object(uint64_t object, std::string_view name) {
  uint64_t hash = kFnvBasis;
  for (const char c : name) hash = fnv_step(hash, static_cast<unsigned char>(c));
  return numbered_object(object, hash);
}

// On fibers everything runs on one thread.
class StepRecord::Lock {
 public:
  explicit Lock(StepRecord* record) ABSL_NO_THREAD_SAFETY_ANALYSIS : mu_(record->threads_ ? &record->mu_ : nullptr) {
    if (mu_ != nullptr) mu_->lock();
  }
  ~Lock() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (mu_ != nullptr) mu_->unlock();
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  OrderedMutex* const mu_;
};

StepRecord::Origin StepRecord::origin_here() { return {.thread = maker_here().thread, .made = maker_here().made}; }

StepRecord::StepRecord(bool texts) : texts_(texts), end_serial_(maker_here().made) {}

void StepRecord::begin_run(const Scheduler* scheduler, int ranks, bool threads) {
  threads_ = threads;
  stopped_ = false;
  scheduler_ = scheduler;
  run_ = runs.fetch_add(1) + 1;
  thread_ = maker_here().thread;
  run_serial_ = maker_here().made;
  made_outside_ = 0;
  came_before_ = strangers_came_.load(std::memory_order_relaxed);
  steps_.clear();
  ops_.clear();
  tasks_.clear();
  ready_.clear();
  number_of_.clear();
  step_texts_.clear();
  inputs_.clear();
  for (int rank = 0; rank < ranks; ++rank) {
    name_next_task(numbered_object(kRankTask, static_cast<uint64_t>(rank)));
    born(rank, {.rank = rank, .kind = TaskKind::kRank});
  }
}

void StepRecord::end_run() {
  inputs_.clear();
  end_serial_ = maker_here().made;
  if (strangers_.exchange(false, std::memory_order_relaxed) ||
      strangers_came_.load(std::memory_order_relaxed) != came_before_)
    uncovered(kOwnThreads);
}

StepRecord::TaskFacts* StepRecord::current_facts() {
  const Task* const task = Task::current();
  if (task == nullptr || task->scheduler != scheduler_) return nullptr;
  if (task->id < 0 || static_cast<size_t>(task->id) >= number_of_.size()) return nullptr;
  return &tasks_[static_cast<size_t>(number_of(task->id))];
}

uint64_t StepRecord::new_object() {
  const Lock lock(this);
  TaskFacts* const maker = current_facts();
  return maker != nullptr ? numbered_object(maker->name, ++maker->made) : numbered_object(kOutside, ++made_outside_);
}

void StepRecord::enter_name(uint64_t name) {
  const Lock lock(this);
  TaskFacts* const maker = current_facts();
  if (maker == nullptr || maker->own_name != 0) return;
  maker->own_name = std::exchange(maker->name, name);
  maker->own_made = std::exchange(maker->made, 0);
}

void StepRecord::leave_name() {
  const Lock lock(this);
  TaskFacts* const maker = current_facts();
  if (maker == nullptr || maker->own_name == 0) return;
  maker->name = std::exchange(maker->own_name, 0);
  maker->made = maker->own_made;
}

void StepRecord::name_next_task(uint64_t name) { next_task_name = name; }

void StepRecord::born(TaskId id, const TaskInfo& info) {
  const Lock lock(this);
  uint64_t name = std::exchange(next_task_name, 0);
  if (name == 0) {
    TaskFacts* const maker = current_facts();
    name = maker != nullptr ? numbered_object(maker->name, ++maker->made) : numbered_object(kOutside, ++made_outside_);
  }
  if (static_cast<size_t>(id) >= number_of_.size()) number_of_.resize(static_cast<size_t>(id) + 1, -1);
  number_of_[static_cast<size_t>(id)] = static_cast<int>(tasks_.size());
  tasks_.push_back({.info = info, .id = id, .name = name, .guest = {}});
  if (steps_.empty()) return;  // all begin with the run
  ops_.push_back({What::kBorn, static_cast<uint64_t>(tasks_.size()) - 1});
  steps_.back().ops_end = static_cast<int>(ops_.size());
}

void StepRecord::watch_input(const void* call, int rank, std::string_view bytes) {
  const Lock lock(this);
  if (stopped_ || bytes.empty()) return;
  inputs_.push_back({.call = call, .rank = rank, .bytes = bytes, .hash = std::hash<std::string_view>()(bytes)});
}

void StepRecord::forget_inputs(const void* call) {
  const Lock lock(this);
  std::erase_if(inputs_, [call](const Input& input) { return input.call == call; });
}

void StepRecord::look_at_inputs() {
  size_t changed = 0;
  {
    const Lock lock(this);
    if (stopped_ || inputs_.empty() || steps_.empty()) return;
    const TaskFacts& last = tasks_[static_cast<size_t>(steps_.back().task)];
    changed = std::erase_if(inputs_, [&last](const Input& input) {
      const bool touched = input.rank == last.info.rank ||
                           std::find(last.guest.begin(), last.guest.end(), input.rank) != last.guest.end();
      return touched && std::hash<std::string_view>()(input.bytes) != input.hash;
    });
  }
  if (changed == 0) return;
  found_early_change();
  uncovered(kEarlyChange);
  early_changes_found.fetch_add(1, std::memory_order_relaxed);
}

void StepRecord::begin_step(const Task& task, const ReadySet& ready) {
  look_at_inputs();
  const Lock lock(this);
  if (!runs_.load(std::memory_order_relaxed)) {
    runs_.store(true, std::memory_order_relaxed);
    running_.fetch_add(1, std::memory_order_relaxed);
  }
  ready.for_each([this](TaskId id) { ready_.push_back(id); });
  steps_.push_back({.task = number_of(task.id),
                    .id = task.id,
                    .ops_end = static_cast<int>(ops_.size()),
                    .ready_end = static_cast<int>(ready_.size())});
  if (texts_) step_texts_.push_back(site_text(task.site) + std::string(site_place(task.site)));
  const TaskFacts& facts = tasks_[static_cast<size_t>(number_of(task.id))];
  if (task.info.rank >= 0 && task.info.kind != TaskKind::kCompletion) add_here(What::kWrite, memory_of(task.info.rank));
  for (const int rank : facts.guest) add_here(What::kWrite, memory_of(rank));
}

void StepRecord::write_memory(int rank) { add(What::kWrite, memory_of(rank)); }

void StepRecord::settle_memory(int rank, bool put_back) {
  add(put_back || completions_write_ ? What::kWrite : What::kSettle, memory_of(rank));
}

void StepRecord::enter_memory(int rank) {
  const Lock lock(this);
  TaskFacts* const facts = current_facts();
  if (facts == nullptr || rank < 0 || rank == facts->info.rank) return;
  facts->guest.push_back(rank);
  add_here(What::kWrite, memory_of(rank));
}

void StepRecord::leave_memory(int rank) {
  const Lock lock(this);
  TaskFacts* const facts = current_facts();
  if (facts == nullptr) return;
  const auto last = std::find(facts->guest.rbegin(), facts->guest.rend(), rank);
  if (last != facts->guest.rend()) facts->guest.erase(std::next(last).base());
}

void StepRecord::uncovered(std::string_view what) {
  OrderedMutexLock lock(&mu_);  // threads of a run within this one come here, too
  const auto at = std::lower_bound(uncovered_.begin(), uncovered_.end(), what);
  if (at == uncovered_.end() || *at != what) uncovered_.emplace(at, what);
}

void StepRecord::stop() {
  const Lock lock(this);
  if (stopped_) return;
  stopped_ = true;
  inputs_.clear();
  stopped_at_ = static_cast<int>(steps_.size());
}

void StepRecord::add(What what, uint64_t object) {
  if (Task::current() == nullptr) return;  // after the run, or beside it
  const Lock lock(this);
  saw_any_ |= what != What::kTimePassed;
  told_.fetch_add(1, std::memory_order_relaxed);
  add_here(what, object);
}

void StepRecord::add_here(What what, uint64_t object) {
  if (stopped_ || steps_.empty()) return;
  const Op op{what, object};
  if (skip_ && skip_(op)) return;
  ops_.push_back(op);
  steps_.back().ops_end = static_cast<int>(ops_.size());
}

ObjectName::ObjectName() {
  const Task* const task = Task::current();
  StepRecord* const record = task != nullptr ? task->record : nullptr;
  if (record != nullptr) {
    name_ = record->new_object();
    run_ = record->run();
  } else {
    thread_ = maker_here().thread;
    serial_ = ++maker_here().made;
    if (task != nullptr && task->inner != nullptr) inner_ = task->inner->serial;
  }
}

ObjectName::ObjectName(StepRecord* record)
    : name_(record != nullptr ? record->new_object() : 0), run_(record != nullptr ? record->run() : 0) {}

StepRecord* ObjectName::record() const {
  StepRecord* const record = record_here();
  const Task* const task = Task::current();
  if (record == nullptr && task != nullptr && task->inner != nullptr && task->inner->serial != inner_) [[unlikely]]
    uses_outer();
  return record;
}

void ObjectName::uses_outer() {
  const Task* const task = Task::current();
  if (task != nullptr && task->inner != nullptr)
    task->inner->uncovered("objects that a world within a rank uses, which did not make them");
}

uint64_t ObjectName::in(StepRecord& record) const {
  if (run_ != 0 && run_ == record.run_) return name_;
  if (run_ != 0) {
    record.uncovered("objects that one run made and a later one uses");
    return numbered_object(kOlder, name_);
  }
  const StepRecord::Origin& origin = record.origin_;
  if (thread_ != 0 && thread_ == origin.thread && serial_ <= origin.made) {
    record.older_objects_.store(true, std::memory_order_relaxed);
    return numbered_object(kBeforeSearch, origin.made - serial_);
  }
  if (thread_ == record.thread_ && serial_ > record.run_serial_)
    return numbered_object(kOutside, ~(serial_ - record.run_serial_));
  if (thread_ == record.thread_ && serial_ > record.end_serial_)
    return numbered_object(kBetweenRuns, serial_ - record.end_serial_);
  if (thread_ != 0 && origin.among_others) {
    record.uncovered(
        "objects that the thread of explore() did not make before the call: each process has its own names for them");
  }
  return numbered_object(numbered_object(kOlder, thread_), serial_);
}

}  // namespace rankloom::internal

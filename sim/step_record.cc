#include "sim/step_record.h"

#include "sim/site_text.h"

namespace rankloom {

// On fibers everything runs on one thread.
class StepRecord::Lock {
 public:
  explicit Lock(StepRecord* record) ABSL_NO_THREAD_SAFETY_ANALYSIS : mu_(record->threads_ ? &record->mu_ : nullptr) {
    if (mu_ != nullptr) mu_->Lock();
  }
  ~Lock() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (mu_ != nullptr) mu_->Unlock();
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  absl::Mutex* const mu_;
};

void StepRecord::begin_run(int ranks, bool threads) {
  threads_ = threads;
  stopped_ = false;
  objects_ = 0;
  steps_.clear();
  ops_.clear();
  tasks_.clear();
  ready_.clear();
  number_of_.clear();
  helped_.assign(static_cast<size_t>(ranks), false);
  step_texts_.clear();
  addresses_.clear();
  for (int rank = 0; rank < ranks; ++rank) born(rank, {.rank = rank, .kind = TaskKind::kRank});
}

void StepRecord::born(TaskId id, const TaskInfo& info) {
  const Lock lock(this);
  if (static_cast<size_t>(id) >= number_of_.size()) number_of_.resize(static_cast<size_t>(id) + 1, -1);
  number_of_[static_cast<size_t>(id)] = static_cast<int>(tasks_.size());
  tasks_.push_back({.info = info, .id = id});
  if (steps_.empty()) return;  // all begin with the run
  if (info.kind == TaskKind::kHelper && info.rank >= 0) helped_[static_cast<size_t>(info.rank)] = true;
  ops_.push_back({What::kBorn, static_cast<uint64_t>(tasks_.size()) - 1});
  steps_.back().ops_end = static_cast<int>(ops_.size());
}

void StepRecord::begin_step(const Task& task, const ReadySet& ready) {
  const Lock lock(this);
  ready.for_each([this](TaskId id) { ready_.push_back(id); });
  steps_.push_back({.task = number_of(task.id),
                    .id = task.id,
                    .ops_end = static_cast<int>(ops_.size()),
                    .ready_end = static_cast<int>(ready_.size())});
  if (texts_) step_texts_.push_back(site_text(task.site) + std::string(site_place(task.site)));
  const int rank = task.info.rank;
  if (rank >= 0 && helped_[static_cast<size_t>(rank)] && task.info.kind != TaskKind::kCompletion && !stopped_) {
    // The memory of the rank: objects from new_object() count up from 1.
    ops_.push_back({What::kWrite, ~uint64_t{0} - static_cast<uint64_t>(rank)});
    steps_.back().ops_end = static_cast<int>(ops_.size());
  }
}

uint64_t StepRecord::object_at(const void* address, int part) {
  const Lock lock(this);
  uint64_t& number = addresses_[{address, part}];
  if (number == 0) number = new_object();
  return number;
}

void StepRecord::stop() {
  const Lock lock(this);
  if (stopped_) return;
  stopped_ = true;
  stopped_at_ = static_cast<int>(steps_.size());
}

void StepRecord::add(What what, uint64_t object) {
  const Lock lock(this);
  if (stopped_ || steps_.empty()) return;
  ops_.push_back({what, object});
  steps_.back().ops_end = static_cast<int>(ops_.size());
}

uint64_t named_object(uint64_t object, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325 ^ (object * 0x9e3779b97f4a7c15);
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace rankloom

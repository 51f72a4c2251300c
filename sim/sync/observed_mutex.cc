#include "sim/sync/observed_mutex.h"

#include "absl/strings/str_cat.h"
#include "sim/schedule/step_record.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {

ObservedMutex::ObservedMutex(const Scheduler* scheduler, LockLevel level)
    : RankMutex(scheduler, level),
      may_be_explored_(scheduler == nullptr || scheduler->record() != nullptr),
      record_(scheduler != nullptr ? scheduler->record() : nullptr) {}

void ObservedMutexLock::begin(CodeSite code) {
  const Task* const task = Task::current();
  record_ = task != nullptr ? task->record : nullptr;
  if (task == nullptr) mu_.record_ != nullptr ? mu_.record_->seen_from_outside() : StepRecord::stranger_came();
  if (record_ == nullptr) return;
  told_ = record_->told();
  code_ = code;
}

void ObservedMutexLock::end() {
  if (record_->told() == told_ && !record_->stopped())
    record_->uncovered(absl::StrCat("a part of rankloom that tells of nothing (", code_.file, ":", code_.line, ")"));
}

}  // namespace rankloom::internal

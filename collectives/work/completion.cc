#include "collectives/work/completion.h"

#include <exception>

#include "sim/base/task.h"
#include "sim/schedule/step_record.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {

void Completion::run_later(absl::AnyInvocable<void()> action) {
  if (current_ == nullptr) return action();
  if (current_->due_ == nullptr) current_->due_ = std::make_unique<Due>();
  current_->due_->push_back(std::move(action));
}

void Completion::run_due() {
  const std::unique_ptr<Due> due = std::move(due_);
  std::exception_ptr thrown;
  for (absl::AnyInvocable<void()>& action : *due) {
    try {
      action();
      action = nullptr;
    } catch (...) {
      if (thrown == nullptr) thrown = std::current_exception();
    }
  }
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

void point_of_caller(const Site& site) {
  Task* const task = Task::current();
  if (task == nullptr || task->info.kind == TaskKind::kCompletion || Completion::open()) return;
  if (!task->scheduler->aborted()) task->scheduler->point(site);
}

void ended_too_late(uint64_t object) {
  if (StepRecord* const record = record_here(); record != nullptr) record->access(object, Access::kWrite);
}

}  // namespace rankloom::internal

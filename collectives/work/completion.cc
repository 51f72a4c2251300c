#include "collectives/work/completion.h"

#include <exception>
#include <iterator>
#include <utility>

#include "sim/base/task.h"
#include "sim/schedule/step_record.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {

void Completion::put_off(Actions Due::*list, absl::AnyInvocable<void()> action) {
  if (current_ == nullptr) return action();
  if (current_->due_ == nullptr) current_->due_ = std::make_unique<Due>();
  (current_->due_.get()->*list).push_back(std::move(action));
}

void Completion::run_later(absl::AnyInvocable<void()> action) { put_off(&Due::others, std::move(action)); }

void Completion::wake_later(absl::AnyInvocable<void()> action) { put_off(&Due::wake, std::move(action)); }

// The Completions whose actions the calling task, or thread of no task, runs one within another.
struct Completion::Nest {
  // The pointer to it of the caller.
  static void** here() {
    static thread_local void* of_thread = nullptr;
    Task* const task = Task::current();
    return task != nullptr ? &task->completions : &of_thread;
  }
  void run(Actions* actions) {
    ++depth;
    for (absl::AnyInvocable<void()>& action : *actions) {
      try {
        action();
        action = nullptr;
      } catch (...) {
        if (thrown == nullptr) thrown = std::current_exception();
      }
    }
    --depth;
  }

  int depth = 0;
  Actions late;  // of Completions too deep within, for the outermost
  std::exception_ptr thrown;
};

void Completion::run_late() {
  Nest* const nest = static_cast<Nest*>(*Nest::here());
  while (nest != nullptr && !nest->late.empty()) {
    Actions late = std::exchange(nest->late, {});
    nest->run(&late);
  }
}

void Completion::run_due() {
  constexpr int kDeepest = 64;  // of callbacks that complete works, each with a callback; a fiber's stack is small
  const std::unique_ptr<Due> due = std::move(due_);
  void** const here = Nest::here();
  Nest* const outer = static_cast<Nest*>(*here);
  if (outer != nullptr && outer->depth >= kDeepest) {
    outer->run(&due->wake);
    std::move(due->others.begin(), due->others.end(), std::back_inserter(outer->late));
    return;
  }
  Nest own;
  Nest* const nest = outer != nullptr ? outer : &own;
  *here = nest;
  std::exception_ptr outer_threw = std::exchange(nest->thrown, nullptr);
  nest->run(&due->wake);
  nest->run(&due->others);
  while (nest == &own && !own.late.empty()) {
    Actions late = std::exchange(own.late, {});
    own.run(&late);
  }
  *here = outer;
  const std::exception_ptr thrown = std::exchange(nest->thrown, std::move(outer_threw));
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

#include "collectives/work/completion.h"

#include <exception>
#include <iterator>
#include <memory>
#include <utility>

#include "sim/base/exception_text.h"
#include "sim/base/task.h"
#include "sim/schedule/step_record.h"
#include "sim/scheduler/scheduler.h"
#include "world/world_state.h"

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
        if (thrown == nullptr) thrown = handled_exception();
      }
    }
    --depth;
  }

  // How many may run one within another: callbacks that complete works with callbacks. A fiber's stack is small.
  static int deepest() {
    const Task* const task = Task::current();
    return task != nullptr && task->scheduler->options().engine == EngineKind::kFibers ? 32 : 1'000;
  }
  static bool give_to_helper(Actions* actions);

  int depth = 0;
  Actions late;  // on threads of no task, of Completions too deep within: for the outermost
  std::exception_ptr thrown;
};

// Of a task: on a stack of its own, beside the task, which may wait for what the actions do.
bool Completion::Nest::give_to_helper(Actions* actions) {
  const Task* const task = Task::current();
  if (task == nullptr || task->user == nullptr || !task->scheduler->takes_tasks()) return false;
  RankState& rank = *static_cast<RankState*>(task->user);
  task->scheduler->spawn({.rank = rank.rank(), .kind = TaskKind::kHelper},
                         [&rank, actions = std::make_shared<Actions>(std::move(*actions))] {
                           rank.world().run_helper(rank.rank(), [&actions] {
                             Nest nest;
                             nest.run(actions.get());
                             if (nest.thrown != nullptr) std::rethrow_exception(nest.thrown);
                           });
                         });
  return true;
}

void Completion::run_due() {
  const std::unique_ptr<Due> due = std::move(due_);
  void** const here = Nest::here();
  Nest* const outer = static_cast<Nest*>(*here);
  if (outer != nullptr && outer->depth >= Nest::deepest()) {
    outer->run(&due->wake);
    if (Nest::give_to_helper(&due->others)) return;
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

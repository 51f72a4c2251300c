#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "sim/base/forked_run.h"
#include "sim/base/library_scope.h"
#include "sim/base/task.h"
#include "sim/schedule/step_record.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {

// Which run a handle belongs to. Unlike a pointer to the scheduler, a name that may outlive the run: a scheduler that
// is gone, or another one at its address, is not taken for it.
class WorldRef {
 public:
  WorldRef() = default;  // of no world
  // Null: of no world.
  WorldRef(Scheduler* scheduler) : scheduler_(scheduler), serial_(scheduler != nullptr ? scheduler->serial() : 0) {}

  bool known() const { return scheduler_ != nullptr; }
  // Whether the caller is something else than a task of this world. False for a handle of no world: anybody may use it.
  bool foreign() const { return scheduler_ != nullptr && !has(Task::current()); }
  bool has(const Task* task) const {
    return task != nullptr && task->scheduler == scheduler_ && scheduler_->serial() == serial_;
  }
  // The world takes no further calls. Cheap for its own tasks only.
  bool ended() const;
  // Good while the world is known to live: its own tasks, and holders of a WorldPin, may ask.
  Scheduler* scheduler() const { return scheduler_; }

 private:
  friend class WorldPin;
  friend class CallScope;
  Scheduler* scheduler_ = nullptr;
  uint64_t serial_ = 0;
};

// The calling task uses memory of a rank, by that one's context, handle or stream. An explored run is told if the task
// is another rank's; or, if it is one of a world within, that no search sees what it does there. Inlined, so that the
// place that tells is the caller.
[[gnu::always_inline]] inline void uses_memory_of(const WorldRef& world, int rank) {
  const Task* const task = Task::current();
  if (task == nullptr || (task->record == nullptr && task->inner == nullptr) || !world.known()) return;
  if (!world.has(task)) return ObjectName::uses_outer();
  if (task->record != nullptr && task->info.rank != rank) task->record->write_memory(rank);
}

// Keeps a world's memory for as long as it lives, if there still is any: the end of the world waits for it. Not for
// waits for what ranks do: only for as long as a kernel takes.
class WorldPin {
 public:
  explicit WorldPin(const WorldRef& world);
  ~WorldPin();
  WorldPin(const WorldPin&) = delete;
  WorldPin& operator=(const WorldPin&) = delete;
  explicit operator bool() const { return lives_; }

 private:
  Scheduler* pinned_ = nullptr;  // null: the caller is a task of it, which is enough, or it is gone
  bool lives_ = false;
};

// For destructors, which can refuse nothing, and for methods that any thread may call, of a handle of `rank`: where the
// ranks are fibers, which lock nothing, a thread beside theirs has `*body` run by a step there. `waits`: until its end,
// or runs it if their thread comes to no point, as in a join. Once the run is over, and before, runs it: ActsForFibers.
// False: the caller does, as the ranks lock or their world is gone.
bool given_to_fibers(const WorldRef& world, int rank, const char* what, absl::AnyInvocable<void()>* body,
                     bool waits = false);
// The same, and where it is the caller's runs `body` here: for what a rank's task changes at no scheduling point, too.
void run_for_fibers(const WorldRef& world, int rank, const char* what, absl::AnyInvocable<void()> body,
                    bool waits = false);

// A thread that is no rank's has looked at what an explored run can order, or has had a part in it.
void tell_of_own_thread(const WorldRef& world);

// "the world has ended", which everything that was unfinished then fails with.
absl::Status world_ended();

// The called method and the handle, for errors.
struct CalledHandle {
  int rank = -1;       // the global rank that the handle belongs to; -1: none
  std::string handle;  // "group 0", "HashStore"
  std::string op;      // "all_reduce"
  CodeSite code = {};  // of the call
};

// The way in of every call through a handle, for the length of the call. A task of the handle's world just enters. A
// thread that is no task (autograd, a callback, a thread of the rank's own) becomes a helper of the handle's rank.
// Ends a process that a task of the world forked (sim/base/forked_run.h).
// Throws DistError: Aborted when the world has ended, InvalidArgument for a task of another world, and for a thread of
// no world if the ranks are fibers.
class CallScope {
 public:
  CallScope(const WorldRef& world, absl::FunctionRef<CalledHandle()> called) {
    if (world.foreign() || is_forked_thread()) [[unlikely]]
      enter(world, called());
  }
  CallScope(Scheduler* scheduler, int rank);
  ~CallScope() {
    if (task_ != nullptr) [[unlikely]]
      leave();
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  // The errors of the constructor, but for one: a thread of no world stays one. `after_run`: once the run is over, too,
  // as long as the world's memory is there.
  static void check(const WorldRef& world, absl::FunctionRef<CalledHandle()> called, bool after_run = false) {
    if (world.foreign() || is_forked_thread()) [[unlikely]]
      refuse_other_worlds(world, called(), after_run);
  }
  // Throws InvalidArgument, as the constructor does, on a thread beside those of a world of fibers that runs.
  static void check_thread(const WorldRef& world, absl::FunctionRef<CalledHandle()> called) {
    if (world.foreign()) [[unlikely]]
      refuse_beside_fibers(world, called, /*before=*/false);
  }
  // For waits: throws before the run, too, which may begin meanwhile.
  static void check_wait(const WorldRef& world, absl::FunctionRef<CalledHandle()> called) {
    if (world.foreign()) refuse_beside_fibers(world, called, /*before=*/true);
  }

 private:
  static void refuse_other_worlds(const WorldRef& world, const CalledHandle& called, bool after_run);
  static void refuse_beside_fibers(const WorldRef& world, absl::FunctionRef<CalledHandle()> called, bool before);
  void enter(const WorldRef& world, const CalledHandle& called);
  void leave();

  LibraryScope library_;
  Scheduler* scheduler_ = nullptr;
  Task* task_ = nullptr;
  uint64_t stranger_ = 0;
};

}  // namespace rankloom::internal

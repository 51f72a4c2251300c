#include "sim/engine/thread_engine.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "sim/base/forked_run.h"
#include "sim/base/system.h"
#include "sim/engine/thread_pool.h"

namespace rankloom::internal {

std::string thread_name(const TaskInfo& info) {
  return absl::StrCat(info.kind == TaskKind::kRank     ? "rank "
                      : info.kind == TaskKind::kStream ? "stream of "
                                                       : "helper of ",
                      info.rank);
}

void ThreadEngine::attach(Task& task) {
  task.thread = this_thread();
  Task::set_current(&task);
}

void ThreadEngine::park(Task& task) {
  if (is_forked_copy(task.scheduler)) [[unlikely]]
    end_forked_copy();
  task.parker.park(Deadline::kNever);
}

void ThreadEngine::spawn(Task& task, void (*entry)(Task&)) {
  ThreadPool::shared().start(
      thread_name(task.info),
      [&task, entry] {
        task.thread = this_thread();
        task.parker.park(Deadline::kNever);
        Task::set_current(&task);
        entry(task);
        Task::set_current(nullptr);
      },
      fresh_threads_);
}

}  // namespace rankloom::internal

#include "sim/engine/thread_engine.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "sim/engine/thread_pool.h"

namespace rankloom::internal {

std::string thread_name(const TaskInfo& info) {
  return absl::StrCat(info.kind == TaskKind::kRank     ? "rank "
                      : info.kind == TaskKind::kStream ? "stream of "
                                                       : "helper of ",
                      info.rank);
}

namespace {

thread_local int own_thread = 0;  // 0: not asked yet

}  // namespace

int this_thread() {
  // In a process that is forked, the one thread has another number.
  static const int watched = pthread_atfork(nullptr, nullptr, [] { own_thread = 0; });
  (void)watched;
  if (own_thread == 0) own_thread = static_cast<int>(syscall(SYS_gettid));
  return own_thread;
}

bool thread_runs(int thread) {
  std::ifstream file(absl::StrCat("/proc/self/task/", thread, "/stat"));
  std::string line;
  std::getline(file, line);
  // "12 (name) S ...": the name may hold anything, brackets too.
  const size_t name_end = line.rfind(')');
  return name_end != std::string::npos && name_end + 2 < line.size() &&
         (line[name_end + 2] == 'R' || line[name_end + 2] == 'D');
}

void ThreadEngine::attach(Task& task) {
  task.thread = this_thread();
  Task::set_current(&task);
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

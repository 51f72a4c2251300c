#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "sim/base/lock_order.h"
#include "sim/base/parker.h"
#include "sim/base/task.h"

namespace rankloom::internal {

// Wakes tasks that wait for a file which other processes write. No event tells of such writes on every file system, so
// a thread looks at the file every now and then, and only while somebody waits.
// In a deterministic run a task cannot do that itself: all others would be held up, and time would not pass meanwhile.
class FilePoller {
 public:
  // `changed` says whether there is something to read; called from the poller's thread.
  explicit FilePoller(std::function<bool()> changed);
  ~FilePoller();
  FilePoller(const FilePoller&) = delete;
  FilePoller& operator=(const FilePoller&) = delete;

  // Made by this process: a child made by fork has the object, but not its thread.
  bool usable() const;

  // While it lives, `task` is unparked when the file has changed, one task of each world at a time since that one reads
  // for all, and when the monotonic clock passes `deadline_ns`.
  class Scope {
   public:
    Scope(FilePoller* poller, Task* task, int64_t deadline_ns);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class FilePoller;
    FilePoller* const poller_;
    Task* const task_;
    const int64_t deadline_ns_;
  };

 private:
  void run();
  // Wakes the tasks that are due; returns when to look next.
  int64_t look(int64_t now) ABSL_LOCKS_EXCLUDED(mu_);

  const std::function<bool()> changed_;
  OrderedMutex mu_{LockLevel::kFilePoller};
  std::vector<Scope*> waiting_ ABSL_GUARDED_BY(mu_);
  int64_t since_ ABSL_GUARDED_BY(mu_) = 0;  // when the last one began to wait
  std::atomic<bool> stop_{false};
  Parker parker_;
  const pid_t pid_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace rankloom::internal

#include "fake_store/file_poller.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "sim/base/library_scope.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {
namespace {

// Between two looks: an eighth of what was waited so far, within these. A look costs a microsecond.
constexpr int64_t kShortestNs = 200'000;
constexpr int64_t kLongestNs = 10'000'000;

}  // namespace

FilePoller::FilePoller(std::function<bool()> changed)
    : changed_(std::move(changed)), pid_(getpid()), thread_([this] { run(); }) {}

FilePoller::~FilePoller() {
  stop_.store(true, std::memory_order_release);
  parker_.unpark();
  thread_.join();
}

bool FilePoller::usable() const { return pid_ == getpid(); }

FilePoller::Scope::Scope(FilePoller* poller, Task* task, int64_t deadline_ns)
    : poller_(poller), task_(task), deadline_ns_(deadline_ns) {
  {
    OrderedMutexLock lock(&poller->mu_);
    poller->waiting_.push_back(this);
    poller->since_ = monotonic_ns();
  }
  poller->parker_.unpark();
}

FilePoller::Scope::~Scope() {
  OrderedMutexLock lock(&poller_->mu_);
  poller_->waiting_.erase(std::find(poller_->waiting_.begin(), poller_->waiting_.end(), this));
}

void FilePoller::run() {
  const LibraryScope library;
  while (!stop_.load(std::memory_order_acquire)) {
    const int64_t next = look(monotonic_ns());
    if (parker_.prepare()) parker_.sleep(next);
  }
}

int64_t FilePoller::look(int64_t now) {
  OrderedMutexLock lock(&mu_);
  if (waiting_.empty()) return Deadline::kNever;
  if (changed_()) {
    // A task of a world may have to wait for a turn there, while others read: each world has one, and threads of none.
    std::vector<const Scheduler*> woken;
    for (const Scope* scope : waiting_) {
      if (std::find(woken.begin(), woken.end(), scope->task_->scheduler) != woken.end()) continue;
      woken.push_back(scope->task_->scheduler);
      Scheduler::wake(*scope->task_);
    }
  }
  int64_t next = now + std::clamp((now - since_) / 8, kShortestNs, kLongestNs);
  for (const Scope* scope : waiting_) {
    if (scope->deadline_ns_ <= now) {
      Scheduler::wake(*scope->task_);
    } else {
      next = std::min(next, scope->deadline_ns_);
    }
  }
  return next;
}

}  // namespace rankloom::internal

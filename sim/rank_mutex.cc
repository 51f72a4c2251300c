#include "sim/rank_mutex.h"

#include "absl/strings/str_cat.h"
#include "sim/dist_error.h"
#include "sim/scheduler.h"
#include "sim/site_text.h"

#if defined(__SANITIZE_THREAD__)
#define RANKLOOM_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RANKLOOM_TSAN 1
#endif
#endif

namespace rankloom {

RankMutex::RankMutex(const Scheduler* scheduler)
    : real_(scheduler == nullptr || scheduler->options().engine == EngineKind::kThreads) {}

void RankMutex::lock_real() { mu_.Lock(); }
void RankMutex::unlock_real() { mu_.Unlock(); }

absl::Status RankCondVar::await(RankMutex* mu, absl::FunctionRef<bool()> done, const Site& site, Deadline deadline) {
  if (done()) return absl::OkStatus();
  // A thread of no world waits on a task of its own for the length of the call.
  Task stranger;
  Task* const self = Task::current() != nullptr ? Task::current() : &stranger;
  Scheduler* const scheduler = self->scheduler;
  for (;;) {
    if (scheduler != nullptr && scheduler->aborted()) return scheduler->abort_cause();
    Waiter waiter{.task = self};
    (last_ != nullptr ? last_->next : first_) = &waiter;
    last_ = &waiter;
    mu->unlock();
    WakeCause cause = WakeCause::kUnparked;
    if (scheduler != nullptr) {
      cause = scheduler->park(site, deadline);
    } else if (!self->parker.park(deadline.at_ns)) {
      cause = WakeCause::kTimeout;
    }
    mu->lock();
    if (waiter.linked) unlink(&waiter);
    if (done()) return absl::OkStatus();
    if (cause == WakeCause::kTimeout) {
      return make_error(ErrorKind::kTimeout, absl::StrCat("timed out in ", site_text(site)));
    }
  }
}

void RankCondVar::notify_all() {
  while (first_ != nullptr) notify_one();
}

void RankCondVar::notify_one() {
  Waiter* const waiter = first_;
  if (waiter == nullptr) return;
  first_ = waiter->next;
  if (first_ == nullptr) last_ = nullptr;
  Task& task = *waiter->task;
  waiter->linked = false;  // from here on the waiter may be gone as soon as the mutex is free
  if (task.scheduler != nullptr) {
    task.scheduler->unpark(task);
  } else {
    task.parker.unpark();
  }
}

void RankCondVar::unlink(Waiter* waiter) {
  Waiter* before = nullptr;
  for (Waiter* w = first_; w != waiter; w = w->next) before = w;
  (before != nullptr ? before->next : first_) = waiter->next;
  if (last_ == waiter) last_ = before;
  waiter->linked = false;
}

}  // namespace rankloom

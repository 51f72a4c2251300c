#include "sim/rank_mutex.h"

#include "absl/strings/str_cat.h"
#include "sim/dist_error.h"
#include "sim/scheduler.h"
#include "sim/site_text.h"

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
  Waiter waiter{.task = self};
  bool queued = false;
  absl::Status failure;
  while (failure.ok()) {
    if (scheduler != nullptr && scheduler->aborted()) {
      failure = scheduler->abort_cause();
      break;
    }
    if (!waiter.linked) {  // who was woken for no reason keeps its place
      link(&waiter);
      queued = true;
    }
    mu->unlock();
    WakeCause cause = WakeCause::kUnparked;
    std::string who_waits;
    if (scheduler != nullptr) {
      cause = scheduler->park(site, deadline);
      if (cause == WakeCause::kTimeout && !deadline.weak) who_waits = scheduler->who_waits(site);
    } else if (!self->parker.park(deadline.at_ns)) {
      cause = WakeCause::kTimeout;
    }
    mu->lock();
    if (done()) {
      if (waiter.linked) unlink(&waiter);
      return absl::OkStatus();
    }
    if (cause == WakeCause::kTimeout) {
      failure = make_error(ErrorKind::kTimeout, absl::StrCat("timed out in ", site_text(site), who_waits));
    }
  }
  if (waiter.linked) {
    unlink(&waiter);
  } else if (queued) {
    notify_one();  // it was meant for somebody who goes on waiting
  }
  return failure;
}

void RankCondVar::link(Waiter* waiter) {
  waiter->next = nullptr;
  waiter->linked = true;
  (last_ != nullptr ? last_->next : first_) = waiter;
  last_ = waiter;
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

#include "sim/sync/rank_mutex.h"

#include <string>
#include <utility>

#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/parker.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {
namespace {

// Whether ranks may run at the same time, or helper threads beside them.
bool has_threads(const Scheduler* scheduler) {
  return scheduler == nullptr || scheduler->options().engine == EngineKind::kThreads;
}

}  // namespace

RankMutex::RankMutex(const Scheduler* scheduler, LockLevel level) : real_(has_threads(scheduler)), level_(level) {}
RankCounter::RankCounter(const Scheduler* scheduler) : real_(has_threads(scheduler)) {}

absl::Status AfterRanks::ended(std::string_view wait) const {
  return make_error(ErrorKind::kAborted, "the world has ended: no rank is left that could end ", sv(wait),
                    ", and nobody else has in ", absl::FormatDuration(patience_));
}

void RankMutex::lock_real() {
  if (!mu_.TryLock()) [[unlikely]]
    lock_contended(&mu_);
}
void RankMutex::unlock_real() { mu_.Unlock(); }

absl::Status RankCondVar::await(RankMutex* mu, absl::FunctionRef<bool()> done, const Site& site, Deadline deadline) {
  if (done()) return absl::OkStatus();
  Task* const self = Task::current();
  return self != nullptr ? await_as(self, mu, done, site, deadline) : await_without_task(mu, done, site, deadline);
}

// Not inlined: the stacks of a million ranks wait here, and a few hundred bytes decide whether each takes one page or
// two.
[[gnu::noinline]] absl::Status RankCondVar::await_without_task(RankMutex* mu, absl::FunctionRef<bool()> done,
                                                               const Site& site, Deadline deadline) {
  Task own;
  const AfterRanks* const after = AfterRanks::here();
  const bool own_deadline = !deadline.weak && deadline.at_ns != Deadline::kNever;
  if (after == nullptr || own_deadline) return await_as(&own, mu, done, site, deadline);
  const Deadline last = Deadline::after(monotonic_ns(), after->patience(), /*weak=*/true);
  absl::Status waited = await_as(&own, mu, done, site, last.at_ns < deadline.at_ns ? last : deadline);
  return waited.ok() || deadline.at_ns <= last.at_ns ? waited : after->ended(site_text(site));
}

namespace {

// Not inlined for the same reason.
[[gnu::noinline]] absl::Status timed_out(Scheduler* scheduler, const Site& site, Deadline deadline) {
  // Only an own deadline's text names the others: a default one passes when a job hangs for another reason.
  const std::string who_waits = scheduler != nullptr && !deadline.weak ? scheduler->who_waits(site) : "";
  return make_error(ErrorKind::kTimeout, "timed out in ", site_text(site), who_waits);
}

}  // namespace

absl::Status RankCondVar::await_as(Task* self, RankMutex* mu, absl::FunctionRef<bool()> done, const Site& site,
                                   Deadline deadline) {
  Scheduler* const scheduler = self->scheduler;
  Waiter waiter{.task = self};
  bool queued = false;
  absl::Status failure;
  while (failure.ok()) {
    if (scheduler != nullptr && scheduler->aborted()) {
      failure = scheduler->abort_cause();
      break;
    }
    if (!waiter.linked) {  // a waiter that was woken for no reason keeps its place
      link(&waiter);
      queued = true;
    }
    mu->unlock();
    const bool timeout = scheduler != nullptr ? scheduler->park(site, deadline) == WakeCause::kTimeout
                                              : !self->parker.park(deadline.at_ns);
    absl::Status late;
    if (timeout) late = timed_out(scheduler, site, deadline);
    mu->lock();
    if (done()) {
      if (waiter.linked) unlink(&waiter);
      return absl::OkStatus();
    }
    failure = std::move(late);
  }
  if (waiter.linked) {
    unlink(&waiter);
  } else if (queued) {
    notify_one();  // the wake-up was meant for a task that goes on waiting
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
  Scheduler::wake(task);
}

void RankCondVar::notify_takers() {
  const Task* const task = Task::current();
  if (task != nullptr && task->scheduler != nullptr && task->scheduler->deterministic()) {
    notify_all();
  } else {
    notify_one();
  }
}

void RankCondVar::unlink(Waiter* waiter) {
  Waiter* before = nullptr;
  for (Waiter* w = first_; w != waiter; w = w->next) before = w;
  (before != nullptr ? before->next : first_) = waiter->next;
  if (last_ == waiter) last_ = before;
  waiter->linked = false;
}

}  // namespace rankloom::internal

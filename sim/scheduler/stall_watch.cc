#include "sim/scheduler/stall_watch.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <iterator>
#include <new>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sim/base/lock_order.h"
#include "sim/base/site_text.h"
#include "sim/base/system.h"
#include "sim/base/text.h"
#include "sim/base/thread_stack.h"
#include "sim/engine/thread_pool.h"

namespace rankloom::internal {

// The thread that looks, and what it looks at. Process-wide; lives until the process ends.
class Watchdog {
 public:
  static Watchdog& shared() {
    static Watchdog* const watchdog = [] {
      pthread_atfork(nullptr, nullptr, &Watchdog::forget_after_fork);
      return new Watchdog;
    }();
    return *watchdog;
  }

  void add(StallWatch* watch) {
    bool wake = false;
    {
      OrderedMutexLock lock(&mu_);
      watches_.push_back(watch);
      ++added_;
      // look_sooner() may have come before.
      watch->next_look_ns_ = std::min(watch->next_look_ns_, monotonic_ns() + watch->period_ns());
      if (!started_) {
        started_ = true;
        ThreadPool::shared().start(
            "stall watch", [this] { run(); }, /*fresh=*/true);
      }
      if (watch->next_look_ns_ < wakes_at_ns_) {
        wakes_at_ns_ = watch->next_look_ns_;
        wake = true;
      }
    }
    if (wake) parker_.unpark();
  }

  void look_sooner(StallWatch* watch, int64_t ns) {
    {
      OrderedMutexLock lock(&mu_);
      if (watch->look_ns_.load(std::memory_order_relaxed) <= ns) return;
      watch->look_ns_.store(ns, std::memory_order_relaxed);
      if (std::find(watches_.begin(), watches_.end(), watch) == watches_.end()) return;
      watch->next_look_ns_ = std::min(watch->next_look_ns_, monotonic_ns() + watch->period_ns());
      if (watch->next_look_ns_ >= wakes_at_ns_) return;
      wakes_at_ns_ = watch->next_look_ns_;
    }
    parker_.unpark();
  }

  void remove(StallWatch* watch) {
    OrderedMutexLock lock(&mu_);
    const auto it = std::find(watches_.begin(), watches_.end(), watch);
    if (it == watches_.end()) return;  // this process was forked from the one in which it began
    watches_.erase(it);
    const auto told = [watch] { return !watch->telling_; };
    mu_.await(absl::Condition(&told));
  }

 private:
  static void forget_after_fork() { new (&shared()) Watchdog; }  // the child has no such thread

  void run() {
    for (;;) {
      int64_t until = 0;
      {
        OrderedMutexLock lock(&mu_);
        look_at_all();
        until = wakes_at_ns_;
      }
      parker_.park(until);
    }
  }

  void look_at_all() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const int64_t now = monotonic_ns();
    int64_t next = Deadline::kNever;
    // By index: the list may change while somebody is told.
    for (size_t i = 0; i < watches_.size(); ++i) {
      StallWatch* const watch = watches_[i];
      if (watch->next_look_ns_ <= now) {
        watch->next_look_ns_ = now + watch->period_ns();
        const std::vector<std::string> texts = watch->look(now);
        if (!texts.empty() || !watch->stuck_.ok()) tell(watch, texts);
        if (!watch->fatal().empty()) end_process(watch);
      }
    }
    for (const StallWatch* watch : watches_) next = std::min(next, watch->next_look_ns_);
    // Where one world follows another, each would have to wake this thread: it goes to sleep for good only when no
    // world began since it looked last.
    if (watches_.empty() && added_ != added_when_looked_) next = now + 1'000'000'000;
    added_when_looked_ = added_;
    wakes_at_ns_ = next;
  }

  [[noreturn]] void end_process(StallWatch* watch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    watch->telling_ = true;
    mu_.unlock();
    end_stalled(watch->fatal(), [watch] { return watch->scheduler_.describe_world(); });
  }

  void tell(StallWatch* watch, const std::vector<std::string>& texts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    watch->telling_ = true;
    const WorldOptions& options = watch->scheduler_.options();
    mu_.unlock();
    for (const std::string& text : texts) {
      if (options.on_stall) {
        options.on_stall(text);
      } else {
        std::fprintf(stderr, "rankloom: %s\n", text.c_str());
      }
    }
    watch->end_if_stuck();
    mu_.lock();
    watch->telling_ = false;
  }

  OrderedMutex mu_{LockLevel::kWatchdog};
  std::vector<StallWatch*> watches_ ABSL_GUARDED_BY(mu_);
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  int64_t wakes_at_ns_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t added_ ABSL_GUARDED_BY(mu_) = 0;  // watches, ever
  uint64_t added_when_looked_ ABSL_GUARDED_BY(mu_) = 0;
  Parker parker_;
};

namespace {

// The world at the end of a process, told by a thread of its own.
struct Described {
  std::string text;  // once done
  std::atomic<bool> done{false};
  Parker asker;
};

int64_t fatal_ns_of(const WorldOptions& options) {
  const absl::Duration after = options.stall_is_fatal.value_or(absl::InfiniteDuration());
  return after <= absl::ZeroDuration() || after == absl::InfiniteDuration() ? Deadline::kNever
                                                                            : absl::ToInt64Nanoseconds(after);
}

}  // namespace

// Four looks in the time after which a stall is told: the rank has then stood still for that time and no more than a
// quarter longer.
StallWatch::StallWatch(Scheduler* scheduler)
    : scheduler_(*scheduler),
      stall_ns_(absl::ToInt64Nanoseconds(scheduler->options().stall)),
      fatal_ns_(fatal_ns_of(scheduler->options())),
      look_ns_(std::min({stall_ns_, absl::ToInt64Nanoseconds(scheduler->options().stuck_after), fatal_ns_})) {}

void StallWatch::begin_once() {
  if (look_ns_.load(std::memory_order_relaxed) == Deadline::kNever || begun_.exchange(true)) return;
  next_look_ns_ = monotonic_ns() + period_ns();
  Watchdog::shared().add(this);
}

void StallWatch::begin_sooner(int64_t ns) {
  Watchdog::shared().look_sooner(this, ns);
  begin();
}

void StallWatch::end() {
  if (begun_.load(std::memory_order_relaxed) && !std::exchange(ended_, true)) Watchdog::shared().remove(this);
}

std::vector<std::string> StallWatch::look(int64_t now_ns) {
  ++looks_;
  // A process that was stopped, or a machine that slept, is no stall.
  const int64_t passed_ns = std::min(now_ns - last_look_ns_, 2 * period_ns());
  last_look_ns_ = now_ns;
  std::vector<Outstanding> outstanding;
  scheduler_.append_outstanding(&outstanding);
  std::vector<std::string> texts;
  std::vector<Stalled> stalled;
  bool fatal = false;
  for (const Outstanding& who : outstanding) {
    const auto [entry, first] = seen_.try_emplace(who.id);
    Seen& seen = entry->second;
    if (first || seen.steps != who.steps) {
      seen = {.steps = who.steps, .since_ns = now_ns};
    } else {
      seen.stood_ns += passed_ns;
    }
    seen.look = looks_;
    if (who.attached && seen.stood_ns >= std::min(stall_ns_, fatal_ns_)) {
      const bool too_long = seen.stood_ns >= fatal_ns_;
      const bool first_fatal = !fatal && too_long;
      fatal = fatal || first_fatal;
      stalled.insert(first_fatal ? stalled.begin() : stalled.end(),
                     {.who = who, .time_ns = too_long ? fatal_ns_ : stall_ns_});
    }
    if (seen.told || seen.stood_ns >= fatal_ns_ || now_ns - seen.since_ns < stall_ns_) continue;
    seen.told = true;
    texts.push_back(stall_text(who, stall_ns_));
  }
  std::erase_if(seen_, [this](const auto& entry) { return entry.second.look != looks_; });
  const bool aborted = scheduler_.aborted();
  stuck_ = scheduler_.look_for_stuck(now_ns, &texts);
  // A run that has just ended, as a stuck one too, may be left by ranks that stand still.
  const bool ended_now = !stuck_.ok() || (!aborted && scheduler_.aborted());
  if (fatal && !ended_now && !traced()) fatal_ = std::move(stalled);
  OrderedMutexLock lock(&texts_mu_);
  stood_.clear();
  for (const auto& [id, seen] : seen_) {
    if (seen.stood_ns > 0) stood_[id] = {.steps = seen.steps, .since_ns = now_ns - seen.stood_ns};
  }
  texts.insert(texts.end(), std::make_move_iterator(texts_.begin()), std::make_move_iterator(texts_.end()));
  texts_.clear();
  return texts;
}

void StallWatch::end_if_stuck() {
  if (stuck_.ok()) return;
  scheduler_.end_stuck(std::exchange(stuck_, absl::OkStatus()));
}

int64_t StallWatch::stood_ns(const Outstanding& who, int64_t now_ns) const {
  OrderedMutexLock lock(&texts_mu_);
  const auto at = stood_.find(who.id);
  return at != stood_.end() && at->second.steps == who.steps ? now_ns - at->second.since_ns : 0;
}

void StallWatch::tell(std::string text) {
  OrderedMutexLock lock(&texts_mu_);
  texts_.push_back(std::move(text));
}

std::string stall_text(const Outstanding& who, int64_t stall_ns) {
  const std::string time = absl::FormatDuration(absl::Nanoseconds(stall_ns));
  if (!who.attached) {
    return absl::StrCat("rank ", who.info.rank, " has not attached for ", time,
                        " of real time; the ranks that have wait for it");
  }
  const bool is_rank = who.info.kind == TaskKind::kRank;
  const std::string task = is_rank ? "" : absl::StrCat("a ", task_kind_name(who.info.kind), " of ");
  const std::string whose = who.info.rank >= 0 ? absl::StrCat("rank ", who.info.rank) : "no rank";
  return absl::StrCat(task, whose, " has come to no scheduling point for ", time,
                      " of real time: it computes, or it blocks in what is not rankloom's\n  ",
                      last_point_text(who.last));
}

std::atomic<std::string (*)()> running_test{nullptr};

void end_stalled(const std::vector<Stalled>& who, absl::FunctionRef<std::string()> everybody) {
  // The rank that hangs may hold what is asked for below: a lock of the library, of stdio, of GoogleTest. The process
  // ends all the same.
  std::signal(SIGALRM, [](int) { _exit(1); });
  sigset_t alarm_only;
  sigemptyset(&alarm_only);
  sigaddset(&alarm_only, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &alarm_only, nullptr);
  alarm(20);
  // Asked for before the first signal: that may end a sleep() or a read() of the rank, which goes on then. On a thread
  // of its own, so that the stacks are told even where a lock is not to be had.
  auto* const world = new Described;  // the process ends without it
  std::thread([world, everybody] {
    world->text = everybody();
    world->done.store(true, std::memory_order_release);
    world->asker.unpark();
  }).detach();
  const int64_t until_ns = monotonic_ns() + 5'000'000'000;
  while (!world->done.load(std::memory_order_acquire) && monotonic_ns() < until_ns) world->asker.park(until_ns);
  const auto tell = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  std::string_view head = "rankloom: ";
  for (const Stalled& one : who) {
    tell(absl::StrCat(sv(std::exchange(head, "")), stall_text(one.who, one.time_ns), "\n  its stack:"));
    tell(thread_stack_text(one.who.thread, "    "));
  }
  while (!world->done.load(std::memory_order_acquire)) world->asker.park(Deadline::kNever);
  tell(world->text);
  tell("nobody can free it: the process ends (WorldOptions::stall_is_fatal, RANKLOOM_STALL_IS_FATAL=0: it goes on)");
  std::string (*const test)() = running_test.load();
  if (const std::string name = test != nullptr ? test() : ""; !name.empty())
    std::printf("[  FAILED  ] %s\n", name.c_str());
  std::fflush(stdout);
  std::fflush(stderr);
  _exit(1);
}

}  // namespace rankloom::internal

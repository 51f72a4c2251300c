#include "sim/scheduler.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/deadlock_report.h"
#include "sim/deterministic_scheduler.h"
#include "sim/dist_error.h"
#include "sim/free_scheduler.h"
#include "sim/site_text.h"

namespace rankloom {

absl::StatusOr<std::unique_ptr<Scheduler>> Scheduler::make(Options options) {
  if (options.ranks < 1) {
    return make_error(ErrorKind::kInvalidArgument, absl::StrCat("world_size is ", options.ranks, ", want at least 1"));
  }
  const bool fibers = options.engine == EngineKind::kFibers;
  if (options.schedule.kind() == Schedule::Kind::kUnset)
    options.schedule = fibers ? Schedule::fifo() : Schedule::free();
  if (fibers && options.schedule.kind() == Schedule::Kind::kFree) {
    return make_error(ErrorKind::kInvalidArgument,
                      "schedule free() needs threads: fibers share one thread, want fifo(), seeded(seed), ...");
  }
  if (!options.schedule.deterministic()) return std::unique_ptr<Scheduler>(new FreeScheduler(std::move(options)));
  return std::unique_ptr<Scheduler>(new DeterministicScheduler(std::move(options)));
}

Scheduler::~Scheduler() = default;

Deadline Scheduler::deadline_after(absl::Duration timeout, bool weak) const {
  if (timeout == absl::InfiniteDuration()) return {.at_ns = Deadline::kNever, .weak = weak};
  // By the clock of whoever will wait: a thread of no world has only the real one.
  const Task* const task = Task::current();
  return Deadline::after(task == nullptr ? monotonic_ns() : task->scheduler->now_ns(), timeout, weak);
}

bool Scheduler::abort(const absl::Status& cause) {
  if (!set_abort_cause(cause)) return false;
  announce_abort();
  return true;
}

void Scheduler::announce_abort() {
  wake_all();
  if (abort_listener_) abort_listener_(abort_cause());
}

bool Scheduler::set_abort_cause(const absl::Status& cause) {
  absl::MutexLock lock(&cause_mu_);
  if (!cause_.ok()) return false;
  cause_ = cause;
  aborted_.store(true, std::memory_order_release);
  if (record_ != nullptr) record_->stop();
  return true;
}

absl::Status Scheduler::abort_cause() const {
  absl::MutexLock lock(&cause_mu_);
  return cause_;
}

absl::Status Scheduler::sleep(const Site& site, absl::Duration duration) {
  const Deadline deadline = deadline_after(duration, /*weak=*/false);
  do {
    if (aborted()) return abort_cause();
    park(site, deadline);
  } while (now_ns() < deadline.at_ns);
  return aborted() ? abort_cause() : absl::OkStatus();
}

std::string Scheduler::waits_text(const std::vector<Task*>& waiting) const {
  const absl::Status stuck = describe_deadlock(waiting);
  const std::string text(stuck.message().data(), stuck.message().size());
  constexpr std::string_view kHeadline = "no rank can move";
  return text.compare(0, kHeadline.size(), kHeadline) == 0 ? text.substr(kHeadline.size()) : "\n" + text;
}

std::string Scheduler::who_waits(const Site& site) {
  Task* const self = Task::current();
  self->site = site;
  std::string text;
  while_nobody_moves([&](std::vector<Task*> waiting) {
    waiting.insert(std::find_if(waiting.begin(), waiting.end(), [self](const Task* t) { return t->id > self->id; }),
                   self);
    text = waits_text(waiting);
  });
  return text;
}

std::string Scheduler::describe() {
  std::string text;
  while_nobody_moves([&](const std::vector<Task*>& waiting) {
    if (!waiting.empty()) text = waits_text(waiting);
  });
  // Ranks in the same state share a line.
  std::map<std::string, std::vector<int>> others;
  const auto add = [&others](const TaskInfo& info, const char* state, const Site& last) {
    others[absl::StrCat(info.kind == TaskKind::kRank ? "" : " (its helper)", state,
                        "; its last point: ", site_text(last), site_place(last))]
        .push_back(info.rank);
  };
  if (deterministic_) {
    for (const Task* task : live_tasks()) {
      if (task->state == Task::State::kReady) add(task->info, " can run", task->last.site());
    }
  }
  std::vector<Outstanding> outstanding;
  append_outstanding(&outstanding);
  for (const Outstanding& who : outstanding) {
    add(who.info, who.attached ? " runs" : " has not attached", who.last);
  }
  for (auto& [what, ranks] : others) {
    std::sort(ranks.begin(), ranks.end());
    absl::StrAppend(&text, "\n  ", ranks.size() == 1 ? "rank " : "ranks ", rank_ranges(ranks), what);
  }
  return text.empty() ? text : text.substr(1);
}

void Scheduler::break_here(const Site& site) {
  const Task* const task = Task::current();
  const BreakPoint& at = *options_.break_at;
  if (task == nullptr || task->info.rank != at.rank || site.seq != at.seq || site.group != at.group) return;
  if (broke_.exchange(true)) return;
  if (options_.on_break) return options_.on_break();
  std::fprintf(stderr,
               "rankloom: rank %d stops before %s%s; in the debugger, call rankloom_describe() lists the ranks\n",
               at.rank, site_text(site).c_str(), site_place(site).c_str());
  raise(SIGTRAP);
}

void Scheduler::add_outside(int n) {
  if (n > 0 && record_ != nullptr) record_->uncovered("something outside of the run that wakes ranks");
  outside_changed(n);
}

absl::Status Scheduler::describe_deadlock(const std::vector<Task*>& blocked) const {
  if (deadlock_reporter_) return deadlock_reporter_(blocked);
  return make_error(ErrorKind::kDeadlock, deadlock_text(blocked, {}));
}

void AdoptScope::adopt(Scheduler* scheduler, int rank) {
  if (scheduler->options().engine == EngineKind::kFibers) {
    throw_dist_error(
        make_error(ErrorKind::kInvalidArgument,
                   absl::StrCat("rank ", rank,
                                ": called from a thread that is not the ranks', but the ranks are fibers of one "
                                "thread; want engine threads")),
        ErrorOrigin{rank, {}, {}, -1});
  }
  scheduler_ = scheduler;
  if (StepRecord* const record = scheduler->record(); record != nullptr)
    record->uncovered("threads that ranks made by themselves");
  task_ = scheduler->attach({.rank = rank, .kind = TaskKind::kHelper});
}

}  // namespace rankloom

#include "sim/scheduler/scheduler.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "sim/base/crash.h"
#include "sim/base/dist_error.h"
#include "sim/base/ranks_text.h"
#include "sim/base/site_text.h"
#include "sim/base/system.h"
#include "sim/base/text.h"
#include "sim/scheduler/deadlock_report.h"
#include "sim/scheduler/live_worlds.h"

namespace rankloom::internal {

void Scheduler::begin_life() {
  static std::atomic<uint64_t> serials{0};
  serial_ = serials.fetch_add(1, std::memory_order_relaxed) + 1;
  if (const Task* const task = Task::current(); task != nullptr && task->scheduler != nullptr) {
    outer_ = task->scheduler->outer_;
    outer_.push_back(task->scheduler->serial_);
    if (record_ == nullptr) told_by_inner_ = task->scheduler->told_by_inner_;
    if (told_by_inner_ != nullptr)
      inner_ = std::make_unique<const InnerRun>(InnerRun{.serial = serial_, .outer = told_by_inner_});
  }
  if (record_ != nullptr) told_by_inner_ = std::make_shared<std::atomic<StepRecord*>>(record_);
  LiveWorlds::shared().add(this, serial_);
  CrashFacts::rerun.store(
      [](const Task& task) { return task.scheduler != nullptr ? task.scheduler->rerun().c_str() : ""; });
  install_crash_handler();
}

Scheduler::~Scheduler() {
  if (record_ != nullptr) told_by_inner_->store(nullptr);
}

void Scheduler::uncovered(std::string_view what) const {
  if (record_ != nullptr) return record_->uncovered(what);
  if (inner_ != nullptr) inner_->uncovered(what);
}

bool Scheduler::is_inside(uint64_t serial) const {
  return std::find(outer_.begin(), outer_.end(), serial) != outer_.end();
}

void Scheduler::refuse_other_world(const Task& task, const Site& site) {
  refuse({.rank = task.info.rank, .group = site.group, .op = site.what}, ErrorKind::kInvalidArgument, "rank ",
         task.info.rank, " of another world came to ", site_text(site), site_place(site),
         ", want a handle of its own world");
}

uint64_t Scheduler::add_stranger(int rank, int thread) {
  OrderedMutexLock lock(&strangers_mu_);
  strangers_[++stranger_ids_] = {.rank = rank, .thread = thread, .away = false};
  return stranger_ids_;
}

void Scheduler::stranger_away(uint64_t id, int rank, bool away) {
  {
    OrderedMutexLock lock(&strangers_mu_);
    Stranger& stranger = strangers_.at(id);
    stranger.rank = rank;
    stranger.away = away;
  }
  away_.fetch_add(away ? 1 : -1);
  away_changed(away ? 1 : -1);
}

void Scheduler::stranger_ended(uint64_t id) {
  {
    OrderedMutexLock lock(&strangers_mu_);
    strangers_.erase(id);
  }
  away_.fetch_sub(1);
  away_changed(-1);
}

bool Scheduler::strangers_seen() const {
  OrderedMutexLock lock(&strangers_mu_);
  return stranger_ids_ > 0;
}

bool Scheduler::strangers_compute() const {
  OrderedMutexLock lock(&strangers_mu_);
  return std::any_of(strangers_.begin(), strangers_.end(),
                     [](const auto& entry) { return entry.second.away && thread_runs(entry.second.thread); });
}

std::string Scheduler::stuck_headline(std::vector<int> beside, int64_t stuck_ns) const {
  std::vector<int> foreign;
  {
    OrderedMutexLock lock(&strangers_mu_);
    for (const auto& [id, stranger] : strangers_) {
      if (stranger.away) foreign.push_back(stranger.rank);
    }
  }
  const auto of_ranks = [](std::vector<int>* ranks) {
    std::sort(ranks->begin(), ranks->end());
    ranks->erase(std::unique(ranks->begin(), ranks->end()), ranks->end());
    return ranks_text(*ranks);
  };
  std::string who;
  if (!beside.empty()) who = of_ranks(&beside);
  if (!foreign.empty()) absl::StrAppend(&who, who.empty() ? "" : " and ", "foreign threads of ", of_ranks(&foreign));
  const std::string time = absl::FormatDuration(absl::Nanoseconds(stuck_ns));
  return absl::StrCat("stuck for ", time, " of real time: ", who,
                      " could still act, but came to no scheduling point for that long");
}

bool Scheduler::close_if_idle() {
  if (!LiveWorlds::shared().close_if(serial_, [this] { return idle(); })) return false;
  closed_.store(true, std::memory_order_release);
  return true;
}

bool Scheduler::close_when_idle() {
  const Task* const self = Task::current();
  if (!ranks_attached_.load(std::memory_order_acquire)) return false;
  if (closed() || (self != nullptr && self->scheduler == this)) return close_if_idle();
  OrderedMutexLock lock(&closing_mu_);  // one thread at a time is woken by the last task
  if (closed()) return true;
  do {
    if (!await_tasks()) return false;
  } while (!LiveWorlds::shared().close_unpinned(serial_, [this] { return idle(); }));
  closed_.store(true, std::memory_order_release);
  return true;
}

void Scheduler::refuse_attached(const Task& task) {
  if (task.adopted && task.info.kind == TaskKind::kRank)
    fatal(absl::StrCat("a world ended while a thread was attached as rank ", task.info.rank));
}

void Scheduler::close() {
  if (const Task* const task = Task::current(); task != nullptr && task->scheduler == this && !task->adopted)
    fatal(absl::StrCat("a world was ended by its own rank ", task->info.rank));
  end_tasks(LiveWorlds::shared().close(serial_));
  closed_.store(true, std::memory_order_release);
  LiveWorlds::shared().remove(serial_);
  end_watch();
}

Deadline Scheduler::deadline_after(absl::Duration timeout, bool weak) const {
  // By the clock of the thread that will wait: one of no world has only the real clock.
  const Task* const task = Task::current();
  return Deadline::after(task == nullptr ? monotonic_ns() : task->scheduler->now_ns(), timeout, weak);
}

bool Scheduler::abort(const absl::Status& cause) {
  if (!set_abort_cause(cause)) return false;
  wake_all();
  if (abort_listener_) abort_listener_(cause);
  return true;
}

bool Scheduler::rank_failed(int rank, std::exception_ptr failure) const {
  if (!failure_listener_) return false;
  failure_listener_(rank, std::move(failure));
  return true;
}

bool Scheduler::set_abort_cause(const absl::Status& cause) {
  OrderedMutexLock lock(&cause_mu_);
  if (!cause_.ok()) return false;
  cause_ = cause;
  aborted_.store(true, std::memory_order_release);
  if (record_ != nullptr) beside_fibers() ? record_->uncovered(kOwnThreads) : record_->stop();
  return true;
}

absl::Status Scheduler::abort_cause() const {
  OrderedMutexLock lock(&cause_mu_);
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

std::string Scheduler::who_waits(const Site& site) {
  Task* const self = Task::current();
  self->site = site;
  std::string text;
  while_nobody_moves([&](std::vector<Task*> waiting) {
    waiting.insert(std::find_if(waiting.begin(), waiting.end(), [self](const Task* t) { return t->id > self->id; }),
                   self);
    text = wait_lines(waiting);
  });
  return text;
}

namespace {

// "waits in barrier seq 1 for rank 0 [...]", of the one task.
std::string wait_of(Task* task) {
  const std::string line = internal::wait_lines({task}, {});
  const std::string before = absl::StrCat("\n  rank ", task->info.rank, " ");
  return line.substr(before.size(), line.find('\n', 1) - before.size());
}

// Tasks that do not wait. Ranks in the same state share a line.
class Movers {
 public:
  void add(const TaskInfo& info, std::string_view state, const Site& last) {
    Alike& alike = alike_[absl::StrCat(whose_text(info.kind), sv(state), "; ", last_point_text(last))];
    alike.last = last;
    alike.kind = info.kind;
    alike.state = state;
    alike.ranks.push_back(info.rank);
  }
  std::string lines() {
    std::string text;
    for (auto& [what, alike] : alike_) {
      const size_t tasks = alike.ranks.size();
      const bool several = tasks > 1;
      std::sort(alike.ranks.begin(), alike.ranks.end());
      alike.ranks.erase(std::unique(alike.ranks.begin(), alike.ranks.end()), alike.ranks.end());
      std::string whose = whose_text(alike.kind);
      if (several && !whose.empty()) {
        const std::string owners = alike.ranks.size() > 1 ? "their" : absl::StrCat("its ", tasks);
        whose = absl::StrCat(" (", owners, " ", task_kind_name(alike.kind), "s)");
      }
      std::string state = alike.state;
      if (several && state == " runs") state = " run";
      if (several && state == " has not attached") state = " have not attached";
      absl::StrAppend(&text, "\n  ", ranks_text(alike.ranks), whose, state, "; ", last_point_text(alike.last, several));
    }
    return text;
  }

 private:
  struct Alike {
    Site last;
    TaskKind kind = TaskKind::kRank;
    std::string state;
    std::vector<int> ranks;
  };
  std::map<std::string, Alike> alike_;
};

}  // namespace

std::string Scheduler::describe(absl::FunctionRef<bool(int rank)> ended, Described* told) {
  std::set<TaskId> seen;  // a task that goes on meanwhile is met where it was and where it is
  // Whether a task has a line of its own.
  const auto told_here = [&](const TaskInfo& info) {
    if (info.kind != TaskKind::kRank) return true;
    const bool here = !ended(info.rank);
    if (here) told->ranks.insert(info.rank);
    return here;
  };
  std::string text;
  Movers movers;
  const auto tell_waiting = [&](const std::vector<Task*>& waiting) {
    std::vector<Task*> shown;
    for (Task* const task : waiting) {
      if (task->info.rank < 0 || !seen.insert(task->id).second) continue;
      if (told_here(task->info)) {
        shown.push_back(task);
      } else {
        told->ended[task->info.rank] = wait_of(task);
      }
    }
    if (!shown.empty()) text += wait_lines(shown);
  };
  const auto add = [&](TaskId id, const TaskInfo& info, std::string_view state, const Site& last) {
    if (info.rank < 0 || !seen.insert(id).second) return;  // the world's own task, of no rank
    if (told_here(info)) return movers.add(info, state, last);
    told->ended[info.rank] = absl::StrCat(sv(state.substr(1)), "; ", last_point_text(last));
  };
  const auto all_told = [&] {
    for (int rank = 0; rank < options_.world_size; ++rank) {
      if (!told->ranks.contains(rank) && !ended(rank)) return false;
    }
    return true;
  };
  // A task may move first and wait then, between two looks: the next ones find it, unless it has ended.
  constexpr int kLooks = 8;
  for (int look = 0; look == 0 || (look < kLooks && !all_told()); ++look) {
    while_nobody_moves(tell_waiting);
    std::vector<Outstanding> outstanding;
    append_outstanding(&outstanding);
    for (const Outstanding& who : outstanding)
      add(who.id, who.info, who.attached ? " runs" : " has not attached", who.last);
    for (const Task* task : ready_tasks()) add(task->id, task->info, " can run", task->last.site());
  }
  text += movers.lines();
  return text.empty() ? text : text.substr(1);
}

void Scheduler::break_here(const Site& site) {
  const Task* const task = Task::current();
  const Schedule::BreakPoint& at = *options_.break_at;
  if (task == nullptr || task->info.rank != at.rank || site.seq < 0 || site.seq != at.seq || site.group != at.group)
    return;
  if (broke_.exchange(true)) return;
  if (options_.on_break) return options_.on_break();
  std::fprintf(stderr,
               "rankloom: rank %d stops before %s%s; in the debugger, call rankloom_describe() lists the ranks\n",
               at.rank, site_text(site).c_str(), site_place(site).c_str());
  raise(SIGTRAP);
}

void Scheduler::add_outside(int n, bool in_real_time) {
  if (in_real_time) outside_in_real_time_.fetch_add(n, std::memory_order_acq_rel);
  if (n > 0) uncovered("something outside of the run that wakes ranks");
  outside_changed(n);
}

std::string Scheduler::wait_lines(const std::vector<Task*>& waiting) const {
  return wait_reporter_.lines ? wait_reporter_.lines(waiting) : internal::wait_lines(waiting, {});
}

absl::Status Scheduler::deadlock_error(const std::vector<Task*>& blocked) const {
  if (wait_reporter_.end) return wait_reporter_.end(blocked, ErrorKind::kDeadlock, kNoRankCanMove);
  return make_error(ErrorKind::kDeadlock, kNoRankCanMove, wait_lines(blocked));
}

absl::Status Scheduler::stuck_error(const std::vector<Task*>& blocked, const std::string& headline) const {
  if (wait_reporter_.end) return wait_reporter_.end(blocked, ErrorKind::kTimeout, headline);
  return make_error(ErrorKind::kTimeout, headline, wait_lines(blocked));
}

void Scheduler::end_stuck(absl::Status cause) {
  const std::string more = wait_reporter_.whereabouts ? wait_reporter_.whereabouts() : "";
  if (!more.empty()) cause = make_error(error_kind(cause), message_of(cause), "\n", more);
  abort(cause);
}

}  // namespace rankloom::internal

#include "world/world_state.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iterator>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fake_store/fault_store.h"
#include "fake_store/store_state.h"
#include "rankloom/error.h"
#include "rankloom/random.h"
#include "rankloom/store.h"
#include "sim/base/dist_error.h"
#include "sim/base/forked_run.h"
#include "sim/base/ranks_text.h"
#include "sim/base/site_text.h"
#include "sim/base/system.h"
#include "sim/base/text.h"
#include "sim/faults/injected_hang.h"
#include "sim/scheduler/acts_for_fibers.h"
#include "sim/scheduler/deadlock_report.h"
#include "sim/scheduler/stall_watch.h"
#include "world/end_hooks.h"
#include "world/group_access.h"
#include "world/logged_store.h"
#include "world/run_data.h"
#include "world/run_file.h"
#include "world/run_options.h"

namespace rankloom::internal {
namespace {

uint64_t seed_of(const WorldOptions& options, int rank) {
  uint64_t state = options.seed.value_or(options.schedule.recorded().seed());
  const uint64_t base = Prng::splitmix64(state);
  state = base ^ static_cast<uint64_t>(rank);
  return Prng::splitmix64(state);
}

}  // namespace

RankState::RankState(WorldState* world, int rank)
    : RankContext(&world->face(), rank),
      state_(*world),
      log_(world->keeps_log() ? std::make_unique<OperationLog>(&world->scheduler(), world->recorded_calls()) : nullptr),
      recorder_(&world->scheduler(), world->recorded_calls()),
      rng_(seed_of(world->options(), rank)),
      caught_mu_(&world->scheduler(), LockLevel::kCaught),
      open_outputs_(&world->scheduler()) {
  if (log_ != nullptr) recorder_.tell(log_.get());
}

void* RankState::local(const void* key, std::shared_ptr<void> (*make)()) {
  const auto known = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(caught_mu_) {
    const auto at = locals_.find(key);
    return at != locals_.end() ? at->second : nullptr;
  };
  {
    RankMutexLock lock(&caught_mu_);
    if (void* const object = known(); object != nullptr) return object;
  }
  std::shared_ptr<void> made = make();  // may ask for others; goes without the lock if a helper was first
  RankMutexLock lock(&caught_mu_);
  if (void* const object = known(); object != nullptr) return object;
  locals_.emplace(key, made.get());
  return locals_made_.emplace_back(key, std::move(made)).second.get();
}

bool RankState::release_locals() {
  for (bool any = false;; any = true) {
    std::shared_ptr<void> last;
    RankMutexLock lock(&caught_mu_);
    if (locals_made_.empty()) return any;
    locals_.erase(locals_made_.back().first);
    last = std::move(locals_made_.back().second);
    locals_made_.pop_back();
  }
}

namespace {

std::string calls_text(std::vector<std::string> calls) {
  constexpr size_t kShown = 4;
  const size_t more = calls.size() > kShown ? calls.size() - kShown : 0;
  calls.resize(calls.size() - more);
  return absl::StrCat(absl::StrJoin(calls, ", "), more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

}  // namespace

std::string RankState::open_calls_text() const { return state_.poison() ? calls_text(open_outputs_.texts()) : ""; }

std::string RankState::open_at_throw_text() {
  if (!state_.poison()) return "";
  std::vector<std::string> calls = open_outputs_.texts();
  const int64_t last = last_call();
  RankMutexLock lock(&caught_mu_);
  if (lost_after_ == last) calls.insert(calls.end(), lost_.begin(), lost_.end());
  return calls_text(std::move(calls));
}

std::vector<std::string> RankState::groups_called() const {
  RankMutexLock lock(&caught_mu_);
  return groups_called_;
}

void RankState::calls_group(const std::string& name) {
  RankMutexLock lock(&caught_mu_);
  groups_called_.push_back(name);
}

void RankState::lost_by_exception(std::string call) {
  if (!state_.poison()) return;
  const int64_t last = last_call();
  RankMutexLock lock(&caught_mu_);
  if (lost_after_ != last) lost_.clear();  // of an exception that the program has caught
  lost_after_ = last;
  lost_.push_back(std::move(call));
}

int64_t RankState::last_call() const {
  const FlightEntries entries = recorder_.entries();
  return entries.empty() ? -1 : entries[entries.size() - 1].record_id;
}

uint64_t RankState::rng_seed() const { return seed_of(state_.options(), rank()); }

bool RankState::unwinding() const {
  if (std::uncaught_exceptions() == 0) return false;
  const Task* const task = Task::current();
  if (task == nullptr || task->user != this || task->info.kind == TaskKind::kStream) return false;
  if (task->info.kind == TaskKind::kCompletion) return false;  // the exception is that of the stack it runs on
  return !task->adopted || task->info.kind == TaskKind::kRank;
}

void RankState::when_caught(std::function<void()> told) {
  RankMutexLock lock(&caught_mu_);
  caught_.push_back({Task::current_serial(), std::move(told)});
}

void RankState::task_returned() {
  std::vector<Caught> mine;
  {
    RankMutexLock lock(&caught_mu_);
    if (caught_.empty()) [[likely]]
      return;
    const auto others = std::stable_partition(caught_.begin(), caught_.end(),
                                              [](const Caught& c) { return c.task == Task::current_serial(); });
    mine.assign(std::make_move_iterator(caught_.begin()), std::make_move_iterator(others));
    caught_.erase(caught_.begin(), others);
  }
  for (const Caught& caught : mine) caught.told();
}

bool WorldState::rooted_each(const Site& site) {
  int each = rooted_each_.load(std::memory_order_relaxed);
  if (each < 0) {
    each = scheduler_->choose(ChoiceKind::kRooted, 2, site);
    rooted_each_.store(each, std::memory_order_relaxed);
  }
  return each != 0;
}

RankState* RankState::current() {
  const Task* const task = Task::current();
  return task != nullptr ? static_cast<RankState*>(task->user) : nullptr;
}

namespace {

// Of a run whose process ends because a rank hangs: the line that names its file; empty if the environment asks for
// none. `now`: what the world is like.
std::string hung_run_file(RunReport report, const std::string& now) {
  report.cause = make_error(ErrorKind::kAborted, "a rank hangs in its own code, and the process ended for it\n", now);
  std::string (*const running)() = running_test.load();
  const std::string test = running != nullptr ? running() : "";
  write_failed_run(absl::StrCat(program_name(), ".", test.empty() ? "hang" : test), &report);
  return report.run_file.empty() ? "" : absl::StrCat("\n  ", report.run_file);
}

std::unique_ptr<Scheduler> make_scheduler(WorldOptions run, std::function<void(const std::string&)> on_stall,
                                          const RunHooks& hooks, CodeSite code) {
  run.on_stall = std::move(on_stall);
  absl::StatusOr<std::unique_ptr<Scheduler>> made = Scheduler::make(std::move(run), hooks);
  if (!made.ok()) {
    throw_dist_error(make_error(error_kind(made.status()), located(message_of(made.status()), code)),
                     {.rank = -1, .group = {}, .op = "run_world"});
  }
  return *std::move(made);
}

// Null: nothing goes wrong by plan. The world has its scheduler.
std::unique_ptr<FaultInjector> make_faults(WorldState* world, const WorldOptions& options) {
  if (options.faults.empty()) return nullptr;
  const auto crash = [world](int rank, const std::string& why) {
    world->rank_failed(rank, std::make_exception_ptr(DistError(make_error(ErrorKind::kRankFailed, why),
                                                               {.rank = rank, .group = {}, .op = {}})));
  };
  return std::make_unique<FaultInjector>(options.faults, &world->scheduler(), options.world_size, crash);
}

}  // namespace

WorldState::WorldState(World* face, WorldOptions&& options, const RunHooks& hooks, CodeSite code)
    : face_(*face),
      options_(std::move(options)),
      poison_(options_.poison.value_or(options_.schedule.explores())),
      late_completion_(options_.late_completion.value_or(options_.schedule.explores())),
      // A search makes a run of its own for the file of what it found.
      keeps_log_(options_.keep_run || (hooks.record == nullptr && reports_are_wanted())),
      scheduler_(make_scheduler(
          options_, [this](const std::string& text) { stalled(text); }, hooks, code)),
      faults_(make_faults(this, options_)),
      store_(std::make_unique<HashStore>(scheduler_.get())),
      keys_(static_cast<HashStore*>(store_.get())),
      start_ns_(scheduler_->now_ns()),
      shared_mu_(scheduler_.get(), LockLevel::kShared),
      mu_(scheduler_.get(), LockLevel::kWorld),
      outcomes_(static_cast<size_t>(options_.world_size)) {
  {
    Group all(0, "0", options_.world_size);
    GroupAccess::enter_world(all, 0);
    world_group_ = make_kept<const Group>(std::move(all));
    ObservedMutexLock lock(&mu_);
    lock.apart();  // before the run
    groups_[group_ids_++] = {.group = world_group_};
  }
  if (StepRecord* const record = scheduler_->record(); record != nullptr) {
    object_ = record->new_object();
    if (!poison_) record->uncovered("poison is off: a read of an output before wait() may not show");
    if (!late_completion_) record->uncovered("late_completion is off: calls complete at once, by whoever comes last");
  }
  if (RankState* const outer = RankState::current(); outer != nullptr && !scheduler_->deterministic()) {
    outer->world().scheduler().uncovered("a world within a rank, in the free gear");
  }
  store_ = wrapped(std::move(store_));
  contexts_.reserve(outcomes_.size());
  for (int rank = 0; rank < options_.world_size; ++rank) contexts_.push_back(std::make_unique<RankState>(this, rank));
  scheduler_->set_user([this](int rank) { return static_cast<void*>(contexts_[static_cast<size_t>(rank)].get()); });
  scheduler_->set_abort_listener([this](const absl::Status& cause) {
    std::vector<std::shared_ptr<const AbortListener>> listeners;
    {
      OrderedMutexLock lock(&listeners_mu_);
      for (const auto& [id, listener] : listeners_) listeners.push_back(listener);
    }
    for (const auto& listener : listeners) run_hook("a listener of on_abort()", [&] { (*listener)(cause); });
  });
  scheduler_->set_failure_listener([this](int rank, std::exception_ptr failure) { callback_failed(rank, failure); });
  scheduler_->set_describer([this] {
    const std::string now = describe();
    return absl::StrCat(now, rerun_line(), all_ended() ? "" : hung_run_file(report(), now));
  });
  scheduler_->set_rerun(rerun_command(options_));
  scheduler_->set_wait_reporter(wait_reporter());
}

std::unique_ptr<Store> WorldState::wrapped(std::unique_ptr<Store> store) {
  if (faults_ != nullptr) store = std::make_unique<FaultStore>(std::move(store), faults_.get());
  if (keeps_log_) {
    store = std::make_unique<LoggedStore>(std::move(store), [this]() -> OperationLog* {
      RankState* const rank = RankState::current();
      return rank != nullptr && &rank->world() == this ? rank->log() : nullptr;
    });
  }
  StoreAccess::state(*store).set_timeout(options_.timeout);
  return store;
}

void WorldState::ranks_elsewhere(int own, std::unique_ptr<Store> store, GroupBackend* backend) {
  scheduler_->ranks_elsewhere(own);
  scheduler_->set_rerun("");  // a launcher started the program, and the environment says nothing to it
  store_ = wrapped(std::move(store));
  keys_ = nullptr;
  group_backend_ = backend;
}

void WorldState::ended_elsewhere(int rank, RunReport::Outcome outcome) {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // of no explored run
  const bool failed = outcome.state == RunReport::Outcome::State::kFailed;
  if (failed && first_failed_ < 0) first_failed_ = rank;
  RunReport::Outcome& known = outcomes_[static_cast<size_t>(rank)];
  // The rank of this process may have failed for what that one did, which may have returned.
  if (failed || known.state != RunReport::Outcome::State::kFailed) known = std::move(outcome);
}

WorldState::~WorldState() { end(); }

void WorldState::end() {
  if (!after_.has_value()) after_.emplace(options_.stall);
  scheduler_->close();
  run_end_hooks();
  release_what_users_left();
}

void WorldState::release_what_users_left() {
  // A destructor may leave another object; one that always does would keep the world from its end.
  constexpr int kMostRounds = 100;
  for (int round = 0;; ++round) {
    if (round == kMostRounds) {
      fatal(absl::StrCat(
          "the end of a world does not come: objects that it holds (locals, listeners of on_abort(), hooks "
          "of at_end(), watches) left others in their destructors ",
          kMostRounds, " times, one after the other"));
    }
    decltype(listeners_) listeners;
    decltype(shared_) shared;
    decltype(end_hooks_) hooks;
    std::vector<std::exception_ptr> exceptions;
    const bool watches = keys_ != nullptr && StoreAccess::release_watches(*keys_);
    {
      OrderedMutexLock lock(&listeners_mu_);
      listeners.swap(listeners_);
    }
    {
      ObservedMutexLock lock(&shared_mu_);
      lock.apart();  // after all steps
      shared.swap(shared_);
    }
    {
      ObservedMutexLock lock(&mu_);
      lock.apart();  // after all steps
      hooks.swap(end_hooks_);
      for (RunReport::Outcome& outcome : outcomes_) exceptions.push_back(std::exchange(outcome.exception, nullptr));
    }
    std::erase(exceptions, nullptr);
    const bool none = listeners.empty() && shared.empty() && hooks.empty() && exceptions.empty() && !watches;
    // The last that was made goes first, as elsewhere in C++: its destructor may use the others.
    if (!shared.empty()) {
      std::vector<Shared> made;
      for (auto& [key, object] : shared) made.push_back(std::move(object));
      std::sort(made.begin(), made.end(), [](const Shared& a, const Shared& b) { return a.number < b.number; });
      while (!made.empty()) made.pop_back();
    }
    bool locals = false;
    for (const auto& rank : contexts_) locals = (rank != nullptr && rank->release_locals()) || locals;
    if (none && !locals) return;
  }
}

RunReport WorldState::run(absl::FunctionRef<void(RankContext&)> program, CodeSite code) {
  run_all(program, code);
  return report();
}

RunReport WorldState::run_once(absl::FunctionRef<void(RankContext&)> program, CodeSite code) {
  run_all(program, code);
  return report(/*last=*/true);
}

void WorldState::run_all(absl::FunctionRef<void(RankContext&)> program, CodeSite code) {
  bool attached = false;
  bool ran = false;
  {
    ObservedMutexLock lock(&mu_);
    lock.apart();  // before the run
    attached = !attached_.empty();
    if (!attached) ran = std::exchange(ran_, true);
  }
  if (attached || ran) {
    refuse({.rank = -1, .group = {}, .op = "run_world"}, ErrorKind::kInvalidArgument,
           attached ? "run: ranks of this world have attached, want run() or attach(), not both"
                    : "run: this world has run before, want another world for another run",
           site_place(Site{.code = code}));
  }
  watch_forks();
  scheduler_->run([&](int rank, Task& task) { run_rank(rank, task, program); });
}

RankState& WorldState::attach(int rank, CodeSite code) {
  watch_forks();
  const auto refuse_with = [rank, code](const auto&... text) {
    refuse({.rank = rank, .group = {}, .op = "attach"}, ErrorKind::kInvalidArgument, "attach: ", text...,
           site_place(Site{.code = code}));
  };
  if (rank < 0 || rank >= size()) refuse_with("rank is ", rank, ", want 0 <= rank < world_size = ", size());
  if (options_.engine == EngineKind::kFibers) refuse_with("the ranks are fibers of one thread, want engine threads");
  if (Task::current() != nullptr)
    refuse_with("this thread is rank ", Task::current()->info.rank, " already, want a thread without a rank");
  {
    ObservedMutexLock lock(&mu_);
    if (ran_) refuse_with("the world has run, want another world");
    RunReport::Outcome& outcome = outcomes_[static_cast<size_t>(rank)];
    if (outcome.exception != nullptr || outcome.state != RunReport::Outcome::State::kRunning ||
        (!attached_.empty() && attached_[static_cast<size_t>(rank)])) {
      refuse_with("rank ", rank, " has attached already");
    }
    attached_.resize(outcomes_.size());
    attached_[static_cast<size_t>(rank)] = true;
  }
  scheduler_->attach({.rank = rank, .kind = TaskKind::kRank});
  return context(rank);
}

void WorldState::detach(std::exception_ptr failure, CodeSite code) {
  Task* const task = Task::current();
  if (task == nullptr || task->scheduler != scheduler_.get()) return;
  if (!task->adopted || task->info.kind != TaskKind::kRank) {
    refuse({.rank = task->info.rank, .group = {}, .op = "detach"}, ErrorKind::kInvalidArgument,
           "detach: this thread of rank ", task->info.rank, " did not attach, want attach() before detach()",
           site_place(Site{.code = code}));
  }
  if (failure != nullptr) {
    rank_failed(task->info.rank, failure);
  } else {
    if (task->info.rank >= 0) context(task->info.rank).task_returned();
    rank_returned(task->info.rank);
  }
  scheduler_->detach(task);
}

void WorldState::spawn_helper(absl::AnyInvocable<void()> body, CodeSite code) {
  Task* const self = Task::current();
  if (self == nullptr || self->scheduler != scheduler_.get()) {
    refuse({.rank = -1, .group = {}, .op = "spawn_helper"}, ErrorKind::kInvalidArgument,
           "spawn_helper: called on a thread that belongs to no rank of this world, want a rank's or "
           "a helper's",
           site_place(Site{.code = code}));
  }
  scheduler_->spawn(
      {.rank = self->info.rank, .kind = TaskKind::kHelper},
      [this, rank = self->info.rank, body = std::move(body)]() mutable { run_helper(rank, [&body] { body(); }); });
}

void WorldState::abort(std::string_view reason) { scheduler_->abort(make_error(ErrorKind::kAborted, reason)); }

int64_t WorldState::on_abort(AbortListener listener, bool of_user) {
  auto kept = std::make_shared<const AbortListener>(std::move(listener));
  OrderedMutexLock lock(&listeners_mu_);
  const int64_t id = of_user ? ++listener_ids_ : ++own_listener_ids_;
  listeners_.emplace(id, std::move(kept));
  return id;
}

void WorldState::forget_on_abort(int64_t listener) {
  std::shared_ptr<const AbortListener> forgotten;  // goes without the lock: destructors may call this world
  OrderedMutexLock lock(&listeners_mu_);
  if (auto node = listeners_.extract(listener); !node.empty()) forgotten = std::move(node.mapped());
}

void WorldState::rank_returned(int rank) {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // the end of a rank is a step of its own, which ended_text() conflicts with
  RunReport::Outcome& outcome = outcomes_[static_cast<size_t>(rank)];
  if (outcome.state == RunReport::Outcome::State::kRunning) outcome.state = RunReport::Outcome::State::kReturned;
}

namespace {

// The object that a task is making for its world; the key lasts as long. Without a destructor: the thread_locals of a
// thread that ends may still ask.
struct Making {
  const WorldState* world = nullptr;
  const Task* task = nullptr;
  std::string_view key;
};
static_assert(std::is_trivially_destructible_v<Making>);
thread_local Making making;

[[noreturn]] void refuse_shared(std::string_view key, std::string_view text, CodeSite code) {
  const int rank = Task::current() != nullptr ? Task::current()->info.rank : -1;
  refuse({.rank = rank, .group = {}, .op = "WorldLocal"}, ErrorKind::kInvalidArgument, "rank ", rank, ", WorldLocal \"",
         sv(key), "\": ", sv(text), site_place(Site{.code = code}));
}

}  // namespace

std::shared_ptr<void> WorldState::shared_object(std::string_view key, const void* type,
                                                absl::FunctionRef<std::shared_ptr<void>()> make, Maker maker,
                                                CodeSite code) {
  // The task holds the lock already, which it would wait for, and its own place in the table may move.
  if (making.world == this && making.task == Task::current())
    refuse_shared(key, absl::StrCat("asked for while \"", sv(making.key), "\" is made, want it made before"), code);
  // Which rank makes it may depend on what others do between this rank's last point and here.
  if (maker == Maker::kMatters && WorldRef(scheduler_.get()).has(Task::current()) && !has_shared_object(key))
    scheduler_->point(Site{.what = "WorldLocal get", .code = code, .detail = key});
  ObservedMutexLock lock(&shared_mu_);
  const auto at = shared_.find(sv(key));
  const bool found = at != shared_.end() && at->second.object != nullptr;
  StepRecord* const record = scheduler_->record();
  if (maker == Maker::kSame) {
    lock.apart();
  } else if (record != nullptr) {
    record->access(named_object(object_, key), found ? Access::kRead : Access::kWrite);
  }
  if (found) {
    if (at->second.type != type)
      refuse_shared(key, "it is an object of another type in this world, want another name", code);
    return at->second.object;
  }
  if (record != nullptr) {
    // Objects of one name, of which the earlier were forgotten or not made to the end, are different ones.
    record->enter_name(numbered_object(named_object(object_, key), shared_made_[sv(key)]++));
    // Such objects go in the reverse of their making.
    if (maker != Maker::kSame) record->access(named_object(0, "order of WorldLocals"), Access::kWrite);
  }
  making = {.world = this, .task = Task::current(), .key = key};
  const absl::Cleanup made = [record] {
    making = {};
    if (record != nullptr) record->leave_name();
  };
  std::shared_ptr<void> object = make();
  shared_[sv(key)] = {.object = object, .type = type, .number = ++shared_number_};
  return object;
}

void WorldState::record_group() {
  // The rank that comes first has the lower id.
  if (StepRecord* const record = scheduler_->record(); record != nullptr) record->access(object_, Access::kWrite);
}

void WorldState::asks_for_group(const Group& group, int rank) {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // asks() tells
  asks(group, rank);
}

[[gnu::noinline]] void WorldState::asks(const Group& group, int rank) {
  StepRecord* const record = scheduler_->record();
  if (record != nullptr && group_order_.asks(rank, group.id())) record->access(object_, Access::kRead);
}

void WorldState::made_together(const Group& group, const Group& parent) {
  if (scheduler_->record() == nullptr) return;
  std::vector<int> members(static_cast<size_t>(parent.size()));
  for (int i = 0; i < parent.size(); ++i) members[static_cast<size_t>(i)] = parent.global_rank(i);
  ObservedMutexLock lock(&mu_);
  lock.apart();  // the group is the same, whoever comes last
  group_order_.made_by(members, group.id());
}

void WorldState::gets_group(const Group& group, int rank) {
  if (!keeps_all_groups()) return;
  ObservedMutexLock lock(&mu_);
  lock.apart();  // the rank's own order, which is compared after the run
  context(rank).groups_made_.push_back(group.name());
}

std::vector<std::string> WorldState::groups_made(int rank) {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // after the run
  return context(rank).groups_made_;
}

bool WorldState::has_shared_object(std::string_view key) {
  ObservedMutexLock lock(&shared_mu_);
  const auto at = shared_.find(sv(key));
  const bool found = at != shared_.end() && at->second.object != nullptr;
  // Whether a scheduling point follows depends on it.
  if (StepRecord* const record = scheduler_->record(); record != nullptr)
    record->access(named_object(object_, key), Access::kRead);
  return found;
}

void WorldState::unshare(std::string_view key) {
  Shared forgotten;  // goes without the lock: destructors may come to scheduling points
  ObservedMutexLock lock(&shared_mu_);
  if (StepRecord* const record = scheduler_->record(); record != nullptr)
    record->access(named_object(object_, key), Access::kWrite);
  if (const auto at = shared_.find(sv(key)); at != shared_.end()) {
    forgotten = std::move(at->second);
    shared_.erase(at);
  }
}

std::shared_ptr<const Group> WorldState::next_world_group(RankState& rank, std::string_view name) {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // the first rank to come makes it; what differs then is told below
  const auto n = static_cast<size_t>(rank.world_groups_++);  // with the lock: the rank's helpers ask, too
  const size_t at = n - world_groups_before_;
  StepRecord* const record = scheduler_->record();
  const std::string wanted = name.empty() ? absl::StrCat(n) : std::string(name);
  if (at == world_groups_.size()) {
    if (record != nullptr) record->access(named_object(object_, absl::StrCat("name of group ", n)), Access::kWrite);
    if (n == 0 && name.empty()) {
      world_groups_.push_back({.group = world_group_});
    } else {
      record_group();
      world_groups_.push_back({.group = keep_group(Group(group_ids_, wanted, size()), numbered_object(object_, n))});
    }
  } else if (record != nullptr && world_groups_[at].group->name() != wanted) {
    // The rank that comes first names the group.
    record->access(named_object(object_, absl::StrCat("name of group ", n)), Access::kRead);
  }
  std::shared_ptr<const Group> group = world_groups_[at].group;
  if (group != world_group_) asks(*group, rank.rank());
  if (keeps_all_groups_ && group != world_group_) rank.groups_made_.push_back(group->name());
  ++world_groups_[at].ranks;
  for (; !world_groups_.empty() && world_groups_.front().ranks == size(); ++world_groups_before_)
    world_groups_.pop_front();
  return group;
}

std::shared_ptr<const Group> WorldState::next_group_of(RankState& rank, std::string name, std::vector<int> ranks) {
  const auto members = static_cast<int>(ranks.size());
  const std::string of = absl::StrCat(absl::StrJoin(ranks, ","), " ", name);
  ObservedMutexLock lock(&mu_);
  lock.apart();  // as in next_world_group()
  const std::string key = absl::StrCat(rank.groups_of_[of]++, " ", of);
  Asked& asked = groups_asked_[key];
  if (asked.group == nullptr) {
    record_group();
    asked.group =
        keep_group(Group(group_ids_, std::move(name), std::move(ranks), "undefined"), named_object(object_, key));
  }
  std::shared_ptr<const Group> group = asked.group;
  asks(*group, rank.rank());
  if (keeps_all_groups_) rank.groups_made_.push_back(group->name());
  if (++asked.ranks == members) groups_asked_.erase(key);
  return group;
}

std::shared_ptr<const Group> WorldState::keep_group(Group group, uint64_t object) {
  GroupAccess::enter_world(group, object);
  auto kept = make_kept<const Group>(std::move(group));
  groups_[group_ids_++] = {.group = kept};
  return kept;
}

void WorldState::leave_group(const Group& group, int rank) { count_left(group, group.group_rank(rank), 1); }
void WorldState::leave_group_absent(const Group& group, int members) { count_left(group, -1, members); }

void WorldState::count_left(const Group& group, int rank, int members) {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // groups() tells
  const auto at = groups_.find(group.id());
  if (at == groups_.end() || at->second.group.get() != &group || at->second.group == world_group_) return;
  Joined& joined = at->second;
  if (rank >= 0) {
    joined.gone.resize(static_cast<size_t>(group.size()));
    if (joined.gone[static_cast<size_t>(rank)]) return;
    joined.gone[static_cast<size_t>(rank)] = true;
    GroupAccess::set_any_left(group);
  }
  joined.left += members;
  const bool kept = keeps_all_groups_ || scheduler_->record() != nullptr;
  if (joined.left >= group.size() && !kept) groups_.erase(at);
}

void WorldState::keep_all_groups() {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // before the run
  keeps_all_groups_ = true;
}

std::shared_ptr<const Group> WorldState::add_group(std::string name, std::vector<int> ranks, std::string description,
                                                   uint64_t object) {
  ObservedMutexLock lock(&mu_);
  record_group();
  return keep_group(Group(group_ids_, std::move(name), std::move(ranks), std::move(description)), object);
}

std::shared_ptr<const Group> WorldState::add_group(std::string name, int first, int stride, int size,
                                                   std::string description, uint64_t object) {
  ObservedMutexLock lock(&mu_);
  record_group();
  return keep_group(Group(group_ids_, std::move(name), first, stride, size, std::move(description)), object);
}

std::vector<std::shared_ptr<const Group>> WorldState::groups() const {
  ObservedMutexLock lock(&mu_);
  StepRecord* const record = Task::current() != nullptr ? scheduler_->record() : nullptr;
  if (record != nullptr) {
    record->access(object_, Access::kRead);
    record->uncovered("World::groups(), which looks at all groups");
  }
  std::vector<std::shared_ptr<const Group>> all;
  all.reserve(groups_.size());
  for (const auto& [id, joined] : groups_) all.push_back(joined.group);
  return all;
}

void WorldState::note(NoteKind kind, std::string text) {
  absl::AnyInvocable<void()> add = [this, kind, text = std::move(text)]() mutable {
    ObservedMutexLock lock(&mu_);
    lock.apart();  // for the report
    notes_.push_back({.kind = kind, .text = std::move(text)});
  };
  run_for_fibers(WorldRef(scheduler_.get()), /*rank=*/-1, "note", std::move(add));
}

namespace {

// The errors of this text, in explored runs.
uint64_t error_object(const absl::Status& error) { return named_object(0, absl::StrCat("error ", error.message())); }

}  // namespace

void WorldState::not_retrieved(const absl::Status& error) {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // for the report, but for whether an error of this text was retrieved before
  if (StepRecord* const record = Task::current() != nullptr ? scheduler_->record() : nullptr; record != nullptr) {
    record->access(error_object(error), Access::kWrite);
    for (const absl::Status& one : explored_retrieved_) {
      if (absl::StrContains(one.message(), error.message())) record->access(error_object(one), Access::kWrite);
    }
  }
  unretrieved_.push_back(error);
}

void WorldState::retrieved(const absl::Status& error) {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // as above
  if (StepRecord* const record = Task::current() != nullptr ? scheduler_->record() : nullptr; record != nullptr) {
    record->access(error_object(error), Access::kRead);
    for (const absl::Status& one : unretrieved_) {
      if (absl::StrContains(error.message(), one.message())) record->access(error_object(one), Access::kRead);
    }
    explored_retrieved_.push_back(error);
  }
  // Later calls of the group fail with a text that has this one.
  std::erase_if(unretrieved_,
                [&error](const absl::Status& one) { return absl::StrContains(error.message(), one.message()); });
}

[[gnu::noinline]] void retrieved_error(const WorldRef& world, int rank, const absl::Status& error) {
  if (error.ok() || !world.known()) return;
  const WorldPin alive(world);
  if (!alive) return;
  auto* const state = static_cast<RankState*>(world.scheduler()->user_of(rank));
  if (state == nullptr) return;
  run_for_fibers(world, rank, "error", [state, error] { state->world().retrieved(error); });
}

std::vector<std::string> WorldState::unretrieved_notes() const {
  std::vector<std::string> notes;
  for (const absl::Status& error : unretrieved_) {
    notes.push_back(absl::StrCat("an error that no rank asked for: ", sv(error_kind_name(error_kind(error))), ": ",
                                 message_of(error)));
  }
  return notes;
}

std::vector<WorldState::Note> WorldState::failing_notes() const {
  const ActsForFibers alone(*scheduler_);
  ObservedMutexLock lock(&mu_);
  lock.apart();  // after all steps
  std::vector<Note> failing;
  std::copy_if(notes_.begin(), notes_.end(), std::back_inserter(failing),
               [](const Note& note) { return note.kind != NoteKind::kWarning; });
  for (std::string& text : unretrieved_notes())
    failing.push_back({.kind = NoteKind::kLeftover, .text = std::move(text)});
  return failing;
}

std::vector<std::string> WorldState::missed_faults() const {
  return faults_ != nullptr ? faults_->missed() : std::vector<std::string>();
}

void WorldState::warn(const std::string& text) {
  note(NoteKind::kWarning, text);
  if (options_.on_warning) {
    options_.on_warning(text);
  } else {
    std::fprintf(stderr, "rankloom: %s\n", text.c_str());
  }
}

int64_t WorldState::at_end(int64_t place, std::function<void()> hook) {
  const ChangeAtNoPoint change(WorldRef(scheduler_.get()).has(Task::current()) ? scheduler_.get() : nullptr);
  ObservedMutexLock lock(&mu_);
  lock.apart();  // the library's own have their places, and numbers of their own; World::at_end() tells of others
  const int64_t id = place == kUsers ? ++hook_ids_ : ++own_hook_ids_;
  end_hooks_.emplace(id, EndHook{.run = std::move(hook), .place = place});
  return id;
}

void WorldState::forget_at_end(int64_t hook) {
  EndHook forgotten;  // goes without the lock: destructors may call this world
  const ChangeAtNoPoint change(WorldRef(scheduler_.get()).has(Task::current()) ? scheduler_.get() : nullptr);
  ObservedMutexLock lock(&mu_);
  lock.apart();  // the order of the others stays
  if (auto node = end_hooks_.extract(hook); !node.empty()) forgotten = std::move(node.mapped());
}

bool WorldState::all_ended() const {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // for the report
  return std::none_of(outcomes_.begin(), outcomes_.end(), [](const RunReport::Outcome& outcome) {
    return outcome.state == RunReport::Outcome::State::kRunning;
  });
}

void WorldState::run_end_hooks() {
  const AfterRanks after(options_.stall);
  // A hook may leave another one, which runs in the next round; one that always does would keep the world from its end.
  constexpr int kMostRounds = 100;
  for (int round = 0;; ++round) {
    // The library's own go first, in the order of their places, whichever rank was first to leave one.
    std::vector<std::pair<int64_t, int64_t>> in_order;  // place, number
    {
      ObservedMutexLock lock(&mu_);
      lock.apart();  // after all steps
      for (const auto& [id, hook] : end_hooks_) in_order.emplace_back(hook.place, id);
    }
    if (in_order.empty()) return;
    if (round == kMostRounds) {
      return note(NoteKind::kHook, absl::StrCat("hooks of at_end() left others ", kMostRounds,
                                                " times, one after the other; the last did not run"));
    }
    std::sort(in_order.begin(), in_order.end());
    std::vector<EndHook> done;  // what they hold goes after all of the round
    for (const auto& [place, id] : in_order) {
      {
        ObservedMutexLock lock(&mu_);
        lock.apart();  // after all steps
        auto node = end_hooks_.extract(id);
        if (node.empty()) continue;  // an earlier one had it forgotten
        done.push_back(std::move(node.mapped()));
      }
      std::optional<ActsForFibers> alone;
      if (place < kDevices) alone.emplace(*scheduler_);
      run_hook("a hook of at_end()", done.back().run);
    }
  }
}

std::string WorldState::rerun_line() const {
  const std::string& rerun = scheduler_->rerun();
  if (rerun.empty()) return "";
  return absl::StrCat("\n  run it again: ", rerun_told_ != nullptr ? rerun_told_(rerun) : rerun);
}

void WorldState::stalled(const std::string& text) {
  const std::string all = absl::StrCat(text, uses_device() ? blocked_streams_() : "", rerun_line());
  if (options_.on_stall) {
    run_hook("on_stall", [&] { options_.on_stall(all); });
  } else {
    std::fprintf(stderr, "rankloom: %s\n", all.c_str());
  }
}

std::string WorldState::ended_text(int rank) const {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // after the run nobody need be told
  // Whether the rank has made its last step: for warnings.
  if (StepRecord* const record = scheduler_->record(); record != nullptr) record->write_memory(rank);
  const RunReport::Outcome& outcome = outcomes_[static_cast<size_t>(rank)];
  switch (outcome.state) {
    case RunReport::Outcome::State::kRunning:
      return "";
    case RunReport::Outcome::State::kReturned:
      return "returned";
    case RunReport::Outcome::State::kFailed:
    case RunReport::Outcome::State::kStopped:
      return absl::StrCat("failed: ", outcome.text);
  }
  return "";
}

std::string WorldState::describe() const {
  if (Task::current() != nullptr && scheduler_->record() != nullptr)
    scheduler_->record()->uncovered("World::describe(), which looks at all tasks");
  std::string text = absl::StrCat("world of ", size(), " ranks, engine ", sv(engine_kind_name(options_.engine)),
                                  ", schedule ", scheduler_->options().schedule.text(), ", at ",
                                  absl::FormatDuration(absl::Nanoseconds(scheduler_->now_ns() - start_ns_)));
  // A rank that has ended may have its last step before it, and one that has failed may be on its way out.
  std::vector<std::string> how;
  for (int rank = 0; rank < size(); ++rank) how.push_back(ended_text(rank));
  Scheduler::Described told;
  const auto has_ended = [&how](int rank) { return !how[static_cast<size_t>(rank)].empty(); };
  if (const std::string tasks = scheduler_->describe(has_ended, &told); !tasks.empty())
    absl::StrAppend(&text, "\n", tasks);
  std::map<std::string, std::vector<int>> ended;
  for (int rank = 0; rank < size(); ++rank) {
    std::string& one = how[static_cast<size_t>(rank)];
    if (one.empty() && !told.ranks.contains(rank)) one = ended_text(rank);  // meanwhile
    if (one.empty()) continue;
    if (const auto at = told.ended.find(rank); at != told.ended.end() && one != "returned")
      one.insert(std::min(one.find('\n'), one.size()), absl::StrCat("; it still ", at->second));
    ended[one].push_back(rank);
  }
  for (const auto& [how, ranks] : ended) {
    absl::StrAppend(&text, "\n  ", ranks_text(ranks), " ", how);
  }
  return text;
}

WorldState::Waits WorldState::waits_of(const std::vector<Task*>& waiting) const {
  Waits waits;
  // Peers of a rank that hangs by plan stand where its next calls would have let them go on: none of them is to blame.
  const bool planned = std::any_of(waiting.begin(), waiting.end(),
                                   [](const Task* task) { return std::string_view(task->site.what) == kInjectedHang; });
  for (const Task* task : waiting) {
    if (waits.cause.ok() && !planned && task->site.waits_for != nullptr) waits.cause = task->site.waits_for->explain();
  }
  RankFacts facts = {.ended = [this](int rank) { return ended_text(rank); }, .last_calls = {}};
  // A Mismatch lists them itself.
  if (waits.cause.ok() || error_kind(waits.cause) != ErrorKind::kMismatch)
    facts.last_calls = [this](int rank) { return contexts_[static_cast<size_t>(rank)]->recorder().last_calls(5); };
  waits.lines = wait_lines(waiting, facts, &waits.stuck);
  return waits;
}

absl::Status WorldState::end_of_stuck(const std::vector<Task*>& blocked, ErrorKind kind, const std::string& headline) {
  Waits waits = waits_of(blocked);
  {
    ObservedMutexLock lock(&mu_);
    lock.apart();  // for the report
    stuck_ = std::move(waits.stuck);
  }
  if (waits.cause.ok()) return make_error(kind, headline, waits.lines);
  return make_error(error_kind(waits.cause), waits.cause.message(), "\n", headline, waits.lines);
}

std::string WorldState::whereabouts() {
  std::string text;
  if (options_.whereabouts) run_hook("whereabouts", [&] { text = options_.whereabouts(); });
  return text;
}

Scheduler::WaitReporter WorldState::wait_reporter() {
  return {.lines =
              [this](const std::vector<Task*>& waiting) {
                const Waits waits = waits_of(waiting);
                return absl::StrCat(waits.cause.ok() ? "" : absl::StrCat("\n", waits.cause.message()), waits.lines);
              },
          .end = [this](const std::vector<Task*>& blocked, ErrorKind kind,
                        const std::string& headline) { return end_of_stuck(blocked, kind, headline); },
          .whereabouts = [this] { return whereabouts(); }};
}

void WorldState::await_helpers() {
  // Nothing of this world is looked at before: its helpers may run, and a search would see a stranger in it.
  scheduler_->close_when_idle();
}

namespace {

// A replay that was over before its trace was; empty: it was not. A fifo run records nothing.
std::string note_of_replay(const Schedule& schedule, const Trace& made) {
  const Trace* const replayed = schedule.trace();
  if (replayed == nullptr || replayed->cut() || made.cut() || made.steps().size() >= replayed->steps().size())
    return "";
  return absl::StrCat("the replay ended after ", made.steps().size(), " of the ", replayed->steps().size(),
                      " steps of its trace: the run that was recorded was another one");
}

}  // namespace

RunReport WorldState::report(bool last) {
  const bool over = all_ended();
  if (over) {
    // Threads beside fibers have it still, for as long as it takes them to see that what they gave is done.
    const int64_t until_ns = monotonic_ns() + ActsForFibers::kPatienceNs;
    for (WaitTurns turns; !scheduler_->close_if_idle() && options_.engine == EngineKind::kFibers &&
                          Task::current() == nullptr && monotonic_ns() < until_ns;)
      turns.next();
    run_end_hooks();
  }
  const ActsForFibers alone(*scheduler_);
  RunReport report;
  StuckRun stuck;
  bool went_well = false;
  {
    ObservedMutexLock lock(&mu_);
    lock.apart();  // after all steps
    stuck = stuck_;
    report.outcomes = outcomes_;
    report.first_failed = first_failed_;
    for (const Note& note : notes_) report.notes.push_back(note.text);
    // Of a run that has failed the cause says enough.
    if (over && first_failed_ < 0 && !scheduler_->aborted()) {
      const std::vector<std::string> unretrieved = unretrieved_notes();
      report.notes.insert(report.notes.end(), unretrieved.begin(), unretrieved.end());
      went_well = true;
    }
  }
  if (went_well) {
    std::vector<std::string> missed = missed_faults();
    std::move(missed.begin(), missed.end(), std::back_inserter(report.notes));
  }
  report.cause = scheduler_->abort_cause();
  report.trace = last ? scheduler_->take_trace() : scheduler_->trace();
  if (const std::string note = note_of_replay(scheduler_->options().schedule, report.trace); over && !note.empty())
    report.notes.push_back(note);
  report.schedule = scheduler_->options().schedule.text();
  report.engine = engine_kind_name(options_.engine);
  report.steps = scheduler_->steps();
  if (faults_ != nullptr) report.faults = faults_->happened();
  report.rerun = scheduler_->rerun();
  if (options_.keep_run || !report.ok()) {
    report.kept = run_data_of(
        size(), *world_group_, [this](int rank) { return context(rank).recorder().entries(); }, start_ns_,
        recorded_calls());
    RunData& kept = *report.kept;
    for (size_t rank = 0; keeps_log_ && rank < contexts_.size(); ++rank)
      kept.ranks[rank].store = contexts_[rank]->log()->store_operations();
    kept.logged = keeps_log_;
    kept.begin_ns = start_ns_;
    kept.stuck = std::move(stuck);
    kept.end_ns = scheduler_->now_ns() - start_ns_;
    kept.timeout = options_.timeout;
    kept.warn_after = options_.warn_after;
    kept.seed = options_.seed;
    kept.planned_faults = options_.faults.text();
  }
  return report;
}

}  // namespace rankloom::internal

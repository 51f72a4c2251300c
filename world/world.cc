#include "world/world.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fake_store/fault_store.h"
#include "fake_store/hash_store.h"
#include "sim/deadlock_report.h"
#include "sim/dist_error.h"
#include "sim/prng.h"
#include "sim/text.h"

namespace rankloom {
namespace {

Scheduler::Options scheduler_options(const WorldOptions& options, bool late_completion) {
  return {.engine = options.engine,
          .schedule = options.schedule,
          .ranks = options.world_size,
          .stack_bytes = options.stack_bytes,
          .fresh_threads = options.fresh_threads,
          .late_completion = late_completion,
          .max_steps = options.max_steps,
          .stall = options.stall,
          .on_stall = options.on_stall};
}

}  // namespace

RankContext::RankContext(World* world, int rank)
    : world_(world), rank_(rank), recorder_(&world->scheduler(), world->options().recorded_calls) {}

int RankContext::world_size() const { return world_->size(); }
Store& RankContext::store() const { return world_->store(); }

uint64_t RankContext::rng_seed() const {
  const WorldOptions& options = world_->options();
  uint64_t state = options.seed.value_or(options.schedule.seed());
  const uint64_t base = Prng::splitmix64(state);
  state = base ^ static_cast<uint64_t>(rank_);
  return Prng::splitmix64(state);
}

absl::Duration RankContext::now() const { return absl::Nanoseconds(world_->scheduler().now_ns() - world_->start_ns_); }

void RankContext::sleep_for(absl::Duration duration, CodeSite code) {
  Scheduler& scheduler = world_->scheduler();
  const AdoptScope adopt(&scheduler, rank_);
  throw_if_error(scheduler.sleep(Site{.what = "sleep", .code = code}, duration),
                 {.rank = rank_, .group = {}, .op = "sleep"});
}

void RankContext::yield(CodeSite code) {
  Scheduler& scheduler = world_->scheduler();
  const AdoptScope adopt(&scheduler, rank_);
  scheduler.yield(Site{.what = "yield", .code = code});
  if (scheduler.aborted()) throw_if_error(scheduler.abort_cause(), {.rank = rank_, .group = {}, .op = "yield"});
}

RankContext* RankContext::current() {
  const Task* const task = Task::current();
  return task != nullptr ? static_cast<RankContext*>(task->user) : nullptr;
}

World::World(WorldOptions options)
    : options_(std::move(options)),
      poison_(options_.poison.value_or(options_.schedule.explores())),
      late_completion_(options_.late_completion.value_or(options_.schedule.explores())),
      scheduler_([this] {
        absl::StatusOr<std::unique_ptr<Scheduler>> made =
            Scheduler::make(scheduler_options(options_, late_completion_));
        throw_if_error(made.status(), {.rank = -1, .group = {}, .op = "run_world"});
        return *std::move(made);
      }()),
      faults_(options_.faults.empty()
                  ? nullptr
                  : std::make_unique<FaultInjector>(
                        options_.faults, scheduler_.get(), options_.world_size,
                        [this](int rank, const std::string& why) {
                          rank_failed(rank, std::make_exception_ptr(DistError(make_error(ErrorKind::kRankFailed, why),
                                                                              {.rank = rank, .group = {}, .op = {}})));
                        })),
      store_(std::make_unique<HashStore>(scheduler_.get())),
      world_group_(std::make_shared<const Group>(0, "0", options_.world_size)),
      start_ns_(scheduler_->now_ns()),
      mu_(scheduler_.get()),
      outcomes_(static_cast<size_t>(options_.world_size)),
      attached_(static_cast<size_t>(options_.world_size)) {
  if (faults_ != nullptr) store_ = std::make_unique<FaultStore>(std::move(store_), faults_.get());
  store_->set_timeout(options_.timeout);
  contexts_.reserve(outcomes_.size());
  for (int rank = 0; rank < options_.world_size; ++rank) contexts_.emplace_back(new RankContext(this, rank));
  scheduler_->set_user([this](int rank) { return static_cast<void*>(contexts_[static_cast<size_t>(rank)].get()); });
  scheduler_->set_abort_listener([this](const absl::Status& cause) {
    std::vector<std::function<void(const absl::Status&)>> listeners;
    {
      absl::MutexLock lock(&listeners_mu_);
      listeners = listeners_;
    }
    for (const auto& listener : listeners) listener(cause);
  });
  scheduler_->set_deadlock_reporter([this](const std::vector<Task*>& blocked) { return deadlock(blocked); });
}

World::~World() { run_end_hooks(); }

RunReport World::run(absl::FunctionRef<void(RankContext&)> program) {
  scheduler_->run([&](int rank, Task& task) { run_rank(rank, task, program); });
  return report();
}

RankContext& World::attach(int rank) {
  if (rank < 0 || rank >= size()) {
    throw_dist_error(make_error(ErrorKind::kInvalidArgument,
                                absl::StrCat("attach: rank is ", rank, ", want 0 <= rank < world_size = ", size())),
                     {.rank = rank, .group = {}, .op = "attach"});
  }
  if (options_.engine == EngineKind::kFibers) {
    throw_dist_error(
        make_error(ErrorKind::kInvalidArgument, "attach: the ranks are fibers of one thread, want engine threads"),
        {.rank = rank, .group = {}, .op = "attach"});
  }
  if (Task::current() != nullptr) {
    throw_dist_error(
        make_error(ErrorKind::kInvalidArgument, absl::StrCat("attach: this thread is rank ", Task::current()->info.rank,
                                                             " already, want a thread without a rank")),
        {.rank = rank, .group = {}, .op = "attach"});
  }
  {
    RankMutexLock lock(&mu_);
    RankOutcome& outcome = outcomes_[static_cast<size_t>(rank)];
    if (outcome.exception != nullptr || outcome.state != RankOutcome::State::kRunning ||
        attached_[static_cast<size_t>(rank)]) {
      throw_dist_error(
          make_error(ErrorKind::kInvalidArgument, absl::StrCat("attach: rank ", rank, " has attached already")),
          {.rank = rank, .group = {}, .op = "attach"});
    }
    attached_[static_cast<size_t>(rank)] = true;
  }
  scheduler_->attach({.rank = rank, .kind = TaskKind::kRank});
  return context(rank);
}

void World::detach(std::exception_ptr failure) {
  Task* const task = Task::current();
  if (task == nullptr) return;
  if (failure != nullptr) {
    rank_failed(task->info.rank, failure);
  } else {
    rank_returned(task->info.rank);
  }
  scheduler_->detach(task);
}

void World::spawn_helper(absl::AnyInvocable<void()> body) {
  Task* const self = Task::current();
  if (self == nullptr) fatal("spawn_helper was called on a thread that belongs to no rank");
  scheduler_->spawn({.rank = self->info.rank, .kind = TaskKind::kHelper}, std::move(body));
}

void World::abort(std::string_view reason) { scheduler_->abort(make_error(ErrorKind::kAborted, reason)); }

void World::on_abort(std::function<void(const absl::Status&)> listener) {
  absl::MutexLock lock(&listeners_mu_);
  listeners_.push_back(std::move(listener));
}

void World::rank_returned(int rank) {
  RankMutexLock lock(&mu_);
  RankOutcome& outcome = outcomes_[static_cast<size_t>(rank)];
  if (outcome.state == RankOutcome::State::kRunning) outcome.state = RankOutcome::State::kReturned;
}

std::shared_ptr<void> World::shared(std::string_view key, absl::FunctionRef<std::shared_ptr<void>()> make) {
  RankMutexLock lock(&mu_);
  std::shared_ptr<void>& slot = shared_[sv(key)];
  if (slot == nullptr) slot = make();
  return slot;
}

int World::next_group_id() {
  // Who comes first has the lower one.
  if (StepRecord* const record = scheduler_->record(); record != nullptr)
    record->access(record->object(&group_ids_), Access::kWrite);
  return next_group_id_.fetch_add(1, std::memory_order_relaxed);
}

void World::note(std::string text) {
  RankMutexLock lock(&mu_);
  notes_.push_back(std::move(text));
}

void World::at_end(std::function<void()> hook) {
  RankMutexLock lock(&mu_);
  end_hooks_.push_back(std::move(hook));
}

void World::run_end_hooks() {
  std::vector<std::function<void()>> hooks;
  {
    RankMutexLock lock(&mu_);
    hooks.swap(end_hooks_);
  }
  for (const std::function<void()>& hook : hooks) hook();
}

std::string World::ended_text(int rank) const {
  RankMutexLock lock(&mu_);
  const RankOutcome& outcome = outcomes_[static_cast<size_t>(rank)];
  switch (outcome.state) {
    case RankOutcome::State::kRunning:
      return "";
    case RankOutcome::State::kReturned:
      return "returned";
    case RankOutcome::State::kFailed:
    case RankOutcome::State::kStopped:
      return absl::StrCat("failed: ", outcome.text);
  }
  return "";
}

absl::Status World::deadlock(const std::vector<Task*>& blocked) {
  const RankFacts facts = {.ended = [this](int rank) { return ended_text(rank); },
                           .last_calls = [this](int rank) { return context(rank).recorder().last_calls(5); }};
  std::string text = deadlock_text(blocked, facts);
  if (options_.whereabouts) {
    if (const std::string more = options_.whereabouts(); !more.empty()) absl::StrAppend(&text, "\n", more);
  }
  for (const Task* task : blocked) {
    if (task->site.waits_for == nullptr) continue;
    if (const absl::Status cause = task->site.waits_for->explain(); !cause.ok()) {
      return make_error(error_kind(cause), absl::StrCat(cause.message(), "\n", text));
    }
  }
  return make_error(ErrorKind::kDeadlock, text);
}

RunReport World::report() {
  run_end_hooks();
  RunReport report;
  {
    RankMutexLock lock(&mu_);
    report.outcomes = outcomes_;
    report.first_failed = first_failed_;
    report.notes = notes_;
  }
  report.cause = scheduler_->abort_cause();
  report.trace = scheduler_->trace();
  report.schedule = scheduler_->options().schedule.text();
  report.engine = engine_kind_name(options_.engine);
  report.steps = scheduler_->steps();
  if (faults_ != nullptr) report.faults = faults_->happened();
  report.rerun = rerun_command(options_);
  return report;
}

RunReport run_world(WorldOptions options, absl::FunctionRef<void(RankContext&)> program) {
  World world(std::move(options));
  return world.run(program);
}

}  // namespace rankloom

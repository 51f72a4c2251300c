#include "rankloom/world.h"

#include <cstdio>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/library_scope.h"
#include "sim/base/require.h"
#include "sim/base/site_text.h"
#include "sim/base/system.h"
#include "sim/base/text.h"
#include "sim/scheduler/call_scope.h"
#include "sim/scheduler/scheduler.h"
#include "world/end_hooks.h"
#include "world/run_file.h"
#include "world/run_options.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

int RankContext::world_size() const { return state_of(*this).world().size(); }
Store& RankContext::store() const { return state_of(*this).world().store(); }
uint64_t RankContext::rng_seed() const { return state_of(*this).rng_seed(); }
Prng& RankContext::rng() {
  const WorldRef world(&world_->scheduler());
  uses_memory_of(world, rank_);
  if (const Task* const task = Task::current();
      task != nullptr && task->record != nullptr && world.has(task) && task->info.rank != rank_)
    task->record->uncovered("the rng() of another rank: draws tell of nothing");
  return state_of(*this).rng();
}

absl::Duration RankContext::now() const {
  WorldState& world = state_of(*this).world();
  return absl::Nanoseconds(world.scheduler().now_ns() - world.start_ns());
}

void RankContext::sleep_for(absl::Duration duration, CodeSite code) {
  Scheduler& scheduler = world_->scheduler();
  const CallScope call(&scheduler, [this, code] { return state_of(*this).called("sleep_for", code); });
  throw_if_error(scheduler.sleep(Site{.what = "sleep", .code = code}, duration),
                 {.rank = rank_, .group = {}, .op = "sleep"});
}

void RankContext::yield(CodeSite code) {
  Scheduler& scheduler = world_->scheduler();
  const CallScope call(&scheduler, [this, code] { return state_of(*this).called("yield", code); });
  scheduler.yield(Site{.what = "yield", .code = code});
  if (scheduler.aborted()) throw_if_error(scheduler.abort_cause(), {.rank = rank_, .group = {}, .op = "yield"});
}

RankContext* RankContext::current() { return RankState::current(); }

namespace internal {

void* rank_local(const void* key, std::shared_ptr<void> (*make)()) {
  RankState* const rank = RankState::current();
  if (rank == nullptr) throw std::logic_error("RankLocal used on a thread that belongs to no rank");
  return rank->local(key, make);
}

namespace {

void check_local_thread(World& world, std::string_view name, const char* op, CodeSite code) {
  CallScope::check_thread(&state_of(world).scheduler(), [&] {
    return CalledHandle{.rank = -1, .handle = absl::StrCat("WorldLocal \"", sv(name), "\""), .op = op, .code = code};
  });
}

}  // namespace

std::shared_ptr<void> world_local(World& world, std::string_view name, const void* type,
                                  absl::FunctionRef<std::shared_ptr<void>()> make, CodeSite code) {
  const LibraryScope library;
  check_local_thread(world, name, "get", code);
  return state_of(world).shared_object(name, type, make, WorldState::Maker::kMatters, code);
}

void forget_world_local(World& world, std::string_view name) {
  const LibraryScope library;
  Scheduler& scheduler = state_of(world).scheduler();
  check_local_thread(world, name, "forget", {});
  if (WorldRef(&scheduler).has(Task::current())) scheduler.point(Site{.what = "WorldLocal forget", .detail = name});
  state_of(world).unshare(name);
}

}  // namespace internal

World::OutsideWaker::OutsideWaker(Scheduler* scheduler, CodeSite code) : scheduler_(scheduler) {
  const LibraryScope library;
  require(scheduler, {.rank = -1, .group = {}, .op = "outside_waker"}, code, "World::OutsideWaker: scheduler");
  scheduler_->add_outside(1);
}
World::OutsideWaker::~OutsideWaker() {
  const LibraryScope library;
  if (scheduler_ != nullptr) scheduler_->add_outside(-1);
}

World::World(WorldOptions options, CodeSite code) : World(std::move(options), RunHooks(), code) {}
World::World(WorldOptions options, const RunHooks& hooks, CodeSite code)
    : state_(new WorldState(this, std::move(options), hooks, code)) {}
World::~World() = default;

const WorldOptions& World::options() const { return state_->options(); }
int World::size() const { return state_->size(); }
Store& World::store() { return state_->store(); }
Scheduler& World::scheduler() { return state_->scheduler(); }
RunReport World::run(absl::FunctionRef<void(RankContext&)> program, CodeSite code) {
  const LibraryScope library;
  return state_->run(program, code);
}
RankContext& World::attach(int rank, CodeSite code) {
  const LibraryScope library;
  return state_->attach(rank, code);
}
void World::detach(std::exception_ptr failure, CodeSite code) {
  const LibraryScope library;
  state_->detach(std::move(failure), code);
}
RunReport World::report() {
  const LibraryScope library;
  state_->await_helpers();
  return state_->report();
}
void World::spawn_helper(Callback<void()> body, CodeSite code) {
  const LibraryScope library;
  require(body, {.rank = -1, .group = {}, .op = "spawn_helper"}, code, "World::spawn_helper: body");
  state_->spawn_helper(std::move(body), code);
  // The helper may be through with its work when the caller goes on.
  state_->scheduler().point(Site{.what = "spawn_helper", .code = code});
}
namespace {

void check_rank(std::string_view op, int rank, int size, CodeSite code) {
  if (rank >= 0 && rank < size) return;
  refuse({.rank = rank, .group = {}, .op = op}, ErrorKind::kInvalidArgument, "World::", sv(op), ": rank is ", rank,
         ", want 0 <= rank < world_size = ", size, site_place(Site{.code = code}));
}

// "rank 1", for a caller of a method of `world`.
std::string caller_text(const Scheduler& world) {
  const Task* const task = Task::current();
  if (task == nullptr || task->info.rank < 0) return "a thread of no rank";
  return absl::StrCat("rank ", task->info.rank, task->scheduler == &world ? "" : " of another world");
}

}  // namespace

void World::abort(std::string_view reason, CodeSite code) {
  const LibraryScope library;
  state_->abort(located(absl::StrCat(caller_text(scheduler()), " aborted the world: ", sv(reason)), code));
}
void World::rank_failed(int rank, std::exception_ptr failure, CodeSite code) {
  const LibraryScope library;
  check_rank("rank_failed", rank, size(), code);
  require(failure, {.rank = rank, .group = {}, .op = "rank_failed"}, code, "World::rank_failed: failure");
  state_->rank_failed(rank, std::move(failure));
}
int64_t World::on_abort(std::function<void(const absl::Status&)> listener, CodeSite code) {
  const LibraryScope library;
  require(listener, {.rank = -1, .group = {}, .op = "on_abort"}, code, "World::on_abort: listener");
  // Numbers of listeners are those of their order, and whoever forgets one lets go of what it owns.
  if (StepRecord* const record = Task::current() != nullptr ? state_->scheduler().record() : nullptr; record != nullptr)
    record->access(named_object(0, "listeners of on_abort()"), Access::kWrite);
  return state_->on_abort(std::move(listener), /*of_user=*/true);
}
void World::forget_on_abort(int64_t listener) {
  const LibraryScope library;
  if (StepRecord* const record = Task::current() != nullptr ? state_->scheduler().record() : nullptr; record != nullptr)
    record->access(named_object(0, "listeners of on_abort()"), Access::kWrite);
  state_->forget_on_abort(listener);
}
RankContext& World::context(int rank, CodeSite code) {
  check_rank("context", rank, size(), code);
  return state_->context(rank);
}
std::vector<std::shared_ptr<const Group>> World::groups() const {
  const LibraryScope library;
  return state_->groups();
}
void World::note(std::string text) {
  const LibraryScope library;
  state_->note(WorldState::NoteKind::kLeftover, std::move(text));
}
int64_t World::at_end(std::function<void()> hook, CodeSite code) {
  const LibraryScope library;
  require(hook, {.rank = -1, .group = {}, .op = "at_end"}, code, "World::at_end: hook");
  if (StepRecord* const record = Task::current() != nullptr ? state_->scheduler().record() : nullptr; record != nullptr)
    record->access(end_hooks_object(), Access::kWrite);
  return state_->at_end(WorldState::kUsers, std::move(hook));
}
void World::forget_at_end(int64_t hook) {
  const LibraryScope library;
  if (StepRecord* const record = Task::current() != nullptr ? state_->scheduler().record() : nullptr; record != nullptr)
    record->access(end_hooks_object(), Access::kWrite);
  state_->forget_at_end(hook);
}
std::string World::describe() const {
  const LibraryScope library;
  return state_->describe();
}

RunReport run_world(WorldOptions options, absl::FunctionRef<void(RankContext&)> program, CodeSite code) {
  const int run = next_run();
  if (absl::Status wrong = apply_environment_to_run(run, &options); !wrong.ok()) {
    RunReport report;
    report.cause = std::move(wrong);
    return report;
  }
  World world(std::move(options), code);
  const LibraryScope library;
  Scheduler& scheduler = world.scheduler();
  scheduler.set_rerun(run > 0 ? rerun_of_run(run, scheduler.rerun()) : "");
  RunReport report = state_of(world).run_once(program, code);
  if (!report.ok()) write_failed_run(absl::StrCat(program_name(), ".run", name_of_run(run)), &report);
  return report;
}

}  // namespace rankloom

__attribute__((used)) void rankloom_describe() {
  const rankloom::RankContext* const context = rankloom::RankContext::current();
  const std::string text =
      context != nullptr
          ? context->world().describe()
          : "this thread belongs to no rank; select one that does (\"rank 0\", ..., \"rankloom fibers\")";
  std::fprintf(stderr, "rankloom: %s\n", text.c_str());
}

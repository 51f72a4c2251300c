#include "rankloom/world.h"

#include <atomic>
#include <cstdio>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/text.h"
#include "sim/scheduler/call_scope.h"
#include "sim/scheduler/scheduler.h"
#include "world/run_options.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

using internal::RankState;
using internal::state_of;
using internal::WorldState;

int RankContext::world_size() const { return state_of(*this).world().size(); }
Store& RankContext::store() const { return state_of(*this).world().store(); }
uint64_t RankContext::rng_seed() const { return state_of(*this).rng_seed(); }
Prng& RankContext::rng() { return state_of(*this).rng(); }

absl::Duration RankContext::now() const {
  WorldState& world = state_of(*this).world();
  return absl::Nanoseconds(world.scheduler().now_ns() - world.start_ns());
}

void RankContext::sleep_for(absl::Duration duration, CodeSite code) {
  Scheduler& scheduler = world_->scheduler();
  const CallScope call(&scheduler, [this] { return state_of(*this).called("sleep_for"); });
  throw_if_error(scheduler.sleep(Site{.what = "sleep", .code = code}, duration),
                 {.rank = rank_, .group = {}, .op = "sleep"});
}

void RankContext::yield(CodeSite code) {
  Scheduler& scheduler = world_->scheduler();
  const CallScope call(&scheduler, [this] { return state_of(*this).called("yield"); });
  scheduler.yield(Site{.what = "yield", .code = code});
  if (scheduler.aborted()) throw_if_error(scheduler.abort_cause(), {.rank = rank_, .group = {}, .op = "yield"});
}

RankContext* RankContext::current() { return RankState::current(); }

namespace internal {

void* rank_local(const void* key, std::shared_ptr<void> (*make)()) {
  RankState* const rank = RankState::current();
  if (rank == nullptr) throw std::logic_error("RankLocal used on a thread that belongs to no rank");
  std::shared_ptr<void>& slot = rank->locals_[key];
  if (slot == nullptr) slot = make();
  return slot.get();
}

std::shared_ptr<void> world_local(World& world, std::string_view name, const void* type,
                                  absl::FunctionRef<std::shared_ptr<void>()> make) {
  return state_of(world).shared_object(name, type, make, WorldState::Maker::kMatters);
}

void forget_world_local(World& world, std::string_view name) { state_of(world).unshare(name); }

}  // namespace internal

World::OutsideWaker::OutsideWaker(Scheduler* scheduler) : scheduler_(scheduler) { scheduler_->add_outside(1); }
World::OutsideWaker::~OutsideWaker() {
  if (scheduler_ != nullptr) scheduler_->add_outside(-1);
}

World::World(WorldOptions options) : World(std::move(options), RunHooks()) {}
World::World(WorldOptions options, const RunHooks& hooks) : state_(new WorldState(this, std::move(options), hooks)) {}
World::~World() = default;

const WorldOptions& World::options() const { return state_->options(); }
int World::size() const { return state_->size(); }
Store& World::store() { return state_->store(); }
Scheduler& World::scheduler() { return state_->scheduler(); }
RunReport World::run(absl::FunctionRef<void(RankContext&)> program) { return state_->run(program); }
RankContext& World::attach(int rank) { return state_->attach(rank); }
void World::detach(std::exception_ptr failure) { state_->detach(std::move(failure)); }
RunReport World::report() { return state_->report(); }
void World::spawn_helper(Callback<void()> body) { state_->spawn_helper(std::move(body)); }
namespace {

void check_rank(std::string_view op, int rank, int size) {
  if (rank >= 0 && rank < size) return;
  refuse({.rank = rank, .group = {}, .op = op}, ErrorKind::kInvalidArgument, "World::", sv(op), ": rank is ", rank,
         ", want 0 <= rank < world_size = ", size);
}

}  // namespace

void World::abort(std::string_view reason) { state_->abort(reason); }
void World::rank_failed(int rank, std::exception_ptr failure) {
  check_rank("rank_failed", rank, size());
  state_->rank_failed(rank, std::move(failure));
}
int64_t World::on_abort(std::function<void(const absl::Status&)> listener) {
  return state_->on_abort(std::move(listener));
}
void World::forget_on_abort(int64_t listener) { state_->forget_on_abort(listener); }
RankContext& World::context(int rank) {
  check_rank("context", rank, size());
  return state_->context(rank);
}
std::vector<std::shared_ptr<const Group>> World::groups() const { return state_->groups(); }
void World::note(std::string text) { state_->note(std::move(text)); }
int64_t World::at_end(std::function<void()> hook) { return state_->at_end(std::move(hook)); }
void World::forget_at_end(int64_t hook) { state_->forget_at_end(hook); }
std::string World::describe() const { return state_->describe(); }

RunReport run_world(WorldOptions options, absl::FunctionRef<void(RankContext&)> program) {
  static std::atomic<int> runs = 0;
  const int run = ++runs;
  if (absl::Status wrong = apply_environment_to_run(run, &options); !wrong.ok()) {
    RunReport report;
    report.cause = std::move(wrong);
    return report;
  }
  World world(std::move(options));
  RunReport report = world.run(program);
  if (run > 1 && !report.rerun.empty()) report.rerun = absl::StrCat("RANKLOOM_REPLAY_RUN=", run, " ", report.rerun);
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

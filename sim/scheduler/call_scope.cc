#include "sim/scheduler/call_scope.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/site_text.h"
#include "sim/base/system.h"
#include "sim/scheduler/acts_for_fibers.h"
#include "sim/scheduler/live_worlds.h"

namespace rankloom::internal {

bool WorldRef::ended() const { return foreign() && LiveWorlds::shared().over(serial_); }

WorldPin::WorldPin(const WorldRef& world) {
  if (!world.foreign()) {
    lives_ = world.known();
    return;
  }
  pinned_ = LiveWorlds::shared().pin(world.serial_, /*open=*/false);
  lives_ = pinned_ != nullptr;
}

WorldPin::~WorldPin() {
  if (pinned_ != nullptr) LiveWorlds::shared().unpin(pinned_->serial());
}

namespace {

// Between the thread that gives a body away and that of the fibers: the one that takes it runs it.
struct Given {
  enum class State : uint8_t { kWaits, kTaken, kDone };
  bool take() {
    State waits = State::kWaits;
    return state.compare_exchange_strong(waits, State::kTaken);
  }
  std::atomic<State> state{State::kWaits};
  absl::AnyInvocable<void()> body;
};

// So long the fibers' thread may stay away from its scheduling points until it counts as standing in code of the
// program's own, for the thread that waits perhaps: asleep, as in a join, or computing, as where it asks again and
// again.
constexpr int64_t kAsleepNs = 100'000'000;
constexpr int64_t kComputingNs = 1'000'000'000;

// Since when the fibers' thread of a world has been at the same place, as the calling thread has seen it. Kept from
// call to call: while that thread stands there still the next act follows at once.
struct Stand {
  uint64_t world = 0;  // its number
  uint64_t presence = 0;
  int64_t since_ns = 0;

  void look(const Scheduler& scheduler) {
    if (is_there(scheduler)) return;
    *this = {.world = scheduler.serial(), .presence = scheduler.presence(), .since_ns = monotonic_ns()};
  }
  // Whether that thread has not been within rankloom since.
  bool is_there(const Scheduler& scheduler) const {
    return world == scheduler.serial() && presence == scheduler.presence();
  }
  // Whether that thread is outside of rankloom, as far as can be known.
  bool outside(const Scheduler& scheduler) const {
    const int64_t stood_ns = monotonic_ns() - since_ns;
    if (stood_ns < kAsleepNs || scheduler.in_long_part()) return false;
    return stood_ns >= kComputingNs || !thread_runs(scheduler.fibers_thread());
  }
};
constinit thread_local Stand stand;

}  // namespace

bool given_to_fibers(const WorldRef& world, int rank, const char* what, absl::AnyInvocable<void()>* body, bool waits) {
  if (!world.foreign()) return false;
  const WorldPin alive(world);
  if (!alive || world.scheduler()->options().engine != EngineKind::kFibers) return false;
  Scheduler& scheduler = *world.scheduler();
  if (!scheduler.beside_fibers()) {
    const ActsForFibers alone(scheduler);
    (*body)();
    return true;
  }
  scheduler.uncovered(kOwnThreads);
  const TaskInfo info{.rank = rank, .kind = TaskKind::kCompletion};
  // A run that has just ended takes no more steps: then the caller comes here.
  const auto run = [&scheduler](absl::AnyInvocable<void()>& what) {
    std::optional<ActsForFibers> alone;
    if (!WorldRef(&scheduler).has(Task::current())) alone.emplace(scheduler);
    what();
  };
  if (!waits) {
    scheduler.post(info, Site{.what = what}, [run, body = std::move(*body)]() mutable { run(body); });
    return true;
  }
  const auto given = std::make_shared<Given>();
  given->body = std::move(*body);
  scheduler.post(info, Site{.what = what}, [given, run] {
    if (!given->take()) return;
    const absl::Cleanup done = [&given] { given->state.store(Given::State::kDone); };
    run(given->body);
  });
  for (WaitTurns turns; given->state.load() != Given::State::kDone; turns.next()) {
    stand.look(scheduler);
    if (!stand.outside(scheduler)) continue;
    const ActsForFibers alone(scheduler);
    scheduler.ask_fibers();  // to wait for this act if they come back meanwhile
    fence_all_threads();
    if (!stand.outside(scheduler) || !stand.is_there(scheduler) || !given->take()) continue;
    given->body();
    break;
  }
  return true;
}

void run_for_fibers(const WorldRef& world, int rank, const char* what, absl::AnyInvocable<void()> body, bool waits) {
  if (given_to_fibers(world, rank, what, &body, waits)) return;
  const ChangeAtNoPoint change(world.known() && !world.foreign() ? world.scheduler() : nullptr);
  body();
}

void tell_of_own_thread(const WorldRef& world) {
  const WorldPin alive(world);
  if (alive && !world.scheduler()->closed()) world.scheduler()->uncovered(kOwnThreads);
}

absl::Status world_ended() { return make_error(ErrorKind::kAborted, "the world has ended"); }

namespace {

std::string who(const CalledHandle& called) {
  std::string text = called.rank >= 0 ? absl::StrCat("rank ", called.rank) : "";
  for (const std::string* part : {&called.handle, &called.op}) {
    if (!part->empty()) absl::StrAppend(&text, text.empty() ? "" : ", ", *part);
  }
  return text.empty() ? text : text + ": ";
}

std::string place(const CalledHandle& called) { return site_place(Site{.code = called.code}); }

ErrorOrigin origin_of(const CalledHandle& called) { return {.rank = called.rank, .group = {}, .op = called.op}; }

[[noreturn]] void refuse_ended(const CalledHandle& called) {
  refuse(origin_of(called), ErrorKind::kAborted, who(called), "the world has ended", place(called));
}

[[noreturn]] void refuse_thread(const CalledHandle& called) {
  refuse(origin_of(called), ErrorKind::kInvalidArgument, who(called),
         "called from a thread that is not the ranks', but the ranks are fibers of one "
         "thread; want engine threads",
         place(called));
}

// The worlds that this thread, which belongs to none, has called into: each is told when the thread ends.
class StrangerThread {
 public:
  ~StrangerThread() {
    gone_ = true;
    for (const auto& [serial, id] : ids_) forget(serial, id);
  }

  static StrangerThread& current() {
    static thread_local StrangerThread thread;
    return thread;
  }

  // Whether this thread's one has gone: a destructor of a thread_local calls that is older.
  static bool gone() { return gone_; }

  // By which number `scheduler` knows this thread, which is about to call for `rank`. `known`: it has called before.
  uint64_t id_in(Scheduler* scheduler, int rank, bool* known) {
    for (const auto& [serial, id] : ids_) {
      *known = serial == scheduler->serial();
      if (*known) return id;
    }
    if (ids_.size() >= sweep_at_) {
      std::erase_if(ids_, [](const auto& entry) { return LiveWorlds::shared().over(entry.first); });
      sweep_at_ = std::max<size_t>(16, 2 * ids_.size());
    }
    ids_.emplace_back(scheduler->serial(), scheduler->add_stranger(rank, this_thread()));
    return ids_.back().second;
  }

 private:
  static void forget(uint64_t serial, uint64_t id) {
    Scheduler* const scheduler = LiveWorlds::shared().pin(serial, /*open=*/false);
    if (scheduler == nullptr) return;
    scheduler->stranger_ended(id);
    LiveWorlds::shared().unpin(serial);
  }

  static inline constinit thread_local bool gone_ = false;
  std::vector<std::pair<uint64_t, uint64_t>> ids_;  // serial of the world, number of the thread there
  size_t sweep_at_ = 16;
};

}  // namespace

void CallScope::refuse_other_worlds(const WorldRef& world, const CalledHandle& called, bool after_run) {
  if (is_forked_copy(world.scheduler_)) end_forked_copy();
  if (!world.foreign()) return;
  if (after_run ? !WorldPin(world) : world.ended()) refuse_ended(called);
  const Task* const task = Task::current();
  if (task == nullptr || task->scheduler == nullptr) return;
  const bool inner = task->scheduler->is_inside(world.serial_);
  const std::string handle = called.handle.empty() ? absl::StrCat("handle of rank ", called.rank) : called.handle;
  refuse({.rank = task->info.rank, .group = {}, .op = called.op}, ErrorKind::kInvalidArgument, "rank ", task->info.rank,
         inner ? " of an inner world used the outer world's " : " used the ", handle, inner ? "" : " of another world",
         called.op.empty() ? "" : " in ", called.op, ": want one of its own world", place(called));
}

void CallScope::refuse_beside_fibers(const WorldRef& world, absl::FunctionRef<CalledHandle()> called, bool before) {
  const WorldPin alive(world);
  if (!alive) return;
  const Scheduler& scheduler = *world.scheduler();
  const bool to_run =
      scheduler.options().engine == EngineKind::kFibers && scheduler.fibers_thread() == 0 && scheduler.takes_tasks();
  if (scheduler.beside_fibers() || (before && to_run)) refuse_thread(called());
}

CallScope::CallScope(Scheduler* scheduler, int rank)
    : CallScope(WorldRef(scheduler), [rank] { return CalledHandle{.rank = rank, .handle = {}, .op = {}}; }) {}

void CallScope::enter(const WorldRef& world, const CalledHandle& called) {
  refuse_other_worlds(world, called, /*after_run=*/false);
  if (!world.foreign()) return;
  scheduler_ = LiveWorlds::shared().pin(world.serial_, /*open=*/true);
  if (scheduler_ == nullptr) refuse_ended(called);
  if (scheduler_->options().engine == EngineKind::kFibers) {
    const bool runs = scheduler_->takes_tasks();
    LiveWorlds::shared().unpin(std::exchange(scheduler_, nullptr)->serial());
    runs ? refuse_thread(called) : refuse_ended(called);
  }
  if (scheduler_->awaits_ranks()) {
    LiveWorlds::shared().unpin(std::exchange(scheduler_, nullptr)->serial());
    refuse(origin_of(called), ErrorKind::kInvalidArgument, who(called),
           "called before the run, but ranks and their calls take turns by its schedule: want run() or attach() first",
           place(called));
  }
  scheduler_->uncovered(kOwnThreads);
  bool known = false;
  stranger_ = StrangerThread::gone() ? scheduler_->add_stranger(called.rank, this_thread())
                                     : StrangerThread::current().id_in(scheduler_, called.rank, &known);
  // Counted as a task before it is no stranger any more, and the other way round: never as nobody.
  task_ = scheduler_->attach({.rank = called.rank, .kind = TaskKind::kHelper});
  if (known) scheduler_->stranger_away(stranger_, called.rank, false);
}

void CallScope::leave() {
  scheduler_->stranger_away(stranger_, task_->info.rank, true);
  scheduler_->detach(task_);
  if (StrangerThread::gone()) scheduler_->stranger_ended(stranger_);  // of this call alone
  LiveWorlds::shared().unpin(scheduler_->serial());
}

}  // namespace rankloom::internal

#include "sim/scheduler/call_scope.h"

#include <algorithm>
#include <atomic>
#include <memory>
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

constexpr std::string_view kOwnThreads = "threads that ranks made by themselves";

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
// program's own, for the thread that waits perhaps.
constexpr int64_t kAnswerNs = 100'000'000;

// Threads that act for fibers do so one at a time. Of the last one: the world, by its number, the point at which the
// fibers' thread stood, the thread, and when it was through: the fibers' thread may have waited for just that.
std::atomic<bool> acting{false};
std::atomic<uint64_t> acted_world{0};
std::atomic<uint64_t> acted_point{0};
std::atomic<int> acted_thread{0};
std::atomic<int64_t> acted_ns{0};

void act_for_fibers(const Scheduler& scheduler, uint64_t point, absl::AnyInvocable<void()>& body) {
  const bool outer = std::exchange(acts_for_fibers, true);
  const absl::Cleanup end = [&scheduler, point, outer] {
    acts_for_fibers = outer;
    acted_world.store(scheduler.serial());
    acted_point.store(point);
    acted_thread.store(this_thread());
    acted_ns.store(monotonic_ns());
    acting.store(false);
  };
  body();
}

}  // namespace

bool given_to_fibers(const WorldRef& world, int rank, const char* what, absl::AnyInvocable<void()>* body, bool waits) {
  if (!world.foreign()) return false;
  const WorldPin alive(world);
  if (!alive || !world.scheduler()->beside_fibers()) return false;
  Scheduler& scheduler = *world.scheduler();
  scheduler.uncovered(kOwnThreads);
  const TaskInfo info{.rank = rank, .kind = TaskKind::kCompletion};
  if (!waits) {
    scheduler.post(info, Site{.what = what}, std::move(*body));
    return true;
  }
  const uint64_t point = scheduler.steps();
  const auto may_act = [] { return !acting.exchange(true); };
  if (acted_world.load() == scheduler.serial() && acted_point.load() == point && acted_thread.load() == this_thread() &&
      may_act()) {
    act_for_fibers(scheduler, point, *body);
    return true;
  }
  const auto given = std::make_shared<Given>();
  given->body = std::move(*body);
  scheduler.post(info, Site{.what = what}, [given] {
    if (!given->take()) return;
    const absl::Cleanup done = [&given] { given->state.store(Given::State::kDone); };
    given->body();
  });
  int64_t since_ns = monotonic_ns();
  for (WaitTurns turns; given->state.load() != Given::State::kDone; turns.next()) {
    since_ns = std::max(since_ns, acted_ns.load());
    if (monotonic_ns() - since_ns < kAnswerNs || !may_act()) continue;
    if (acted_ns.load() > since_ns || !given->take()) {
      acting.store(false);
      continue;
    }
    act_for_fibers(scheduler, point, given->body);
    break;
  }
  return true;
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

void CallScope::refuse_beside_fibers(const WorldRef& world, absl::FunctionRef<CalledHandle()> called) {
  const WorldPin alive(world);
  if (alive && world.scheduler()->beside_fibers()) refuse_thread(called());
}

CallScope::CallScope(Scheduler* scheduler, int rank)
    : CallScope(WorldRef(scheduler), [rank] { return CalledHandle{.rank = rank, .handle = {}, .op = {}}; }) {}

void CallScope::enter(const WorldRef& world, const CalledHandle& called) {
  refuse_other_worlds(world, called, /*after_run=*/false);
  if (!world.foreign()) return;
  scheduler_ = LiveWorlds::shared().pin(world.serial_, /*open=*/true);
  if (scheduler_ == nullptr) refuse_ended(called);
  if (scheduler_->options().engine == EngineKind::kFibers) {
    LiveWorlds::shared().unpin(std::exchange(scheduler_, nullptr)->serial());
    refuse_thread(called);
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

#include <atomic>
#include <deque>
#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/group/group_front.h"
#include "collectives/ops/op_table.h"
#include "collectives/streams/held_by_stream.h"
#include "collectives/streams/stream_call.h"
#include "collectives/streams/waited_works.h"
#include "collectives/work/stream_work.h"
#include "collectives/work/work_state.h"
#include "rankloom/error.h"
#include "rankloom/process_group.h"
#include "rankloom/stream.h"
#include "rankloom/world.h"
#include "sim/base/dist_error.h"
#include "sim/base/require.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

// A mark in a stream.
struct Mark {
  explicit Mark(std::shared_ptr<WorkState> work) : passed(std::move(work)) {}
  const std::shared_ptr<WorkState> passed;
  WaitedWorks::List before;  // written before the mark is passed, read after it
};

class SimEvent final : public internal::EventState {
 public:
  // `hold`: the program's, of `stream`.
  SimEvent(std::shared_ptr<Mark> mark, std::shared_ptr<const void> hold, std::shared_ptr<WantedStream> stream)
      : mark_(std::move(mark)), passed_(mark_->passed), hold_(std::move(hold)), stream_(std::move(stream)) {}

  bool done(CodeSite code) override {
    if (!passed_->is_completed()) {
      const CallScope call(passed_->world_ref(), [&] { return called("query", code); });
      passed_->scheduler()->poll(Site{.what = "event query", .code = code});
    }
    if (!passed_->is_completed()) return false;
    WaitedWorks::learn(mark_->before);
    return true;
  }
  absl::Status wait(CodeSite code) override {
    if (passed_->is_completed() && passed_->world_ref().foreign()) return passed_->status();
    const CallScope call(passed_->world_ref(), [&] { return called("synchronize", code); });
    passed_->scheduler()->point(Site{.what = "event synchronize", .code = code});
    const absl::Status waited = passed_->await(absl::InfiniteDuration(), /*timeout_is_default=*/true, code);
    if (passed_->is_over()) WaitedWorks::learn(mark_->before);
    return waited;
  }
  const std::shared_ptr<Mark>& mark() const { return mark_; }
  const std::shared_ptr<WantedStream>& stream() const { return stream_; }

 private:
  CalledHandle called(const char* op, CodeSite code) const {
    return {.rank = passed_->rank(), .handle = "event", .op = op, .code = code};
  }

  const std::shared_ptr<Mark> mark_;
  const std::shared_ptr<WorkState>& passed_;
  const std::shared_ptr<const void> hold_;  // what is before the mark is wanted
  const std::shared_ptr<WantedStream> stream_;
};

}  // namespace

struct SimStream::Queue : std::enable_shared_from_this<Queue> {
  // One thing that is queued.
  struct Item {
    const char* what;
    CodeSite code;
    // Does it, or, in a world that was aborted for `cause`, does what must be done all the same.
    absl::AnyInvocable<absl::Status(const absl::Status& cause)> run;
    std::shared_ptr<HeldByStream> held = nullptr;  // what `run` is about; null: nothing that must be given up
    bool kernel = false;                           // a function of the program, whose variables an exception takes
  };

  Queue(RankState& context, std::string_view stream_name)
      : context(context),
        rank(context.rank()),
        name(stream_name),
        scheduler(context.world().scheduler()),
        world(&scheduler),
        mu(&scheduler, internal::LockLevel::kStreamQueue) {}

  // The program's hold.
  static std::shared_ptr<Queue> make(RankState& context, std::string_view name);

  void push(Item item);
  void drain();
  // The stream has waited for the call, on which it has a handle for a moment yet.
  void has_waited_for(const std::shared_ptr<WorkState>& work) {
    WaitedWorks::List learned;
    RankMutexLock lock(&mu);
    learned = waited_for.add(work);
  }
  // The items that follow are behind all that the stream has waited for.
  void learn_waited_for() {
    WaitedWorks::List works;
    {
      RankMutexLock lock(&mu);
      works = waited_for.all();
    }
    if (works.empty()) return;
    WaitedWorks::learn(works);
    WaitedWorks::List learned;
    RankMutexLock lock(&mu);
    learned = waited_for.drop_learned();
  }
  // Before a call of the stream is seen failed.
  void fail(const absl::Status& status) {
    RankMutexLock lock(&mu);
    if (failure.ok()) failure = status;
  }
  // Nobody wants the stream any more, or an exception unwinds: calls and waits on
  // their way are taken back, and kernels that have not begun are left out if it does. The drop of a call and the abort
  // of a group are scheduling points.
  void give_up() noexcept;
  CalledHandle called(const char* what, CodeSite code) const {
    return {.rank = rank, .handle = absl::StrCat("stream ", name), .op = what, .code = code};
  }
  std::string who() const { return absl::StrCat("rank ", rank, ", stream ", name, ": "); }
  // Throws if another rank uses the stream.
  void check_rank(const char* what, CodeSite code) const;
  // A scheduling point of the user, and the check. `polls`: the user asks whether something has happened yet.
  void point(const char* what, CodeSite code, bool polls = false) const;

  RankState& context;
  const int rank;
  const std::string name;
  Scheduler& scheduler;
  const WorldRef world;
  // Memory of the rank, to which each step of the rank's tasks writes in an explored run: nobody else gets here but by
  // status().
  mutable RankMutex mu;
  std::shared_ptr<WantedStream> wanted;  // written before others see the queue
  std::deque<Item> items ABSL_GUARDED_BY(mu);
  bool draining ABSL_GUARDED_BY(mu) = false;                  // a task empties `items`
  std::shared_ptr<HeldByStream> current ABSL_GUARDED_BY(mu);  // of the item that runs
  // An exception takes what kernels use, and what waits in the stream is being given up; or it has been.
  enum class Unwound : uint8_t { kNo, kNow, kYes };
  std::atomic<Unwound> unwound{Unwound::kNo};
  RankCondVar idle ABSL_GUARDED_BY(mu);      // not draining any more
  RankCondVar given_up ABSL_GUARDED_BY(mu);  // `unwound` is not kNow any more
  absl::Status failure ABSL_GUARDED_BY(mu);
  WaitedWorks waited_for ABSL_GUARDED_BY(mu);
};

std::shared_ptr<SimStream::Queue> SimStream::Queue::make(RankState& context, std::string_view name) {
  auto queue = std::make_shared<Queue>(context, name);
  queue->wanted = std::make_shared<WantedStream>([of = std::weak_ptr(queue)] {
    const std::shared_ptr<Queue> queue = of.lock();  // the task that empties it has it, too
    if (queue == nullptr) return;
    const auto give_up = [queue] { queue->give_up(); };
    run_for_fibers(queue->world, queue->rank, "drop", give_up, /*waits=*/true);
  });
  Queue* const held = queue.get();
  return std::shared_ptr<Queue>(held, [queue = std::move(queue)](Queue*) { queue->wanted->let_go(); });
}

void SimStream::Queue::check_rank(const char* what, CodeSite code) const {
  if (const Task* const task = Task::current();
      task != nullptr && (task->scheduler != &scheduler || task->info.rank != rank)) {
    refuse({.rank = task->info.rank, .group = {}, .op = what}, ErrorKind::kInvalidArgument, who(), what,
           " was called by rank ", task->info.rank, ", want the rank that made the stream",
           site_place(Site{.code = code}));
  }
}

void SimStream::Queue::point(const char* what, CodeSite code, bool polls) const {
  check_rank(what, code);
  const Site site{.what = what, .code = code, .detail = name};
  polls ? scheduler.poll(site) : scheduler.point(site);
}

void SimStream::Queue::push(Item item) {
  const CallScope call(world, [&] { return called(item.what, item.code); });
  const char* const what = item.what;
  const CodeSite code = item.code;
  check_rank(what, code);
  bool begins = false;
  {
    RankMutexLock lock(&mu);
    items.push_back(std::move(item));
    begins = !std::exchange(draining, true);
  }
  // Without the lock: at the end of a world the body runs here.
  if (begins)
    scheduler.spawn({.rank = rank, .kind = TaskKind::kStream}, [self = shared_from_this()] { self->drain(); });
  // Not before: the stream may be through with the item when the caller goes on.
  point(what, code);
}

void SimStream::Queue::give_up() noexcept {
  const WorldPin alive(world);
  if (!alive) return;  // all has ended with the world
  // The last event or work of the stream may be another rank's, and the stream through by then.
  uses_memory_of(world, rank);
  const bool unwinds = context.unwinding();
  if (unwinds) unwound.store(Unwound::kNow);
  std::vector<std::shared_ptr<HeldByStream>> held;
  {
    RankMutexLock lock(&mu);
    if (current != nullptr) held.push_back(current);
    for (const Item& item : items) {
      if (item.held != nullptr) held.push_back(item.held);
    }
  }
  for (const std::shared_ptr<HeldByStream>& each : held) each->give_up();
  if (!unwinds) return;
  RankMutexLock lock(&mu);
  unwound.store(Unwound::kYes);
  given_up.notify_all();
}

void SimStream::Queue::drain() {
  for (;;) {
    Item item;
    {
      RankMutexLock lock(&mu);
      if (items.empty()) {
        draining = false;
        idle.notify_all();
        return;
      }
      item = std::move(items.front());
      items.pop_front();
      current = item.held;
    }
    scheduler.point(Site{.what = item.what, .code = item.code, .detail = name});
    absl::Status cause = scheduler.aborted() ? scheduler.abort_cause() : absl::OkStatus();
    // A call behind a kernel that was left out is given up before it is made: nobody gets data that was never computed.
    if (item.held != nullptr && unwound.load() == Unwound::kNow) {
      RankMutexLock lock(&mu);
      const absl::Status waited = given_up.await(
          &mu, [this]() { return unwound.load() != Unwound::kNow; },
          Site{.what = item.what, .code = item.code, .detail = name});
      if (cause.ok()) cause = waited;
    }
    if (cause.ok() && item.kernel && unwound.load() != Unwound::kNo)
      cause = make_error(ErrorKind::kAborted, who(), "an exception unwound before ", item.what);
    const absl::Status status = item.run(cause);
    item.run = nullptr;  // works and tensors that it held go here, not under the lock
    std::shared_ptr<HeldByStream> held;
    RankMutexLock lock(&mu);
    current.swap(held);
    if (status.ok() || !failure.ok()) continue;
    failure = status;
    // An exception of a kernel. Errors of calls are told where they arise.
    if (cause.ok() && item.kernel) context.world().not_retrieved(status);
  }
}

SimStream::SimStream(RankContext& rank, std::string_view name) : queue_(Queue::make(state_of(rank), name)) {}

SimStream::~SimStream() {
  if (std::uncaught_exceptions() == 0) [[likely]]
    return;
  if (const WorldPin alive(queue_->world); alive && queue_->context.unwinding()) queue_->give_up();
}

std::string_view SimStream::name() const { return queue_->name; }

void SimStream::launch(Callback<void()> kernel, std::string_view what, CodeSite code) {
  require(kernel, {.rank = queue_->rank, .group = {}, .op = "stream launch"}, code, "rank ", queue_->rank, ", stream ",
          queue_->name, ": stream launch: kernel");
  auto run = [queue = queue_.get(), kernel = std::move(kernel), what = std::string(what),
              code](const absl::Status& cause) mutable {
    if (!cause.ok()) return cause;
    queue->learn_waited_for();
    return internal::caught(absl::StrCat(queue->who(), what), code, [&kernel] {
      kernel();
      return absl::OkStatus();
    });
  };
  queue_->push({.what = "stream launch", .code = code, .run = std::move(run), .kernel = true});
}

void SimStream::wait_for(const Work& work, absl::Duration timeout, CodeSite code) {
  if (timeout < absl::ZeroDuration()) {
    refuse({.rank = queue_->rank, .group = {}, .op = "block_current_stream"}, ErrorKind::kInvalidArgument,
           queue_->who(), "block_current_stream: timeout is ", absl::FormatDuration(timeout), ", want at least 0",
           site_place(Site{.code = code}));
  }
  WorkState* const waited_for = WorkState::of(work);
  if (waited_for == nullptr) return;
  const CallScope call(queue_->world, [&] { return queue_->called("block_current_stream", code); });
  waited_for->settled("block_current_stream", code);
  // A work of the user's own may answer with a future that its owner completes.
  const auto held = std::make_shared<HeldWork>(waited_for->get_future(work).work(), queue_->wanted);
  auto run = [queue = queue_.get(), held, timeout, code](const absl::Status& cause) {
    if (!cause.ok()) return cause;
    WorkState* const state = held->state().get();
    if (state == nullptr) return absl::OkStatus();
    absl::Status waited = state->await(timeout, timeout == absl::InfiniteDuration(), code);
    if (state->is_over()) {
      state->seen_done();
      if (!waited.ok()) state->learned_of_failure();
    }
    queue->has_waited_for(held->state());
    if (!waited.ok() && !state->is_completed() && error_kind(waited) == ErrorKind::kTimeout) {
      waited = make_error(ErrorKind::kTimeout, queue->who(), "waited ", absl::FormatDuration(timeout),
                          " for a work: ", waited.message());
    }
    return waited;
  };
  queue_->push({.what = "block_current_stream", .code = code, .run = std::move(run), .held = held});
}

Stream::Event SimStream::record(CodeSite code) {
  const CallScope call(queue_->world, [&] { return queue_->called("event record", code); });
  auto passed = std::make_shared<StreamWork>(&queue_->scheduler, queue_->rank, "event");
  auto mark = std::make_shared<Mark>(std::move(passed));
  queue_->push({.what = "event record", .code = code, .run = [queue = queue_.get(), mark](const absl::Status& cause) {
                  {
                    RankMutexLock lock(&queue->mu);
                    mark->before = queue->waited_for.all();
                  }
                  mark->passed->complete(cause);
                  return cause;
                }});
  return Stream::Event(std::make_shared<SimEvent>(std::move(mark), queue_, queue_->wanted));
}

void SimStream::wait_event(const Stream::Event& event, CodeSite code) {
  if (event.state() == nullptr) return;
  const auto* const known = dynamic_cast<const SimEvent*>(event.state().get());
  if (known == nullptr) {
    refuse({.rank = queue_->rank, .group = {}, .op = "wait_event"}, ErrorKind::kInvalidArgument, queue_->who(),
           "wait_event: the event is one of another kind of stream, want a SimStream's",
           site_place(Site{.code = code}));
  }
  const CallScope call(queue_->world, [&] { return queue_->called("wait_event", code); });
  (void)known->mark()->passed->settled("wait_event", code);  // none of another world that lives
  auto run = [queue = queue_.get(), mark = known->mark(), wanted = known->stream()->want(queue_->wanted),
              code](const absl::Status& cause) {
    if (!cause.ok()) return cause;
    const absl::Status waited = mark->passed->await(absl::InfiniteDuration(), /*timeout_is_default=*/true, code);
    if (mark->passed->is_over()) {
      for (const std::shared_ptr<WorkState>& work : mark->before) queue->has_waited_for(work);
    }
    return waited;
  };
  queue_->push({.what = "stream wait_event", .code = code, .run = std::move(run)});
}

void SimStream::synchronize(CodeSite code) {
  Queue& queue = *queue_;
  const CallScope call(queue.world, [&] { return queue.called("synchronize", code); });
  queue.point("stream synchronize", code);
  absl::Status status;
  {
    RankMutexLock lock(&queue.mu);
    status = queue.idle.await(
        &queue.mu, [&queue]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !queue.draining; },
        Site{.what = "stream synchronize", .code = code, .detail = queue.name});
    if (status.ok()) status = queue.failure;
  }
  queue.learn_waited_for();
  retrieved_error(queue.world, queue.rank, status);
  throw_if_error(status, {.rank = queue.rank, .group = {}, .op = "stream synchronize"});
}

bool SimStream::query(CodeSite code) {
  const CallScope call(queue_->world, [&] { return queue_->called("query", code); });
  queue_->point("stream query", code, /*polls=*/true);
  {
    RankMutexLock lock(&queue_->mu);
    if (queue_->draining) return false;
  }
  queue_->learn_waited_for();
  return true;
}

absl::Status SimStream::status() const {
  const std::shared_ptr<Queue> queue = queue_->shared_from_this();  // the stream may go at the point
  // The only method that any rank may call, and that a stream answers whose world has ended.
  if (const Task* const task = Task::current(); task != nullptr && task->scheduler == &queue->scheduler) {
    point_of_caller(Site{.what = "stream status", .detail = queue->name});
    if (StepRecord* const record = task->record; record != nullptr) record->write_memory(queue->rank);
  } else {
    ObjectName::uses_outer();
  }
  absl::Status failure;
  const auto read = [&] {
    RankMutexLock lock(&queue->mu);
    failure = queue->failure;
  };
  run_for_fibers(queue->world, queue->rank, "stream status", read, /*waits=*/true);
  retrieved_error(queue->world, queue->rank, failure);
  return failure;
}

absl::StatusOr<Work> SimStream::issue(ProcessGroup& group, CollectiveCall&& call) {
  const char* const op = op_row(call.op).name;
  const CodeSite code = call.code;
  const CallScope scope(queue_->world, [&] { return queue_->called(op, code); });
  queue_->check_rank(op, code);
  // The call holds no stream of which nobody wants anything.
  auto fail = [of = std::weak_ptr(queue_->shared_from_this())](const absl::Status& status) {
    if (const std::shared_ptr<Queue> queue = of.lock(); queue != nullptr) queue->fail(status);
  };
  const std::shared_ptr<StreamCall> held =
      StreamCall::make(queue_->context, group, std::move(call), absl::StrCat("stream ", queue_->name), queue_,
                       queue_->wanted, std::move(fail));
  Work work = WorkState::handle(held->outer());
  GroupFront::of(group).queued_on_stream(held->outer());
  auto run = [queue = queue_.get(), held](const absl::Status& cause) {
    if (cause.ok()) queue->learn_waited_for();
    return held->run(cause);
  };
  queue_->push({.what = op, .code = code, .run = std::move(run), .held = held});
  return work;
}

}  // namespace rankloom

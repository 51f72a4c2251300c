#include <deque>
#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/ops/op_table.h"
#include "collectives/work/stream_work.h"
#include "collectives/work/work_state.h"
#include "rankloom/error.h"
#include "rankloom/process_group.h"
#include "rankloom/stream.h"
#include "rankloom/world.h"
#include "sim/base/dist_error.h"
#include "sim/base/text.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

class SimEvent final : public internal::EventState {
 public:
  explicit SimEvent(std::shared_ptr<WorkState> passed) : passed_(std::move(passed)) {}

  bool done() override {
    if (passed_->is_completed()) return true;
    const CallScope call(passed_->world_ref(), [this] { return called("query"); });
    passed_->scheduler()->poll(Site{.what = "event query"});
    return passed_->is_completed();
  }
  absl::Status wait(CodeSite code) override {
    if (passed_->is_completed() && passed_->world_ref().foreign()) return passed_->status();
    const CallScope call(passed_->world_ref(), [this] { return called("synchronize"); });
    passed_->scheduler()->point(Site{.what = "event synchronize", .code = code});
    return passed_->await(absl::InfiniteDuration(), /*timeout_is_default=*/true, code);
  }
  const std::shared_ptr<WorkState>& passed() const { return passed_; }

 private:
  CalledHandle called(const char* op) const { return {.rank = passed_->rank(), .handle = "event", .op = op}; }

  const std::shared_ptr<WorkState> passed_;
};

}  // namespace

struct SimStream::Queue : std::enable_shared_from_this<Queue> {
  // One thing that is queued.
  struct Item {
    const char* what;
    CodeSite code;
    // Does it, or, in a world that was aborted for `cause`, does what must be done all the same.
    absl::AnyInvocable<absl::Status(const absl::Status& cause)> run;
  };

  Queue(RankState& context, std::string_view stream_name)
      : rank(context.rank()),
        name(stream_name),
        scheduler(context.world().scheduler()),
        world(&scheduler),
        mu(&scheduler, internal::LockLevel::kStreamQueue) {}

  void push(const char* what, CodeSite code, absl::AnyInvocable<absl::Status(const absl::Status&)> run);
  void drain();
  CalledHandle called(const char* what) const {
    return {.rank = rank, .handle = absl::StrCat("stream ", name), .op = what};
  }
  std::string who() const { return absl::StrCat("rank ", rank, ", stream ", name, ": "); }
  // A scheduling point of whoever uses the stream. Throws if that is another rank.
  // `polls`: the user asks whether something has happened yet.
  void point(const char* what, CodeSite code, bool polls = false) const;

  const int rank;
  const std::string name;
  Scheduler& scheduler;
  const WorldRef world;
  // Memory of the rank, to which each step of the rank's tasks writes in an explored run: nobody else gets here but by status().
  mutable RankMutex mu;
  std::deque<Item> items ABSL_GUARDED_BY(mu);
  bool draining ABSL_GUARDED_BY(mu) = false;  // a task empties `items`
  RankCondVar idle ABSL_GUARDED_BY(mu);       // not draining any more
  absl::Status failure ABSL_GUARDED_BY(mu);
};

void SimStream::Queue::point(const char* what, CodeSite code, bool polls) const {
  if (const Task* const task = Task::current();
      task != nullptr && (task->scheduler != &scheduler || task->info.rank != rank)) {
    refuse({.rank = task->info.rank, .group = {}, .op = what}, ErrorKind::kInvalidArgument, who(), what,
           " was called by rank ", task->info.rank, ", want the rank that made the stream");
  }
  const Site site{.what = what, .code = code, .detail = name};
  polls ? scheduler.poll(site) : scheduler.point(site);
}

void SimStream::Queue::push(const char* what, CodeSite code,
                            absl::AnyInvocable<absl::Status(const absl::Status&)> run) {
  const CallScope call(world, [&] { return called(what); });
  point(what, code);
  RankMutexLock lock(&mu);
  items.push_back({what, code, std::move(run)});
  if (std::exchange(draining, true)) return;
  scheduler.spawn({.rank = rank, .kind = TaskKind::kStream}, [self = shared_from_this()] { self->drain(); });
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
    }
    scheduler.point(Site{.what = item.what, .code = item.code, .detail = name});
    const absl::Status status = item.run(scheduler.aborted() ? scheduler.abort_cause() : absl::OkStatus());
    item.run = nullptr;  // works and tensors that it held go here, not under the lock
    if (!status.ok()) {
      RankMutexLock lock(&mu);
      if (failure.ok()) failure = status;
    }
  }
}

SimStream::SimStream(RankContext& rank, std::string_view name)
    : queue_(std::make_shared<Queue>(state_of(rank), name)) {}
SimStream::~SimStream() = default;

std::string_view SimStream::name() const { return queue_->name; }

void SimStream::launch(Callback<void()> kernel, std::string_view what, CodeSite code) {
  auto run = [queue = queue_.get(), kernel = std::move(kernel),
              what = std::string(what)](const absl::Status& cause) mutable {
    if (!cause.ok()) return cause;
    return internal::caught(absl::StrCat(queue->who(), what), [&kernel] {
      kernel();
      return absl::OkStatus();
    });
  };
  queue_->push("stream launch", code, std::move(run));
}

void SimStream::wait_for(const Work& work, absl::Duration timeout, CodeSite code) {
  if (timeout < absl::ZeroDuration()) {
    refuse({.rank = queue_->rank, .group = {}, .op = "block_current_stream"}, ErrorKind::kInvalidArgument,
           queue_->who(), "block_current_stream: timeout is ", absl::FormatDuration(timeout), ", want at least 0");
  }
  WorkState* const waited_for = WorkState::of(work);
  if (waited_for == nullptr) return;
  waited_for->settled("block_current_stream");
  // A work of the user's own may answer with a future that its owner completes. The future is a handle: while the stream
  // holds it, the call is not dropped.
  auto run = [queue = queue_.get(), future = waited_for->get_future(work), timeout,
              code](const absl::Status& cause) mutable {
    if (!cause.ok()) return cause;
    WorkState* const state = WorkState::of(future.work());
    if (state == nullptr) return absl::OkStatus();
    absl::Status waited = state->await(timeout, timeout == absl::InfiniteDuration(), code);
    if (!waited.ok() && !state->is_completed() && error_kind(waited) == ErrorKind::kTimeout) {
      waited = make_error(ErrorKind::kTimeout, queue->who(), "waited ", absl::FormatDuration(timeout),
                          " for a work: ", waited.message());
    }
    return waited;
  };
  queue_->push("block_current_stream", code, std::move(run));
}

Stream::Event SimStream::record(CodeSite code) {
  const CallScope call(queue_->world, [this] { return queue_->called("event record"); });
  auto passed = std::make_shared<StreamWork>(&queue_->scheduler, queue_->rank, "event");
  queue_->push("event record", code, [passed](const absl::Status& cause) {
    passed->complete(cause);
    return cause;
  });
  return Stream::Event(std::make_shared<SimEvent>(std::move(passed)));
}

void SimStream::wait_event(const Stream::Event& event, CodeSite code) {
  if (event.state() == nullptr) return;
  const auto* const mark = dynamic_cast<const SimEvent*>(event.state().get());
  if (mark == nullptr) {
    refuse({.rank = queue_->rank, .group = {}, .op = "wait_event"}, ErrorKind::kInvalidArgument, queue_->who(),
           "wait_event: the event is one of another kind of stream, want a SimStream's");
  }
  queue_->push("stream wait_event", code, [passed = mark->passed(), code](const absl::Status& cause) {
    return cause.ok() ? passed->await(absl::InfiniteDuration(), /*timeout_is_default=*/true, code) : cause;
  });
}

void SimStream::synchronize(CodeSite code) {
  Queue& queue = *queue_;
  const CallScope call(queue.world, [&queue] { return queue.called("synchronize"); });
  queue.point("stream synchronize", code);
  absl::Status status;
  {
    RankMutexLock lock(&queue.mu);
    status = queue.idle.await(
        &queue.mu, [&queue]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !queue.draining; },
        Site{.what = "stream synchronize", .code = code, .detail = queue.name});
    if (status.ok()) status = queue.failure;
  }
  throw_if_error(status, {.rank = queue.rank, .group = {}, .op = "stream synchronize"});
}

bool SimStream::query(CodeSite code) {
  const CallScope call(queue_->world, [this] { return queue_->called("query"); });
  queue_->point("stream query", code, /*polls=*/true);
  RankMutexLock lock(&queue_->mu);
  return !queue_->draining;
}

absl::Status SimStream::status() const {
  // The only method that any rank may call, and that a stream answers whose world has ended.
  if (const Task* const task = Task::current(); task != nullptr && task->scheduler == &queue_->scheduler) {
    if (StepRecord* const record = task->record; record != nullptr) record->write_memory(queue_->rank);
  }
  RankMutexLock lock(&queue_->mu);
  return queue_->failure;
}

absl::StatusOr<Work> SimStream::issue(ProcessGroup& group, CollectiveCall&& call) {
  const char* const op = op_row(call.op).name;
  auto outer =
      std::make_shared<StreamWork>(&queue_->scheduler, queue_->rank, op, std::string(group.group()->name()), call.seq,
                                   std::vector<TensorView>(call.outputs.begin(), call.outputs.end()));
  const CodeSite code = call.code;
  auto run = [group = &group, held = group.weak_from_this().lock(), outer,
              call = std::move(call)](const absl::Status& cause) mutable {
    absl::Status ended = cause;
    if (ended.ok()) {
      const CodeSite code = call.code;
      const absl::Duration timeout = call.timeout;
      const bool timeout_is_default = call.timeout_is_default;
      ended = internal::caught(outer->op(), [&]() -> absl::Status {
        absl::StatusOr<Work> inner = group->execute(std::move(call));
        if (!inner.ok() || WorkState::of(*inner) == nullptr) return inner.status();
        return WorkState::of(*inner)->wait(timeout, timeout_is_default, code);
      });
    }
    outer->complete(ended);
    return ended;
  };
  queue_->push(op, code, std::move(run));
  return WorkState::handle(std::move(outer));
}

}  // namespace rankloom

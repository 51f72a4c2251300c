#include "collectives/streams/device_runtime.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/work/completion.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/forked_run.h"
#include "sim/base/library_scope.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "sim/scheduler/acts_for_fibers.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {
namespace {

constexpr std::string_view kKey = "device runtime";
// How often a device that is silent is asked whether it still lives.
constexpr int64_t kHealthNs = 100'000'000;
// How often a lane is asked for while all are in use.
constexpr int64_t kLaneNs = 1'000'000;

absl::Status end_of_world() {
  return make_error(ErrorKind::kAborted, "the world ended while the stream waited for a work");
}

// A rank that waits for a mark: in reports, for the ranks that could end what the stream is blocked on.
class MarkWait final : public WorkState, public WaitsFor {
 public:
  MarkWait(DeviceRuntime* runtime, int rank, const char* what, std::string detail, DeviceGates gates)
      : WorkState(&runtime->scheduler(), rank),
        runtime_(*runtime),
        what_(what),
        detail_(std::move(detail)),
        gates_(std::move(gates)) {}

  const char* op() const override { return what_; }
  void append_ranks(std::vector<int>* ranks) const override {
    for_each_awaited([ranks](const WaitsFor& waits) { waits.append_ranks(ranks); });
    std::sort(ranks->begin(), ranks->end());
    ranks->erase(std::unique(ranks->begin(), ranks->end()), ranks->end());
  }
  absl::Status explain() const override {
    absl::Status cause;
    for_each_awaited([&cause](const WaitsFor& waits) {
      if (cause.ok()) cause = waits.explain();
    });
    return cause;
  }

 protected:
  Site wait_site(CodeSite code) const override {
    return Site{.what = what_, .code = code, .detail = detail_, .waits_for = this};
  }

 private:
  void for_each_awaited(absl::FunctionRef<void(const WaitsFor&)> visit) const {
    for (const std::shared_ptr<WorkState>& work : runtime_.awaited(gates_)) {
      if (const Site site = work->site({}); site.waits_for != nullptr) visit(*site.waits_for);
    }
  }

  DeviceRuntime& runtime_;
  const char* const what_;
  const std::string detail_;
  const DeviceGates gates_;
};

}  // namespace

void use_device(WorldState& world, const std::shared_ptr<DeviceDriver>& driver) {
  bool made = false;
  world.scheduler().uncovered("a device");
  const auto make = [&] {
    made = true;
    return std::make_shared<DeviceRuntime>(&world, driver);
  };
  const auto runtime = world.shared<DeviceRuntime>(kKey, make, WorldState::Maker::kSame);
  if (!made) return;
  world.set_uses_device([weak = std::weak_ptr(runtime)] {
    const auto alive = weak.lock();
    return alive != nullptr ? alive->blocked_text() : "";
  });
  world.on_abort([weak = std::weak_ptr(runtime)](const absl::Status& cause) {
    if (const auto alive = weak.lock(); alive != nullptr) alive->open_all(cause);
  });
  // Another rank may have seen the runtime, and blocked a stream, before.
  if (world.scheduler().aborted()) runtime->open_all(world.scheduler().abort_cause());
  world.at_end(WorldState::kDevices, [weak = std::weak_ptr(runtime), &world] {
    const auto alive = weak.lock();
    if (alive == nullptr) return;
    {
      const ActsForFibers alone(world.scheduler());
      alive->open_at_end();
    }
    alive->join_at_end();
  });
}

std::string DeviceStreamState::who() const { return absl::StrCat("rank ", rank, ", stream ", name, ": "); }

void DeviceStreamState::fail(const absl::Status& status) {
  OrderedMutexLock lock(&mu_);
  if (failure_.ok()) failure_ = status;
}

absl::Status DeviceStreamState::status() const {
  OrderedMutexLock lock(&mu_);
  return failure_;
}

absl::Status DeviceStreamState::take_status() {
  OrderedMutexLock lock(&mu_);
  return std::exchange(failure_, absl::OkStatus());
}

void DeviceStreamState::have_waited_for(const WaitedWorks::List& works) {
  for (const std::shared_ptr<WorkState>& work : works) {
    WaitedWorks::List learned;
    OrderedMutexLock lock(&mu_);
    learned = waited_for_.add(work);
  }
}

WaitedWorks::List DeviceStreamState::waited_for() const {
  OrderedMutexLock lock(&mu_);
  return waited_for_.all();
}

void DeviceStreamState::learn_waited_for() {
  WaitedWorks::learn(waited_for());
  WaitedWorks::List learned;
  OrderedMutexLock lock(&mu_);
  learned = waited_for_.drop_learned();
}

DeviceMark::DeviceMark(std::shared_ptr<DeviceRuntime> runtime, int rank, std::shared_ptr<const RecordedEvent> event,
                       DeviceGates gates, WaitedWorks::List waited_for, std::shared_ptr<const void> hold)
    : runtime_(std::move(runtime)),
      rank_(rank),
      event_(std::move(event)),
      gates_(std::move(gates)),
      waited_for_(std::move(waited_for)),
      hold_(std::move(hold)) {}

DeviceMark::~DeviceMark() = default;

WaitedWorks::List DeviceMark::waited_for() const {
  WaitedWorks::List all = runtime_->waited_for(gates_);
  all.insert(all.end(), waited_for_.begin(), waited_for_.end());
  return all;
}

bool DeviceMark::done(CodeSite code) {
  const CallScope call(runtime_->world_ref(),
                       [&] { return CalledHandle{.rank = rank_, .handle = "event", .op = "query", .code = code}; });
  runtime_->scheduler().poll(Site{.what = "event query", .code = code});
  const absl::StatusOr<bool> passed = runtime_->driver().passed(event_->handle());
  if (!passed.ok()) [[unlikely]] {
    refuse({.rank = rank_, .group = {}, .op = "query"}, error_kind(passed.status()), "rank ", rank_,
           ": event query: ", located(message_of(passed.status()), code));
  }
  if (*passed) WaitedWorks::learn(waited_for());
  return *passed;
}

absl::Status DeviceMark::wait(CodeSite code) {
  const CallScope call(runtime_->world_ref(), [&] {
    return CalledHandle{.rank = rank_, .handle = "event", .op = "synchronize", .code = code};
  });
  runtime_->scheduler().point(Site{.what = "event synchronize", .code = code});
  absl::Status waited = runtime_->await(*this, rank_, "event synchronize", "", code);
  if (waited.ok()) WaitedWorks::learn(waited_for());
  return waited;
}

DeviceRuntime::DeviceRuntime(WorldState* world, std::shared_ptr<DeviceDriver> driver)
    : world_(*world), scheduler_(world->scheduler()), world_ref_(&scheduler_), driver_(std::move(driver)) {}

DeviceRuntime::~DeviceRuntime() {
  open_at_end();
  join_at_end();
}

std::shared_ptr<DeviceRuntime> DeviceRuntime::of(WorldState& world) {
  return world.shared<DeviceRuntime>(
      kKey, [] { return nullptr; }, WorldState::Maker::kSame);
}

absl::Status DeviceRuntime::launch(const std::shared_ptr<DeviceLaunch>& launch, int rank, int device, const Site& site,
                                   std::optional<KernelPlan> plan, absl::Span<const DeviceMark* const> after,
                                   Done done) {
  launch->runtime_ = this;
  launch->rank_ = rank;
  launch->device_ = device;
  launch->site_ = site;
  launch->done_ = std::move(done);
  launch->plan_ = std::move(plan);
  absl::Status started = start(launch, after);
  if (!started.ok()) {
    launch->done_ = nullptr;  // nobody has ended it
    launch->off_device.store(true, std::memory_order_release);
  }
  return started;
}

void DeviceRuntime::await_device(const std::shared_ptr<DeviceLaunch>& launch, bool unwinds) {
  if (scheduler_.aborted()) open_all(scheduler_.abort_cause());
  WaitTurns turns;
  while (!launch->off_device.load(std::memory_order_acquire)) {
    if (unwinds) {
      take_back(launch);  // each time: another member may be about to put it behind a gate
    } else if (launch->closed.load(std::memory_order_acquire) > 0) {
      return;
    }
    if (on_this_thread_ == this) (void)take_turn();  // the end of a launch let go of what waits for another one
    turns.next();
  }
}

void DeviceRuntime::take_back(const std::shared_ptr<DeviceLaunch>& launch) {
  OrderedMutexLock lock(&mu_);
  if (launch->gates_ == 0) return;
  launch->gates_ = 0;  // opened later, they submit nothing
  fail_launch(launch, make_error(ErrorKind::kAborted, "an exception unwound a rank of the call"));
}

void DeviceRuntime::end_launches() {
  {
    OrderedMutexLock lock(&mu_);
    std::move(ended_.begin(), ended_.end(), std::back_inserter(ending_));
    ended_.clear();
  }
  while (!ending_.empty()) {
    const Ended next = std::move(ending_.front());
    ending_.pop_front();
    end(next.launch, next.status);
  }
}

absl::Status DeviceRuntime::start(const std::shared_ptr<DeviceLaunch>& launch,
                                  absl::Span<const DeviceMark* const> after) {
  for (const DeviceMark* const mark : after) launch->after_.push_back(mark->event());
  {
    OrderedMutexLock lock(&mu_);
    if (stop_) return make_error(ErrorKind::kAborted, "the world has ended");
    std::vector<const DeviceGate*> closed;
    int closed_for_good = 0;  // but for a rank that opens them
    for (const DeviceMark* const mark : after) {
      for (const std::shared_ptr<DeviceGate>& gate : mark->gates()) {
        if (gate->open.load(std::memory_order_relaxed)) continue;
        if (std::find(closed.begin(), closed.end(), gate.get()) != closed.end()) continue;
        closed.push_back(gate.get());
        gate->behind.push_back(launch);
        if (!gate->time.strong) ++closed_for_good;
      }
    }
    launch->gates_ = static_cast<int>(closed.size());
    launch->closed.store(closed_for_good, std::memory_order_release);
    if (closed_for_good == 0) launch->waker_ = std::make_unique<World::OutsideWaker>(&scheduler_);
    launches_.push_back(launch);
    start_threads();
    if (!closed.empty()) return absl::OkStatus();
    if (!waiting_.empty()) {
      waiting_.push_back(launch);
      submit_parker_.unpark();
      return absl::OkStatus();
    }
  }
  const absl::StatusOr<bool> submitted = try_submit(launch);
  if (submitted.ok() && *submitted) return absl::OkStatus();
  if (submitted.ok()) {
    {
      OrderedMutexLock lock(&mu_);
      waiting_.push_back(launch);
    }
    submit_parker_.unpark();
    return absl::OkStatus();
  }
  std::unique_ptr<World::OutsideWaker> waker;
  OrderedMutexLock lock(&mu_);
  if (std::exchange(launch->finished_, true)) return absl::OkStatus();  // ended by the opener, which saw a failure, too
  std::erase(launches_, launch);
  waker = std::move(launch->waker_);
  parker_.unpark();  // at the world's end the opener waits for the last launch
  return submitted.status();
}

absl::StatusOr<bool> DeviceRuntime::is_ready(const DeviceLaunch& launch) const {
  for (const std::shared_ptr<const RecordedEvent>& event : launch.after_) {
    const absl::StatusOr<bool> passed = driver_->passed(event->handle());
    if (!passed.ok() || !*passed) return passed;
  }
  return true;
}

absl::StatusOr<bool> DeviceRuntime::try_submit(const std::shared_ptr<DeviceLaunch>& launch) {
  const absl::StatusOr<bool> ready = is_ready(*launch);
  if (!ready.ok()) return ready.status();
  const absl::StatusOr<std::shared_ptr<DeviceDriver::Lane>> lane = driver_->take_lane(launch->device_, *ready);
  if (!lane.ok()) return lane.status();
  if (*lane == nullptr) return false;
  if (absl::Status submitted = submit(launch, *lane, *ready); !submitted.ok()) return submitted;
  return true;
}

absl::Status DeviceRuntime::submit(const std::shared_ptr<DeviceLaunch>& launch,
                                   std::shared_ptr<DeviceDriver::Lane> lane, bool ready) {
  const std::vector<std::shared_ptr<const RecordedEvent>> after = std::move(launch->after_);
  std::optional<KernelPlan> plan = std::move(launch->plan_);
  launch->plan_.reset();
  const auto given = [&]() -> absl::Status {
    for (const std::shared_ptr<const RecordedEvent>& event : after) {
      if (ready) break;
      if (absl::Status waits = lane->wait_event(event->handle()); !waits.ok()) return waits;
    }
    return plan.has_value() ? lane->run(*plan) : absl::OkStatus();
  };
  absl::Status status = given();
  if (status.ok()) {
    {
      OrderedMutexLock lock(&mu_);
      launch->lane_ = lane;
      launch->ready_ = ready;
    }
    status = lane->call_host(&on_host, launch.get());
    if (status.ok()) return status;
    OrderedMutexLock lock(&mu_);
    if (launch->lane_ == nullptr) return status;  // ended by the opener, which has seen to the lane
    launch->lane_ = nullptr;
  }
  // A lane in which something failed is not used again; and what it has, the device may still do.
  OrderedMutexLock lock(&mu_);
  lost_.push_back({.launch = launch, .lane = std::move(lane)});
  driver_->give_lane(launch->device_, nullptr, ready);
  return status;
}

void DeviceRuntime::on_host(void* launch) {
  auto* const raw = static_cast<DeviceLaunch*>(launch);
  DeviceRuntime& self = *raw->runtime_;
  // The runtime stays: its end waits for this launch, which the opener hears of.
  OrderedMutexLock lock(&self.mu_);
  self.ended_.push_back({.launch = raw->shared_from_this(), .status = absl::OkStatus()});
  self.parker_.unpark();
}

void DeviceRuntime::fail_launch(const std::shared_ptr<DeviceLaunch>& launch, const absl::Status& status) {
  ended_.push_back({.launch = launch, .status = status});
  parker_.unpark();
}

void DeviceRuntime::start_threads() {
  if (std::exchange(threads_, true)) return;
  opener_ = std::thread([this] { opener_main(); });
  submitter_ = std::thread([this] { submitter_main(); });
}

void DeviceRuntime::opener_main() {
  const LibraryScope library;
  on_this_thread_ = this;
  for (;;) {
    const std::optional<int64_t> next = take_turn();
    if (!next.has_value()) return;
    if (*next > 0) parker_.park(*next);
  }
}

void DeviceRuntime::submitter_main() {
  const LibraryScope library;
  for (;;) {
    const int64_t next = submit_waiting();
    {
      OrderedMutexLock lock(&mu_);
      if (stop_submits_) return;
    }
    look_at_health();
    submit_parker_.park(std::min(next, health_at_));
  }
}

int64_t DeviceRuntime::submit_waiting() {
  std::vector<std::shared_ptr<DeviceLaunch>> waiting;
  {
    OrderedMutexLock lock(&mu_);
    waiting = waiting_;
  }
  bool all = true;
  for (const std::shared_ptr<DeviceLaunch>& launch : waiting) {
    absl::Status submitted = scheduler_.abort_cause();
    if (submitted.ok()) {
      const absl::StatusOr<bool> tried = try_submit(launch);
      if (tried.ok() && !*tried) {
        all = false;
        continue;
      }
      submitted = tried.status();
    }
    OrderedMutexLock lock(&mu_);
    std::erase(waiting_, launch);
    if (!submitted.ok()) fail_launch(launch, submitted);
  }
  return all ? Deadline::kNever : monotonic_ns() + kLaneNs;
}

void DeviceRuntime::look_at_health() {
  const int64_t now = monotonic_ns();
  if (now < health_at_) return;
  health_at_ = now + kHealthNs;
  std::vector<std::pair<std::shared_ptr<DeviceLaunch>, std::shared_ptr<DeviceDriver::Lane>>> silent;
  {
    OrderedMutexLock lock(&mu_);
    for (const std::shared_ptr<DeviceLaunch>& launch : launches_) {
      if (launch->lane_ != nullptr) silent.emplace_back(launch, launch->lane_);
    }
  }
  for (const auto& [launch, lane] : silent) {
    const absl::Status health = lane->health();
    if (health.ok()) continue;
    OrderedMutexLock lock(&mu_);
    fail_launch(launch, health);
  }
}

std::optional<int64_t> DeviceRuntime::take_turn() {
  bool ended = false;
  std::vector<std::shared_ptr<DeviceGate>> expired;
  const int64_t now = monotonic_ns();
  int64_t next = Deadline::kNever;
  {
    OrderedMutexLock lock(&mu_);
    ended = !ended_.empty();
    for (const std::shared_ptr<DeviceGate>& gate : gates_) {
      if (gate->deadline_ns <= now) {
        expired.push_back(gate);
      } else {
        next = std::min(next, gate->deadline_ns);
      }
    }
    if (stop_ && launches_.empty() && !ended) return std::nullopt;
  }
  end_launches();
  for (const std::shared_ptr<DeviceGate>& gate : expired) {
    open(gate,
         make_error(ErrorKind::kTimeout, gate->stream->who(), "waited ", absl::FormatDuration(gate->time.timeout),
                    " for a work: ", gate->text),
         OpenedBy::kTimeout);
  }
  return ended || !expired.empty() ? 0 : next;
}

void DeviceRuntime::end(const std::shared_ptr<DeviceLaunch>& launch, const absl::Status& status) {
  {
    OrderedMutexLock lock(&mu_);
    if (std::exchange(launch->finished_, true)) return;
    std::shared_ptr<DeviceDriver::Lane> lane = std::move(launch->lane_);
    if (status.ok()) {
      driver_->give_lane(launch->device_, std::move(lane), launch->ready_);
    } else if (lane != nullptr) {
      lost_.push_back({.launch = launch, .lane = std::move(lane)});
      driver_->give_lane(launch->device_, nullptr, launch->ready_);
    }
    if (!waiting_.empty()) submit_parker_.unpark();
  }
  launch->off_device.store(true, std::memory_order_release);
  scheduler_.post({.rank = launch->rank_, .kind = TaskKind::kCompletion}, launch->site_,
                  [done = std::move(launch->done_), status]() mutable { done(status); });
  std::unique_ptr<World::OutsideWaker> waker;  // goes after the step was put in, and without the lock
  {
    OrderedMutexLock lock(&mu_);
    waker = std::move(launch->waker_);
    std::erase(launches_, launch);
  }
}

struct DeviceRuntime::GateOpener final : Dependant {
  GateOpener(std::shared_ptr<DeviceRuntime> runtime, std::shared_ptr<DeviceGate> gate)
      : runtime(std::move(runtime)), gate(std::move(gate)) {}
  // A stream that goes on, and whoever waits for it, finds the work done: a listener is told before.
  void ended(const absl::Status& status) override {
    // Now: whoever sees the work failed finds the stream failed. Once: a gate that is open has told the stream.
    if (!status.ok() && !gate->open.load(std::memory_order_acquire)) gate->stream->fail(status);
    auto let_go = std::make_shared<Held>();  // whose destructors may wait for others that are still to be woken
    Completion::wake_later([runtime = runtime, gate = gate, status, let_go] {
      runtime->open(gate, status, OpenedBy::kWork, let_go.get());
    });
    Completion::run_later([let_go = std::move(let_go)] { *let_go = {}; });
  }

  const std::shared_ptr<DeviceRuntime> runtime;
  const std::shared_ptr<DeviceGate> gate;
};

absl::Status DeviceRuntime::block(const std::shared_ptr<DeviceStreamState>& stream, int device,
                                  DeviceDriver::StreamHandle handle, const std::shared_ptr<WorkState>& work,
                                  std::shared_ptr<HeldByStream> held, const GateTime& time, CodeSite code,
                                  Enter enter) {
  auto gate = std::make_shared<DeviceGate>();
  gate->stream = stream;
  gate->device = device;
  gate->time = time;
  const Site site = work->site(code);
  gate->text = absl::StrCat(site_text(site), site_place(site));
  gate->code = code;
  gate->deadline_ns = Deadline::after(monotonic_ns(), time.timeout, !time.strong).at_ns;
  absl::StatusOr<DeviceDriver::Wait> wait = driver_->take_wait(device);
  if (!wait.ok()) return wait.status();
  gate->wait = *wait;
  enter(gate);
  absl::Status waits = driver_->wait_word(handle, wait->word, time.timeout);
  if (waits.ok()) {
    waits = driver_->record(wait->behind, handle);
    gate->keeps_word = !waits.ok();
  }
  if (!waits.ok()) {
    open(gate, waits, OpenedBy::kEnd);
    return waits;
  }
  bool ended = false;
  {
    OrderedMutexLock lock(&mu_);
    ended = stop_;
    gate->awaited = work;
    gate->held = std::move(held);
    gates_.push_back(gate);
    if (gate->deadline_ns != Deadline::kNever) {
      start_threads();
      parker_.unpark();
    }
  }
  work->when_done(std::make_unique<GateOpener>(shared_from_this(), gate));
  if (scheduler_.aborted()) open(gate, scheduler_.abort_cause(), OpenedBy::kEnd);
  if (ended) open(gate, end_of_world(), OpenedBy::kEnd);
  return absl::OkStatus();
}

void DeviceRuntime::open(const std::shared_ptr<DeviceGate>& gate, const absl::Status& status, OpenedBy by,
                         Held* let_go) {
  if (gate->open.load(std::memory_order_acquire)) return;
  std::shared_ptr<WorkState> awaited;
  std::shared_ptr<HeldByStream> held;
  {
    OrderedMutexLock lock(&mu_);
    if (gate->open.load(std::memory_order_relaxed)) return;
    // Before anybody can see that it is open.
    if (!status.ok() && by != OpenedBy::kWork) gate->stream->fail(status);
    if (gate->wait.word->gave_up.load(std::memory_order_relaxed) != 0) {
      gate->stream->fail(
          make_error(ErrorKind::kTimeout, gate->stream->who(), "the device gave up waiting for a work: ", gate->text));
    }
    // Calls without outputs of the host are nothing to learn of, and would keep those before them.
    if (by == OpenedBy::kWork && gate->awaited != nullptr && gate->awaited->has_open_outputs())
      gate->waited = gate->awaited;
    gate->open.store(true, std::memory_order_release);
    gate->wait.word->released.store(1, std::memory_order_release);
    for (const std::weak_ptr<DeviceLaunch>& weak : gate->behind) {
      const std::shared_ptr<DeviceLaunch> launch = weak.lock();
      if (launch == nullptr || launch->finished_ || launch->gates_ == 0) continue;
      if (!gate->time.strong && launch->closed.fetch_sub(1, std::memory_order_acq_rel) == 1)
        launch->waker_ = std::make_unique<World::OutsideWaker>(&scheduler_);
      if (--launch->gates_ > 0) continue;
      if (ends_) {  // the memory of ranks that have ended
        fail_launch(launch, end_of_world());
        continue;
      }
      waiting_.push_back(launch);
      submit_parker_.unpark();
    }
    std::erase(gates_, gate);
    awaited.swap(gate->awaited);
    held.swap(gate->held);
  }
  if (!gate->keeps_word) driver_->give_wait(gate->device, gate->wait);
  if (by == OpenedBy::kTimeout) {
    // As the rank that owns the call: its time is over, or letting go of the last handle withdraws it.
    scheduler_.spawn({.rank = gate->stream->rank, .kind = TaskKind::kHelper}, [gate, held = std::move(held), awaited] {
      if (gate->time.ends_call && awaited != nullptr) (void)awaited->time_out(gate->time.timeout, gate->code);
    });
    held = nullptr;
  }
  if (let_go != nullptr) {
    *let_go = {std::move(held), std::move(awaited)};
    return;
  }
  Completion::drop(std::move(held));
  Completion::drop(std::move(awaited));
}

absl::Status DeviceRuntime::await(const DeviceMark& mark, int rank, const char* what, std::string detail,
                                  CodeSite code) {
  const absl::StatusOr<bool> passed = driver_->passed(mark.event()->handle());
  if (!passed.ok()) return passed.status();
  if (*passed) return absl::OkStatus();
  auto waiting = std::make_shared<MarkWait>(this, rank, what, std::move(detail), mark.gates());
  const auto launch = std::make_shared<DeviceLaunch>();
  const DeviceMark* const after = &mark;
  absl::Status started =
      this->launch(launch, rank, mark.device(), Site{.what = what, .code = code}, std::nullopt, {&after, 1},
                   [waiting](const absl::Status& status) { waiting->complete(status); });
  if (!started.ok()) return started;
  return waiting->await(absl::InfiniteDuration(), /*timeout_is_default=*/true, code);
}

std::string DeviceRuntime::blocked_text() const {
  constexpr size_t kMost = 4;
  OrderedMutexLock lock(&mu_);
  if (gates_.empty()) return "";
  std::string text =
      "\n  streams of the device wait for works, and the device may make calls wait for them (the first launch of a "
      "kernel, what makes or frees memory or streams):";
  for (size_t i = 0; i < std::min(kMost, gates_.size()); ++i)
    absl::StrAppend(&text, "\n    ", gates_[i]->stream->who(), gates_[i]->text);
  if (gates_.size() > kMost) absl::StrAppend(&text, "\n    and ", gates_.size() - kMost, " more");
  return text;
}

std::vector<std::shared_ptr<WorkState>> DeviceRuntime::awaited(const DeviceGates& gates) const {
  std::vector<std::shared_ptr<WorkState>> works;
  OrderedMutexLock lock(&mu_);
  for (const std::shared_ptr<DeviceGate>& gate : gates) {
    if (gate->awaited != nullptr) works.push_back(gate->awaited);
  }
  return works;
}

WaitedWorks::List DeviceRuntime::waited_for(const DeviceGates& gates) const {
  WaitedWorks::List works;
  OrderedMutexLock lock(&mu_);
  for (const std::shared_ptr<DeviceGate>& gate : gates) {
    if (gate->waited != nullptr) works.push_back(gate->waited);
  }
  return works;
}

void DeviceRuntime::give_up_at(const std::shared_ptr<DeviceGate>& gate, bool unwound) noexcept {
  std::shared_ptr<HeldByStream> held;
  {
    OrderedMutexLock lock(&mu_);
    held = gate->held;
  }
  if (held != nullptr) held->give_up();
  if (unwound) {
    open(gate, make_error(ErrorKind::kAborted, gate->stream->who(), "an exception unwound the rank"), OpenedBy::kEnd);
  }
}

void DeviceRuntime::give_up(const DeviceStreamState& stream, bool unwound) noexcept {
  DeviceGates closed;
  {
    OrderedMutexLock lock(&mu_);
    std::copy_if(gates_.begin(), gates_.end(), std::back_inserter(closed),
                 [&stream](const std::shared_ptr<DeviceGate>& gate) { return gate->stream.get() == &stream; });
  }
  for (const std::shared_ptr<DeviceGate>& gate : closed) give_up_at(gate, unwound);
}

void DeviceRuntime::unwind(const DeviceGates& gates, int rank) noexcept {
  for (const std::shared_ptr<DeviceGate>& gate : gates) {
    if (gate->stream->rank == rank && !gate->open.load()) give_up_at(gate, /*unwound=*/true);
  }
}

void DeviceRuntime::open_all(const absl::Status& cause) {
  std::vector<std::shared_ptr<DeviceGate>> closed;
  {
    OrderedMutexLock lock(&mu_);
    closed.assign(gates_.begin(), gates_.end());
  }
  for (const std::shared_ptr<DeviceGate>& gate : closed) open(gate, cause, OpenedBy::kEnd);
}

void DeviceRuntime::open_at_end() {
  {
    OrderedMutexLock lock(&mu_);
    ends_ = true;
  }
  open_all(end_of_world());
  {
    OrderedMutexLock lock(&mu_);
    stop_ = true;
  }
  open_all(end_of_world());  // those closed since
}

void DeviceRuntime::join_at_end() {
  {
    OrderedMutexLock lock(&mu_);
    if (!threads_ || stop_submits_) return;
  }
  parker_.unpark();
  opener_.join();  // hears of all launches
  {
    OrderedMutexLock lock(&mu_);
    stop_submits_ = true;
  }
  submit_parker_.unpark();
  submitter_.join();
}

}  // namespace rankloom::internal

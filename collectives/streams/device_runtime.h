#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "collectives/streams/device_driver.h"
#include "collectives/streams/held_by_stream.h"
#include "collectives/streams/waited_works.h"
#include "collectives/work/work_state.h"
#include "rankloom/stream.h"
#include "rankloom/work.h"
#include "rankloom/world.h"
#include "sim/base/lock_order.h"
#include "sim/base/parker.h"
#include "world/world_state.h"

namespace rankloom::internal {

// Lets the calls of this world use memory of a device, which `driver` stands for. Asked for twice, the first driver
// stays.
void use_device(WorldState& world, const std::shared_ptr<DeviceDriver>& driver);

class DeviceRuntime;

// The fate of a stream, for itself and for the waits in it. Thread-safety: all methods.
class DeviceStreamState {
 public:
  DeviceStreamState(int rank, std::string_view name) : rank(rank), name(name) {}
  const int rank;
  const std::string name;

  std::string who() const;  // "rank 0, stream comm: "
  void fail(const absl::Status& status);
  absl::Status status() const;
  // The same, once: the stream goes on as one without failure. For callers that tell of it.
  absl::Status take_status();

  void have_waited_for(const WaitedWorks::List& works);
  WaitedWorks::List waited_for() const;
  // The rank learns of all of them.
  void learn_waited_for();

 private:
  friend class DeviceRuntime;
  mutable OrderedMutex mu_{LockLevel::kDeviceFailure};
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  WaitedWorks waited_for_ ABSL_GUARDED_BY(mu_);
};

// How long a gate may be closed.
struct GateTime {
  absl::Duration timeout;
  bool strong = false;     // the timeout is the caller's own: the wait ends by itself
  bool ends_call = false;  // the timeout is the awaited call's, which ends by it, as in a wait
};

// A wait of a stream for a work, which ends by a write of the host only. Fields without a comment are const.
struct DeviceGate {
  std::shared_ptr<DeviceStreamState> stream;
  int device = 0;
  DeviceDriver::Wait wait;
  GateTime time;
  int64_t deadline_ns = Deadline::kNever;  // of the monotonic clock
  std::string text;                        // what is awaited, for reports
  CodeSite code;
  bool keeps_word = false;         // the driver failed when the stream had it already
  std::atomic<bool> open = false;  // written under the runtime's mutex
  // Guarded by the runtime's mutex.
  std::shared_ptr<WorkState> awaited;                      // null: it is over
  std::shared_ptr<WorkState> waited;                       // the same, if that opened the gate by its end
  std::shared_ptr<HeldByStream> held;                      // keeps the call; null: the gate is open
  std::vector<std::weak_ptr<struct DeviceLaunch>> behind;  // launches that are submitted once it is open
};
using DeviceGates = std::vector<std::shared_ptr<DeviceGate>>;

// An event that was recorded in a stream; goes back to the driver with its last owner.
class RecordedEvent {
 public:
  RecordedEvent(std::shared_ptr<DeviceDriver> driver, int device, DeviceDriver::EventHandle handle)
      : driver_(std::move(driver)), device_(device), handle_(handle) {}
  ~RecordedEvent() { driver_->give_event(device_, handle_); }
  RecordedEvent(const RecordedEvent&) = delete;
  RecordedEvent& operator=(const RecordedEvent&) = delete;

  int device() const { return device_; }
  DeviceDriver::EventHandle handle() const { return handle_; }

 private:
  const std::shared_ptr<DeviceDriver> driver_;
  const int device_;
  const DeviceDriver::EventHandle handle_;
};

// A mark in a device's stream (docs/words.md: event).
class DeviceMark final : public EventState {
 public:
  // `gates` may be closed, and of what the stream `waited_for` before; `hold`: kept as long as the mark is.
  DeviceMark(std::shared_ptr<DeviceRuntime> runtime, int rank, std::shared_ptr<const RecordedEvent> event,
             DeviceGates gates, WaitedWorks::List waited_for, std::shared_ptr<const void> hold);
  ~DeviceMark() override;

  bool done(CodeSite code) override;
  absl::Status wait(CodeSite code) override;

  int device() const { return event_->device(); }
  const std::shared_ptr<const RecordedEvent>& event() const { return event_; }
  const std::shared_ptr<DeviceRuntime>& runtime() const { return runtime_; }
  // The gates before it that may be closed still.
  const DeviceGates& gates() const { return gates_; }
  // All that the stream has waited for when it has passed the mark.
  WaitedWorks::List waited_for() const;

 private:
  const std::shared_ptr<DeviceRuntime> runtime_;
  const int rank_;
  const std::shared_ptr<const RecordedEvent> event_;
  const DeviceGates gates_;
  const WaitedWorks::List waited_for_;  // before the gates
  const std::shared_ptr<const void> hold_;
};

// Something on its way through a device, at whose end the host is told. Made by the asking caller, so that it can be
// found before it ends; launch() fills it.
struct DeviceLaunch : std::enable_shared_from_this<DeviceLaunch> {
  std::atomic<bool> off_device = false;  // the device has ended the launch, or never got it
  std::atomic<int> closed = 0;           // gates before it that only a rank can open; written under the runtime's mutex

 private:
  friend class DeviceRuntime;
  // Written by launch() before another thread has it.
  DeviceRuntime* runtime_ = nullptr;  // whose end waits for this one's
  int rank_ = -1;
  int device_ = 0;
  Site site_;
  absl::AnyInvocable<void(const absl::Status&)> done_;
  // The plan, and the events before it; written by launch(), then the submitting thread's own.
  std::optional<KernelPlan> plan_;
  std::vector<std::shared_ptr<const RecordedEvent>> after_;
  // Guarded by the runtime's mutex.
  std::shared_ptr<DeviceDriver::Lane> lane_;    // null: not submitted, or over
  int gates_ = 0;                               // closed ones before it
  bool ready_ = false;                          // as its lane was taken
  bool finished_ = false;                       // or about to be, without the device
  std::unique_ptr<World::OutsideWaker> waker_;  // while the device can go on by itself
};

// The part of a device that the ranks of a world share: lanes on which plans run, the threads that submit them and hear
// of their ends, and the gates at which streams wait.
//
// Nothing that the device gets from here waits for a gate: a launch behind one is submitted when the gate is open. Else
// it could stand before others in a queue of the hardware, which streams share. And a device that is asked for
// something new may wait for blocked streams (DeviceDriver), so gates are opened by host writes, by threads that never
// call it: those that end works, and one (the opener) for deadlines and the ends of launches. Another one (the
// submitter) makes the calls that came too late for the rank that asked.
//
//
// Ends of launches come when the device is done, in real time, and are steps of the world's schedule from there on: a
// seeded run with a device is not repeatable bit by bit. Timeouts of gates are real time too: a device knows no other.
// Thread-safety: all methods.
class DeviceRuntime : public std::enable_shared_from_this<DeviceRuntime> {
 public:
  using Done = absl::AnyInvocable<void(const absl::Status&)>;

  DeviceRuntime(WorldState* world, std::shared_ptr<DeviceDriver> driver);
  ~DeviceRuntime();
  DeviceRuntime(const DeviceRuntime&) = delete;
  DeviceRuntime& operator=(const DeviceRuntime&) = delete;

  // Of a world that use_device() was called for, else null.
  static std::shared_ptr<DeviceRuntime> of(WorldState& world);

  DeviceDriver& driver() const { return *driver_; }
  const std::shared_ptr<DeviceDriver>& shared_driver() const { return driver_; }
  WorldState& world() const { return world_; }
  Scheduler& scheduler() const { return scheduler_; }
  const WorldRef& world_ref() const { return world_ref_; }

  // Starts, on `device`, `plan` (null: nothing) once all marks are passed; then calls `done`, which must not wait, as a
  // step of `rank`. An error: `done` will not be called.
  absl::Status launch(const std::shared_ptr<DeviceLaunch>& launch, int rank, int device, const Site& site,
                      std::optional<KernelPlan> plan, absl::Span<const DeviceMark* const> after, Done done);
  // Until the device is through with it, unless that takes a rank that opens a gate. `unwinds`: the memory of the
  // launch goes, so that one which is still behind a gate ends with an error instead. No scheduling point: destructors
  // come here.
  void await_device(const std::shared_ptr<DeviceLaunch>& launch, bool unwinds);

  // Makes a stream wait for a work that is not done, and hold `held` until then. `enter`: notes that the stream has the
  // gate, before it has: a mark that another task of the rank records meanwhile may stand behind it.
  using Enter = absl::FunctionRef<void(const std::shared_ptr<DeviceGate>&)>;
  absl::Status block(const std::shared_ptr<DeviceStreamState>& stream, int device, DeviceDriver::StreamHandle handle,
                     const std::shared_ptr<WorkState>& work, std::shared_ptr<HeldByStream> held, const GateTime& time,
                     CodeSite code, Enter enter);
  // Lets go of what `stream` holds, in the order of the stream. `unwound`: so does an exception, and nothing that
  // follows is wanted: its gates are opened. No scheduling point: destructors come here.
  void give_up(const DeviceStreamState& stream, bool unwound) noexcept;
  // The same of those of these gates that streams of `rank` wait at, which an exception unwinds.
  void unwind(const DeviceGates& gates, int rank) noexcept;

  // Blocks the calling rank until the mark is passed. Errors: the cause, when the world was aborted meanwhile.
  absl::Status await(const DeviceMark& mark, int rank, const char* what, std::string detail, CodeSite code);

  // The works that these gates wait for still.
  std::vector<std::shared_ptr<WorkState>> awaited(const DeviceGates& gates) const;
  // Those whose end has opened them.
  WaitedWorks::List waited_for(const DeviceGates& gates) const;

  // For the text of a stall: a line each of streams that wait at a gate; empty: none does.
  std::string blocked_text() const;

  // Opens all gates; what is blocked later is so no more. Called when the world is aborted.
  void open_all(const absl::Status& cause);
  // The world's end, in two parts: opens all gates, and waits for the threads, which hear of all launches and take an
  // ActsForFibers for that. The second part runs in none, therefore.
  void open_at_end();
  void join_at_end();

 private:
  enum class OpenedBy : uint8_t { kWork, kTimeout, kEnd };
  struct GateOpener;

  // Now, if no closed gate is before it, else once it is.
  absl::Status start(const std::shared_ptr<DeviceLaunch>& launch, absl::Span<const DeviceMark* const> after);
  // Whether the device has passed all marks before it.
  absl::StatusOr<bool> is_ready(const DeviceLaunch& launch) const;
  // Gives it to the device, if a lane is to be had; false: none is. An error: nobody will hear of its end.
  absl::StatusOr<bool> try_submit(const std::shared_ptr<DeviceLaunch>& launch);
  // The same, in this lane.
  absl::Status submit(const std::shared_ptr<DeviceLaunch>& launch, std::shared_ptr<DeviceDriver::Lane> lane,
                      bool ready);
  static void on_host(void* launch);
  void opener_main();
  void submitter_main();
  // By the submitter: submits all that are due. Returns when to come again at the latest.
  int64_t submit_waiting();
  void look_at_health();
  // For the opener to end.
  void fail_launch(const std::shared_ptr<DeviceLaunch>& launch, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void start_threads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void end(const std::shared_ptr<DeviceLaunch>& launch, const absl::Status& status);
  // By the opener, also while it ends a launch: ends those that the device has done or lost, opens gates whose time is
  // over. Returns when to come again at the latest, by monotonic_ns(), 0 for at once; nullopt: all is done.
  std::optional<int64_t> take_turn();
  void end_launches();
  // `let_go`, if given, gets what the gate held.
  using Held = std::pair<std::shared_ptr<HeldByStream>, std::shared_ptr<WorkState>>;
  void open(const std::shared_ptr<DeviceGate>& gate, const absl::Status& status, OpenedBy by, Held* let_go = nullptr);
  void give_up_at(const std::shared_ptr<DeviceGate>& gate, bool unwound) noexcept;
  // Ends a launch that is still behind a gate with an error.
  void take_back(const std::shared_ptr<DeviceLaunch>& launch);

  WorldState& world_;
  Scheduler& scheduler_;
  const WorldRef world_ref_;
  const std::shared_ptr<DeviceDriver> driver_;
  Parker parker_;         // of the opener
  Parker submit_parker_;  // of the submitter

  mutable OrderedMutex mu_{LockLevel::kDeviceRuntime};  // never held in a callback, or where the device is called
  std::vector<std::shared_ptr<DeviceGate>> gates_ ABSL_GUARDED_BY(mu_);       // those that are closed
  std::vector<std::shared_ptr<DeviceLaunch>> launches_ ABSL_GUARDED_BY(mu_);  // launches whose end was not reported
  std::vector<std::shared_ptr<DeviceLaunch>> waiting_ ABSL_GUARDED_BY(mu_);   // those to be submitted, oldest first
  struct Ended {
    std::shared_ptr<DeviceLaunch> launch;
    absl::Status status;
  };
  std::vector<Ended> ended_ ABSL_GUARDED_BY(mu_);                             // for the opener
  std::deque<Ended> ending_;                                                  // the opener's own
  int64_t health_at_ = 0;                                                     // the submitter's own
  static inline thread_local const DeviceRuntime* on_this_thread_ = nullptr;  // whose thread it is
  // Of a device that failed: the device may yet name them.
  struct Lost {
    std::shared_ptr<DeviceLaunch> launch;
    std::shared_ptr<DeviceDriver::Lane> lane;
  };
  std::vector<Lost> lost_ ABSL_GUARDED_BY(mu_);
  // Begun at most once; joined at the end, after which nothing is launched.
  std::thread opener_;
  std::thread submitter_;
  bool threads_ ABSL_GUARDED_BY(mu_) = false;       // there are both
  bool ends_ ABSL_GUARDED_BY(mu_) = false;          // the world does: what is behind a gate is not submitted any more
  bool stop_ ABSL_GUARDED_BY(mu_) = false;          // the opener
  bool stop_submits_ ABSL_GUARDED_BY(mu_) = false;  // the submitter, after it
};

}  // namespace rankloom::internal

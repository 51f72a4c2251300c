#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "collectives/streams/device_runtime.h"
#include "rankloom/stream.h"
#include "sim/base/lock_order.h"

namespace rankloom::internal {

class StreamWork;

// A stream of a device, whose queue is the device's: CudaStreamView (rankloom/cuda.h) for any DeviceDriver. Its
// promises to users stand there.
//
// Marks order device kernels: a call's kernel waits for the stream's mark (CallWay::ready), and the stream, through a
// DeviceGate, for the work. A call of the host's tensors is issued by a task of the rank, once a launch at the stream's
// mark has ended.
// Lifetime: as SimStream's, but that wait_event() keeps nothing. Entries that others have queued run in any case.
// Thread-safety: as Stream's.
class DeviceStream : public Stream {
 public:
  // `handle`: the device's stream, which the owner of this keeps at least as long. use_device() was called for the
  // world.
  DeviceStream(RankState& rank, int device, DeviceDriver::StreamHandle handle, std::string_view name);
  ~DeviceStream() override;
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  int device() const { return device_; }
  DeviceDriver::StreamHandle handle() const { return handle_; }

  std::string_view name() const override;
  void wait_for(const Work& work, absl::Duration timeout = absl::InfiniteDuration(),
                CodeSite code = CodeSite::here()) override;
  Stream::Event record(CodeSite code = CodeSite::here()) override;
  void wait_event(const Stream::Event& event, CodeSite code = CodeSite::here()) override;
  void synchronize(CodeSite code = CodeSite::here()) override;
  bool query(CodeSite code = CodeSite::here()) override;
  absl::Status status() const override;
  // status(), told once: the stream goes on as one that has not failed. For callers that raise it.
  absl::Status take_status();
  absl::StatusOr<Work> issue(ProcessGroup& group, CollectiveCall&& call) override;

 protected:
  // A mark behind all that is queued now. `hold`: kept as long as the mark is.
  absl::StatusOr<std::shared_ptr<DeviceMark>> mark(std::shared_ptr<const void> hold = nullptr);

 private:
  CalledHandle called(const char* what, CodeSite code) const;
  // Throws if the calling task's rank is not the stream's.
  void check_rank(const char* what, CodeSite code) const;
  // A scheduling point of the calling task, and the check.
  void point(const char* what, CodeSite code, bool polls = false) const;
  void check(const absl::Status& status, const char* what, CodeSite code) const;
  absl::Status block(const std::shared_ptr<WorkState>& work, std::shared_ptr<HeldByStream> held, const GateTime& time,
                     CodeSite code);
  // issue(), from the mark `here` of the stream on. On the device: the call is made now, and its kernel waits for the
  // mark. On the host: a task of the rank makes the call once the device has come to the mark.
  absl::StatusOr<Work> issue_on_device(ProcessGroup& group, CollectiveCall&& call, std::shared_ptr<DeviceMark> here);
  absl::StatusOr<Work> issue_on_host(ProcessGroup& group, CollectiveCall&& call, std::shared_ptr<DeviceMark> here);
  // The gates that may be closed still; of others the stream has waited for their works.
  DeviceGates gates();
  // The rank knows how far the stream is, and so the ends of these works.
  void learn_waited_for();
  // All that is queued from here on stands behind these gates, too.
  void enter(const DeviceGates& gates);

  RankState& rank_;
  const std::shared_ptr<DeviceRuntime> runtime_;
  const int device_;
  const DeviceDriver::StreamHandle handle_;
  const std::shared_ptr<DeviceStreamState> state_;
  const std::shared_ptr<WantedStream> wanted_;
  // The program's hold: the last that goes lets go of what is unfinished.
  const std::shared_ptr<const void> keeper_;
  OrderedMutex mu_{LockLevel::kDeviceStream};
  DeviceGates gates_ ABSL_GUARDED_BY(mu_);
};

}  // namespace rankloom::internal

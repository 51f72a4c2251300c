#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "collectives/streams/device_runtime.h"
#include "rankloom/stream.h"
#include "sim/base/lock_order.h"

namespace rankloom::internal {

// A stream of a device. Its queue is the device's: what rankloom puts there are marks, waits for marks, and waits for words
// that the host writes, so kernels of any origin may stand between.
//
// A call on the stream whose tensors are the device's: its kernel waits for the stream's mark and the stream for its end;
// neither blocks the host. A call whose tensors are the host's, or that has none, is issued when the stream gets there.
// Timeouts are real time. A timeout that is not given is the world's, so that no device waits for ever.
// Thread-safety: as Stream's.
class DeviceStream : public Stream {
 public:
  // `handle`: the device's stream, which the owner of this keeps at least as long. use_device() was called for the world.
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
  absl::StatusOr<Work> issue(ProcessGroup& group, CollectiveCall&& call) override;

 private:
  CalledHandle called(const char* what) const;
  // A scheduling point of whoever uses the stream. Throws if that is another rank.
  void point(const char* what, CodeSite code, bool polls = false) const;
  void check(const absl::Status& status, const char* what) const;
  absl::StatusOr<std::shared_ptr<DeviceMark>> mark();
  absl::Status block(Work work, absl::Duration timeout, CodeSite code);
  // The gates that are closed still.
  DeviceGates gates();

  const std::shared_ptr<DeviceRuntime> runtime_;
  const int device_;
  const DeviceDriver::StreamHandle handle_;
  const std::shared_ptr<DeviceStreamState> state_;
  OrderedMutex mu_{LockLevel::kDeviceStream};
  DeviceGates gates_ ABSL_GUARDED_BY(mu_);
};

}  // namespace rankloom::internal

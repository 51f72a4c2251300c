#include "collectives/cuda/stream_pool.h"

#include <deque>
#include <map>

#include "absl/base/thread_annotations.h"
#include "collectives/cuda/cuda_status.h"
#include "sim/base/lock_order.h"

namespace rankloom::internal::cuda {
namespace {

absl::StatusOr<cudaStream_t> make_stream(int device) {
  const DeviceScope scope(device);
  if (!scope.status().ok()) return scope.status();
  cudaStream_t stream = nullptr;
  if (absl::Status made =
          to_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
      !made.ok())
    return made;
  return stream;
}

// No lock that take() and give() need is held in a call of CUDA's.
class StreamPool {
 public:
  absl::Status reserve(int device, int count) {
    if (has(device, count)) return absl::OkStatus();
    // Others that reserve wait until all are made: who goes on may block a stream, and a device may make none then.
    OrderedMutexLock making(&making_);
    while (!has(device, count)) {
      const absl::StatusOr<cudaStream_t> made = make_stream(device);
      if (!made.ok()) return made.status();
      OrderedMutexLock lock(&mu_);
      PerDevice& mine = devices_[device];
      mine.idle.push_back(*made);
      ++mine.made;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<cudaStream_t> take(int device) {
    // A few: those that were given with work in them come last.
    for (int tried = 0; tried < 4; ++tried) {
      cudaStream_t stream = nullptr;
      {
        OrderedMutexLock lock(&mu_);
        std::deque<cudaStream_t>& idle = devices_[device].idle;
        if (idle.empty()) break;
        stream = idle.front();
        idle.pop_front();
      }
      const cudaError_t asked = cudaStreamQuery(stream);
      if (asked == cudaSuccess) return stream;
      give(device, stream);
      if (asked != cudaErrorNotReady) return to_status(asked, "cudaStreamQuery");
      (void)cudaGetLastError();
    }
    return make_stream(device);
  }

  void give(int device, cudaStream_t stream) {
    OrderedMutexLock lock(&mu_);
    devices_[device].idle.push_back(stream);
  }

 private:
  struct PerDevice {
    std::deque<cudaStream_t> idle;  // or with work in them still
    int made = 0;                   // in advance
  };
  bool has(int device, int count) {
    OrderedMutexLock lock(&mu_);
    return devices_[device].made >= count;
  }

  OrderedMutex making_{LockLevel::kStreamMaking};
  OrderedMutex mu_{LockLevel::kStreamPool};
  std::map<int, PerDevice> devices_ ABSL_GUARDED_BY(mu_);
};

// Never destroyed, since the device may use its streams until the process ends.
StreamPool& the_pool() {
  static auto* const pool = new StreamPool();
  return *pool;
}

}  // namespace

absl::Status reserve_streams(int device, int count) { return the_pool().reserve(device, count); }
absl::StatusOr<cudaStream_t> take_stream(int device) { return the_pool().take(device); }
void give_stream(int device, cudaStream_t stream) { the_pool().give(device, stream); }

}  // namespace rankloom::internal::cuda

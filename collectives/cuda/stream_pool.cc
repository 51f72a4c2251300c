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
    while (idle(device) < static_cast<size_t>(count)) {
      const absl::StatusOr<cudaStream_t> made = make_stream(device);
      if (!made.ok()) return made.status();
      give(device, *made);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<cudaStream_t> take(int device) {
    // Each once: some may have been given with work in them that is not done.
    for (size_t tries = idle(device); tries > 0; --tries) {
      cudaStream_t stream = nullptr;
      {
        OrderedMutexLock lock(&mu_);
        std::deque<cudaStream_t>& idle = idle_[device];
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
    idle_[device].push_back(stream);
  }

 private:
  size_t idle(int device) {
    OrderedMutexLock lock(&mu_);
    return idle_[device].size();
  }

  OrderedMutex mu_{LockLevel::kStreamPool};
  std::map<int, std::deque<cudaStream_t>> idle_ ABSL_GUARDED_BY(mu_);  // or with work in them still
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

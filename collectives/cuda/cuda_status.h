#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"

namespace rankloom::internal::cuda {

// The runtime's answer to a call.
inline absl::Status to_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return make_error(ErrorKind::kCollectiveError, "CUDA: ", what, ": ", cudaGetErrorName(error), " (",
                    cudaGetErrorString(error), ")");
}

// `device` is the current one in this scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    if (cudaGetDevice(&before_) == cudaSuccess && before_ != device) {
      status_ = to_status(cudaSetDevice(device), "cudaSetDevice");
      changed_ = status_.ok();
    }
  }
  ~DeviceScope() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  const absl::Status& status() const { return status_; }

 private:
  int before_ = 0;
  bool changed_ = false;
  absl::Status status_;
};

}  // namespace rankloom::internal::cuda

#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rankloom::internal::cuda {

// Streams of the process, non-blocking and of the ordinary priority, used again and again: a device that makes one more
// may wait for those that are blocked, and every other call of the device for it (40 at once, on an H200).
// Errors: CollectiveError with CUDA's words. Thread-safety: all functions.

// Makes streams, if fewer than `count` are idle.
absl::Status reserve_streams(int device, int count);
absl::StatusOr<cudaStream_t> take_stream(int device);
// Given while it still has work, the stream is taken again once that is done.
void give_stream(int device, cudaStream_t stream);

}  // namespace rankloom::internal::cuda

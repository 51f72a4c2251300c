#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <utility>

#include "collectives/cuda/cuda_status.h"
#include "collectives/cuda/stream_pool.h"
#include "rankloom/cuda.h"
#include "rankloom/world.h"
#include "sim/base/dist_error.h"
#include "sim/base/require.h"

namespace rankloom {

using namespace internal;

namespace {

void check(const RankContext& rank, const absl::Status& status) {
  throw_if_error(
      status.ok() ? status : make_error(ErrorKind::kCollectiveError, "rank ", rank.rank(), ": ", status.message()),
      {.rank = rank.rank(), .group = {}, .op = "CudaTensor"});
}
void check(const RankContext& rank, cudaError_t error, const char* what) { check(rank, cuda::to_status(error, what)); }

// One for each device, for the process: memory that one tensor frees here may be another's next.
cudaStream_t stream_of(const RankContext& rank, int device) {
  static std::array<std::atomic<cudaStream_t>, 128> streams = {};
  std::atomic<cudaStream_t>& stream = streams.at(static_cast<size_t>(device));
  if (const cudaStream_t known = stream.load(std::memory_order_acquire); known != nullptr) return known;
  const absl::StatusOr<cudaStream_t> taken = cuda::take_stream(device);
  check(rank, taken.status());
  cudaStream_t first = nullptr;
  if (stream.compare_exchange_strong(first, *taken)) return *taken;
  cuda::give_stream(device, *taken);  // another rank was faster
  return first;
}

}  // namespace

CudaTensor::CudaTensor(RankContext& rank, Dims sizes, DType dtype, int device) : rank_(rank) {
  use_cuda(rank, device);
  const cuda::DeviceScope scope(device);
  check(rank, scope.status());
  const cudaStream_t stream = stream_of(rank, device);
  const TensorView shape = TensorView::meta(sizes, dtype);
  void* data = nullptr;
  if (shape.bytes() > 0) {
    check(rank, cudaMallocAsync(&data, shape.bytes(), stream), "cudaMallocAsync");
    check(rank, cudaMemsetAsync(data, 0, shape.bytes(), stream), "cudaMemsetAsync");
    check(rank, cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
  view_ = TensorView(data, dtype, std::move(sizes), Device{Device::Kind::kCuda, static_cast<int8_t>(device)});
}

CudaTensor::CudaTensor(CudaTensor&& other) noexcept
    : rank_(other.rank_), view_(std::exchange(other.view_, TensorView())) {}

CudaTensor::~CudaTensor() {
  if (view_.data() == nullptr) return;
  const cuda::DeviceScope scope(view_.device().index);
  (void)cudaFreeAsync(view_.data(), stream_of(rank_, view_.device().index));
}

void CudaTensor::set_bytes(const void* from, CodeSite code) {
  if (view_.bytes() == 0) return;
  require(from, {.rank = rank_.rank(), .group = {}, .op = "CudaTensor"}, code, "CudaTensor::set_bytes: from");
  const cuda::DeviceScope scope(view_.device().index);
  const cudaStream_t stream = stream_of(rank_, view_.device().index);
  check(rank_, cudaMemcpyAsync(view_.data(), from, view_.bytes(), cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
  check(rank_, cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

void CudaTensor::get_bytes(void* to, CodeSite code) const {
  if (view_.bytes() == 0) return;
  require(to, {.rank = rank_.rank(), .group = {}, .op = "CudaTensor"}, code, "CudaTensor::get_bytes: to");
  const cuda::DeviceScope scope(view_.device().index);
  const cudaStream_t stream = stream_of(rank_, view_.device().index);
  check(rank_, cudaMemcpyAsync(to, view_.data(), view_.bytes(), cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  check(rank_, cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

}  // namespace rankloom

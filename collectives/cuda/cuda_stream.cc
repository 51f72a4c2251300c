#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "collectives/cuda/cuda_status.h"
#include "collectives/cuda/stream_pool.h"
#include "collectives/streams/device_stream.h"
#include "rankloom/cuda.h"
#include "rankloom/world.h"
#include "sim/base/dist_error.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

void check(RankContext& rank, const absl::Status& status) {
  throw_if_error(
      status.ok() ? status : make_error(ErrorKind::kCollectiveError, "rank ", rank.rank(), ": ", status.message()),
      {.rank = rank.rank(), .group = {}, .op = "CudaStream"});
}

int device_of(RankContext& rank, cudaStream_t stream) {
  int device = 0;
  const cudaError_t told = cudaStreamGetDevice(stream, &device);
  if (told != cudaSuccess) use_cuda(rank);  // throws if CUDA is missing, and says why
  check(rank, cuda::to_status(told, "cudaStreamGetDevice"));
  use_cuda(rank, device);
  return device;
}

cudaStream_t make_stream(RankContext& rank, int device) {
  use_cuda(rank, device);
  const absl::StatusOr<cudaStream_t> stream = cuda::take_stream(device);
  check(rank, stream.status());
  return *stream;
}

}  // namespace

CudaStreamView::CudaStreamView(RankContext& rank, CUstream_st* stream, std::string_view name)
    : native_(stream), stream_(new DeviceStream(state_of(rank), device_of(rank, stream), stream, name)) {}

CudaStreamView::~CudaStreamView() = default;

int CudaStreamView::device() const { return stream_->device(); }
std::string_view CudaStreamView::name() const { return stream_->name(); }
void CudaStreamView::wait_for(const Work& work, absl::Duration timeout, CodeSite code) {
  stream_->wait_for(work, timeout, code);
}
Stream::Event CudaStreamView::record(CodeSite code) { return stream_->record(code); }
void CudaStreamView::wait_event(const Stream::Event& event, CodeSite code) { stream_->wait_event(event, code); }
void CudaStreamView::synchronize(CodeSite code) { stream_->synchronize(code); }
bool CudaStreamView::query(CodeSite code) { return stream_->query(code); }
absl::Status CudaStreamView::status() const { return stream_->status(); }
absl::StatusOr<Work> CudaStreamView::issue(ProcessGroup& group, CollectiveCall&& call) {
  return stream_->issue(group, std::move(call));
}

CudaStream::CudaStream(RankContext& rank, std::string_view name, int device)
    : CudaStreamView(rank, make_stream(rank, device), name) {}

CudaStream::~CudaStream() { cuda::give_stream(device(), native()); }

}  // namespace rankloom

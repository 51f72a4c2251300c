#include <cuda_runtime_api.h>

#include "collectives/cuda/cuda_status.h"
#include "rankloom/cuda.h"
#include "rankloom/world.h"

namespace rankloom {
namespace {

void check(RankContext& rank, const absl::Status& status) {
  throw_if_error(
      status.ok() ? status
                  : make_error(ErrorKind::kCollectiveError, absl::StrCat("rank ", rank.rank(), ": ", status.message())),
      {.rank = rank.rank(), .group = {}, .op = "CudaStream"});
}

int device_of(RankContext& rank, cudaStream_t stream) {
  use_cuda(rank);
  int device = 0;
  check(rank, cuda::to_status(cudaStreamGetDevice(stream, &device), "cudaStreamGetDevice"));
  use_cuda(rank, device);
  return device;
}

cudaStream_t make_stream(RankContext& rank, int device) {
  use_cuda(rank, device);
  const cuda::DeviceScope scope(device);
  check(rank, scope.status());
  cudaStream_t stream = nullptr;
  check(rank, cuda::to_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
  return stream;
}

}  // namespace

CudaStreamView::CudaStreamView(RankContext& rank, CUstream_st* stream, std::string_view name)
    : DeviceStream(rank, device_of(rank, stream), stream, name) {}

CudaStream::CudaStream(RankContext& rank, std::string_view name, int device)
    : CudaStreamView(rank, make_stream(rank, device), name) {}

CudaStream::~CudaStream() { (void)cudaStreamDestroy(native()); }

}  // namespace rankloom

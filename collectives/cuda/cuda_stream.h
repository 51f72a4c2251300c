#pragma once

#include "collectives/streams/device_stream.h"

// As cuda_runtime_api.h has it, which users of this header need not include.
struct CUstream_st;

namespace rankloom {

// A CUDA stream of the caller's own, which must outlive this view. Not the legacy default stream while others of its
// context are blocked: it waits for them.
class CudaStreamView : public DeviceStream {
 public:
  CudaStreamView(RankContext& rank, CUstream_st* stream, std::string_view name = "stream");

  CUstream_st* native() const { return static_cast<CUstream_st*>(handle()); }
};

// A CUDA stream that this object owns: non-blocking with regard to the default stream. What is queued runs even if the object
// goes first.
// Errors: DistError(CollectiveError) if CUDA cannot make it.
class CudaStream final : public CudaStreamView {
 public:
  explicit CudaStream(RankContext& rank, std::string_view name = "stream", int device = 0);
  ~CudaStream() override;
};

}  // namespace rankloom

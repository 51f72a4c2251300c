#pragma once

#include <cstddef>
#include <vector>

#include "collectives/call/tensor.h"

namespace rankloom {

class RankContext;

// A tensor in device memory, for tests: contiguous, owned. Making one, to_host() and set() block the thread until the device
// has done it, on a stream of their own: what other streams do to the tensor must have ended before, by wait() or
// synchronize(). Letting go of one does not wait for the device, and must come after what uses it.
// Errors: DistError(CollectiveError) with CUDA's words.
class CudaTensor {
 public:
  // Elements are 0.
  CudaTensor(RankContext& rank, Dims sizes, DType dtype, int device = 0);
  ~CudaTensor();
  CudaTensor(CudaTensor&& other) noexcept;
  CudaTensor(const CudaTensor&) = delete;
  CudaTensor& operator=(const CudaTensor&) = delete;
  CudaTensor& operator=(CudaTensor&&) = delete;

  template <TensorElement T>
  CudaTensor(RankContext& rank, const std::vector<T>& values, int device = 0)
      : CudaTensor(rank, {static_cast<int64_t>(values.size())}, DTypeOf<T>::value, device) {
    set_bytes(values.data());
  }

  const TensorView& view() const { return view_; }
  operator TensorView() const { return view_; }  // NOLINT: implicit

  template <TensorElement T>
  void set(const std::vector<T>& values) {
    set_bytes(values.data());
  }
  template <TensorElement T>
  std::vector<T> to_host() const {
    std::vector<T> values(static_cast<size_t>(view_.numel()));
    get_bytes(values.data());
    return values;
  }
  // view().bytes() of them.
  void set_bytes(const void* from);
  void get_bytes(void* to) const;

 private:
  RankContext& rank_;
  TensorView view_;
};

}  // namespace rankloom

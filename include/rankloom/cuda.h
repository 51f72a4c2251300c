#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "rankloom/rankloom.h"

namespace rankloom {

namespace internal {
class DeviceStream;
}  // namespace internal

// Lets calls of the world of `rank` use CUDA memory and streams. CudaStream and CudaTensor do it themselves; a program
// with device memory of other origin calls it before its first such call, on every rank or on any. The first
// time in a process it loads the kernels of `device`, which should happen while no stream of it is blocked.
// Errors: DistError(CollectiveError) if there is no such device or no driver.
void use_cuda(RankContext& rank, int device = 0);

// Why there is no CUDA device that could be used, "" if there is one.
std::string cuda_missing();

}  // namespace rankloom

// As cuda_runtime_api.h has it, which users of this header need not include.
struct CUstream_st;

namespace rankloom {

// A CUDA stream of the caller's own, which must outlive this view. Not the legacy default stream while others of its
// context are blocked: it waits for them.
// The queue is the device's: what rankloom puts there are marks, waits for marks, and waits for words that the host
// writes, so kernels of any origin may stand between. A call on the stream whose tensors are the device's: its kernel
// waits for the stream's mark and the stream for its end; neither blocks the host. A call whose tensors are the host's,
// or that has none, is issued when the stream gets there.
// Timeouts are real time. A timeout that is not given is the world's, so that no device waits for ever.
// Lifetime: the calls on it, and those it waits for, as SimStream's, but that wait_event() keeps nothing. Entries that
// others have queued run in any case.
class CudaStreamView : public Stream {
 public:
  CudaStreamView(RankContext& rank, CUstream_st* stream, std::string_view name = "stream");
  ~CudaStreamView() override;
  CudaStreamView(const CudaStreamView&) = delete;
  CudaStreamView& operator=(const CudaStreamView&) = delete;

  CUstream_st* native() const { return native_; }
  int device() const;

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
  CUstream_st* const native_;
  const internal::Owned<internal::DeviceStream> stream_;
};

// A CUDA stream that this object owns: non-blocking with regard to the default stream.
// Errors: DistError(CollectiveError) if CUDA cannot make it.
class CudaStream final : public CudaStreamView {
 public:
  explicit CudaStream(RankContext& rank, std::string_view name = "stream", int device = 0);
  ~CudaStream() override;
};

// A tensor in device memory, for tests: contiguous, owned. Making one, to_host() and set() block the thread until the
// device has done it, on a stream of their own: what other streams do to the tensor must have ended before, by wait()
// or synchronize(). Letting go of one does not wait for the device, and must come after what uses it: declare a tensor
// before the stream of its calls, so that an exception lets go of the stream first, and of the tensor behind its calls.
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

  template <internal::TensorElement T>
  CudaTensor(RankContext& rank, const std::vector<T>& values, int device = 0)
      : CudaTensor(rank, {static_cast<int64_t>(values.size())}, internal::DTypeOf<T>::value, device) {
    set_bytes(values.data());
  }

  const TensorView& view() const { return view_; }
  operator TensorView() const { return view_; }  // NOLINT: implicit

  template <internal::TensorElement T>
  void set(const std::vector<T>& values) {
    set_bytes(values.data());
  }
  template <internal::TensorElement T>
  std::vector<T> to_host() const {
    std::vector<T> values(static_cast<size_t>(view_.numel()));
    get_bytes(values.data());
    return values;
  }
  // view().bytes() of them. Errors: InvalidArgument for null, unless there are none.
  void set_bytes(const void* from, CodeSite code = CodeSite::here());
  void get_bytes(void* to, CodeSite code = CodeSite::here()) const;

 private:
  RankContext& rank_;
  TensorView view_;
};

}  // namespace rankloom

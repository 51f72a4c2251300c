#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "collectives/call/dims.h"
#include "collectives/call/dtype.h"

namespace rankloom {

// Where the bytes are. CPU, a CUDA device by ordinal, or nowhere (meta: shape and dtype only).
struct Device {
  enum class Kind : uint8_t { kCpu, kCuda, kMeta };
  Kind kind = Kind::kCpu;
  int8_t index = 0;

  std::string name() const;  // "cpu", "cuda:0", "meta"
  friend constexpr bool operator==(const Device&, const Device&) = default;
};

// A non-owning view of a tensor: where, what type, what shape. The memory must stay until the call that got the view is
// done. Cheap to copy up to four dimensions.
// Errors: none here. A shape that no tensor can have is kept as it was given, with numel() == -1, so that the call that gets
//   the view can refuse it by name: see shape_status().
class TensorView {
 public:
  // Nothing: no data, dtype float32, shape {0}.
  TensorView() : sizes_(Dims::of(0)) {}

  // A contiguous tensor at `data`. numel is the product of `sizes`; {} is one element.
  TensorView(void* data, DType dtype, Dims sizes, Device device = {});
  // Any strides, in elements, one for each size. Collectives answer a view that is not contiguous with InvalidArgument.
  TensorView(void* data, DType dtype, Dims sizes, Dims strides, Device device = {});

  // One dimension, from owners of memory.
  template <TensorElement T, typename Allocator>
  TensorView(std::vector<T, Allocator>& values) : TensorView(of_vector(values)) {}  // NOLINT: implicit
  template <TensorElement T>
  TensorView(std::span<T> values) : TensorView(flat(values.data(), values.size())) {}  // NOLINT: implicit
  template <TensorElement T, size_t N>
  TensorView(std::array<T, N>& values) : TensorView(flat(values.data(), N)) {}  // NOLINT: implicit
  // A shape over typed memory.
  template <TensorElement T>
  TensorView(T* data, Dims sizes) : TensorView(static_cast<void*>(data), DTypeOf<T>::value, std::move(sizes)) {}
  // One element.
  template <TensorElement T>
  static TensorView scalar(T& value) {
    return flat(&value, 1);
  }

  // A shape without data, for the fake world.
  static TensorView meta(Dims sizes, DType dtype) {
    return TensorView(nullptr, dtype, std::move(sizes), Device{Device::Kind::kMeta, 0});
  }

  void* data() const { return data_; }
  template <TensorElement T>
  T* data_as() const {
    return static_cast<T*>(data_);
  }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  const Dims& sizes() const { return sizes_; }
  // Elements between neighbours in each dimension; empty if contiguous.
  const Dims& strides() const;
  int64_t numel() const { return numel_; }  // -1: see shape_status()
  size_t bytes() const { return numel_ > 0 ? static_cast<size_t>(numel_) * dtype_size(dtype_) : 0; }
  bool is_contiguous() const { return contiguous_; }

  // InvalidArgument for a negative size, for more bytes than int64 counts, and for strides that are not one for each size.
  absl::Status shape_status() const;

  // Elements [begin, begin + count) of a contiguous view, in one dimension.
  TensorView slice(int64_t begin, int64_t count) const;

  std::string text() const;  // "float32[2, 3]", "float32[4] on cuda:0", "float32[2, 3] with strides [1, 2]"

 private:
  friend class ConstTensorView;

  template <typename T, typename Allocator>
  static TensorView of_vector(std::vector<T, Allocator>& values) {
    if constexpr (std::is_same_v<T, bool>) {
      static_assert(!std::is_same_v<T, bool>,
                    "std::vector<bool> packs bits and has no bytes to send: use std::vector<uint8_t>, "
                    "std::array<bool, N> or std::span<bool>");
    } else {
      return flat(values.data(), values.size());
    }
  }

  template <typename T>
  static TensorView flat(T* data, size_t count) {
    TensorView view;
    view.data_ = data;
    view.dtype_ = DTypeOf<T>::value;
    view.numel_ = static_cast<int64_t>(count);
    view.sizes_[0] = view.numel_;  // in place: a copy would wait for what was just written
    return view;
  }

  void* data_ = nullptr;
  DType dtype_ = DType::kFloat32;
  Device device_;
  bool contiguous_ = true;
  int64_t numel_ = 0;
  Dims sizes_;
  std::shared_ptr<const Dims> strides_;  // null if contiguous
};

// An input: like TensorView, and also made from memory that the caller may only read. No operation writes to it, unless
// it is an output as well (in place).
// A temporary is refused: its memory would be gone when the call runs.
class ConstTensorView {
 public:
  ConstTensorView() = default;
  ConstTensorView(TensorView view) : view_(std::move(view)) {}  // NOLINT: implicit
  ConstTensorView(const void* data, DType dtype, Dims sizes, Device device = {})
      : view_(const_cast<void*>(data), dtype, std::move(sizes), device) {}

  template <TensorElement T, typename Allocator>
  ConstTensorView(const std::vector<T, Allocator>& values)  // NOLINT: implicit
      : view_(TensorView::of_vector(const_cast<std::vector<T, Allocator>&>(values))) {}
  template <TensorElement T, typename Allocator>
  ConstTensorView(const std::vector<T, Allocator>&& values) = delete;
  template <TensorElement T>
  ConstTensorView(std::span<const T> values)  // NOLINT: implicit
      : view_(TensorView::flat(const_cast<T*>(values.data()), values.size())) {}
  template <TensorElement T>
  ConstTensorView(std::span<T> values) : view_(values) {}  // NOLINT: implicit
  template <TensorElement T, size_t N>
  ConstTensorView(const std::array<T, N>& values)  // NOLINT: implicit
      : view_(TensorView::flat(const_cast<T*>(values.data()), N)) {}
  template <TensorElement T, size_t N>
  ConstTensorView(const std::array<T, N>&& values) = delete;
  template <TensorElement T>
  ConstTensorView(const T* data, Dims sizes)
      : ConstTensorView(static_cast<const void*>(data), DTypeOf<T>::value, std::move(sizes)) {}
  template <TensorElement T>
  static ConstTensorView scalar(const T& value) {
    return ConstTensorView(TensorView::flat(const_cast<T*>(&value), 1));
  }
  template <TensorElement T>
  static ConstTensorView scalar(const T&& value) = delete;

  // For the inputs of a CollectiveCall, which kernels only read.
  const TensorView& view() const& { return view_; }
  TensorView view() && { return std::move(view_); }

 private:
  TensorView view_;
};

// "[2, 3]".
std::string dims_text(const Dims& dims);

}  // namespace rankloom

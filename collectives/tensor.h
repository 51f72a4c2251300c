#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "collectives/dtype.h"

namespace rankloom {

// Where the bytes are. CPU, a CUDA device by ordinal, or nowhere (meta: shape and dtype only).
struct Device {
  enum class Kind : uint8_t { kCpu, kCuda, kMeta };
  Kind kind = Kind::kCpu;
  int8_t index = 0;

  std::string name() const;  // "cpu", "cuda:0", "meta"
  friend constexpr bool operator==(const Device&, const Device&) = default;
};

using Dims = absl::InlinedVector<int64_t, 3>;

// A non-owning view of a tensor: where, what type, what shape. The memory must stay until the call that got the view is
// done. Cheap to copy up to three dimensions.
class TensorView {
 public:
  // Nothing: no data, dtype float32, shape {0}.
  TensorView() : numel_(0), sizes_{0} {}

  // A contiguous tensor at `data`. numel is the product of `sizes`; {} is one element.
  TensorView(void* data, DType dtype, Dims sizes, Device device = {});
  // Any strides, in elements. Collectives answer a view that is not contiguous with InvalidArgument.
  TensorView(void* data, DType dtype, Dims sizes, Dims strides, Device device = {});

  // One dimension, from owners of memory.
  template <TensorElement T>
  TensorView(std::vector<T>& values) : TensorView(flat<T>(values.data(), values.size())) {  // NOLINT: implicit
    static_assert(!std::is_same_v<T, bool>, "std::vector<bool> packs bits: use std::vector<uint8_t> or std::array<bool, N>");
  }
  template <TensorElement T>
  TensorView(std::span<T> values) : TensorView(flat<T>(values.data(), values.size())) {}  // NOLINT: implicit
  template <TensorElement T, size_t N>
  TensorView(std::array<T, N>& values) : TensorView(flat<T>(values.data(), N)) {}  // NOLINT: implicit
  // A shape over typed memory.
  template <TensorElement T>
  TensorView(T* data, Dims sizes) : TensorView(static_cast<void*>(data), DTypeOf<T>::value, std::move(sizes)) {}
  // One element.
  template <TensorElement T>
  static TensorView scalar(T& value) {
    return flat<T>(&value, 1);
  }

  // A shape without data, for the fake world.
  static TensorView meta(Dims sizes, DType dtype) { return TensorView(nullptr, dtype, std::move(sizes), Device{Device::Kind::kMeta, 0}); }

  void* data() const { return data_; }
  template <TensorElement T>
  T* data_as() const {
    return static_cast<T*>(data_);
  }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  const Dims& sizes() const { return sizes_; }
  // Elements between neighbours in each dimension; empty if contiguous.
  const Dims& strides() const { return strides_; }
  int64_t numel() const { return numel_; }
  size_t bytes() const { return static_cast<size_t>(numel_) * dtype_size(dtype_); }
  bool is_contiguous() const { return contiguous_; }

  // Elements [begin, begin + count) of a contiguous view, in one dimension.
  TensorView slice(int64_t begin, int64_t count) const;

  std::string text() const;  // "float32[2, 3]", "float32[4] on cuda:0"

 private:
  template <typename T>
  static TensorView flat(T* data, size_t count) {
    TensorView view;
    view.data_ = const_cast<std::remove_const_t<T>*>(data);
    view.dtype_ = DTypeOf<std::remove_const_t<T>>::value;
    view.numel_ = static_cast<int64_t>(count);
    view.sizes_[0] = view.numel_;
    return view;
  }

  void* data_ = nullptr;
  DType dtype_ = DType::kFloat32;
  Device device_;
  bool contiguous_ = true;
  int64_t numel_;
  Dims sizes_;
  Dims strides_;
};

// "[2, 3]".
std::string dims_text(const Dims& dims);

}  // namespace rankloom

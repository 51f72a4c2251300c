#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rankloom/error.h"

namespace rankloom {

// IEEE 754 binary16. Storage with conversions; arithmetic happens in float. Round to nearest, ties to even.
struct Half {
  uint16_t bits = 0;
  Half() = default;
  explicit Half(float value);
  explicit operator float() const;
  static Half from_bits(uint16_t bits) {
    Half h;
    h.bits = bits;
    return h;
  }
  friend bool operator==(Half a, Half b) { return float(a) == float(b); }
};

// The upper half of a binary32. Round to nearest, ties to even.
struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(float value);
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
  static BFloat16 from_bits(uint16_t bits) {
    BFloat16 b;
    b.bits = bits;
    return b;
  }
  friend bool operator==(BFloat16 a, BFloat16 b) { return float(a) == float(b); }
};

// OCP 8-bit floats; rankloom moves them and does no arithmetic on them.
struct Float8E4M3FN {
  uint8_t bits = 0;
  friend bool operator==(Float8E4M3FN, Float8E4M3FN) = default;
};
struct Float8E5M2 {
  uint8_t bits = 0;
  friend bool operator==(Float8E5M2, Float8E5M2) = default;
};

// Element types. Values are part of no format.
enum class DType : uint8_t {
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kInt8,
  kUInt8,
  kInt16,
  kInt32,
  kInt64,
  kBool,          // one byte; any value but 0 is true
  kComplex64,     // two float32
  kComplex128,    // two float64
  kFloat8E4M3FN,  // moves only: no arithmetic
  kFloat8E5M2,    // moves only: no arithmetic
};

// "float32", "bfloat16", "float8_e4m3fn": PyTorch's names. "an unknown dtype" for a value that is none.
std::string_view dtype_name(DType dtype);
// Bytes of one element; 0 for a value that is none.
size_t dtype_size(DType dtype);

namespace internal {

inline constexpr int kDTypeCount = static_cast<int>(DType::kFloat8E5M2) + 1;
// False: a value that is no DType, from a cast. Calls refuse it.
constexpr bool is_dtype(DType dtype) { return static_cast<int>(dtype) < kDTypeCount; }
bool is_floating(DType dtype);  // float16, bfloat16, float32, float64
bool is_complex(DType dtype);
bool is_integral(DType dtype);  // int8 ... int64, uint8; not bool

// The dtype of a C++ type; undefined for types that have none.
template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<Half> {
  static constexpr DType value = DType::kFloat16;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::kBFloat16;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kFloat32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kFloat64;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::kInt8;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kUInt8;
};
template <>
struct DTypeOf<int16_t> {
  static constexpr DType value = DType::kInt16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kInt32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kInt64;
};
template <>
struct DTypeOf<long long> {
  static constexpr DType value = DType::kInt64;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::kBool;
};
// std::complex of float and double, by their looks: <complex> is the business of programs with such numbers.
template <typename T>
requires requires(const T& number) {
  typename T::value_type;
  number.real();
  number.imag();
} &&(sizeof(T) == 2 * sizeof(typename T::value_type)) &&
    (std::is_same_v<typename T::value_type, float> || std::is_same_v<typename T::value_type, double>)struct DTypeOf<T> {
  static constexpr DType value = std::is_same_v<typename T::value_type, float> ? DType::kComplex64 : DType::kComplex128;
};
template <>
struct DTypeOf<Float8E4M3FN> {
  static constexpr DType value = DType::kFloat8E4M3FN;
};
template <>
struct DTypeOf<Float8E5M2> {
  static constexpr DType value = DType::kFloat8E5M2;
};

template <typename T>
concept TensorElement = requires {
  DTypeOf<T>::value;
};

}  // namespace internal

// The sizes of a tensor's dimensions. Up to four are held inline, and a copy is then five words without a branch per
// dimension: every call builds and moves a few of these (absl::InlinedVector cost four times the instructions, see
// docs/decisions/0008-hot-path.md).
class Dims {
 public:
  using value_type = int64_t;
  using const_iterator = const int64_t*;

  Dims() : size_(0) {}
  Dims(std::initializer_list<int64_t> sizes) : size_(sizes.size()) {
    int64_t* next = allocate();
    for (const int64_t size : sizes) *next++ = size;
  }
  explicit Dims(size_t count, int64_t value) : size_(count) {
    int64_t* const sizes = allocate();
    for (size_t i = 0; i < count; ++i) sizes[i] = value;
  }
  template <std::forward_iterator It>
  Dims(It begin, It end) : size_(static_cast<size_t>(std::distance(begin, end))) {
    std::copy(begin, end, allocate());
  }
  // A shape of one dimension.
  static Dims of(int64_t size) {
    Dims dims;
    dims.size_ = 1;
    dims.inline_[0] = size;
    return dims;
  }
  Dims(const Dims& other) : size_(other.size_) {
    if (size_ <= kInline) [[likely]] {
      std::memcpy(inline_, other.inline_, sizeof(inline_));
    } else {
      std::memcpy(allocate(), other.heap_, size_ * sizeof(int64_t));
    }
  }
  Dims(Dims&& other) noexcept : size_(other.size_) { take(other); }
  Dims& operator=(const Dims& other) {
    if (size_ <= kInline && other.size_ <= kInline) [[likely]] {
      size_ = other.size_;
      std::copy_n(other.inline_, kInline, inline_);
    } else {
      *this = Dims(other);
    }
    return *this;
  }
  Dims& operator=(Dims&& other) noexcept {
    if (this == &other) return *this;
    if (size_ > kInline) [[unlikely]]
      delete[] heap_;
    size_ = other.size_;
    take(other);
    return *this;
  }
  ~Dims() {
    if (size_ > kInline) [[unlikely]]
      delete[] heap_;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const int64_t* data() const { return size_ <= kInline ? inline_ : heap_; }
  int64_t* data() { return size_ <= kInline ? inline_ : heap_; }
  const int64_t* begin() const { return data(); }
  const int64_t* end() const { return data() + size_; }
  int64_t* begin() { return data(); }
  int64_t* end() { return data() + size_; }
  int64_t operator[](size_t i) const { return data()[i]; }
  int64_t& operator[](size_t i) { return data()[i]; }
  int64_t back() const { return data()[size_ - 1]; }
  void push_back(int64_t size) {
    Dims longer(size_ + 1, size);
    std::memcpy(longer.data(), data(), size_ * sizeof(int64_t));
    *this = std::move(longer);
  }

  friend bool operator==(const Dims& a, const Dims& b) {
    return a.size_ == b.size_ && std::memcmp(a.data(), b.data(), a.size_ * sizeof(int64_t)) == 0;
  }

 private:
  static constexpr size_t kInline = 4;

  int64_t* allocate() {
    if (size_ <= kInline) return inline_;
    heap_ = new int64_t[size_];
    return heap_;
  }
  void take(Dims& other) {
    if (size_ <= kInline) [[likely]] {
      std::memcpy(inline_, other.inline_, sizeof(inline_));
    } else {
      heap_ = other.heap_;
      other.size_ = 0;
    }
  }

  size_t size_;
  union {
    int64_t inline_[kInline] = {};
    int64_t* heap_;
  };
};

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
// Errors: none here. A shape that no tensor can have is kept as it was given, with numel() == -1, so that the call that
//   gets the view can refuse it by name: see shape_status().
class TensorView {
 public:
  // Nothing: no data, dtype float32, shape {0}.
  TensorView() : sizes_(Dims::of(0)) {}

  // A contiguous tensor at `data`. numel is the product of `sizes`; {} is one element.
  TensorView(void* data, DType dtype, Dims sizes, Device device = {});
  // Any strides, in elements, one for each size. Collectives answer a view that is not contiguous with InvalidArgument.
  TensorView(void* data, DType dtype, Dims sizes, Dims strides, Device device = {});

  // One dimension, from owners of memory.
  template <internal::TensorElement T, typename Allocator>
  TensorView(std::vector<T, Allocator>& values) : TensorView(of_vector(values)) {}  // NOLINT: implicit
  template <internal::TensorElement T>
  TensorView(std::span<T> values) : TensorView(flat(values.data(), values.size())) {}  // NOLINT: implicit
  template <internal::TensorElement T, size_t N>
  TensorView(std::array<T, N>& values) : TensorView(flat(values.data(), N)) {}  // NOLINT: implicit
  // A shape over typed memory.
  template <internal::TensorElement T>
  TensorView(T* data, Dims sizes)
      : TensorView(static_cast<void*>(data), internal::DTypeOf<T>::value, std::move(sizes)) {}
  // One element.
  template <internal::TensorElement T>
  static TensorView scalar(T& value) {
    return flat(&value, 1);
  }

  // A shape without data, for the fake world.
  static TensorView meta(Dims sizes, DType dtype) {
    return TensorView(nullptr, dtype, std::move(sizes), Device{Device::Kind::kMeta, 0});
  }

  void* data() const { return data_; }
  template <internal::TensorElement T>
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

  // InvalidArgument for a negative size, for more bytes than int64 counts, and for strides that are not one for each
  // size.
  absl::Status shape_status() const;

  // Elements [begin, begin + count) of a contiguous view, in one dimension.
  TensorView slice(int64_t begin, int64_t count, CodeSite code = CodeSite::here()) const;

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
    view.dtype_ = internal::DTypeOf<T>::value;
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

  template <internal::TensorElement T, typename Allocator>
  ConstTensorView(const std::vector<T, Allocator>& values)  // NOLINT: implicit
      : view_(TensorView::of_vector(const_cast<std::vector<T, Allocator>&>(values))) {}
  template <internal::TensorElement T, typename Allocator>
  ConstTensorView(const std::vector<T, Allocator>&& values) = delete;
  template <internal::TensorElement T>
  ConstTensorView(std::span<const T> values)  // NOLINT: implicit
      : view_(TensorView::flat(const_cast<T*>(values.data()), values.size())) {}
  template <internal::TensorElement T>
  ConstTensorView(std::span<T> values) : view_(values) {}  // NOLINT: implicit
  template <internal::TensorElement T, size_t N>
  ConstTensorView(const std::array<T, N>& values)  // NOLINT: implicit
      : view_(TensorView::flat(const_cast<T*>(values.data()), N)) {}
  template <internal::TensorElement T, size_t N>
  ConstTensorView(const std::array<T, N>&& values) = delete;
  template <internal::TensorElement T>
  ConstTensorView(const T* data, Dims sizes)
      : ConstTensorView(static_cast<const void*>(data), internal::DTypeOf<T>::value, std::move(sizes)) {}
  template <internal::TensorElement T>
  static ConstTensorView scalar(const T& value) {
    return ConstTensorView(TensorView::flat(const_cast<T*>(&value), 1));
  }
  template <internal::TensorElement T>
  static ConstTensorView scalar(const T&& value) = delete;

  // For the inputs of a CollectiveCall, which kernels only read.
  const TensorView& view() const& { return view_; }
  TensorView view() && { return std::move(view_); }

 private:
  TensorView view_;
};

namespace internal {

// "[2, 3]".
std::string dims_text(const Dims& dims);

}  // namespace internal

// The structs of DLPack that a tensor without an owner needs, with the layout of version 0.8 and later
// (https://github.com/dmlc/dlpack, include/dlpack/dlpack.h), so that nobody has to install its header.
namespace dlpack {

enum DeviceType : int32_t {
  kDLCPU = 1,
  kDLCUDA = 2,
  kDLCUDAHost = 3,      // pinned memory of the host
  kDLCUDAManaged = 13,  // reachable from host and device
};

enum DataTypeCode : uint8_t {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLOpaqueHandle = 3,
  kDLBfloat = 4,
  kDLComplex = 5,
  kDLBool = 6,
  kDLFloat8_e4m3fn = 10,  // since version 1.1
  kDLFloat8_e5m2 = 12,
};

struct DLDevice {
  int32_t device_type;  // a DeviceType
  int32_t device_id;
};

struct DLDataType {
  uint8_t code;  // a DataTypeCode
  uint8_t bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null: contiguous, row by row
  uint64_t byte_offset;
};

// A view of the tensor's memory, which its producer keeps.
// Errors: InvalidArgument for an element type that no DType is (the text names it), several lanes, a device that is
//   neither CPU nor CUDA, and a shape that no tensor can have. Strides are taken over as they are.
absl::StatusOr<TensorView> view(const DLTensor& tensor);

// The same for the DLTensor of DLPack's own header.
template <typename Tensor>
requires requires(const Tensor& t) { t.device.device_type, t.dtype.code, t.ndim, t.strides, t.byte_offset; }
absl::StatusOr<TensorView> view(const Tensor& t) {
  return view(DLTensor{.data = t.data,
                       .device = {static_cast<int32_t>(t.device.device_type), t.device.device_id},
                       .ndim = t.ndim,
                       .dtype = {t.dtype.code, t.dtype.bits, t.dtype.lanes},
                       .shape = t.shape,
                       .strides = t.strides,
                       .byte_offset = t.byte_offset});
}

}  // namespace dlpack

}  // namespace rankloom

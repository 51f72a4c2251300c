#include "rankloom/tensor.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"

namespace rankloom {

using namespace internal;

namespace {

// The product of `sizes`, or -1 if a size is negative or the bytes do not fit into int64.
int64_t count_elements(const Dims& sizes, DType dtype) {
  bool empty = false;
  for (const int64_t size : sizes) {
    if (size < 0) return -1;
    empty = empty || size == 0;
  }
  if (empty) return 0;  // whatever the other sizes are
  int64_t numel = 1;
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(numel, size, &numel)) return -1;
  }
  const auto each = std::max<int64_t>(1, static_cast<int64_t>(dtype_size(dtype)));  // 0: no dtype, which calls refuse
  return numel <= std::numeric_limits<int64_t>::max() / each ? numel : -1;
}

// Whether elements lie as they would without strides. A dimension of size 1 is never stepped along.
bool are_contiguous(const Dims& sizes, const Dims& strides) {
  int64_t expected = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] != 1 && strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

}  // namespace

std::string Device::name() const {
  switch (kind) {
    case Kind::kCpu:
      return "cpu";
    case Kind::kCuda:
      return absl::StrCat("cuda:", index);
    case Kind::kMeta:
      return "meta";
  }
  return "?";
}

TensorView::TensorView(void* data, DType dtype, Dims sizes, Device device)
    : data_(data), dtype_(dtype), device_(device), numel_(count_elements(sizes, dtype)), sizes_(std::move(sizes)) {}

TensorView::TensorView(void* data, DType dtype, Dims sizes, Dims strides, Device device)
    : TensorView(data, dtype, std::move(sizes), device) {
  if (strides.size() != sizes_.size()) {
    numel_ = -1;
    contiguous_ = false;
  } else if (numel_ > 0) {
    contiguous_ = are_contiguous(sizes_, strides);
  }
  if (!contiguous_) strides_ = std::make_shared<const Dims>(std::move(strides));
}

const Dims& TensorView::strides() const {
  static const Dims kNone;
  return strides_ != nullptr ? *strides_ : kNone;
}

absl::Status TensorView::shape_status() const {
  if (numel_ >= 0) return absl::OkStatus();
  if (!contiguous_ && strides().size() != sizes_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("shape ", dims_text(sizes_), " has ", sizes_.size(),
                                                   " dimensions and strides ", dims_text(strides()), " have ",
                                                   strides().size()));
  }
  for (const int64_t size : sizes_) {
    if (size < 0) {
      return absl::InvalidArgumentError(absl::StrCat("shape ", dims_text(sizes_), " has a negative size, ", size));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("shape ", dims_text(sizes_), " of ", sv(dtype_name(dtype_)), " has more bytes than int64 counts"));
}

TensorView TensorView::slice(int64_t begin, int64_t count, CodeSite code) const {
  if (!contiguous_ || begin < 0 || count < 0 || begin > numel_ || count > numel_ - begin) [[unlikely]] {
    refuse({.rank = -1, .group = {}, .op = "slice"}, ErrorKind::kInvalidArgument, "TensorView::slice: begin is ", begin,
           " and count ", count, ", want elements 0 to ", numel_, " of a contiguous view; this one is ", text(),
           site_place(Site{.code = code}));
  }
  TensorView part;
  // No arithmetic on the null pointer of a meta tensor.
  part.data_ =
      data_ == nullptr ? nullptr : static_cast<char*>(data_) + begin * static_cast<int64_t>(dtype_size(dtype_));
  part.dtype_ = dtype_;
  part.device_ = device_;
  part.numel_ = count;
  part.sizes_ = Dims::of(count);
  return part;
}

std::string TensorView::text() const {
  std::string text = absl::StrCat(sv(dtype_name(dtype_)), dims_text(sizes_));
  if (!contiguous_) absl::StrAppend(&text, " with strides ", dims_text(strides()));
  if (device_.kind != Device::Kind::kCpu) absl::StrAppend(&text, " on ", device_.name());
  return text;
}

std::string internal::dims_text(const Dims& dims) { return absl::StrCat("[", absl::StrJoin(dims, ", "), "]"); }

}  // namespace rankloom

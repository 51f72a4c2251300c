#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "rankloom/tensor.h"

namespace rankloom {

using namespace internal;

namespace {

// The layout is an ABI.
static_assert(sizeof(void*) == 8 && sizeof(dlpack::DLTensor) == 48);
static_assert(offsetof(dlpack::DLTensor, device) == 8 && offsetof(dlpack::DLTensor, ndim) == 16);
static_assert(offsetof(dlpack::DLTensor, dtype) == 20 && offsetof(dlpack::DLTensor, shape) == 24);
static_assert(offsetof(dlpack::DLTensor, strides) == 32 && offsetof(dlpack::DLTensor, byte_offset) == 40);

struct TypeRow {
  uint8_t code;
  uint8_t bits;
  DType dtype;
};
constexpr std::array kTypes{
    TypeRow{dlpack::kDLFloat, 16, DType::kFloat16},
    TypeRow{dlpack::kDLBfloat, 16, DType::kBFloat16},
    TypeRow{dlpack::kDLFloat, 32, DType::kFloat32},
    TypeRow{dlpack::kDLFloat, 64, DType::kFloat64},
    TypeRow{dlpack::kDLInt, 8, DType::kInt8},
    TypeRow{dlpack::kDLUInt, 8, DType::kUInt8},
    TypeRow{dlpack::kDLInt, 16, DType::kInt16},
    TypeRow{dlpack::kDLInt, 32, DType::kInt32},
    TypeRow{dlpack::kDLInt, 64, DType::kInt64},
    TypeRow{dlpack::kDLBool, 8, DType::kBool},
    TypeRow{dlpack::kDLComplex, 64, DType::kComplex64},
    TypeRow{dlpack::kDLComplex, 128, DType::kComplex128},
    TypeRow{dlpack::kDLFloat8_e4m3fn, 8, DType::kFloat8E4M3FN},
    TypeRow{dlpack::kDLFloat8_e5m2, 8, DType::kFloat8E5M2},
};

std::optional<DType> dtype_of(dlpack::DLDataType type) {
  for (const TypeRow& row : kTypes) {
    if (row.code == type.code && row.bits == type.bits) return row.dtype;
  }
  return std::nullopt;
}

// "uint16", "type code 17 of 4 bits".
std::string type_text(dlpack::DLDataType type) {
  constexpr std::array<absl::string_view, 7> kNames = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  if (type.code < kNames.size()) return absl::StrCat(kNames[type.code], int{type.bits});
  return absl::StrCat("type code ", int{type.code}, " of ", int{type.bits}, " bits");
}

absl::Status refused(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("DLPack tensor: ", what));
}

absl::StatusOr<Device> device_of(dlpack::DLDevice device) {
  switch (device.device_type) {
    case dlpack::kDLCPU:
    case dlpack::kDLCUDAHost:
      return Device{};
    case dlpack::kDLCUDA:
    case dlpack::kDLCUDAManaged:
      if (device.device_id < 0 || device.device_id > std::numeric_limits<int8_t>::max()) {
        return refused(absl::StrCat("CUDA device ", device.device_id, ", want 0 to 127"));
      }
      return Device{Device::Kind::kCuda, static_cast<int8_t>(device.device_id)};
    default:
      return refused(absl::StrCat("device type ", device.device_type, ", want CPU (1, 3) or CUDA (2, 13)"));
  }
}

}  // namespace

absl::StatusOr<TensorView> dlpack::view(const DLTensor& tensor) {
  const std::optional<DType> dtype = dtype_of(tensor.dtype);
  if (!dtype.has_value()) return refused(absl::StrCat("elements are ", type_text(tensor.dtype), ", which is no DType"));
  if (tensor.dtype.lanes != 1) {
    return refused(absl::StrCat("elements are vectors of ", int{tensor.dtype.lanes}, " lanes, want 1"));
  }
  const absl::StatusOr<Device> device = device_of(tensor.device);
  if (!device.ok()) return device.status();
  if (tensor.ndim < 0) return refused(absl::StrCat("ndim is ", tensor.ndim));
  if (tensor.ndim > 0 && tensor.shape == nullptr) {
    return refused(absl::StrCat("shape is null with ndim ", tensor.ndim));
  }
  char* data = static_cast<char*>(tensor.data);
  if (data != nullptr) data += tensor.byte_offset;
  Dims sizes(tensor.shape, tensor.shape + tensor.ndim);
  TensorView view = tensor.strides == nullptr ? TensorView(data, *dtype, std::move(sizes), *device)
                                              : TensorView(data, *dtype, std::move(sizes),
                                                           Dims(tensor.strides, tensor.strides + tensor.ndim), *device);
  if (absl::Status s = view.shape_status(); !s.ok()) return refused(s.message());
  if (data == nullptr && view.numel() != 0)
    return refused(absl::StrCat("data is null with shape ", dims_text(view.sizes())));
  return view;
}

}  // namespace rankloom

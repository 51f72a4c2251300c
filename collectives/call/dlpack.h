#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "collectives/call/tensor.h"

namespace rankloom {

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

}  // namespace dlpack

// A view of the tensor's memory, which its producer keeps.
// Errors: InvalidArgument for an element type that no DType is (the text names it), several lanes, a device that is neither
//   CPU nor CUDA, and a shape that no tensor can have. Strides are taken over as they are.
absl::StatusOr<TensorView> from_dlpack(const dlpack::DLTensor& tensor);

// The same for the DLTensor of DLPack's own header.
template <typename Tensor>
requires requires(const Tensor& t) { t.device.device_type, t.dtype.code, t.ndim, t.strides, t.byte_offset; }
absl::StatusOr<TensorView> from_dlpack(const Tensor& t) {
  return from_dlpack(dlpack::DLTensor{.data = t.data,
                                      .device = {static_cast<int32_t>(t.device.device_type), t.device.device_id},
                                      .ndim = t.ndim,
                                      .dtype = {t.dtype.code, t.dtype.bits, t.dtype.lanes},
                                      .shape = t.shape,
                                      .strides = t.strides,
                                      .byte_offset = t.byte_offset});
}

}  // namespace rankloom

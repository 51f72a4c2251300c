#include "bridge/torch/buffers.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <optional>

namespace rankloom::bridge {

using namespace internal;

namespace {

std::optional<DType> dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return DType::kFloat16;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kFloat:
      return DType::kFloat32;
    case at::kDouble:
      return DType::kFloat64;
    case at::kChar:
      return DType::kInt8;
    case at::kByte:
      return DType::kUInt8;
    case at::kShort:
      return DType::kInt16;
    case at::kInt:
      return DType::kInt32;
    case at::kLong:
      return DType::kInt64;
    case at::kBool:
      return DType::kBool;
    case at::kComplexFloat:
      return DType::kComplex64;
    case at::kComplexDouble:
      return DType::kComplex128;
    case at::kFloat8_e4m3fn:
      return DType::kFloat8E4M3FN;
    case at::kFloat8_e5m2:
      return DType::kFloat8E5M2;
    default:
      return std::nullopt;
  }
}

// What moves as well as a type that the core does not know: one of the same size.
std::optional<DType> dtype_of_size(size_t bytes) {
  switch (bytes) {
    case 1:
      return DType::kUInt8;
    case 2:
      return DType::kInt16;
    case 4:
      return DType::kInt32;
    case 8:
      return DType::kInt64;
    case 16:
      return DType::kComplex128;
    default:
      return std::nullopt;
  }
}

// A FakeTensor says that it is on the CPU and has no memory.
Device device_of(const at::Tensor& tensor, const void* data) {
  return data == nullptr && tensor.numel() > 0 ? Device{Device::Kind::kMeta, 0} : Device{};
}

}  // namespace

void HeldTensors::copy_back() {
  for (const std::shared_ptr<HeldTensors>& part : parts_) {
    if (part != nullptr) part->copy_back();
  }
  if (aside_.empty()) return;
  std::call_once(copied_, [this] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    for (auto& [theirs, ours] : aside_) theirs.copy_(ours);
  });
}

std::shared_ptr<HeldTensors> HeldTensors::of(std::vector<std::shared_ptr<HeldTensors>> parts) {
  auto held = std::make_shared<HeldTensors>();
  held->parts_ = std::move(parts);
  return held;
}

TensorView Buffers::view(const at::Tensor& tensor, bool written) {
  TORCH_CHECK(tensor.defined(), op_, ": a tensor is undefined, want a tensor");
  TORCH_CHECK(tensor.layout() == at::kStrided, op_, ": a tensor is ", tensor.layout(), ", want a dense (strided) one");
  std::optional<DType> dtype = dtype_of(tensor.scalar_type());
  if (!dtype.has_value() && (moves_only_ || fake_)) dtype = dtype_of_size(tensor.element_size());
  TORCH_CHECK(
      dtype.has_value(), op_, ": a tensor has dtype ", tensor.scalar_type(),
      ", want Half, BFloat16, Float, Double, Char, Byte, Short, Int, Long, Bool, ComplexFloat or ComplexDouble");
  Dims sizes(tensor.sizes().begin(), tensor.sizes().end());
  if (fake_) return TensorView(nullptr, *dtype, std::move(sizes), Device{Device::Kind::kMeta, 0});

  TORCH_CHECK(tensor.is_cpu() || tensor.is_cuda(), op_, ": a tensor is on ", tensor.device(), ", want cpu or cuda");
  if (!first_.has_value()) first_ = tensor.device();
  TORCH_CHECK(tensor.device() == *first_, op_, ": a tensor is on ", tensor.device(), ", want ", *first_,
              " as the first one of the call");
  at::Tensor used = tensor;
  if (!tensor.is_cpu() || !tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg()) {
    // The ranks meet in this process's memory. Copies from and to a GPU are in the order of the current stream.
    const at::AutoDispatchBelowADInplaceOrView guard;
    used = at::empty(tensor.sizes(), tensor.options().device(at::kCPU).memory_format(at::MemoryFormat::Contiguous));
    used.copy_(tensor);
    if (written) held_->aside_.emplace_back(tensor, used);
  }
  void* const data = used.unsafeGetTensorImpl()->has_storage() ? used.mutable_data_ptr() : nullptr;
  held_->tensors_.push_back(used);
  return TensorView(data, *dtype, std::move(sizes), device_of(used, data));
}

std::vector<TensorView> Buffers::ins(at::ArrayRef<at::Tensor> tensors) {
  std::vector<TensorView> views;
  views.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) views.push_back(in(tensor));
  return views;
}

std::vector<TensorView> Buffers::outs(at::ArrayRef<at::Tensor> tensors) {
  std::vector<TensorView> views;
  views.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) views.push_back(out(tensor));
  return views;
}

ReduceOp reduce_op(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::kAvg;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::kProduct;
    case c10d::ReduceOp::MIN:
      return ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return ReduceOp::kMax;
    case c10d::ReduceOp::BAND:
      return ReduceOp::kBand;
    case c10d::ReduceOp::BOR:
      return ReduceOp::kBor;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::kBxor;
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* const supplement = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
      TORCH_CHECK(supplement != nullptr,
                  "a PREMUL_SUM without a factor, want torch.distributed._make_nccl_premul_sum(factor)");
      return ReduceOp::premul_sum(supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>()
                                                                      : supplement->double_factor);
    }
    default:
      TORCH_CHECK(false, "a reduce op is number ", static_cast<int>(op.op_),
                  ", want SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR or PREMUL_SUM");
  }
}

}  // namespace rankloom::bridge

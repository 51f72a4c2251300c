#include "bridge/torch/buffers.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "bridge/torch/compat.h"

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

// A type of the same size, as which the bytes of a type that the core does not know can move.
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
  if (data == nullptr && tensor.numel() > 0) return {Device::Kind::kMeta, 0};
  return tensor.is_cuda() ? Device{Device::Kind::kCuda, tensor.device().index()} : Device{};
}

void count_write(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

void HeldTensors::copy_back() {
  for (const std::shared_ptr<HeldTensors>& part : parts_) {
    if (part != nullptr) part->copy_back();
  }
  if (aside_.empty() && counted_writes_ == 0) return;
  std::call_once(copied_, [this] {
    for (int time = 0; time < counted_writes_; ++time) {
      for (size_t i = 0; i < tensors_.size(); ++i) {
        if (!is_input_[i]) count_write(tensors_[i]);
      }
      for (const auto& [theirs, ours] : aside_) count_write(theirs);
    }
    const at::AutoDispatchBelowADInplaceOrView guard;
    std::vector<at::Device> devices;
    for (auto& [theirs, ours] : aside_) {
      theirs.copy_(ours);
      for (const at::Tensor* const tensor : {&theirs, &ours}) {
        if (!tensor->is_cuda()) continue;
        keep_for_current_stream(*tensor);
        if (std::find(devices.begin(), devices.end(), tensor->device()) == devices.end())
          devices.push_back(tensor->device());
      }
    }
    for (const at::Device device : devices) copied_at_.push_back(mark_current_stream(device));
  });
  for (const c10::Event& mark : copied_at_) wait_in_current_stream(mark);
}

HeldTensors::Noted HeldTensors::noted(const at::Tensor& tensor) {
  const bool is_all = tensor.is_cpu() && !tensor.is_inference() && tensor.has_storage() && tensor.numel() > 0 &&
                      tensor.is_contiguous() && tensor.storage_offset() == 0 &&
                      tensor.nbytes() == tensor.storage().nbytes();
  if (!is_all) return {.data = nullptr, .dim = 0, .version = 0};
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  return {.data = tensor.const_data_ptr(), .dim = tensor.dim(), .version = counter.current_version()};
}

void HeldTensors::note_versions(CodeSite code) {
  noted_at_ = code;
  noted_.reserve(tensors_.size());
  for (const at::Tensor& tensor : tensors_) noted_.push_back(noted(tensor));
}

std::optional<HeldTensors::EarlyWrite> HeldTensors::written_early() const {
  for (size_t i = 0; i < noted_.size(); ++i) {
    const Noted &before = noted_[i], now = noted(tensors_[i]);
    const bool is_same = before.data != nullptr && now.data == before.data && now.dim == before.dim;
    if (is_same && now.version != before.version) return EarlyWrite{.code = noted_at_, .to_input = is_input_[i]};
  }
  for (const std::shared_ptr<HeldTensors>& part : parts_) {
    if (part == nullptr) continue;
    if (const std::optional<EarlyWrite> found = part->written_early(); found.has_value()) return found;
  }
  return std::nullopt;
}

std::shared_ptr<HeldTensors> HeldTensors::of(std::vector<std::shared_ptr<HeldTensors>> parts) {
  auto held = std::make_shared<HeldTensors>();
  held->parts_ = std::move(parts);
  bool one_device = true;
  for (const std::shared_ptr<HeldTensors>& part : held->parts_) {
    if (part == nullptr) continue;
    held->copies_on_host_ |= part->copies_on_host_;
    if (part->tensors_.empty() && part->parts_.empty()) continue;
    if (!held->device_.has_value()) held->device_ = part->device_;
    one_device = one_device && part->device_ == held->device_;
  }
  if (!one_device) held->device_ = std::nullopt;
  return held;
}

DType Buffers::check(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined(), op_, ": a tensor is undefined, want a tensor");
  TORCH_CHECK(tensor.layout() == at::kStrided, op_, ": a tensor is ", tensor.layout(), ", want a dense (strided) one");
  std::optional<DType> dtype = dtype_of(tensor.scalar_type());
  if (!dtype.has_value() && moves_only_) dtype = dtype_of_size(tensor.element_size());
  TORCH_CHECK(
      dtype.has_value(), op_, ": a tensor has dtype ", tensor.scalar_type(),
      ", want Half, BFloat16, Float, Double, Char, Byte, Short, Int, Long, Bool, ComplexFloat or ComplexDouble");
  if (who_ != nullptr) check_kind(tensor);
  TORCH_CHECK(is_fake(tensor) || tensor.is_cpu() || tensor.is_cuda(), op_, ": a tensor is on ", tensor.device(),
              ", want cpu or cuda");
  if (!first_.has_value()) first_ = tensor.device();
  TORCH_CHECK(tensor.device() == *first_, op_, ": a tensor is on ", tensor.device(), ", want ", *first_,
              " as the first one of the call");
  return *dtype;
}

namespace {

// A FakeTensor of Python's has the key of tensors that Python dispatches.
bool has_no_data(const at::Tensor& tensor) {
  return tensor.is_meta() || tensor.key_set().has(c10::DispatchKey::Python);
}

}  // namespace

bool Buffers::is_fake(const at::Tensor& tensor) const {
  return data_ == Data::kNone || (data_ == Data::kIfReal && has_no_data(tensor));
}

void Buffers::check_kind(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  (has_no_data(tensor) ? has_fake_ : has_real_) = true;
  has_real_numbers_ |= !has_no_data(tensor) && tensor.is_floating_point();
  TORCH_CHECK(!has_fake_ || !has_real_, *who_, ", ", op_,
              ": have tensors with data and fake or meta ones in one call, want all of one kind");
}

TensorView Buffers::view_of(const at::Tensor& used, DType dtype, Use use) {
  void* const data = used.unsafeGetTensorImpl()->has_storage() ? used.mutable_data_ptr() : nullptr;
  held_->tensors_.push_back(used);
  held_->is_input_.push_back(use == Use::kRead);
  if (used.is_cuda()) {
    held_->device_ = used.device();
    const auto begin = reinterpret_cast<uintptr_t>(data);
    DeviceUses& uses = held_->device_uses_;
    (use == Use::kRead ? uses.reads : uses.writes).push_back({begin, begin + used.nbytes()});
  }
  return TensorView(data, dtype, Dims(used.sizes().begin(), used.sizes().end()), device_of(used, data));
}

// The host writes the outputs of fake groups.
bool Buffers::reaches(const at::Tensor& tensor) const {
  return tensor.is_cpu() || (data_ == Data::kReal && calls_reach(tensor.device()));
}

at::Tensor Buffers::aside(const at::Tensor& tensor) const {
  return at::empty(tensor.sizes(), tensor.options()
                                       .device(reaches(tensor) ? tensor.device() : at::Device(at::kCPU))
                                       .memory_format(at::MemoryFormat::Contiguous));
}

void Buffers::write_back(const at::Tensor& theirs, const at::Tensor& ours) {
  held_->aside_.emplace_back(theirs, ours);
  held_->copies_on_host_ |= ours.is_cpu();
}

TensorView Buffers::view(const at::Tensor& tensor, Use use) {
  const DType dtype = check(tensor);
  TORCH_CHECK(use == Use::kRead || at::has_internal_overlap(tensor) != at::MemOverlap::Yes, op_,
              ": an output has sizes ", tensor.sizes(), " and strides ", tensor.strides(),
              ", want no element of it twice in memory");
  if (is_fake(tensor)) {
    Dims sizes(tensor.sizes().begin(), tensor.sizes().end());
    return TensorView(nullptr, dtype, std::move(sizes), Device{Device::Kind::kMeta, 0});
  }
  if (use != Use::kWrittenAside && reaches(tensor) && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg())
    return view_of(tensor, dtype, use);
  // Copies from, to and on a GPU are in the order of the current stream.
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor used = aside(tensor);
  used.copy_(tensor);
  if (use != Use::kRead) write_back(tensor, used);
  return view_of(used, dtype, use);
}

void Buffers::check_alike(at::ArrayRef<at::Tensor> tensors) const {
  for (size_t i = 1; i < tensors.size(); ++i) {
    TORCH_CHECK(tensors[i].scalar_type() == tensors[0].scalar_type(), op_, ": invalid tensor type at index ", i,
                ": have ", tensors[i].scalar_type(), ", want ", tensors[0].scalar_type(), " as at index 0");
    TORCH_CHECK(tensors[i].sizes() == tensors[0].sizes(), op_, ": invalid tensor size at index ", i, ": have ",
                tensors[i].sizes(), ", want ", tensors[0].sizes(), " as at index 0");
  }
}

namespace {

void reduce_into(at::Tensor& sum, const at::Tensor& tensor, const char* op, const c10d::ReduceOp& reduce) {
  switch (reduce.op_) {
    case c10d::ReduceOp::SUM:
      sum.add_(tensor);
      return;
    case c10d::ReduceOp::PRODUCT:
      sum.mul_(tensor);
      return;
    case c10d::ReduceOp::MIN:
      at::minimum_out(sum, sum, tensor);
      return;
    case c10d::ReduceOp::MAX:
      at::maximum_out(sum, sum, tensor);
      return;
    case c10d::ReduceOp::BAND:
      sum.bitwise_and_(tensor);
      return;
    case c10d::ReduceOp::BOR:
      sum.bitwise_or_(tensor);
      return;
    case c10d::ReduceOp::BXOR:
      sum.bitwise_xor_(tensor);
      return;
    default:
      TORCH_CHECK(false, op,
                  ": several tensors of a rank are reduced, too, with SUM, PRODUCT, MIN, MAX, BAND, BOR or "
                  "BXOR: want one tensor a call for others");
  }
}

}  // namespace

TensorView Buffers::reduced(at::ArrayRef<at::Tensor> tensors, const c10d::ReduceOp& op) {
  check_alike(tensors);
  if (data_ != Data::kReal) return view(tensors[0], Use::kWritten);
  DType dtype = DType::kFloat32;
  for (const at::Tensor& tensor : tensors) dtype = check(tensor);
  const at::AutoDispatchBelowADInplaceOrView guard;
  at::Tensor sum = aside(tensors[0]);
  sum.copy_(tensors[0]);
  for (const at::Tensor& tensor : tensors.slice(1)) reduce_into(sum, tensor.to(sum.device()), op_, op);
  for (const at::Tensor& tensor : tensors) write_back(tensor, sum);
  return view_of(sum, dtype, Use::kWritten);
}

TensorView Buffers::copied(at::ArrayRef<at::Tensor> tensors, size_t root) {
  check_alike(tensors);
  TensorView made = view(tensors[root], Use::kWritten);
  if (data_ != Data::kReal) return made;
  const at::Tensor used = held_->tensors_.back();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (i != root) write_back(tensors[i], used);
  }
  return made;
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
  // Memory of those so far, of those that are copied aside too: mostly one after the other.
  using Range = std::pair<uintptr_t, uintptr_t>;
  std::vector<Range> ranges;
  Range hull{UINTPTR_MAX, 0};
  for (const at::Tensor& tensor : tensors) {
    Range range{0, 0};
    if (data_ != Data::kNone && tensors.size() > 1 && tensor.defined() && !is_fake(tensor) && reaches(tensor) &&
        tensor.layout() == at::kStrided && tensor.numel() > 0 && tensor.has_storage()) {
      int64_t last = 0;
      for (int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
      range.first = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
      range.second = range.first + (static_cast<size_t>(last) + 1) * tensor.element_size();
    }
    const auto meets = [&range](const Range& other) {
      return other.first < range.second && range.first < other.second;
    };
    const bool shared = meets(hull) && std::any_of(ranges.begin(), ranges.end(), meets);
    views.push_back(view(tensor, shared ? Use::kWrittenAside : Use::kWritten));
    if (range.second == 0) continue;
    ranges.push_back(range);
    hull = {std::min(hull.first, range.first), std::max(hull.second, range.second)};
  }
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
      const auto* const supplement = dynamic_cast<const RANKLOOM_C10D_PREMUL_SUM_SUPPLEMENT*>(op.supplement_.get());
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

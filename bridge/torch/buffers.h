#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>
#include <vector>

#include "rankloom/rankloom.h"

namespace rankloom::bridge {

// The tensors of one call: held until it is done, by the core's call and by torch's work. A tensor passes without a
// copy if it is contiguous and on the CPU; another is copied aside, and back when the call is done.
class HeldTensors {
 public:
  // Writes what was copied aside back to where it belongs. The first call only; safe from any thread.
  void copy_back();
  // One for several, of which some may be null.
  static std::shared_ptr<HeldTensors> of(std::vector<std::shared_ptr<HeldTensors>> parts);

 private:
  friend class Buffers;
  std::vector<at::Tensor> tensors_;
  std::vector<std::pair<at::Tensor, at::Tensor>> aside_;  // the caller's, ours
  std::vector<std::shared_ptr<HeldTensors>> parts_;
  std::once_flag copied_;
};

// Makes views of tensors. Errors: c10::Error for a tensor that no collective can move.
class Buffers {
 public:
  // `op`: for error texts. `moves_only`: any dtype is well, by its size. `fake`: data is not looked at, and nothing
  // held.
  Buffers(const char* op, bool moves_only, bool fake)
      : op_(op), moves_only_(moves_only), fake_(fake), held_(fake ? nullptr : std::make_shared<HeldTensors>()) {}

  TensorView in(const at::Tensor& tensor) { return view(tensor, Use::kRead); }
  TensorView out(const at::Tensor& tensor) { return view(tensor, Use::kWritten); }
  std::vector<TensorView> ins(at::ArrayRef<at::Tensor> tensors);
  // Outputs that share memory are written one after the other, in this order, when the call is done.
  std::vector<TensorView> outs(at::ArrayRef<at::Tensor> tensors);
  // One output whose result each of `tensors` gets: the reduction of them all, which the call goes on with.
  TensorView reduced(at::ArrayRef<at::Tensor> tensors, const c10d::ReduceOp& op);
  // tensors[root] as the output; the others get its result.
  TensorView copied(at::ArrayRef<at::Tensor> tensors, size_t root);

  const std::shared_ptr<HeldTensors>& held() const { return held_; }
  const char* op() const { return op_; }

 private:
  enum class Use { kRead, kWritten, kWrittenAside };
  TensorView view(const at::Tensor& tensor, Use use);
  TensorView view_of(const at::Tensor& used, DType dtype);
  DType check(const at::Tensor& tensor);
  void check_alike(at::ArrayRef<at::Tensor> tensors) const;

  const char* const op_;
  const bool moves_only_;
  const bool fake_;
  const std::shared_ptr<HeldTensors> held_;
  std::optional<at::Device> first_;
};

// Errors: c10::Error for an operation that is none.
ReduceOp reduce_op(const c10d::ReduceOp& op);

}  // namespace rankloom::bridge

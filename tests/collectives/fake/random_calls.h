#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "collectives/call/complex.h"
#include "collectives/kernels/kernels.h"
#include "collectives/ops/op_table.h"
#include "rankloom/error.h"
#include "rankloom/process_group.h"
#include "rankloom/random.h"

namespace rankloom {

using namespace internal;

// Calls that a test makes up from a number: the same plan on every rank, the buffers of each rank's part in it, and
// what is wrong with them, if anything.

enum class CallFault : uint8_t {
  kNone,
  kRoot,
  kCount,
  kDType,
  kNull,
  kListLength,
  kOverlap,
  kStrided,
  kSplits,
  kReduceOp
};
inline constexpr int kFaultCount = 10;

struct CallPlan {
  OpType op = OpType::kBarrier;
  DType dtype = DType::kFloat32;
  ReduceOp reduce_op;
  int root = 0;
  int lists = 1;                // of the coalesced forms
  std::vector<int64_t> counts;  // [rank] what goes to that rank in all_to_all; elsewhere the first counts
  CallFault fault = CallFault::kNone;
  uint64_t data = 0;  // the seed of the buffers' contents

  std::string text() const {
    return std::string(op_row(op).name) + ", " + std::string(dtype_name(dtype)) + ", " + reduce_op.name() + ", root " +
           std::to_string(root) + ", fault " + std::to_string(static_cast<int>(fault));
  }
};

// A plan of a call that every member of a group of `size` may make; `faulty`: that some of them may not.
inline CallPlan random_plan(uint64_t seed, int size, bool faulty) {
  static constexpr OpType kPlanned[] = {OpType::kBroadcast,
                                        OpType::kAllReduce,
                                        OpType::kAllReduceCoalesced,
                                        OpType::kReduce,
                                        OpType::kAllGather,
                                        OpType::kAllGatherIntoTensor,
                                        OpType::kAllGatherIntoTensorCoalesced,
                                        OpType::kGather,
                                        OpType::kScatter,
                                        OpType::kReduceScatter,
                                        OpType::kReduceScatterTensor,
                                        OpType::kReduceScatterTensorCoalesced,
                                        OpType::kAllToAll,
                                        OpType::kAllToAllSingle,
                                        OpType::kBarrier};
  Prng prng(seed);
  CallPlan plan;
  plan.op = kPlanned[prng.below(std::size(kPlanned))];
  plan.root = static_cast<int>(prng.below(static_cast<uint64_t>(size)));
  plan.lists = 1 + static_cast<int>(prng.below(3));
  plan.data = prng.next();
  for (int i = 0; i < size; ++i) plan.counts.push_back(static_cast<int64_t>(prng.below(5)));
  const bool reduces = op_row(plan.op).compares(CallField::kReduceOp);
  for (;;) {
    plan.dtype = static_cast<DType>(prng.below(kDTypeCount));
    const auto kind = static_cast<ReduceOp::Kind>(prng.below(9));
    plan.reduce_op = kind == ReduceOp::Kind::kPremulSum ? ReduceOp::premul_sum(0.5) : ReduceOp(kind);
    if (!reduces || reduction_supported(plan.reduce_op, plan.dtype)) break;
  }
  if (faulty) plan.fault = static_cast<CallFault>(prng.below(kFaultCount));
  return plan;
}

// One rank's part in a plan: its buffers, filled alike on every rank, and the call.
class PlannedCall {
 public:
  PlannedCall(const CallPlan& plan, int rank, int size) : plan_(plan), prng_(plan.data), rank_(rank), size_(size) {
    build();
    if (plan.fault != CallFault::kNone) break_it();
  }

  Work issue(ProcessGroup& pg) {
    switch (plan_.op) {
      case OpType::kBroadcast:
        return pg.broadcast(outputs_[0], plan_.root);
      case OpType::kAllReduce:
        return pg.all_reduce(outputs_[0], plan_.reduce_op);
      case OpType::kAllReduceCoalesced:
        return pg.all_reduce_coalesced(outputs_, plan_.reduce_op);
      case OpType::kReduce:
        return pg.reduce(outputs_[0], plan_.root, plan_.reduce_op);
      case OpType::kAllGather:
        return pg.all_gather(outputs_, inputs_[0]);
      case OpType::kAllGatherIntoTensor:
        return pg.all_gather_into_tensor(outputs_[0], inputs_[0]);
      case OpType::kAllGatherIntoTensorCoalesced:
        return pg.all_gather_into_tensor_coalesced(outputs_, inputs_);
      case OpType::kGather:
        return pg.gather(outputs_, inputs_[0], plan_.root);
      case OpType::kScatter:
        return pg.scatter(outputs_[0], inputs_, plan_.root);
      case OpType::kReduceScatter:
        return pg.reduce_scatter(outputs_[0], inputs_, plan_.reduce_op);
      case OpType::kReduceScatterTensor:
        return pg.reduce_scatter_tensor(outputs_[0], inputs_[0], plan_.reduce_op);
      case OpType::kReduceScatterTensorCoalesced:
        return pg.reduce_scatter_tensor_coalesced(outputs_, inputs_, plan_.reduce_op);
      case OpType::kAllToAll:
        return pg.all_to_all(outputs_, inputs_);
      case OpType::kAllToAllSingle:
        return pg.all_to_all_single(outputs_[0], inputs_[0], out_splits_, in_splits_);
      default:
        return pg.barrier();
    }
  }

  // The group's answer to the call: "" if it takes the call. The work is added to `works`.
  std::string verdict(ProcessGroup& pg, std::vector<Work>& works) {
    try {
      works.push_back(issue(pg));
    } catch (const DistError& error) {
      return error.what();
    }
    return "";
  }

  // The bytes of all outputs, one after the other.
  std::vector<std::byte> result() const {
    std::vector<std::byte> bytes;
    for (const TensorView& tensor : outputs_) {
      const auto* const begin = static_cast<const std::byte*>(tensor.data());
      bytes.insert(bytes.end(), begin, begin + tensor.bytes());
    }
    return bytes;
  }

 private:
  // Values whose sums, products and halves are exact in every dtype; integers of any size, since they wrap.
  void put(std::byte* at) {
    const auto put_as = [at](auto value) { std::memcpy(at, &value, sizeof(value)); };
    const uint64_t bits = prng_.next();
    const auto small = static_cast<float>(static_cast<int>(bits % 5) - 2);
    const auto other = static_cast<float>(static_cast<int>(bits / 5 % 5) - 2);
    switch (plan_.dtype) {
      case DType::kFloat16:
        return put_as(Half(small));
      case DType::kBFloat16:
        return put_as(BFloat16(small));
      case DType::kFloat32:
        return put_as(small);
      case DType::kFloat64:
        return put_as(static_cast<double>(small));
      case DType::kComplex64:
        return put_as(Complex64(small, other));
      case DType::kComplex128:
        return put_as(Complex128(small, other));
      case DType::kBool:
        return put_as(static_cast<uint8_t>(bits % 2));
      default:
        std::memcpy(at, &bits, dtype_size(plan_.dtype));
    }
  }

  TensorView tensor(int64_t count, bool filled) {
    std::vector<std::byte>& memory = memory_.emplace_back(static_cast<size_t>(count) * dtype_size(plan_.dtype));
    const size_t size = dtype_size(plan_.dtype);
    for (size_t at = 0; filled && at < memory.size(); at += size) put(memory.data() + at);
    if (!filled) std::fill(memory.begin(), memory.end(), std::byte{0x55});
    return {count == 0 ? nullptr : static_cast<void*>(memory.data()), plan_.dtype, Dims::of(count)};
  }

  void build() {
    const int64_t count = plan_.counts[0];
    const int64_t mine = plan_.counts[static_cast<size_t>(rank_)];
    int64_t total = 0;
    for (const int64_t one : plan_.counts) total += one;
    memory_.reserve(64);  // views stay right
    switch (plan_.op) {
      case OpType::kBroadcast:
      case OpType::kAllReduce:
      case OpType::kReduce:
        outputs_ = {tensor(count, true)};
        return;
      case OpType::kAllReduceCoalesced:
        for (int i = 0; i < plan_.lists; ++i) outputs_.push_back(tensor(count + i, true));
        return;
      case OpType::kAllGather:
      case OpType::kGather:
        inputs_ = {tensor(count, true)};
        for (int i = 0; i < size_ && (plan_.op == OpType::kAllGather || rank_ == plan_.root); ++i)
          outputs_.push_back(tensor(count, false));
        return;
      case OpType::kAllGatherIntoTensor:
        inputs_ = {tensor(count, true)};
        outputs_ = {tensor(count * size_, false)};
        return;
      case OpType::kAllGatherIntoTensorCoalesced:
        for (int i = 0; i < plan_.lists; ++i) {
          inputs_.push_back(tensor(count + i, true));
          outputs_.push_back(tensor((count + i) * size_, false));
        }
        return;
      case OpType::kScatter:
        for (int i = 0; i < size_ && rank_ == plan_.root; ++i) inputs_.push_back(tensor(count, true));
        outputs_ = {tensor(count, false)};
        return;
      case OpType::kReduceScatter:
        for (int i = 0; i < size_; ++i) inputs_.push_back(tensor(count, true));
        outputs_ = {tensor(count, false)};
        return;
      case OpType::kReduceScatterTensor:
        inputs_ = {tensor(count * size_, true)};
        outputs_ = {tensor(count, false)};
        return;
      case OpType::kReduceScatterTensorCoalesced:
        for (int i = 0; i < plan_.lists; ++i) {
          inputs_.push_back(tensor((count + i) * size_, true));
          outputs_.push_back(tensor(count + i, false));
        }
        return;
      case OpType::kAllToAll:  // counts[i] to rank i, of everybody
        for (const int64_t one : plan_.counts) inputs_.push_back(tensor(one, true));
        for (int i = 0; i < size_; ++i) outputs_.push_back(tensor(mine, false));
        return;
      case OpType::kAllToAllSingle:
        if (plan_.lists == 1) {  // equal parts
          inputs_ = {tensor(count * size_, true)};
          outputs_ = {tensor(count * size_, false)};
          return;
        }
        in_splits_ = plan_.counts;
        out_splits_.assign(static_cast<size_t>(size_), mine);
        inputs_ = {tensor(total, true)};
        outputs_ = {tensor(mine * size_, false)};
        return;
      default:
        return;
    }
  }

  // Spoils one tensor, or another part of the call.
  void break_it() {
    Prng prng(plan_.data + 1);  // the same choices on every rank
    std::vector<TensorView*> tensors;
    for (TensorView& one : inputs_) tensors.push_back(&one);
    for (TensorView& one : outputs_) tensors.push_back(&one);
    TensorView* const one = tensors.empty() ? nullptr : tensors[prng.below(tensors.size())];
    switch (plan_.fault) {
      case CallFault::kNone:
        return;
      case CallFault::kRoot:
        plan_.root = prng.below(2) == 0 ? -1 : size_;
        return;
      case CallFault::kReduceOp:
        plan_.reduce_op = static_cast<ReduceOp::Kind>(prng.below(9));
        return;
      case CallFault::kSplits:
        in_splits_.push_back(static_cast<int64_t>(prng.below(3)) - 1);
        return;
      case CallFault::kListLength: {
        std::vector<TensorView>& list = prng.below(2) == 0 ? inputs_ : outputs_;
        if (list.size() > 1) list.pop_back();
        return;
      }
      case CallFault::kCount:
        if (one != nullptr) *one = tensor(one->numel() + 1, true);
        return;
      case CallFault::kDType:
        if (one != nullptr) *one = TensorView(one->data(), DType::kInt8, one->sizes());
        return;
      case CallFault::kNull:
        if (one != nullptr) *one = TensorView(nullptr, one->dtype(), one->sizes());
        return;
      case CallFault::kOverlap:
        if (one != nullptr && !outputs_.empty() && one->bytes() <= outputs_[0].bytes())
          *one = TensorView(outputs_[0].data(), one->dtype(), one->sizes());
        return;
      case CallFault::kStrided:
        if (one != nullptr && one->numel() > 1)
          *one = TensorView(one->data(), one->dtype(), Dims::of(one->numel() / 2), Dims::of(2));
        return;
    }
  }

  CallPlan plan_;
  Prng prng_;
  const int rank_;
  const int size_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<TensorView> inputs_;
  std::vector<TensorView> outputs_;
  std::vector<int64_t> in_splits_;
  std::vector<int64_t> out_splits_;
};

}  // namespace rankloom

#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "collectives/call/complex.h"
#include "collectives/kernels/kernels.h"
#include "collectives/kernels/plan.h"
#include "rankloom/collective_call.h"
#include "rankloom/random.h"
#include "rankloom/tensor.h"

namespace rankloom {

using namespace internal;

inline constexpr DType kDTypesWithArithmetic[] = {
    DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64, DType::kInt8,      DType::kUInt8,
    DType::kInt16,   DType::kInt32,    DType::kInt64,   DType::kBool,    DType::kComplex64, DType::kComplex128};
inline constexpr DType kAllDTypes[] = {DType::kFloat16,      DType::kBFloat16,  DType::kFloat32,   DType::kFloat64,
                                       DType::kInt8,         DType::kUInt8,     DType::kInt16,     DType::kInt32,
                                       DType::kInt64,        DType::kBool,      DType::kComplex64, DType::kComplex128,
                                       DType::kFloat8E4M3FN, DType::kFloat8E5M2};

inline const ReduceOp kAllReduceOps[] = {ReduceOp::kSum, ReduceOp::kAvg,  ReduceOp::kProduct,
                                         ReduceOp::kMin, ReduceOp::kMax,  ReduceOp::kBand,
                                         ReduceOp::kBor, ReduceOp::kBxor, ReduceOp::premul_sum(0.3)};

inline const ReduceOp::Order kAllOrders[] = {{.kind = ReduceOp::Order::Kind::kRank},
                                             {.kind = ReduceOp::Order::Kind::kReversed},
                                             {.kind = ReduceOp::Order::Kind::kRing},
                                             {.kind = ReduceOp::Order::Kind::kTree},
                                             {.kind = ReduceOp::Order::Kind::kSeeded, .seed = 7},
                                             {.kind = ReduceOp::Order::Kind::kRank, .accumulate_in_float = false},
                                             {.kind = ReduceOp::Order::Kind::kTree, .accumulate_in_float = false}};

// Null in programs whose kernels do their work at once; else what runs the plans that they make instead.
inline void (*plan_runner)(KernelPlan& plan) = nullptr;

// Memory of a tensor between two guards. It begins at a multiple of the element's size, but of nothing larger, so that
// kernels cannot rely on more; plans also see some that begin where vectors do, which they read in another way.
class Buffer {
 public:
  Buffer(DType dtype, int64_t numel)
      : dtype_(dtype),
        numel_(numel),
        offset_(64 + (plan_runner != nullptr && numel / 8 % 2 == 1 ? 0 : dtype_size(dtype))),
        bytes_(offset_ + size() + 64, kGuard) {}

  void* data() { return bytes_.data() + offset_; }
  const void* data() const { return bytes_.data() + offset_; }
  size_t size() const { return static_cast<size_t>(numel_) * dtype_size(dtype_); }
  int64_t numel() const { return numel_; }
  TensorView view() { return TensorView(data(), dtype_, {numel_}); }

  std::vector<uint8_t> copy() const {
    return {bytes_.begin() + static_cast<ptrdiff_t>(offset_),
            bytes_.begin() + static_cast<ptrdiff_t>(offset_ + size())};
  }
  bool guards_are_whole() const {
    const auto whole = [](auto begin, auto end) {
      return std::all_of(begin, end, [](uint8_t byte) { return byte == kGuard; });
    };
    const auto first = bytes_.begin() + static_cast<ptrdiff_t>(offset_);
    return whole(bytes_.begin(), first) && whole(first + static_cast<ptrdiff_t>(size()), bytes_.end());
  }

  // Values of which reductions make something: mostly small numbers, in one of eight any bits at all, so NaN with and
  // without payload, infinities, subnormals, bools of 0x80.
  void fill(Prng& prng) {
    switch (dtype_size(dtype_) / (is_complex(dtype_) ? 2 : 1)) {
      case 1:
        return fill_lanes<uint8_t>(prng);
      case 2:
        return fill_lanes<uint16_t>(prng);
      case 4:
        return fill_lanes<uint32_t>(prng);
      default:
        return fill_lanes<uint64_t>(prng);
    }
  }

 private:
  static constexpr uint8_t kGuard = 0xc5;

  template <class Lane>
  void fill_lanes(Prng& prng) {
    auto* const at = static_cast<uint8_t*>(data());
    const size_t end = size();
    for (size_t i = 0; i < end; i += sizeof(Lane)) {
      const uint64_t word = prng.next();
      const auto bits = static_cast<Lane>(word % 8 != 0 ? small_number(word / 8) : prng.next());
      std::memcpy(at + i, &bits, sizeof(bits));
    }
  }

  // The bits of a number that `word` chooses.
  uint64_t small_number(uint64_t word) const {
    const double value = static_cast<double>(static_cast<int64_t>(word % 4000) - 2000) / 1024;
    const auto single = static_cast<float>(value);
    switch (dtype_) {
      case DType::kFloat16:
        return Half(single).bits;
      case DType::kBFloat16:
        return BFloat16(single).bits;
      case DType::kFloat32:
      case DType::kComplex64:
        return std::bit_cast<uint32_t>(single);
      case DType::kFloat64:
      case DType::kComplex128:
        return std::bit_cast<uint64_t>(value);
      case DType::kBool:
        return word % 3;
      default:
        return word % 10;
    }
  }

  DType dtype_;
  int64_t numel_;
  size_t offset_;
  std::vector<uint8_t> bytes_;
};

// Buffers of all ranks, all different.
inline std::vector<Buffer> filled_buffers(size_t ranks, DType dtype, int64_t numel, uint64_t seed) {
  Prng prng(seed);
  std::vector<Buffer> buffers(ranks, Buffer(dtype, numel));
  for (Buffer& buffer : buffers) buffer.fill(prng);
  return buffers;
}

// Buffers that a kernel shall write, with the bytes of the guards in them.
inline std::vector<Buffer> empty_buffers(size_t ranks, DType dtype, int64_t numel) {
  return std::vector<Buffer>(ranks, Buffer(dtype, numel));
}

inline std::vector<TensorView> views(std::vector<Buffer>& buffers) {
  std::vector<TensorView> all;
  all.reserve(buffers.size());
  for (Buffer& buffer : buffers) all.push_back(buffer.view());
  return all;
}

// Runs a kernel over calls[rank], and the plan that it made.
inline void run_kernel(void (*kernel)(MemberCalls, KernelPlan*), const std::vector<CollectiveCall>& calls) {
  std::vector<const CollectiveCall*> by_rank;
  by_rank.reserve(calls.size());
  for (const CollectiveCall& call : calls) by_rank.push_back(&call);
  if (plan_runner == nullptr) {
    kernel(by_rank, nullptr);
  } else {
    KernelPlan plan;
    kernel(by_rank, &plan);
    plan_runner(plan);
  }
}

// The calls of an all_reduce in place.
inline std::vector<CollectiveCall> all_reduce_calls(std::vector<Buffer>& buffers, ReduceOp op, ReduceOp::Order order) {
  std::vector<CollectiveCall> calls(buffers.size());
  for (size_t r = 0; r < buffers.size(); ++r) {
    calls[r].op = OpType::kAllReduce;
    calls[r].reduce_op = op;
    calls[r].order = order;
    calls[r].inputs = buffers[r].view();
    calls[r].outputs = buffers[r].view();
  }
  return calls;
}

}  // namespace rankloom

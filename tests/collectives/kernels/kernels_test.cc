#include "collectives/kernels/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/collectives/kernels/kernel_cases.h"
#include "tests/collectives/kernels/reduce_oracle.h"

#ifdef __x86_64__
#include <xmmintrin.h>
#endif

namespace rankloom {

using namespace internal;

namespace {

using ::testing::ElementsAre;
using Kind = ReduceOp::Kind;

// The elements [begin, begin + count) of a tensor's bytes.
Bytes part_of(const Bytes& bytes, DType dtype, size_t begin, size_t count) {
  const auto size = static_cast<ptrdiff_t>(dtype_size(dtype));
  const auto first = bytes.begin() + static_cast<ptrdiff_t>(begin) * size;
  return {first, first + static_cast<ptrdiff_t>(count) * size};
}

std::vector<Bytes> copies(const std::vector<Buffer>& buffers) {
  std::vector<Bytes> all;
  for (const Buffer& buffer : buffers) all.push_back(buffer.copy());
  return all;
}

std::string where(ReduceOp op, const ReduceOp::Order& order, size_t ranks, int64_t numel) {
  return op.name() + ", order " + std::to_string(static_cast<int>(order.kind)) +
         (order.accumulate_in_float ? "" : " rounding each") + ", " + std::to_string(ranks) + " ranks x " +
         std::to_string(numel);
}

constexpr size_t kGroupSizes[] = {1, 2, 3, 5, 8};
constexpr int64_t kSizes[] = {0, 1, 3, 17, 1000, 70000};

class KernelsTest : public ::testing::TestWithParam<DType> {
 protected:
  // All ranks' tensors hold `expected`, and nothing around them was touched.
  static void expect_all(const std::vector<Buffer>& buffers, const Bytes& expected, const std::string& text) {
    for (size_t r = 0; r < buffers.size(); ++r) {
      ASSERT_EQ(buffers[r].copy() == expected, true) << text << ": rank " << r << " differs";
      ASSERT_TRUE(buffers[r].guards_are_whole()) << text << ": written outside of rank " << r << "'s tensor";
    }
  }

  static void check_all_reduce(ReduceOp op, const ReduceOp::Order& order, size_t ranks, int64_t numel) {
    const DType dtype = GetParam();
    std::vector<Buffer> buffers = filled_buffers(ranks, dtype, numel, ranks + static_cast<uint64_t>(numel));
    const std::vector<Bytes> inputs = copies(buffers);
    run_kernel(run_all_reduce, all_reduce_calls(buffers, op, order));
    const size_t chunk_size = (static_cast<size_t>(numel) + ranks - 1) / ranks;
    const Bytes expected =
        expected_reduction(dtype, op, order, inputs, [chunk_size](size_t i) { return i / chunk_size; });
    expect_all(buffers, expected, where(op, order, ranks, numel));
  }
};

std::string dtype_of(const ::testing::TestParamInfo<DType>& info) { return std::string(dtype_name(info.param)); }

class CopyKernelsTest : public KernelsTest {};
INSTANTIATE_TEST_SUITE_P(DTypes, CopyKernelsTest, ::testing::ValuesIn(kAllDTypes), dtype_of);

// Copies of many elements: by the size of an element, which is all that a copy knows of a dtype.
class ExchangeKernelsTest : public KernelsTest {};
INSTANTIATE_TEST_SUITE_P(Sizes, ExchangeKernelsTest,
                         ::testing::Values(DType::kUInt8, DType::kInt16, DType::kFloat32, DType::kInt64,
                                           DType::kComplex128),
                         dtype_of);

class ReductionKernelsTest : public KernelsTest {};
INSTANTIATE_TEST_SUITE_P(DTypes, ReductionKernelsTest, ::testing::ValuesIn(kDTypesWithArithmetic), dtype_of);

TEST_P(ReductionKernelsTest, AllReduceGivesTheOraclesBits) {
  for (const ReduceOp& op : kAllReduceOps) {
    if (!reduction_supported(op, GetParam())) continue;
    for (const size_t ranks : kGroupSizes) {
      for (const int64_t numel : kSizes) check_all_reduce(op, {}, ranks, numel);
    }
  }
}

TEST_P(ReductionKernelsTest, AllReduceFollowsEveryOrder) {
  for (const ReduceOp& op : kAllReduceOps) {
    if (!reduction_supported(op, GetParam())) continue;
    for (const ReduceOp::Order& order : kAllOrders) {
      for (const size_t ranks : {1u, 2u, 3u, 5u, 7u, 8u, 11u}) {
        for (const int64_t numel : {1, 3, 17, 333}) check_all_reduce(op, order, ranks, numel);
      }
    }
  }
}

TEST_P(ReductionKernelsTest, LargeTensorsFollowEveryOrder) {
  for (const ReduceOp::Order& order : kAllOrders) check_all_reduce(ReduceOp::kSum, order, 5, 70000);
}

TEST_P(ReductionKernelsTest, GroupsLargerThanTheStacksPointersReduce) {
  for (const ReduceOp::Order& order : kAllOrders) {
    for (const size_t ranks : {64u, 65u, 130u, 1000u}) check_all_reduce(ReduceOp::kSum, order, ranks, 2);
  }
}

TEST_P(ReductionKernelsTest, AllReduceReadsInputsThatWereKeptAside) {
  for (const ReduceOp::Order& order : kAllOrders) {
    std::vector<Buffer> aside = filled_buffers(3, GetParam(), 17, 5);
    std::vector<Buffer> buffers = filled_buffers(3, GetParam(), 17, 6);
    std::vector<CollectiveCall> calls = all_reduce_calls(buffers, ReduceOp::kSum, order);
    for (size_t r = 0; r < calls.size(); ++r) calls[r].inputs = aside[r].view();
    const std::vector<Bytes> inputs = copies(aside);
    run_kernel(run_all_reduce, calls);
    expect_all(buffers, expected_reduction(GetParam(), ReduceOp::kSum, order, inputs, [](size_t i) { return i / 6; }),
               where(ReduceOp::kSum, order, 3, 17));
    EXPECT_EQ(copies(aside), inputs);
  }
}

TEST_P(ReductionKernelsTest, CoalescedAllReduceReducesEachTensor) {
  std::vector<std::vector<Buffer>> tensors;  // [tensor][rank]
  for (const int64_t numel : {5, 0, 70}) {
    tensors.push_back(filled_buffers(3, GetParam(), numel, static_cast<uint64_t>(numel)));
  }
  std::vector<CollectiveCall> calls(3);
  for (size_t r = 0; r < 3; ++r) {
    std::vector<TensorView> mine;
    for (std::vector<Buffer>& buffers : tensors) mine.push_back(buffers[r].view());
    calls[r].op = OpType::kAllReduceCoalesced;
    calls[r].inputs = mine;
    calls[r].outputs = mine;
  }
  std::vector<Bytes> expected;
  for (const std::vector<Buffer>& buffers : tensors) {
    expected.push_back(
        expected_reduction(GetParam(), ReduceOp::kSum, {}, copies(buffers), [](size_t) { return size_t{0}; }));
  }
  run_kernel(run_all_reduce, calls);
  for (size_t i = 0; i < tensors.size(); ++i) expect_all(tensors[i], expected[i], "tensor " + std::to_string(i));
}

TEST_P(ReductionKernelsTest, ReduceWritesTheRootOnly) {
  for (const ReduceOp& op : kAllReduceOps) {
    if (!reduction_supported(op, GetParam())) continue;
    for (const ReduceOp::Order& order : kAllOrders) {
      for (const size_t ranks : kGroupSizes) {
        for (const int64_t numel : {0, 1, 17, 1000}) {
          std::vector<Buffer> buffers = filled_buffers(ranks, GetParam(), numel, 3);
          std::vector<Bytes> expected = copies(buffers);
          std::vector<CollectiveCall> calls = all_reduce_calls(buffers, op, order);
          const size_t root = ranks / 2;
          for (CollectiveCall& call : calls) call.root = static_cast<int>(root);
          const size_t chunk_size = (static_cast<size_t>(numel) + ranks - 1) / ranks;
          expected[root] =
              expected_reduction(GetParam(), op, order, expected, [chunk_size](size_t i) { return i / chunk_size; });
          run_kernel(run_reduce, calls);
          ASSERT_TRUE(copies(buffers) == expected) << where(op, order, ranks, numel);
        }
      }
    }
  }
}

TEST_P(ReductionKernelsTest, ReduceScatterTensorGivesEachRankItsChunk) {
  const DType dtype = GetParam();
  for (const ReduceOp& op : kAllReduceOps) {
    if (!reduction_supported(op, dtype)) continue;
    for (const ReduceOp::Order& order : kAllOrders) {
      for (const size_t ranks : kGroupSizes) {
        for (const int64_t numel : {0, 1, 3, 17, 300}) {
          const auto chunk = static_cast<size_t>(numel);
          std::vector<Buffer> inputs = filled_buffers(ranks, dtype, numel * static_cast<int64_t>(ranks), 4);
          std::vector<Buffer> outputs = empty_buffers(ranks, dtype, numel);
          std::vector<CollectiveCall> calls = all_reduce_calls(outputs, op, order);
          for (size_t r = 0; r < ranks; ++r) calls[r].inputs = inputs[r].view();
          const std::vector<Bytes> before = copies(inputs);
          run_kernel(run_reduce_scatter_tensor, calls);
          const Bytes all = expected_reduction(dtype, op, order, before, [chunk](size_t i) { return i / chunk; });
          for (size_t r = 0; r < ranks; ++r) {
            ASSERT_TRUE(outputs[r].copy() == part_of(all, dtype, r * chunk, chunk)) << where(op, order, ranks, numel);
            ASSERT_TRUE(outputs[r].guards_are_whole());
          }
          ASSERT_TRUE(copies(inputs) == before) << "an input was written";
        }
      }
    }
  }
}

TEST_P(ReductionKernelsTest, ReduceScatterTensorTakesManySmallChunks) {
  const DType dtype = GetParam();
  constexpr size_t kRanks = 300;
  constexpr size_t kChunk = 33;
  for (const ReduceOp::Order& order : kAllOrders) {
    std::vector<Buffer> inputs = filled_buffers(kRanks, dtype, kRanks * kChunk, 4);
    std::vector<Buffer> outputs = empty_buffers(kRanks, dtype, kChunk);
    std::vector<CollectiveCall> calls = all_reduce_calls(outputs, ReduceOp::kSum, order);
    for (size_t r = 0; r < kRanks; ++r) calls[r].inputs = inputs[r].view();
    const Bytes all =
        expected_reduction(dtype, ReduceOp::kSum, order, copies(inputs), [](size_t i) { return i / kChunk; });
    run_kernel(run_reduce_scatter_tensor, calls);
    for (size_t r = 0; r < kRanks; ++r) {
      ASSERT_TRUE(outputs[r].copy() == part_of(all, dtype, r * kChunk, kChunk))
          << where(ReduceOp::kSum, order, kRanks, kChunk) << ", rank " << r;
      ASSERT_TRUE(outputs[r].guards_are_whole());
    }
  }
}

TEST_P(ReductionKernelsTest, ReduceScatterTensorSplitsLargeTensorsByElements) {
  const DType dtype = GetParam();
  constexpr size_t kChunk = 30001;
  std::vector<Buffer> inputs = filled_buffers(5, dtype, 5 * kChunk, 4);
  std::vector<Buffer> outputs = empty_buffers(5, dtype, kChunk);
  std::vector<CollectiveCall> calls = all_reduce_calls(outputs, ReduceOp::kSum, {});
  for (size_t r = 0; r < 5; ++r) calls[r].inputs = inputs[r].view();
  run_kernel(run_reduce_scatter_tensor, calls);
  const Bytes all = expected_reduction(dtype, ReduceOp::kSum, {}, copies(inputs), [](size_t) { return size_t{0}; });
  for (size_t r = 0; r < 5; ++r) EXPECT_TRUE(outputs[r].copy() == part_of(all, dtype, r * kChunk, kChunk)) << r;
}

TEST_P(ReductionKernelsTest, ReduceScatterTensorMayWriteOntoItsOwnChunk) {
  const DType dtype = GetParam();
  for (const ReduceOp::Order& order : kAllOrders) {
    std::vector<Buffer> inputs = filled_buffers(3, dtype, 3 * 301, 4);
    std::vector<Bytes> expected = copies(inputs);
    const Bytes all = expected_reduction(dtype, ReduceOp::kSum, order, expected, [](size_t i) { return i / 301; });
    std::vector<CollectiveCall> calls = all_reduce_calls(inputs, ReduceOp::kSum, order);
    for (size_t r = 0; r < 3; ++r) {
      calls[r].outputs = inputs[r].view().slice(static_cast<int64_t>(r) * 301, 301);
      const Bytes chunk = part_of(all, dtype, r * 301, 301);
      std::copy(chunk.begin(), chunk.end(), expected[r].begin() + static_cast<ptrdiff_t>(r * chunk.size()));
    }
    run_kernel(run_reduce_scatter_tensor, calls);
    EXPECT_TRUE(copies(inputs) == expected) << where(ReduceOp::kSum, order, 3, 301);
  }
}

TEST_P(ReductionKernelsTest, ReduceScatterTakesAListOfChunks) {
  const DType dtype = GetParam();
  for (const ReduceOp::Order& order : kAllOrders) {
    for (const size_t ranks : kGroupSizes) {
      std::vector<std::vector<Buffer>> inputs;  // [rank][chunk]
      for (size_t r = 0; r < ranks; ++r) inputs.push_back(filled_buffers(ranks, dtype, 37, r));
      std::vector<Buffer> outputs = empty_buffers(ranks, dtype, 37);
      std::vector<CollectiveCall> calls = all_reduce_calls(outputs, ReduceOp::kSum, order);
      for (size_t r = 0; r < ranks; ++r) calls[r].inputs = views(inputs[r]);
      run_kernel(run_reduce_scatter, calls);
      for (size_t chunk = 0; chunk < ranks; ++chunk) {
        std::vector<Bytes> column;
        for (size_t r = 0; r < ranks; ++r) column.push_back(inputs[r][chunk].copy());
        const Bytes expected =
            expected_reduction(dtype, ReduceOp::kSum, order, column, [chunk](size_t) { return chunk; });
        ASSERT_TRUE(outputs[chunk].copy() == expected) << where(ReduceOp::kSum, order, ranks, 37);
      }
    }
  }
}

TEST_P(ReductionKernelsTest, CoalescedReduceScatterPairsTensors) {
  const DType dtype = GetParam();
  std::vector<Buffer> first = filled_buffers(2, dtype, 2 * 9, 1);
  std::vector<Buffer> second = filled_buffers(2, dtype, 2 * 4, 2);
  std::vector<Buffer> first_out = empty_buffers(2, dtype, 9);
  std::vector<Buffer> second_out = empty_buffers(2, dtype, 4);
  std::vector<CollectiveCall> calls(2);
  for (size_t r = 0; r < 2; ++r) {
    calls[r].inputs = std::vector<TensorView>{first[r].view(), second[r].view()};
    calls[r].outputs = std::vector<TensorView>{first_out[r].view(), second_out[r].view()};
  }
  run_kernel(run_reduce_scatter_tensor, calls);
  const auto zero = [](size_t) { return size_t{0}; };
  const Bytes first_all = expected_reduction(dtype, ReduceOp::kSum, {}, copies(first), zero);
  const Bytes second_all = expected_reduction(dtype, ReduceOp::kSum, {}, copies(second), zero);
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_TRUE(first_out[r].copy() == part_of(first_all, dtype, r * 9, 9));
    EXPECT_TRUE(second_out[r].copy() == part_of(second_all, dtype, r * 4, 4));
  }
}

TEST_P(CopyKernelsTest, BroadcastCopiesTheRootsTensor) {
  for (const size_t ranks : kGroupSizes) {
    for (const int64_t numel : kSizes) {
      std::vector<Buffer> buffers = filled_buffers(ranks, GetParam(), numel, 8);
      std::vector<CollectiveCall> calls(ranks);
      for (size_t r = 0; r < ranks; ++r) {
        calls[r].root = static_cast<int>(ranks - 1);
        calls[r].outputs = buffers[r].view();
      }
      const Bytes expected = buffers[ranks - 1].copy();
      run_kernel(run_broadcast, calls);
      expect_all(buffers, expected, std::to_string(ranks) + " x " + std::to_string(numel));
    }
  }
}

TEST_P(CopyKernelsTest, AllGatherConcatenatesInRankOrder) {
  for (const size_t ranks : kGroupSizes) {
    for (const int64_t numel : kSizes) {
      std::vector<Buffer> inputs = filled_buffers(ranks, GetParam(), numel, 9);
      std::vector<Buffer> whole = empty_buffers(ranks, GetParam(), numel * static_cast<int64_t>(ranks));
      std::vector<std::vector<Buffer>> lists;  // [receiver][sender]
      for (size_t r = 0; r < ranks; ++r) lists.push_back(empty_buffers(ranks, GetParam(), numel));
      const std::vector<Bytes> sent = copies(inputs);
      Bytes expected;
      for (const Bytes& bytes : sent) expected.insert(expected.end(), bytes.begin(), bytes.end());

      std::vector<CollectiveCall> calls(ranks);
      for (size_t r = 0; r < ranks; ++r) {
        calls[r].inputs = inputs[r].view();
        calls[r].outputs = whole[r].view();
      }
      run_kernel(run_all_gather_into_tensor, calls);
      expect_all(whole, expected, std::to_string(ranks) + " x " + std::to_string(numel));

      for (size_t r = 0; r < ranks; ++r) calls[r].outputs = views(lists[r]);
      run_kernel(run_all_gather, calls);
      for (size_t r = 0; r < ranks; ++r) {
        ASSERT_TRUE(copies(lists[r]) == sent) << ranks << " x " << numel << ", rank " << r;
        for (const Buffer& buffer : lists[r]) ASSERT_TRUE(buffer.guards_are_whole());
      }
      ASSERT_TRUE(copies(inputs) == sent) << "an input was written";
    }
  }
}

TEST_P(CopyKernelsTest, AllGatherInPlaceLeavesTheOwnPart) {
  for (const int64_t numel : {1, 17, 70000}) {
    std::vector<Buffer> whole = filled_buffers(3, GetParam(), 3 * numel, 11);
    Bytes expected;
    std::vector<CollectiveCall> calls(3);
    for (size_t r = 0; r < 3; ++r) {
      const auto begin = static_cast<int64_t>(r) * numel;
      const Bytes mine =
          part_of(whole[r].copy(), GetParam(), r * static_cast<size_t>(numel), static_cast<size_t>(numel));
      expected.insert(expected.end(), mine.begin(), mine.end());
      calls[r].inputs = whole[r].view().slice(begin, numel);
      calls[r].outputs = whole[r].view();
    }
    run_kernel(run_all_gather_into_tensor, calls);
    expect_all(whole, expected, std::to_string(numel));
  }
}

TEST_P(CopyKernelsTest, CoalescedAllGatherPairsTensors) {
  std::vector<Buffer> first = filled_buffers(2, GetParam(), 9, 1);
  std::vector<Buffer> second = filled_buffers(2, GetParam(), 4, 2);
  std::vector<Buffer> first_out = empty_buffers(2, GetParam(), 2 * 9);
  std::vector<Buffer> second_out = empty_buffers(2, GetParam(), 2 * 4);
  std::vector<CollectiveCall> calls(2);
  for (size_t r = 0; r < 2; ++r) {
    calls[r].inputs = std::vector<TensorView>{first[r].view(), second[r].view()};
    calls[r].outputs = std::vector<TensorView>{first_out[r].view(), second_out[r].view()};
  }
  run_kernel(run_all_gather_into_tensor, calls);
  for (size_t r = 0; r < 2; ++r) {
    for (size_t sender = 0; sender < 2; ++sender) {
      EXPECT_TRUE(part_of(first_out[r].copy(), GetParam(), sender * 9, 9) == first[sender].copy());
      EXPECT_TRUE(part_of(second_out[r].copy(), GetParam(), sender * 4, 4) == second[sender].copy());
    }
  }
}

TEST_P(CopyKernelsTest, GatherAndScatterAreInverse) {
  for (const size_t ranks : kGroupSizes) {
    for (const int64_t numel : kSizes) {
      std::vector<Buffer> inputs = filled_buffers(ranks, GetParam(), numel, 12);
      std::vector<Buffer> gathered = empty_buffers(ranks, GetParam(), numel);
      std::vector<Buffer> outputs = empty_buffers(ranks, GetParam(), numel);
      const size_t root = ranks / 2;
      std::vector<CollectiveCall> calls(ranks);
      for (size_t r = 0; r < ranks; ++r) {
        calls[r].root = static_cast<int>(root);
        calls[r].inputs = inputs[r].view();
      }
      calls[root].outputs = views(gathered);
      run_kernel(run_gather, calls);
      ASSERT_TRUE(copies(gathered) == copies(inputs)) << ranks << " x " << numel;

      for (size_t r = 0; r < ranks; ++r) {
        calls[r].inputs = TensorList();
        calls[r].outputs = outputs[r].view();
      }
      calls[root].inputs = views(gathered);
      run_kernel(run_scatter, calls);
      ASSERT_TRUE(copies(outputs) == copies(inputs)) << ranks << " x " << numel;
      for (const Buffer& buffer : outputs) ASSERT_TRUE(buffer.guards_are_whole());
    }
  }
}

// Sender s sends numel_of(s, r) elements to receiver r.
template <class NumelOf>
void check_all_to_all(DType dtype, size_t ranks, NumelOf numel_of) {
  Prng prng(ranks);
  std::vector<std::vector<Buffer>> inputs(ranks);   // [sender][receiver]
  std::vector<std::vector<Buffer>> outputs(ranks);  // [receiver][sender]
  std::vector<CollectiveCall> calls(ranks);
  for (size_t r = 0; r < ranks; ++r) {
    for (size_t other = 0; other < ranks; ++other) {
      inputs[r].emplace_back(dtype, numel_of(r, other)).fill(prng);
      outputs[r].emplace_back(dtype, numel_of(other, r));
    }
    calls[r].inputs = views(inputs[r]);
    calls[r].outputs = views(outputs[r]);
  }
  run_kernel(run_all_to_all, calls);
  for (size_t receiver = 0; receiver < ranks; ++receiver) {
    for (size_t sender = 0; sender < ranks; ++sender) {
      ASSERT_TRUE(outputs[receiver][sender].copy() == inputs[sender][receiver].copy())
          << ranks << " ranks, " << numel_of(sender, receiver) << " elements from " << sender << " to " << receiver;
      ASSERT_TRUE(outputs[receiver][sender].guards_are_whole());
    }
  }
}

TEST_P(CopyKernelsTest, AllToAllTransposes) {
  for (const size_t ranks : kGroupSizes) {
    for (const int64_t numel : kSizes) check_all_to_all(GetParam(), ranks, [numel](size_t, size_t) { return numel; });
  }
}

// Sender s sends rows_of(s, r) rows to receiver r, each of `width` elements.
template <class RowsOf>
void check_all_to_all_single(DType dtype, size_t ranks, int64_t width, bool with_splits, RowsOf rows_of) {
  std::vector<Buffer> inputs;
  std::vector<Buffer> outputs;
  std::vector<CollectiveCall> calls(ranks);
  std::vector<Bytes> expected(ranks);
  Prng prng(21);
  for (size_t r = 0; r < ranks; ++r) {
    int64_t in_rows = 0;
    int64_t out_rows = 0;
    for (size_t other = 0; other < ranks; ++other) {
      in_rows += rows_of(r, other);
      out_rows += rows_of(other, r);
      if (!with_splits) continue;
      calls[r].in_splits.mutable_get().push_back(rows_of(r, other));
      calls[r].out_splits.mutable_get().push_back(rows_of(other, r));
    }
    inputs.emplace_back(dtype, in_rows * width).fill(prng);
    outputs.emplace_back(dtype, out_rows * width);
  }
  for (size_t r = 0; r < ranks; ++r) {
    calls[r].inputs = TensorView(inputs[r].data(), dtype, {inputs[r].numel() / width, width});
    calls[r].outputs = TensorView(outputs[r].data(), dtype, {outputs[r].numel() / width, width});
    size_t begin = 0;
    const Bytes sent = inputs[r].copy();
    for (size_t receiver = 0; receiver < ranks; ++receiver) {
      const auto count = static_cast<size_t>(rows_of(r, receiver) * width);
      const Bytes part = part_of(sent, dtype, begin, count);
      expected[receiver].insert(expected[receiver].end(), part.begin(), part.end());
      begin += count;
    }
  }
  run_kernel(run_all_to_all_single, calls);
  for (size_t r = 0; r < ranks; ++r) {
    ASSERT_TRUE(outputs[r].copy() == expected[r]) << ranks << " ranks, width " << width << ", rank " << r;
    ASSERT_TRUE(outputs[r].guards_are_whole());
  }
}

TEST_P(CopyKernelsTest, AllToAllSingleExchangesRows) {
  for (const size_t ranks : kGroupSizes) {
    for (const int64_t width : {1, 3, 700}) {
      check_all_to_all_single(GetParam(), ranks, width, /*with_splits=*/false, [](size_t, size_t) { return 4; });
      check_all_to_all_single(GetParam(), ranks, width, /*with_splits=*/false, [](size_t, size_t) { return 0; });
      check_all_to_all_single(GetParam(), ranks, width, /*with_splits=*/true, [](size_t sender, size_t receiver) {
        return static_cast<int64_t>((sender * 3 + receiver * 5) % 4);  // some none
      });
    }
  }
  check_all_to_all_single(GetParam(), 5, 700, /*with_splits=*/true, [](size_t sender, size_t receiver) {
    return static_cast<int64_t>(100 * sender + receiver);  // enough for all cores
  });
}

// From 1 MiB on, parts of less than 1 KiB are moved in tiles.
TEST_P(CopyKernelsTest, ManySmallPartsOfSeveralSizesAreExchanged) {
  const auto size = static_cast<int64_t>(dtype_size(GetParam()));
  check_all_to_all(GetParam(), 70, [size](size_t sender, size_t receiver) {
    return static_cast<int64_t>((sender * 7 + receiver) % 4) * (256 / size);  // some none
  });
}

// The first member's output is put together, and copied by all cores.
TEST_P(CopyKernelsTest, AllGatherOfManySmallInputs) {
  constexpr size_t kRanks = 400;
  const int64_t numel = 64 / static_cast<int64_t>(dtype_size(GetParam()));
  std::vector<Buffer> inputs = filled_buffers(kRanks, GetParam(), numel, 9);
  std::vector<Buffer> outputs = empty_buffers(kRanks, GetParam(), numel * static_cast<int64_t>(kRanks));
  Bytes expected;
  std::vector<CollectiveCall> calls(kRanks);
  for (size_t r = 0; r < kRanks; ++r) {
    const Bytes mine = inputs[r].copy();
    expected.insert(expected.end(), mine.begin(), mine.end());
    calls[r].inputs = inputs[r].view();
    calls[r].outputs = outputs[r].view();
  }
  run_kernel(run_all_gather_into_tensor, calls);
  expect_all(outputs, expected, "400 ranks");
}

TEST_P(ExchangeKernelsTest, ManySmallPartsAreExchanged) {
  const auto size = static_cast<double>(dtype_size(GetParam()));
  for (const int64_t numel : {1, 3}) {
    const double ranks = std::sqrt((1 << 20) / (size * static_cast<double>(numel)));
    check_all_to_all_single(GetParam(), static_cast<size_t>(ranks) + 3, numel, /*with_splits=*/false,
                            [](size_t, size_t) { return 1; });
  }
  check_all_to_all(GetParam(), 47, [](size_t, size_t) { return 512 / static_cast<int64_t>(dtype_size(GetParam())); });
}

TEST(ReductionSupportTest, IsAsReduceOpSays) {
  const auto supported = [](ReduceOp op) {
    std::string dtypes;
    for (const DType dtype : kAllDTypes) {
      if (reduction_supported(op, dtype)) dtypes += std::string(dtype_name(dtype)) + " ";
    }
    return dtypes;
  };
  const std::string floats = "float16 bfloat16 float32 float64 ";
  const std::string integers = "int8 uint8 int16 int32 int64 bool ";
  const std::string complex = "complex64 complex128 ";
  EXPECT_EQ(supported(ReduceOp::kSum), floats + integers + complex);
  EXPECT_EQ(supported(ReduceOp::kProduct), floats + integers + complex);
  EXPECT_EQ(supported(ReduceOp::kAvg), floats + complex);
  EXPECT_EQ(supported(ReduceOp::kMin), floats + integers);
  EXPECT_EQ(supported(ReduceOp::kMax), floats + integers);
  EXPECT_EQ(supported(ReduceOp::kBand), integers);
  EXPECT_EQ(supported(ReduceOp::kBor), integers);
  EXPECT_EQ(supported(ReduceOp::kBxor), integers);
  EXPECT_EQ(supported(ReduceOp::premul_sum(2)), floats);
}

TEST(ReduceOpTest, NamesCarryTheFactorExactly) {
  EXPECT_EQ(ReduceOp(ReduceOp::kSum).name(), "sum");
  EXPECT_EQ(ReduceOp(ReduceOp::kBxor).name(), "bxor");
  EXPECT_EQ(ReduceOp::premul_sum(0.5).name(), "premul_sum(0.5)");
  EXPECT_EQ(ReduceOp::premul_sum(1.0 / 3).name(), "premul_sum(0.3333333333333333)");
}

// The result of all_reduce for one float per rank.
float sum_of(std::vector<float> by_rank, ReduceOp::Order order) {
  std::vector<CollectiveCall> calls(by_rank.size());
  for (size_t r = 0; r < by_rank.size(); ++r) {
    calls[r].order = order;
    calls[r].inputs = TensorView::scalar(by_rank[r]);
    calls[r].outputs = TensorView::scalar(by_rank[r]);
  }
  run_kernel(run_all_reduce, calls);
  return by_rank.back();
}

TEST(ReduceOrderTest, OrdersDifferInBits) {
  // A small number survives only where it does not meet the large ones first.
  const std::vector<float> values = {1.0f, 1e8f, -1e8f, 1.0f, 3.0f};
  EXPECT_EQ(sum_of(values, {.kind = ReduceOp::Order::Kind::kRank}), 4.0f);  // (((1 + 1e8) - 1e8) + 1) + 3
  EXPECT_EQ(sum_of(values, {.kind = ReduceOp::Order::Kind::kReversed}),
            1.0f);  // (((3 + 1) - 1e8) + 1e8) + 1, 1e8 - 4 is 1e8
  EXPECT_EQ(sum_of(values, {.kind = ReduceOp::Order::Kind::kRing}), 5.0f);  // (((1e8 - 1e8) + 1) + 3) + 1
  EXPECT_EQ(sum_of(values, {.kind = ReduceOp::Order::Kind::kTree}), 3.0f);  // ((1 + 1e8) + (-1e8 + 1)) + 3
}

TEST(ReduceOrderTest, SeedsGivePermutations) {
  const std::vector<float> values = {1.0f, 1e8f, -1e8f, 1.0f, 3.0f};
  std::vector<float> seen;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const ReduceOp::Order order{.kind = ReduceOp::Order::Kind::kSeeded, .seed = seed};
    EXPECT_EQ(sum_of(values, order), sum_of(values, order)) << "seed " << seed;
    seen.push_back(sum_of(values, order));
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_GT(std::unique(seen.begin(), seen.end()) - seen.begin(), 1) << "no seed changed anything";
}

TEST(ReduceOrderTest, HalvesRoundOnceOrEachTime) {
  // 2048 + 1 is no float16: rounded each time the ones are lost, in float32 they add up.
  for (const bool in_float : {true, false}) {
    std::vector<Half> by_rank = {Half(2048.0f), Half(1.0f), Half(1.0f)};
    std::vector<CollectiveCall> calls(3);
    for (size_t r = 0; r < 3; ++r) {
      calls[r].order.accumulate_in_float = in_float;
      calls[r].inputs = TensorView::scalar(by_rank[r]);
      calls[r].outputs = TensorView::scalar(by_rank[r]);
    }
    run_kernel(run_all_reduce, calls);
    EXPECT_EQ(static_cast<float>(by_rank[0]), in_float ? 2050.0f : 2048.0f);
  }
}

TEST(ReductionTest, AverageDividesInsteadOfMultiplying) {
  std::vector<Buffer> buffers = filled_buffers(3, DType::kFloat32, 1, 1);
  for (Buffer& buffer : buffers) *static_cast<float*>(buffer.data()) = 7.0f / 3;
  run_kernel(run_all_reduce, all_reduce_calls(buffers, ReduceOp::kAvg, {}));
  const float sum = 7.0f / 3 + 7.0f / 3 + 7.0f / 3;
  EXPECT_EQ(*static_cast<float*>(buffers[0].data()), sum / 3);
}

TEST(ReductionTest, NanWinsMinAndMaxFromAnyRank) {
  for (const ReduceOp op : {ReduceOp(ReduceOp::kMin), ReduceOp(ReduceOp::kMax)}) {
    for (size_t nan_rank = 0; nan_rank < 3; ++nan_rank) {
      std::vector<std::vector<float>> x(3, std::vector<float>(33, 1.0f));
      x[nan_rank].assign(33, std::bit_cast<float>(0xffc00123));  // with sign and payload
      std::vector<CollectiveCall> calls(3);
      for (size_t r = 0; r < 3; ++r) {
        calls[r].reduce_op = op;
        calls[r].inputs = TensorView(x[r]);
        calls[r].outputs = TensorView(x[r]);
      }
      run_kernel(run_all_reduce, calls);
      for (const std::vector<float>& mine : x) {
        for (const float value : mine) EXPECT_EQ(std::bit_cast<uint32_t>(value), 0x7fc00000u);
      }
    }
  }
}

TEST(ReductionTest, IntegersWrap) {
  std::vector<int8_t> a = {127, -128, 100};
  std::vector<int8_t> b = {1, -1, 3};
  std::vector<CollectiveCall> calls(2);
  calls[0].inputs = calls[0].outputs = TensorView(a);
  calls[1].inputs = calls[1].outputs = TensorView(b);
  run_kernel(run_all_reduce, calls);
  EXPECT_THAT(a, ElementsAre(-128, 127, 103));
  a = {127, -128, 100};
  b = {2, -1, 3};
  calls[0].reduce_op = calls[1].reduce_op = ReduceOp::kProduct;
  run_kernel(run_all_reduce, calls);
  EXPECT_THAT(b, ElementsAre(-2, -128, 44));
}

TEST(ReductionTest, BoolsComeOutAsZeroOrOne) {
  std::vector<uint8_t> a = {0, 2, 255, 0};
  std::vector<uint8_t> b = {0, 0, 1, 16};
  std::vector<CollectiveCall> calls(2);
  calls[0].inputs = calls[0].outputs = TensorView(a.data(), DType::kBool, {4});
  calls[1].inputs = calls[1].outputs = TensorView(b.data(), DType::kBool, {4});
  run_kernel(run_all_reduce, calls);
  EXPECT_THAT(a, ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(b, ElementsAre(0, 1, 1, 1));
}

#if defined(__x86_64__)
using FloatModes = unsigned;
constexpr FloatModes kFlushAndRound[] = {0x8040 | 0x4000, 0x8040 | 0x2000, 0x8040 | 0x6000};  // up, down, to zero
FloatModes float_modes() { return _mm_getcsr(); }
void set_float_modes(FloatModes modes) { _mm_setcsr(modes); }
#elif defined(__aarch64__)
using FloatModes = uint64_t;
constexpr FloatModes kFlushAndRound[] = {1 << 24 | 1 << 22, 1 << 24 | 2 << 22, 1 << 24 | 3 << 22};  // up, down, to zero
FloatModes float_modes() {
  FloatModes modes;
  asm volatile("mrs %0, fpcr" : "=r"(modes));
  return modes;
}
void set_float_modes(FloatModes modes) { asm volatile("msr fpcr, %0" : : "r"(modes)); }
#endif

#if defined(__x86_64__) || defined(__aarch64__)
TEST(ReductionTest, TheThreadsFloatModesChangeNothing) {
  if (plan_runner != nullptr) GTEST_SKIP() << "a device has no such modes";
  for (const DType dtype : {DType::kFloat16, DType::kFloat32, DType::kFloat64, DType::kComplex64}) {
    std::vector<Buffer> plain = filled_buffers(3, dtype, 1000, 2);
    for (Buffer& buffer : plain) std::memset(buffer.data(), 1, buffer.size() / 2);  // subnormal, or very small
    const std::vector<Buffer> before = plain;
    run_kernel(run_all_reduce, all_reduce_calls(plain, ReduceOp::kAvg, {}));
    for (const FloatModes modes : kFlushAndRound) {
      std::vector<Buffer> flushed = before;
      const FloatModes saved = float_modes();
      set_float_modes(saved | modes);
      run_kernel(run_all_reduce, all_reduce_calls(flushed, ReduceOp::kAvg, {}));
      const FloatModes after = float_modes();
      set_float_modes(saved);
      EXPECT_EQ(after & modes, modes) << "the thread's modes were not put back";
      EXPECT_TRUE(copies(plain) == copies(flushed)) << dtype_name(dtype) << ", modes " << modes;
    }
  }
}
#endif

}  // namespace
}  // namespace rankloom

#include "collectives/ops/shape_rules.h"

#include <array>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "collectives/ops/op_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/error.h"
#include "rankloom/random.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::TestWithParam;

// All tensors of these tests are cut from one pool, so a case says where a tensor starts by an offset in floats.
std::array<float, 256> pool;

TensorView f32(int offset, Dims sizes) { return TensorView(pool.data() + offset, DType::kFloat32, std::move(sizes)); }
TensorView typed(DType dtype, int offset, Dims sizes) {
  return TensorView(pool.data() + offset, dtype, std::move(sizes));
}
TensorView on_cuda(int index, int offset, Dims sizes) {
  return TensorView(pool.data() + offset, DType::kFloat32, std::move(sizes),
                    Device{Device::Kind::kCuda, static_cast<int8_t>(index)});
}
TensorView strided(int offset, Dims sizes, Dims strides) {
  return TensorView(pool.data() + offset, DType::kFloat32, std::move(sizes), std::move(strides));
}
TensorView null_f32(Dims sizes) { return TensorView(nullptr, DType::kFloat32, std::move(sizes)); }

using Views = std::vector<TensorView>;

CollectiveCall call_of(OpType op, Views inputs, Views outputs) {
  CollectiveCall call;
  call.op = op;
  call.inputs = TensorList(std::move(inputs));
  call.outputs = TensorList(std::move(outputs));
  return call;
}
CollectiveCall rooted(OpType op, int root, Views inputs, Views outputs) {
  CollectiveCall call = call_of(op, std::move(inputs), std::move(outputs));
  call.root = root;
  return call;
}
CollectiveCall reducing(OpType op, ReduceOp reduce_op, Views inputs, Views outputs) {
  CollectiveCall call = call_of(op, std::move(inputs), std::move(outputs));
  call.reduce_op = reduce_op;
  return call;
}
CollectiveCall all_reduce(const TensorView& buffer, ReduceOp op = ReduceOp::kSum) {
  return reducing(OpType::kAllReduce, op, {buffer}, {buffer});
}
CollectiveCall with_splits(Views inputs, Views outputs, std::vector<int64_t> in_splits,
                           std::vector<int64_t> out_splits) {
  CollectiveCall call = call_of(OpType::kAllToAllSingle, std::move(inputs), std::move(outputs));
  call.in_splits = std::move(in_splits);
  call.out_splits = std::move(out_splits);
  return call;
}
CollectiveCall p2p(OpType op, int peer, int tag, Views views) {
  CollectiveCall call = op == OpType::kSend ? call_of(op, std::move(views), {}) : call_of(op, {}, std::move(views));
  call.peer = peer;
  call.tag = tag;
  return call;
}
CollectiveCall coalesced(std::vector<CollectiveCall> parts) {
  CollectiveCall call;
  call.op = OpType::kCoalesced;
  call.parts = std::move(parts);
  return call;
}
CollectiveCall unknown_reduce_op() { return all_reduce(f32(0, {4}), ReduceOp(static_cast<ReduceOp::Kind>(99))); }
CollectiveCall unknown_order() {
  CollectiveCall call = all_reduce(f32(0, {4}));
  call.order.kind = static_cast<ReduceOp::Order::Kind>(99);
  return call;
}

// The member is rank 1 of 3 unless a case says otherwise.
struct Case {
  std::string name;
  CollectiveCall call;
  std::string text;  // empty: the call is right
  int rank = 1;
  int size = 3;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
std::string case_name(const testing::TestParamInfo<Case>& info) { return info.param.name; }

class ShapeRuleTest : public TestWithParam<Case> {};

TEST_P(ShapeRuleTest, AnswersWithItsText) {
  const Case& c = GetParam();
  const absl::Status status = op_row(c.call.op).check(c.call, c.rank, c.size);
  EXPECT_EQ(std::string(status.message()), c.text);
  EXPECT_EQ(status.ok(), c.text.empty());
  if (!status.ok()) {
    EXPECT_EQ(error_kind(status), ErrorKind::kInvalidArgument);
  }
}

constexpr OpType kBroadcast = OpType::kBroadcast;
constexpr OpType kReduce = OpType::kReduce;
constexpr OpType kAllGather = OpType::kAllGather;
constexpr OpType kIntoTensor = OpType::kAllGatherIntoTensor;
constexpr OpType kIntoTensors = OpType::kAllGatherIntoTensorCoalesced;
constexpr OpType kGather = OpType::kGather;
constexpr OpType kScatter = OpType::kScatter;
constexpr OpType kReduceScatter = OpType::kReduceScatter;
constexpr OpType kScatterTensor = OpType::kReduceScatterTensor;
constexpr OpType kScatterTensors = OpType::kReduceScatterTensorCoalesced;
constexpr OpType kAllToAll = OpType::kAllToAll;
constexpr int64_t kHuge = std::numeric_limits<int64_t>::max() / 2;

INSTANTIATE_TEST_SUITE_P(
    EveryTensor, ShapeRuleTest,
    testing::Values(
        Case{"Good", all_reduce(f32(0, {2, 3})), ""}, Case{"Scalar", all_reduce(f32(0, {})), ""},
        Case{"EmptyWithoutData", all_reduce(null_f32({0})), ""},
        Case{"EmptyInOneDimension", all_reduce(null_f32({4, 0, 2})), ""},
        Case{"NullPointer", all_reduce(null_f32({2, 3})),
             "buffer has a null pointer, want the address of 6 elements of float32"},
        Case{"NullScalar", all_reduce(null_f32({})),
             "buffer has a null pointer, want the address of 1 element of float32"},
        Case{"MetaNeedsNoData", all_reduce(TensorView::meta({2, 3}, DType::kFloat32)), ""},
        Case{"NegativeSize", all_reduce(f32(0, {-3})), "buffer's shape [-3] has a negative size, -3"},
        Case{"TwoNegativeSizes", all_reduce(f32(0, {-2, -3})), "buffer's shape [-2, -3] has a negative size, -2"},
        Case{"NegativeBesideZero", all_reduce(f32(0, {0, -3})), "buffer's shape [0, -3] has a negative size, -3"},
        Case{"Transposed", all_reduce(strided(0, {2, 3}, {1, 2})),
             "buffer is not contiguous: shape [2, 3] has strides [1, 2], want [3, 1]"},
        Case{"EverySecond", all_reduce(strided(0, {4}, {2})),
             "buffer is not contiguous: shape [4] has strides [2], want [1]"},
        Case{"TooManyBytes", all_reduce(typed(DType::kFloat64, 0, {kHuge / 2, 2})),
             "buffer's shape [2305843009213693951, 2] of float64 has more bytes than int64 counts"},
        Case{"StridesOfOtherRank", all_reduce(strided(0, {2, 3}, {1})),
             "buffer's shape [2, 3] has 2 dimensions and strides [1] have 1"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    Reductions, ShapeRuleTest,
    testing::Values(
        Case{"HalfSum", all_reduce(typed(DType::kFloat16, 0, {4})), ""},
        Case{"BoolSum", all_reduce(typed(DType::kBool, 0, {4})), ""},
        Case{"ComplexSum", all_reduce(typed(DType::kComplex64, 0, {4})), ""},
        Case{"IntBand", all_reduce(typed(DType::kInt32, 0, {4}), ReduceOp::kBand), ""},
        Case{"Premul", all_reduce(f32(0, {4}), ReduceOp::premul_sum(0.5)), ""},
        Case{"AvgOfIntegers", all_reduce(typed(DType::kInt32, 0, {4}), ReduceOp::kAvg),
             "reduce op avg has no kernel for int32, want a floating or complex dtype"},
        Case{"BandOfFloats", all_reduce(f32(0, {4}), ReduceOp::kBand),
             "reduce op band has no kernel for float32, want an integer dtype or bool"},
        Case{"MaxOfComplex", all_reduce(typed(DType::kComplex64, 0, {4}), ReduceOp::kMax),
             "reduce op max has no kernel for complex64, want any dtype but complex and float8"},
        Case{"PremulOfIntegers", all_reduce(typed(DType::kInt64, 0, {4}), ReduceOp::premul_sum(0.5)),
             "reduce op premul_sum(0.5) has no kernel for int64, want a floating dtype"},
        Case{"SumOfFloat8", all_reduce(typed(DType::kFloat8E4M3FN, 0, {4})),
             "reduce op sum has no kernel for float8_e4m3fn (float8 only moves), want any dtype but float8"},
        Case{"UnknownReduceOp", unknown_reduce_op(), "reduce op has the unknown kind 99"},
        Case{"UnknownOrder", unknown_order(), "order of reduction has the unknown kind 99"},
        Case{"ReduceOfFloat8",
             [] {
               CollectiveCall call =
                   rooted(kReduce, 0, {typed(DType::kFloat8E5M2, 0, {4})}, {typed(DType::kFloat8E5M2, 0, {4})});
               call.reduce_op = ReduceOp::kMax;
               return call;
             }(),
             "reduce op max has no kernel for float8_e5m2 (float8 only moves), want any dtype but complex and float8"},
        Case{"ReduceScatterAvgOfIntegers",
             reducing(kReduceScatter, ReduceOp::kAvg,
                      {typed(DType::kInt32, 0, {1}), typed(DType::kInt32, 4, {1}), typed(DType::kInt32, 8, {1})},
                      {typed(DType::kInt32, 16, {1})}),
             "reduce op avg has no kernel for int32, want a floating or complex dtype"},
        Case{"ReduceScatterTensorBorOfFloats", reducing(kScatterTensor, ReduceOp::kBor, {f32(0, {6})}, {f32(16, {2})}),
             "reduce op bor has no kernel for float32, want an integer dtype or bool"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    AllReduce, ShapeRuleTest,
    testing::Values(
        Case{"OutOfPlace", reducing(OpType::kAllReduce, ReduceOp::kSum, {f32(0, {4})}, {f32(8, {4})}), ""},
        Case{"NoTensor", reducing(OpType::kAllReduce, ReduceOp::kSum, {}, {}), "inputs has 0 tensors, want 1"},
        Case{"TwoTensors", reducing(OpType::kAllReduce, ReduceOp::kSum, {f32(0, {4}), f32(4, {4})}, {f32(0, {4})}),
             "inputs has 2 tensors, want 1"},
        Case{"TwoOutputs", reducing(OpType::kAllReduce, ReduceOp::kSum, {f32(0, {4})}, {f32(0, {4}), f32(4, {4})}),
             "outputs has 2 tensors, want 1"},
        Case{"OutputOfOtherSize", reducing(OpType::kAllReduce, ReduceOp::kSum, {f32(0, {4})}, {f32(8, {5})}),
             "output has 5 elements, want buffer's 4"},
        Case{"OutputHalfOver", reducing(OpType::kAllReduce, ReduceOp::kSum, {f32(0, {4})}, {f32(2, {4})}),
             "output overlaps buffer, want separate memory or exactly the same"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    AllReduceCoalesced, ShapeRuleTest,
    testing::Values(
        Case{"Good", call_of(OpType::kAllReduceCoalesced, {f32(0, {4}), f32(4, {2})}, {f32(0, {4}), f32(4, {2})}), ""},
        Case{"OutOfPlace", call_of(OpType::kAllReduceCoalesced, {f32(0, {4}), f32(4, {2})}, {f32(8, {4}), f32(16, {2})}), ""},
        Case{"None", call_of(OpType::kAllReduceCoalesced, {}, {}), "buffers has 0 inputs and 0 outputs, want as many of both and at least 1"},
        Case{"Unpaired", call_of(OpType::kAllReduceCoalesced, {f32(0, {4})}, {}),
             "buffers has 1 input and 0 outputs, want as many of both and at least 1"},
        Case{"TwoDTypes",
             call_of(OpType::kAllReduceCoalesced, {f32(0, {4}), typed(DType::kInt32, 4, {2})}, {f32(0, {4}), typed(DType::kInt32, 4, {2})}),
             "buffers[1] has dtype int32, want buffers[0]'s float32"},
        Case{"TwoDevices", call_of(OpType::kAllReduceCoalesced, {f32(0, {4}), on_cuda(0, 4, {2})}, {f32(0, {4}), on_cuda(0, 4, {2})}),
             "buffers[1] is on cuda:0, want buffers[0]'s cpu"},
        Case{"NullPointer", call_of(OpType::kAllReduceCoalesced, {f32(0, {4}), null_f32({2})}, {f32(0, {4}), null_f32({2})}),
             "buffers[1] has a null pointer, want the address of 2 elements of float32"},
        Case{"OneBufferTwice", call_of(OpType::kAllReduceCoalesced, {f32(0, {4}), f32(2, {4})}, {f32(0, {4}), f32(2, {4})}),
             "buffers[1] overlaps buffers[0], want separate memory"},
        Case{"AvgOfIntegers",
             [] {
               CollectiveCall call = call_of(OpType::kAllReduceCoalesced, {typed(DType::kInt8, 0, {4})}, {typed(DType::kInt8, 0, {4})});
               call.reduce_op = ReduceOp::kAvg;
               return call;
             }(),
             "reduce op avg has no kernel for int8, want a floating or complex dtype"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    RootedBuffers, ShapeRuleTest,
    testing::Values(Case{"Broadcast", rooted(kBroadcast, 2, {}, {f32(0, {4})}), ""},
                    Case{"BroadcastFloat8", rooted(kBroadcast, 2, {}, {typed(DType::kFloat8E4M3FN, 0, {4})}), ""},
                    Case{"BroadcastRootTooHigh", rooted(kBroadcast, 3, {}, {f32(0, {4})}),
                         "root is 3, want 0 <= root < size = 3"},
                    Case{"BroadcastRootNegative", rooted(kBroadcast, -1, {}, {f32(0, {4})}),
                         "root is -1, want 0 <= root < size = 3"},
                    Case{"BroadcastNull", rooted(kBroadcast, 0, {}, {null_f32({4})}),
                         "buffer has a null pointer, want the address of 4 elements of float32"},
                    Case{"BroadcastNothing", rooted(kBroadcast, 0, {}, {}), "outputs has 0 tensors, want 1"},
                    Case{"Reduce", rooted(kReduce, 0, {f32(0, {4})}, {f32(0, {4})}), ""},
                    Case{"ReduceRootTooHigh", rooted(kReduce, 7, {f32(0, {4})}, {f32(0, {4})}),
                         "root is 7, want 0 <= root < size = 3"},
                    Case{"ReduceNotContiguous", rooted(kReduce, 0, {strided(0, {4}, {2})}, {strided(0, {4}, {2})}),
                         "buffer is not contiguous: shape [4] has strides [2], want [1]"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    AllGather, ShapeRuleTest,
    testing::Values(
        Case{"Even", call_of(kAllGather, {f32(0, {2})}, {f32(8, {2}), f32(10, {2}), f32(12, {2})}), ""},
        Case{"Uneven", call_of(kAllGather, {f32(0, {2})}, {f32(8, {5}), f32(16, {2}), f32(24, {0})}), ""},
        Case{"InPlace", call_of(kAllGather, {f32(10, {2})}, {f32(8, {2}), f32(10, {2}), f32(12, {2})}), ""},
        Case{"OutputsDescend", call_of(kAllGather, {f32(0, {2})}, {f32(12, {2}), f32(10, {2}), f32(8, {2})}), ""},
        Case{"OutputsInNoOrder", call_of(kAllGather, {f32(0, {2})}, {f32(12, {2}), f32(8, {2}), f32(10, {2})}), ""},
        Case{"GroupOfOne", call_of(kAllGather, {f32(0, {2})}, {f32(8, {2})}), "", 0, 1},
        Case{"TooFewOutputs", call_of(kAllGather, {f32(0, {2})}, {f32(8, {2}), f32(10, {2})}),
             "outputs has 2 tensors, want size = 3"},
        Case{"NoOutputs", call_of(kAllGather, {f32(0, {2})}, {}), "outputs has 0 tensors, want size = 3"},
        Case{"NoInput", call_of(kAllGather, {}, {f32(8, {2}), f32(10, {2}), f32(12, {2})}),
             "inputs has 0 tensors, want 1"},
        Case{"OwnOutputOfOtherSize", call_of(kAllGather, {f32(0, {2})}, {f32(8, {2}), f32(10, {3}), f32(16, {2})}),
             "outputs[1] has 3 elements, want input's 2"},
        Case{"OtherDType",
             call_of(kAllGather, {f32(0, {2})}, {f32(8, {2}), f32(10, {2}), typed(DType::kFloat64, 12, {2})}),
             "outputs[2] has dtype float64, want input's float32"},
        Case{"OtherDevice", call_of(kAllGather, {f32(0, {2})}, {on_cuda(1, 8, {2}), f32(10, {2}), f32(12, {2})}),
             "outputs[0] is on cuda:1, want input's cpu"},
        Case{"NullOutput", call_of(kAllGather, {f32(0, {2})}, {f32(8, {2}), f32(10, {2}), null_f32({1})}),
             "outputs[2] has a null pointer, want the address of 1 element of float32"},
        Case{"InputInAnothersPlace", call_of(kAllGather, {f32(8, {2})}, {f32(8, {2}), f32(10, {2}), f32(12, {2})}),
             "input overlaps outputs[0], want separate memory"},
        Case{"InputHalfInItsPlace", call_of(kAllGather, {f32(21, {2})}, {f32(8, {2}), f32(20, {2}), f32(12, {2})}),
             "input overlaps outputs[1], want separate memory or exactly the same"},
        Case{"OutputsOverlap", call_of(kAllGather, {f32(0, {2})}, {f32(8, {2}), f32(20, {2}), f32(9, {2})}),
             "outputs[2] overlaps outputs[0], want separate memory"},
        Case{"OneOutputForAll", call_of(kAllGather, {f32(0, {2})}, {f32(8, {2}), f32(8, {2}), f32(8, {2})}),
             "outputs[1] overlaps outputs[0], want separate memory"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    AllGatherIntoTensor, ShapeRuleTest,
    testing::Values(
        Case{"Good", call_of(kIntoTensor, {f32(0, {2})}, {f32(8, {6})}), ""},
        Case{"Stacked", call_of(kIntoTensor, {f32(0, {2})}, {f32(8, {3, 2})}), ""},
        Case{"InPlace", call_of(kIntoTensor, {f32(10, {2})}, {f32(8, {6})}), ""},
        Case{"Empty", call_of(kIntoTensor, {null_f32({0})}, {null_f32({0})}), ""},
        Case{"GroupOfOne", call_of(kIntoTensor, {f32(0, {2})}, {f32(0, {2})}), "", 0, 1},
        Case{"WrongProduct", call_of(kIntoTensor, {f32(0, {2})}, {f32(8, {5})}),
             "output has 5 elements, want size * input = 3 * 2 = 6"},
        Case{"OneElement", call_of(kIntoTensor, {f32(0, {2})}, {f32(8, {1})}),
             "output has 1 element, want size * input = 3 * 2 = 6"},
        Case{"ProductTooLarge", call_of(kIntoTensor, {typed(DType::kInt8, 0, {kHuge})}, {typed(DType::kInt8, 8, {6})}),
             "output has 6 elements, want size * input = 3 * 4611686018427387903 = more than 2^63"},
        Case{"OtherDType", call_of(kIntoTensor, {f32(0, {2})}, {typed(DType::kInt32, 8, {6})}),
             "output has dtype int32, want input's float32"},
        Case{"OtherDevice", call_of(kIntoTensor, {f32(0, {2})}, {on_cuda(0, 8, {6})}),
             "output is on cuda:0, want input's cpu"},
        Case{"NotContiguous", call_of(kIntoTensor, {strided(0, {2}, {2})}, {f32(8, {6})}),
             "input is not contiguous: shape [2] has strides [2], want [1]"},
        Case{"OutputNotContiguous", call_of(kIntoTensor, {f32(0, {2})}, {strided(8, {3, 2}, {1, 3})}),
             "output is not contiguous: shape [3, 2] has strides [1, 3], want [2, 1]"},
        Case{"AnothersSlice", call_of(kIntoTensor, {f32(8, {2})}, {f32(8, {6})}),
             "input starts at byte 0 of output, want separate memory or its own part, byte rank * input = 1 * 8 = 8"},
        Case{"HalfOver", call_of(kIntoTensor, {f32(7, {2})}, {f32(8, {6})}),
             "input starts at byte -4 of output, want separate memory or its own part, byte rank * input = 1 * 8 = 8"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    AllGatherIntoTensorCoalesced, ShapeRuleTest,
    testing::Values(
        Case{"Good", call_of(kIntoTensors, {f32(0, {2}), f32(2, {1})}, {f32(8, {6}), f32(16, {3})}), ""},
        Case{"TwoDTypes",
             call_of(kIntoTensors, {f32(0, {2}), typed(DType::kInt32, 2, {1})},
                     {f32(8, {6}), typed(DType::kInt32, 16, {3})}),
             ""},
        Case{"InPlace", call_of(kIntoTensors, {f32(10, {2}), f32(17, {1})}, {f32(8, {6}), f32(16, {3})}), ""},
        Case{"None", call_of(kIntoTensors, {}, {}),
             "inputs has 0 tensors and outputs 0, want as many of both and at least 1"},
        Case{"Unpaired", call_of(kIntoTensors, {f32(0, {2})}, {f32(8, {6}), f32(16, {3})}),
             "inputs has 1 tensor and outputs 2, want as many of both and at least 1"},
        Case{"WrongProduct", call_of(kIntoTensors, {f32(0, {2}), f32(2, {1})}, {f32(8, {6}), f32(16, {4})}),
             "pair 1: output has 4 elements, want size * input = 3 * 1 = 3"},
        Case{"TwoDevices", call_of(kIntoTensors, {f32(0, {2}), on_cuda(0, 2, {1})}, {f32(8, {6}), on_cuda(0, 16, {3})}),
             "outputs[1] is on cuda:0, want outputs[0]'s cpu"},
        Case{"OutputsOverlap", call_of(kIntoTensors, {f32(0, {2}), f32(2, {1})}, {f32(8, {6}), f32(13, {3})}),
             "outputs[1] overlaps outputs[0], want separate memory"},
        Case{"InputInAnotherOutput", call_of(kIntoTensors, {f32(0, {2}), f32(10, {1})}, {f32(8, {6}), f32(16, {3})}),
             "inputs[1] overlaps outputs[0], want separate memory"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    Gather, ShapeRuleTest,
    testing::Values(
        Case{"AtTheRoot", rooted(kGather, 1, {f32(0, {2})}, {f32(8, {2}), f32(10, {2}), f32(12, {2})}), ""},
        Case{"InPlace", rooted(kGather, 1, {f32(10, {2})}, {f32(8, {2}), f32(10, {2}), f32(12, {2})}), ""},
        Case{"Elsewhere", rooted(kGather, 0, {f32(0, {2})}, {}), ""},
        Case{"ListElsewhere", rooted(kGather, 0, {f32(0, {2})}, {f32(8, {2}), f32(10, {2}), f32(12, {2})}),
             "outputs has 3 tensors, want none: only the root, 0, gathers"},
        Case{"NoListAtTheRoot", rooted(kGather, 1, {f32(0, {2})}, {}), "outputs has 0 tensors, want size = 3"},
        Case{"ShortListAtTheRoot", rooted(kGather, 1, {f32(0, {2})}, {f32(8, {2})}),
             "outputs has 1 tensor, want size = 3"},
        Case{"UnevenAtTheRoot", rooted(kGather, 1, {f32(0, {2})}, {f32(8, {2}), f32(10, {2}), f32(12, {3})}),
             "outputs[2] has 3 elements, want input's 2"},
        Case{"OtherDType",
             rooted(kGather, 1, {f32(0, {2})}, {f32(8, {2}), typed(DType::kInt32, 10, {2}), f32(12, {2})}),
             "outputs[1] has dtype int32, want input's float32"},
        Case{"OutputsOverlap", rooted(kGather, 1, {f32(0, {2})}, {f32(8, {2}), f32(9, {2}), f32(12, {2})}),
             "outputs[1] overlaps outputs[0], want separate memory"},
        Case{"RootOutOfRange", rooted(kGather, 3, {f32(0, {2})}, {}), "root is 3, want 0 <= root < size = 3"},
        Case{"NoInput", rooted(kGather, 0, {}, {}), "inputs has 0 tensors, want 1"},
        Case{"NullInput", rooted(kGather, 0, {null_f32({2})}, {}),
             "input has a null pointer, want the address of 2 elements of float32"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    Scatter, ShapeRuleTest,
    testing::Values(
        Case{"AtTheRoot", rooted(kScatter, 1, {f32(8, {2}), f32(10, {2}), f32(12, {2})}, {f32(0, {2})}), ""},
        Case{"InPlace", rooted(kScatter, 1, {f32(8, {2}), f32(10, {2}), f32(12, {2})}, {f32(10, {2})}), ""},
        Case{"OneInputForAll", rooted(kScatter, 1, {f32(8, {2}), f32(8, {2}), f32(8, {2})}, {f32(0, {2})}), ""},
        Case{"Elsewhere", rooted(kScatter, 0, {}, {f32(0, {2})}), ""},
        Case{"ListElsewhere", rooted(kScatter, 0, {f32(8, {2}), f32(10, {2}), f32(12, {2})}, {f32(0, {2})}),
             "inputs has 3 tensors, want none: only the root, 0, scatters"},
        Case{"NoListAtTheRoot", rooted(kScatter, 1, {}, {f32(0, {2})}), "inputs has 0 tensors, want size = 3"},
        Case{"UnevenAtTheRoot", rooted(kScatter, 1, {f32(8, {3}), f32(12, {2}), f32(14, {2})}, {f32(0, {2})}),
             "inputs[0] has 3 elements, want output's 2"},
        Case{"OwnPartOfOtherSize", rooted(kScatter, 1, {f32(8, {2}), f32(10, {1}), f32(14, {2})}, {f32(0, {2})}),
             "inputs[1] has 1 element, want output's 2"},
        Case{"OtherDevice", rooted(kScatter, 1, {f32(8, {2}), f32(10, {2}), on_cuda(0, 12, {2})}, {f32(0, {2})}),
             "inputs[2] is on cuda:0, want output's cpu"},
        Case{"OutputInAnothersInput", rooted(kScatter, 1, {f32(8, {2}), f32(10, {2}), f32(12, {2})}, {f32(12, {2})}),
             "output overlaps inputs[2], want separate memory"},
        Case{"RootOutOfRange", rooted(kScatter, -2, {}, {f32(0, {2})}), "root is -2, want 0 <= root < size = 3"},
        Case{"NoOutput", rooted(kScatter, 0, {}, {}), "outputs has 0 tensors, want 1"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    ReduceScatter, ShapeRuleTest,
    testing::Values(
        Case{"Even", call_of(kReduceScatter, {f32(8, {2}), f32(10, {2}), f32(12, {2})}, {f32(0, {2})}), ""},
        Case{"Uneven", call_of(kReduceScatter, {f32(8, {1}), f32(10, {2}), f32(12, {0})}, {f32(0, {2})}), ""},
        Case{"InPlace", call_of(kReduceScatter, {f32(8, {2}), f32(10, {2}), f32(12, {2})}, {f32(10, {2})}), ""},
        Case{"TooManyInputs",
             call_of(kReduceScatter, {f32(8, {2}), f32(10, {2}), f32(12, {2}), f32(14, {2})}, {f32(0, {2})}),
             "inputs has 4 tensors, want size = 3"},
        Case{"OwnInputOfOtherSize", call_of(kReduceScatter, {f32(8, {2}), f32(10, {2}), f32(12, {2})}, {f32(0, {1})}),
             "inputs[1] has 2 elements, want output's 1"},
        Case{"OtherDType",
             call_of(kReduceScatter, {typed(DType::kInt32, 8, {2}), f32(10, {2}), f32(12, {2})}, {f32(0, {2})}),
             "inputs[0] has dtype int32, want output's float32"},
        Case{"OutputOverAnothersInput",
             call_of(kReduceScatter, {f32(8, {2}), f32(10, {2}), f32(12, {2})}, {f32(7, {2})}),
             "output overlaps inputs[0], want separate memory"},
        Case{"NullInput", call_of(kReduceScatter, {f32(8, {2}), f32(10, {2}), null_f32({2})}, {f32(0, {2})}),
             "inputs[2] has a null pointer, want the address of 2 elements of float32"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    ReduceScatterTensor, ShapeRuleTest,
    testing::Values(
        Case{"Good", call_of(kScatterTensor, {f32(8, {6})}, {f32(0, {2})}), ""},
        Case{"InPlace", call_of(kScatterTensor, {f32(8, {6})}, {f32(10, {2})}), ""},
        Case{"WrongProduct", call_of(kScatterTensor, {f32(8, {5})}, {f32(0, {2})}),
             "input has 5 elements, want size * output = 3 * 2 = 6"},
        Case{"AnothersSlice", call_of(kScatterTensor, {f32(8, {6})}, {f32(12, {2})}),
             "output starts at byte 16 of input, want separate memory or its own part, byte rank * output = 1 * 8 = 8"},
        Case{"OtherDType", call_of(kScatterTensor, {typed(DType::kFloat64, 8, {6})}, {f32(0, {2})}),
             "input has dtype float64, want output's float32"},
        Case{"NullInput", call_of(kScatterTensor, {null_f32({6})}, {f32(0, {2})}),
             "input has a null pointer, want the address of 6 elements of float32"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    ReduceScatterTensorCoalesced, ShapeRuleTest,
    testing::Values(
        Case{"Good", call_of(kScatterTensors, {f32(8, {6}), f32(16, {3})}, {f32(0, {2}), f32(2, {1})}), ""},
        Case{"None", call_of(kScatterTensors, {}, {}),
             "inputs has 0 tensors and outputs 0, want as many of both and at least 1"},
        Case{"WrongProduct", call_of(kScatterTensors, {f32(8, {7}), f32(16, {3})}, {f32(0, {2}), f32(2, {1})}),
             "pair 0: input has 7 elements, want size * output = 3 * 2 = 6"},
        Case{"Float8",
             call_of(kScatterTensors, {f32(8, {6}), typed(DType::kFloat8E5M2, 16, {3})},
                     {f32(0, {2}), typed(DType::kFloat8E5M2, 2, {1})}),
             "pair 1: reduce op sum has no kernel for float8_e5m2 (float8 only moves), want any dtype but float8"},
        Case{"OutputInAnotherInput", call_of(kScatterTensors, {f32(8, {6}), f32(16, {3})}, {f32(0, {2}), f32(8, {1})}),
             "inputs[0] overlaps outputs[1], want separate memory"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    AllToAll, ShapeRuleTest,
    testing::Values(
        Case{"Good",
             call_of(kAllToAll, {f32(0, {2}), f32(2, {3}), f32(5, {0})}, {f32(8, {1}), f32(10, {3}), f32(16, {4})}),
             ""},
        Case{"Interleaved",
             call_of(kAllToAll, {f32(0, {2}), f32(4, {2}), f32(8, {2})}, {f32(2, {2}), f32(6, {2}), f32(10, {2})}), ""},
        Case{"OneInputForAll",
             call_of(kAllToAll, {f32(0, {2}), f32(0, {2}), f32(0, {2})}, {f32(8, {2}), f32(10, {2}), f32(16, {2})}),
             ""},
        Case{"TooFewInputs", call_of(kAllToAll, {f32(0, {2})}, {f32(8, {2}), f32(10, {2}), f32(16, {2})}),
             "inputs has 1 tensor, want size = 3"},
        Case{"TooFewOutputs", call_of(kAllToAll, {f32(0, {2}), f32(2, {2}), f32(4, {2})}, {f32(8, {2})}),
             "outputs has 1 tensor, want size = 3"},
        Case{"OtherDTypeIn",
             call_of(kAllToAll, {f32(0, {2}), typed(DType::kInt32, 2, {2}), f32(4, {2})},
                     {f32(8, {2}), f32(10, {2}), f32(16, {2})}),
             "inputs[1] has dtype int32, want inputs[0]'s float32"},
        Case{"OtherDTypeOut",
             call_of(kAllToAll, {f32(0, {2}), f32(2, {2}), f32(4, {2})},
                     {f32(8, {2}), f32(10, {2}), typed(DType::kInt8, 16, {2})}),
             "outputs[2] has dtype int8, want inputs[0]'s float32"},
        Case{"OutputsOverlap",
             call_of(kAllToAll, {f32(0, {2}), f32(2, {2}), f32(4, {2})}, {f32(8, {2}), f32(16, {2}), f32(17, {2})}),
             "outputs[2] overlaps outputs[1], want separate memory"},
        Case{"InPlace",
             call_of(kAllToAll, {f32(0, {2}), f32(2, {2}), f32(4, {2})}, {f32(0, {2}), f32(2, {2}), f32(4, {2})}),
             "inputs[0] overlaps outputs[0], want separate memory"},
        Case{"InputInAnOutput",
             call_of(kAllToAll, {f32(0, {2}), f32(2, {2}), f32(17, {1})}, {f32(8, {2}), f32(10, {2}), f32(16, {2})}),
             "inputs[2] overlaps outputs[2], want separate memory"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    AllToAllSingle, ShapeRuleTest,
    testing::Values(
        Case{"Even", with_splits({f32(0, {6})}, {f32(8, {6})}, {}, {}), ""},
        Case{"EvenRows", with_splits({f32(0, {3, 2})}, {f32(8, {3, 2})}, {}, {}), ""},
        Case{"Uneven", with_splits({f32(0, {6})}, {f32(8, {4})}, {1, 0, 5}, {2, 2, 0}), ""},
        Case{"InSplitsOnly", with_splits({f32(0, {6})}, {f32(8, {3})}, {1, 0, 5}, {}), ""},
        Case{"NoRowsOut", with_splits({f32(0, {6, 2})}, {f32(16, {0})}, {1, 0, 5}, {0, 0, 0}), ""},
        Case{"Empty", with_splits({null_f32({0, 4})}, {null_f32({0, 4})}, {}, {}), ""},
        Case{"GroupOfOne", with_splits({f32(0, {5})}, {f32(8, {5})}, {5}, {}), "", 0, 1},
        Case{"Indivisible", with_splits({f32(0, {4})}, {f32(8, {6})}, {}, {}),
             "input has 4 rows (dimension 0) and no input_splits, want a multiple of size = 3"},
        Case{"IndivisibleOut", with_splits({f32(0, {6})}, {f32(8, {1})}, {}, {}),
             "output has 1 row (dimension 0) and no output_splits, want a multiple of size = 3"},
        Case{"SplitsMissARow", with_splits({f32(0, {3})}, {f32(8, {2})}, {1, 1}, {1, 1}),
             "input_splits add up to 1 + 1, want dimension 0 of input = 3", 0, 2},
        Case{"OutSplitsExceed", with_splits({f32(0, {2})}, {f32(8, {2})}, {1, 1}, {2, 1}),
             "output_splits add up to 2 + 1, want dimension 0 of output = 2", 0, 2},
        Case{"SplitsOverflow", with_splits({f32(0, {2})}, {f32(8, {2})}, {kHuge, kHuge, 4}, {}),
             "input_splits add up to 4611686018427387903 + 4611686018427387903 + 4, want dimension 0 of input = 2"},
        Case{"TooFewSplits", with_splits({f32(0, {3})}, {f32(8, {3})}, {3}, {}),
             "input_splits has 1 entry, want size = 3"},
        Case{"TooManySplits", with_splits({f32(0, {3})}, {f32(8, {3})}, {}, {1, 1, 1, 0}),
             "output_splits has 4 entries, want size = 3"},
        Case{"NegativeSplit", with_splits({f32(0, {3})}, {f32(8, {3})}, {4, -1, 0}, {}),
             "input_splits[1] is -1, want 0 or more"},
        Case{"ScalarInput", with_splits({f32(0, {})}, {f32(8, {3})}, {}, {}),
             "input has no dimension 0 to split: its shape is []"},
        Case{"ScalarOutput", with_splits({f32(0, {3})}, {f32(8, {})}, {}, {}),
             "output has no dimension 0 to split: its shape is []"},
        Case{"OtherRows", with_splits({f32(0, {3, 4})}, {f32(16, {3, 3})}, {}, {}),
             "output has rows of 3 elements, want input's 4"},
        Case{"OtherDType", with_splits({f32(0, {3})}, {typed(DType::kInt32, 8, {3})}, {}, {}),
             "output has dtype int32, want input's float32"},
        Case{"OtherDevice", with_splits({on_cuda(0, 0, {3})}, {on_cuda(1, 8, {3})}, {}, {}),
             "output is on cuda:1, want input's cuda:0"},
        Case{"InPlace", with_splits({f32(0, {3})}, {f32(0, {3})}, {}, {}),
             "output overlaps input, want separate memory"},
        Case{"NoInput", with_splits({}, {f32(0, {3})}, {}, {}), "inputs has 0 tensors, want 1"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    PointToPoint, ShapeRuleTest,
    testing::Values(Case{"Send", p2p(OpType::kSend, 2, 0, {f32(0, {4})}), ""},
                    Case{"Recv", p2p(OpType::kRecv, 0, 7, {f32(0, {4})}), ""},
                    Case{"RecvAny", p2p(OpType::kRecv, CollectiveCall::kAnySource, 0, {f32(0, {4})}), ""},
                    Case{"SendToNobody", p2p(OpType::kSend, 3, 0, {f32(0, {4})}),
                         "destination is 3, want 0 <= destination < size = 3"},
                    Case{"SendToAny", p2p(OpType::kSend, CollectiveCall::kAnySource, 0, {f32(0, {4})}),
                         "destination is -2, want 0 <= destination < size = 3"},
                    Case{"SendToSelf", p2p(OpType::kSend, 1, 0, {f32(0, {4})}), ""},
                    Case{"RecvFromNobody", p2p(OpType::kRecv, -1, 0, {f32(0, {4})}),
                         "source is -1, want 0 <= source < size = 3, or recv_any()"},
                    Case{"RecvFromSelf", p2p(OpType::kRecv, 1, 0, {f32(0, {4})}), ""},
                    Case{"NegativeTag", p2p(OpType::kSend, 2, -1, {f32(0, {4})}), "tag is -1, want 0 or more"},
                    Case{"NegativeTagOfRecv", p2p(OpType::kRecv, 2, -5, {f32(0, {4})}), "tag is -5, want 0 or more"},
                    Case{"SendNothing", p2p(OpType::kSend, 2, 0, {}), "inputs has 0 tensors, want 1"},
                    Case{"RecvTwo", p2p(OpType::kRecv, 2, 0, {f32(0, {4}), f32(4, {4})}),
                         "outputs has 2 tensors, want 1"},
                    Case{"SendNull", p2p(OpType::kSend, 2, 0, {null_f32({4})}),
                         "input has a null pointer, want the address of 4 elements of float32"},
                    Case{"RecvNotContiguous", p2p(OpType::kRecv, 2, 0, {strided(0, {2, 2}, {1, 2})}),
                         "output is not contiguous: shape [2, 2] has strides [1, 2], want [2, 1]"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(WithoutTensors, ShapeRuleTest,
                         testing::Values(Case{"Barrier", call_of(OpType::kBarrier, {}, {}), ""},
                                         Case{"MonitoredBarrier", call_of(OpType::kMonitoredBarrier, {}, {}), ""},
                                         Case{"BarrierWithInput", call_of(OpType::kBarrier, {f32(0, {1})}, {}),
                                              "inputs has 1 tensor, want 0"},
                                         Case{"BarrierWithOutput",
                                              call_of(OpType::kMonitoredBarrier, {}, {f32(0, {1})}),
                                              "outputs has 1 tensor, want 0"},
                                         Case{"NewGroup", call_of(OpType::kNewGroup, {}, {}), ""}),
                         case_name);

INSTANTIATE_TEST_SUITE_P(
    Coalesced, ShapeRuleTest,
    testing::Values(Case{"Nothing", coalesced({}), ""},
                    Case{"Good", coalesced({all_reduce(f32(0, {4})), p2p(OpType::kSend, 2, 0, {f32(8, {4})})}), ""},
                    Case{"BadPart",
                         coalesced({all_reduce(f32(0, {4})), call_of(kIntoTensor, {f32(0, {2})}, {f32(8, {5})})}),
                         "call 1, all_gather_into_tensor: output has 5 elements, want size * input = 3 * 2 = 6"},
                    Case{"Nested", coalesced({coalesced({})}), "call 0 is coalesced, which cannot be coalesced"},
                    Case{"NewGroup", coalesced({all_reduce(f32(0, {4})), call_of(OpType::kNewGroup, {}, {})}),
                         "call 1 is new_group, which cannot be coalesced"},
                    Case{"MonitoredBarrier", coalesced({call_of(OpType::kMonitoredBarrier, {}, {})}),
                         "call 0 is monitored_barrier, which cannot be coalesced"}),
    case_name);

TEST(OverlapTest, AgreesWithTheComparisonOfEveryPair) {
  const auto overlap = [](const TensorView& a, const TensorView& b) {
    const float* const a_begin = a.data_as<float>();
    const float* const b_begin = b.data_as<float>();
    return a.numel() > 0 && b.numel() > 0 && a_begin < b_begin + b.numel() && b_begin < a_begin + a.numel();
  };
  Prng random(7);
  int right = 0;
  for (int round = 0; round < 20000; ++round) {
    const int size = 1 + static_cast<int>(random.below(4));
    Views inputs;
    Views outputs;
    for (int i = 0; i < size; ++i) {
      inputs.push_back(f32(static_cast<int>(random.below(40)), {static_cast<int64_t>(random.below(4))}));
      outputs.push_back(f32(static_cast<int>(random.below(40)), {static_cast<int64_t>(random.below(4))}));
    }
    bool want = true;
    for (int i = 0; i < size; ++i) {
      for (int j = 0; j < size; ++j) {
        want = want && !overlap(inputs[i], outputs[j]) && (i == j || !overlap(outputs[i], outputs[j]));
      }
    }
    right += want ? 1 : 0;
    ASSERT_EQ(check_all_to_all(call_of(kAllToAll, inputs, outputs), 0, size).ok(), want) << "round " << round;
  }
  EXPECT_GT(right, 1000);
  EXPECT_LT(right, 19000);
}

TEST(SplitRowsTest, AreEqualPartsWithoutSplits) {
  const CollectiveCall call = with_splits({f32(0, {6, 2})}, {f32(16, {3, 2})}, {}, {});
  EXPECT_EQ(rows_sent(call, 2, 3).rows, 2);
  EXPECT_EQ(rows_sent(call, 2, 3).row_elements, 2);
  EXPECT_EQ(rows_expected(call, 0, 3).rows, 1);
}

TEST(SplitRowsTest, AreTheSplits) {
  const CollectiveCall call = with_splits({f32(0, {6, 2})}, {f32(16, {0})}, {1, 0, 5}, {0, 0, 0});
  EXPECT_EQ(rows_sent(call, 2, 3).rows, 5);
  EXPECT_EQ(rows_expected(call, 2, 3).rows, 0);
  EXPECT_EQ(rows_expected(call, 2, 3).row_elements, 0);
}

}  // namespace
}  // namespace rankloom

#include "collectives/ops/op_table.h"

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/collectives/ops/members_agree.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::array<float, 64> pool;

TensorView f32(int offset, Dims sizes) { return TensorView(pool.data() + offset, DType::kFloat32, std::move(sizes)); }

CollectiveCall call_of(OpType op, std::vector<TensorView> inputs, std::vector<TensorView> outputs) {
  CollectiveCall call;
  call.op = op;
  call.inputs = TensorList(std::move(inputs));
  call.outputs = TensorList(std::move(outputs));
  return call;
}

CollectiveCall all_reduce(Dims sizes) {
  const TensorView buffer = f32(0, std::move(sizes));
  return call_of(OpType::kAllReduce, {buffer}, {buffer});
}

CollectiveCall coalesced(std::vector<CollectiveCall> parts) {
  CollectiveCall call;
  call.op = OpType::kCoalesced;
  call.parts = std::move(parts);
  return call;
}

bool same(const CollectiveCall& a, const CollectiveCall& b) {
  EXPECT_EQ(op_row(a.op).same(a, b), op_row(a.op).same(b, a)) << "comparison is symmetric";
  return op_row(a.op).same(a, b);
}

std::vector<std::string> faults(std::vector<CollectiveCall> calls) {
  std::vector<const CollectiveCall*> by_rank;
  for (const CollectiveCall& call : calls) by_rank.push_back(&call);
  std::vector<std::string> found;
  op_row(calls[0].op).cross(by_rank, [&found](const PairFault& f) {
    found.push_back(std::to_string(f.sender) + ">" + std::to_string(f.receiver) + " " + std::to_string(f.sent) + "/" +
                    std::to_string(f.expected));
    return true;
  });
  EXPECT_EQ(members_agree(by_rank), found.empty());
  return found;
}

TEST(OpTableTest, RowsAreInEnumOrderWithNamesOfTheirOwn) {
  std::set<std::string> names;
  for (int i = 0; i < kOpTypeCount; ++i) {
    const OpRow& row = op_row(static_cast<OpType>(i));
    EXPECT_EQ(static_cast<int>(row.op), i);
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_NE(row.check, nullptr) << row.name;
    EXPECT_NE(row.same, nullptr) << row.name;
  }
}

TEST(OpTableTest, NamesAreThoseOfTorchDistributed) {
  EXPECT_STREQ(op_row(OpType::kAllGatherIntoTensor).name, "all_gather_into_tensor");
  EXPECT_STREQ(op_row(OpType::kReduceScatterTensorCoalesced).name, "reduce_scatter_tensor_coalesced");
  EXPECT_STREQ(op_row(OpType::kAllToAllSingle).name, "all_to_all_single");
  EXPECT_STREQ(op_row(OpType::kMonitoredBarrier).name, "monitored_barrier");
}

TEST(OpTableTest, RecorderNamesAreKnownToTheStockAnalyzer) {
  const std::set<std::string> known = {"broadcast",
                                       "reduce",
                                       "all_gather",
                                       "_all_gather_base",
                                       "all_reduce",
                                       "allreduce_coalesced",
                                       "all_gather_into_tensor_coalesced",
                                       "reduce_scatter",
                                       "_reduce_scatter_base",
                                       "reduce_scatter_tensor_coalesced",
                                       "gather",
                                       "scatter",
                                       "all_to_all",
                                       "barrier",
                                       "split",
                                       "coalesced",
                                       "send",
                                       "recv"};
  for (const OpRow& row : kOps) EXPECT_EQ(known.count(row.recorder_name), 1U) << row.name;
}

TEST(OpTableTest, OnlySendAndRecvAreNoCollectives) {
  for (const OpRow& row : kOps) {
    EXPECT_EQ(row.is_collective(), row.op != OpType::kSend && row.op != OpType::kRecv) << row.name;
  }
}

TEST(OpTableTest, FieldsAreInEnumOrder) {
  for (int i = 0; i < kCallFieldCount; ++i) EXPECT_EQ(static_cast<int>(kCallFields[static_cast<size_t>(i)].field), i);
}

TEST(OpTableTest, SameComparesEveryFieldOfItsRowAndNoOther) {
  // A change to a call that shows in one field only.
  struct Change {
    CallField field;
    void (*make)(CollectiveCall*);
  };
  const std::array<Change, 7> changes = {{
      {CallField::kReduceOp, [](CollectiveCall* c) { c->reduce_op = ReduceOp::kMax; }},
      {CallField::kReduceOp, [](CollectiveCall* c) { c->reduce_op = ReduceOp::premul_sum(2.0); }},
      {CallField::kOrder, [](CollectiveCall* c) { c->order.kind = ReduceOp::Order::Kind::kRing; }},
      {CallField::kOrder, [](CollectiveCall* c) { c->order.accumulate_in_float = false; }},
      {CallField::kRoot, [](CollectiveCall* c) { c->root = 1; }},
      {CallField::kTag, [](CollectiveCall* c) { c->tag = 5; }},
      {CallField::kLabel, [](CollectiveCall* c) { c->label = "epoch"; }},
  }};
  for (const OpRow& row : kOps) {
    const CollectiveCall call = call_of(row.op, {f32(0, {2})}, {f32(8, {2})});
    EXPECT_TRUE(same(call, call)) << row.name;
    for (const Change& change : changes) {
      CollectiveCall changed = call;
      change.make(&changed);
      EXPECT_EQ(same(call, changed), !row.compares(change.field))
          << row.name << ", " << kCallFields[static_cast<size_t>(change.field)].name;
    }
    const TensorView int_view(pool.data(), DType::kInt32, {2});
    EXPECT_EQ(same(call, call_of(row.op, {int_view}, {int_view})), !row.compares(CallField::kDType)) << row.name;
    const TensorView meta_view = TensorView::meta({2}, DType::kFloat32);
    EXPECT_EQ(same(call, call_of(row.op, {meta_view}, {meta_view})), !row.compares(CallField::kDevice)) << row.name;
    EXPECT_EQ(same(call, call_of(row.op, {f32(0, {3})}, {f32(8, {3})})), !row.compares(CallField::kShape)) << row.name;
    EXPECT_TRUE(same(call, call_of(row.op, {f32(0, {1, 2})}, {f32(8, {2, 1})})))
        << row.name << ": elements count, not dimensions";
  }
}

TEST(OpTableTest, DifferentOperationsAreNotTheSame) {
  EXPECT_FALSE(same(call_of(OpType::kBarrier, {}, {}), call_of(OpType::kMonitoredBarrier, {}, {})));
  EXPECT_FALSE(same(call_of(OpType::kGather, {f32(0, {2})}, {}), call_of(OpType::kAllGather, {f32(0, {2})}, {})));
}

TEST(OpTableTest, DifferentCudaDevicesAreTheSame) {
  const TensorView first(pool.data(), DType::kFloat32, Dims{2}, Device{Device::Kind::kCuda, 0});
  const TensorView second(pool.data(), DType::kFloat32, Dims{2}, Device{Device::Kind::kCuda, 1});
  EXPECT_TRUE(same(call_of(OpType::kAllReduce, {first}, {first}), call_of(OpType::kAllReduce, {second}, {second})));
}

TEST(OpTableTest, RootAndOthersAgreeOnGatherThoughTheirListsDiffer) {
  EXPECT_TRUE(same(call_of(OpType::kGather, {f32(0, {2})}, {f32(8, {2}), f32(10, {2})}),
                   call_of(OpType::kGather, {f32(0, {2})}, {})));
  EXPECT_TRUE(same(call_of(OpType::kScatter, {f32(8, {2}), f32(10, {2})}, {f32(0, {2})}),
                   call_of(OpType::kScatter, {}, {f32(0, {2})})));
}

TEST(OpTableTest, SendAndRecvAreTheSameIfTagDTypeAndSizeAre) {
  const CollectiveCall send = call_of(OpType::kSend, {f32(0, {2})}, {});
  EXPECT_TRUE(same(send, call_of(OpType::kRecv, {}, {f32(8, {2})})));
  EXPECT_FALSE(same(send, call_of(OpType::kRecv, {}, {f32(8, {3})})));
}

TEST(OpTableTest, ReduceScatterComparesEveryPart) {
  const CollectiveCall a = call_of(OpType::kReduceScatter, {f32(0, {2}), f32(2, {1})}, {f32(8, {2})});
  EXPECT_TRUE(same(a, call_of(OpType::kReduceScatter, {f32(0, {2}), f32(2, {1})}, {f32(8, {1})})));
  EXPECT_FALSE(same(a, call_of(OpType::kReduceScatter, {f32(0, {1}), f32(2, {1})}, {f32(8, {1})})));
}

TEST(OpTableTest, NamesPairsOfUnevenAllGatherThatDoNotFit) {
  const auto call = [](int own, int first, int second) {
    return call_of(OpType::kAllGather, {f32(0, {own})}, {f32(8, {first}), f32(16, {second})});
  };
  EXPECT_THAT(faults({call(2, 2, 3), call(3, 2, 3)}), IsEmpty());
  EXPECT_THAT(faults({call(2, 2, 2), call(3, 2, 3)}), ElementsAre("1>0 3/2"));
}

TEST(OpTableTest, NamesPairsOfAllToAllThatDoNotFit) {
  const auto call = [](int in0, int in1, int out0, int out1) {
    return call_of(OpType::kAllToAll, {f32(0, {in0}), f32(4, {in1})}, {f32(8, {out0}), f32(16, {out1})});
  };
  EXPECT_THAT(faults({call(1, 2, 1, 3), call(3, 4, 2, 4)}), IsEmpty());
  EXPECT_THAT(faults({call(1, 2, 1, 3), call(2, 4, 1, 4)}), ElementsAre("0>1 2/1", "1>0 2/3"));
}

TEST(OpTableTest, NamesPairsOfAllToAllSingleThatDoNotFit) {
  const auto call = [](std::vector<int64_t> in, std::vector<int64_t> out, int64_t row) {
    CollectiveCall c =
        call_of(OpType::kAllToAllSingle, {f32(0, {in[0] + in[1], row})}, {f32(32, {out[0] + out[1], row})});
    c.in_splits = std::move(in);
    c.out_splits = std::move(out);
    return c;
  };
  EXPECT_THAT(faults({call({1, 2}, {1, 0}, 2), call({0, 3}, {2, 3}, 2)}), IsEmpty());
  EXPECT_THAT(faults({call({1, 2}, {1, 0}, 2), call({0, 3}, {3, 3}, 2)}), ElementsAre("0>1 2/3"));
  EXPECT_THAT(faults({call({1, 2}, {1, 0}, 2), call({0, 3}, {2, 3}, 3)}),
              ElementsAre("0>1 2/2"));  // rows of 2 and of 3
}

TEST(OpTableTest, EqualPartsAgreeWithSplitsThatSayTheSame) {
  CollectiveCall equal_parts = call_of(OpType::kAllToAllSingle, {f32(0, {4})}, {f32(8, {4})});
  CollectiveCall splits = equal_parts;
  splits.in_splits = {2, 2};
  splits.out_splits = {2, 2};
  EXPECT_THAT(faults({equal_parts, splits}), IsEmpty());
  splits.out_splits = {1, 3};
  EXPECT_THAT(faults({equal_parts, splits}), ElementsAre("0>1 2/1", "1>1 2/3"));
}

TEST(OpTableTest, CoalescedCallsAgreeInTheirCollectivesOnly) {
  CollectiveCall send = call_of(OpType::kSend, {f32(0, {2})}, {});
  const CollectiveCall barrier = call_of(OpType::kBarrier, {}, {});
  EXPECT_TRUE(same(coalesced({all_reduce({2}), send, barrier}), coalesced({all_reduce({2}), barrier})));
  EXPECT_FALSE(same(coalesced({all_reduce({2}), barrier}), coalesced({barrier, all_reduce({2})})));
  EXPECT_FALSE(same(coalesced({all_reduce({2})}), coalesced({all_reduce({2}), barrier})));
  EXPECT_FALSE(same(coalesced({all_reduce({2})}), coalesced({all_reduce({3})})));
  EXPECT_TRUE(same(coalesced({}), coalesced({send})));
}

TEST(OpTableTest, CrossLooksIntoCoalescedCalls) {
  const auto call = [](int own, int first, int second) {
    return coalesced(
        {all_reduce({1}), call_of(OpType::kAllGather, {f32(0, {own})}, {f32(8, {first}), f32(16, {second})})});
  };
  EXPECT_THAT(faults({call(2, 2, 3), call(3, 2, 3)}), IsEmpty());
  EXPECT_THAT(faults({call(2, 2, 1), call(3, 2, 3)}), ElementsAre("1>0 3/1"));
}

TEST(OpTableTest, RunsTheCollectivesOfCoalescedCallsInOrder) {
  std::array<std::vector<float>, 2> x = {{{1, 2}, {10, 20}}};
  std::array<std::vector<float>, 2> y = {{{5}, {6}}};
  std::vector<CollectiveCall> calls;
  for (size_t r = 0; r < 2; ++r) {
    CollectiveCall broadcast = call_of(OpType::kBroadcast, {}, {TensorView(y[r])});
    broadcast.root = 1;
    std::vector<CollectiveCall> parts = {call_of(OpType::kAllReduce, {TensorView(x[r])}, {TensorView(x[r])}),
                                         broadcast};
    if (r == 0) parts.insert(parts.begin(), call_of(OpType::kSend, {TensorView(y[r])}, {}));  // matched elsewhere
    calls.push_back(coalesced(std::move(parts)));
  }
  const std::array<const CollectiveCall*, 2> by_rank = {&calls[0], &calls[1]};
  op_row(OpType::kCoalesced).run(by_rank, nullptr);
  EXPECT_THAT(x[0], ElementsAre(11, 22));
  EXPECT_THAT(x[1], ElementsAre(11, 22));
  EXPECT_THAT(y[0], ElementsAre(6));
}

TEST(OpTableTest, SaysWhoseOutputsAreWritten) {
  CollectiveCall call = all_reduce({2});
  EXPECT_TRUE(writes_outputs(call, 0));
  call.root = 1;
  call.op = OpType::kBroadcast;
  EXPECT_TRUE(writes_outputs(call, 0));
  EXPECT_FALSE(writes_outputs(call, 1));
  call.op = OpType::kReduce;
  EXPECT_FALSE(writes_outputs(call, 0));
  EXPECT_TRUE(writes_outputs(call, 1));
  call.op = OpType::kSend;
  EXPECT_FALSE(writes_outputs(call, 0));
}

}  // namespace
}  // namespace rankloom

// The formulas of the cost model, against numbers worked out by hand.

#include "collectives/records/cost_model.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/records.h"

namespace rankloom {

using namespace internal;

// For GoogleTest, which looks for it beside the type.
void PrintTo(const CostModel::WireCost& cost, std::ostream* out) {
  *out << cost.steps << " steps, " << cost.bytes << " bytes";
}

namespace {

using internal::wire_cost;
using internal::wire_payload;
using internal::WireAlgorithm;

constexpr auto kRing = WireAlgorithm::kRing;
constexpr auto kTree = WireAlgorithm::kTree;

TEST(WireCostTest, CountsTheStepsAndBytesOfARing) {
  // 8 members, 800 bytes in all.
  EXPECT_EQ(wire_cost(kRing, OpType::kAllReduce, 8, 800), (CostModel::WireCost{14, 1400}));
  EXPECT_EQ(wire_cost(kRing, OpType::kAllGatherIntoTensor, 8, 800), (CostModel::WireCost{7, 700}));
  EXPECT_EQ(wire_cost(kRing, OpType::kReduceScatterTensor, 8, 800), (CostModel::WireCost{7, 700}));
  EXPECT_EQ(wire_cost(kRing, OpType::kBroadcast, 8, 800), (CostModel::WireCost{7, 800}));
  EXPECT_EQ(wire_cost(kRing, OpType::kReduce, 8, 800), (CostModel::WireCost{7, 800}));
  EXPECT_EQ(wire_cost(kRing, OpType::kGather, 8, 800), (CostModel::WireCost{7, 700}));
  EXPECT_EQ(wire_cost(kRing, OpType::kAllToAllSingle, 8, 800), (CostModel::WireCost{7, 700}));
  EXPECT_EQ(wire_cost(kRing, OpType::kSend, 8, 800), (CostModel::WireCost{1, 800}));
  EXPECT_EQ(wire_cost(kRing, OpType::kBarrier, 8, 0), (CostModel::WireCost{14, 0}));
}

TEST(WireCostTest, CountsTheStepsAndBytesOfATree) {
  EXPECT_EQ(wire_cost(kTree, OpType::kAllReduce, 8, 800), (CostModel::WireCost{6, 1600}));
  EXPECT_EQ(wire_cost(kTree, OpType::kAllGather, 8, 800), (CostModel::WireCost{3, 700}));
  EXPECT_EQ(wire_cost(kTree, OpType::kReduceScatter, 8, 800), (CostModel::WireCost{3, 700}));
  EXPECT_EQ(wire_cost(kTree, OpType::kBroadcast, 8, 800), (CostModel::WireCost{3, 800}));
  EXPECT_EQ(wire_cost(kTree, OpType::kScatter, 8, 800), (CostModel::WireCost{3, 700}));
  EXPECT_EQ(wire_cost(kTree, OpType::kAllToAll, 8, 800), (CostModel::WireCost{3, 1200}));
  EXPECT_EQ(wire_cost(kTree, OpType::kBarrier, 8, 0), (CostModel::WireCost{3, 0}));
  // The logarithm is rounded up.
  EXPECT_EQ(wire_cost(kTree, OpType::kBroadcast, 9, 800).steps, 4);
  EXPECT_EQ(wire_cost(kTree, OpType::kBroadcast, 5, 800).steps, 3);
  EXPECT_EQ(wire_cost(kTree, OpType::kBroadcast, 2, 800).steps, 1);
}

TEST(WireCostTest, RoundsUpAndKnowsLargeNumbers) {
  EXPECT_EQ(wire_cost(kRing, OpType::kAllReduce, 3, 10), (CostModel::WireCost{4, 14}));  // 2 * 2 / 3 * 10 = 13.3
  EXPECT_EQ(wire_cost(kRing, OpType::kAllReduce, 1, 10), CostModel::WireCost{});
  EXPECT_EQ(wire_cost(kTree, OpType::kAllReduce, 1, 10), CostModel::WireCost{});
  const int64_t huge = int64_t{1} << 60;
  EXPECT_EQ(wire_cost(kRing, OpType::kAllReduce, 1 << 20, huge),
            (CostModel::WireCost{2 * ((1 << 20) - 1), 2 * (huge - (huge >> 20))}));
}

TEST(WirePayloadTest, IsWhatTheTableSays) {
  std::vector<float> x(6), y(24);
  CollectiveCall call;
  call.inputs = TensorList(TensorView(x));
  call.outputs = TensorList(TensorView(y));
  const auto payload = [&](OpType op) {
    call.op = op;
    return wire_payload(call, 4);
  };
  EXPECT_EQ(payload(OpType::kAllGatherIntoTensor), 96);
  EXPECT_EQ(payload(OpType::kReduceScatterTensor), 24);
  EXPECT_EQ(payload(OpType::kGather), 96);
  EXPECT_EQ(payload(OpType::kScatter), 384);
  EXPECT_EQ(payload(OpType::kSend), 24);
  EXPECT_EQ(payload(OpType::kRecv), 96);
  EXPECT_EQ(payload(OpType::kBarrier), 0);
  CollectiveCall both;
  both.op = OpType::kCoalesced;
  call.op = OpType::kSend;
  both.parts = {call, call};
  EXPECT_EQ(wire_payload(both, 4), 48);
}

TEST(CostModelTest, AddsLatencyAndBandwidth) {
  const links::Link link = {.latency = absl::Microseconds(2), .bytes_per_second = 1e9};
  CostModel model{.link = link};
  // 14 steps of 2 us, 1.4 MB at 1 GB/s.
  EXPECT_EQ(model.time(link, OpType::kAllReduce, 8, 800'000), absl::Microseconds(28 + 1400));
  model.algorithm = CostModel::Choice::kTree;
  EXPECT_EQ(model.time(link, OpType::kAllReduce, 8, 800'000), absl::Microseconds(12 + 1600));
  model.algorithm = CostModel::Choice::kFaster;
  EXPECT_EQ(model.time(link, OpType::kAllReduce, 8, 800'000), absl::Microseconds(28 + 1400));
  EXPECT_EQ(model.time(link, OpType::kAllReduce, 8, 8), absl::Microseconds(12) + absl::Nanoseconds(16));
}

TEST(CostModelTest, WhatMovesNothingTakesItsLatency) {
  const links::Link link = {.latency = absl::Microseconds(5)};  // of a bandwidth that nobody gave
  EXPECT_EQ(CostModel{.link = link}.time(link, OpType::kAllReduce, 4, 0), absl::Microseconds(30));  // 6 steps
  EXPECT_EQ(CostModel{.link = link}.time(link, OpType::kAllReduce, 4, 1), absl::InfiniteDuration());
}

TEST(CostModelTest, FindsTheLinkOfADimension) {
  const CostModel model{.link = links::kEthernet100, .dims = {{"tp", links::kNvlink4}, {"dp", links::kInfinibandNdr}}};
  EXPECT_EQ(model.link_of("tp")->name, "nvlink4");
  EXPECT_EQ(model.link_of("dp")->name, "infiniband_ndr");
  EXPECT_EQ(model.link_of("pp")->name, "ethernet_100g");
  EXPECT_EQ(model.link_of("")->name, "ethernet_100g");
  EXPECT_EQ(CostModel{}.link_of("tp"), nullptr);
  for (const links::Link& link : {links::kNvlink3, links::kNvlink4, links::kNvlink5, links::kPcie4, links::kPcie5,
                                  links::kInfinibandHdr, links::kInfinibandNdr, links::kEthernet100}) {
    EXPECT_FALSE(link.source.empty()) << link.name;
    EXPECT_GT(link.bytes_per_second, 1e9) << link.name;
  }
}

TEST(CostModelTest, LinksByDimAreAsAMapOfThem) {
  CostModel::LinksByDim dims = {{"tp", links::kNvlink4}, {"dp", links::kInfinibandNdr}, {"tp", links::kPcie4}};
  std::string names;
  for (const auto& [dim, link] : dims) names += dim + "=" + std::string(link.name) + " ";
  EXPECT_EQ(names, "dp=infiniband_ndr tp=nvlink4 ");
  dims["pp"] = links::kEthernet100;
  dims["tp"] = links::kNvlink5;
  EXPECT_EQ(dims.size(), 3u);
  ASSERT_NE(dims.find("pp"), dims.end());
  EXPECT_EQ(dims.find("pp")->second.name, "ethernet_100g");
  EXPECT_EQ(dims.find("tp")->second.name, "nvlink5");
  EXPECT_EQ(dims.find("ep"), dims.end());
  const CostModel::LinksByDim copy = dims;
  dims = {};
  EXPECT_TRUE(dims.empty());
  EXPECT_EQ(dims.find("tp"), dims.end());
  EXPECT_EQ(copy.find("dp")->second.name, "infiniband_ndr");
}

}  // namespace
}  // namespace rankloom

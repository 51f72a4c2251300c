// The transformer example against numbers worked out by hand.
//
// Llama 3 70B: hidden 8192, MLP 28672, 64 heads, of which 8 for keys and values (so these are 1024 wide), 80 layers,
// 128256 tokens. A layer's matrices: 2 * 8192^2 + 2 * 8192 * 1024 + 3 * 8192 * 28672 = 134,217,728 + 16,777,216 +
// 704,643,072 = 855,638,016 parameters; an eighth is 106,954,752, and 106,971,136 with two norms of 8192. A stage of
// four has 20 layers. Activations of a sequence: 8192 * 8192 in bfloat16 = 134,217,728 bytes; an eighth is 16,777,216.

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "collectives/ops/op_table.h"
#include "examples/transformer/step.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/matchers.h"

namespace rankloom::example {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr auto kGather = OpType::kAllGatherIntoTensor;
constexpr auto kScatter = OpType::kReduceScatterTensor;
constexpr int kStage = 512 * 8;  // ranks

CallRecord::Totals totals(const CallRecord& record, OpType op, const std::string& group) {
  for (const CallRecord::Totals& sum : record.totals()) {
    if (sum.op == op && record.groups()[static_cast<size_t>(sum.group)].label() == group) return sum;
  }
  ADD_FAILURE() << "no " << internal::op_row(op).name << " on " << group;
  return {};
}

std::shared_ptr<CallRecord> stage(int index, int within = 0) {
  return trace_step(TransformerSizes{}, Layout{}, index * kStage + within, links_of_a_cluster());
}

TEST(TransformerTest, CountsTheParametersOfALayer) {
  EXPECT_EQ(TransformerSizes{}.layer_parameters(), 855'638'016);
  EXPECT_EQ(Layout{}.world_size(), 16'384);
}

TEST(TransformerTest, IssuesTheCallsOfAMiddleStage) {
  // A layer and micro-batch: 4 gathers and 4 scatters of the sequence; 20 * 16 of them. FSDP: once a layer. 16
  // micro-batches come and go, forward and backward.
  EXPECT_THAT(*stage(1), CallsExactly({{1280, kGather, "tp"},
                                       {1280, kScatter, "tp"},
                                       {20, kGather, "dp"},
                                       {20, kScatter, "dp"},
                                       {32, OpType::kSend, "pp"},
                                       {32, OpType::kRecv, "pp"},
                                       {1, OpType::kAllReduce, "0"}}));
}

TEST(TransformerTest, IssuesTheCallsOfTheEnds) {
  // Beside the layers, the embedding: a scatter forward and a gather backward for each micro-batch.
  EXPECT_THAT(*stage(0), CallsExactly({{1280 + 16, kGather, "tp"},
                                       {1280 + 16, kScatter, "tp"},
                                       {21, kGather, "dp"},
                                       {21, kScatter, "dp"},
                                       {16, OpType::kSend, "pp"},
                                       {16, OpType::kRecv, "pp"},
                                       {1, OpType::kAllReduce, "0"}}));
  // The head: the same the other way round, three reductions of the loss over the vocabulary, and one over the data.
  EXPECT_THAT(*stage(3), CallsExactly({{1280 + 16, kGather, "tp"},
                                       {1280 + 16, kScatter, "tp"},
                                       {48, OpType::kAllReduce, "tp"},
                                       {21, kGather, "dp"},
                                       {21, kScatter, "dp"},
                                       {1, OpType::kAllReduce, "dp"},
                                       {16, OpType::kSend, "pp"},
                                       {16, OpType::kRecv, "pp"},
                                       {1, OpType::kAllReduce, "0"}}));
}

TEST(TransformerTest, MovesTheBytesOfAMiddleStage) {
  const std::shared_ptr<CallRecord> record = stage(2);
  // 1280 * 134,217,728 bytes; 7/8 of it over a ring, in 7 steps.
  const CallRecord::Totals tp = totals(*record, kGather, "tp");
  EXPECT_EQ(tp.payload, 171'798'691'840);
  EXPECT_EQ(tp.ring, (CostModel::WireCost{8'960, 150'323'855'360}));
  EXPECT_EQ(tp.tree, (CostModel::WireCost{3'840, 150'323'855'360}));
  EXPECT_EQ(totals(*record, kScatter, "tp").payload, tp.payload);
  // 20 * 106,971,136 parameters of 2 bytes; each of 512 ranks holds 208,928 of a layer, and 511/512 travel.
  const CallRecord::Totals gather = totals(*record, kGather, "dp");
  EXPECT_EQ(gather.payload, 4'278'845'440);
  EXPECT_EQ(gather.ring, (CostModel::WireCost{20 * 511, 4'270'488'320}));
  // Gradients have 4 bytes.
  EXPECT_EQ(totals(*record, kScatter, "dp").payload, 8'557'690'880);
  EXPECT_EQ(totals(*record, OpType::kSend, "pp").payload, 32 * 16'777'216);
  EXPECT_EQ(totals(*record, OpType::kRecv, "pp").ring, (CostModel::WireCost{32, 536'870'912}));
  EXPECT_EQ(totals(*record, OpType::kAllReduce, "0").tree, (CostModel::WireCost{28, 8}));
}

TEST(TransformerTest, MovesTheBytesOfTheEnds) {
  // An eighth of the embedding: 128256 * 8192 / 8 = 131,334,144 parameters. The head has a norm of 8192 beside it.
  EXPECT_EQ(totals(*stage(0), kGather, "dp").payload, 4'278'845'440 + 2 * 131'334'144);
  EXPECT_EQ(totals(*stage(3), kGather, "dp").payload, 4'278'845'440 + 2 * 131'342'336);
  EXPECT_EQ(totals(*stage(3), kScatter, "dp").payload, 8'557'690'880 + 4 * 131'342'336);
  EXPECT_EQ(totals(*stage(0), kScatter, "tp").payload, 171'798'691'840 + 16 * int64_t{134'217'728});
  EXPECT_EQ(totals(*stage(3), OpType::kAllReduce, "tp").payload, 48 * 8192 * 4);
}

TEST(TransformerTest, TakesTheTimeOfItsLinks) {
  // A gather of a sequence over NVLink 4, the shorter of ring and tree: 3 steps of 3.4 us and 117,440,512 bytes at 450
  // GB/s, 271.179 us; 1280 of them.
  const std::shared_ptr<CallRecord> record = stage(1);
  EXPECT_NEAR(absl::ToDoubleMicroseconds(totals(*record, kGather, "tp").time), 1280 * 271.179, 1);
  // Computation: 6 * 106,971,136 * 20 floating-point operations a token, 16 * 8192 tokens, 400 TFLOPS: 4.2062 s.
  double compute = 0;
  for (size_t i = 0; i < record->size(); ++i) {
    if (const CallRecord::Call one = (*record)[i]; one.is_compute) compute += absl::ToDoubleSeconds(one.duration);
  }
  EXPECT_NEAR(compute, 6.0 * 106'971'136 * 20 * 16 * 8192 / 400e12, 1e-3);
  EXPECT_GT(absl::ToDoubleSeconds(record->end()), compute);
  // Two layers of float32 gradients with their parts, and a sequence with its part.
  EXPECT_EQ(record->peak_buffer_bytes(), 2 * 4 * (106'971'136 + 208'928) + 134'217'728 + 16'777'216);
}

TEST(TransformerTest, IsTheSameForAllRanksOfAStage) {
  const std::shared_ptr<CallRecord> one = stage(1);
  const std::shared_ptr<CallRecord> other = stage(1, 4095);
  EXPECT_EQ(other->global_rank(), 2 * kStage - 1);
  EXPECT_EQ(other->text(), one->text());
  EXPECT_EQ(other->table(), one->table());
  ASSERT_EQ(other->size(), one->size());
  EXPECT_EQ(other->end(), one->end());
}

TEST(TransformerTest, RefusesWhatDoesNotDivide) {
  const auto wrong = [](const Layout& layout, const std::string& text) {
    EXPECT_THAT([&] { (void)trace_step(TransformerSizes{}, layout, 0, {}); },
                ThrowsMessage<std::invalid_argument>(text));
  };
  wrong({.pp = 3}, "layers over pipeline stages: 80 is no multiple of 3");
  wrong({.tp = 16}, "key and value heads over tensor-parallel ranks: 8 is no multiple of 16");
  wrong({.micro_batches = 0}, "there must be at least one micro-batch");
}

}  // namespace
}  // namespace rankloom::example

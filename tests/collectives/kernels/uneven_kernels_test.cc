// Rule, comparison and kernel of the operations whose parts may differ in size from rank to rank.
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "collectives/ops/op_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/collectives/ops/members_agree.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

using Buffers = std::vector<std::vector<float>>;

std::vector<TensorView> views(Buffers& buffers) {
  std::vector<TensorView> list;
  for (std::vector<float>& buffer : buffers) list.emplace_back(buffer);
  return list;
}

CollectiveCall call_of(OpType op, std::vector<TensorView> inputs, std::vector<TensorView> outputs) {
  CollectiveCall call;
  call.op = op;
  call.inputs = TensorList(std::move(inputs));
  call.outputs = TensorList(std::move(outputs));
  return call;
}

// Checks, compares and runs the calls as a group does.
void run(const std::vector<CollectiveCall>& calls) {
  const OpRow& row = op_row(calls[0].op);
  std::vector<const CollectiveCall*> by_rank;
  for (size_t r = 0; r < calls.size(); ++r) {
    const absl::Status checked = row.check(calls[r], static_cast<int>(r), static_cast<int>(calls.size()));
    ASSERT_TRUE(checked.ok()) << "rank " << r << ": " << std::string(checked.message());
    by_rank.push_back(&calls[r]);
  }
  ASSERT_TRUE(members_agree(by_rank));
  row.run(by_rank, nullptr);
}

TEST(UnevenTest, AllGather) {
  Buffers inputs = {{1}, {}, {2, 3, 4}};
  std::array<Buffers, 3> outputs;
  std::vector<CollectiveCall> calls;
  for (size_t r = 0; r < 3; ++r) {
    outputs[r] = {std::vector<float>(1), {}, std::vector<float>(3)};
    calls.push_back(call_of(OpType::kAllGather, {inputs[r]}, views(outputs[r])));
  }
  run(calls);
  for (const Buffers& got : outputs) EXPECT_THAT(got, ElementsAre(ElementsAre(1), IsEmpty(), ElementsAre(2, 3, 4)));
}

TEST(UnevenTest, AllGatherOfManyBytes) {  // beyond the size from which kernels use several cores
  constexpr size_t kLarge = 300'000;
  Buffers inputs = {std::vector<float>(kLarge, 1), {2}};
  std::array<Buffers, 2> outputs;
  std::vector<CollectiveCall> calls;
  for (size_t r = 0; r < 2; ++r) {
    outputs[r] = {std::vector<float>(kLarge), std::vector<float>(1)};
    calls.push_back(call_of(OpType::kAllGather, {inputs[r]}, views(outputs[r])));
  }
  run(calls);
  for (const Buffers& got : outputs) EXPECT_THAT(got, ElementsAre(Each(1), ElementsAre(2)));
}

TEST(UnevenTest, ReduceScatter) {
  for (const ReduceOp::Order::Kind order :
       {ReduceOp::Order::Kind::kRank, ReduceOp::Order::Kind::kRing, ReduceOp::Order::Kind::kTree}) {
    std::array<Buffers, 3> inputs = {{{{1}, {}, {2, 3}}, {{10}, {}, {20, 30}}, {{100}, {}, {200, 300}}}};
    Buffers outputs = {{0}, {}, {0, 0}};
    std::vector<CollectiveCall> calls;
    for (size_t r = 0; r < 3; ++r) {
      calls.push_back(call_of(OpType::kReduceScatter, views(inputs[r]), {outputs[r]}));
      calls.back().order.kind = order;
    }
    run(calls);
    EXPECT_THAT(outputs, ElementsAre(ElementsAre(111), IsEmpty(), ElementsAre(222, 333)));
  }
}

TEST(UnevenTest, ReduceScatterOfManyBytes) {
  constexpr size_t kLarge = 300'000;
  std::array<Buffers, 3> inputs;
  Buffers outputs = {std::vector<float>(5), std::vector<float>(kLarge), {}};
  std::vector<CollectiveCall> calls;
  for (size_t r = 0; r < 3; ++r) {
    const auto value = static_cast<float>(r + 1);
    inputs[r] = {std::vector<float>(5, value), std::vector<float>(kLarge, 10 * value), {}};
    calls.push_back(call_of(OpType::kReduceScatter, views(inputs[r]), {outputs[r]}));
  }
  run(calls);
  EXPECT_THAT(outputs, ElementsAre(Each(6), Each(60), IsEmpty()));
}

TEST(UnevenTest, ReduceScatterInPlace) {
  std::array<Buffers, 2> buffers = {{{{1}, {2, 3}}, {{10}, {20, 30}}}};
  std::vector<CollectiveCall> calls;
  for (size_t r = 0; r < 2; ++r) {
    calls.push_back(call_of(OpType::kReduceScatter, views(buffers[r]), {buffers[r][r]}));
  }
  run(calls);
  EXPECT_THAT(buffers[0][0], ElementsAre(11));
  EXPECT_THAT(buffers[1][1], ElementsAre(22, 33));
}

TEST(UnevenTest, AllToAll) {
  std::array<Buffers, 2> inputs = {{{{1}, {2, 3}}, {{}, {4}}}};
  std::array<Buffers, 2> outputs = {{{{0}, {}}, {{0, 0}, {0}}}};
  std::vector<CollectiveCall> calls;
  for (size_t r = 0; r < 2; ++r) calls.push_back(call_of(OpType::kAllToAll, views(inputs[r]), views(outputs[r])));
  run(calls);
  EXPECT_THAT(outputs[0], ElementsAre(ElementsAre(1), IsEmpty()));
  EXPECT_THAT(outputs[1], ElementsAre(ElementsAre(2, 3), ElementsAre(4)));
}

TEST(UnevenTest, AllToAllSingleWhereOneRankReceivesNothing) {
  // Rank 0 sends rows of two elements and gives an output of shape [0], which has no rows to measure.
  std::array<std::vector<float>, 2> inputs = {{{1, 2, 3, 4}, {5, 6}}};
  std::vector<float> output(6);
  std::vector<CollectiveCall> calls = {
      call_of(OpType::kAllToAllSingle, {TensorView(inputs[0].data(), {2, 2})}, {TensorView(output.data(), {0})}),
      call_of(OpType::kAllToAllSingle, {TensorView(inputs[1].data(), {1, 2})}, {TensorView(output.data(), {3, 2})})};
  calls[0].in_splits = {0, 2};
  calls[0].out_splits = {0, 0};
  calls[1].in_splits = {0, 1};
  calls[1].out_splits = {2, 1};
  run(calls);
  EXPECT_THAT(output, ElementsAre(1, 2, 3, 4, 5, 6));
}

}  // namespace
}  // namespace rankloom

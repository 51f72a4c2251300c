// In which order a reduction adds up, and in which type, as a program asks for it.

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/matchers.h"
#include "rankloom/process_group.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::Ge;
using testing::HasSubstr;

using Kind = ReduceOp::Order::Kind;

class ReduceOrderTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, ReduceOrderTest, every_world(), world_name);

// In float32 1e8 + 1 is 1e8 again, so the order decides what is left.
float value_of(int rank) { return std::vector<float>{1e8F, 1, -1e8F, 1}[static_cast<size_t>(rank)]; }

std::vector<float> sum_in(ProcessGroup& pg, const CallOptions& options = {}) {
  std::vector<float> x(4, value_of(pg.rank()));
  pg.all_reduce(x, ReduceOp::kSum, options).wait();
  return x;
}

TEST_P(ReduceOrderTest, AddsUpAsAsked) {
  run(4, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    EXPECT_THAT(sum_in(*pg), Each(1));  // ((1e8 + 1) - 1e8) + 1
    EXPECT_THAT(sum_in(*pg, {.order = ReduceOp::Order{.kind = Kind::kReversed}}), Each(0));
    EXPECT_THAT(sum_in(*pg, {.order = ReduceOp::Order{.kind = Kind::kTree}}), Each(0));
    // Part c of four begins with rank c + 1.
    EXPECT_THAT(sum_in(*pg, {.order = ReduceOp::Order{.kind = Kind::kRing}}), ElementsAre(0, 1, 0, 1));
  });
}

TEST_P(ReduceOrderTest, IsTheCallsOrTheGroupsOrItsParents) {
  run(4, [](RankContext& rank) {
    auto pg = init_process_group(rank, {.order = ReduceOp::Order{.kind = Kind::kTree}});
    EXPECT_THAT(sum_in(*pg), Each(0));
    EXPECT_THAT(sum_in(*pg, {.order = ReduceOp::Order{}}), Each(1));
    auto child = pg->new_group();
    EXPECT_THAT(sum_in(*child), Each(0));
    auto other = pg->new_group({.order = ReduceOp::Order{}});
    EXPECT_THAT(sum_in(*other), Each(1));
    pg->set_reduce_order({.kind = Kind::kRing});
    EXPECT_THAT(sum_in(*pg), ElementsAre(0, 1, 0, 1));
  });
}

TEST_P(ReduceOrderTest, HoldsForAllReductions) {
  run(4, [](RankContext& rank) {
    auto pg = init_process_group(rank, {.order = ReduceOp::Order{.kind = Kind::kReversed}});
    const float mine = value_of(rank.rank());
    std::vector<float> one = {mine};
    std::vector<float> four(4, mine);
    std::vector<float> out(1, 5);
    pg->reduce(one, 2).wait();
    EXPECT_EQ(one[0], rank.rank() == 2 ? 0 : mine);
    pg->reduce_scatter_tensor(out, four).wait();
    EXPECT_THAT(out, ElementsAre(0));
    std::vector<std::vector<float>> parts(4, std::vector<float>{mine});
    out[0] = 5;
    pg->reduce_scatter(out, {parts.begin(), parts.end()}).wait();
    EXPECT_THAT(out, ElementsAre(0));
    pg->all_reduce_coalesced({parts[0], parts[1]}).wait();
    EXPECT_THAT(parts[1], ElementsAre(0));
    out[0] = 5;
    pg->reduce_scatter_tensor_coalesced({out}, {four}).wait();
    EXPECT_THAT(out, ElementsAre(0));
  });
}

TEST_P(ReduceOrderTest, AddsHalvesUpInFloatUnlessAskedNotTo) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const CallOptions own_type = {.order = ReduceOp::Order{.accumulate_in_float = false}};
    // From 2048 on float16 has even numbers only, bfloat16 from 256 on.
    std::vector<Half> half = {Half(rank.rank() == 0 ? 2048.0F : 1.0F)};
    std::vector<Half> rounded = half;
    pg->all_reduce(half).wait();
    pg->all_reduce(rounded, ReduceOp::kSum, own_type).wait();
    EXPECT_EQ(static_cast<float>(half[0]), 2050);
    EXPECT_EQ(static_cast<float>(rounded[0]), 2048);
    std::vector<BFloat16> bfloat = {BFloat16(rank.rank() == 0 ? 256.0F : 1.0F)};
    std::vector<BFloat16> rounded_bfloat = bfloat;
    pg->all_reduce(bfloat).wait();
    pg->all_reduce(rounded_bfloat, ReduceOp::kSum, own_type).wait();
    EXPECT_EQ(static_cast<float>(bfloat[0]), 258);
    EXPECT_EQ(static_cast<float>(rounded_bfloat[0]), 256);
  });
}

TEST_P(ReduceOrderTest, TellsOfMembersThatDiffer) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(1);
    pg->all_reduce(x, ReduceOp::kSum,
                   {.order = ReduceOp::Order{.kind = Kind::kSeeded, .seed = static_cast<uint64_t>(rank.rank())}})
        .wait();
  });
  EXPECT_THAT(report.text(), AllOf(HasSubstr("order of reduction | seeded(0) | 0"), HasSubstr("| seeded(1) | 1")));
}

// A program that is right only if its ranks' values are added up in one certain order: it compares with a sum that it
// computes by itself.
void depends_on_order(ProcessGroup& pg) {
  float want = 0;
  for (int rank = 0; rank < pg.size(); ++rank) want += 0.1F * static_cast<float>(rank + 1);
  std::vector<float> x = {0.1F * static_cast<float>(pg.rank() + 1)};
  pg.all_reduce(x).wait();
  if (x[0] != want) throw std::runtime_error(absl::StrCat("the sum differs by ", x[0] - want));
}
// The same with a tolerance.
void does_not_depend_on_order(ProcessGroup& pg) {
  float want = 0;
  for (int rank = 0; rank < pg.size(); ++rank) want += 0.1F * static_cast<float>(rank + 1);
  std::vector<float> x = {0.1F * static_cast<float>(pg.rank() + 1)};
  pg.all_reduce(x).wait();
  if (std::abs(x[0] - want) > 1e-5F * want) throw std::runtime_error("the sum differs");
}

TEST_P(ReduceOrderTest, FindsAProgramThatDependsOnTheOrder) {
  constexpr int kSeeds = 20;
  const auto failures = [this](void (*program)(ProcessGroup&)) {
    int failed = 0;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      const RunReport report = run_world(options(8), [program, seed](RankContext& rank) {
        program(*init_process_group(rank, {.order = ReduceOp::Order{.kind = Kind::kSeeded, .seed = seed}}));
      });
      if (!report.ok()) {
        ++failed;
        EXPECT_THAT(report.text(), HasSubstr("the sum differs by "));
      }
    }
    return failed;
  };
  // Nobody notices in rank order, under no schedule.
  run(8, [](RankContext& rank) { depends_on_order(*init_process_group(rank)); });
  EXPECT_THAT(failures(&depends_on_order), Ge(5));
  EXPECT_EQ(failures(&does_not_depend_on_order), 0);
}

TEST_P(ReduceOrderTest, IsTheSameForOneSeed) {
  run(8, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> first(5), second(5);
    for (size_t i = 0; i < 5; ++i)
      first[i] = second[i] = 0.1F * static_cast<float>(rank.rank()) + static_cast<float>(i);
    const CallOptions seeded = {.order = ReduceOp::Order{.kind = Kind::kSeeded, .seed = 3}};
    pg->all_reduce(first, ReduceOp::kSum, seeded).wait();
    pg->all_reduce(second, ReduceOp::kSum, seeded).wait();
    EXPECT_EQ(first, second);
  });
}

}  // namespace
}  // namespace rankloom

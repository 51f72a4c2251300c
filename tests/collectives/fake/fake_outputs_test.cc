// The outputs that fake groups write.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/fake.h"
#include "rankloom/matchers.h"
#include "rankloom/world.h"
#include "tests/collectives/fake/random_calls.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

using Floats = std::vector<float>;

std::shared_ptr<FakeProcessGroup> group_of(FakeOptions::Outputs outputs, int rank, int size) {
  return make_fake_process_group({.rank = rank, .world_size = size, .options = {.outputs = outputs}});
}

class UniformRanksTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, UniformRanksTest, every_world(), world_name);

// Ranks that all hold the same data, and one fake rank alone: the same bytes, for all operations, dtypes and
// reductions.
TEST_P(UniformRanksTest, EqualsARealWorldOfEqualRanks) {
  static constexpr int kPlans = 600;
  std::set<OpType> seen;
  for (const int size : {1, 2, 3, 5}) {
    run(size, [&](RankContext& rank) {
      auto real = init_process_group(rank);
      auto fake = group_of(FakeOptions::Outputs::kUniformRanks, rank.rank(), size);
      for (int i = 0; i < kPlans / 4; ++i) {
        const CallPlan plan = random_plan(static_cast<uint64_t>(1000 + i * 8 + size), size, /*faulty=*/false);
        PlannedCall theirs(plan, rank.rank(), size);
        PlannedCall mine(plan, rank.rank(), size);
        theirs.issue(*real).wait();
        mine.issue(*fake).wait();
        // The root's input is not known to other ranks, which get zeros instead.
        if (plan.op == OpType::kScatter && rank.rank() != plan.root) {
          EXPECT_THAT(mine.result(), Each(std::byte{0}));
        } else {
          EXPECT_EQ(mine.result(), theirs.result()) << plan.text() << ", " << size << " ranks";
        }
        if (rank.rank() == 0) seen.insert(plan.op);
      }
    });
  }
  EXPECT_EQ(seen.size(), 15);
}

TEST(UniformRanksAloneTest, ScalesSumsByTheSizeOfTheWorld) {
  auto pg = group_of(FakeOptions::Outputs::kUniformRanks, 5, 1000000);
  Floats x = {1, -2, 0.5F};
  pg->all_reduce(x).wait();
  EXPECT_THAT(x, ElementsAre(1e6F, -2e6F, 5e5F));
  pg->all_reduce(x, ReduceOp::kAvg).wait();
  EXPECT_THAT(x, ElementsAre(1e6F, -2e6F, 5e5F));
  std::vector<double> y = {1.000001};
  pg->all_reduce(y, ReduceOp::kProduct).wait();
  EXPECT_NEAR(y[0], 2.71828, 1e-4);
  std::vector<int64_t> z = {3};
  pg->all_reduce(z, ReduceOp::kProduct).wait();
  EXPECT_EQ(z[0], 7682401271709541633);  // 3^1000000 mod 2^64
  std::vector<uint8_t> odd = {7};
  group_of(FakeOptions::Outputs::kUniformRanks, 0, 3)->all_reduce(odd, ReduceOp::kBxor).wait();
  EXPECT_THAT(odd, ElementsAre(7));
  pg->all_reduce(odd, ReduceOp::kBxor).wait();
  EXPECT_THAT(odd, ElementsAre(0));
}

TEST(UniformRanksAloneTest, RoundsHalvesOnce) {
  auto pg = group_of(FakeOptions::Outputs::kUniformRanks, 0, 3);
  std::vector<Half> x = {Half(2049.0F / 2048)};  // 1 + 2^-11 is no half: 1
  std::vector<Half> y = {Half::from_bits(0x3c01)};
  pg->all_reduce(x).wait();
  pg->all_reduce(y).wait();
  EXPECT_EQ(static_cast<float>(x[0]), 3);
  EXPECT_EQ(static_cast<float>(y[0]), static_cast<float>(Half(3 * (1 + 1.0F / 1024))));
}

TEST(UniformRanksAloneTest, WritesOnlyTheRootsReduction) {
  Floats x = {2};
  group_of(FakeOptions::Outputs::kUniformRanks, 1, 4)->reduce(x, 0).wait();
  EXPECT_THAT(x, ElementsAre(2));
  group_of(FakeOptions::Outputs::kUniformRanks, 1, 4)->reduce(x, 1).wait();
  EXPECT_THAT(x, ElementsAre(8));
}

TEST(UniformRanksAloneTest, DefinesWhatIsReceived) {
  auto pg = group_of(FakeOptions::Outputs::kUniformRanks, 1, 2);
  Floats x = {std::numeric_limits<float>::quiet_NaN(), 7};
  pg->recv(x, 0).wait();
  EXPECT_THAT(x, ElementsAre(0, 0));
  x = {1, 2};
  pg->recv_any(x).wait();
  EXPECT_THAT(x, ElementsAre(0, 0));
}

TEST(UniformRanksAloneTest, RespectsSplits) {
  auto pg = group_of(FakeOptions::Outputs::kUniformRanks, 1, 3);
  // This rank's rows for rank 1 are 2 and 3; each of three ranks sends them, as many as the output has room for.
  Floats in = {1, 2, 3, 4};
  Floats out(6, -1);
  pg->all_to_all_single(out, in, {1, 2, 3}, {1, 2, 1}).wait();
  EXPECT_THAT(out, ElementsAre(2, 2, 3, 2, 3, 2));
  // Nothing to send, and room for it.
  out.assign(3, -1);
  pg->all_to_all_single(out, in, {1, 1, 1}, {4, 0, 0}).wait();
  EXPECT_THAT(out, ElementsAre(0, 0, 0));
  // Gathers of parts that are larger than the input.
  Floats a(3, -1), b(2, -1), c;
  Floats two = {5, 6};
  pg->all_gather({a, b, c}, two).wait();
  EXPECT_THAT(a, ElementsAre(5, 6, 5));
  EXPECT_THAT(b, ElementsAre(5, 6));
}

TEST(UniformRanksAloneTest, ReducesInPlaceAndGathersInPlace) {
  auto pg = group_of(FakeOptions::Outputs::kUniformRanks, 1, 3);
  Floats x = {1, 2, 3};
  pg->all_gather_into_tensor(x, TensorView(x).slice(1, 1)).wait();
  EXPECT_THAT(x, ElementsAre(2, 2, 2));
  x = {1, 2, 3};
  pg->reduce_scatter_tensor(TensorView(x).slice(1, 1), x).wait();
  EXPECT_THAT(x, ElementsAre(1, 6, 3));
}

TEST(UniformRanksAloneTest, WritesCoalescedCalls) {
  auto pg = group_of(FakeOptions::Outputs::kUniformRanks, 1, 4);
  Floats x = {1}, y = {3}, z = {5};
  pg->start_coalescing();
  (void)pg->all_reduce(x);
  (void)pg->all_reduce(y, ReduceOp::kMax);
  (void)pg->recv(z, 2);
  EXPECT_THAT(x, ElementsAre(1));
  pg->end_coalescing().wait();
  EXPECT_THAT(x, ElementsAre(4));
  EXPECT_THAT(y, ElementsAre(3));
  EXPECT_THAT(z, ElementsAre(0));
}

TEST(UniformRanksAloneTest, RefusesDeviceMemory) {
  auto pg = group_of(FakeOptions::Outputs::kUniformRanks, 0, 2);
  Floats x(4);
  const TensorView on_gpu(x.data(), DType::kFloat32, {4}, Device{Device::Kind::kCuda, 1});
  EXPECT_THAT(
      [&] { (void)pg->all_reduce(on_gpu); },
      ThrowsDistError(ErrorKind::kCollectiveError,
                      HasSubstr("a fake group writes outputs in CPU memory only, have float32[4] on cuda:1, want "
                                "FakeOptions::Outputs::kShapesOnly")));
  group_of(FakeOptions::Outputs::kShapesOnly, 0, 2)->all_reduce(on_gpu).wait();
}

// The outputs that PyTorch 2.13's fake group was seen to write, rank 1 of 3.
TEST(PassThroughTest, WritesWhatPyTorchsFakeGroupDoes) {
  auto pg = group_of(FakeOptions::Outputs::kPassThrough, 1, 3);
  Floats t = {5, 5}, t2 = {10, 10}, t3 = {15, 15};
  Floats x = t;
  pg->all_reduce(x).wait();
  pg->broadcast(x, 0).wait();
  pg->reduce(x, 1).wait();
  EXPECT_EQ(x, t);
  const Floats blank(2, -1);
  Floats a = blank, b = blank, c = blank;
  const std::vector<TensorView> parts = {a, b, c};
  const auto reset = [&] { a = b = c = blank; };
  pg->all_gather(parts, t).wait();
  EXPECT_EQ(std::vector<Floats>({a, b, c}), std::vector<Floats>({t, t, t}));
  reset();
  pg->gather(parts, t, 1).wait();
  EXPECT_EQ(std::vector<Floats>({a, b, c}), std::vector<Floats>({t, t, t}));
  Floats six(6, -1);
  pg->all_gather_into_tensor(six, t).wait();
  EXPECT_THAT(six, Each(5));
  x = blank;
  pg->scatter(x, {t, t2, t3}, 1).wait();
  EXPECT_EQ(x, t2);
  x = blank;
  pg->scatter(x, {}, 0).wait();
  EXPECT_EQ(x, blank);
  pg->reduce_scatter(x, {t, t2, t3}).wait();
  EXPECT_EQ(x, t2);
  six = {0, 1, 2, 3, 4, 5};
  pg->reduce_scatter_tensor(x, six).wait();
  EXPECT_THAT(x, ElementsAre(2, 3));
  reset();
  pg->all_to_all(parts, {t, t2, t3}).wait();
  EXPECT_EQ(std::vector<Floats>({a, b, c}), std::vector<Floats>({t, t2, t3}));
  Floats in = {0, 1, 2};
  Floats out(3, -1);
  pg->all_to_all_single(out, in).wait();
  EXPECT_THAT(out, ElementsAre(0, 1, 2));
  Floats larger(7, -1);
  pg->all_to_all_single(larger, in, {1, 4, 2}, {1, 1, 1}).wait();
  EXPECT_THAT(larger, ElementsAre(0, 0, 1, 2, 0, 0, 1));
  x = blank;
  pg->recv(x, 0).wait();
  EXPECT_EQ(x, blank);
}

TEST(ShapesOnlyTest, TouchesNothing) {
  auto pg = make_fake_process_group({.rank = 1, .world_size = 3});
  const Floats blank(6, -1);
  Floats out = blank, in = {1, 2};
  pg->all_gather_into_tensor(out, in).wait();
  EXPECT_EQ(out, blank);
  pg->recv(out, 0).wait();
  EXPECT_EQ(out, blank);
}

}  // namespace
}  // namespace rankloom

// Calls that are built in a work which was another call before: nothing of that one is left, and nobody's work is taken.

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/collective_call.h"
#include "rankloom/process_group.h"
#include "rankloom/sync.h"
#include "rankloom/work.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::Each;
using testing::ElementsAre;

TEST(RenewTest, LeavesNothingOfTheCallBefore) {
  std::vector<float> a(2);
  std::vector<float> b(3);
  CollectiveCall call;
  call.reduce_op = ReduceOp::premul_sum(0.5);
  call.order = {.kind = ReduceOp::Order::Kind::kTree, .seed = 3, .accumulate_in_float = false};
  call.root = 1;
  call.peer = 2;
  call.tag = 3;
  call.inputs = TensorList(std::vector<TensorView>{a, b});
  call.outputs.set(TensorView(a));
  call.in_splits = {1, 2};
  call.out_splits = {3};
  call.label = std::string("epoch");
  const auto owner = std::make_shared<const int>(7);
  call.keep_alive = owner;
  call.stream = reinterpret_cast<Stream*>(&call);
  call.parts = std::vector<CollectiveCall>(2);
  call.way.record_id = 4;
  call.way.request = reinterpret_cast<GroupRequest*>(&call);
  call.way.wait_until_ns = 5;
  call.way.message_seq = 6;
  renew(&call);
  const CollectiveCall fresh;
  EXPECT_EQ(call.reduce_op, fresh.reduce_op);
  EXPECT_EQ(call.order, fresh.order);
  EXPECT_EQ(call.root, fresh.root);
  EXPECT_EQ(call.peer, fresh.peer);
  EXPECT_EQ(call.tag, fresh.tag);
  EXPECT_TRUE(call.inputs.empty());
  EXPECT_TRUE(call.outputs.empty());
  EXPECT_TRUE(call.in_splits.empty());
  EXPECT_TRUE(call.out_splits.empty());
  EXPECT_TRUE(call.label.empty());
  EXPECT_TRUE(call.parts.empty());
  EXPECT_EQ(call.keep_alive, nullptr);
  EXPECT_EQ(owner.use_count(), 1);
  EXPECT_EQ(call.stream, nullptr);
  EXPECT_EQ(call.way.record_id, fresh.way.record_id);
  EXPECT_EQ(call.way.request, nullptr);
  EXPECT_EQ(call.way.ready, nullptr);
  EXPECT_EQ(call.way.wait_until_ns, 0);
  EXPECT_EQ(call.way.message_seq, fresh.way.message_seq);
  call.inputs.set(TensorView(b));
  EXPECT_EQ(call.inputs.size(), 1);
  EXPECT_EQ(call.inputs[0].data(), b.data());
}

class PlacedCallsTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, PlacedCallsTest, every_world(), world_name);

TEST_P(PlacedCallsTest, EachCallOfALoopIsItsOwn) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const int me = rank.rank();
    for (int round = 0; round < 3; ++round) {
      // Splits, a label, a root, an op, an owner: what the next call has not.
      const std::vector<int64_t> splits = {1, 2, 3};
      std::vector<int64_t> mine(6);
      std::iota(mine.begin(), mine.end(), 10 * me);
      std::vector<int64_t> theirs(static_cast<size_t>(3 * (me + 1)));
      pg->all_to_all_single(theirs, mine, std::vector<int64_t>(3, me + 1), splits).wait();
      const int64_t first[] = {0, 1, 3};
      EXPECT_EQ(theirs[0], first[me]);
      EXPECT_EQ(theirs.back(), 20 + first[me] + me);
      pg->barrier({}, "round").wait();
      std::vector<double> x = {me + 1.0, me * 2.0};
      const auto owner = std::make_shared<int>(round);
      pg->reduce(x, 1, ReduceOp::kMax, {.keep_alive = owner}).wait();
      if (me == 1) {
        EXPECT_THAT(x, ElementsAre(3.0, 4.0));
      }
      EXPECT_EQ(owner.use_count(), 1);
      std::vector<int32_t> sum = {me, 1};
      pg->all_reduce(sum).wait();
      EXPECT_THAT(sum, ElementsAre(3, 3));
      EXPECT_THROW(pg->broadcast(sum, 3).wait(), DistError);
      // A refused call whose work goes before the front is through with it.
      Work open = pg->all_reduce(sum);
      EXPECT_THROW((void)pg->all_reduce(sum, ReduceOp::kSum, {.keep_alive = owner}), DistError);
      open.wait();
      EXPECT_EQ(owner.use_count(), 1);
      pg->barrier().wait();
    }
  });
}

TEST_P(PlacedCallsTest, ManyOnTheirWayAreAsMany) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    for (int round = 0; round < 3; ++round) {
      constexpr int kCalls = 20;
      std::vector<std::vector<int64_t>> x;
      std::vector<Work> works;
      for (int i = 0; i < kCalls; ++i) x.push_back({rank.rank() + i, 100 * i});
      for (int i = 0; i < kCalls; ++i) works.push_back(pg->all_reduce(x[static_cast<size_t>(i)]));
      for (int i = kCalls - 1; i >= 0; --i) {
        works[static_cast<size_t>(i)].wait();
        EXPECT_THAT(x[static_cast<size_t>(i)], ElementsAre(2 * i + 1, 200 * i));
      }
    }
  });
}

TEST_P(PlacedCallsTest, AHandleKeepsItsCall) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> first = {rank.rank()};
    Work work = pg->all_reduce(first);
    work.wait();
    std::vector<Work> copies;
    for (int i = 0; i < 30; ++i) {
      std::vector<float> other = {1.0F * static_cast<float>(i)};
      Work next = pg->all_reduce(other);
      next.wait();
      if (i % 3 == 0) copies.push_back(next);
    }
    EXPECT_TRUE(work.is_success());
    ASSERT_EQ(work.result().size(), 1u);
    EXPECT_EQ(work.result()[0].data(), first.data());
    for (const Work& copy : copies) EXPECT_TRUE(copy.is_success());
  });
}

// The front stops at a scheduling point while a call is being built: another task of the rank, with the same handle, has its own.
TEST_P(PlacedCallsTest, TwoTasksOfARankBuildTheirsAtATime) {
  if (!deterministic()) GTEST_SKIP() << "a handle is for one thread at a time";
  for (uint64_t seed = 0; seed < 40; ++seed) {
    WorldOptions world = options(2);
    if (seeded()) world.schedule = Schedule::seeded(seed);
    run(std::move(world), [](RankContext& rank) {
      auto pg = init_process_group(rank);
      auto other = pg->new_group({0, 1});
      // Shared, as a callback may still be at it when its rank has failed.
      struct State {
        std::vector<int64_t> begin = {1};
        std::vector<int64_t> mine;
        std::vector<int64_t> callbacks;
        Latch done{1};
      };
      const auto state = std::make_shared<State>();
      state->mine.assign(8, rank.rank() + 1);
      state->callbacks.assign(8, rank.rank() + 1);
      // Both reduce the same values, so that the order of the two does not matter.
      Work started = other->all_reduce(state->begin);
      started.then([state, pg](const absl::Status& status) {
        EXPECT_TRUE(status.ok());
        for (int64_t& x : state->callbacks) pg->all_reduce(std::span(&x, 1)).wait();
        state->done.count_down();
      });
      for (int64_t& x : state->mine) pg->all_reduce(std::span(&x, 1)).wait();
      state->done.wait();
      EXPECT_THAT(state->mine, Each(3));
      EXPECT_THAT(state->callbacks, Each(3));
    });
  }
}

// The time of a call is not that of the one before.
TEST_P(PlacedCallsTest, ATimeoutOfItsOwnEndsWithTheCall) {
  if (!deterministic()) GTEST_SKIP() << "real time: a call that waits for ever would be waited for";
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank, {.timeout = absl::Seconds(50)});
    std::vector<float> x = {1.0F};
    pg->all_reduce(x, ReduceOp::kSum, {.timeout = absl::Milliseconds(3)}).wait();
    if (rank.rank() == 1) rank.sleep_for(absl::Seconds(70));
    pg->all_reduce(x).wait();
  });
  EXPECT_THAT(report.text(), testing::HasSubstr("all_reduce seq 2"));
  EXPECT_THAT(report.text(), testing::HasSubstr("50s"));
}

}  // namespace
}  // namespace rankloom

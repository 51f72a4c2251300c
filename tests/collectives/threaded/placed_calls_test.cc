// Calls that are built in a work which was another call before: nothing of that one is left, and nobody's work is
// taken.

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/collective_call.h"
#include "rankloom/error.h"
#include "rankloom/process_group.h"
#include "rankloom/sync.h"
#include "rankloom/work.h"
#include "tests/world/every_world.h"
#include "world/world_state.h"

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

// Each kind of message after each other one, in the places that those before left.
TEST_P(PlacedCallsTest, EachMessageOfALoopIsItsOwn) {
  for (const size_t eager_bytes : {size_t{0}, size_t{8}}) {
    run(2, [eager_bytes](RankContext& rank) {
      auto pg = init_process_group(rank, {.eager_bytes = eager_bytes});
      const int peer = 1 - rank.rank();
      for (int round = 0; round < 4; ++round) {
        // A tag, an owner, a size beyond eager ones: what the next message has not.
        const int64_t mine = 10 * round + rank.rank();
        const int64_t theirs = 10 * round + peer;
        const auto owner = std::make_shared<int>(round);
        std::vector<int64_t> large = {mine, mine + 1, mine + 2};
        if (rank.rank() == 0) pg->send(large, peer, 7, {.keep_alive = owner}).wait();
        if (rank.rank() == 1) {
          Work got = pg->recv(large, peer, 7, {.keep_alive = owner});
          got.wait();
          EXPECT_EQ(got.source(), peer);
          EXPECT_THAT(large, ElementsAre(theirs, theirs + 1, theirs + 2));
        }
        EXPECT_EQ(owner.use_count(), 1);
        int64_t small = mine;
        if (rank.rank() == 1) {
          Work sent = pg->send(ConstTensorView::scalar(small), peer);
          sent.wait();
          EXPECT_EQ(sent.source(), -1);
        } else {
          int64_t other = -1;
          Work got = pg->recv_any(TensorView::scalar(other));
          got.wait();
          EXPECT_EQ(got.source(), peer);
          EXPECT_EQ(other, theirs);
        }
        EXPECT_THROW(pg->recv(TensorView::scalar(small), 2).wait(), DistError);
        // There and back, so that a send comes into the place of a recv and the other way round.
        std::vector<int32_t> x = {static_cast<int32_t>(mine)};
        std::vector<int32_t> y(1);
        if (rank.rank() == 0) pg->send(x, peer).wait();
        pg->recv(y, peer).wait();
        if (rank.rank() == 1) pg->send(x, peer).wait();
        EXPECT_THAT(x, ElementsAre(mine));
        EXPECT_THAT(y, ElementsAre(theirs));
      }
    });
  }
}

TEST_P(PlacedCallsTest, ManyMessagesOnTheirWayAreAsMany) {
  for (const size_t eager_bytes : {size_t{0}, size_t{64}}) {
    run(2, [eager_bytes](RankContext& rank) {
      auto pg = init_process_group(rank, {.eager_bytes = eager_bytes});
      constexpr int kMessages = 20;
      for (int round = 0; round < 3; ++round) {
        std::vector<int64_t> x(kMessages);
        std::vector<Work> works;
        for (int i = 0; i < kMessages; ++i) {
          int64_t& value = x[static_cast<size_t>(i)];
          if (rank.rank() == 0) value = 100 * round + i;
          works.push_back(rank.rank() == 0 ? pg->send(ConstTensorView::scalar(value), 1, i % 3)
                                           : pg->recv(TensorView::scalar(value), 0, i % 3));
        }
        for (int i = kMessages - 1; i >= 0; --i) works[static_cast<size_t>(i)].wait();
        for (int i = 0; i < kMessages; ++i) EXPECT_EQ(x[static_cast<size_t>(i)], 100 * round + i);
      }
    });
  }
}

// Nobody holds an eager send but the mailbox, with the copy that it travels with: no other takes its place meanwhile.
TEST_P(PlacedCallsTest, AnEagerSendKeepsItsPlaceUntilItArrives) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank, {.eager_bytes = 8});
    constexpr int kMessages = 12;
    if (rank.rank() == 0) {
      int64_t value = 0;
      for (int i = 0; i < kMessages; ++i) {
        value = 3 * i;
        pg->send(ConstTensorView::scalar(value), 1).wait();
      }
    }
    pg->barrier().wait();
    for (int i = 0; i < kMessages && rank.rank() == 1; ++i) {
      int64_t value = -1;
      pg->recv(TensorView::scalar(value), 0).wait();
      EXPECT_EQ(value, 3 * i);
    }
  });
}

// The memory of a message of its buffer goes with the message: the next one in its place has another.
TEST_P(PlacedCallsTest, AnEarlyWriteIsFoundInTheCallThatHasIt) {
  if (!seeded()) GTEST_SKIP() << "only seeded runs look";
  int good = 0;  // rounds, on both ranks: one runs at a time
  const RunReport report = run_to_failure(2, [&good](RankContext& rank) {
    auto pg = init_process_group(rank, {.eager_bytes = 4});
    std::vector<int32_t> big = {rank.rank(), 5, 6};
    std::vector<int32_t> one = {rank.rank()};
    for (int round = 0; round < 6; ++round) {
      rank.rank() == 0 ? pg->send(big, 1).wait() : pg->recv(big, 0).wait();
      if (rank.rank() == 0) {
        Work eager = pg->send(one, 1);
        one[0] = 100 + round;  // a copy travels
        eager.wait();
      } else {
        pg->recv(one, 0).wait();
      }
      ++good;
    }
    if (rank.rank() == 1) return pg->recv(big, 0).wait();
    Work changed = pg->send(big, 1);
    big[0] = 77;
    changed.wait();
  });
  EXPECT_EQ(good, 12);
  EXPECT_THAT(report.text(), testing::HasSubstr("rank 0, group 0, send to rank 1: an input was changed or freed"));
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

// The front stops at a scheduling point while a call is being built: another task of the rank, with the same handle,
// has its own.
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

// A call like the last one of its place is not checked again: what it no longer is like in is seen all the same.

TEST_P(PlacedCallsTest, ACallThatAnotherMemberMakesNoMoreIsAMismatch) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(6, static_cast<float>(rank.rank()));
    const auto reduce = [&](TensorView view) { pg->all_reduce(std::move(view)).wait(); };
    for (int i = 0; i < 6; ++i) reduce(x);
    reduce(rank.rank() == 2 ? TensorView(x.data(), {5}) : TensorView(x));
  });
  EXPECT_THAT(report.text(), testing::HasSubstr("group 0, seq 7"));
  EXPECT_THAT(report.text(), testing::HasSubstr("shape"));
  EXPECT_THAT(report.text(), testing::HasSubstr("[5]"));
}

TEST_P(PlacedCallsTest, AnotherOrderOfTheGroupIsOfTheNextCall) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(2, static_cast<float>(rank.rank()));
    for (int i = 0; i < 6; ++i) {
      if (i == 4 && rank.rank() == 1) pg->set_reduce_order({.kind = ReduceOp::Order::Kind::kTree});
      pg->all_reduce(x).wait();
    }
  });
  EXPECT_THAT(report.text(), testing::HasSubstr("group 0, seq 5"));
  EXPECT_THAT(report.text(), testing::HasSubstr("order of reduction"));
}

TEST_P(PlacedCallsTest, AnotherTimeoutOfTheGroupIsOfTheNextCall) {
  if (!deterministic()) GTEST_SKIP() << "virtual time";
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(2, static_cast<float>(rank.rank()));
    for (int i = 0; i < 6; ++i) {
      if (i == 5) pg->set_timeout(absl::Milliseconds(7));
      if (i == 5 && rank.rank() == 1) rank.sleep_for(absl::Seconds(2));
      pg->all_reduce(x).wait();
    }
  });
  EXPECT_THAT(report.text(), testing::HasSubstr("all_reduce seq 6"));
  EXPECT_THAT(report.text(), testing::HasSubstr("7ms"));
}

TEST_P(PlacedCallsTest, AnotherWarningOfTheGroupIsOfTheNextCall) {
  if (!deterministic()) GTEST_SKIP() << "virtual time";
  WorldOptions options = this->options(2);
  std::vector<std::string> warnings;
  options.on_warning = [&](const std::string& text) { warnings.push_back(text); };
  run(options, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(2, static_cast<float>(rank.rank()));
    for (int i = 0; i < 6; ++i) {
      if (i == 5 && rank.rank() == 0) pg->set_warn_after(absl::Milliseconds(7));
      if (i == 5 && rank.rank() == 1) rank.sleep_for(absl::Seconds(2));
      pg->all_reduce(x).wait();
    }
  });
  EXPECT_THAT(warnings, testing::ElementsAre(testing::HasSubstr("all_reduce seq 6: has waited 7ms for rank 1")));
}

TEST_P(PlacedCallsTest, ANumberIsNoListOfOne) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(1, static_cast<float>(rank.rank() + 1));
    for (const bool list : {true, true, false, false, true}) {
      const TensorView view = list ? TensorView(x.data(), {1}) : TensorView(x.data(), std::initializer_list<int64_t>());
      pg->all_reduce(view).wait();
    }
    std::vector<int64_t> dims;
    for (const FlightEntry& entry : state_of(rank).recorder().entries()) dims.push_back(entry.shapes[0]);
    EXPECT_THAT(dims, ElementsAre(1, 1, 0, 0, 1));
    EXPECT_EQ(x[0], 48.0F);
  });
}

TEST_P(PlacedCallsTest, RecordsHaveEachCallsOwnLineAndShape) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(6, static_cast<float>(rank.rank()));
    std::vector<float> y(6, static_cast<float>(rank.rank()));
    const int line = CodeSite::here().line;
    for (int i = 0; i < 5; ++i) {
      pg->all_reduce(x).wait();
      pg->all_reduce(x).wait();
      pg->all_reduce(TensorView(x.data(), {2, 3})).wait();
      pg->all_reduce(y, ReduceOp::kMax).wait();
    }
    const FlightEntries entries = state_of(rank).recorder().entries();
    ASSERT_EQ(entries.size(), 20u);
    for (size_t i = 0; i < entries.size(); ++i) {
      const FlightEntry& entry = entries[i];
      EXPECT_EQ(entry.record_id, static_cast<int64_t>(i));
      EXPECT_EQ(entry.seq, static_cast<int64_t>(i) + 1);
      EXPECT_EQ(entry.code.line, line + 2 + static_cast<int>(i % 4));
      EXPECT_EQ(entry.shapes[0], i % 4 == 2 ? 2 : 1) << i;
      EXPECT_EQ(entry.state, FlightEntry::State::kCompleted);
    }
    EXPECT_EQ(y[0], 1.0F);
  });
}

// Calls of one line with other memory, in place and not, and with another peer.
TEST_P(PlacedCallsTest, OneLineMakesManyCalls) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const int me = rank.rank();
    std::vector<std::vector<int64_t>> buffers(3, std::vector<int64_t>(3));
    for (int round = 0; round < 12; ++round) {
      std::vector<int64_t>& x = buffers[static_cast<size_t>(round) % 3];
      x = {me, round, me * round};
      pg->all_reduce(x).wait();
      EXPECT_THAT(x, ElementsAre(3, 3 * round, 3 * round));
      // The input is the member's own part of the output every second time.
      std::vector<int64_t> all(3, -1);
      int64_t apart = 10 * me + round;
      if (round % 2 == 1) all[static_cast<size_t>(me)] = apart;
      int64_t& mine = round % 2 == 1 ? all[static_cast<size_t>(me)] : apart;
      pg->all_gather_into_tensor(all, ConstTensorView::scalar(mine)).wait();
      EXPECT_THAT(all, ElementsAre(round, 10 + round, 20 + round));
      pg->broadcast(x, round % 3).wait();
      const int to = (me + 1 + round % 2) % 3;
      const int from = (me + 2 - round % 2) % 3;
      int64_t got = -1;
      Work sent = pg->send(ConstTensorView::scalar(apart), to, round % 2);
      pg->recv(TensorView::scalar(got), from, round % 2).wait();
      sent.wait();
      EXPECT_EQ(got, 10 * from + round);
    }
  });
}

// Mistakes that the short way of a call made once more must refuse as the long one does.

TEST_P(PlacedCallsTest, ACallMadeOnceMoreIsRefusedByTheHandleOfAnotherRank) {
  std::shared_ptr<ProcessGroup> of_first;
  const RunReport report = run_to_failure(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(2, static_cast<float>(rank.rank()));
    if (rank.rank() == 0) of_first = pg;
    const auto reduce = [&](ProcessGroup& group) { group.all_reduce(x).wait(); };
    for (int i = 0; i < 6; ++i) reduce(*pg);
    if (rank.rank() == 1) reduce(*of_first);
  });
  of_first.reset();
  EXPECT_THAT(report.text(), testing::HasSubstr("rank 0, group 0, all_reduce seq 7: the handle of rank 0 was used by "
                                                "rank 1, want the rank's own handle"));
}

TEST_P(PlacedCallsTest, ACallMadeOnceMoreIsRefusedOnceTheWorldHasEnded) {
  std::shared_ptr<ProcessGroup> kept;
  std::vector<float> x(2);
  std::string error;
  const auto reduce = [&](ProcessGroup& group, std::vector<float>& buffer) { group.all_reduce(buffer).wait(); };
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> own(2, static_cast<float>(rank.rank()));
    std::vector<float>& buffer = rank.rank() == 0 ? x : own;
    for (int i = 0; i < 6; ++i) reduce(*pg, buffer);
    if (rank.rank() == 0) kept = pg;
  });
  try {
    reduce(*kept, x);
  } catch (const DistError& caught) {
    error = caught.what();
  }
  EXPECT_THAT(error, testing::HasSubstr("rank 0, group 0, all_reduce: the world has ended"));
}

TEST_P(PlacedCallsTest, ACallMadeOnceMoreIsRefusedByATaskOfAnotherWorld) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(2, static_cast<float>(rank.rank()));
    const auto reduce = [&] { pg->all_reduce(x).wait(); };
    for (int i = 0; i < 6; ++i) reduce();
    const RunReport inner =
        run_world({.world_size = 1, .engine = EngineKind::kThreads}, [&](RankContext&) { reduce(); });
    EXPECT_THAT(inner.text(), testing::HasSubstr("of an inner world used the outer world's group 0"));
    reduce();
    EXPECT_EQ(x[0], 64.0F);
  });
}

TEST_P(PlacedCallsTest, ACallMadeOnceMoreIsRefusedAfterShutdown) {
  const RunReport report = run_to_failure(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(2, static_cast<float>(rank.rank()));
    for (int i = 0; i < 7; ++i) {
      if (i == 6) pg->shutdown();
      pg->all_reduce(x).wait();
    }
  });
  EXPECT_THAT(report.text(), testing::HasSubstr("all_reduce seq 7: the group was shut down"));
}

TEST_P(PlacedCallsTest, ACallMadeOnceMoreMayNotWriteWhereAnOpenOneDoes) {
  const RunReport report = run_to_failure(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(2, static_cast<float>(rank.rank()));
    std::vector<float> y(2, static_cast<float>(rank.rank()));
    const auto reduce = [&](std::vector<float>& buffer) { return pg->all_reduce(buffer); };
    for (int i = 0; i < 6; ++i) {
      Work first = reduce(x);
      Work second = pg->all_reduce(y);
      first.wait();
      second.wait();
    }
    Work first = reduce(x);
    Work second = pg->all_reduce(TensorView(x.data(), {2}));
    first.wait();
    second.wait();
  });
  EXPECT_THAT(report.text(), testing::HasSubstr("all_reduce seq 14: its output overlaps that of all_reduce seq 13"));
}

TEST_P(PlacedCallsTest, ACallMadeOnceMoreIsGatheredWhileCallsAreCoalesced) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(2, static_cast<float>(rank.rank() + 1));
    for (int i = 0; i < 4; ++i) {
      if (i == 3) pg->start_coalescing();
      Work work = pg->all_reduce(x, ReduceOp::kMax);
      if (i < 3) {
        work.wait();
        continue;
      }
      EXPECT_EQ(x[0], 2.0F);
      x = {5.0F, static_cast<float>(rank.rank())};
      pg->end_coalescing().wait();
    }
    EXPECT_THAT(x, ElementsAre(5.0F, 1.0F));
  });
}

TEST_P(PlacedCallsTest, AFactorThatChangesIsTheNewOne) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<double> x(1);
    for (const double factor : {0.5, 0.25, 3.0}) {
      x[0] = rank.rank() + 1.0;
      pg->all_reduce(x, ReduceOp::premul_sum(factor)).wait();
      EXPECT_EQ(x[0], 3 * factor);
    }
  });
}

}  // namespace
}  // namespace rankloom

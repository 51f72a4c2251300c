// Where the owners that calls keep alive end: as the rank that gave them, where they may call and wait.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "rankloom/matchers.h"
#include "rankloom/rankloom.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A tensor whose end calls back.
struct Guarded {
  Guarded(size_t size, std::function<void()> at_end) : numbers(size), at_end(std::move(at_end)) {}
  ~Guarded() { at_end(); }
  std::vector<float> numbers;
  std::function<void()> at_end;
};

class KeepAliveTest : public EveryWorldTest {
 protected:
  // On which ranks owners ended; -1: a thread that is none's.
  void ended() {
    const RankContext* const context = RankContext::current();
    const std::lock_guard<std::mutex> lock(mu_);
    ends_.push_back(context != nullptr ? context->rank() : -1);
  }
  const std::vector<int>& ends() const { return ends_; }

  // Rank 1 drops a call that rank 0 then completes. Its owner ends where it can wait for what rank 0 does afterwards.
  void expect_ends_on_rank_1(absl::FunctionRef<Work(ProcessGroup&, std::vector<float>&, const CallOptions&)> call) {
    run(2, [&](RankContext& rank) {
      auto pg = init_process_group(rank);
      if (rank.rank() == 1) {
        auto owner = std::make_shared<Guarded>(3, [&] {
          RankContext::current()->store().wait({"0 has gone on"});
          ended();
        });
        { Work dropped = call(*pg, owner->numbers, {.keep_alive = owner}); }
        owner.reset();
        rank.store().set("dropped", "");
        rank.store().wait({"0 has gone on"});
      } else {
        rank.store().wait({"dropped"});
        std::vector<float> x(3);
        call(*pg, x, {}).wait();
        rank.store().set("0 has gone on", "");
      }
    });
    EXPECT_THAT(ends(), ElementsAre(1));
  }

  // Rank 0 makes a call, drops its work and writes to the tensor before rank 1 makes its own.
  RunReport write_after_drop(absl::FunctionRef<Work(ProcessGroup&, std::vector<float>&, const CallOptions&)> call) {
    WorldOptions world = options(2);
    world.poison = true;
    return run_to_failure(world, [&](RankContext& rank) {
      auto pg = init_process_group(rank);
      auto x = std::make_shared<std::vector<float>>(2, 1.0F);
      if (rank.rank() == 1) {
        rank.store().wait({"written"});
        return call(*pg, *x, {.keep_alive = x}).wait();
      }
      { Work dropped = call(*pg, *x, {.keep_alive = x}); }
      (*x)[1] = 3;
      rank.store().set("written", "");
      rank.store().wait({"never"});
    });
  }

 private:
  std::mutex mu_;
  std::vector<int> ends_;
};
INSTANTIATE_TEST_SUITE_P(Worlds, KeepAliveTest, every_world(), world_name);

TEST_P(KeepAliveTest, TheOwnerOfADroppedCollectiveEndsAsItsRank) {
  expect_ends_on_rank_1([](ProcessGroup& pg, std::vector<float>& x, const CallOptions& options) {
    return pg.all_reduce(x, ReduceOp::kSum, options);
  });
}

TEST_P(KeepAliveTest, TheOwnerOfADroppedReceiveEndsAsItsRank) {
  expect_ends_on_rank_1([](ProcessGroup& pg, std::vector<float>& x, const CallOptions& options) {
    return pg.rank() == 1 ? pg.recv(x, 0, 0, options) : pg.send(x, 1, 0, options);
  });
}

TEST_P(KeepAliveTest, TheOwnerOfADroppedSendEndsAsItsRank) {
  expect_ends_on_rank_1([](ProcessGroup& pg, std::vector<float>& x, const CallOptions& options) {
    return pg.rank() == 1 ? pg.send(x, 0, 0, options) : pg.recv(x, 1, 0, options);
  });
}

TEST_P(KeepAliveTest, TheOwnerOfDroppedCoalescedCallsEndsAsItsRank) {
  expect_ends_on_rank_1([](ProcessGroup& pg, std::vector<float>& x, const CallOptions& options) {
    pg.start_coalescing();
    (void)pg.all_reduce(x, ReduceOp::kSum, options);
    return pg.end_coalescing(options);
  });
}

TEST_P(KeepAliveTest, TheOwnerEndsAsItsRankWhenAnotherOneFails) {
  const RunReport report = run_to_failure(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) {
      rank.store().wait({"dropped"});
      throw std::runtime_error("planned");
    }
    auto owner = std::make_shared<Guarded>(3, [&] { ended(); });
    { Work dropped = pg->all_reduce(owner->numbers, ReduceOp::kSum, {.keep_alive = owner}); }
    owner.reset();
    rank.store().set("dropped", "");
    rank.store().wait({"never"});
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 1 failed: planned"));
  EXPECT_THAT(ends(), ElementsAre(0));
}

TEST_P(KeepAliveTest, WhatTheOwnersEndThrowsIsNoBusinessOfOthers) {
  // A destructor that calls finds the world as any call of its rank would.
  std::string told;
  const RunReport report = run_to_failure(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) {
      rank.store().wait({"dropped"});
      throw std::runtime_error("planned");
    }
    auto owner = std::make_shared<Guarded>(3, [&] {
      try {
        RankContext::current()->store().get("never");
      } catch (const DistError& error) {
        told = error.what();
      }
    });
    { Work dropped = pg->all_reduce(owner->numbers, ReduceOp::kSum, {.keep_alive = owner}); }
    owner.reset();
    rank.store().set("dropped", "");
    rank.store().wait({"never"});
  });
  EXPECT_THAT(told, HasSubstr("rank 1 failed: planned"));
}

TEST_P(KeepAliveTest, AnInputThatChangesAfterTheWorkWasDroppedIsToldSo) {
  const RunReport report = write_after_drop([](ProcessGroup& pg, std::vector<float>& x, const auto& keep) {
    return pg.rank() == 0 ? pg.send(x, 1, 0, keep) : pg.recv(x, 0, 0, keep);
  });
  EXPECT_THAT(report.text(),
              HasSubstr("rank 0, group 0, send to rank 1: an input was changed or freed between the call"));
  EXPECT_THAT(report.text(),
              HasSubstr("], want it unchanged until wait(); nobody can wait for the call: its work was dropped\n"));
}

TEST_P(KeepAliveTest, AnOutputThatIsWrittenAfterTheWorkWasDroppedIsToldSo) {
  const RunReport received = write_after_drop([](ProcessGroup& pg, std::vector<float>& x, const auto& keep) {
    return pg.rank() == 0 ? pg.recv(x, 1, 0, keep) : pg.send(x, 0, 0, keep);
  });
  const RunReport broadcast = write_after_drop(
      [](ProcessGroup& pg, std::vector<float>& x, const auto& keep) { return pg.broadcast(x, 1, keep); });
  const RunReport reduced = write_after_drop(
      [](ProcessGroup& pg, std::vector<float>& x, const auto& keep) { return pg.all_reduce(x, ReduceOp::kSum, keep); });
  for (const RunReport& report : {received, broadcast, reduced}) {
    EXPECT_THAT(report.text(), HasSubstr(": an output was written or freed between the call [keep_alive_test.cc:"));
    EXPECT_THAT(report.text(),
                HasSubstr("], want it left alone until wait(); nobody can wait for the call: its work was dropped\n"));
  }
}

// The first message to a peer has number 1 in its channel, whatever the rank has sent to others before.
TEST_P(KeepAliveTest, AMessageThatIsDroppedAfterOneToAnotherPeerIsToldSo) {
  WorldOptions world = options(3);
  world.poison = true;
  const RunReport report = run_to_failure(world, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto x = std::make_shared<std::vector<float>>(2, 1.0F);
    if (rank.rank() == 1) return pg->recv(*x, 0).wait();
    if (rank.rank() == 2) {
      rank.store().wait({"written"});
      return pg->recv(*x, 0).wait();
    }
    pg->send(*x, 1).wait();
    { Work dropped = pg->send(*x, 2, 0, {.keep_alive = x}); }
    (*x)[1] = 3;
    rank.store().set("written", "");
    rank.store().wait({"never"});
  });
  EXPECT_THAT(report.text(),
              HasSubstr("rank 0, group 0, send to rank 2: an input was changed or freed between the call"));
  EXPECT_THAT(report.text(),
              HasSubstr("], want it unchanged until wait(); nobody can wait for the call: its work was dropped\n"));
}

TEST_P(KeepAliveTest, AMessageThatIsHeldIsNotTakenForOneThatWasDropped) {
  WorldOptions world = options(3);
  world.poison = true;
  const RunReport report = run_to_failure(world, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto x = std::make_shared<std::vector<float>>(2, 1.0F);
    if (rank.rank() > 0) {
      if (rank.rank() == 2) rank.store().wait({"written"});
      pg->recv(*x, 0).wait();
      return rank.store().set("received", "");
    }
    for (const int peer : {1, 2}) {
      Work work = pg->send(*x, peer, 0, {.keep_alive = x});
      if (peer == 1) {
        work = Work();
        rank.store().wait({"received"});
      } else {
        (*x)[1] = 3;
        rank.store().set("written", "");
        work.wait();
      }
    }
  });
  EXPECT_THAT(report.text(),
              HasSubstr("rank 0, group 0, send to rank 2: an input was changed or freed between the call"));
  EXPECT_THAT(report.text(), Not(HasSubstr("its work was dropped")));
}

// A rank that waits for a call and drops its handle has the owner back, whatever others still do with the call.
TEST_P(KeepAliveTest, TheOwnerGoesWithTheLastHandleOfADoneCall) {
  run(4, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    for (int i = 0; i < 100; ++i) {
      bool gone = false;
      auto owner = std::make_shared<Guarded>(1, [&gone, mine = rank.rank()] {
        gone = RankContext::current() != nullptr && RankContext::current()->rank() == mine;
      });
      owner->numbers[0] = static_cast<float>(rank.rank());
      Work work = pg->all_reduce(owner->numbers, ReduceOp::kSum, {.keep_alive = owner});
      Work copy = work;
      std::vector<float>& numbers = owner->numbers;
      owner.reset();
      work.wait();
      work = Work();
      ASSERT_FALSE(gone);
      EXPECT_EQ(numbers[0], 6);
      copy = Work();
      ASSERT_TRUE(gone);

      auto message = std::make_shared<Guarded>(1, [&gone] { gone = true; });
      gone = false;
      const int peer = rank.rank() ^ 1;
      Work moved = rank.rank() < peer ? pg->send(message->numbers, peer, 0, {.keep_alive = message})
                                      : pg->recv(message->numbers, peer, 0, {.keep_alive = message});
      message.reset();
      moved.wait();
      moved = Work();
      ASSERT_TRUE(gone);
    }
  });
}

TEST_P(KeepAliveTest, TheOwnerOfACallThatNobodyCompletesGoesWithTheWorld) {
  bool gone = false;
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) return;
    auto owner = std::make_shared<Guarded>(1, [&gone] { gone = true; });
    { Work dropped = pg->all_reduce(owner->numbers, ReduceOp::kSum, {.keep_alive = owner}); }
  });
  EXPECT_TRUE(gone);
}

// The end of an owner may take a lock that is held by the very task whose call completes the owner's.
TEST_P(KeepAliveTest, TheOwnerOfADroppedCallDoesNotEndWithinTheCallThatCompletesIt) {
  Mutex mu;
  run(1, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto owner = std::make_shared<Guarded>(3, [&] {
      const MutexLock lock(&mu);  // refused within the send below, which the destructor would not survive
      ended();
    });
    { Work dropped = pg->recv(owner->numbers, 0, 0, {.keep_alive = owner}); }
    owner.reset();
    std::vector<float> x(3);
    {
      const MutexLock lock(&mu);
      pg->send(x, 0).wait();
    }
  });
  EXPECT_THAT(ends(), ElementsAre(0));
}

// The send was dropped, and its rank has ended: the receiver's tag is what is wrong.
TEST_P(KeepAliveTest, AWrongTagOfARankThatHasEndedIsAMismatch) {
  const RunReport report = run_to_failure(options(2), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto x = std::make_shared<std::vector<float>>(2, 1.0F);
    if (rank.rank() == 0) return (void)pg->send(*x, 1, 7, {.keep_alive = x});
    pg->recv(*x, 0, 8).wait();
  });
  EXPECT_THAT(report.text(), testing::StartsWith("Mismatch: group 0, send from rank 0 to rank 1, tag 7, seq 1: "));
}

}  // namespace
}  // namespace rankloom

// Threads that ranks start by themselves: calls of groups there count as a helper's of the handle's rank, whatever the
// rank's main thread does meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rankloom/rankloom.h"
#include "sim/scheduler/call_scope.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Long enough for another thread to come to a wait; how long does not matter to what is asserted.
void let_others_wait() { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }

class OwnThreadTest : public testing::TestWithParam<Schedule> {
 protected:
  // Two ranks, each with two groups.
  using Body = std::function<void(RankContext&, ProcessGroup&, ProcessGroup&)>;
  RunReport run(const Body& body, WorldOptions world = {}) const {
    world.world_size = 2;
    world.engine = EngineKind::kThreads;
    world.schedule = GetParam();
    world.stall = absl::Milliseconds(100);  // a join is seen after as long, at the latest
    return run_world(std::move(world), [&](RankContext& rank) {
      const auto first = init_process_group(rank);
      const auto second = init_process_group(rank);
      body(rank, *first, *second);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Schedules, OwnThreadTest,
                         testing::Values(Schedule::fifo(), Schedule::round_robin(), Schedule::seeded(3)),
                         [](const auto& tested) { return std::string(tested.param.text().substr(0, 4)); });

TEST_P(OwnThreadTest, ItsRankJoinsItWhileTheOtherSleeps) {
  run([](RankContext& rank, ProcessGroup& group, ProcessGroup&) {
    if (rank.rank() == 1) {
      rank.sleep_for(absl::Milliseconds(1));
      return group.barrier().wait();
    }
    std::jthread own([&] { group.barrier().wait(); });
    let_others_wait();
    rank.store().set("key", "value");
    own.join();
  }).throw_if_failed();
}

TEST_P(OwnThreadTest, AnotherOneEndsWithTheBatonWhileTheFirstIsJoined) {
  run([](RankContext& rank, ProcessGroup& group, ProcessGroup&) {
    if (rank.rank() == 1) {
      rank.sleep_for(absl::Milliseconds(1));
      return group.barrier().wait();
    }
    std::jthread waits([&] { group.barrier().wait(); });
    let_others_wait();
    std::jthread ends([&] { rank.yield(); });
    ends.join();
    waits.join();
  }).throw_if_failed();
}

TEST_P(OwnThreadTest, WaitsForARankThatReturned) {
  const auto joins = [](RankContext& rank, ProcessGroup& group, ProcessGroup&) {
    if (rank.rank() == 1) return;
    std::exception_ptr thrown;
    std::jthread waits([&] {
      try {
        group.barrier().wait();
      } catch (...) {
        thrown = std::current_exception();
      }
    });
    let_others_wait();
    std::jthread ends([&] { rank.yield(); });
    ends.join();
    waits.join();
    if (thrown != nullptr) std::rethrow_exception(thrown);
  };
  // The rank's main thread might come back from what is not rankloom's, and help.
  const RunReport report = run(joins, {.stuck_after = absl::Milliseconds(500)});
  EXPECT_THAT(report.text(), HasSubstr("rank 0 waits in barrier seq 1 for rank 1 (returned) (its helper)"));
}

TEST_P(OwnThreadTest, TwoAreJoinedInTheOtherOrder) {
  run([](RankContext& rank, ProcessGroup& first, ProcessGroup& second) {
    if (rank.rank() == 1) {
      second.barrier().wait();
      return first.barrier().wait();
    }
    std::jthread one([&] { first.barrier().wait(); });
    std::jthread other([&] { second.barrier().wait(); });
    one.join();
    other.join();
  }).throw_if_failed();
}

// The thread is on its way from one call to the next, and all others wait for it: neither is that a deadlock, nor does
// time go on, nor does the thread wait for itself at the end of a call.
TEST_P(OwnThreadTest, IsBetweenTwoCallsWhileAllOthersWait) {
  for (const bool timed : {false, true}) {
    const auto wait = [timed](Work work) { timed ? work.wait(absl::Hours(1)) : work.wait(); };
    const RunReport report = run([&](RankContext& rank, ProcessGroup& first, ProcessGroup& second) {
      if (rank.rank() == 1) {
        wait(second.barrier());
        return wait(first.barrier());
      }
      // Until the thread is known as a helper, somebody outside may still move.
      std::optional<World::OutsideWaker> begins(rank.world().outside_waker());
      std::jthread own([&] {
        rank.yield();
        begins.reset();
        let_others_wait();
        rank.yield();
        wait(second.barrier());
      });
      wait(first.barrier());
      EXPECT_LT(rank.now(), absl::Hours(1));
      own.join();
    });
    report.throw_if_failed();
  }
}

TEST_P(OwnThreadTest, MakesManyCallsThatAreTheLastThingAnybodyCanDo) {
  run([&](RankContext& rank, ProcessGroup& first, ProcessGroup& second) {
    if (rank.rank() == 1) {
      let_others_wait();
      for (int i = 0; i < 10; ++i) second.barrier().wait(absl::Hours(1));
      return first.barrier().wait(absl::Hours(1));
    }
    std::optional<World::OutsideWaker> begins(rank.world().outside_waker());
    std::jthread own([&] {
      rank.yield();
      begins.reset();
      for (int i = 0; i < 10; ++i) second.barrier().wait(absl::Hours(1));
    });
    first.barrier().wait(absl::Hours(1));
    own.join();
  }).throw_if_failed();
}

// The task that is ready when the thread leaves its call is a completion, which wakes nobody.
TEST_P(OwnThreadTest, LeavesACallThatIsAboutToComplete) {
  run([&](RankContext& rank, ProcessGroup& first, ProcessGroup& second) {
    const auto third = init_process_group(rank);
    std::vector<int> x = {rank.rank()};
    if (rank.rank() == 1) {
      Work reduced = first.all_reduce(x);
      second.barrier().wait(absl::Hours(1));
      reduced.wait();
      return third->barrier().wait(absl::Hours(1));
    }
    std::optional<World::OutsideWaker> begins(rank.world().outside_waker());
    std::jthread own([&] {
      rank.yield();
      begins.reset();
      let_others_wait();
      Work reduced = first.all_reduce(x);
      let_others_wait();
      second.barrier().wait(absl::Hours(1));
      reduced.wait();
      EXPECT_THAT(x, ElementsAre(1));
    });
    third->barrier().wait(absl::Hours(1));
    EXPECT_LT(rank.now(), absl::Hours(1));
  }).throw_if_failed();
}

// Virtual time stands still for a thread that may be on its way to its next call, but not for ever.
TEST_P(OwnThreadTest, ComputesUntilItsRankHasSlept) {
  run([](RankContext& rank, ProcessGroup&, ProcessGroup&) {
    if (rank.rank() == 1) return;
    std::atomic<bool> known{false}, stop{false};
    std::jthread own([&] {
      rank.yield();
      known = true;
      while (!stop) std::this_thread::yield();
    });
    while (!known) std::this_thread::yield();
    rank.sleep_for(absl::Seconds(1));
    stop = true;
  }).throw_if_failed();
}

TEST_P(OwnThreadTest, CostsASecondOfRealTimeOnceWhileItIsIdle) {
  const auto begun = std::chrono::steady_clock::now();
  run([](RankContext& rank, ProcessGroup&, ProcessGroup&) {
    if (rank.rank() == 1) return;
    std::atomic<bool> known{false}, stop{false};
    std::jthread own([&] {
      rank.yield();
      known = true;
      known.notify_one();
      stop.wait(false);
    });
    known.wait(false);
    for (int i = 0; i < 20; ++i) rank.sleep_for(absl::Seconds(1));
    stop = true;
    stop.notify_one();
  }).throw_if_failed();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(18));  // 20 s, if each sleep cost one
}

// A wait of zero length needs no time to go on.
TEST_P(OwnThreadTest, WaitsOfZeroLengthEndBesideAnOutsideWaker) {
  run([](RankContext& rank, ProcessGroup& group, ProcessGroup&) {
    const World::OutsideWaker waker = rank.world().outside_waker();
    rank.sleep_for(absl::ZeroDuration());
    rank.sleep_for(-absl::Seconds(1));
    EXPECT_THROW(rank.store().wait({"never"}, absl::ZeroDuration()), DistError);
    if (rank.rank() == 0) {
      EXPECT_THROW(group.barrier().wait(absl::ZeroDuration()), DistError);
    }
  }).throw_if_failed();
}

// The thread is in a wait with a timeout when its world goes.
TEST_P(OwnThreadTest, OutlivesItsWorldInAWait) {
  for (int round = 0; round < 20; ++round) {
    std::string said;
    std::jthread own;
    {
      World world({.world_size = 2, .schedule = GetParam()});
      (void)world.run([&](RankContext& rank) {
        if (rank.rank() == 1) return;
        auto group = init_process_group(rank);
        own = std::jthread([group, &said] {
          try {
            for (;;) {
              std::vector<int> x(1, 1);
              Work work = group->all_reduce(x);
              work.wait(absl::Milliseconds(1));
            }
          } catch (const DistError& error) {
            said = error.what();
          }
        });
        std::this_thread::sleep_for(std::chrono::microseconds(round * 37 % 700));
      });
    }
    own.join();
    EXPECT_NE(said, "");
  }
}

TEST(UnboundThreadTest, CountsAsAHelperOfTheHandlesRank) {
  for (const Schedule& schedule : {Schedule::free(), Schedule::seeded(5)}) {
    std::vector<int64_t> sums(2);
    run_world({.world_size = 2, .schedule = schedule}, [&](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::thread beside([&] {
        EXPECT_EQ(RankContext::current(), nullptr);
        std::vector<int64_t> x = {rank.rank() + 5};
        pg->all_reduce(x).wait();
        sums[static_cast<size_t>(rank.rank())] = x[0];
        EXPECT_EQ(RankContext::current(), nullptr);
      });
      beside.join();
    }).throw_if_failed();
    EXPECT_THAT(sums, ElementsAre(11, 11)) << schedule.text();
  }
}

TEST(UnboundThreadTest, ADeadlockThereIsTheRanks) {
  const RunReport report = run_world({.world_size = 2}, [&](RankContext& rank) {
    if (rank.rank() == 1) return;
    auto pg = init_process_group(rank);
    std::exception_ptr thrown;
    // Until the thread is known as a helper, somebody outside may still move.
    std::optional<World::OutsideWaker> begins(rank.world().outside_waker());
    std::thread beside([&] {
      const CallScope helper(&rank.world().scheduler(), 0);
      begins.reset();
      try {
        pg->barrier().wait();
      } catch (...) {
        thrown = std::current_exception();
      }
    });
    try {
      rank.store().wait({"never"});
      ADD_FAILURE() << "came back";
    } catch (const DistError& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kDeadlock);
    }
    beside.join();
    if (thrown != nullptr) std::rethrow_exception(thrown);
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 0 waits in barrier seq 1 for rank 1 (returned) (its helper)"));
}

}  // namespace
}  // namespace rankloom

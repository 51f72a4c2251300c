// Tests that fail on purpose: failing_cases_test.py runs them and looks at what they say.

#include <gtest/gtest.h>

#include <chrono>
#include <iostream>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "rankloom/process_group.h"
#include "rankloom/testing.h"

namespace rankloom {
namespace {

class Failing : public MultiThreadedTestCase {
 protected:
  int world_size() const override { return 3; }

  // Two steps where one is needed: another rank may come between them.
  static void lose_update(RankContext& rank) {
    const int value = rank.store().add("count", 0) != 0 ? std::stoi(rank.store().get("count")) : 0;
    rank.store().set("count", std::to_string(value + 1));
  }
  static void keep_update(RankContext& rank) { rank.store().add("count", 1); }
};
INSTANTIATE_TEST_SUITE_P(Engines, Failing, every_engine(), engine_name);

TEST_P(Failing, Passes) {
  run_ranks([](RankContext& rank) { EXPECT_EQ(rank.world_size(), 3); });
}

TEST_P(Failing, OnOneRank) {
  run_ranks([](RankContext& rank) { EXPECT_NE(rank.rank(), 1) << "text with <xml> & \"quotes\" ]]>"; });
}

TEST_P(Failing, OnAllRanksAlike) {
  run_ranks([](RankContext& rank) { EXPECT_EQ(rank.world_size(), 4); });
}

// Rank 2 first, rank 0 last, in every schedule.
void wait_for_the_next(RankContext& rank) {
  if (rank.rank() < 2) rank.store().wait({"told " + std::to_string(rank.rank() + 1)});
}

TEST_P(Failing, OnAllRanksFromTheLast) {
  run_ranks([](RankContext& rank) {
    wait_for_the_next(rank);
    EXPECT_EQ(rank.world_size(), 4) << "alike";
    EXPECT_EQ(rank.rank(), 5) << "each for itself";
    rank.store().set("told " + std::to_string(rank.rank()), "1");
  });
}

TEST_P(Failing, FatallyWhileOthersWait) {
  run_ranks([](RankContext& rank) {
    if (rank.rank() == 1) FAIL() << "fatal on rank 1";
    rank.store().get("nothing");
  });
  std::cout << "after the world" << std::endl;
}

TEST_P(Failing, FatallyBeforeACollective) {
  run_ranks([](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(4, 1.0f);
    pg->all_reduce(x).wait();
    ASSERT_NE(rank.rank(), 1) << "between collectives";
    pg->all_reduce(x).wait();
  });
}

TEST_P(Failing, ReadingTooEarly) {
  WorldOptions world{.world_size = 3, .schedule = Schedule::seeded(3)};
  run_ranks(world, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int> in(6, rank.rank()), out(2), other(1);
    EXPECT_EQ(out[0], 5) << "before the call";
    Work work = pg->reduce_scatter_tensor(out, in);
    Work second;
    if (rank.rank() == 2) second = pg->all_reduce(other);
    EXPECT_TRUE(out[0] == 4) << "before the wait";  // NOLINT: no value is printed, so that ranks fold
    work.wait();
    if (rank.rank() != 2) second = pg->all_reduce(other);
    second.wait();
    EXPECT_EQ(out[0], 7) << "after the wait";
  });
}

TEST_P(Failing, OfAValueReadTooEarly) {
  WorldOptions world{.world_size = 2, .schedule = Schedule::seeded(3)};
  run_ranks(world, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int> in(4, rank.rank() + 1), out(2);
    Work work = pg->reduce_scatter_tensor(out, in);
    const int early = out[0];
    work.wait();
    EXPECT_EQ(early, 3);
    EXPECT_EQ(out[0], 4) << "wanted wrong";
  });
}

TEST_P(Failing, ByException) {
  run_ranks([](RankContext& rank) {
    if (rank.rank() == 2) throw std::runtime_error("no disk");
    rank.store().get("nothing");
  });
}

TEST_P(Failing, ByDeadlock) {
  run_ranks([](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) return;
    pg->barrier().wait();
  });
}

TEST_P(Failing, ToFail) {
  run_ranks_to_failure([](RankContext&) {});
}

// For ever, and in no function of rankloom's.
__attribute__((noinline)) void spin_for_ever() {
  for (;;) asm volatile("" ::: "memory");
}
__attribute__((noinline)) void lock_for_ever(std::mutex* mu) {
  mu->lock();
  asm volatile("" ::: "memory");
}

TEST_P(Failing, HangingInItsOwnCode) {
  run_ranks([](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(4, 1.0f);
    pg->all_reduce(x).wait();
    if (rank.rank() == 2) return;
    if (rank.rank() == 1) spin_for_ever();
    pg->barrier().wait();
  });
}

TEST_P(Failing, HoldingAMutexAcrossACollective) {
  std::mutex mu;
  run_ranks({.world_size = 2, .schedule = Schedule::round_robin()}, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    lock_for_ever(&mu);
    pg->barrier().wait();
    mu.unlock();
  });
}

TEST_P(Failing, NoneWhenExplored) {
  const ExploreOptions all = {.world = {.world_size = 2, .engine = GetParam()}};
  expect_no_failure_in_schedules(all, [](RankContext& rank) { rank.store().set("x", "1"); });
  ExploreOptions some = all;
  some.strategies = {Strategy::random()};
  some.max_runs = 3;
  expect_no_failure_in_schedules(some, [](RankContext& rank) { rank.store().set("x", "1"); });
  some.progress = [](const ExploreOptions::Progress&) {};
  some.max_runs = 2;
  expect_no_failure_in_schedules(some, [](RankContext& rank) { rank.store().set("x", "1"); });
}

TEST_P(Failing, WhenExplored) {
  expect_no_failure_in_schedules({.world = {.world_size = 2, .engine = GetParam()}}, [](RankContext& rank) {
    const int64_t came = rank.store().add("came", 1);
    EXPECT_EQ(came, rank.rank() + 1);
  });
}

TEST_P(Failing, WhenExploredForAReport) {
  const ExploreOptions options = {.world = {.world_size = 2, .engine = GetParam()}};
  const ExploreReport report =
      explore_assertions(options, [](RankContext& rank) { EXPECT_EQ(rank.store().add("came", 1), rank.rank() + 1); });
  EXPECT_TRUE(report.ok()) << report.text();
}

TEST_P(Failing, HangingWhenExplored) {
  expect_no_failure_in_schedules({.world = {.world_size = 2, .engine = GetParam()}}, [](RankContext& rank) {
    if (rank.store().add("came", 1) == 1 && rank.rank() == 1) spin_for_ever();
  });
}

TEST_P(Failing, HoldingAMutexWhenExplored) {
  std::mutex mu;
  expect_no_failure_in_schedules({.world = {.world_size = 2, .engine = GetParam()}}, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    lock_for_ever(&mu);
    pg->barrier().wait();
    mu.unlock();
  });
}

TEST_P(Failing, HoldingAMutexInExplore) {
  std::mutex mu;
  explore({.world = {.world_size = 2, .engine = GetParam()}}, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    lock_for_ever(&mu);
    pg->barrier().wait();
    mu.unlock();
  });
}

// The second search of a test, after a run.
TEST_P(Failing, ShrunkWhenExplored) {
  run_ranks({.world_size = 3}, [](RankContext& rank) { keep_update(rank); });
  const WorldOptions world = {.world_size = 4, .engine = GetParam()};
  expect_no_failure_in_schedules({.world = world}, [](RankContext& rank) { keep_update(rank); });
  expect_no_failure_in_schedules({.world = world, .min_ranks = 2}, [](RankContext& rank) {
    const bool last = rank.rank() == rank.world_size() - 1;
    const int64_t came = rank.store().add("came", 1);
    EXPECT_TRUE(!last || came != 1);
  });
}

TEST_P(Failing, InTheSecondRun) {
  run_ranks({.world_size = 3, .schedule = Schedule::seeded(4)}, [](RankContext& rank) { keep_update(rank); });
  run_ranks({.world_size = 3, .schedule = Schedule::seeded(5)},
            [](RankContext& rank) { EXPECT_NE(rank.rank(), 1) << "planned"; });
}

TEST_P(Failing, SkipsOnOneRank) {
  run_ranks([](RankContext& rank) {
    if (rank.rank() == 1) GTEST_SKIP() << "no GPU here";
    rank.store().get("nothing");
  });
}

TEST_P(Failing, SkipsOnAllRanks) {
  run_ranks([](RankContext&) { GTEST_SKIP() << "no GPU anywhere"; });
}

TEST_P(Failing, WithOutput) {
  capture_output(true);
  run_ranks([](RankContext& rank) {
    std::cout << (rank.rank() == 0 ? "I lead\n" : "I follow\n");
    EXPECT_NE(rank.rank(), 2);
  });
}

TEST_P(Failing, UnderSomeSeedOnARank) {
  seeds(100, [&] {
    run_ranks([](RankContext& rank) {
      lose_update(rank);
      rank.store().add("done", 1);
      if (rank.rank() != 0) return;
      while (rank.store().get("done") != "3") rank.yield();
      EXPECT_EQ(rank.store().get("count"), "3");
    });
  });
}

TEST_P(Failing, UnderNoSeedWithoutTheRace) {
  seeds(100, [&] {
    run_ranks([](RankContext& rank) {
      keep_update(rank);
      rank.store().add("done", 1);
      if (rank.rank() != 0) return;
      while (rank.store().get("done") != "3") rank.yield();
      EXPECT_EQ(rank.store().get("count"), "3");
    });
  });
}

TEST_P(Failing, UnderSomeSeedAfterTheRun) {
  seeds(100, [&] {
    std::string count;
    int ended = 0;
    run_ranks([&](RankContext& rank) {
      lose_update(rank);
      if (++ended == 3) count = rank.store().get("count");
    });
    EXPECT_EQ(count, "3") << "after the run";
  });
}

TEST_P(Failing, InTheSecondWorldOfASeed) {
  seeds(100, [&] {
    run_ranks({.world_size = 5}, [](RankContext& rank) { keep_update(rank); });
    int ended = 0;
    run_ranks([&](RankContext& rank) {
      lose_update(rank);
      EXPECT_EQ(++ended == 3 ? rank.store().get("count") : "3", "3");
    });
  });
}

TEST_P(Failing, BecauseOfAClock) {
  static int64_t runs = 0;  // what leaks from run to run
  ++runs;
  EXPECT_TRUE(
      runs_alike({.world_size = 3, .engine = GetParam(), .schedule = Schedule::seeded(3)}, [](RankContext& rank) {
        if (rank.rank() == 1)
          rank.store().set("time", std::to_string(std::chrono::steady_clock::now().time_since_epoch().count()));
        rank.store().get("time");
      }));
}

}  // namespace
}  // namespace rankloom

#include "harness/explore.h"

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/process_group.h"
#include "examples/known_bugs/known_bugs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "harness/explore_test.h"

namespace rankloom {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Ge;
using testing::HasSubstr;
using testing::Lt;
using testing::Not;
using testing::StartsWith;

WorldOptions fibers(int ranks) { return {.world_size = ranks, .engine = EngineKind::kFibers}; }

const KnownBug& bug(std::string_view name) {
  for (const KnownBug& known : known_bugs()) {
    if (name == known.name) return known;
  }
  ADD_FAILURE() << "no bug " << name;
  return known_bugs()[0];
}

void reduce_ten_times(RankContext& rank) {
  auto pg = init_process_group(rank);
  std::vector<float> x = {1.0f + static_cast<float>(rank.rank())};
  for (int i = 0; i < 10; ++i) pg->all_reduce(x, ReduceOp::kMax).wait();
  observe(rank, "max", x[0]);
}

TEST(ExploreTest, ProvesPlainCollectivesInOneRun) {
  const ExploreReport report = explore({.world = fibers(4), .strategies = {Strategy::exhaustive()}}, reduce_ten_times);
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_TRUE(report.verified);
  EXPECT_THAT(report.text(), HasSubstr("exhaustive: verified: all 1 schedule that can differ, in 1 run"));
}

TEST(ExploreTest, ProvesAsynchronousCollectivesInOneRun) {
  const ExploreReport report =
      explore({.world = fibers(3), .strategies = {Strategy::exhaustive()}}, [](RankContext& rank) {
        auto pg = init_process_group(rank);
        std::vector<float> x = {1}, y(3), mine = {static_cast<float>(rank.rank())};
        Work first = pg->all_reduce(x);
        Work second = pg->all_gather_into_tensor(y, mine);
        second.wait();
        first.wait();
      });
  EXPECT_TRUE(report.verified) << report.text();
  EXPECT_EQ(report.shares[0].schedules, 1);
}

TEST(ExploreTest, SaysHowFarItCame) {
  const ExploreReport report =
      explore({.world = fibers(4), .strategies = {Strategy::exhaustive()}, .max_runs = 10}, [](RankContext& rank) {
        for (int i = 0; i < 3; ++i) rank.store().append("log", absl::StrCat(rank.rank()));
      });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_FALSE(report.verified);
  EXPECT_THAT(report.text(), AllOf(HasSubstr("schedules that can differ, at least "), HasSubstr(" more were not run")));
}

TEST(ExploreTest, ReportsTheSmallestRunWithItsStory) {
  const ExploreReport report =
      explore({.world = fibers(4), .strategies = {Strategy::pct()}, .min_ranks = 2}, bug("racy_counter").bug);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  const FoundFailure& failure = *report.failure;
  EXPECT_EQ(failure.world.world_size, 2);
  EXPECT_EQ(failure.size(), 1) << report.text();
  EXPECT_THAT(failure.headline, HasSubstr("the count is 1, want 2"));
  EXPECT_THAT(failure.rerun, StartsWith("RANKLOOM_RANKS=2 RANKLOOM_ENGINE=fibers RANKLOOM_SCHEDULE='steered:1:"));
  EXPECT_THAT(failure.story, AllOf(HasSubstr("step  rank 0"), HasSubstr("rank 1"), HasSubstr("store set count"),
                                   HasSubstr("store get count"), Not(HasSubstr("barrier seq 1 completes"))))
      << failure.story;
  EXPECT_THAT(report.text(), AllOf(HasSubstr("found by "), HasSubstr("2 ranks"), HasSubstr("run it again: ")));
}

TEST(ExploreTest, WhatItFoundFailsAgainFromScheduleAndTrace) {
  const KnownBug& known = bug("wrong_root");
  const ExploreReport report = explore({.world = known.world()}, known.bug);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  WorldOptions again = report.failure->world;
  absl::StatusOr<Schedule> schedule = Schedule::parse(again.schedule.text());
  ASSERT_TRUE(schedule.ok());
  EXPECT_EQ(schedule->switches(), again.schedule.switches());
  again.schedule = *schedule;
  EXPECT_EQ(run_world(again, known.bug).cause, report.failure->report.cause);
  again.schedule = Schedule::replay(report.failure->report.trace);
  EXPECT_EQ(run_world(again, known.bug).cause, report.failure->report.cause);
}

TEST(ExploreTest, TheEnvironmentNamesOneRun) {
  const KnownBug& known = bug("racy_counter");
  const ExploreReport found = explore({.world = fibers(4), .min_ranks = 2}, known.bug);
  ASSERT_TRUE(found.failure.has_value()) << found.text();
  setenv("RANKLOOM_SCHEDULE", found.failure->world.schedule.text().c_str(), 1);
  setenv("RANKLOOM_RANKS", "2", 1);
  const ExploreReport again = explore({.world = fibers(4)}, known.bug);
  const ExploreReport fixed = explore({.world = fibers(4)}, known.fix);
  setenv("RANKLOOM_RANKS", "none", 1);
  const ExploreReport wrong = explore({.world = fibers(4)}, known.bug);
  unsetenv("RANKLOOM_RANKS");
  unsetenv("RANKLOOM_SCHEDULE");
  ASSERT_TRUE(again.failure.has_value()) << again.text();
  EXPECT_EQ(again.failure->headline, found.failure->headline);
  EXPECT_EQ(again.failure->world.world_size, 2);
  EXPECT_LE(again.runs, 3);
  EXPECT_TRUE(fixed.ok()) << fixed.text();
  EXPECT_EQ(wrong.text(), "RANKLOOM_RANKS is \"none\", want a number from 1");
}

TEST(ExploreTest, ComparesWhatRanksObserve) {
  const ExploreReport report = explore({.world = bug("order_dependent_sum").world()}, bug("order_dependent_sum").bug);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.failure->headline, AllOf(HasSubstr("results differ between schedules: rank 0's \"sum\" is "),
                                              HasSubstr(" under steered:1")));
}

TEST(ExploreTest, ComparesTheKeysInTheStore) {
  const auto leader = [](RankContext& rank) {
    if (rank.store().add("tickets", 1) == 1) rank.store().set(absl::StrCat("leader ", rank.rank()), "1");
  };
  const ExploreReport report = explore({.world = fibers(2)}, leader);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_EQ(
      report.failure->headline,
      "results differ between schedules: what the store holds at the end is leader 1, tickets here, and leader 0, "
      "tickets under steered:1");
  EXPECT_TRUE(explore({.world = fibers(2), .checks = {.store_keys = false}}, leader).ok());
}

TEST(ExploreTest, ComparesTheValuesInTheStoreIfAsked) {
  const auto last = [](RankContext& rank) { rank.store().set("last", absl::StrCat(rank.rank())); };
  EXPECT_TRUE(explore({.world = fibers(2)}, last).verified);
  const ExploreReport report = explore({.world = fibers(2), .checks = {.store_values = true}}, last);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.failure->headline, HasSubstr("the value of key \"last\" is 0 here, and 1 under steered:1"));
}

TEST(ExploreTest, FindsAProgramThatDoesNotRepeatItself) {
  int runs = 0;
  const ExploreReport report = explore({.world = fibers(2)}, [&runs](RankContext& rank) {
    if (rank.rank() == 0) ++runs;
    for (int i = 0; i < runs; ++i) rank.store().add("n", 1);
  });
  ASSERT_TRUE(report.failure.has_value());
  EXPECT_EQ(report.failure->headline, "two runs of one schedule differ: the program is not deterministic");
  EXPECT_THAT(report.text(), AllOf(HasSubstr("found by default order in its run 2"),
                                   HasSubstr("step 2: the first run ends, the other goes on: rank 0 at store add"),
                                   Not(HasSubstr("what happened"))));
}

TEST(ExploreTest, FindsWhatIsLeftOver) {
  const auto unmatched = [](RankContext& rank) {
    auto pg = init_process_group(rank, {.eager_bytes = 64});
    std::vector<float> x = {1};
    if (rank.rank() == 0) pg->send(x, 1).wait();
  };
  const ExploreReport report = explore({.world = fibers(2)}, unmatched);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.failure->headline, StartsWith("left over: rank 0, group 0, send to rank 1: was never received"));
  EXPECT_TRUE(explore({.world = fibers(2), .checks = {.leaks = false}}, unmatched).ok());

  const auto key = [](RankContext& rank) { rank.store().set("k", "v"); };
  const ExploreReport keys = explore({.world = fibers(1), .checks = {.keys_left = true}}, key);
  ASSERT_TRUE(keys.failure.has_value());
  EXPECT_EQ(keys.failure->headline, "left over: keys in the store: k");
}

TEST(ExploreTest, EndsARunThatNeverEnds) {
  const ExploreReport report = explore({.world = fibers(2), .max_steps = 1000}, [](RankContext& rank) {
    while (!rank.store().check({"never"})) {
    }
  });
  ASSERT_TRUE(report.failure.has_value());
  EXPECT_THAT(report.text(), AllOf(HasSubstr("the run did not end within 1000 scheduling points"),
                                   HasSubstr("rank 0 is at store check never"), HasSubstr("rank 1 is at store check")));
}

TEST(ExploreTest, KeepsToItsBudgetAndTellsOfItsProgress) {
  const ExploreReport runs = explore(
      {.world = fibers(2), .strategies = {Strategy::random(), Strategy::starve()}, .max_runs = 40}, reduce_ten_times);
  EXPECT_EQ(runs.runs, 40);
  EXPECT_FALSE(runs.verified);
  EXPECT_THAT(runs.text(),
              AllOf(HasSubstr("explored 40 runs in "), HasSubstr("random: 19 runs"), HasSubstr("starve: 19 runs")));

  std::vector<int64_t> told;
  const ExploreReport seconds = explore({.world = fibers(2),
                                         .strategies = {Strategy::random()},
                                         .max_runs = int64_t{1} << 40,
                                         .max_time = absl::Seconds(2),
                                         .progress = [&told](const ExploreProgress& p) { told.push_back(p.runs); }},
                                        reduce_ten_times);
  EXPECT_TRUE(seconds.ok());
  EXPECT_GE(seconds.elapsed, absl::Seconds(2));
  EXPECT_THAT(told.size(), Ge(1u));
}

#if defined(__SANITIZE_THREAD__)
#define RANKLOOM_NO_FORK 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RANKLOOM_NO_FORK 1
#endif
#endif
#ifndef RANKLOOM_NO_FORK
TEST(ExploreTest, SearchesInSeveralProcesses) {
  const auto rare = [](RankContext& rank) {
    for (int i = 0; i < 8; ++i) rank.yield();
    rank.store().append("order", absl::StrCat(rank.rank()));
    if (rank.rank() == 0 && rank.store().get("order") == "3210") throw std::runtime_error("backwards");
  };
  const ExploreReport report = explore({.world = fibers(4),
                                        .strategies = {Strategy::random()},
                                        .max_runs = 20'000,
                                        .processes = 3,
                                        .checks = {.store_values = false}},
                                       rare);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.failure->headline, HasSubstr("backwards"));

  const ExploreReport none = explore(
      {.world = fibers(2), .strategies = {Strategy::random()}, .max_runs = 300, .processes = 2}, reduce_ten_times);
  EXPECT_TRUE(none.ok()) << none.text();
  EXPECT_THAT(none.runs, Ge(250));
}
#endif

TEST(ExploreTest, RunsOnThreadsUnderTheBaton) {
  WorldOptions threads = bug("racy_counter").world();
  threads.engine = EngineKind::kThreads;
  const ExploreReport report =
      explore({.world = threads, .strategies = {Strategy::exhaustive()}, .max_runs = 200}, bug("racy_counter").bug);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_EQ(report.failure->size(), 1);
  EXPECT_TRUE(explore({.world = threads, .strategies = {Strategy::exhaustive()}}, bug("racy_counter").fix).verified);
}

TEST(ExploreTest, RefusesTheFreeGear) {
  setenv("RANKLOOM_SCHEDULE", "free", 1);
  const ExploreReport report = explore({.world = fibers(2)}, reduce_ten_times);
  unsetenv("RANKLOOM_SCHEDULE");
  EXPECT_EQ(report.text(), "explore: the schedule is free, want one that repeats itself");
}

TEST(ExploreTest, LateCompletionIsFoundByWhoeverAsksTooEarly) {
  // A peer's call is done in some schedules when this rank looks, and not in others.
  const auto looks = [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    Work work = pg->all_reduce(x);
    rank.store().add("n", 0);
    const bool done = work.is_completed();
    work.wait();
    observe(rank, "done", done ? 1 : 0);
  };
  const ExploreReport report = explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, looks);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.failure->headline, HasSubstr("\"done\" is 1 here, and 0 under steered:1"));
}

TEST(NoFailureInSchedulesTest, CountsFailedAssertionsOfRanks) {
  const auto body = [](RankContext& rank) {
    const int64_t place = rank.store().add("place", 1);
    EXPECT_EQ(place, rank.rank() + 1) << "not in order";
  };
  const testing::AssertionResult result = no_failure_in_schedules({.world = fibers(2)}, body);
  EXPECT_FALSE(result);
  EXPECT_THAT(
      result.message(),
      AllOf(HasSubstr("explore_test.cc:"), HasSubstr("not in order"), HasSubstr("-> 1 switches from the default order"),
            HasSubstr("trace: "), HasSubstr("--gtest_filter=NoFailureInSchedulesTest.CountsFailedAssertionsOfRanks")));
  EXPECT_TRUE(no_failure_in_schedules({.world = fibers(3)},
                                      [](RankContext& rank) { EXPECT_GE(rank.store().add("place", 1), 1); }));
}

TEST(NoFailureInSchedulesTest, ASkippedRunIsGood) {
  EXPECT_TRUE(no_failure_in_schedules({.world = fibers(2), .max_runs = 20}, [](RankContext& rank) {
    if (rank.rank() == 1) GTEST_SKIP() << "not here";
  }));
}

}  // namespace
}  // namespace rankloom

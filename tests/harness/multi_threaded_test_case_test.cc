#include <gtest/gtest-spi.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "rankloom/error.h"
#include "rankloom/matchers.h"
#include "rankloom/testing.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::_;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::TestPartResult;

// A reported failure or skip, as a text such as "fatal: rank 1: ...".
std::vector<std::string> reports_of(absl::FunctionRef<void()> code) {
  testing::TestPartResultArray parts;
  {
    const testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &parts);
    code();
  }
  std::vector<std::string> texts;
  for (int i = 0; i < parts.size(); ++i) {
    const TestPartResult& part = parts.GetTestPartResult(i);
    texts.push_back(std::string(part.skipped()          ? "skip: "
                                : part.fatally_failed() ? "fatal: "
                                                        : "nonfatal: ") +
                    part.message());
  }
  return texts;
}

std::string property(const std::string& key) {
  const testing::TestResult& result = *testing::UnitTest::GetInstance()->current_test_info()->result();
  for (int i = 0; i < result.test_property_count(); ++i) {
    if (result.GetTestProperty(i).key() == key) return result.GetTestProperty(i).value();
  }
  return "none";
}

// Filled by ranks.
template <typename T>
class Shared {
 public:
  void add(T value) {
    const std::lock_guard lock(mu_);
    values_.insert(std::move(value));
  }
  std::multiset<T> values() const {
    const std::lock_guard lock(mu_);
    return values_;
  }

 private:
  mutable std::mutex mu_;
  std::multiset<T> values_;
};

class RunRanksTest : public MultiThreadedTestCase {};
INSTANTIATE_TEST_SUITE_P(Engines, RunRanksTest, every_engine(), engine_name);

TEST_P(RunRanksTest, AHangIsFatalAfterAMinuteOrAsTheTestSays) {
  run_ranks(1, [](RankContext& rank) { EXPECT_EQ(rank.world().options().stall_is_fatal, absl::Minutes(1)); });
  run_ranks({.world_size = 1, .stall_is_fatal = absl::Hours(1)},
            [](RankContext& rank) { EXPECT_EQ(rank.world().options().stall_is_fatal, absl::Hours(1)); });
}

TEST_P(RunRanksTest, RunsTheBodyOnceOnEachRank) {
  Shared<int> ranks;
  const RunReport report = run_ranks(/*world_size=*/3, [&](RankContext& rank) {
    EXPECT_EQ(rank.world_size(), 3);
    ranks.add(rank.rank());
  });
  EXPECT_THAT(ranks.values(), ElementsAre(0, 1, 2));
  EXPECT_THAT(report, Succeeded());
}

TEST_P(RunRanksTest, UsesFourRanksUnlessTold) {
  std::atomic<int> ranks = 0;
  run_ranks([&](RankContext&) { ++ranks; });
  EXPECT_EQ(ranks, 4);
}

TEST_P(RunRanksTest, RunsOnTheEngineOfTheTestWhateverTheOptionsSay) {
  const EngineKind other = GetParam() == EngineKind::kThreads ? EngineKind::kFibers : EngineKind::kThreads;
  const RunReport report = run_ranks({.world_size = 2, .engine = other}, [](RankContext&) {});
  EXPECT_EQ(report.engine, engine_kind_name(GetParam()));
}

TEST_P(RunRanksTest, TakesTheOptionsAsTheyAre) {
  const RunReport report = run_ranks({.world_size = 2, .schedule = Schedule::pct(5, 2), .recorded_calls = 3},
                                     [](RankContext& rank) { EXPECT_EQ(rank.world().options().recorded_calls, 3); });
  EXPECT_EQ(report.schedule, "pct:5:2");
}

TEST_P(RunRanksTest, RecordsScheduleAndSeedAsProperties) {
  run_ranks({.world_size = 2, .schedule = Schedule::seeded(42)}, [](RankContext&) {});
  EXPECT_EQ(property("schedule"), "seeded:42");
  EXPECT_EQ(property("seed"), "42");
  EXPECT_EQ(property("engine"), engine_kind_name(GetParam()));
  EXPECT_EQ(property("world_size"), "2");
}

TEST_P(RunRanksTest, RanksMeetInTheStore) {
  run_ranks(3, [](RankContext& rank) {
    rank.store().set("from " + std::to_string(rank.rank()), std::to_string(10 * rank.rank()));
    const int next = (rank.rank() + 1) % rank.world_size();
    EXPECT_EQ(rank.store().get("from " + std::to_string(next)), std::to_string(10 * next));
  });
}

TEST_P(RunRanksTest, AWorldMayRunOthersInside) {
  std::atomic<int> inner_ranks = 0;
  run_ranks(2, [&](RankContext& rank) {
    if (rank.rank() == 1) run_ranks(3, [&](RankContext&) { ++inner_ranks; });
  });
  EXPECT_EQ(inner_ranks, 3);
}

class FailuresTest : public MultiThreadedTestCase {};
INSTANTIATE_TEST_SUITE_P(Engines, FailuresTest, every_engine(), engine_name);

TEST_P(FailuresTest, AFailureIsToldUnderItsRankAndTheRankGoesOn) {
  std::atomic<int> ended = 0;
  const auto reports = reports_of([&] {
    run_ranks(3, [&](RankContext& rank) {
      EXPECT_EQ(1 + 1, rank.rank() == 1 ? 3 : 2);
      ++ended;
    });
  });
  EXPECT_THAT(reports, ElementsAre(AllOf(HasSubstr("nonfatal: rank 1: "), HasSubstr("1 + 1"))));
  EXPECT_EQ(ended, 3);
}

TEST_P(FailuresTest, EqualFailuresOfRanksAreOne) {
  const auto reports =
      reports_of([&] { run_ranks(5, [](RankContext& rank) { EXPECT_TRUE(rank.rank() == 3) << "no luck"; }); });
  EXPECT_THAT(reports, ElementsAre(AllOf(HasSubstr("ranks 0-2, 4: "), HasSubstr("no luck"))));
}

TEST_P(FailuresTest, FailuresOfOneLineAreOneWithEachValue) {
  const auto reports = reports_of([&] {
    run_ranks({.world_size = 2, .schedule = Schedule::fifo()}, [](RankContext& rank) { EXPECT_EQ(rank.rank(), 7); });
  });
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_THAT(reports[0], AllOf(HasSubstr("rank 0: "), HasSubstr("\nrank 1: ")));
}

TEST_P(FailuresTest, OfManyValuesTheFirstAreShown) {
  const auto reports = reports_of([&] {
    run_ranks({.world_size = 6, .schedule = Schedule::fifo()}, [](RankContext& rank) {
      for (int i = 0; i < 4; ++i) EXPECT_EQ(10 * (5 - rank.rank()) + i, -1);
    });
  });
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].find("rank 0: "), reports[0].find("rank "));
  EXPECT_THAT(reports[0],
              AllOf(HasSubstr("Which is: 50\n"), HasSubstr("Which is: 52\n"), Not(HasSubstr("Which is: 53\n")),
                    HasSubstr("\n21 more with other values, of ranks 0-5\n")));
}

TEST_P(FailuresTest, TheCommandThatRepeatsThemIsSaidOnce) {
  const auto reports = reports_of([&] {
    run_ranks({.world_size = 2, .schedule = Schedule::seeded(3)}, [](RankContext& rank) {
      EXPECT_EQ(rank.rank(), 7);
      EXPECT_EQ(rank.rank(), 8);
      if (rank.rank() == 1) throw std::runtime_error("and more");
    });
  });
  ASSERT_EQ(reports.size(), 3u);
  for (const size_t i : {0, 1})
    EXPECT_THAT(reports[i], AllOf(Not(HasSubstr("run it again")), Not(HasSubstr("replay it"))));
  EXPECT_THAT(reports[2], AllOf(HasSubstr("\nschedule seeded:3, engine "), HasSubstr("\nreplay it: ")));
  EXPECT_EQ(reports[2].find("run it again"), reports[2].rfind("run it again"));
}

TEST_P(FailuresTest, AFailureInALoopIsCounted) {
  const auto reports = reports_of([&] {
    run_ranks(2, [](RankContext& rank) {
      for (int i = 0; i < 3 * rank.rank(); ++i) ADD_FAILURE() << "again";
    });
  });
  EXPECT_THAT(reports, ElementsAre(HasSubstr("rank 1 (3 times): ")));
}

TEST_P(FailuresTest, AFailureKeepsItsLine) {
  testing::TestPartResultArray parts;
  int line = 0;
  {
    const testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &parts);
    run_ranks(2, [&line](RankContext& rank) {
      if (rank.rank() == 0) line = __LINE__ + 1;
      EXPECT_TRUE(false);
    });
  }
  ASSERT_EQ(parts.size(), 1);
  EXPECT_EQ(parts.GetTestPartResult(0).line_number(), line);
  EXPECT_STREQ(parts.GetTestPartResult(0).file_name(), __FILE__);
}

TEST_P(FailuresTest, AFatalAssertionUnwindsItsRankAndFreesItsPeers) {
  std::atomic<bool> went_on = false;
  RunReport report;
  const auto reports = reports_of([&] {
    report = run_ranks(3, [&](RankContext& rank) {
      if (rank.rank() == 1) {
        const auto check = [] { ASSERT_EQ(2, 3); };
        check();
        went_on = true;
      }
      rank.store().get("what rank 1 never sets");
      went_on = true;
    });
  });
  EXPECT_FALSE(went_on);
  EXPECT_THAT(reports, ElementsAre(HasSubstr("fatal: rank 1: Expected equality")));
  EXPECT_EQ(report.first_failed, 1);
  EXPECT_EQ(report.outcomes[0].state, RunReport::Outcome::State::kStopped);
}

TEST_P(FailuresTest, AnExceptionOfARankFailsTheTest) {
  const auto reports = reports_of([&] {
    run_ranks(3, [&](RankContext& rank) {
      if (rank.rank() == 2) throw std::runtime_error("no disk");
      rank.store().get("nothing");
    });
  });
  EXPECT_THAT(reports, ElementsAre(HasSubstr("fatal: rank 2 failed: no disk")));
}

TEST_P(FailuresTest, ADeadlockFailsTheTest) {
  const auto reports =
      reports_of([&] { run_ranks(2, [&](RankContext& rank) { rank.store().get("nobody sets me"); }); });
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_THAT(reports[0], AllOf(HasSubstr("Deadlock"), HasSubstr("nobody sets me")));
}

TEST_P(FailuresTest, WhatFollowsAnAbortIsMarkedAndComesAfterItsCause) {
  const auto reports = reports_of([&] {
    run_ranks({.world_size = 2, .schedule = Schedule::fifo()}, [&](RankContext& rank) {
      if (rank.rank() == 1) throw std::runtime_error("no disk");
      EXPECT_NO_THROW(rank.store().get("nothing"));
    });
  });
  EXPECT_THAT(reports,
              ElementsAre(HasSubstr("rank 1 failed: no disk"), HasSubstr("rank 0, after the world was aborted: ")));
}

TEST_P(FailuresTest, AnAssertionInAHelperFreesTheWorldToo) {
  const auto reports = reports_of([&] {
    run_ranks(2, [&](RankContext& rank) {
      if (rank.rank() == 1) rank.world().spawn_helper([] { ASSERT_TRUE(false) << "in a helper"; });
      rank.store().get("nothing");
    });
  });
  EXPECT_THAT(reports, ElementsAre(AllOf(HasSubstr("fatal: rank 1: "), HasSubstr("in a helper"))));
}

TEST_P(FailuresTest, AThreadOfItsOwnIsHeardWithoutRank) {
  const auto reports = reports_of(
      [&] { run_ranks(1, [&](RankContext&) { std::thread([] { EXPECT_TRUE(false) << "far away"; }).join(); }); });
  EXPECT_THAT(reports, ElementsAre(AllOf(HasSubstr("nonfatal: Value of"), HasSubstr("far away"))));
}

TEST_P(FailuresTest, AnAssertionWhileUnwindingDoesNotTerminate) {
  struct Checker {
    ~Checker() { check(); }
    static void check() { ASSERT_TRUE(false) << "while unwinding"; }
  };
  const auto reports = reports_of([&] {
    run_ranks(1, [&](RankContext&) {
      const Checker checker;
      throw std::runtime_error("the cause");
    });
  });
  EXPECT_THAT(reports, testing::UnorderedElementsAre(HasSubstr("while unwinding"), HasSubstr("the cause")));
}

TEST_P(FailuresTest, FailuresOfAWorldInsideAreToldUnderBothRanks) {
  const auto reports = reports_of([&] {
    run_ranks(2, [&](RankContext& rank) {
      if (rank.rank() == 1) run_ranks(3, [&](RankContext&) { ADD_FAILURE() << "inside"; });
    });
  });
  EXPECT_THAT(reports, ElementsAre(HasSubstr("rank 1: ranks 0-2: Failed\ninside")));
}

// GoogleTest keeps the innermost reporter per thread and expects scopes to nest; those of fibers do not.
TEST_P(FailuresTest, AssertNoFatalFailureMayEncloseASchedulingPoint) {
  const auto reports = reports_of([&] {
    run_ranks({.world_size = 3, .schedule = Schedule::round_robin()}, [](RankContext& rank) {
      const auto yield_often = [&](int times) {
        for (int i = 0; i < times; ++i) rank.yield();
      };
      ASSERT_NO_FATAL_FAILURE(yield_often(3 + 2 * rank.rank()));
      yield_often(1);
      EXPECT_EQ(rank.world_size(), 4);
      yield_often(3);
      ASSERT_NO_FATAL_FAILURE(yield_often(9 - 2 * rank.rank()));
      EXPECT_EQ(rank.world_size(), 5);
      ASSERT_NO_FATAL_FAILURE({
        yield_often(2);
        EXPECT_EQ(rank.world_size(), 6);
      });
    });
  });
  EXPECT_THAT(reports, ElementsAre(HasSubstr("ranks 0-2: "), HasSubstr("ranks 0-2: "), HasSubstr("ranks 0-2: ")));
}

TEST_P(FailuresTest, AnExpectedFailureOnARankMayEncloseASchedulingPoint) {
  const auto reports = reports_of([&] {
    run_ranks({.world_size = 3, .schedule = Schedule::round_robin()}, [](RankContext& rank) {
      EXPECT_NONFATAL_FAILURE(
          {
            for (int i = 0; i < 3 - rank.rank(); ++i) rank.yield();
            ADD_FAILURE() << "expected";
            for (int i = 0; i < 2 * rank.rank(); ++i) rank.yield();
          },
          "expected");
      ADD_FAILURE() << "after it";
    });
  });
  EXPECT_THAT(reports, ElementsAre(AllOf(HasSubstr("ranks 0-2: "), HasSubstr("after it"))));
}

TEST_P(FailuresTest, AReportedFailureOfTheTestsOwnThreadIsLeftAlone) {
  EXPECT_NONFATAL_FAILURE(run_ranks(2, [](RankContext&) { EXPECT_TRUE(false) << "seen"; }), "ranks 0-1: ");
  EXPECT_NONFATAL_FAILURE(EXPECT_TRUE(false) << "mine", "mine");
}

TEST_P(FailuresTest, ASkipOnRanksSkipsTheTestOnce) {
  std::atomic<bool> went_on = false;
  const auto reports = reports_of([&] {
    run_ranks(3, [&](RankContext& rank) {
      if (rank.rank() == 1) GTEST_SKIP() << "no GPU";
      EXPECT_NO_THROW(rank.store().get("nothing"));
      rank.store().get("nothing");
      went_on = true;
    });
  });
  EXPECT_THAT(reports, ElementsAre(HasSubstr("skip: rank 1: no GPU")));
  EXPECT_FALSE(went_on);
}

TEST_P(FailuresTest, AFailureBeforeASkipCounts) {
  const auto reports = reports_of([&] {
    run_ranks({.world_size = 2, .schedule = Schedule::fifo()}, [&](RankContext& rank) {
      if (rank.rank() == 0) {
        EXPECT_EQ(1, 2);
        return;
      }
      GTEST_SKIP() << "too late";
    });
  });
  EXPECT_THAT(reports, ElementsAre(HasSubstr("nonfatal: rank 0: "), HasSubstr("skip: rank 1: too late")));
}

TEST_P(FailuresTest, DeterministicFailuresSayHowToRunThemAgain) {
  const auto reports = reports_of(
      [&] { run_ranks({.world_size = 2, .schedule = Schedule::seeded(7)}, [](RankContext&) { EXPECT_EQ(1, 2); }); });
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_THAT(reports[0], AllOf(HasSubstr("schedule seeded:7"), HasSubstr("RANKLOOM_SEED=7 "),
                                HasSubstr(std::string("--gtest_filter=") + test.test_suite_name() + "." + test.name()),
                                HasSubstr("replay it: "), HasSubstr("RANKLOOM_REPLAY=")));
}

TEST_P(FailuresTest, TheCommandToRunADisabledTestAgainRunsIt) {
  const bool before = GTEST_FLAG_GET(also_run_disabled_tests);
  GTEST_FLAG_SET(also_run_disabled_tests, true);  // as by the environment: it stands in no command
  const auto reports = reports_of(
      [&] { run_ranks({.world_size = 2, .schedule = Schedule::seeded(7)}, [](RankContext&) { EXPECT_EQ(1, 2); }); });
  GTEST_FLAG_SET(also_run_disabled_tests, before);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_THAT(reports[0], HasSubstr(" --gtest_also_run_disabled_tests --gtest_filter="));
}

class ToFailureTest : public MultiThreadedTestCase {};
INSTANTIATE_TEST_SUITE_P(Engines, ToFailureTest, every_engine(), engine_name);

TEST_P(ToFailureTest, ReturnsTheReportOfAWorldThatFails) {
  const RunReport report = run_ranks_to_failure(2, [](RankContext& rank) {
    if (rank.rank() == 1) throw std::runtime_error("no disk");
    rank.store().get("nothing");
  });
  EXPECT_THAT(report, FailsWith("rank 1 failed: no disk"));
}

TEST_P(ToFailureTest, FailsIfTheWorldDoesNot) {
  const auto reports = reports_of([&] { run_ranks_to_failure([](RankContext&) {}); });
  EXPECT_THAT(reports, ElementsAre(HasSubstr("the world was to fail, but all 4 ranks returned")));
}

TEST_P(ToFailureTest, CountsAssertionsInside) {
  const auto reports = reports_of([&] {
    run_ranks_to_failure(2, [](RankContext& rank) {
      EXPECT_EQ(rank.world_size(), 3);
      if (rank.rank() == 1) throw std::runtime_error("no disk");
    });
  });
  EXPECT_THAT(reports, ElementsAre(HasSubstr("ranks 0-1: ")));
}

TEST(RankTraceTest, DoesNothingInAWorldOfNoFixture) {
  const RunReport report = run_world({.world_size = 1}, [](RankContext& rank) {
    const RankTrace trace(rank, "of nobody");
    EXPECT_EQ(rank.rank(), 0);
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

class SetUpTest : public MultiThreadedTestCase {
 protected:
  int world_size() const override { return 2; }
  WorldOptions options() const override {
    WorldOptions options = MultiThreadedTestCase::options();
    options.recorded_calls = 17;
    return options;
  }
  void set_up_rank(RankContext& rank) override {
    log("set up", rank);
    if (fail_in_set_up) {
      ASSERT_TRUE(false) << "no set-up";
    }
  }
  void tear_down_rank(RankContext& rank) override {
    log("tear down", rank);
    if (fail_in_tear_down) throw std::runtime_error("cannot tear down");
    // A failed rank waits for nobody here.
    if (wait_in_tear_down) rank.store().get("nothing");
  }
  void log(const std::string& what, RankContext& rank) { log_.add(std::to_string(rank.rank()) + " " + what); }

  Shared<std::string> log_;
  bool fail_in_set_up = false;
  bool fail_in_tear_down = false;
  bool wait_in_tear_down = false;
};
INSTANTIATE_TEST_SUITE_P(Engines, SetUpTest, every_engine(), engine_name);

TEST_P(SetUpTest, RunsAroundTheBodyOnEachRank) {
  run_ranks([this](RankContext& rank) {
    log("run", rank);
    EXPECT_EQ(rank.world().options().recorded_calls, 17);
  });
  EXPECT_THAT(log_.values(), ElementsAre("0 run", "0 set up", "0 tear down", "1 run", "1 set up", "1 tear down"));
}

TEST_P(SetUpTest, ABodyIsLeftOutBehindASetUpThatFails) {
  fail_in_set_up = true;
  EXPECT_THAT(reports_of([&] { run_ranks(1, [this](RankContext& rank) { log("run", rank); }); }),
              ElementsAre(HasSubstr("no set-up")));
  EXPECT_THAT(log_.values(), ElementsAre("0 set up", "0 tear down"));
}

TEST_P(SetUpTest, TearsDownAFailedRankInAnAbortedWorld) {
  wait_in_tear_down = true;
  const RunReport report = run_ranks_to_failure([](RankContext& rank) {
    if (rank.rank() == 1) throw std::runtime_error("no disk");
    rank.store().get("nothing");
  });
  EXPECT_THAT(log_.values(), ElementsAre("0 set up", "0 tear down", "1 set up", "1 tear down"));
  EXPECT_THAT(report, FailsWith("rank 1 failed: no disk"));
}

TEST_P(SetUpTest, AFailureOfTheTearDownCounts) {
  fail_in_tear_down = true;
  EXPECT_THAT(run_ranks_to_failure([](RankContext&) {}), FailsWith("failed: cannot tear down"));
}

TEST_P(SetUpTest, TearsDownAfterASkip) {
  EXPECT_THAT(reports_of([&] { run_ranks([](RankContext&) { GTEST_SKIP() << "not today"; }); }),
              ElementsAre(HasSubstr("skip: ")));
  EXPECT_THAT(log_.values(), AllOf(testing::Contains("0 set up"), testing::Contains("0 tear down")));
}

class SeedsTest : public MultiThreadedTestCase {};
INSTANTIATE_TEST_SUITE_P(Engines, SeedsTest, every_engine(), engine_name);

TEST_P(FailuresTest, ACutTraceIsToldOnceWhoeverFailsFirst) {
  for (const bool by_assertion : {true, false}) {
    const auto reports = reports_of([&] {
      run_ranks({.world_size = 2, .schedule = Schedule::seeded(3), .trace_limit = 1}, [&](RankContext& rank) {
        for (int i = 0; i < 5; ++i) rank.yield();
        if (rank.rank() != 0) return;
        if (by_assertion) {
          ASSERT_TRUE(false) << "planned";
        }
        throw std::runtime_error("planned");
      });
    });
    const std::string text = absl::StrJoin(reports, "\n");
    EXPECT_THAT(text, HasSubstr("no trace was kept"));
    EXPECT_EQ(text.find("no trace was kept"), text.rfind("no trace was kept"));
  }
}

TEST_P(SeedsTest, RunsTheBodyUnderEachSeed) {
  std::vector<std::string> schedules;
  seeds(3, [&] {
    schedules.push_back(run_ranks(2, [](RankContext&) {}).schedule);
    schedules.push_back(run_ranks({.world_size = 1}, [](RankContext&) {}).schedule);
    schedules.push_back(run_ranks({.world_size = 1, .schedule = Schedule::fifo()}, [](RankContext&) {}).schedule);
  });
  EXPECT_THAT(schedules, ElementsAre("seeded:1", "seeded:1", "fifo", "seeded:2", "seeded:2", "fifo", "seeded:3",
                                     "seeded:3", "fifo"));
}

TEST_P(SeedsTest, ABodyThatThrowsNamesItsSeedAndEndsTheRound) {
  int rounds = 0;
  const auto reports = reports_of([&] {
    EXPECT_THROW(seeds(
                     3,
                     [&] {
                       ++rounds;
                       throw std::runtime_error("no disk");
                     },
                     /*first=*/5),
                 std::runtime_error);
  });
  EXPECT_EQ(rounds, 1);
  EXPECT_THAT(reports, ElementsAre(HasSubstr("threw in schedule seeded:5 (1 of at most 3); run it again: ")));
  const std::string own = GetParam() == EngineKind::kFibers ? "fifo" : "free";
  EXPECT_EQ(run_ranks(1, [](RankContext&) {}).schedule, own);
}

// A fixture whose options name a schedule themselves.
class FifoSeedsTest : public MultiThreadedTestCase {
  WorldOptions options() const override {
    WorldOptions options = MultiThreadedTestCase::options();
    options.schedule = Schedule::fifo();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Engines, FifoSeedsTest, every_engine(), engine_name);

TEST_P(FifoSeedsTest, SeedsGoBeforeTheFixturesOptions) {
  std::vector<std::string> schedules;
  seeds(2, [&] { schedules.push_back(run_ranks(2, [](RankContext&) {}).schedule); });
  schedules.push_back(run_ranks(2, [](RankContext&) {}).schedule);
  EXPECT_THAT(schedules, ElementsAre("seeded:1", "seeded:2", "fifo"));
}

TEST_P(SeedsTest, AnAssertionSaysWhyNoTraceIsThere) {
  const auto reports = reports_of([&] {
    run_ranks({.world_size = 2, .schedule = Schedule::seeded(3), .trace_limit = 1}, [](RankContext& rank) {
      for (int i = 0; i < 5; ++i) rank.yield();
      EXPECT_TRUE(false) << "planned";
    });
  });
  EXPECT_THAT(reports, ElementsAre(AllOf(HasSubstr("no trace was kept: the run made more than 1 choice"),
                                         testing::Not(HasSubstr("replay it: ")))));
}

TEST_P(SeedsTest, AnAssertionInAWatchIsOfTheRankThatLeftIt) {
  RunReport report;
  const auto reports = reports_of([&] {
    report = run_ranks_to_failure(2, [](RankContext& rank) {
      if (rank.rank() == 1) {
        rank.store().wait({"left"});
        rank.store().set("k", "v");
        return;
      }
      rank.store().watch_key("k", [](std::optional<std::string_view>, std::optional<std::string_view>) {
        EXPECT_EQ(1, 4) << "in the watch";
        ASSERT_TRUE(false) << "and behind it";
      });
      rank.store().set("left", "");
      rank.store().wait({"k"});
      rank.store().wait({"never"});
    });
  });
  EXPECT_EQ(report.first_failed, 0);
  EXPECT_THAT(reports, testing::Contains(AllOf(HasSubstr("rank 0: "), HasSubstr("in the watch"))));
  EXPECT_THAT(reports, testing::Contains(AllOf(HasSubstr("rank 0: "), HasSubstr("and behind it"))));
}

TEST_P(SeedsTest, NotesOfAGoodRunArePrinted) {
  testing::internal::CaptureStdout();
  run_ranks(1, [](RankContext& rank) { rank.world().note("left behind"); });
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("note: left behind\n"));
}

TEST_P(SeedsTest, BeginsWhereItIsTold) {
  std::vector<std::string> schedules;
  seeds(
      2, [&] { schedules.push_back(run_ranks(2, [](RankContext&) {}).schedule); }, /*first=*/40);
  EXPECT_THAT(schedules, ElementsAre("seeded:40", "seeded:41"));
}

// One round, whose other runs are made as they were when that one failed.
TEST_P(SeedsTest, ObeysAnEnvironmentThatMeansOneRunOfTheRound) {
  const auto restore = absl::MakeCleanup([] {
    unsetenv("RANKLOOM_REPLAY_RUN");
    unsetenv("RANKLOOM_SEED");
  });
  setenv("RANKLOOM_REPLAY_RUN", "2", 1);
  setenv("RANKLOOM_SEED", "7", 1);
  std::vector<std::string> schedules;
  seeds(3, [&] {
    schedules.push_back(run_ranks(2, [](RankContext&) {}).schedule);
    schedules.push_back(run_ranks({.world_size = 1, .schedule = Schedule::fifo()}, [](RankContext&) {}).schedule);
    schedules.push_back(run_ranks({.world_size = 1, .schedule = Schedule::fifo()}, [](RankContext&) {}).schedule);
  });
  EXPECT_THAT(schedules, ElementsAre("seeded:7", "seeded:7", "fifo"));
}

TEST_P(SeedsTest, SchedulesDifferAndRepeat) {
  const auto order = [this](uint64_t seed) {
    std::string order;  // one rank runs at a time
    seeds(
        1,
        [&] {
          run_ranks(3, [&](RankContext& rank) {
            for (int i = 0; i < 4; ++i) {
              rank.yield();
              order += std::to_string(rank.rank());
            }
          });
        },
        seed);
    return order;
  };
  std::set<std::string> orders;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    orders.insert(order(seed));
    EXPECT_EQ(order(seed), order(seed));
  }
  EXPECT_GT(orders.size(), 5u);
}

class TraceTest : public MultiThreadedTestCase {};
INSTANTIATE_TEST_SUITE_P(Engines, TraceTest, every_engine(), engine_name);

TEST_P(TraceTest, BelongsToItsRankAcrossSchedulingPoints) {
  const auto reports = reports_of([&] {
    run_ranks({.world_size = 2, .schedule = Schedule::seeded(3)}, [](RankContext& rank) {
      const RankTrace trace(rank, "of rank " + std::to_string(rank.rank()));
      for (int i = 0; i < 5; ++i) rank.yield();
      ADD_FAILURE() << "here";
      for (int i = 0; i < 5; ++i) rank.yield();
    });
  });
  ASSERT_EQ(reports.size(), 1u);
  const size_t second = reports[0].find("\nrank 1: ");
  ASSERT_NE(second, std::string::npos);
  for (const bool first : {true, false}) {
    const std::string text = first ? reports[0].substr(0, second) : reports[0].substr(second);
    EXPECT_THAT(text,
                AllOf(HasSubstr(std::string("Rank trace:\n") + __FILE__ + ":"),
                      HasSubstr(first ? "of rank 0" : "of rank 1"), Not(HasSubstr(first ? "of rank 1" : "of rank 0"))));
  }
}

TEST_P(TraceTest, TheInnermostComesFirstAndEndsWithItsScope) {
  const auto reports = reports_of([&] {
    run_ranks(1, [](RankContext& rank) {
      const RankTrace outer(rank, "outer");
      {
        const RankTrace inner(rank, "inner");
        ADD_FAILURE() << "both";
      }
      ADD_FAILURE() << "one";
    });
  });
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_LT(reports[0].find("inner"), reports[0].find("outer"));
  EXPECT_THAT(reports[1], AllOf(HasSubstr("outer"), Not(HasSubstr("inner"))));
}

TEST_P(TraceTest, EqualFailuresUnderEqualTracesAreOne) {
  const auto reports = reports_of([&] {
    run_ranks(3, [](RankContext& rank) {
      const RankTrace trace(rank, "round 1");
      ADD_FAILURE() << "alike";
    });
  });
  EXPECT_THAT(reports, ElementsAre(AllOf(HasSubstr("ranks 0-2: "), HasSubstr("round 1"))));
}

class OutputTest : public MultiThreadedTestCase {};
INSTANTIATE_TEST_SUITE_P(Engines, OutputTest, every_engine(), engine_name);

TEST_P(OutputTest, IsKeptPerRank) {
  capture_output(true);
  run_ranks(2, [](RankContext& rank) {
    for (int i = 0; i < 3; ++i) {
      std::cout << rank.rank() << i << '\n';
      rank.yield();
      (i == 1 ? std::cerr : std::clog) << "e" << rank.rank() << std::endl;
    }
  });
  EXPECT_EQ(rank_output(0), "00\ne0\n01\ne0\n02\ne0\n");
  EXPECT_EQ(rank_output(1), "10\ne1\n11\ne1\n12\ne1\n");
  EXPECT_EQ(rank_output(2), "");
}

TEST_P(OutputTest, IsPrintedUnderItsRanksIfTheRunFails) {
  capture_output(true);
  testing::internal::CaptureStdout();
  reports_of([&] {
    run_ranks(3, [](RankContext& rank) {
      std::cout << (rank.rank() == 1 ? "I am one\nyes" : "hello\n");
      EXPECT_TRUE(false);
    });
  });
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "ranks 0, 2 | hello\nrank 1 | I am one\nrank 1 | yes\n");
}

TEST_P(OutputTest, IsNotPrintedIfTheRunSucceeds) {
  capture_output(true);
  testing::internal::CaptureStdout();
  run_ranks(2, [](RankContext&) { std::cout << "hello\n"; });
  std::cout << "after\n";
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "after\n");
}

TEST_P(OutputTest, OfThreadsWithoutRankGoesWhereItWent) {
  capture_output(true);
  testing::internal::CaptureStdout();
  run_ranks(1, [](RankContext&) {
    std::cout << "mine\n";
    std::thread([] { std::cout << "elsewhere\n"; }).join();
  });
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "elsewhere\n");
  EXPECT_EQ(rank_output(0), "mine\n");
}

// Not parameterised: engine() says which.
class OneEngineTest : public MultiThreadedTestCase {
 protected:
  EngineKind engine() const override { return EngineKind::kFibers; }
};

TEST_F(OneEngineTest, RunsWithoutParameter) {
  EXPECT_EQ(run_ranks([](RankContext&) {}).engine, "fibers");
}

class NoEngineTest : public MultiThreadedTestCase {};

TEST_F(NoEngineTest, RunsOnThreads) {
  EXPECT_EQ(run_ranks([](RankContext&) {}).engine, "threads");
}

// The output of ranks is kept by world, and in whatever order those end that keep it.
TEST(RankOutputTest, MayEndInAnyOrder) {
  World first({.world_size = 1});
  World second({.world_size = 2});
  std::streambuf* const before = std::cout.rdbuf();
  {
    auto of_first = std::make_unique<RankOutput>(&first);
    const RankOutput of_second(&second);
    first.run([](RankContext&) { std::cout << "of the first"; });
    EXPECT_THAT(of_first->texts(), ElementsAre("of the first"));
    of_first.reset();
    second.run([](RankContext& rank) { std::cout << "of the second " << rank.rank(); });
    EXPECT_THAT(of_second.texts(), ElementsAre("of the second 0", "of the second 1"));
    EXPECT_NE(std::cout.rdbuf(), before);
  }
  EXPECT_EQ(std::cout.rdbuf(), before);
}

TEST(RankOutputTest, KeepsNothingOfAnotherWorldAtTheSameAddress) {
  std::optional<World> world;
  world.emplace(WorldOptions{.world_size = 1});
  const RankOutput output(&*world);
  world.reset();
  world.emplace(WorldOptions{.world_size = 8});
  std::ostringstream shown;
  std::streambuf* const before = std::cerr.rdbuf(shown.rdbuf());
  world->run([](RankContext& rank) {
    if (rank.rank() == 7) std::cerr << "not kept";
  });
  std::cerr.rdbuf(before);
  EXPECT_THAT(output.texts(), ElementsAre(""));
  EXPECT_EQ(shown.str(), "not kept");
}

TEST(RankOutputTest, AStreamThatGotAnotherBufferMeanwhileKeepsIt) {
  World world({.world_size = 1});
  std::ostringstream shown;
  std::streambuf* const before = std::clog.rdbuf();
  std::streambuf* ours = nullptr;
  {
    const RankOutput output(&world);
    ours = std::clog.rdbuf(shown.rdbuf());
  }
  EXPECT_EQ(std::clog.rdbuf(), shown.rdbuf());
  std::clog.rdbuf(ours);
  std::clog << "" << std::flush;  // its buffer is there
  std::clog.rdbuf(before);
}

RankLocal<std::unique_ptr<RankTrace>> kept_trace;

TEST_P(TraceTest, MayOutliveTheRun) {
  const auto reports = reports_of([&] {
    run_ranks(2, [](RankContext& rank) {
      *kept_trace = std::make_unique<RankTrace>(rank, "kept");
      if (rank.rank() == 1) ADD_FAILURE() << "here";
    });
  });
  EXPECT_THAT(reports, ElementsAre(HasSubstr("kept")));
}

// A fixture that somebody made, without a test.
class MadeByHand : public MultiThreadedTestCase {
 public:
  explicit MadeByHand(int* runs) : runs_(*runs) {}
  void TestBody() override {}
  EngineKind engine() const override { return EngineKind::kFibers; }
  void run_seeds() {
    seeds(1, [this] { ++runs_; });
  }
  void run_one() {
    run_ranks(2, [this](RankContext&) { ++runs_; });
  }

 private:
  int& runs_;
};

std::vector<std::string> refused_outside;

class OutsideOfTests final : public testing::Environment {
 public:
  void SetUp() override {
    int runs = 0;
    for (void (MadeByHand::*call)() : {&MadeByHand::run_seeds, &MadeByHand::run_one}) {
      try {
        (MadeByHand(&runs).*call)();
        refused_outside.push_back("ran");
      } catch (const DistError& error) {
        refused_outside.emplace_back(error.what());
      }
    }
  }
};
[[maybe_unused]] testing::Environment* const outside = testing::AddGlobalTestEnvironment(new OutsideOfTests);

TEST(OutsideOfTestsTest, SeedsAreRefused) {
  EXPECT_THAT(
      refused_outside,
      ElementsAre(HasSubstr("MultiThreadedTestCase: no test is running, want calls from within a test"), "ran"));
}

}  // namespace
}  // namespace rankloom

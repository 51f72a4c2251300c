// Waits that take too long: warnings, timeouts, and the barrier that names who does not come.

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/matchers.h"
#include "rankloom/process_group.h"
#include "rankloom/sync.h"
#include "sim/base/parker.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

class TimeoutsTest : public EveryWorldTest {
 protected:
  // A world whose warnings are kept, and set the key "warned", so that a rank can come late for sure.
  WorldOptions warned_options(int world_size) {
    WorldOptions world = options(world_size);
    world.on_warning = [this](const std::string& text) {
      warnings_.push_back(text);
      RankContext::current()->store().set("warned", "");
    };
    return world;
  }
  static void await_warning(RankContext& rank) { rank.store().wait({"warned"}, absl::Minutes(5)); }

  std::vector<std::string> warnings_;  // by one rank only
};
INSTANTIATE_TEST_SUITE_P(Worlds, TimeoutsTest, every_world(), world_name);

// A schedule that keeps a rank waiting for long is no reason to let an hour pass: others poll for what that rank does.
TEST(StarvedRankTest, DoesNotTimeOutWhileTheOthersPoll) {
  for (const bool both : {false, true}) {
    for (uint64_t seed = 1; seed <= 400; ++seed) {
      const RunReport report = run_world(
          {.world_size = 2, .engine = EngineKind::kFibers, .schedule = Schedule::starve(seed)}, [&](RankContext& rank) {
            auto pg = init_process_group(rank);
            Work work = pg->barrier();
            while ((both || rank.rank() == 0) && !work.is_completed()) rank.yield();
            work.wait();
            EXPECT_EQ(rank.now(), absl::ZeroDuration());
          });
      ASSERT_TRUE(report.ok()) << report.text();
    }
  }
}

// Nor may ranks that ask, act and wait for each other keep a third from what they ask for.
TEST(StarvedRankTest, RunsBesideLoopsThatAskAndWait) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    for (const Schedule& schedule : {Schedule::pct(seed, 1), Schedule::starve(seed), Schedule::seeded(seed)}) {
      const RunReport report =
          run_world({.world_size = 3, .engine = EngineKind::kFibers, .schedule = schedule, .max_steps = 100'000},
                    [](RankContext& rank) {
                      auto pg = init_process_group(rank);
                      auto pair = pg->new_group({0, 1});
                      if (rank.rank() == 2) {
                        for (int i = 0; i < 10; ++i) rank.store().set("computes", absl::StrCat(i));
                        return rank.store().set("stop", "");
                      }
                      for (int64_t stop = 0; stop == 0;) {
                        std::vector<int64_t> x = {rank.store().check({"stop"}) ? 1 : 0};
                        pair->all_reduce(x).wait();
                        stop = x[0];
                      }
                      EXPECT_EQ(rank.now(), absl::ZeroDuration());
                    });
      ASSERT_TRUE(report.ok()) << schedule.text() << ": " << report.text();
    }
  }
}

// Collectives whose end is polled for, beside a peer that sleeps.
TEST(BusyWorldTest, TimePassesForLoopsOfCollectivesThatArePolled) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    for (const Schedule& schedule : {Schedule::pct(seed, 3), Schedule::starve(seed), Schedule::seeded(seed)}) {
      const RunReport report =
          run_world({.world_size = 4, .engine = EngineKind::kFibers, .schedule = schedule, .max_steps = 5'000'000},
                    [](RankContext& rank) {
                      auto pg = init_process_group(rank);
                      auto pollers = pg->new_group({0, 1, 2});
                      if (rank.rank() == 3) {
                        rank.sleep_for(absl::Milliseconds(1));
                        return rank.store().set("stop", "");
                      }
                      for (int64_t stop = 0; stop == 0;) {
                        std::vector<int64_t> x = {rank.store().check({"stop"}) ? 1 : 0};
                        Work work = pollers->all_reduce(x);
                        while (!work.is_completed()) rank.yield();
                        stop = x[0];
                      }
                    });
      ASSERT_TRUE(report.ok()) << schedule.text() << ": " << report.text();
    }
  }
}

// Tasks that begin and end in a loop that polls keep no peer asleep.
TEST(BusyWorldTest, TimePassesForLoopsThatSpawnHelpers) {
  for (const Schedule& schedule : {Schedule::fifo(), Schedule::round_robin(), Schedule::pct(3, 3)}) {
    const RunReport report =
        run_world({.world_size = 3, .engine = EngineKind::kFibers, .schedule = schedule, .max_steps = 2'000'000},
                  [](RankContext& rank) {
                    if (rank.rank() == 0) {
                      rank.sleep_for(absl::Milliseconds(1));
                      return rank.store().set("stop", "");
                    }
                    while (!rank.store().check({"stop"})) {
                      auto done = std::make_shared<Latch>(1);
                      rank.world().spawn_helper([done] { done->count_down(); });
                      while (!done->try_wait()) rank.yield();
                    }
                  });
    EXPECT_TRUE(report.ok()) << report.text();
  }
}

// Many ranks make many points, and none of them means that somebody waits in vain.
TEST(BusyWorldTest, TimeStandsStillWhileRanksAct) {
  const RunReport report = run_world({.world_size = 1000, .engine = EngineKind::kFibers, .schedule = Schedule::fifo()},
                                     [](RankContext& rank) {
                                       auto pg = init_process_group(rank);
                                       if (rank.rank() == 1) return pg->barrier().wait(absl::Minutes(10));
                                       for (int i = 0; i < 3000; ++i) rank.store().add("done", 1);
                                       pg->barrier().wait();
                                       EXPECT_EQ(rank.now(), absl::ZeroDuration());
                                     });
  EXPECT_TRUE(report.ok()) << report.text();
}

// ---- warnings

TEST_P(TimeoutsTest, WarnsOfAWaitThatGoesOn) {
  WorldOptions world = warned_options(3);
  const RunReport report = run(std::move(world), [this](RankContext& rank) {
    auto pg = init_process_group(rank, {.timeout = absl::Seconds(100)});
    std::vector<int64_t> x = {rank.rank() + 1};
    if (rank.rank() == 2) await_warning(rank);
    if (rank.rank() == 0) pg->set_warn_after(absl::Milliseconds(2));
    pg->all_reduce(x).wait();
    EXPECT_THAT(x, ElementsAre(6));
    if (rank.rank() == 0 && deterministic()) {
      EXPECT_EQ(rank.now(), absl::Milliseconds(2));
    }
  });
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], StartsWith("rank 0, group 0, all_reduce seq 1: has waited 2ms for rank"));
  EXPECT_THAT(warnings_[0], HasSubstr(", times out after 1m40s [group 0, timeouts_test.cc:"));
  EXPECT_THAT(report.notes, ElementsAre(warnings_[0]));
  EXPECT_THAT(report.text(), HasSubstr("note: rank 0, group 0, all_reduce seq 1: has waited 2ms"));
}

TEST_P(TimeoutsTest, TakesTheTimeOfTheCallOfTheGroupOrOfTheWorld) {
  WorldOptions world = warned_options(2);
  world.warn_after = absl::Seconds(3);
  run(std::move(world), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    EXPECT_EQ(pg->warn_after(), absl::Seconds(3));
    auto other = pg->new_group({.warn_after = absl::Seconds(2)});
    EXPECT_EQ(other->warn_after(), absl::Seconds(2));
    auto child = other->new_group();
    EXPECT_EQ(child->warn_after(), absl::Seconds(2));
    EXPECT_EQ(init_process_group(rank, {.warn_after = absl::Seconds(1)})->warn_after(), absl::Seconds(1));
    if (rank.rank() == 1) {
      await_warning(rank);
      pg->barrier({}, "the end").wait();
    } else {
      pg->barrier({.warn_after = absl::Milliseconds(1)}, "the end").wait();
    }
  });
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr("barrier seq 2 the end: has waited 1ms for rank 1, times out after 30m"));
}

TEST_P(TimeoutsTest, WarnsInPointToPointAndCoalescedCalls) {
  WorldOptions world = warned_options(2);
  run(std::move(world), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {rank.rank()};
    if (rank.rank() == 1) {
      await_warning(rank);
      pg->send(x, 0, 4).wait();
      rank.store().delete_key("warned");
      rank.store().set("again", "");
      await_warning(rank);
    } else {
      pg->recv(x, 1, 4, {.warn_after = absl::Milliseconds(1)}).wait();
      EXPECT_THAT(x, ElementsAre(1));
      rank.store().wait({"again"});
    }
    pg->start_coalescing();
    (void)pg->all_reduce(x);
    if (rank.rank() == 0) {
      pg->end_coalescing({.warn_after = absl::Milliseconds(3)}).wait();
    } else {
      pg->end_coalescing().wait();
    }
  });
  ASSERT_THAT(warnings_, SizeIs(2));
  EXPECT_THAT(warnings_[0], StartsWith("rank 0, group 0, recv from rank 1, tag 4: has waited 1ms for rank 1, times out "
                                       "after 30m [group 0, timeouts_test.cc:"));
  EXPECT_THAT(warnings_[1], StartsWith("rank 0, group 0, coalesced seq 1: has waited 3ms for rank 1"));
}

TEST_P(TimeoutsTest, FailsAfterTheWarning) {
  WorldOptions world = warned_options(2);
  const RunReport report = run(std::move(world), [this](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) return rank.store().wait({"over"}, absl::Hours(1));
    std::vector<int64_t> x = {7};
    Work work =
        pg->all_reduce(x, ReduceOp::kSum, {.timeout = absl::Milliseconds(6), .warn_after = absl::Milliseconds(2)});
    EXPECT_THAT(
        [&] { work.wait(); },
        ThrowsDistError(ErrorKind::kTimeout,
                        HasSubstr("rank 0, group 0, all_reduce seq 1: timed out after 6ms waiting for rank 1")));
    if (deterministic()) {
      EXPECT_EQ(rank.now(), absl::Milliseconds(6));
    }
    EXPECT_THAT(x, ElementsAre(7));
    rank.store().set("over", "");
  });
  EXPECT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("has waited 2ms for rank 1, times out after 6ms")));
}

TEST_P(TimeoutsTest, TakesHalfAnHourInNoTime) {
  if (!deterministic()) GTEST_SKIP() << "time is virtual in deterministic runs only";
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) return rank.sleep_for(absl::Hours(2));
    EXPECT_THAT([&] { pg->barrier().wait(); }, ThrowsDistError(ErrorKind::kTimeout, HasSubstr("timed out after 30m")));
    EXPECT_EQ(rank.now(), absl::Minutes(30));
  });
}

TEST_P(TimeoutsTest, ReportsAStuckJobAtOnceAllTheSame) {
  WorldOptions world = warned_options(2);
  world.warn_after = absl::Minutes(1);
  const RunReport report = run_to_failure(std::move(world), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) pg->barrier().wait();
  });
  EXPECT_THAT(report.text(), StartsWith("Deadlock: no rank can move\n"));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_P(TimeoutsTest, SaysWhatTheOthersDidLast) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    pg->barrier({}, "start").wait();
    if (rank.rank() != 0) return rank.store().wait({"over"}, absl::Hours(1));
    EXPECT_THAT(
        [&] { pg->barrier({.timeout = absl::Milliseconds(2)}).wait(); },
        ThrowsDistError(ErrorKind::kTimeout,
                        AllOf(HasSubstr("timed out after 2ms waiting for ranks 1-2 [group 0, timeouts_test.cc:"),
                              HasSubstr("\n  last call of rank 1: barrier seq 1 (completed) [group 0, "
                                        "timeouts_test.cc:"),
                              HasSubstr("\n  last call of rank 2: barrier seq 1 (completed)"))));
    rank.store().set("over", "");
  });
}

// A page of memory that holds whoever touches it first, in the middle of what it does, for a while.
class HoldingPage {
 public:
  HoldingPage() {
    held_ = passed_ = false;
    let_go_at_ns_ = std::numeric_limits<int64_t>::max();
    page_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(page_, MAP_FAILED);
    struct sigaction action = {};
    action.sa_sigaction = &hold;
    action.sa_flags = SA_SIGINFO;
    EXPECT_EQ(sigaction(SIGSEGV, &action, &before_), 0);
  }
  ~HoldingPage() {
    EXPECT_EQ(sigaction(SIGSEGV, &before_, nullptr), 0);
    EXPECT_EQ(munmap(page_, kBytes), 0);
  }
  HoldingPage(const HoldingPage&) = delete;
  HoldingPage& operator=(const HoldingPage&) = delete;

  std::span<int32_t> numbers() const { return {static_cast<int32_t*>(page_), kBytes / sizeof(int32_t)}; }
  // From now on.
  void close() const { EXPECT_EQ(mprotect(page_, kBytes, PROT_NONE), 0); }
  // Until somebody is held.
  static void await_held() {
    while (!held_) sched_yield();
  }
  static void let_go_at(int64_t ns) { let_go_at_ns_ = ns; }
  static bool passed() { return passed_; }

 private:
  static constexpr size_t kBytes = 4096;

  static void hold(int /*signal*/, siginfo_t* info, void* /*context*/) {
    const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
    const auto page = reinterpret_cast<uintptr_t>(page_);
    if (at < page || at >= page + kBytes) {
      (void)signal(SIGSEGV, SIG_DFL);  // a true one, which comes again now
      return;
    }
    held_ = true;
    while (monotonic_ns() < let_go_at_ns_) sched_yield();
    passed_ = true;
    (void)mprotect(page_, kBytes, PROT_READ | PROT_WRITE);
  }

  inline static void* page_ = nullptr;
  inline static std::atomic<bool> held_ = false;
  inline static std::atomic<bool> passed_ = false;
  inline static std::atomic<int64_t> let_go_at_ns_ = 0;
  struct sigaction before_ = {};
};

TEST(TimeoutWhileTheKernelRuns, WaitsForTheKernel) {
  const HoldingPage page;
  run_world({.world_size = 2}, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> x(page.numbers().size(), 5);
    if (rank.rank() == 1) {
      std::fill(page.numbers().begin(), page.numbers().end(), 2);
      page.close();
      rank.store().wait({"called"});
      pg->all_reduce(page.numbers()).wait();  // the last to come, it runs the kernel
      return;
    }
    Work work = pg->all_reduce(x);
    rank.store().set("called", "1");
    HoldingPage::await_held();
    HoldingPage::let_go_at(monotonic_ns() + 300'000'000);  // long after the time below
    work.wait(absl::Milliseconds(2));
    EXPECT_TRUE(HoldingPage::passed());
    EXPECT_THAT(x, Each(7));
  }).throw_if_failed();
}

// In real time: under a schedule, time stands still while a rank computes.
void expect_time_of_stall(absl::Duration stall, const char* time) {
  std::atomic<bool> stalled{false}, over{false};
  WorldOptions world = {.world_size = 2, .stall = stall};
  world.on_stall = [&stalled](const std::string& text) {
    if (text.starts_with("rank 1 ") && text.find("store set") != std::string::npos) stalled = true;
  };
  const RunReport report = run_world(world, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) {
      rank.store().set("a", "", CodeSite{"some/train.cc", 7});
      while (!over) sched_yield();
      return;
    }
    while (!stalled) sched_yield();
    std::string text;
    try {
      pg->barrier({.timeout = absl::Milliseconds(1)}, "", CodeSite{"some/train.cc", 12})
          .wait(CodeSite{"some/train.cc", 13});
    } catch (const DistError& error) {
      text = error.what();
    }
    over = true;
    EXPECT_THAT(text, testing::MatchesRegex(absl::StrCat(
                          "Timeout: rank 0, group 0, barrier seq 1: timed out after 1ms waiting for rank 1 "
                          "\\[group 0, train.cc:13\\]\n"
                          "  last point of rank 1: store set \\[train.cc:7\\]\n"
                          "  rank 1 has come to no scheduling point for ",
                          time, " of real time: it computes, or it blocks in what is not rankloom's")));
  });
  EXPECT_THAT(report.text(), Not(HasSubstr("rank 1 failed")));
}

TEST(StalledTest, ATimeoutSaysForHowLongARankHasComeToNoPoint) {
  expect_time_of_stall(absl::Milliseconds(20), "([1-9][0-9]+ms|[1-9][0-9]*(\\.[0-9])?s)");
  expect_time_of_stall(absl::Milliseconds(1100), "[1-9][0-9]*(\\.[0-9])?s");
}

TEST_P(TimeoutsTest, RefusesNegativeTimes) {
  run(1, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const auto refuses = [](auto call, const std::string& text) {
      EXPECT_THAT(
          call, ThrowsDistError(ErrorKind::kInvalidArgument, StartsWith("InvalidArgument: rank 0, group 0, " + text)));
    };
    refuses([&] { pg->set_timeout(absl::Seconds(-1)); }, "set_timeout: timeout is -1s, want 0 or more");
    refuses([&] { pg->set_warn_after(absl::Seconds(-2)); }, "set_warn_after: warn_after is -2s, want 0 or more");
    refuses([&] { (void)pg->barrier({.timeout = absl::Seconds(-3)}); },
            "barrier seq 1: timeout is -3s, want 0 or more");
    refuses([&] { (void)pg->barrier({.warn_after = absl::Seconds(-4)}); },
            "barrier seq 1: warn_after is -4s, want 0 or more");
    refuses([&] { pg->monitored_barrier(absl::Seconds(-5)); },
            "monitored_barrier seq 1: timeout is -5s, want 0 or more");
    refuses([&] { pg->new_group({.warn_after = absl::Seconds(-6)}); }, "new_group: warn_after is -6s, want 0 or more");
    EXPECT_EQ(pg->sequence_number(), 0);
  });
}

// ---- monitored_barrier

TEST_P(TimeoutsTest, MonitoredBarrierPassesWhenAllCome) {
  run(5, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 3) rank.sleep_for(absl::Milliseconds(1));
    pg->monitored_barrier(absl::Minutes(5), rank.rank() % 2 == 0, "step 1");
    pg->monitored_barrier();
    EXPECT_EQ(pg->sequence_number(), 2);
    auto two = pg->new_group({1, 4});
    if (two != nullptr) two->monitored_barrier(absl::Minutes(5), true);
  });
}

TEST_P(TimeoutsTest, MonitoredBarrierNamesTheMissingRankAndItsLabel) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) {
      rank.store().wait({"over"}, absl::Hours(1));
      EXPECT_THAT([&] { pg->monitored_barrier({}, false, "epoch 3"); },
                  ThrowsDistError(
                      ErrorKind::kAborted,
                      ContainsRegex("rank 1, group 0, monitored_barrier seq 1 \\[timeouts_test.cc:[0-9]+\\]: the group "
                                    "failed before: rank 0, group 0, monitored_barrier seq 1 epoch 3: timed out "
                                    "after 2ms")));
      return;
    }
    EXPECT_THAT([&] { pg->monitored_barrier(absl::Milliseconds(2), false, "epoch 3"); },
                ThrowsDistError(ErrorKind::kTimeout,
                                StartsWith("Timeout: rank 0, group 0, monitored_barrier seq 1 epoch 3: timed out after "
                                           "2ms waiting for rank 1 [group 0, timeouts_test.cc:")));
    rank.store().set("over", "");
  });
}

TEST_P(TimeoutsTest, MonitoredBarrierNamesAllMissingRanksToAllWhoCame) {
  if (!deterministic()) GTEST_SKIP() << "who comes first is known in deterministic runs only";
  const RunReport report = run_to_failure(6, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) return;
    if (rank.rank() == 4 || rank.rank() == 5) return rank.sleep_for(absl::Hours(1));
    rank.sleep_for(absl::Seconds(rank.rank()));
    // Rank 0 gives up at 10 s, for all; the others' time would not be up.
    pg->monitored_barrier(absl::Seconds(10), rank.rank() != 0);
  });
  EXPECT_THAT(
      report.text(),
      StartsWith("rank 0 failed: Timeout: rank 0, group 0, monitored_barrier seq 1: timed out after 10s waiting for "
                 "ranks 4-5 and rank 1 (returned) [group 0, timeouts_test.cc:"));
}

TEST_P(TimeoutsTest, MonitoredBarrierThatWaitsForAllGivesLateRanksTheirTime) {
  if (!deterministic()) GTEST_SKIP() << "who comes first is known in deterministic runs only";
  for (const bool wait_all : {true, false}) {
    run(3, [wait_all](RankContext& rank) {
      auto pg = init_process_group(rank);
      if (rank.rank() == 2) return rank.sleep_for(absl::Hours(1));
      if (rank.rank() == 1) rank.sleep_for(absl::Seconds(4));
      EXPECT_THAT([&] { pg->monitored_barrier(absl::Seconds(5), wait_all); },
                  ThrowsDistError(ErrorKind::kTimeout, HasSubstr(" waiting for rank 2 [")));
      // With wait_all_ranks, until the time of rank 1 is up, too.
      EXPECT_EQ(rank.now(), absl::Seconds(wait_all ? 9 : 5));
    });
  }
}

TEST_P(TimeoutsTest, MonitoredBarrierWaitsForAllAsLongAsSomebodyHasTime) {
  if (!deterministic()) GTEST_SKIP() << "who comes first is known in deterministic runs only";
  for (const absl::Duration long_time : {absl::InfiniteDuration(), absl::Hours(24 * 366 * 300)}) {
    run(3, [long_time](RankContext& rank) {
      auto pg = init_process_group(rank);
      rank.sleep_for(absl::Seconds(1));  // a time that ends beyond the clock's
      if (rank.rank() == 2) {
        rank.sleep_for(absl::Hours(1));
        return pg->monitored_barrier();
      }
      pg->monitored_barrier(rank.rank() == 0 ? long_time : absl::Seconds(5), /*wait_all_ranks=*/true);
      EXPECT_EQ(rank.now(), absl::Hours(1) + absl::Seconds(1));
    });
  }
}

TEST_P(TimeoutsTest, MonitoredBarrierComparesLabels) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    init_process_group(rank)->monitored_barrier(absl::Minutes(5), false, rank.rank() == 0 ? "train" : "eval");
  });
  EXPECT_THAT(report.text(), AllOf(HasSubstr("label | \"train\" | 0"), HasSubstr("\"eval\"  | 1")));
}

TEST_P(TimeoutsTest, MonitoredBarrierIsADeadlockWithoutATimeout) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    if (rank.rank() != 1) init_process_group(rank)->monitored_barrier({}, true, "last");
  });
  EXPECT_THAT(report.text(),
              HasSubstr("ranks 0, 2 wait in monitored_barrier seq 1 last for rank 1 (returned) [group 0, "));
}

// The time of a rank that waits with a default keeps no stuck job from being a deadlock, that of others which wait for
// it neither.
TEST_P(TimeoutsTest, MonitoredBarrierThatWaitsForAllIsADeadlockOnceItsOwnTimeIsUp) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 2) {
      int32_t x = 0;
      pg->recv(TensorView(&x, DType::kInt32, {1}), 0).wait();
    }
    pg->monitored_barrier(rank.rank() == 0 ? std::optional(absl::Milliseconds(5)) : std::nullopt,
                          /*wait_all_ranks=*/true);
  });
  EXPECT_THAT(report.text(), StartsWith("Deadlock: "));
  EXPECT_THAT(report.text(), HasSubstr(" in monitored_barrier seq 1 for rank 2 [group 0, "));
}

// A member that waits for all ranks waits for as long as the group does, if not told otherwise, and the others with it.
TEST_P(TimeoutsTest, MonitoredBarrierThatWaitsForAllHasTheGroupsTimeout) {
  if (!deterministic()) return;
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    pg->set_timeout(absl::Seconds(10));
    if (rank.rank() == 2) {
      rank.sleep_for(absl::Seconds(8));
      return pg->monitored_barrier();
    }
    pg->monitored_barrier(rank.rank() == 0 ? std::optional<absl::Duration>() : absl::Seconds(5),
                          /*wait_all_ranks=*/true);
    EXPECT_EQ(rank.now(), absl::Seconds(8));
  });
}

// A call's own timeout is one of its wait: it counts from there, however old the call is by then, and a call that
// nobody waits for has none.
TEST_P(TimeoutsTest, OfACallBeginsWithItsWait) {
  if (!deterministic()) return;  // of real time nobody knows how much passes
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {rank.rank() + 1};
    std::vector<int64_t> y = {10 * rank.rank()};
    if (rank.rank() == 1) rank.sleep_for(absl::Milliseconds(100));
    Work asked = pg->all_reduce(x, ReduceOp::kSum, {.timeout = absl::Milliseconds(5)});
    if (rank.rank() == 1) rank.sleep_for(absl::Milliseconds(3));
    Work waited = pg->all_reduce(y, ReduceOp::kSum, {.timeout = absl::Milliseconds(5)});
    if (rank.rank() == 0) {
      rank.sleep_for(absl::Milliseconds(99));
      EXPECT_FALSE(asked.is_completed());
      waited.wait();  // 4 ms from here
      EXPECT_EQ(rank.now(), absl::Milliseconds(103));
      EXPECT_TRUE(asked.is_success());
    } else {
      waited.wait();
      asked.wait();
    }
    EXPECT_EQ(x[0], 3);
    EXPECT_EQ(y[0], 10);
  });
}

TEST_P(TimeoutsTest, TheWarningOfAWaitWithoutATimeoutNamesNone) {
  run(warned_options(2), [](RankContext& rank) {
    auto pg = init_process_group(rank, {.timeout = absl::InfiniteDuration()});
    if (rank.rank() == 1) await_warning(rank);
    pg->barrier({.warn_after = rank.rank() == 0 ? absl::Milliseconds(1) : absl::InfiniteDuration()}).wait();
  });
  EXPECT_THAT(warnings_,
              ElementsAre(StartsWith("rank 0, group 0, barrier seq 1: has waited 1ms for rank 1 [group 0, ")));
}

// A large world's report stays one that is read.
TEST_P(TimeoutsTest, ATimeoutTellsOfEightRanksAtMost) {
  run(12, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    pg->barrier().wait();
    if (rank.rank() != 0) return rank.store().wait({"told"});
    try {
      pg->barrier({.timeout = absl::Milliseconds(2)}).wait();
      ADD_FAILURE() << "nobody else came";
    } catch (const DistError& error) {
      size_t told = 0;
      const std::string text(error.status().message());
      for (size_t at = 0; (at = text.find("\n  last call of rank ", at)) != std::string::npos; ++at) ++told;
      EXPECT_EQ(told, 8U) << text;
    }
    rank.store().set("told", "");
  });
}

// Ranks of the world, in a group whose ranks have other numbers.
TEST_P(TimeoutsTest, AMessageOfASubgroupNamesRanksOfTheWorld) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto some = pg->new_group({1, 2});
    std::vector<float> got(2);
    if (rank.rank() != 1) return rank.store().wait({"late"});
    EXPECT_THAT([&] { some->recv(got, 1, 3, {.timeout = absl::Milliseconds(2)}).wait(); },
                ThrowsDistError(ErrorKind::kTimeout, HasSubstr("rank 1, group 0.1, recv from rank 2, tag 3: timed out "
                                                               "after 2ms waiting for rank 2 [")));
    rank.store().set("late", "");
  });
}

TEST_P(TimeoutsTest, AMismatchSaysOfARankThatItHasNotCalled) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(static_cast<size_t>(3 + rank.rank()));
    if (rank.rank() == 2) return rank.store().wait({"never"}, absl::InfiniteDuration());
    pg->all_reduce(x).wait();
  });
  EXPECT_THAT(report.text(), HasSubstr("\nmissing:\n  rank 2: has not called"));
}

}  // namespace
}  // namespace rankloom

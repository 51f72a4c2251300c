// The gears in which a policy says who runs: one task at a time, time that costs nothing, stuck runs found at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sim/base/parker.h"
#include "sim/scheduler/deadlock_report.h"
#include "tests/sim/scheduler_fixture.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string message(const absl::Status& status) { return std::string(status.message()); }

class DeterministicSchedulerTest : public testing::TestWithParam<Gear> {
 protected:
  std::unique_ptr<Scheduler> make(int ranks) { return make_scheduler(GetParam(), ranks); }
  bool threads() const { return GetParam().engine == EngineKind::kThreads; }
  static void sleep(Scheduler& scheduler, absl::Duration duration) {
    const Deadline deadline = scheduler.deadline_after(duration, /*weak=*/false);
    while (!scheduler.aborted() && scheduler.now_ns() < deadline.at_ns) scheduler.park(Site{.what = "sleep"}, deadline);
  }
};
INSTANTIATE_TEST_SUITE_P(Gears, DeterministicSchedulerTest, testing::ValuesIn(deterministic_gears()), gear_name);

TEST_P(DeterministicSchedulerTest, RunsEachRankOnce) {
  auto scheduler = make(70);
  std::vector<int> runs(70);
  scheduler->run([&](int rank, Task& task) {
    EXPECT_EQ(Task::current(), &task);
    EXPECT_EQ(task.info.rank, rank);
    ++runs[static_cast<size_t>(rank)];
  });
  EXPECT_THAT(runs, testing::Each(1));
}

TEST_P(DeterministicSchedulerTest, OneTaskRunsBetweenTwoPoints) {
  auto scheduler = make(6);
  std::atomic<int> running{0};
  scheduler->run([&](int, Task&) {
    for (int i = 0; i < 50; ++i) {
      ASSERT_EQ(++running, 1);
      for (int k = 0; k < 20; ++k) sched_yield();
      --running;
      scheduler->point(Site{.what = "step"});
    }
  });
}

TEST_P(DeterministicSchedulerTest, TheSameSeedGivesTheSameRun) {
  const auto run = [&] {
    auto scheduler = make(5);
    std::vector<int> order;
    scheduler->run([&](int rank, Task&) {
      for (int i = 0; i < 20; ++i) {
        scheduler->point(Site{.what = "step", .seq = i});
        order.push_back(rank);
      }
    });
    return std::make_pair(order, scheduler->trace());
  };
  const auto first = run();
  const auto second = run();
  EXPECT_EQ(first.first, second.first);
  EXPECT_EQ(first_difference(first.second, second.second), "equal");
  EXPECT_EQ(first.second.schedule(), GetParam().schedule.text());
}

TEST_P(DeterministicSchedulerTest, ThirtyMinutesPassInNoTime) {
  auto scheduler = make(3);
  const int64_t began = monotonic_ns();
  scheduler->run([&](int, Task&) { sleep(*scheduler, absl::Minutes(30)); });
  EXPECT_EQ(scheduler->now_ns(), absl::ToInt64Nanoseconds(absl::Minutes(30)));
  EXPECT_LT(monotonic_ns() - began, 60'000'000'000);  // far less: this is no measurement
}

TEST_P(DeterministicSchedulerTest, SleepersWakeInTheOrderOfTheirDeadlines) {
  auto scheduler = make(5);
  std::vector<int> woken;
  std::vector<int64_t> at;
  scheduler->run([&](int rank, Task&) {
    sleep(*scheduler, absl::Seconds((rank * 3) % 5 + 1));
    woken.push_back(rank);
    at.push_back(scheduler->now_ns() / 1'000'000'000);
  });
  EXPECT_THAT(woken, ElementsAre(0, 2, 4, 1, 3));
  EXPECT_THAT(at, ElementsAre(1, 2, 3, 4, 5));
}

TEST_P(DeterministicSchedulerTest, TimeStandsStillWhileSomebodyCanRun) {
  auto scheduler = make(2);
  scheduler->run([&](int rank, Task&) {
    if (rank == 0) return sleep(*scheduler, absl::Seconds(1));
    for (int i = 0; i < 30; ++i) {
      scheduler->point(Site{.what = "step"});
      EXPECT_EQ(scheduler->now_ns(), 0);
    }
  });
}

TEST_P(DeterministicSchedulerTest, ADefaultTimeoutFiresInItsTurnWhenTimeMoves) {
  auto scheduler = make(5);
  Gate never(scheduler.get());
  std::vector<int64_t> at(5);
  scheduler->run([&](int rank, Task&) {
    if (rank == 0) return sleep(*scheduler, absl::Seconds(10));
    // 4, 10, 4 and 40 seconds: before, with and after the sleeper.
    const int seconds[] = {0, 4, 10, 4, 40};
    const absl::Status status = never.wait("never", scheduler->deadline_after(absl::Seconds(seconds[rank]), true));
    at[static_cast<size_t>(rank)] = scheduler->now_ns() / 1'000'000'000;
    EXPECT_EQ(error_kind(status), rank == 4 ? ErrorKind::kDeadlock : ErrorKind::kTimeout) << rank << status;
  });
  EXPECT_THAT(at, ElementsAre(0, 4, 10, 4, 10));
}

TEST_P(DeterministicSchedulerTest, ADefaultTimeoutAloneDoesNotMoveTime) {
  auto scheduler = make(2);
  Gate never(scheduler.get());
  scheduler->run([&](int, Task&) {
    const absl::Status status = never.wait("never", scheduler->deadline_after(absl::Seconds(1), /*weak=*/true));
    EXPECT_EQ(error_kind(status), ErrorKind::kDeadlock) << status;
  });
  EXPECT_EQ(scheduler->now_ns(), 0);
}

// A poll is no deadlock and no endless loop, whoever the policy prefers.
TEST_P(DeterministicSchedulerTest, WhoYieldsLetsTheOthersRun) {
  for (int poller = 0; poller < 3; ++poller) {
    auto scheduler = make(3);
    int came = 0;
    scheduler->run([&](int rank, Task&) {
      if (rank == poller) {
        while (came < 2) scheduler->yield(Site{.what = "poll"});
      } else {
        scheduler->point(Site{.what = "come"});
        ++came;
      }
    });
    EXPECT_EQ(came, 2);
  }
}

TEST_P(DeterministicSchedulerTest, WhoPollsAtPointsLetsTheOthersRunInTheEnd) {
  auto scheduler = make(2);
  bool came = false;
  scheduler->run([&](int rank, Task&) {
    if (rank == 0) {
      while (!came) scheduler->point(Site{.what = "poll"});
    } else {
      came = true;
    }
  });
  EXPECT_TRUE(came);
}

TEST_P(DeterministicSchedulerTest, TimePassesWhileAllWhoCanRunOnlyYield) {
  auto scheduler = make(4);
  bool slept = false;
  scheduler->run([&](int rank, Task&) {
    if (rank == 0) {
      sleep(*scheduler, absl::Minutes(30));
      slept = true;
    } else {
      while (!slept) scheduler->yield(Site{.what = "poll"});
    }
  });
  EXPECT_EQ(scheduler->now_ns(), absl::ToInt64Nanoseconds(absl::Minutes(30)));
}

TEST_P(DeterministicSchedulerTest, DeadlinesOfWaitsThatEndedOtherwiseDoNotMoveTime) {
  auto scheduler = make(2);
  RankMutex mu(scheduler.get(), internal::LockLevel::kSync);
  RankCondVar changed;
  int turn = 0;
  scheduler->run([&](int rank, Task&) {
    for (int i = 0; i < 3000; ++i) {
      RankMutexLock lock(&mu);
      const absl::Status status = changed.await(
          &mu, [&] { return turn % 2 == rank; }, Site{.what = "turn"},
          scheduler->deadline_after(absl::Seconds(1 + i % 7), /*weak=*/false));
      ASSERT_TRUE(status.ok()) << status;
      ++turn;
      changed.notify_all();
    }
  });
  EXPECT_EQ(scheduler->now_ns(), 0);
}

TEST_P(DeterministicSchedulerTest, ADeadlockIsNamedAtOnceWithItsCycle) {
  struct For final : WaitsFor {
    explicit For(int rank) : rank(rank) {}
    void append_ranks(std::vector<int>* ranks) const override { ranks->push_back(rank); }
    int rank;
  };
  auto scheduler = make(3);
  Gate never(scheduler.get());
  std::vector<absl::Status> causes(3);
  scheduler->run([&](int rank, Task&) {
    const For target((rank + 1) % 3);
    RankMutex mu(scheduler.get(), internal::LockLevel::kSync);
    RankCondVar changed;
    RankMutexLock lock(&mu);
    causes[static_cast<size_t>(rank)] = changed.await(
        &mu, [] { return false; },
        Site{.what = "recv", .code = {"dir/train.cc", 12}, .group = "0", .seq = rank, .waits_for = &target});
  });
  for (const absl::Status& cause : causes) {
    EXPECT_EQ(error_kind(cause), ErrorKind::kDeadlock);
    EXPECT_EQ(message(cause),
              "no rank can move\n"
              "  rank 0 waits in recv seq 0 for rank 1 [group 0, train.cc:12]\n"
              "  rank 1 waits in recv seq 1 for rank 2 [group 0, train.cc:12]\n"
              "  rank 2 waits in recv seq 2 for rank 0 [group 0, train.cc:12]\n"
              "  cycle: rank 0 -> rank 1 -> rank 2 -> rank 0");
  }
}

TEST_P(DeterministicSchedulerTest, APermitThatCameFirstIsKept) {
  auto scheduler = make(1);
  scheduler->run([&](int, Task& task) {
    scheduler->unpark(task);
    EXPECT_EQ(scheduler->park(Site{.what = "permit"}, Deadline::never()), WakeCause::kUnparked);
  });
  EXPECT_TRUE(scheduler->abort_cause().ok());
}

TEST_P(DeterministicSchedulerTest, AHelperIsATaskOfItsRank) {
  auto scheduler = make(3);
  std::vector<int> helped;
  scheduler->run([&](int rank, Task&) {
    scheduler->spawn({.rank = rank, .kind = TaskKind::kHelper}, [&, rank] {
      EXPECT_EQ(Task::current()->info.rank, rank);
      EXPECT_EQ(Task::current()->info.kind, TaskKind::kHelper);
      scheduler->point(Site{.what = "help"});
      helped.push_back(rank);
    });
  });
  EXPECT_THAT(helped, testing::UnorderedElementsAre(0, 1, 2));
}

TEST_P(DeterministicSchedulerTest, APostedBodyRunsAtALaterPoint) {
  auto scheduler = make(2);
  bool ran = false;
  Gate gate(scheduler.get());
  scheduler->run([&](int rank, Task&) {
    if (rank == 1) {
      EXPECT_TRUE(gate.wait().ok());
      EXPECT_TRUE(ran);
      return;
    }
    scheduler->post({.rank = 0, .kind = TaskKind::kCompletion}, Site{.what = "late"}, [&] {
      ran = true;
      gate.open();
    });
    EXPECT_FALSE(ran);
  });
  EXPECT_TRUE(ran);
}

// A completion that runs as the last step of an ended task, and starts a helper: with that task's number.
TEST_P(DeterministicSchedulerTest, APostedBodyMayStartAHelper) {
  for (int round = 0; round < 50; ++round) {
    auto scheduler = make(2);
    int helped = 0;
    scheduler->run([&](int rank, Task&) {
      scheduler->spawn({.rank = rank, .kind = TaskKind::kHelper}, [&, rank] {
        scheduler->post({.rank = rank, .kind = TaskKind::kCompletion}, Site{.what = "late"}, [&, rank] {
          for (int i = 0; i < 3; ++i) {
            scheduler->spawn({.rank = rank, .kind = TaskKind::kHelper}, [&] {
              scheduler->point(Site{.what = "help"});
              ++helped;
            });
          }
        });
      });
    });
    ASSERT_EQ(helped, 6);
  }
}

TEST_P(DeterministicSchedulerTest, AnAbortByATaskEndsEveryWait) {
  auto scheduler = make(4);
  Gate never(scheduler.get());
  std::vector<std::string> causes;
  scheduler->run([&](int rank, Task&) {
    if (rank == 2) {
      scheduler->point(Site{.what = "step"});
      EXPECT_TRUE(scheduler->abort(make_error(ErrorKind::kAborted, "enough")));
      EXPECT_FALSE(scheduler->abort(make_error(ErrorKind::kAborted, "too late")));
      return;
    }
    causes.push_back(message(never.wait()));
  });
  EXPECT_THAT(causes, ElementsAre("enough", "enough", "enough"));
}

TEST_P(DeterministicSchedulerTest, AnAbortBeforeTheRunEndsEveryWait) {
  auto scheduler = make(2);
  scheduler->abort(make_error(ErrorKind::kAborted, "early"));
  Gate never(scheduler.get());
  scheduler->run([&](int, Task&) { EXPECT_EQ(message(never.wait()), "early"); });
}

TEST_P(DeterministicSchedulerTest, AnAbortFromAnotherThreadEndsEveryWait) {
  for (int round = 0; round < 50; ++round) {
    auto scheduler = make(3);
    Gate never(scheduler.get());
    scheduler->add_outside(1);
    std::thread outside([&] {
      scheduler->abort(make_error(ErrorKind::kAborted, "enough"));
      scheduler->add_outside(-1);
    });
    scheduler->run([&](int, Task&) { EXPECT_EQ(message(never.wait()), "enough"); });
    outside.join();
  }
}

// The holder of an outside waker wakes a rank and goes: the run must see the one before it takes the other for the end.
TEST_P(DeterministicSchedulerTest, WhatAnOutsideWakerDidLastIsSeen) {
  for (int round = 0; round < 500; ++round) {
    auto scheduler = make(1);
    std::atomic<Task*> waiting{nullptr};
    scheduler->add_outside(1);
    std::thread outside([&] {
      while (waiting.load() == nullptr) sched_yield();
      scheduler->unpark(*waiting.load());
      scheduler->add_outside(-1);
    });
    scheduler->run([&](int, Task& task) {
      waiting.store(&task);
      scheduler->park(Site{.what = "outside"}, Deadline::never());
    });
    outside.join();
    ASSERT_TRUE(scheduler->abort_cause().ok()) << scheduler->abort_cause();
  }
}

TEST_P(DeterministicSchedulerTest, ARunThatWaitsForAnOutsideWakerNoticesThatItGoes) {
  for (int round = 0; round < 500; ++round) {
    auto scheduler = make(1);
    scheduler->add_outside(1);
    std::thread outside([&] { scheduler->add_outside(-1); });
    Gate never(scheduler.get());
    scheduler->run([&](int, Task&) { EXPECT_EQ(error_kind(never.wait()), ErrorKind::kDeadlock); });
    outside.join();
  }
}

TEST_P(DeterministicSchedulerTest, TimeDoesNotJumpWhileAnOutsideWakerIsHeld) {
  auto scheduler = make(2);
  Gate gate(scheduler.get());
  std::atomic<bool> asleep{false};
  scheduler->add_outside(1);
  std::thread outside([&] {
    while (!asleep) sched_yield();
    for (int i = 0; i < 200; ++i) sched_yield();
    EXPECT_EQ(scheduler->now_ns(), 0);
    scheduler->add_outside(-1);
  });
  scheduler->run([&](int, Task&) {
    asleep = true;
    sleep(*scheduler, absl::Seconds(1));
  });
  outside.join();
  EXPECT_EQ(scheduler->now_ns(), 1'000'000'000);
}

// The task that others wait for outside may be asleep.
TEST_P(DeterministicSchedulerTest, TimePassesAsRealTimeDoesWhereThoseOutsideLetIt) {
  auto scheduler = make(2);
  scheduler->add_outside(1, /*in_real_time=*/true);
  const int64_t begun = monotonic_ns();
  scheduler->run([&](int rank, Task&) {
    for (int i = 0; i < 3; ++i) sleep(*scheduler, absl::Milliseconds(20));
    if (rank == 1) scheduler->add_outside(-1, /*in_real_time=*/true);
    sleep(*scheduler, absl::Hours(1));
  });
  EXPECT_GE(monotonic_ns() - begun, 60'000'000);
  EXPECT_EQ(absl::Nanoseconds(scheduler->now_ns()), absl::Milliseconds(60) + absl::Hours(1));
}

// A task that polls sees what a thread outside did before it went, however long the task has polled by then.
TEST_P(DeterministicSchedulerTest, TimeDoesNotPassForPollsRightAfterAnOutsideWakerWent) {
  for (int polls = 0; polls < 300; ++polls) {
    auto scheduler = make(2);
    scheduler->add_outside(1);
    scheduler->run([&](int rank, Task&) {
      if (rank == 1) return sleep(*scheduler, absl::Seconds(5));
      for (int i = 0; i < polls; ++i) scheduler->poll(Site{.what = "poll"});
      scheduler->add_outside(-1);
      scheduler->poll(Site{.what = "poll"});
      EXPECT_EQ(scheduler->now_ns(), 0) << "after " << polls << " polls";
    });
  }
}

TEST_P(DeterministicSchedulerTest, AThreadOutsideMayStartHelpersAndPost) {
  for (int round = 0; round < 50; ++round) {
    auto scheduler = make(2);
    Gate spawned(scheduler.get());
    Gate posted(scheduler.get());
    scheduler->add_outside(1);
    std::atomic<bool> waits{false};
    std::thread outside([&] {
      while (!waits) sched_yield();
      scheduler->spawn({.rank = 1, .kind = TaskKind::kHelper}, [&] {
        EXPECT_EQ(Task::current()->info.rank, 1);
        spawned.open();
      });
      scheduler->post({.rank = 1, .kind = TaskKind::kCompletion}, Site{.what = "late"}, [&] { posted.open(); });
      scheduler->add_outside(-1);
    });
    scheduler->run([&](int rank, Task&) {
      waits = true;
      EXPECT_TRUE((rank == 0 ? spawned : posted).wait().ok());
    });
    outside.join();
  }
}

TEST_P(DeterministicSchedulerTest, WhatIsStartedAfterTheEndRunsAtOnce) {
  auto scheduler = make(1);
  scheduler->run([](int, Task&) {});
  bool spawned = false;
  bool posted = false;
  scheduler->spawn({.rank = 0, .kind = TaskKind::kHelper}, [&] { spawned = true; });
  scheduler->post({.rank = 0, .kind = TaskKind::kCompletion}, Site{}, [&] { posted = true; });
  EXPECT_TRUE(spawned);
  EXPECT_TRUE(posted);
}

TEST_P(DeterministicSchedulerTest, WhatIsStartedAtTheMomentOfTheEndRuns) {
  for (int round = 0; round < 300; ++round) {
    auto scheduler = make(1);
    std::atomic<bool> over{false};
    std::atomic<int> ran{0};
    int started = 0;
    std::thread outside([&] {
      while (!over && started < 200) {
        scheduler->post({.rank = 0, .kind = TaskKind::kCompletion}, Site{.what = "late"}, [&] { ++ran; });
        ++started;
        for (int i = 0; i < 1 + round % 20; ++i) sched_yield();
      }
    });
    scheduler->run([](int, Task&) {});
    over = true;
    outside.join();
    ASSERT_EQ(ran, started) << "round " << round;
  }
}

TEST_P(DeterministicSchedulerTest, AChoiceIsInItsRangeAndRecorded) {
  auto scheduler = make(1);
  std::vector<int> chosen;
  scheduler->run([&](int, Task&) {
    for (int i = 0; i < 20; ++i)
      chosen.push_back(scheduler->choose(ChoiceKind::kFault, 3, Site{.what = "dice", .seq = i}));
    EXPECT_EQ(scheduler->choose(ChoiceKind::kFault, 1, Site{.what = "no choice"}), 0);
  });
  EXPECT_THAT(chosen, testing::Each(testing::AllOf(testing::Ge(0), testing::Lt(3))));
  if (GetParam().schedule.kind() == Schedule::Kind::kFifo) {
    EXPECT_THAT(scheduler->trace().steps(), IsEmpty());
    return;
  }
  ASSERT_EQ(scheduler->trace().steps().size(), 20u);
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(scheduler->trace().steps()[i].value, chosen[i]);
}

TEST_P(DeterministicSchedulerTest, CountsItsSteps) {
  auto scheduler = make(3);
  scheduler->run([&](int, Task&) {
    for (int i = 0; i < 5; ++i) scheduler->point(Site{.what = "step"});
  });
  EXPECT_EQ(scheduler->steps(), 15u);
}

TEST(SeededScheduleTest, SeedsDiffer) {
  std::vector<std::vector<int>> orders;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    auto scheduler = make_scheduler(fibers(Schedule::seeded(seed)), 4);
    std::vector<int> order;
    scheduler->run([&](int rank, Task&) {
      for (int i = 0; i < 5; ++i) {
        scheduler->point(Site{.what = "step"});
        order.push_back(rank);
      }
    });
    for (const auto& other : orders) EXPECT_NE(other, order);
    orders.push_back(order);
  }
}

TEST(RoundRobinTest, RanksTakeTurnsByNumber) {
  auto scheduler = make_scheduler(fibers(Schedule::round_robin()), 3);
  std::vector<int> order;
  scheduler->run([&](int rank, Task&) {
    for (int i = 0; i < 3; ++i) {
      order.push_back(rank);
      scheduler->point(Site{.what = "step"});
    }
  });
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 0, 1, 2, 0, 1, 2));
}

TEST(FifoTest, ARankRunsUntilItBlocks) {
  auto scheduler = make_scheduler(fibers(Schedule::fifo()), 3);
  std::vector<int> order;
  Gate gate(scheduler.get());
  scheduler->run([&](int rank, Task&) {
    for (int i = 0; i < 2; ++i) {
      order.push_back(rank);
      scheduler->point(Site{.what = "step"});
    }
    if (rank == 2) gate.open();
    EXPECT_TRUE(gate.wait().ok());
    order.push_back(rank);
  });
  EXPECT_THAT(order, ElementsAre(0, 0, 1, 1, 2, 2, 2, 0, 1));
}

TEST(FifoTest, EqualDeadlinesWakeInTheOrderInWhichTheyWereSet) {
  for (const Gear& gear : {fibers(Schedule::fifo()), baton(Schedule::fifo())}) {
    auto scheduler = make_scheduler(gear, 3);
    std::vector<int> order;
    scheduler->run([&](int rank, Task&) {
      // Rank 2 sets its deadline first, then 1, then 0: all for second 10.
      for (const int64_t at : {int64_t{3 - rank}, int64_t{10}}) {
        scheduler->park(Site{.what = "sleep"}, Deadline{.at_ns = at * 1'000'000'000, .weak = false});
      }
      order.push_back(rank);
    });
    EXPECT_THAT(order, ElementsAre(2, 1, 0)) << gear.name();
  }
}

TEST(SchedulerTest, OptionsThatDoNotFitAreRefused) {
  WorldOptions options;
  options.world_size = 0;
  EXPECT_EQ(message(Scheduler::make(options).status()), "world_size is 0, want at least 1");
  options.world_size = 1;
  options.engine = EngineKind::kFibers;
  options.schedule = Schedule::free();
  const absl::Status status = Scheduler::make(options).status();
  EXPECT_EQ(error_kind(status), ErrorKind::kInvalidArgument);
  EXPECT_EQ(message(status), "schedule free() needs threads: fibers share one thread, want fifo(), seeded(seed), ...");
}

TEST(SchedulerTest, AnUnsetScheduleIsFreeOnThreadsAndFifoOnFibers) {
  EXPECT_EQ(make_scheduler({EngineKind::kThreads, Schedule()}, 1)->options().schedule.text(), "free");
  EXPECT_EQ(make_scheduler({EngineKind::kFibers, Schedule()}, 1)->options().schedule.text(), "fifo");
}

}  // namespace
}  // namespace rankloom

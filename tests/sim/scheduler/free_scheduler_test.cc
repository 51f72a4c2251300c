// The gear in which all run at once: how it finds that nobody can move.
#include "sim/scheduler/free_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rankloom/random.h"
#include "sim/scheduler/deadlock_report.h"
#include "tests/sim/scheduler_fixture.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::HasSubstr;

std::string message(const absl::Status& status) { return std::string(status.message()); }

TEST(FreeSchedulerTest, RunsEachRankOnce) {
  auto scheduler = make_scheduler(free_gear(), 8);
  std::vector<std::atomic<int>> runs(8);
  scheduler->run([&](int rank, Task& task) {
    EXPECT_EQ(Task::current(), &task);
    EXPECT_EQ(task.info.rank, rank);
    ++runs[static_cast<size_t>(rank)];
  });
  for (const auto& count : runs) EXPECT_EQ(count, 1);
  EXPECT_EQ(scheduler->abort_cause(), absl::OkStatus());
}

TEST(FreeSchedulerTest, AllRanksRunAtOnce) {
  auto scheduler = make_scheduler(free_gear(), 4);
  std::atomic<int> here{0};
  scheduler->run([&](int, Task&) {
    ++here;
    while (here < 4) sched_yield();  // ends only if all four are threads that run
  });
}

TEST(FreeSchedulerTest, OneRankThatWaitsForNothingIsADeadlock) {
  auto scheduler = make_scheduler(free_gear(), 1);
  Gate never(scheduler.get());
  absl::Status status;
  scheduler->run([&](int, Task&) { status = never.wait("never"); });
  EXPECT_EQ(error_kind(status), ErrorKind::kDeadlock);
  EXPECT_THAT(message(status), HasSubstr("no rank can move\n  rank 0 waits in never [scheduler_fixture.h:"));
}

// A graph of waits: an edge from each rank to the rank whose gate it waits at; who has no edge returns at once.
struct Shape {
  const char* name;
  std::vector<int> waits_for;  // -1: returns
};

class DeadlockShapeTest : public testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, DeadlockShapeTest,
                         testing::Values(Shape{"EveryoneReturnsButOne", {-1, -1, 0, -1}}, Shape{"Chain", {1, 2, 3, -1}},
                                         Shape{"Cycle", {1, 2, 3, 0}}, Shape{"TwoCycles", {1, 0, 3, 2}},
                                         Shape{"Star", {3, 3, 3, -1}}, Shape{"Itself", {0, 1}}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(DeadlockShapeTest, IsFoundEveryTime) {
  const std::vector<int>& waits_for = GetParam().waits_for;
  for (int round = 0; round < 200; ++round) {
    auto scheduler = make_scheduler(free_gear(), static_cast<int>(waits_for.size()));
    Gate never(scheduler.get());
    std::atomic<int> deadlocks{0};
    scheduler->run([&](int rank, Task&) {
      if (waits_for[static_cast<size_t>(rank)] < 0) return;
      if (error_kind(never.wait()) == ErrorKind::kDeadlock) ++deadlocks;
    });
    ASSERT_EQ(deadlocks, std::count_if(waits_for.begin(), waits_for.end(), [](int to) { return to >= 0; }));
  }
}

TEST(FreeSchedulerTest, IsNoDeadlockAsLongAsOneCanMove) {
  for (int round = 0; round < 300; ++round) {
    auto scheduler = make_scheduler(free_gear(), 3);
    Gate first(scheduler.get());
    Gate second(scheduler.get());
    scheduler->run([&](int rank, Task&) {
      if (rank == 0) {
        EXPECT_TRUE(first.wait().ok());
        second.open();
      }
      if (rank == 1) first.open();
      if (rank == 2) {
        EXPECT_TRUE(second.wait().ok());
      }
    });
    ASSERT_TRUE(scheduler->abort_cause().ok()) << scheduler->abort_cause();
  }
}

// Tokens travel round a ring of ranks many times; no wake-up may be lost, and no moment of it is a deadlock.
TEST(FreeSchedulerTest, ARingOfTokensComesToItsEnd) {
  constexpr int kRanks = 5;
  constexpr int kRounds = 400;
  auto scheduler = make_scheduler(free_gear(), kRanks);
  RankMutex mu(scheduler.get(), internal::LockLevel::kSync);
  RankCondVar changed;
  int turn = 0;
  scheduler->run([&](int rank, Task&) {
    for (int round = 0; round < kRounds; ++round) {
      RankMutexLock lock(&mu);
      const absl::Status status = changed.await(
          &mu, [&] { return turn % kRanks == rank; }, Site{.what = "turn"});
      ASSERT_TRUE(status.ok()) << status;
      ++turn;
      changed.notify_all();
    }
  });
  EXPECT_EQ(turn, kRanks * kRounds);
  EXPECT_TRUE(scheduler->abort_cause().ok());
}

TEST(FreeSchedulerTest, ARankThatNeverCameIsNoDeadlock) {
  auto scheduler = make_scheduler(free_gear(), 2);
  Gate gate(scheduler.get());
  std::thread first([&] {
    Task* const task = scheduler->attach({.rank = 0});
    EXPECT_TRUE(gate.wait().ok());
    scheduler->detach(task);
  });
  std::thread second([&] {
    Task* const task = scheduler->attach({.rank = 1});
    gate.open();
    scheduler->detach(task);
  });
  first.join();
  second.join();
  EXPECT_TRUE(scheduler->abort_cause().ok());
}

TEST(FreeSchedulerTest, ADeadlineOfItsOwnKeepsAWaitFromBeingADeadlock) {
  auto scheduler = make_scheduler(free_gear(), 2);
  Gate never(scheduler.get());
  scheduler->run([&](int, Task&) {
    const absl::Status status = never.wait("never", scheduler->deadline_after(absl::Milliseconds(20), /*weak=*/false));
    EXPECT_EQ(error_kind(status), ErrorKind::kTimeout) << status;
  });
  EXPECT_TRUE(scheduler->abort_cause().ok());
}

TEST(FreeSchedulerTest, ADefaultTimeoutDoesNotHideADeadlock) {
  auto scheduler = make_scheduler(free_gear(), 2);
  Gate never(scheduler.get());
  scheduler->run([&](int, Task&) {
    const absl::Status status = never.wait("never", scheduler->deadline_after(absl::Minutes(30), /*weak=*/true));
    EXPECT_EQ(error_kind(status), ErrorKind::kDeadlock) << status;
  });
}

TEST(FreeSchedulerTest, ADefaultTimeoutFiresWhileOthersRun) {
  auto scheduler = make_scheduler(free_gear(), 2);
  Gate never(scheduler.get());
  std::atomic<bool> timed_out{false};
  scheduler->run([&](int rank, Task&) {
    if (rank == 1) {
      while (!timed_out) sched_yield();
      return;
    }
    const absl::Status status = never.wait("never", scheduler->deadline_after(absl::Milliseconds(1), /*weak=*/true));
    EXPECT_EQ(error_kind(status), ErrorKind::kTimeout) << status;
    timed_out = true;
  });
}

TEST(FreeSchedulerTest, WhoHoldsAnOutsideWakerMayStillCome) {
  auto scheduler = make_scheduler(free_gear(), 2);
  Gate gate(scheduler.get());
  scheduler->add_outside(1);
  std::thread outside([&] {
    gate.open();
    scheduler->add_outside(-1);
  });
  scheduler->run([&](int, Task&) { EXPECT_TRUE(gate.wait().ok()); });
  outside.join();
}

TEST(FreeSchedulerTest, ADeadlockIsFoundWhenTheLastOutsideWakerGoes) {
  for (int round = 0; round < 200; ++round) {
    auto scheduler = make_scheduler(free_gear(), 2);
    Gate gate(scheduler.get());
    scheduler->add_outside(1);
    std::thread outside([&] { scheduler->add_outside(-1); });
    scheduler->run([&](int, Task&) { EXPECT_EQ(error_kind(gate.wait()), ErrorKind::kDeadlock); });
    outside.join();
  }
}

// A report reads the sites of sleepers: strings on their stacks. One that is woken then stays until it is written.
TEST(FreeSchedulerTest, NobodyLeavesItsWaitWhileAReportIsWritten) {
  auto scheduler = make_scheduler(free_gear(), 2);
  Gate never(scheduler.get());
  std::atomic<int> left{0};
  const auto report = [&](const std::vector<Task*>& blocked, ErrorKind kind, const std::string& headline) {
    EXPECT_EQ(blocked.size(), 2u);
    // As an abort from a thread outside does it.
    for (Task* task : blocked) {
      if (task != Task::current()) scheduler->unpark(*task);
    }
    for (int i = 0; i < 2000; ++i) sched_yield();
    EXPECT_EQ(left, 0);
    return make_error(kind, headline + wait_lines(blocked, {}));
  };
  scheduler->set_wait_reporter({.lines = {}, .end = report, .whereabouts = {}});
  scheduler->run([&](int, Task&) {
    const std::string label = "a string on the stack of this rank";
    scheduler->park(Site{.what = "never", .detail = label}, Deadline::never());
    ++left;
  });
  EXPECT_EQ(left, 2);
}

// Default timeouts that end just when the last rank falls asleep: a deadlock or a timeout, and never a torn report.
TEST(FreeSchedulerTest, DefaultTimeoutsAndReportsMeet) {
  Prng prng(1);
  for (int round = 0; round < 300; ++round) {
    auto scheduler = make_scheduler(free_gear(), 3);
    Gate never(scheduler.get());
    const absl::Duration timeout = absl::Microseconds(prng.below(200));
    scheduler->run([&](int rank, Task&) {
      const std::string what = "wait number " + std::to_string(rank);
      RankMutex mu(scheduler.get(), internal::LockLevel::kSync);
      RankCondVar changed;
      RankMutexLock lock(&mu);
      const absl::Status status = changed.await(
          &mu, [] { return false; }, Site{.what = "never", .detail = what}, scheduler->deadline_after(timeout, true));
      EXPECT_FALSE(status.ok());
      if (error_kind(status) == ErrorKind::kDeadlock) {
        EXPECT_THAT(message(status), HasSubstr(" waits in never wait number "));
      }
    });
  }
}

TEST(FreeSchedulerTest, CountsTheStepsOfTasksThatHaveEnded) {
  auto scheduler = make_scheduler(free_gear(), 3);
  scheduler->run([&](int, Task&) {
    for (int i = 0; i < 5; ++i)
      scheduler->park(Site{.what = "nap"}, scheduler->deadline_after(absl::ZeroDuration(), false));
  });
  EXPECT_EQ(scheduler->steps(), 15u);
}

TEST(FreeSchedulerTest, HelpersOfAttachedRanksEndBeforeTheSchedulerGoes) {
  for (int round = 0; round < 100; ++round) {
    std::atomic<bool> ended{false};
    auto scheduler = make_scheduler(free_gear(), 1);
    Gate gate(scheduler.get());
    Task* const task = scheduler->attach({.rank = 0});
    scheduler->spawn({.rank = 0, .kind = TaskKind::kHelper}, [&] {
      EXPECT_TRUE(gate.wait().ok());
      for (int i = 0; i < 10; ++i) sched_yield();
      ended = true;
    });
    gate.open();
    scheduler->detach(task);
    scheduler.reset();
    ASSERT_TRUE(ended);
  }
}

TEST(FreeSchedulerTest, AHelperThatWaitsForARankThatNeverCameIsToldSo) {
  absl::Status status;
  {
    auto scheduler = make_scheduler(free_gear(), 2);
    auto gate = std::make_unique<Gate>(scheduler.get());
    Task* const task = scheduler->attach({.rank = 0});
    scheduler->spawn({.rank = 0, .kind = TaskKind::kHelper}, [&status, &gate] { status = gate->wait(); });
    scheduler->detach(task);
    scheduler.reset();
  }
  EXPECT_EQ(message(status), "the world ended before all its ranks had attached");
}

TEST(FreeSchedulerTest, HelpersThatHelpersStartedAreWaitedFor) {
  auto scheduler = make_scheduler(free_gear(), 2);
  std::atomic<int> ended{0};
  scheduler->run([&](int rank, Task&) {
    scheduler->spawn({.rank = rank, .kind = TaskKind::kHelper}, [&, rank] {
      scheduler->spawn({.rank = rank, .kind = TaskKind::kHelper}, [&] { ++ended; });
      ++ended;
    });
  });
  EXPECT_EQ(ended, 4);
}

TEST(FreeSchedulerTest, AnAbortFromOutsideEndsEveryWait) {
  for (int round = 0; round < 100; ++round) {
    auto scheduler = make_scheduler(free_gear(), 4);
    Gate gate(scheduler.get());
    std::atomic<int> stopped{0};
    scheduler->add_outside(1);
    std::thread outside([&] {
      scheduler->abort(make_error(ErrorKind::kAborted, "enough"));
      scheduler->add_outside(-1);
    });
    scheduler->run([&](int, Task&) {
      if (message(gate.wait()) == "enough") ++stopped;
    });
    outside.join();
    ASSERT_EQ(stopped, 4);
  }
}

TEST(FreeSchedulerTest, TheFirstCauseOfAnAbortStays) {
  auto scheduler = make_scheduler(free_gear(), 1);
  scheduler->abort(make_error(ErrorKind::kAborted, "first"));
  scheduler->abort(make_error(ErrorKind::kAborted, "second"));
  EXPECT_EQ(message(scheduler->abort_cause()), "first");
  absl::Status status;
  Gate gate(scheduler.get());
  scheduler->run([&](int, Task&) { status = gate.wait(); });
  EXPECT_EQ(message(status), "first");
}

TEST(FreeSchedulerTest, AnUnparkBeforeTheParkIsKept) {
  auto scheduler = make_scheduler(free_gear(), 1);
  scheduler->run([&](int, Task& task) {
    scheduler->unpark(task);
    EXPECT_EQ(scheduler->park(Site{.what = "permit"}, Deadline::never()), WakeCause::kUnparked);
  });
  EXPECT_TRUE(scheduler->abort_cause().ok());
}

}  // namespace
}  // namespace rankloom

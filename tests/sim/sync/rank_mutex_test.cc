// RankMutex and RankCondVar: the one way to wait, on every kind of thread.
#include "sim/sync/rank_mutex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "sim/base/parker.h"
#include "sim/scheduler/call_scope.h"
#include "tests/sim/scheduler_fixture.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string message(const absl::Status& status) { return std::string(status.message()); }

Deadline in(absl::Duration duration) {
  return {.at_ns = monotonic_ns() + absl::ToInt64Nanoseconds(duration), .weak = false};
}

TEST(RankMutexTest, IsAMutexForThreadsOfNoWorld) {
  RankMutex mu(nullptr, internal::LockLevel::kSync);
  int64_t count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 10'000; ++k) {
        RankMutexLock lock(&mu);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 40'000);
}

TEST(RankMutexTest, LocksRanksOfTheFreeGear) {
  auto scheduler = make_scheduler(free_gear(), 4);
  RankMutex mu(scheduler.get(), internal::LockLevel::kSync);
  int64_t count = 0;
  scheduler->run([&](int, Task&) {
    for (int k = 0; k < 10'000; ++k) {
      RankMutexLock lock(&mu);
      ++count;
    }
  });
  EXPECT_EQ(count, 40'000);
}

TEST(RankMutexTest, LocksAHelperBesideItsRankUnderTheBaton) {
  auto scheduler = make_scheduler(baton(), 1);
  RankMutex mu(scheduler.get(), internal::LockLevel::kSync);
  int64_t count = 0;
  const auto work = [&] {
    for (int k = 0; k < 10'000; ++k) {
      RankMutexLock lock(&mu);
      ++count;
    }
  };
  scheduler->run([&](int, Task&) {
    std::thread helper([&] {
      const CallScope adopt(scheduler.get(), 0);
      work();
    });
    work();
    helper.join();
  });
  EXPECT_EQ(count, 20'000);
}

class StrangersMutexTest : public testing::Test {
 protected:
  RankMutex mu_{nullptr, internal::LockLevel::kSync};
  RankCondVar changed_;
  bool open_ = false;

  absl::Status wait(Deadline deadline = Deadline::never()) {
    RankMutexLock lock(&mu_);
    return changed_.await(
        &mu_, [this] { return open_; }, Site{.what = "gate"}, deadline);
  }
  void open() {
    RankMutexLock lock(&mu_);
    open_ = true;
    changed_.notify_all();
  }
};

TEST_F(StrangersMutexTest, AThreadOfNoWorldWaitsForAnother) {
  std::thread other([&] { open(); });
  EXPECT_TRUE(wait().ok());
  other.join();
}

TEST_F(StrangersMutexTest, WhatHoldsAlreadyIsNotWaitedFor) {
  open();
  EXPECT_TRUE(wait(Deadline{.at_ns = 0, .weak = false}).ok());
}

TEST_F(StrangersMutexTest, ADeadlineEndsTheWaitAndNamesIt) {
  const absl::Status status = wait(in(absl::Milliseconds(1)));
  EXPECT_EQ(error_kind(status), ErrorKind::kTimeout);
  EXPECT_EQ(message(status), "timed out in gate");
}

// A thread outside waits on something of a deterministic world: by its own clock, since the world's does not move for
// it.
TEST(CondVarTest, AThreadOutsideWaitsByTheRealClock) {
  for (const Gear& gear : {baton(), fibers()}) {
    auto scheduler = make_scheduler(gear, 1);
    const Deadline deadline = scheduler->deadline_after(absl::Seconds(300), /*weak=*/true);
    EXPECT_GT(deadline.at_ns, monotonic_ns()) << gear.name();
    scheduler->run([&](int, Task&) {
      EXPECT_EQ(scheduler->deadline_after(absl::Seconds(300), true).at_ns, 300'000'000'000) << gear.name();
    });
  }
}

TEST(CondVarTest, ARankOfOneWorldMayWaitForARankOfAnother) {
  auto outer = make_scheduler(free_gear(), 2);
  RankMutex mu(nullptr, internal::LockLevel::kSync);
  RankCondVar changed;
  bool open = false;
  outer->run([&](int rank, Task&) {
    auto inner = make_scheduler(rank == 0 ? fibers() : free_gear(), 1);
    inner->add_outside(1);
    inner->run([&](int, Task&) {
      RankMutexLock lock(&mu);
      if (rank == 1) {
        open = true;
        changed.notify_all();
        return;
      }
      EXPECT_TRUE(changed
                      .await(
                          &mu, [&] { return open; }, Site{.what = "gate"})
                      .ok());
    });
    inner->add_outside(-1);
  });
}

class RankCondVarTest : public testing::TestWithParam<Gear> {
 protected:
  std::unique_ptr<Scheduler> make(int ranks) { return make_scheduler(GetParam(), ranks); }
};
INSTANTIATE_TEST_SUITE_P(Gears, RankCondVarTest, testing::ValuesIn(every_gear()), gear_name);

TEST_P(RankCondVarTest, AwaitReturnsWhenItsConditionHolds) {
  auto scheduler = make(3);
  RankMutex mu(scheduler.get(), internal::LockLevel::kSync);
  RankCondVar changed;
  int arrived = 0;
  scheduler->run([&](int, Task&) {
    RankMutexLock lock(&mu);
    ++arrived;
    changed.notify_all();
    EXPECT_TRUE(changed
                    .await(
                        &mu, [&] { return arrived == 3; }, Site{.what = "barrier"})
                    .ok());
    EXPECT_EQ(arrived, 3);
  });
  EXPECT_FALSE(changed.has_waiters());
}

TEST_P(RankCondVarTest, WhatHoldsIsOkEvenAfterAnAbort) {
  auto scheduler = make(1);
  scheduler->abort(make_error(ErrorKind::kAborted, "enough"));
  RankMutex mu(scheduler.get(), internal::LockLevel::kSync);
  RankCondVar changed;
  scheduler->run([&](int, Task&) {
    RankMutexLock lock(&mu);
    EXPECT_TRUE(changed
                    .await(
                        &mu, [] { return true; }, Site{.what = "done"})
                    .ok());
    EXPECT_EQ(message(changed.await(
                  &mu, [] { return false; }, Site{.what = "never"})),
              "enough");
  });
}

TEST_P(RankCondVarTest, NotifyOneWakesThemInTheOrderInWhichTheyCame) {
  auto scheduler = make(4);
  RankMutex mu(scheduler.get(), internal::LockLevel::kSync);
  RankCondVar changed;
  std::vector<int> came;
  std::vector<int> went;
  int tokens = 0;
  scheduler->run([&](int rank, Task&) {
    if (rank == 0) {
      for (;;) {  // until all three wait
        {
          RankMutexLock lock(&mu);
          if (came.size() == 3) break;
        }
        EXPECT_TRUE(scheduler->sleep(Site{.what = "poll"}, absl::Microseconds(100)).ok());
      }
      for (int i = 1; i <= 3; ++i) {
        {
          RankMutexLock lock(&mu);
          ++tokens;
          changed.notify_one();
        }
        for (;;) {
          {
            RankMutexLock lock(&mu);
            if (went.size() == static_cast<size_t>(i)) break;
          }
          EXPECT_TRUE(scheduler->sleep(Site{.what = "poll"}, absl::Microseconds(100)).ok());
        }
      }
      return;
    }
    RankMutexLock lock(&mu);
    came.push_back(rank);
    EXPECT_TRUE(changed
                    .await(
                        &mu, [&] { return tokens > 0; }, Site{.what = "token"})
                    .ok());
    --tokens;
    went.push_back(rank);
  });
  EXPECT_EQ(went, came);
}

TEST_P(RankCondVarTest, WhoIsWokenForNothingKeepsItsPlace) {
  auto scheduler = make(3);
  RankMutex mu(scheduler.get(), internal::LockLevel::kSync);
  RankCondVar changed;
  std::vector<Task*> came;
  std::vector<Task*> went;
  int tokens = 0;
  const auto poll = [&](auto condition) {
    for (;;) {
      {
        RankMutexLock lock(&mu);
        if (condition()) return;
      }
      EXPECT_TRUE(scheduler->sleep(Site{.what = "poll"}, absl::Microseconds(100)).ok());
    }
  };
  int asked = 0;
  scheduler->run([&](int rank, Task& task) {
    if (rank == 0) {
      poll([&] { return came.size() == 2 && asked >= 2; });
      int before = 0;
      {
        RankMutexLock lock(&mu);
        before = asked;
        scheduler->unpark(*came[0]);
      }
      poll([&] { return asked > before; });
      {
        RankMutexLock lock(&mu);
        tokens = 1;
        changed.notify_one();
      }
      poll([&] { return went.size() == 1; });
      RankMutexLock lock(&mu);
      tokens = 1;
      changed.notify_one();
      return;
    }
    RankMutexLock lock(&mu);
    came.push_back(&task);
    const auto token = [&] {
      ++asked;
      return tokens > 0;
    };
    EXPECT_TRUE(changed.await(&mu, token, Site{.what = "token"}).ok());
    --tokens;
    went.push_back(&task);
  });
  EXPECT_EQ(went, came);
}

TEST_P(RankCondVarTest, ATimeoutOfTheCallsOwnSaysWhoWaitsForWhom) {
  struct For final : WaitsFor {
    void append_ranks(std::vector<int>* ranks) const override { ranks->push_back(2); }
  };
  auto scheduler = make(3);
  Gate never(scheduler.get());
  RankMutex mu(scheduler.get(), internal::LockLevel::kSync);
  RankCondVar changed;
  std::atomic<Task*> tasks[3] = {};
  std::string text;
  scheduler->run([&](int rank, Task& task) {
    tasks[rank] = &task;
    if (rank == 1) {
      EXPECT_EQ(message(never.wait("other gate")), "over");
    } else if (rank == 2) {
      EXPECT_FALSE(scheduler->sleep(Site{.what = "long sleep", .code = {"a/b.cc", 3}}, absl::Hours(1)).ok());
    } else {
      // All at once: the deadline must not come before the others wait. Else virtual time sees to that.
      for (std::atomic<Task*>& other : tasks) {
        while (!scheduler->deterministic() && &other != tasks && (other == nullptr || !other.load()->parker.asleep()))
          sched_yield();
      }
      const For target;
      RankMutexLock lock(&mu);
      const absl::Status status = changed.await(
          &mu, [] { return false; }, Site{.what = "recv", .seq = 4, .waits_for = &target},
          scheduler->deadline_after(absl::Milliseconds(20), /*weak=*/false));
      EXPECT_EQ(error_kind(status), ErrorKind::kTimeout);
      text = message(status);
      scheduler->abort(make_error(ErrorKind::kAborted, "over"));
    }
  });
  EXPECT_THAT(text, testing::StartsWith("timed out in recv seq 4\n  rank "));
  EXPECT_THAT(text, HasSubstr("\n  rank 0 waits in recv seq 4 for rank 2"));
  EXPECT_THAT(text, HasSubstr("\n  rank 1 waits in other gate [scheduler_fixture.h:"));
  EXPECT_THAT(text, HasSubstr("\n  rank 2 waits in long sleep [b.cc:3]"));
}

// A waiter that was notified but gave up at the same moment passes the word on: one token for two, none is lost.
TEST(CondVarTest, ANotificationThatMeetsATimeoutIsPassedOn) {
  for (int round = 0; round < 300; ++round) {
    auto scheduler = make_scheduler(free_gear(), 3);
    RankMutex mu(scheduler.get(), internal::LockLevel::kSync);
    RankCondVar changed;
    int tokens = 0;
    bool taken = false;
    scheduler->run([&](int rank, Task&) {
      if (rank == 0) {
        for (int i = 0; i < round % 40; ++i) sched_yield();
        RankMutexLock lock(&mu);
        tokens = 1;
        changed.notify_one();
        return;
      }
      RankMutexLock lock(&mu);
      const Deadline deadline =
          rank == 1 ? scheduler->deadline_after(absl::Microseconds(round % 100), /*weak=*/false) : Deadline::never();
      const absl::Status status = changed.await(
          &mu, [&] { return tokens > 0; }, Site{.what = "token"}, deadline);
      if (status.ok()) {
        tokens = 0;
        taken = true;
        // Rank 2 waits for ever if rank 1 got it: let it go.
        if (rank == 1) scheduler->abort(make_error(ErrorKind::kAborted, "taken"));
      }
    });
    ASSERT_TRUE(taken) << scheduler->abort_cause();
  }
}

TEST(CondVarTest, AWaiterThatGivesUpPassesItsNotificationOn) {
  // The same without chance: both waiters sleep by hand-made tasks.
  auto scheduler = make_scheduler(fibers(Schedule::fifo()), 3);
  RankMutex mu(scheduler.get(), internal::LockLevel::kSync);
  RankCondVar changed;
  std::vector<int> woken;
  scheduler->run([&](int rank, Task&) {
    RankMutexLock lock(&mu);
    if (rank == 2) {
      changed.notify_one();  // for rank 0
      scheduler->abort(make_error(ErrorKind::kAborted, "over"));
      return;
    }
    EXPECT_FALSE(changed
                     .await(
                         &mu, [] { return false; }, Site{.what = "token"})
                     .ok());
    woken.push_back(rank);
  });
  EXPECT_THAT(woken, ElementsAre(0, 1));
  EXPECT_FALSE(changed.has_waiters());
}

}  // namespace
}  // namespace rankloom

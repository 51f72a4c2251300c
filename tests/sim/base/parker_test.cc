#include "sim/base/parker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <limits>
#include <thread>

#include "sim/base/task.h"

namespace rankloom {

using namespace internal;

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

TEST(ParkerTest, APermitGivenBeforeIsKept) {
  Parker parker;
  parker.unpark();
  EXPECT_TRUE(parker.park(kNever));
}

TEST(ParkerTest, TwoPermitsAreOne) {
  Parker parker;
  parker.unpark();
  parker.unpark();
  EXPECT_TRUE(parker.try_take());
  EXPECT_FALSE(parker.try_take());
}

TEST(ParkerTest, ADeadlineThatPassedEndsTheWait) {
  Parker parker;
  for (const int64_t deadline :
       {std::numeric_limits<int64_t>::min(), int64_t{-1}, int64_t{0}, int64_t{1}, monotonic_ns() - 1}) {
    EXPECT_FALSE(parker.park(deadline)) << deadline;
  }
}

TEST(ParkerTest, ErrnoStaysTheCallers) {
  Parker parker;
  errno = 77;
  EXPECT_FALSE(parker.park(monotonic_ns() + 1'000'000));  // the kernel says ETIMEDOUT
  EXPECT_EQ(errno, 77);
}

TEST(ParkerTest, SleepsUntilItsDeadline) {
  Parker parker;
  const int64_t deadline = monotonic_ns() + 2'000'000;
  EXPECT_FALSE(parker.park(deadline));
  EXPECT_GE(monotonic_ns(), deadline);
}

TEST(ParkerTest, SaysWhatTheThreadWasDoing) {
  Parker parker;
  EXPECT_EQ(parker.give(), Parker::Was::kAwake);
  EXPECT_EQ(parker.give(), Parker::Was::kPermitted);
  EXPECT_FALSE(parker.prepare()) << "the permit is taken";
  EXPECT_FALSE(parker.asleep());
  EXPECT_TRUE(parker.prepare());
  EXPECT_TRUE(parker.asleep());
  EXPECT_EQ(parker.give(), Parker::Was::kAsleep);
  EXPECT_FALSE(parker.asleep());
  EXPECT_TRUE(parker.sleep(kNever));
  EXPECT_TRUE(parker.prepare(/*counted=*/true));
  EXPECT_TRUE(parker.asleep());
  EXPECT_EQ(parker.give(), Parker::Was::kAsleepCounted);
  EXPECT_TRUE(parker.sleep(kNever));
  EXPECT_EQ(parker.give(), Parker::Was::kAwake);
}

TEST(ParkerTest, ASleepThatTimedOutIsNoSleep) {
  Parker parker;
  EXPECT_TRUE(parker.prepare(/*counted=*/true));
  EXPECT_FALSE(parker.sleep(0));
  EXPECT_EQ(parker.give(), Parker::Was::kAwake);
}

// The other thread sees all that one wrote before its permit, however the two meet: no round may hang.
TEST(ParkerTest, NoWakeUpIsLostOverManyRounds) {
  constexpr int kRounds = 50'000;
  Parker ping;
  Parker pong;
  std::atomic<int> rounds{0};
  std::thread other([&] {
    for (int i = 1; i <= kRounds; ++i) {
      while (rounds.load(std::memory_order_relaxed) < i) ping.park(kNever);
      pong.unpark();
      if (i % 3 == 0) pong.unpark();
    }
  });
  for (int i = 1; i <= kRounds; ++i) {
    rounds.store(i, std::memory_order_relaxed);
    ping.unpark();
    if (i % 2 == 0) ping.unpark();
    pong.park(kNever);
  }
  other.join();
}

TEST(ParkerTest, ManyThreadsMayUnparkOne) {
  constexpr int kThreads = 4;
  constexpr int kEach = 20'000;
  Parker parker;
  std::atomic<int> count{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        count.fetch_add(1, std::memory_order_relaxed);
        parker.unpark();
      }
    });
  }
  while (count.load(std::memory_order_relaxed) < kThreads * kEach) parker.park(kNever);
  for (std::thread& thread : threads) thread.join();
}

TEST(ParkerTest, TimeoutsAndPermitsMeetWithoutLoss) {
  Parker parker;
  std::atomic<int> given{0};
  std::atomic<bool> done{false};
  std::thread other([&] {
    for (int i = 0; i < 5'000; ++i) {
      given.fetch_add(1);
      parker.unpark();
      if (i % 16 == 0) std::this_thread::yield();
    }
    done.store(true);
    parker.unpark();
  });
  int woken = 0;
  while (!done.load()) woken += parker.park(monotonic_ns() + 1'000) ? 1 : 0;
  other.join();
  EXPECT_LE(woken, given.load() + 1);
}

TEST(DeadlineTest, StopsAtTheClocksEnd) {
  EXPECT_EQ(Deadline::after(5, absl::Nanoseconds(7), /*weak=*/false).at_ns, 12);
  EXPECT_FALSE(Deadline::after(5, absl::Nanoseconds(7), /*weak=*/false).weak);
  EXPECT_EQ(Deadline::after(5, absl::Hours(1'000'000'000), /*weak=*/true).at_ns, Deadline::kNever - 1);
  EXPECT_TRUE(Deadline::after(5, absl::Hours(1'000'000'000), /*weak=*/true).weak);
  EXPECT_EQ(Deadline::after(0, absl::InfiniteDuration(), /*weak=*/true).at_ns, Deadline::kNever);
  EXPECT_EQ(Deadline::after(kNever - 1, absl::Nanoseconds(1), /*weak=*/true).at_ns, kNever - 1);
}

}  // namespace
}  // namespace rankloom

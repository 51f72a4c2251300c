// Objects by which rank programs synchronise beside the collectives: known to the scheduler in every gear.
#include "rankloom/sync.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/error_of.h"
#include "tests/sim/scheduler_fixture.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::HasSubstr;

// For misuse on purpose, and for locks that depend on a condition.
void lock_unchecked(Mutex& mu, CodeSite code = CodeSite::here()) ABSL_NO_THREAD_SAFETY_ANALYSIS { mu.lock(code); }
void unlock_unchecked(Mutex& mu, CodeSite code = CodeSite::here()) ABSL_NO_THREAD_SAFETY_ANALYSIS { mu.unlock(code); }
void wait_unchecked(CondVar& cv, Mutex& mu, CodeSite code) ABSL_NO_THREAD_SAFETY_ANALYSIS { cv.wait(&mu, code); }

bool try_lock_unchecked(Mutex& mu) ABSL_NO_THREAD_SAFETY_ANALYSIS { return mu.try_lock(); }
void wait_long_unchecked(CondVar& cv, Mutex& mu) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  (void)cv.wait_for(&mu, absl::Hours(1), [] { return false; });
}

class SyncTest : public testing::TestWithParam<Gear> {
 protected:
  std::unique_ptr<Scheduler> make(int ranks) { return make_scheduler(GetParam(), ranks); }
  bool deterministic() const { return GetParam().schedule.deterministic(); }
};
INSTANTIATE_TEST_SUITE_P(Gears, SyncTest, testing::ValuesIn(every_gear()), gear_name);

TEST_P(SyncTest, AMutexIsHeldByOneAtATime) {
  auto scheduler = make(4);
  Mutex mu;
  int64_t count = 0;
  bool inside = false;
  scheduler->run([&](int, Task&) {
    for (int i = 0; i < 50; ++i) {
      MutexLock lock(&mu);
      EXPECT_FALSE(inside);
      inside = true;
      const int64_t before = count;
      scheduler->point(Site{.what = "inside"});
      count = before + 1;
      inside = false;
    }
  });
  EXPECT_EQ(count, 200);
}

TEST_P(SyncTest, StandardLocksTakeAMutex) {
  auto scheduler = make(3);
  Mutex mu;
  int count = 0;
  scheduler->run([&](int, Task&) {
    for (int i = 0; i < 20; ++i) {
      const std::lock_guard<Mutex> lock(mu);
      ++count;
    }
  });
  EXPECT_EQ(count, 60);
}

TEST_P(SyncTest, TryLockAnswersAtOnce) {
  auto scheduler = make(2);
  Mutex mu;
  Latch locked(1), tried(1);
  scheduler->run([&](int rank, Task&) {
    if (rank == 0) {
      mu.lock();
      locked.count_down();
      tried.wait();
      mu.unlock();
    } else {
      locked.wait();
      if (mu.try_lock()) {
        ADD_FAILURE() << "two hold it";
        mu.unlock();
      }
      tried.count_down();
      mu.lock();
      mu.unlock();
      if (mu.try_lock()) {
        mu.unlock();
      } else {
        ADD_FAILURE() << "nobody holds it";
      }
    }
  });
  EXPECT_TRUE(scheduler->abort_cause().ok()) << scheduler->abort_cause();
}

TEST_P(SyncTest, TwoMutexesInOppositeOrderAreADeadlockWithOwnersAndCycle) {
  auto scheduler = make(2);
  Mutex a("a"), b("b");
  Latch both(2);
  std::vector<std::string> errors(2);
  scheduler->run([&](int rank, Task&) {
    errors[static_cast<size_t>(rank)] = error_of(
        [&] {
          MutexLock first(rank == 0 ? &a : &b, {"dir/first.cc", 10 + rank});
          both.arrive_and_wait();
          MutexLock second(rank == 0 ? &b : &a, {"dir/second.cc", 20 + rank});
          ADD_FAILURE() << "got both";
        },
        ErrorKind::kDeadlock);
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error,
              "Deadlock: no rank can move\n"
              "  rank 0 waits in mutex lock \"b\" for rank 1, locked at first.cc:11 [second.cc:20]\n"
              "  rank 1 waits in mutex lock \"a\" for rank 0, locked at first.cc:10 [second.cc:21]\n"
              "  cycle: rank 0 -> rank 1 -> rank 0");
  }
}

TEST_P(SyncTest, AMutexThatItsOwnerTookAlongIsNamed) {
  auto scheduler = make(2);
  Mutex mu("m");
  Latch locked(1);
  std::string error;
  scheduler->run([&](int rank, Task&) {
    if (rank == 0) {
      lock_unchecked(mu, {"a.cc", 1});
      locked.count_down();
      return;
    }
    locked.wait();
    error = error_of([&] { lock_unchecked(mu, {"b.cc", 2}); }, ErrorKind::kDeadlock);
  });
  EXPECT_THAT(error, HasSubstr("\n  rank 1 waits in mutex lock \"m\" for rank 0, locked at a.cc:1 [b.cc:2]"));
}

TEST_P(SyncTest, AConditionIsNotWaitedForWithoutTheMutex) {
  auto scheduler = make(2);
  Mutex mu("m");
  CondVar cv;
  Latch locked(1), told(1);
  bool set = false;
  scheduler->run([&](int rank, Task&) {
    if (rank == 1) {
      locked.wait();
      EXPECT_EQ(error_of(
                    [&] {
                      wait_unchecked(cv, mu, {"b.cc", 4});
                    },
                    ErrorKind::kInvalidArgument),
                "InvalidArgument: rank 1, mutex unlock \"m\": rank 0 holds it, want the one that locked it [b.cc:4]");
      told.count_down();
      const MutexLock lock(&mu);
      while (!set) cv.wait(&mu);  // the wait that never was is not in the way of this one
      return;
    }
    EXPECT_EQ(error_of(
                  [&] {
                    wait_unchecked(cv, mu, {"b.cc", 3});
                  },
                  ErrorKind::kInvalidArgument),
              "InvalidArgument: rank 0, mutex unlock \"m\": nobody holds it, want the one that locked it [b.cc:3]");
    {
      const MutexLock lock(&mu);
      locked.count_down();
      told.wait();
      set = true;
    }
    cv.notify_one();
  });
}

TEST_P(SyncTest, MisuseOfAMutexIsTold) {
  auto scheduler = make(2);
  Mutex mu("m");
  Latch locked(1), seen(1);
  scheduler->run([&](int rank, Task&) {
    if (rank == 1) {
      locked.wait();
      EXPECT_EQ(error_of(
                    [&] {
                      unlock_unchecked(mu, {"b.cc", 4});
                    },
                    ErrorKind::kInvalidArgument),
                "InvalidArgument: rank 1, mutex unlock \"m\": rank 0 holds it, want the one that locked it [b.cc:4]");
      return seen.count_down();
    }
    EXPECT_EQ(error_of(
                  [&] {
                    unlock_unchecked(mu, {"b.cc", 3});
                  },
                  ErrorKind::kInvalidArgument),
              "InvalidArgument: rank 0, mutex unlock \"m\": nobody holds it, want the one that locked it [b.cc:3]");
    mu.lock({"a.cc", 1});
    EXPECT_EQ(
        error_of(
            [&] {
              lock_unchecked(mu, {"a.cc", 2});
            },
            ErrorKind::kInvalidArgument),
        "InvalidArgument: rank 0, mutex lock \"m\": this task holds it already [a.cc:1], want no second lock [a.cc:2]");
    locked.count_down();
    seen.wait();
    mu.unlock();
  });
  EXPECT_TRUE(scheduler->abort_cause().ok()) << scheduler->abort_cause();
}

TEST_P(SyncTest, AConditionPassesABoundedQueue) {
  auto scheduler = make(4);
  Mutex mu("queue");
  CondVar not_empty("not empty"), not_full("not full");
  std::deque<int> queue;
  std::multiset<int> popped;
  scheduler->run([&](int rank, Task&) {
    for (int i = 0; i < 25; ++i) {
      MutexLock lock(&mu);
      if (rank < 2) {
        not_full.wait(&mu, [&] { return queue.size() < 3; });
        queue.push_back(100 * rank + i);
        not_empty.notify_one();
      } else {
        not_empty.wait(&mu, [&] { return !queue.empty(); });
        popped.insert(queue.front());
        queue.pop_front();
        not_full.notify_one();
      }
    }
  });
  ASSERT_TRUE(scheduler->abort_cause().ok()) << scheduler->abort_cause();
  std::multiset<int> pushed;
  for (int i = 0; i < 25; ++i) pushed.insert({i, 100 + i});
  EXPECT_EQ(popped, pushed);
}

TEST_P(SyncTest, NotifyAllWakesThoseWhoWait) {
  auto scheduler = make(5);
  Mutex mu;
  CondVar changed;
  int waiting = 0;
  int phase = 0;
  scheduler->run([&](int rank, Task&) {
    MutexLock lock(&mu);
    if (rank > 0) {
      if (++waiting == 4) changed.notify_all();
      changed.wait(&mu, [&] { return phase == 1; });
      --waiting;
    } else {
      changed.wait(&mu, [&] { return waiting == 4; });
      phase = 1;
      changed.notify_all();
    }
  });
  ASSERT_TRUE(scheduler->abort_cause().ok()) << scheduler->abort_cause();
  EXPECT_EQ(waiting, 0);
}

// With the mutex held from the check to the wait, no notification is lost, whoever runs when.
TEST_P(SyncTest, NoNotificationIsLost) {
  for (int round = 0; round < 50; ++round) {
    auto scheduler = make(2);
    Mutex mu;
    CondVar changed;
    bool ready = false;
    scheduler->run([&](int rank, Task&) {
      MutexLock lock(&mu);
      if (rank == 0) {
        while (!ready) changed.wait(&mu);
      } else {
        ready = true;
        changed.notify_one();
      }
    });
    ASSERT_TRUE(scheduler->abort_cause().ok()) << scheduler->abort_cause();
  }
}

TEST_P(SyncTest, AConditionThatNobodyNotifiesIsADeadlock) {
  auto scheduler = make(1);
  Mutex mu;
  CondVar never("never");
  std::string error;
  scheduler->run([&](int, Task&) {
    error = error_of(
        [&] {
          MutexLock lock(&mu);
          never.wait(&mu, {"dir/wait.cc", 7});
        },
        ErrorKind::kDeadlock);
  });
  EXPECT_EQ(error, "Deadlock: no rank can move\n  rank 0 waits in condition wait \"never\" [wait.cc:7]");
}

TEST_P(SyncTest, WaitForEndsByTheClockOfTheWorld) {
  auto scheduler = make(2);
  Mutex mu;
  CondVar never;
  const absl::Duration timeout = deterministic() ? absl::Hours(5) : absl::Milliseconds(3);
  scheduler->run([&](int, Task&) {
    const int64_t began = scheduler->now_ns();
    MutexLock lock(&mu);
    EXPECT_FALSE(never.wait_for(&mu, timeout, [] { return false; }));
    EXPECT_GE(scheduler->now_ns() - began, absl::ToInt64Nanoseconds(timeout));
    EXPECT_TRUE(never.wait_for(&mu, timeout, [] { return true; }));
  });
  EXPECT_TRUE(scheduler->abort_cause().ok()) << scheduler->abort_cause();
}

// One at a time, in the order in which they came.
TEST_P(SyncTest, NotifyOneWakesTheOneThatCameFirst) {
  auto scheduler = make(4);
  Mutex mu;
  CondVar turn;
  std::vector<int> came, went;
  const auto wait_until = [&](const std::vector<int>& list, size_t size) {
    for (;;) {
      {
        MutexLock lock(&mu);
        if (list.size() >= size) return;
      }
      (void)scheduler->sleep({.what = "sleep"}, absl::Milliseconds(1));
    }
  };
  scheduler->run([&](int rank, Task&) {
    if (rank > 0) {
      MutexLock lock(&mu);
      came.push_back(rank);
      turn.wait(&mu);
      went.push_back(rank);
      return;
    }
    wait_until(came, 3);
    for (size_t i = 1; i <= 3; ++i) {
      {
        MutexLock lock(&mu);
        turn.notify_one();
      }
      wait_until(went, i);
      (void)scheduler->sleep({.what = "sleep"}, absl::Milliseconds(1));
      MutexLock lock(&mu);
      EXPECT_EQ(went.size(), i);
    }
  });
  EXPECT_TRUE(scheduler->abort_cause().ok()) << scheduler->abort_cause();
  EXPECT_EQ(went, came);
}

// A condition that holds when the time is up counts, whether or not anybody has said so.
TEST_P(SyncTest, WaitForLooksOnceMoreWhenItsTimeIsUp) {
  auto scheduler = make(2);
  scheduler->run([&](int, Task&) {
    Mutex mu;
    CondVar never;
    int looks = 0;
    MutexLock lock(&mu);
    EXPECT_TRUE(never.wait_for(&mu, absl::Milliseconds(3), [&] { return ++looks > 1; }));
    EXPECT_EQ(looks, 2);
  });
  EXPECT_TRUE(scheduler->abort_cause().ok()) << scheduler->abort_cause();
}

TEST_P(SyncTest, ALatchOfZeroIsOpen) {
  auto scheduler = make(1);
  std::string error;
  scheduler->run([&](int, Task&) {
    Latch open(0);
    EXPECT_TRUE(open.try_wait());
    open.wait();
    open.count_down(0);
    error = error_of([&] { open.count_down(); }, ErrorKind::kInvalidArgument);
  });
  EXPECT_THAT(error, HasSubstr("n is 1, want 0 <= n <= what is left = 0"));
}

// The rank that waited is without the mutex if its holder never lets go; its lock's end is harmless.
TEST_P(SyncTest, AnAbortEndsEveryWait) {
  auto scheduler = make(4);
  Mutex mu;
  CondVar never;
  Latch latch(5);
  Latch held(1);
  std::vector<std::string> errors(4);
  scheduler->run([&](int rank, Task&) {
    errors[static_cast<size_t>(rank)] = error_of(
        [&] {
          if (rank == 0) {
            MutexLock lock(&mu);
            never.wait(&mu, [] { return false; });
          } else if (rank == 1) {
            latch.wait();
          } else if (rank == 2) {
            lock_unchecked(mu);  // and never unlocks it
            held.count_down();
            throw DistError(make_error(ErrorKind::kAborted, "enough"), {});
          } else {
            held.wait();
            scheduler->abort(make_error(ErrorKind::kAborted, "enough"));
            MutexLock lock(&mu);
          }
        },
        ErrorKind::kAborted);
  });
  EXPECT_THAT(errors, testing::Each("Aborted: enough"));
}

// The wait that an abort ends has the mutex no more, so that others may.
TEST_P(SyncTest, AWaitThatAnAbortEndsLeavesTheMutexFree) {
  Mutex mu("m");
  CondVar never;
  for (const bool timed : {false, true}) {
    const auto scheduler = make(2);
    Latch waits(1);
    scheduler->run([&](int rank, Task&) {
      if (rank == 0) {
        lock_unchecked(mu);
        waits.count_down();
        EXPECT_THAT(
            error_of([&] { timed ? wait_long_unchecked(never, mu) : wait_unchecked(never, mu, CodeSite::here()); }),
            HasSubstr("enough"));
        unlock_unchecked(mu);  // harmless
        return;
      }
      waits.wait();
      lock_unchecked(mu);  // free: rank 0 waits
      unlock_unchecked(mu);
      scheduler->abort(make_error(ErrorKind::kAborted, "enough"));
    });
    EXPECT_TRUE(try_lock_unchecked(mu));
    unlock_unchecked(mu);
  }
}

TEST_P(SyncTest, ALatchOpensAtZero) {
  auto scheduler = make(6);
  Latch start(6, "start"), done(5, "done");
  std::atomic<int> came{0};
  scheduler->run([&](int rank, Task&) {
    ++came;
    start.arrive_and_wait();
    EXPECT_EQ(came, 6);
    EXPECT_TRUE(start.try_wait());
    if (rank > 0) {
      done.count_down();
    } else {
      done.wait();
      EXPECT_TRUE(done.try_wait());
    }
  });
  EXPECT_TRUE(scheduler->abort_cause().ok()) << scheduler->abort_cause();
}

TEST_P(SyncTest, ALatchThatOneRankMissesIsADeadlockWithWhatIsLeft) {
  auto scheduler = make(3);
  Latch latch(3, "start");
  std::vector<std::string> errors(3);
  scheduler->run([&](int rank, Task&) {
    if (rank == 1) return;
    errors[static_cast<size_t>(rank)] = error_of(
        [&] {
          latch.arrive_and_wait({"dir/go.cc", 5});
        },
        ErrorKind::kDeadlock);
  });
  EXPECT_EQ(errors[0], "Deadlock: no rank can move\n  ranks 0, 2 wait in latch wait \"start\", 1 of 3 left [go.cc:5]");
  EXPECT_EQ(errors[2], errors[0]);
}

TEST_P(SyncTest, MisuseOfALatchIsTold) {
  auto scheduler = make(1);
  scheduler->run([&](int, Task&) {
    Latch latch(2, "l");
    EXPECT_THAT(error_of(
                    [&] {
                      latch.count_down(3, {"a.cc", 9});
                    },
                    ErrorKind::kInvalidArgument),
                "InvalidArgument: rank 0, latch count_down \"l\": n is 3, want 0 <= n <= what is left = 2 [a.cc:9]");
    EXPECT_THAT(error_of([&] { latch.count_down(-1); }, ErrorKind::kInvalidArgument), HasSubstr("n is -1, want"));
    latch.count_down(2);
    EXPECT_TRUE(latch.try_wait());
    EXPECT_EQ(error_of([] { Latch below(-1); }, ErrorKind::kInvalidArgument),
              "InvalidArgument: rank 0, latch: count is -1, want at least 0" + here());
  });
}

// A planted race: the check and the act are two steps. Some seed shows it, no seed shows it with the mutex.
TEST(SyncScheduleTest, SeedsFindTheRaceThatTheMutexPrevents) {
  const auto seeds_that_lose = [](bool with_mutex) {
    int lost = 0;
    for (uint64_t seed = 0; seed < 200; ++seed) {
      auto scheduler = make_scheduler(fibers(Schedule::seeded(seed)), 3);
      Mutex mu;
      int balance = 0;
      scheduler->run([&](int, Task&) {
        if (with_mutex) lock_unchecked(mu);
        const int read = balance;
        scheduler->point(Site{.what = "between"});
        balance = read + 1;
        if (with_mutex) unlock_unchecked(mu);
      });
      lost += balance != 3;
    }
    return lost;
  };
  EXPECT_GT(seeds_that_lose(false), 0);
  EXPECT_EQ(seeds_that_lose(true), 0);
}

TEST(SyncScheduleTest, OneSeedGivesOneOrderOnBothEngines) {
  const auto run = [](const Gear& gear) {
    auto scheduler = make_scheduler(gear, 4);
    Mutex mu("m");
    CondVar changed("c");
    Latch latch(4, "l");
    std::vector<int> order;
    scheduler->run([&](int rank, Task&) {
      for (int i = 0; i < 5; ++i) {
        MutexLock lock(&mu);
        order.push_back(rank);
        changed.notify_one();
        if (i == 2) changed.wait_for(&mu, absl::Seconds(rank + 1), [] { return false; });
      }
      latch.arrive_and_wait();
      order.push_back(10 + rank);
    });
    EXPECT_TRUE(scheduler->abort_cause().ok()) << scheduler->abort_cause();
    return std::make_pair(order, scheduler->trace());
  };
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto on_fibers = run(fibers(Schedule::seeded(seed)));
    const auto on_threads = run(baton(Schedule::seeded(seed)));
    ASSERT_EQ(on_fibers.first, on_threads.first) << "seed " << seed;
    ASSERT_EQ(first_difference(on_fibers.second, on_threads.second), "equal") << "seed " << seed;
  }
}

TEST(SyncThreadsTest, ThreadsOfNoWorldMayUseThem) {
  Mutex mu("m");
  CondVar changed;
  Latch latch(3);
  int count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      {
        MutexLock lock(&mu);
        ++count;
        changed.notify_all();
        changed.wait(&mu, [&] { return count == 3; });
        EXPECT_FALSE(changed.wait_for(&mu, absl::Milliseconds(1), [] { return false; }));
      }
      latch.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 3);
  EXPECT_THAT(error_of(
                  [&] {
                    unlock_unchecked(mu, {"a.cc", 1});
                  },
                  ErrorKind::kInvalidArgument),
              "InvalidArgument: mutex unlock \"m\": nobody holds it, want the one that locked it [a.cc:1]");
}

TEST(SyncThreadsTest, RanksOfTwoWorldsMayShareThem) {
  auto one = make_scheduler(fibers(), 1);
  auto two = make_scheduler(free_gear(), 1);
  one->add_outside(1);  // the waking thread is no task of this world
  two->add_outside(1);
  Mutex mu;
  CondVar turn_changed;
  int turn = 0;
  const auto program = [&](int me) {
    for (int i = 0; i < 20; ++i) {
      MutexLock lock(&mu);
      turn_changed.wait(&mu, [&] { return turn % 2 == me; });
      ++turn;
      turn_changed.notify_all();
    }
  };
  std::thread other([&] { two->run([&](int, Task&) { program(1); }); });
  one->run([&](int, Task&) { program(0); });
  other.join();
  EXPECT_EQ(turn, 40);
  one->add_outside(-1);
  two->add_outside(-1);
}

TEST_P(SyncTest, AMutexThatAWaitLockedAgainNamesTheWait) {
  auto scheduler = make(2);
  Mutex mu("m");
  CondVar changed;
  Latch held(1);
  bool waits = false, set = false;
  std::string error;
  scheduler->run([&](int rank, Task&) {
    if (rank == 0) {
      lock_unchecked(mu, {"a.cc", 1});
      waits = true;
      while (!set) wait_unchecked(changed, mu, {"a.cc", 2});
      return held.count_down();  // and never unlocks the mutex
    }
    while (!set) {
      (void)scheduler->sleep({.what = "sleep"}, absl::Milliseconds(1));
      const MutexLock lock(&mu);
      set = waits;
      if (set) changed.notify_one();
    }
    held.wait();
    error = error_of([&] { lock_unchecked(mu, {"b.cc", 4}); }, ErrorKind::kDeadlock);
  });
  EXPECT_THAT(error, HasSubstr("rank 1 waits in mutex lock \"m\" for rank 0, locked at a.cc:2 [b.cc:4]"));
}

TEST_P(SyncTest, AMutexThatAThreadOfNoWorldHoldsNamesNoRank) {
  auto scheduler = make(1);
  Mutex mu("m");
  lock_unchecked(mu, {"a.cc", 1});
  scheduler->run([&](int, Task&) {
    EXPECT_EQ(error_of(
                  [&] {
                    unlock_unchecked(mu, {"b.cc", 2});
                  },
                  ErrorKind::kInvalidArgument),
              "InvalidArgument: rank 0, mutex unlock \"m\": a thread of no world holds it, want the one that locked it "
              "[b.cc:2]");
  });
  unlock_unchecked(mu);
}

TEST_P(SyncTest, ErrorsHaveOperationAndRank) {
  auto scheduler = make(2);
  scheduler->run([&](int rank, Task&) {
    if (rank == 0) return;
    Latch latch(2);
    for (const bool waits : {false, true}) {
      if (waits) scheduler->abort(make_error(ErrorKind::kAborted, "enough"));
      try {
        waits ? latch.wait() : latch.count_down(3);
        ADD_FAILURE() << "no error";
      } catch (const DistError& error) {
        EXPECT_EQ(error.op(), waits ? "latch wait" : "latch count_down");
        EXPECT_EQ(error.rank(), 1);
      }
    }
  });
}

}  // namespace
}  // namespace rankloom

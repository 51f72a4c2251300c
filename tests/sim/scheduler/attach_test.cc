// Threads that the caller owns as tasks of a run: ranks that attach, and helper threads that are adopted for a call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "sim/base/parker.h"
#include "sim/scheduler/call_scope.h"
#include "tests/sim/scheduler_fixture.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string message(const absl::Status& status) { return std::string(status.message()); }

class AttachTest : public testing::TestWithParam<Gear> {
 protected:
  std::unique_ptr<Scheduler> make(int ranks) { return make_scheduler(GetParam(), ranks); }
  bool free() const { return !GetParam().schedule.deterministic(); }

  // Runs `body` on threads of the test's own that attach in the given order, one after another has asked.
  static void attach_all(Scheduler& scheduler, const std::vector<int>& order,
                         const std::function<void(int rank)>& body) {
    std::vector<std::thread> threads;
    for (const int rank : order) {
      std::atomic<bool> begun{false};
      threads.emplace_back([&scheduler, &body, &begun, rank] {
        begun = true;
        Task* const task = scheduler.attach({.rank = rank});
        body(rank);
        scheduler.detach(task);
      });
      while (!begun) sched_yield();
    }
    for (std::thread& thread : threads) thread.join();
  }
};
INSTANTIATE_TEST_SUITE_P(Gears, AttachTest,
                         testing::Values(free_gear(), baton(Schedule::fifo()), baton(Schedule::round_robin()),
                                         baton(Schedule::seeded(3)), baton(Schedule::pct(3, 2))),
                         gear_name);

class BatonAttachTest : public AttachTest {};
INSTANTIATE_TEST_SUITE_P(Gears, BatonAttachTest,
                         testing::Values(baton(Schedule::fifo()), baton(Schedule::round_robin()),
                                         baton(Schedule::seeded(3)), baton(Schedule::pct(3, 2))),
                         gear_name);

// Takes seconds.
class RawWaitTest : public AttachTest {};
INSTANTIATE_TEST_SUITE_P(Gears, RawWaitTest, testing::Values(free_gear(), baton(Schedule::seeded(3))), gear_name);

TEST_P(AttachTest, TheCallersThreadsAreTheRanks) {
  auto scheduler = make(4);
  std::atomic<int> ran{0};
  attach_all(*scheduler, {2, 0, 3, 1}, [&](int rank) {
    EXPECT_EQ(Task::current()->info.rank, rank);
    EXPECT_EQ(Task::current()->info.kind, TaskKind::kRank);
    EXPECT_TRUE(Task::current()->adopted);
    ++ran;
  });
  EXPECT_EQ(ran, 4);
  EXPECT_EQ(Task::current(), nullptr);
}

TEST_P(BatonAttachTest, TheOrderOfArrivalDoesNotMatter) {
  std::vector<int> order = {0, 1, 2, 3};
  Trace first;
  std::vector<int> first_steps;  // the ranks that took them
  do {
    auto scheduler = make(4);
    std::vector<int> steps;
    attach_all(*scheduler, order, [&](int rank) {
      for (int i = 0; i < 10; ++i) {
        steps.push_back(rank);  // one rank at a time
        scheduler->point(Site{.what = "step", .seq = i});
      }
    });
    if (first_steps.empty()) {
      first = scheduler->trace();
      first_steps = steps;
    }
    // A fifo run has an empty trace.
    ASSERT_EQ(first_difference(first, scheduler->trace()), "equal");
    ASSERT_EQ(steps, first_steps);
    if (GetParam().schedule.kind() == Schedule::Kind::kFifo) {
      ASSERT_EQ(steps.front(), 0);
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_P(BatonAttachTest, AttachedRanksDoWhatRanksOfARunDo) {
  const auto body = [](Scheduler& scheduler) {
    for (int i = 0; i < 10; ++i) scheduler.point(Site{.what = "step", .seq = i});
  };
  auto run = make(3);
  run->run([&](int, Task&) { body(*run); });
  auto attached = make(3);
  attach_all(*attached, {2, 1, 0}, [&](int) { body(*attached); });
  EXPECT_EQ(first_difference(run->trace(), attached->trace()), "equal");
}

TEST_P(BatonAttachTest, NoRankRunsBeforeAllHaveAttached) {
  auto scheduler = make(2);
  std::atomic<bool> ran{false};
  std::atomic<bool> begun{false};
  std::thread first([&] {
    begun = true;
    Task* const task = scheduler->attach({.rank = 0});
    ran = true;
    scheduler->detach(task);
  });
  while (!begun) sched_yield();
  for (int i = 0; i < 500; ++i) sched_yield();
  EXPECT_FALSE(ran);
  Task* const task = scheduler->attach({.rank = 1});
  scheduler->detach(task);
  first.join();
  EXPECT_TRUE(ran);
}

TEST_P(AttachTest, AnAbortReleasesThoseWhoWaitForOthersToAttach) {
  auto scheduler = make(4);
  Gate gate(scheduler.get());
  std::atomic<int> stopped{0};
  std::atomic<int> begun{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      ++begun;
      Task* const task = scheduler->attach({.rank = rank});
      if (message(gate.wait()) == "rank 3 cannot come") ++stopped;
      scheduler->detach(task);
    });
  }
  while (begun < 3) sched_yield();
  for (int i = 0; i < 100; ++i) sched_yield();
  scheduler->abort(make_error(ErrorKind::kAborted, "rank 3 cannot come"));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(stopped, 3);
}

TEST_P(AttachTest, ARankThatAttachesAfterTheAbortIsToldSo) {
  auto scheduler = make(2);
  scheduler->abort(make_error(ErrorKind::kAborted, "enough"));
  Gate gate(scheduler.get());
  for (int rank = 0; rank < 2; ++rank) {  // one after another: neither waits for the other
    Task* const task = scheduler->attach({.rank = rank});
    EXPECT_EQ(message(gate.wait()), "enough");
    scheduler->detach(task);
  }
}

TEST_P(AttachTest, AbortsAndAttachesMeet) {
  for (int round = 0; round < 100; ++round) {
    auto scheduler = make(3);
    Gate gate(scheduler.get());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        Task* const task = scheduler->attach({.rank = rank});
        EXPECT_FALSE(gate.wait().ok());  // "enough", or a deadlock if all came before
        scheduler->detach(task);
      });
    }
    scheduler->abort(make_error(ErrorKind::kAborted, "enough"));
    for (std::thread& thread : threads) thread.join();
  }
}

// As torch's DDP does: the main thread waits in a raw condition variable for a thread that calls collectives.
TEST_P(AttachTest, AHelperWorksWhileTheMainThreadIsBlockedInARawWait) {
  constexpr int kRanks = 3;
  for (int round = 0; round < 20; ++round) {
    auto scheduler = make(kRanks);
    RankMutex mu(scheduler.get(), internal::LockLevel::kSync);
    RankCondVar changed;
    int arrived = 0;
    scheduler->run([&](int rank, Task&) {
      std::mutex raw;
      std::condition_variable raw_changed;
      bool done = false;
      std::thread helper([&] {
        for (int step = 1; step <= 3; ++step) {
          const CallScope call(scheduler.get(), rank);
          EXPECT_EQ(Task::current()->info.rank, rank);
          EXPECT_EQ(Task::current()->info.kind, TaskKind::kHelper);
          scheduler->point(Site{.what = "arrive", .seq = step});
          RankMutexLock lock(&mu);
          ++arrived;
          changed.notify_all();
          const absl::Status status = changed.await(
              &mu, [&] { return arrived >= kRanks * step; }, Site{.what = "barrier", .seq = step});
          EXPECT_TRUE(status.ok()) << status;
        }
        EXPECT_EQ(Task::current(), nullptr);
        const std::lock_guard<std::mutex> lock(raw);
        done = true;
        raw_changed.notify_all();
      });
      {
        std::unique_lock<std::mutex> lock(raw);
        raw_changed.wait(lock, [&] { return done; });
      }
      scheduler->point(Site{.what = "after"});
      helper.join();
    });
    ASSERT_TRUE(scheduler->abort_cause().ok()) << scheduler->abort_cause();
    ASSERT_EQ(arrived, 3 * kRanks);
  }
}

TEST_P(AttachTest, ATaskIsNotAdoptedAgain) {
  auto scheduler = make(1);
  scheduler->run([&](int, Task& task) {
    const CallScope call(scheduler.get(), 0);
    EXPECT_EQ(Task::current(), &task);
  });
}

// A thread that waits in a way of its own may wake up by itself, so that is no deadlock, but it ends.
TEST_P(RawWaitTest, ARunThatIsStuckBehindARawWaitEndsWhenItsTimeIsUp) {
  std::promise<std::string> warning;
  auto scheduler = make_scheduler(GetParam(), 2, [&](WorldOptions& options) {
    options.stuck_after = absl::Seconds(1);
    options.stall = absl::Milliseconds(500);
    options.on_stall = [&warning, told = false](const std::string& text) mutable {
      if (text.find("stuck") != std::string::npos && !std::exchange(told, true)) warning.set_value(text);
    };
  });
  Gate never(scheduler.get());
  std::vector<absl::Status> statuses(2);
  scheduler->run([&](int rank, Task&) {
    std::thread helper([&] {
      const CallScope call(scheduler.get(), rank);
      statuses[static_cast<size_t>(rank)] = never.wait();
    });
    helper.join();
  });
  EXPECT_THAT(
      warning.get_future().get(),
      StartsWith("stuck for 500ms of real time: ranks 0-1 could still act, but came to no scheduling point for that "
                 "long\n  ranks 0-1 wait in gate (its helper) [scheduler_fixture.h:"));
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(error_kind(status), ErrorKind::kTimeout);
    EXPECT_THAT(message(status),
                StartsWith("stuck for 1s of real time: ranks 0-1 could still act, but came to no scheduling point for "
                           "that long\n  ranks 0-1 wait in gate (its helper) [scheduler_fixture.h:"));
  }
}

// A thread of the program's own that has called for a rank, and is in no call now: all tasks wait for what it does
// next.
class StrangerTest : public testing::TestWithParam<Gear> {
 protected:
  // `between` runs on the thread when all ranks wait in `gate`.
  void run_with_stranger(Scheduler& scheduler, Gate& gate, const std::function<void()>& between) {
    std::vector<absl::Status>& ended = ended_;
    ended.resize(2);
    std::thread stranger;
    scheduler.run([&](int rank, Task&) {
      if (rank == 0) {
        std::atomic<bool> called{false};
        stranger = std::thread([&] {
          {
            const CallScope call(&scheduler, 0);
            scheduler.point(Site{.what = "first call"});
          }
          called = true;
          between();
        });
        while (!called) scheduler.yield(Site{.what = "yield"});
      }
      ended[static_cast<size_t>(rank)] = gate.wait();
    });
    over_.set_value();
    stranger.join();
  }
  static void await_standstill(const Scheduler& scheduler) {
    std::vector<Outstanding> outstanding;
    do {
      outstanding.clear();
      scheduler.append_outstanding(&outstanding);
    } while (!outstanding.empty());
  }
  std::vector<absl::Status> ended_;
  std::promise<void> over_;  // the run is
};
INSTANTIATE_TEST_SUITE_P(Gears, StrangerTest,
                         testing::Values(free_gear(), baton(Schedule::seeded(3)), baton(Schedule::fifo())), gear_name);

TEST_P(StrangerTest, KeepsTheRunFromBeingADeadlock) {
  auto scheduler = make_scheduler(GetParam(), 2);
  Gate gate(scheduler.get());
  run_with_stranger(*scheduler, gate, [&] {
    await_standstill(*scheduler);
    const CallScope call(scheduler.get(), 0);
    scheduler->point(Site{.what = "second call"});
    gate.open();
  });
  EXPECT_THAT(ended_, testing::Each(absl::OkStatus()));
  EXPECT_TRUE(scheduler->abort_cause().ok()) << scheduler->abort_cause();
}

TEST_P(StrangerTest, ThatEndsLeavesADeadlock) {
  auto scheduler = make_scheduler(GetParam(), 2);
  Gate gate(scheduler.get());
  run_with_stranger(*scheduler, gate, [&] { await_standstill(*scheduler); });
  for (const absl::Status& status : ended_) {
    EXPECT_EQ(error_kind(status), ErrorKind::kDeadlock);
    EXPECT_THAT(message(status), StartsWith("no rank can move\n  ranks 0-1 wait in gate [scheduler_fixture.h:"));
  }
}

TEST_P(StrangerTest, ThatWaitsWithTheRanksLeavesADeadlock) {
  auto scheduler = make_scheduler(GetParam(), 2);
  Gate gate(scheduler.get());
  absl::Status stranger;
  run_with_stranger(*scheduler, gate, [&] {
    const CallScope call(scheduler.get(), 0);
    stranger = gate.wait("gate of the thread");
  });
  EXPECT_EQ(error_kind(stranger), ErrorKind::kDeadlock);
  EXPECT_THAT(message(stranger),
              HasSubstr("\n  rank 0 waits in gate of the thread (its helper) [scheduler_fixture.h:"));
}

TEST_P(StrangerTest, ThatDoesNothingForLongEndsTheRun) {
  std::promise<std::string> warning;
  auto scheduler = make_scheduler(GetParam(), 2, [&](WorldOptions& options) {
    options.stuck_after = absl::Milliseconds(200);
    options.stall = absl::Milliseconds(100);
    // Told once more if a look finds the thread on its way from the first time.
    options.on_stall = [&warning, told = false](const std::string& text) mutable {
      if (text.find("stuck") != std::string::npos && !std::exchange(told, true)) warning.set_value(text);
    };
  });
  Gate gate(scheduler.get());
  std::future<std::string> warned = warning.get_future();
  std::string first;
  run_with_stranger(*scheduler, gate, [&] {
    first = warned.get();
    over_.get_future().wait();
  });
  EXPECT_THAT(first,
              StartsWith("stuck for 100ms of real time: foreign threads of rank 0 could still act, but came to no "
                         "scheduling point for that long\n  ranks 0-1 wait in gate [scheduler_fixture.h:"));
  for (const absl::Status& status : ended_) {
    EXPECT_EQ(error_kind(status), ErrorKind::kTimeout);
    EXPECT_THAT(message(status),
                StartsWith("stuck for 200ms of real time: foreign threads of rank 0 could still act, but came to no "
                           "scheduling point for that long\n  ranks 0-1 wait in gate [scheduler_fixture.h:"));
  }
}

// The main thread joins a thread of its rank that could run, but for the baton, which the rank holds.
TEST_P(BatonAttachTest, AThreadThatItsRankJoinsRunsBesideIt) {
  auto scheduler = make_scheduler(GetParam(), 2, [](WorldOptions& options) {
    options.stall = absl::Milliseconds(20);
    options.on_stall = [](const std::string&) {};
  });
  Gate for_thread(scheduler.get());
  Gate for_rank(scheduler.get());
  std::atomic<bool> released{false};
  scheduler->run([&](int rank, Task&) {
    if (rank == 1) {
      EXPECT_TRUE(for_rank.wait().ok());
      for_thread.open();
      released = true;
      return;
    }
    std::thread thread([&] {
      const CallScope call(scheduler.get(), 0);
      EXPECT_TRUE(for_thread.wait().ok());
    });
    std::vector<Outstanding> outstanding;
    do {  // until the thread waits: it has passed the baton on, so this rank has none
      outstanding.clear();
      scheduler->append_outstanding(&outstanding);
    } while (outstanding.size() != 1);
    for_rank.open();
    while (!released) scheduler->yield(Site{.what = "yield"});
    thread.join();
  });
  EXPECT_TRUE(scheduler->abort_cause().ok()) << scheduler->abort_cause();
}

// The same, but the thread waits for another rank, which is ready and lacks the baton.
TEST_P(BatonAttachTest, ARankThatJoinsAThreadOfItsOwnLetsTheOthersRun) {
  auto scheduler = make_scheduler(GetParam(), 2, [](WorldOptions& options) {
    options.stall = absl::Milliseconds(20);
    options.on_stall = [](const std::string&) {};
  });
  Gate for_thread(scheduler.get());
  std::atomic<bool> came{false};
  scheduler->run([&](int rank, Task&) {
    if (rank == 1) {
      while (!came) scheduler->yield(Site{.what = "yield"});
      for (int i = 0; i < 100; ++i) scheduler->point(Site{.what = "step"});
      for_thread.open();
      return;
    }
    std::thread thread([&] {
      const CallScope call(scheduler.get(), 0);
      EXPECT_TRUE(for_thread.wait().ok());
    });
    std::vector<Outstanding> outstanding;
    do {  // until the thread waits, and rank 1 polls with the baton
      outstanding.clear();
      scheduler->append_outstanding(&outstanding);
    } while (outstanding.size() != 2);
    scheduler->point(Site{.what = "takes the baton"});
    came = true;
    thread.join();
  });
  EXPECT_TRUE(scheduler->abort_cause().ok()) << scheduler->abort_cause();
}

// One rank's helper waits while its main thread does something outside of rankloom: only the main thread can go on.
TEST_P(BatonAttachTest, AMainThreadThatSleepsBesideItsHelperIsNoDeadlock) {
  std::promise<std::string> warning;
  auto scheduler = make_scheduler(GetParam(), 2, [&](WorldOptions& options) {
    options.stall = absl::Milliseconds(100);
    options.on_stall = [&warning, told = false](const std::string& text) mutable {
      if (text.find("stuck") != std::string::npos && !std::exchange(told, true)) warning.set_value(text);
    };
  });
  Gate gate(scheduler.get());
  scheduler->run([&](int rank, Task&) {
    if (rank == 1) {
      EXPECT_TRUE(gate.wait().ok());
      return;
    }
    std::thread helper([&] {
      const CallScope call(scheduler.get(), 0);
      EXPECT_TRUE(gate.wait("gate of the helper").ok());
    });
    EXPECT_THAT(warning.get_future().get(),
                StartsWith("stuck for 100ms of real time: rank 0 could still act, but came to no scheduling point for "
                           "that long\n  "));
    gate.open();
    helper.join();
  });
  EXPECT_TRUE(scheduler->abort_cause().ok()) << scheduler->abort_cause();
}

TEST_P(RawWaitTest, AMainThreadThatComputesIsNotTakenForStuck) {
  auto scheduler =
      make_scheduler(GetParam(), 2, [](WorldOptions& options) { options.stuck_after = absl::Milliseconds(300); });
  Gate gate(scheduler.get());
  scheduler->run([&](int rank, Task&) {
    if (rank == 1) {
      EXPECT_TRUE(gate.wait().ok());
      return;
    }
    std::thread helper([&] {
      const CallScope call(scheduler.get(), 0);
      EXPECT_TRUE(gate.wait().ok());
    });
    // Longer than a thread that sleeps in a lock would be given.
    const int64_t until = monotonic_ns() + 1'500'000'000;
    while (monotonic_ns() < until) {
    }
    gate.open();
    helper.join();
  });
  EXPECT_TRUE(scheduler->abort_cause().ok()) << scheduler->abort_cause();
}

// While one task picks who is next, with no lock held (a completion runs), a helper of its rank comes to a point.
TEST_P(BatonAttachTest, AHelperBesideThePickDoesNotPickToo) {
  auto scheduler = make(3);
  std::atomic<int> running{0};
  std::atomic<int> most{0};
  std::atomic<bool> completing{false};
  std::atomic<bool> at_point{false};
  Gate completed(scheduler.get());
  const auto step = [&](const char* what) {
    scheduler->point(Site{.what = what});
    const int now = ++running;
    most = std::max(most.load(), now);
    for (int i = 0; i < 50; ++i) sched_yield();
    --running;
  };
  std::thread helper;
  scheduler->run([&](int rank, Task&) {
    if (rank != 0) {
      for (int i = 0; i < 30; ++i) step("step");
      return;
    }
    std::atomic<bool> adopted{false};
    helper = std::thread([&] {
      const CallScope call(scheduler.get(), 0);
      adopted = true;
      while (!completing) sched_yield();
      at_point = true;
      for (int i = 0; i < 30; ++i) step("help");
    });
    while (!adopted) sched_yield();
    scheduler->post({.rank = 0, .kind = TaskKind::kCompletion}, Site{.what = "late"}, [&] {
      completing = true;
      while (!at_point) sched_yield();
      for (int i = 0; i < 200; ++i) sched_yield();
      completed.open();
    });
    EXPECT_TRUE(completed.wait().ok());
  });
  helper.join();
  EXPECT_EQ(most, 1);
}

TEST_P(BatonAttachTest, AHelperThatComesBeforeTheRunWaitsForIt) {
  auto scheduler = make(1);
  std::atomic<bool> begun{false};
  std::atomic<bool> rank_ran{false};
  std::thread helper([&] {
    begun = true;
    const CallScope call(scheduler.get(), 0);
    scheduler->point(Site{.what = "help"});
  });
  while (!begun) sched_yield();
  absl::SleepFor(absl::Milliseconds(20));  // nothing tells that the helper waits
  scheduler->run([&](int, Task&) { rank_ran = true; });
  helper.join();
  EXPECT_TRUE(rank_ran);
}

TEST_P(AttachTest, ACallAfterTheRunIsADeadlockAndNoHang) {
  auto scheduler = make(2);
  scheduler->run([](int, Task&) {});
  Gate never(scheduler.get());
  const CallScope call(scheduler.get(), 1);
  const absl::Status status = never.wait();
  EXPECT_EQ(error_kind(status), ErrorKind::kDeadlock);
  EXPECT_THAT(message(status), HasSubstr("rank 1 waits in gate (its helper)"));
}

TEST_P(AttachTest, HelpersOfAttachedRanksEndBeforeTheSchedulerGoes) {
  for (int round = 0; round < 50; ++round) {
    auto scheduler = make(2);
    Scheduler* const world = scheduler.get();  // reset() empties the pointer first
    std::atomic<int> helped{0};
    attach_all(*scheduler, {0, 1}, [&](int rank) {
      scheduler->spawn({.rank = rank, .kind = TaskKind::kHelper}, [&, world] {
        world->point(Site{.what = "help"});
        for (int i = 0; i < 10; ++i) sched_yield();
        ++helped;
      });
    });
    scheduler.reset();
    ASSERT_EQ(helped, 2);
  }
}

TEST_P(AttachTest, TheWorldClosesWhenHelpersThatOutlastTheirRanksHaveEnded) {
  for (int round = 0; round < 50; ++round) {
    auto scheduler = make(2);
    Scheduler* const world = scheduler.get();
    std::atomic<int> helped{0};
    attach_all(*scheduler, {0, 1}, [&](int rank) {
      scheduler->spawn({.rank = rank, .kind = TaskKind::kHelper}, [&, world, rank] {
        for (int i = 0; i < 3; ++i) world->yield(Site{.what = "help"});
        world->spawn({.rank = rank, .kind = TaskKind::kHelper}, [&, world] {
          for (int i = 0; i < 10; ++i) world->yield(Site{.what = "help the helper"});
          for (int i = 0; i < 10; ++i) sched_yield();
          ++helped;
        });
      });
    });
    ASSERT_TRUE(scheduler->close_when_idle());
    ASSERT_EQ(helped, 2);
    ASSERT_TRUE(scheduler->closed());
    ASSERT_TRUE(scheduler->close_when_idle()) << "it stays closed";
  }
}

TEST_P(AttachTest, AHelperThatWaitsForEverIsADeadlockOfTheWorldThatCloses) {
  auto scheduler = make(2);
  Gate never(scheduler.get());
  absl::Status status;
  attach_all(*scheduler, {0, 1}, [&](int rank) {
    if (rank == 0) scheduler->spawn({.rank = 0, .kind = TaskKind::kHelper}, [&] { status = never.wait(); });
  });
  ASSERT_TRUE(scheduler->close_when_idle());
  EXPECT_EQ(error_kind(status), ErrorKind::kDeadlock);
  EXPECT_THAT(message(status), HasSubstr("rank 0 waits in gate (its helper)"));
}

TEST_P(AttachTest, AWorldClosesWhenCallsOfThreadsOfNoWorldHaveEnded) {
  for (int round = 0; round < 50; ++round) {
    auto scheduler = make(1);
    std::atomic<bool> called{false};
    std::atomic<bool> ended{false};
    std::thread stranger;
    attach_all(*scheduler, {0}, [&](int) {
      stranger = std::thread([&] {
        const CallScope call(scheduler.get(), 0);
        called = true;
        for (int i = 0; i < 10; ++i) scheduler->yield(Site{.what = "yield"});
        for (int i = 0; i < 10; ++i) sched_yield();
        ended = true;
      });
      while (!called) scheduler->yield(Site{.what = "yield"});
    });
    ASSERT_TRUE(scheduler->close_when_idle());
    ASSERT_TRUE(ended);
    stranger.join();
  }
}

TEST_P(AttachTest, WhoIsInTheWorldDoesNotWaitForItToClose) {
  auto scheduler = make(2);
  std::atomic<int> open{0};
  attach_all(*scheduler, {0, 1}, [&](int rank) {
    scheduler->spawn({.rank = rank, .kind = TaskKind::kHelper}, [&] { open += scheduler->close_when_idle() ? 0 : 1; });
    open += scheduler->close_when_idle() ? 0 : 1;
  });
  EXPECT_TRUE(scheduler->close_when_idle());
  EXPECT_EQ(open, 4);
}

TEST_P(AttachTest, AWorldDoesNotCloseWhileARankIsAttached) {
  auto scheduler = make(1);
  std::promise<void> attached;
  std::promise<void> asked;
  std::thread rank([&] {
    Task* const task = scheduler->attach({.rank = 0});
    attached.set_value();
    asked.get_future().wait();
    scheduler->detach(task);
  });
  attached.get_future().wait();
  EXPECT_FALSE(scheduler->close_when_idle());
  asked.set_value();
  rank.join();
  EXPECT_TRUE(scheduler->close_when_idle());
}

TEST_P(AttachTest, HelpersOfRanksThatNeverCameEndWithTheScheduler) {
  std::atomic<bool> helped{false};
  auto scheduler = make(2);
  scheduler->spawn({.rank = 0, .kind = TaskKind::kHelper}, [&] { helped = true; });
  scheduler.reset();
  EXPECT_TRUE(helped);
}

TEST_P(AttachTest, ASchedulerThatGoesBeforeItsRanksSaysWhose) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        auto scheduler = make(1);
        scheduler->attach({.rank = 0});
        scheduler.reset();
      },
      "rankloom: fatal \\(rank 0\\): a world ended while a thread was attached as rank 0");
}

TEST_P(AttachTest, DetachingAndFinishingRanksMeet) {
  for (int round = 0; round < 100; ++round) {
    auto scheduler = make(4);
    attach_all(*scheduler, {0, 1, 2, 3}, [&](int rank) {
      for (int i = 0; i < rank; ++i) scheduler->point(Site{.what = "step"});
    });
    scheduler.reset();
  }
}

TEST(AdoptTest, FibersCannotAdoptAThread) {
  auto scheduler = make_scheduler(fibers(), 1);
  try {
    const CallScope call(scheduler.get(), 0);
    FAIL() << "adopted";
  } catch (const DistError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_THAT(error.what(),
                HasSubstr("rank 0: called from a thread that is not the ranks', but the ranks are fibers"));
  }
}

TEST(AdoptTest, WithoutASchedulerNothingHappens) {
  const CallScope call(nullptr, 0);
  EXPECT_EQ(Task::current(), nullptr);
}

}  // namespace
}  // namespace rankloom

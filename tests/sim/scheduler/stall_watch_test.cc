// The watchdog names who comes to no scheduling point, in real time, and lets it be.
#include "sim/scheduler/stall_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sim/base/system.h"
#include "tests/sim/scheduler_fixture.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The texts of the watchdog; a rank that is stuck on purpose waits for it.
class Told {
 public:
  void operator()(const std::string& text) {
    const std::lock_guard<std::mutex> lock(mu_);
    texts_.push_back(text);
  }
  // Until something with this in it was said. Blocks outside of rankloom.
  std::string wait(const std::string& part) const {
    for (;; sched_yield()) {
      const std::lock_guard<std::mutex> lock(mu_);
      for (const std::string& text : texts_) {
        if (text.find(part) != std::string::npos) return text;
      }
    }
  }

 private:
  mutable std::mutex mu_;
  std::vector<std::string> texts_;
};

std::unique_ptr<Scheduler> watched(const Gear& gear, int ranks, Told* told) {
  return make_scheduler(gear, ranks, [told](WorldOptions& options) {
    options.stall = absl::Milliseconds(20);
    options.on_stall = std::ref(*told);
  });
}

class StallTest : public testing::TestWithParam<Gear> {};
INSTANTIATE_TEST_SUITE_P(Gears, StallTest, testing::ValuesIn(every_gear()), gear_name);

TEST_P(StallTest, NamesTheRankThatIsStuckInUserCodeAndItsLastPoint) {
  Told told;
  auto scheduler = watched(GetParam(), 3, &told);
  scheduler->run([&](int rank, Task&) {
    scheduler->point(Site{.what = "all_reduce", .code = {"dir/train.cc", 12}, .seq = 4});
    if (rank == 1) {
      told.wait(
          "rank 1 has come to no scheduling point for 20ms of real time: it computes, or it blocks in what is not "
          "rankloom's\n"
          "  its last point: all_reduce seq 4 [train.cc:12]");
    }
    scheduler->point(Site{.what = "barrier", .seq = 5});
  });
  EXPECT_TRUE(scheduler->abort_cause().ok());
}

TEST_P(StallTest, NamesTheWaitThatARankCameBackFrom) {
  Told told;
  auto scheduler = watched(GetParam(), 2, &told);
  Gate never(scheduler.get());
  scheduler->run([&](int rank, Task&) {
    if (rank == 0) return;
    EXPECT_FALSE(never.wait("gate of rank 1", scheduler->deadline_after(absl::ZeroDuration(), false)).ok());
    told.wait(
        "rank 1 has come to no scheduling point for 20ms of real time: it computes, or it blocks in what is not "
        "rankloom's\n  its last point: gate of rank 1 [scheduler_fixture.h:");
  });
}

TEST_P(StallTest, ARankThatMovesAndStopsAgainIsToldAgain) {
  Told told;
  auto scheduler = watched(GetParam(), 1, &told);
  scheduler->run([&](int, Task&) {
    for (int i = 1; i <= 3; ++i) {
      scheduler->point(Site{.what = "step", .seq = i});
      told.wait("last point: step seq " + std::to_string(i));
    }
  });
}

TEST_P(StallTest, AHelperIsNamedAsOne) {
  Told told;
  auto scheduler = watched(GetParam(), 2, &told);
  scheduler->run([&](int rank, Task&) {
    if (rank == 0) return;
    scheduler->spawn({.rank = 1, .kind = TaskKind::kHelper},
                     [&] { told.wait("a helper of rank 1 has come to no scheduling point"); });
  });
}

TEST_P(StallTest, APostedBodyIsNamedAsACompletion) {
  if (!GetParam().schedule.deterministic()) GTEST_SKIP() << "there it runs within the rank's own step";
  Told told;
  auto scheduler = watched(GetParam(), 1, &told);
  std::string text;
  scheduler->run([&](int, Task&) {
    scheduler->post({.rank = 0, .kind = TaskKind::kCompletion}, Site{.what = "all_reduce", .seq = 1},
                    [&] { text = told.wait("a completion of rank 0"); });
  });
  EXPECT_THAT(text, HasSubstr("its last point: all_reduce seq 1"));
}

// With a clock of the test's own, which shows a time long past its start as a machine's does.
TEST_P(StallTest, TheFirstLookTellsOfNobody) {
  auto scheduler = make_scheduler(GetParam(), 1, [](WorldOptions& options) {
    options.stall = absl::Seconds(4);
    options.on_stall = [](const std::string&) {};
  });
  StallWatch watch(scheduler.get());
  constexpr int64_t kSecond = 1'000'000'000;
  scheduler->run([&](int, Task&) {
    EXPECT_THAT(watch.look(1000 * kSecond), IsEmpty());
    EXPECT_THAT(watch.look(1004 * kSecond - 1), IsEmpty());
    EXPECT_THAT(watch.look(1004 * kSecond),
                ElementsAre(HasSubstr("rank 0 has come to no scheduling point for 4s of real time")));
  });
}

// With a clock of the test's own. The time in which nobody looked, since the process was stopped, does not count.
TEST_P(StallTest, IsFatalAfterItsTime) {
  auto scheduler = make_scheduler(GetParam(), 2, [](WorldOptions& options) {
    options.stall = absl::Seconds(4);
    options.stall_is_fatal = absl::Seconds(8);
    options.on_stall = [](const std::string&) {};
  });
  StallWatch watch(scheduler.get());
  constexpr int64_t kSecond = 1'000'000'000;
  scheduler->run([&](int rank, Task&) {
    if (rank == 0) return;
    const auto wait_for_other = [&] {  // rank 0 has ended
      std::vector<Outstanding> outstanding;
      do {
        outstanding.clear();
        scheduler->append_outstanding(&outstanding);
      } while (outstanding.size() > 1);
    };
    wait_for_other();
    if (traced()) GTEST_SKIP() << "under a debugger nothing is fatal";
    scheduler->point(Site{.what = "step", .seq = 1});
    watch.look(1000 * kSecond);
    watch.look(3000 * kSecond);  // 2 s of its own: twice the time between looks
    for (int64_t i = 1; i <= 5; ++i) watch.look((3000 + i) * kSecond);
    EXPECT_THAT(watch.fatal(), IsEmpty());
    watch.look(3006 * kSecond);
    ASSERT_EQ(watch.fatal().size(), 1U);
    EXPECT_EQ(watch.fatal()[0].who.info.rank, 1);
    EXPECT_EQ(watch.fatal()[0].time_ns, 8 * kSecond);
    EXPECT_NE(watch.fatal()[0].who.thread, 0);
  });
}

// With a clock of the test's own: rank 0 stands still for less time than the rank for which the process ends.
TEST_P(StallTest, AFatalOneLeadsOthersThatStandStill) {
  if (GetParam().engine != EngineKind::kThreads || GetParam().schedule.deterministic())
    GTEST_SKIP() << "one rank at a time runs here";
  auto scheduler = make_scheduler(GetParam(), 2, [](WorldOptions& options) {
    options.stall = absl::Seconds(4);
    options.stall_is_fatal = absl::Seconds(8);
    options.on_stall = [](const std::string&) {};
  });
  StallWatch watch(scheduler.get());
  constexpr int64_t kSecond = 1'000'000'000;
  std::atomic<int> turn{0};
  scheduler->run([&](int rank, Task&) {
    if (traced()) GTEST_SKIP() << "under a debugger nothing is fatal";
    if (rank == 0) {
      while (turn != 1) sched_yield();
      scheduler->point(Site{.what = "step"});
      turn = 2;
      while (turn != 3) sched_yield();
      return;
    }
    for (int64_t i = 1000; i <= 1003; ++i) watch.look(i * kSecond);
    turn = 1;
    while (turn != 2) sched_yield();
    for (int64_t i = 1004; i <= 1008; ++i) watch.look(i * kSecond);
    turn = 3;
  });
  ASSERT_EQ(watch.fatal().size(), 2U);
  EXPECT_EQ(watch.fatal()[0].who.info.rank, 1);
  EXPECT_EQ(watch.fatal()[0].time_ns, 8 * kSecond);
  EXPECT_EQ(watch.fatal()[1].who.info.rank, 0);
  EXPECT_EQ(watch.fatal()[1].time_ns, 4 * kSecond);
}

// With a clock of the test's own: said once, after the time and not before.
TEST_P(StallTest, TellsOfEachStandstillOnce) {
  auto scheduler = make_scheduler(GetParam(), 2, [](WorldOptions& options) {
    options.stall = absl::Seconds(4);
    options.on_stall = [](const std::string&) {};
  });
  StallWatch watch(scheduler.get());
  constexpr int64_t kSecond = 1'000'000'000;
  scheduler->run([&](int rank, Task&) {
    if (rank == 0) return;
    const auto wait_for_other = [&] {  // rank 0 has ended
      std::vector<Outstanding> outstanding;
      do {
        outstanding.clear();
        scheduler->append_outstanding(&outstanding);
        scheduler->point(Site{.what = "look"});
      } while (outstanding.size() != 1);
    };
    wait_for_other();
    EXPECT_THAT(watch.look(0), IsEmpty());
    EXPECT_THAT(watch.look(4 * kSecond - 1), IsEmpty());
    EXPECT_THAT(watch.look(4 * kSecond), ElementsAre(HasSubstr("rank 1 has come to no scheduling point for 4s")));
    EXPECT_THAT(watch.look(5 * kSecond), IsEmpty());
    EXPECT_THAT(watch.look(100 * kSecond), IsEmpty());
    scheduler->point(Site{.what = "step"});
    EXPECT_THAT(watch.look(101 * kSecond), IsEmpty());
    EXPECT_THAT(watch.look(104 * kSecond), IsEmpty());
    EXPECT_THAT(watch.look(105 * kSecond), ElementsAre(HasSubstr("last point: step")));
  });
  EXPECT_THAT(watch.look(106 * kSecond), IsEmpty());
  EXPECT_THAT(watch.look(120 * kSecond), IsEmpty());
}

TEST_P(StallTest, WhoWaitsIsNotOutstanding) {
  auto scheduler = make_scheduler(GetParam(), 3);
  Gate gate(scheduler.get());
  std::atomic<bool> seen{false};
  scheduler->add_outside(1);
  std::thread outside([&] {
    // All three park in the end, and then nobody is outstanding.
    std::vector<Outstanding> outstanding;
    int came = 0;
    do {
      outstanding.clear();
      scheduler->append_outstanding(&outstanding);
      came = static_cast<int>(scheduler->steps());
      sched_yield();
    } while (came < 3 || !outstanding.empty());
    seen = true;
    scheduler->spawn({.rank = 0, .kind = TaskKind::kHelper}, [&] { gate.open(); });
    scheduler->add_outside(-1);
  });
  scheduler->run([&](int, Task&) { EXPECT_TRUE(gate.wait().ok()); });
  outside.join();
  EXPECT_TRUE(seen);
}

TEST_P(StallTest, NobodyIsOutstandingBeforeAndAfterTheRun) {
  auto scheduler = make_scheduler(GetParam(), 3);
  std::vector<Outstanding> outstanding;
  scheduler->append_outstanding(&outstanding);
  EXPECT_THAT(outstanding, IsEmpty());
  scheduler->run([](int, Task&) {});
  scheduler->append_outstanding(&outstanding);
  EXPECT_THAT(outstanding, IsEmpty());
}

class AttachStallTest : public testing::TestWithParam<Gear> {};
INSTANTIATE_TEST_SUITE_P(Gears, AttachStallTest, testing::Values(free_gear(), baton(), baton(Schedule::fifo())),
                         gear_name);

TEST_P(AttachStallTest, ARankThatDoesNotAttachIsNamed) {
  Told told;
  auto scheduler = watched(GetParam(), 2, &told);
  Gate gate(scheduler.get());
  std::thread first([&] {
    Task* const task = scheduler->attach({.rank = 0});
    EXPECT_TRUE(gate.wait().ok());
    scheduler->detach(task);
  });
  EXPECT_EQ(told.wait("rank 1"), "rank 1 has not attached for 20ms of real time; the ranks that have wait for it");
  Task* const task = scheduler->attach({.rank = 1});
  gate.open();
  scheduler->detach(task);
  first.join();
}

// The main thread's way of waiting for its helper is not ours, but the helper moves.
TEST(StallWatchTest, AHelperThatMovesSpeaksForItsRank) {
  auto scheduler = make_scheduler(free_gear(), 2);
  std::atomic<int> phase{0};
  scheduler->run([&](int rank, Task&) {
    if (rank == 0) return;
    const auto steps_of_main = [&] {
      std::vector<Outstanding> outstanding;
      scheduler->append_outstanding(&outstanding);
      for (const Outstanding& who : outstanding) {
        if (who.info.rank == 1 && who.info.kind == TaskKind::kRank) return who.steps;
      }
      return uint64_t{0};
    };
    scheduler->spawn({.rank = 1, .kind = TaskKind::kHelper}, [&] {
      scheduler->point(Site{.what = "help"});
      phase = 1;
      while (phase == 1) sched_yield();
      scheduler->point(Site{.what = "help"});
      phase = 3;
      while (phase == 3) sched_yield();
    });
    while (phase != 1) sched_yield();
    const uint64_t before = steps_of_main();
    EXPECT_EQ(steps_of_main(), before);
    phase = 2;
    while (phase != 3) sched_yield();
    EXPECT_EQ(steps_of_main(), before + 1);
    phase = 4;
  });
}

// A look reads of the fiber that runs, which may be over meanwhile, and another one in its place: ThreadSanitizer sees,
// as nothing orders the two.
TEST(StallWatchTest, ALookMayFallBehindTheFiberThatItSees) {
  constexpr int kHelpers = 100;
  auto scheduler = make_scheduler(fibers(), 1);
  std::atomic<int> seen{0};
  std::atomic<bool> over{false};
  std::thread looks([&] {
    for (std::vector<Outstanding> outstanding; !over; sched_yield()) {
      scheduler->append_outstanding(&outstanding);
      for (const Outstanding& who : outstanding)
        seen.fetch_add(who.info.kind == TaskKind::kHelper ? 1 : 0, std::memory_order_relaxed);
      outstanding.clear();
    }
  });
  scheduler->run([&](int, Task& self) {
    for (int helper = 0; helper < kHelpers; ++helper) {
      bool done = false;
      scheduler->spawn({.rank = 0, .kind = TaskKind::kHelper}, [&] {
        const int before = seen.load(std::memory_order_relaxed);
        while (seen.load(std::memory_order_relaxed) == before) sched_yield();
        done = true;
        scheduler->unpark(self);
      });
      while (!done) scheduler->park(Site{.what = "wait for the helper"}, Deadline::never());
    }
  });
  over = true;
  looks.join();
  EXPECT_GE(seen, kHelpers);
}

TEST(StallWatchTest, NobodyLooksIfTheTimeIsInfinite) {
  auto scheduler = make_scheduler(free_gear(), 1, [](WorldOptions& options) {
    options.stall = absl::InfiniteDuration();
    options.on_stall = [](const std::string& text) { ADD_FAILURE() << text; };
  });
  Told told;
  auto other = watched(free_gear(), 1, &told);
  scheduler->run([&](int, Task&) {
    std::thread beside([&] { other->run([&](int, Task&) { told.wait("rank 0"); }); });
    beside.join();
  });
}

TEST(StallWatchTest, AForkedProcessIsWatchedToo) {
  Told told;
  auto scheduler = watched(free_gear(), 1, &told);
  scheduler->run([&](int, Task&) { told.wait("rank 0"); });  // the watchdog's thread is there
  const pid_t child = fork();
  if (child == 0) {
    Told child_told;
    auto own = watched(free_gear(), 1, &child_told);
    own->run([&](int, Task&) { child_told.wait("rank 0"); });
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace rankloom

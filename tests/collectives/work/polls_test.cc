// Questions in a loop (is_completed, check, try_wait): they end when somebody answers, when the world is aborted, and
// under a schedule when nobody can answer any more.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/error.h"
#include "rankloom/matchers.h"
#include "rankloom/process_group.h"
#include "rankloom/store.h"
#include "rankloom/stream.h"
#include "rankloom/sync.h"
#include "rankloom/world.h"
#include "tests/collectives/streams/fake_device.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class PollsTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, PollsTest, every_world(), world_name);

TEST_P(PollsTest, EndWhenTheWorkDoes) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {rank.rank() + 1};
    if (rank.rank() == 2) rank.sleep_for(absl::Milliseconds(3));
    Work work = pg->all_reduce(x);
    while (!work.is_completed()) {
    }
    EXPECT_EQ(x[0], 6);
  });
}

// Every question, in a loop that does nothing else: under each schedule the peer gets its turn.
TEST_P(PollsTest, OfEachKindLetTheOthersGoOn) {
  using Ask = std::function<bool(RankContext&, Work&, Stream&, Stream::Event&)>;
  const std::vector<std::pair<const char*, Ask>> kinds = {
      {"is_completed", [](RankContext&, Work& work, Stream&, Stream::Event&) { return work.is_completed(); }},
      {"is_success", [](RankContext&, Work& work, Stream&, Stream::Event&) { return work.is_success(); }},
      {"done", [](RankContext&, Work& work, Stream&, Stream::Event&) { return work.get_future().done(); }},
      {"check", [](RankContext& rank, Work&, Stream&, Stream::Event&) { return rank.store().check({"came"}); }},
      {"query", [](RankContext&, Work&, Stream& stream, Stream::Event&) { return stream.query(); }},
      {"query of an event", [](RankContext&, Work&, Stream&, Stream::Event& event) { return event.query(); }}};
  for (const auto& [name, ask] : kinds) {
    SCOPED_TRACE(name);
    run(2, [&ask = ask](RankContext& rank) {
      auto pg = init_process_group(rank);
      SimStream stream(rank);
      std::vector<int64_t> x = {rank.rank() + 1};
      std::vector<int64_t> y = {rank.rank() + 1};
      if (rank.rank() == 1) {
        rank.sleep_for(absl::Milliseconds(3));
        rank.store().set("came", "");
      }
      Work work = pg->all_reduce(x);
      Work queued = pg->all_reduce(y, ReduceOp::kSum, {.stream = &stream});
      Stream::Event event = stream.record();
      while (!ask(rank, work, stream, event)) {
      }
      work.wait();
      stream.synchronize();
      EXPECT_EQ(x[0], 3);
      EXPECT_EQ(y[0], 3);
    });
  }
}

TEST_P(PollsTest, OfALatchEndWhenAPeerThatSleepsComes) {
  Latch latch(1, "late");
  run(2, [&](RankContext& rank) {
    if (rank.rank() == 1) {
      rank.sleep_for(absl::Milliseconds(3));
      latch.count_down();
      return;
    }
    while (!latch.try_wait()) {
    }
  });
}

// A loop that asks and does something else in turns, or only acts. The answering rank sleeps: under a schedule time
// must pass.
TEST_P(PollsTest, ThatActInBetweenEndWhenAPeerThatSleepsComes) {
  using Act = std::function<void(RankContext&, ProcessGroup&)>;
  const std::vector<std::pair<const char*, Act>> kinds = {
      {"set", [](RankContext& rank, ProcessGroup&) { rank.store().set("mine", "x"); }},
      {"add", [](RankContext& rank, ProcessGroup&) { rank.store().add("mine", 1); }},
      {"set, set and get",
       [](RankContext& rank, ProcessGroup&) {
         rank.store().set("mine", "x");
         rank.store().set("yours", "y");
         EXPECT_EQ(rank.store().get("mine"), "x");
       }},
      {"all_reduce of one", [](RankContext&, ProcessGroup& alone) {
         std::vector<int64_t> x = {1};
         alone.all_reduce(x).wait();
       }}};
  for (const auto& [name, act] : kinds) {
    SCOPED_TRACE(name);
    run(3, [&act = act, this](RankContext& rank) {
      auto pg = init_process_group(rank);
      auto alone = pg->split_group(rank.rank());
      std::vector<int64_t> x = {rank.rank() + 1};
      if (rank.rank() == 2) rank.sleep_for(absl::Milliseconds(3));
      Work work = pg->all_reduce(x);
      while (!work.is_completed()) act(rank, *alone);
      EXPECT_EQ(x[0], 6);
      EXPECT_GE(rank.now(), absl::Milliseconds(3));
      if (deterministic()) {
        EXPECT_LT(rank.now(), absl::Milliseconds(10));
      }
    });
  }
}

// Without a question: the store's answers are what the loop waits for. It takes a million points, each of which would
// be a switch of threads under a seed.
TEST_P(PollsTest, InDisguiseEndWhenAPeerThatSleepsComes) {
  WorldOptions world = options(3);
  if (world.engine == EngineKind::kThreads && deterministic()) world.schedule = Schedule::fifo();
  run(world, [this](RankContext& rank) {
    if (rank.rank() == 0) {  // alone: a "1" of another rank's could come after the "2"
      rank.store().set("phase", "1");
      rank.sleep_for(absl::Seconds(deterministic() ? 3600 : 0));
      rank.store().set("phase", "2");
      rank.store().add("came", 1);
      return;
    }
    if (rank.rank() == 1) {
      while (rank.store().get("phase") != "2") {
      }
      rank.store().add("came", 1);
    }
    while (rank.store().add("came", 0) < 2) {
    }
    if (deterministic()) {
      EXPECT_GE(rank.now(), absl::Hours(1));
    }
  });
}

// Somebody computes while others ask: their time does not pass, so that no deadline of a third one ends before it must.
TEST_P(PollsTest, ThatActInBetweenLeaveTimeToWhoeverActsOnly) {
  if (!deterministic()) return;  // real time passes by itself
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {1};
    if (rank.rank() == 2) {
      pg->recv(x, 1).wait(absl::Milliseconds(1));
      EXPECT_EQ(rank.now(), absl::ZeroDuration());
      rank.store().set("done", "");
    } else if (rank.rank() == 1) {
      for (int i = 0; i < 5000; ++i) rank.store().set("computes", absl::StrCat(i));
      pg->send(x, 2).wait();
    } else {
      while (!rank.store().check({"done"})) rank.store().set("asks", "");
    }
  });
}

// The poll of a file that other processes write. The thread is one of another process, as far as the run can tell.
class FilePollsTest : public EveryWorldTest {
 protected:
  void SetUp() override {
    path_ = absl::StrCat(testing::TempDir(), "/polls_", GetParam().name, "_", getpid());
    std::remove(path_.c_str());
    ours_ = FileStore::open(path_);
    theirs_ = FileStore::open(path_);
  }
  void TearDown() override { std::remove(path_.c_str()); }

  std::string path_;
  std::shared_ptr<FileStore> ours_;
  std::shared_ptr<FileStore> theirs_;
};
INSTANTIATE_TEST_SUITE_P(Worlds, FilePollsTest, every_world(), world_name);

TEST_P(FilePollsTest, LetVirtualTimeGoNoFasterThanRealTime) {
  for (const bool acts : {false, true}) {
    SCOPED_TRACE(acts);
    theirs_->delete_key("go");
    std::atomic<int> asked{0};
    std::thread process([&] {
      while (asked < 3000) std::this_thread::yield();
      theirs_->set("go", "");
    });
    run(2, [&](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<int64_t> x = {1};
      if (rank.rank() == 1) return pg->recv(x, 0).wait(absl::Minutes(2));
      while (!ours_->check({"go"})) {
        ++asked;
        if (acts) rank.store().set("mine", "");
      }
      pg->send(x, 1).wait();
    });
    process.join();
  }
}

TEST_P(FilePollsTest, SeeWhatAPeerWritesThatSleepsBefore) {
  run(2, [&](RankContext& rank) {
    if (rank.rank() == 1) {
      rank.sleep_for(absl::Milliseconds(3));
      ours_->set("go", "");
      return;
    }
    while (!ours_->check({"go"})) {
    }
    EXPECT_GE(rank.now(), absl::Milliseconds(3));
  });
}

TEST_P(FilePollsTest, AreNotStuckHoweverLongTheyLast) {
  WorldOptions stuck = options(2);
  stuck.stuck_after = absl::Milliseconds(5);
  std::atomic<bool> asks{false};
  std::thread process([&] {
    while (!asks) std::this_thread::yield();
    const auto since = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - since < std::chrono::milliseconds(50)) std::this_thread::yield();
    theirs_->set("go", "");
  });
  run(std::move(stuck), [&](RankContext& rank) {
    if (rank.rank() == 1) return rank.store().wait({"came"});
    while (!ours_->check({"go"})) asks = true;
    rank.store().set("came", "");
  });
  process.join();
}

TEST_P(PollsTest, ThrowTheCauseOfAnAbort) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    if (rank.rank() == 1) throw std::runtime_error("planned");
    const Promise promise(&rank.world().scheduler(), 0);
    while (!promise.work().is_completed()) {
    }
  });
  EXPECT_THAT(report.text(), StartsWith("rank 1 failed: planned (std::runtime_error)\nrank 0 stopped for it"));
}

// Of time that passes though nobody sleeps, and of work that never ends.
TEST_P(PollsTest, SeeVirtualTimePass) {
  if (!deterministic()) return;  // real time passes by itself
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {1};
    if (rank.rank() == 1) return;
    const Promise never(&rank.world().scheduler(), 0);
    while (!never.work().is_completed() && rank.now() < absl::Milliseconds(50)) {
    }
    EXPECT_GE(rank.now(), absl::Milliseconds(50));
  });
}

TEST_P(PollsTest, ThatNobodyCanAnswerAreNamed) {
  if (!deterministic()) return;  // nobody can tell them from those that wait for a thread outside
  WorldOptions stuck = options(2);
  stuck.stuck_after = absl::Milliseconds(30);
  const RunReport report = run_to_failure(std::move(stuck), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {1};
    if (rank.rank() == 1) return;
    Work work = pg->all_reduce(x);
    while (!work.is_completed()) {
    }
  });
  EXPECT_THAT(report.text(), AllOf(StartsWith("Timeout: stuck for 30ms of real time: all that can run only poll\n"
                                              "  rank 0 waits in is_completed seq 1 all_reduce for rank 1 (returned) "
                                              "[group 0, polls_test.cc:"),
                                   HasSubstr("\n  last calls of rank 0: all_reduce seq 1 (")));
}

// As people write such loops: several questions in turn, and a yield between them.
TEST_P(PollsTest, BetweenWhichRanksYieldAreNamedToo) {
  if (!deterministic()) return;
  WorldOptions stuck = options(3);
  stuck.stuck_after = absl::Milliseconds(30);
  const RunReport report = run_to_failure(std::move(stuck), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {1};
    if (rank.rank() == 1) return rank.store().wait({"never"});
    Work work = pg->all_reduce(x);
    while (!work.is_completed() || !rank.store().check({"never", "ever"})) {
      for (int i = 0; i < rank.rank(); ++i) rank.yield();
      (void)rank.store().check({"never"});
      if (rank.rank() == 0) rank.yield();
    }
  });
  EXPECT_THAT(report.text(), AllOf(StartsWith("Timeout: stuck for 30ms of real time: all that can run only poll\n"),
                                   HasSubstr("\n  rank 1 waits in store wait key \"never\" [polls_test.cc:")));
}

// Loops on objects that ranks share, as people write them without rankloom.
TEST_P(PollsTest, OfSharedObjectsEndWithTheRun) {
  Latch latch(1);
  Mutex mutex;
  Watched<int> watched;
  const std::vector<std::pair<const char*, std::function<bool()>>> kinds = {
      {"latch try_wait", [&] { return latch.try_wait(); }},
      {"mutex try_lock",
       [&] {
         if (mutex.try_lock()) mutex.unlock();
         return false;
       }},
      {"watched get", [&] { return watched.get() != 0; }}};
  for (const auto& [name, ask] : kinds) {
    SCOPED_TRACE(name);
    const RunReport report = run_to_failure(2, [&, &ask = ask](RankContext& rank) {
      if (rank.rank() == 1) throw std::runtime_error("no more");
      while (!ask()) {
      }
    });
    EXPECT_THAT(report.text(), StartsWith("rank 1 failed: no more (std::runtime_error)\nrank 0 stopped for it"));
  }
}

TEST_P(PollsTest, AWatchedIsStillChangedByARankOnItsWayOut) {
  Watched<int> gathered;
  const RunReport report = run_to_failure(3, [&](RankContext& rank) {
    if (rank.rank() == 1) {
      rank.store().wait({"here 0", "here 2"});
      throw std::runtime_error("no more");
    }
    try {
      rank.store().set(absl::StrCat("here ", rank.rank()), "");
      rank.store().wait({"never"});
    } catch (const DistError&) {
      for (int i = 0; i <= rank.rank(); ++i) gathered.update([](int& sum) { ++sum; });
      throw;
    }
  });
  EXPECT_THAT(report.text(), StartsWith("rank 1 failed: no more (std::runtime_error)\nranks 0, 2 stopped for it"));
  EXPECT_EQ(gathered.get(), 1 + 3);
}

// A thousand changes; then the cause, so that a loop that waits by asking ends, too.
TEST_P(PollsTest, AWatchedIsStillChangedAThousandTimesAfterAnAbort) {
  Watched<int> gathered;
  const RunReport report = run_to_failure(2, [&](RankContext& rank) {
    if (rank.rank() == 1) {
      rank.store().wait({"here"});
      throw std::runtime_error("no more");
    }
    try {
      rank.store().set("here", "");
      rank.store().wait({"never"});
    } catch (const DistError&) {
      for (int i = 0; i < 1'000; ++i) gathered.update([](int& sum) { ++sum; });
    }
    gathered.update([](int& sum) { ++sum; });
  });
  EXPECT_THAT(report.text(), StartsWith("rank 1 failed: no more (std::runtime_error)\nrank 0 stopped for it"));
  EXPECT_EQ(gathered.get(), 1'000);
}

TEST_P(PollsTest, OfSharedObjectsThatNobodyChangesAreNamed) {
  if (!deterministic()) return;
  WorldOptions stuck = options(2);
  stuck.stuck_after = absl::Milliseconds(30);
  Latch latch(1, "gate");
  const RunReport report = run_to_failure(std::move(stuck), [&](RankContext& rank) {
    while (rank.rank() == 0 && !latch.try_wait()) {
    }
  });
  EXPECT_THAT(report.text(), AllOf(StartsWith("Timeout: stuck for 30ms of real time: all that can run only poll\n"),
                                   HasSubstr("rank 0 is at latch try_wait \"gate\" [polls_test.cc:")));
}

// The acts of a device are outside, but a stream that is blocked waits for the ranks.
TEST_P(PollsTest, OfADeviceThatNobodyCanAnswerAreNamed) {
  if (!deterministic()) return;
  using Ask = std::function<bool(Stream&, Stream::Event&)>;
  const std::vector<std::pair<const char*, Ask>> kinds = {
      {"stream query", [](Stream& stream, Stream::Event&) { return stream.query(); }},
      {"event query", [](Stream&, Stream::Event& event) { return event.query(); }}};
  for (const auto& [name, ask] : kinds) {
    SCOPED_TRACE(name);
    WorldOptions stuck = options(2);
    stuck.stuck_after = absl::Milliseconds(30);
    stuck.max_steps = 20'000'000;
    const auto driver = std::make_shared<FakeDriver>();
    const RunReport report = run_to_failure(std::move(stuck), [&, &ask = ask](RankContext& rank) {
      use_device(state_of(rank).world(), driver);
      auto pg = init_process_group(rank);
      FakeDeviceStream stream(rank, *driver);
      std::vector<int64_t> x = {1};
      if (rank.rank() == 1) return;
      Work work = pg->all_reduce(x, ReduceOp::kSum, {.stream = &stream});
      Stream::Event event = stream.record();
      while (!ask(stream, event)) {
      }
    });
    EXPECT_THAT(report.text(), StartsWith(absl::StrCat("Timeout: stuck for 30ms of real time: all that can run only "
                                                       "poll\n  rank 0 is at ",
                                                       name)));
  }
}

TEST_P(PollsTest, OfAHookOfTheWorldAreNoPoints) {
  if (!deterministic()) return;
  WorldOptions options = this->options(2);
  std::unique_ptr<Promise> promise;
  Store* store = nullptr;
  options.whereabouts = [&]() -> std::string { return store->check({"here"}) ? "here" : "nowhere"; };
  World world(std::move(options));
  store = &world.store();
  promise = std::make_unique<Promise>(&world.scheduler(), 0);
  world.on_abort([&](const absl::Status& cause) {
    if (!promise->work().is_completed()) promise->set_error(cause);
  });
  const RunReport report = world.run([&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {1};
    if (rank.rank() == 0) pg->all_reduce(x).wait();
    rank.store().wait({"never"});
  });
  EXPECT_THAT(report.text(), AllOf(StartsWith("Deadlock: no rank can move"), HasSubstr("nowhere")));
}

TEST_P(PollsTest, LeaveTimeToWhoeverActsOutside) {
  if (!deterministic()) return;
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {1};
    if (rank.rank() == 1) return pg->recv(x, 0).wait(absl::Seconds(5));
    Promise promise(&rank.world().scheduler(), 0);
    std::thread outside([promise, waker = rank.world().outside_waker()]() mutable {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      promise.set_value();
    });
    while (!promise.work().is_completed()) {
    }
    outside.join();
    pg->send(x, 1).wait();
  });
}

class ThreadPollsTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, ThreadPollsTest, every_threads_world(), world_name);

TEST_P(ThreadPollsTest, LetTheRanksGoOn) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {rank.rank() + 1};
    Work work = pg->all_reduce(x);
    std::thread polls([&] {
      while (!work.is_completed()) {
      }
    });
    polls.join();
    EXPECT_EQ(x[0], 3);
  });
}

}  // namespace
}  // namespace rankloom

// Threads beside a world of fibers, which lock nothing (the tests' names lack that word: what runs under
// ThreadSanitizer leaves out those that have it): their calls are refused by name, and what their destructors,
// promises and aborts do to the ranks' own is done on the fibers' thread. Under ThreadSanitizer each of these is a race
// otherwise, and some crashed or hung without it.
#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/rankloom.h"
#include "tests/error_of.h"

namespace rankloom {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr char kRefused[] =
    "called from a thread that is not the ranks', but the ranks are fibers of one thread; want engine threads";

WorldOptions fibers(int ranks) { return {.world_size = ranks, .engine = EngineKind::kFibers}; }

// Calls that give the thread beside the time to come between.
void go_on(RankContext& rank, ProcessGroup& pg, int calls = 300) {
  std::vector<float> y(4, static_cast<float>(rank.rank() + 1));
  for (int i = 0; i < calls; ++i) pg.all_reduce(y).wait();
}

TEST(ThreadBesideTest, AStreamThatAThreadLetsGoGivesItsCallsUpOnTheRanksThread) {
  const RunReport report = run_world(fibers(2), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(4);
    auto stream = std::make_unique<SimStream>(rank, "side");
    const auto begins = std::make_shared<Latch>(1);
    stream->launch([begins] { begins->wait(); });
    (void)pg->all_reduce(x, ReduceOp::kSum, {.stream = stream.get()});
    std::thread([gone = std::move(stream)]() mutable { gone.reset(); }).join();
    begins->count_down();
    rank.sleep_for(absl::Milliseconds(1));
  });
  // Taken back before the stream issued the call, or after.
  EXPECT_THAT(report.text(), AnyOf(HasSubstr("stream side was dropped with all_reduce seq 1"),
                                   HasSubstr("all_reduce seq 1: the work was dropped unfinished")));
}

TEST(ThreadBesideTest, AnEventThatAThreadLetsGoOfBesideTheRanks) {
  const RunReport report = run_world(fibers(2), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<std::vector<float>> x(100, std::vector<float>(4, 1));
    SimStream stream(rank, "side");
    std::vector<Stream::Event> events;
    for (std::vector<float>& each : x) {
      pg->all_reduce(each, ReduceOp::kSum, {.stream = &stream}).wait();
      events.push_back(stream.record());
    }
    stream.synchronize();
    std::jthread other([gone = std::move(events)]() mutable {
      for (Stream::Event& event : gone) (void)event.query();
      gone.clear();
    });
    go_on(rank, *pg);
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

TEST(ThreadBesideTest, AWorldThatAThreadAbortsWhileRanksCall) {
  for (int i = 0; i < 20; ++i) {
    World world(fibers(4));
    std::atomic<bool> begun{false};
    std::jthread other([&] {
      while (!begun.load()) std::this_thread::yield();
      absl::SleepFor(absl::Microseconds(50 * i));
      world.abort("enough", {"job.cc", 8});
    });
    const RunReport report = world.run([&](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<float> x(4);
      for (;;) {
        pg->all_reduce(x).wait();
        begun.store(true);
      }
    });
    EXPECT_EQ(report.cause.message(), "a thread of no rank aborted the world: enough [job.cc:8]");
  }
}

// A user's own group, whose calls another thread completes, as the header of Promise says.
class PromisedGroup final : public ProcessGroup {
 public:
  PromisedGroup(RankContext& rank, std::shared_ptr<const Group> group)
      : ProcessGroup(rank, std::move(group)), context_(rank) {}
  std::string backend_name() const override { return "promised"; }
  absl::StatusOr<Work> execute(CollectiveCall&&) override {
    Promise promise(&context_.world().scheduler(), context_.rank());
    threads_.emplace_back(
        [promise, waker = std::make_shared<World::OutsideWaker>(context_.world().outside_waker())]() mutable {
          promise.set_value();
          waker.reset();
        });
    return promise.work();
  }

 private:
  RankContext& context_;
  std::vector<std::jthread> threads_;
};

TEST(ThreadBesideTest, PromisesThatThreadsKeepEndTheirCallsOnTheRanksThread) {
  const RunReport report = run_world(fibers(2), [](RankContext& rank) {
    auto pg = init_process_group(rank, {.make = [&](RankContext& of, const std::shared_ptr<const Group>& group) {
                                   return std::make_shared<PromisedGroup>(of, group);
                                 }});
    std::vector<std::vector<float>> x(64, std::vector<float>(2));
    std::vector<Work> works;
    std::atomic<int> told = 0;
    for (std::vector<float>& each : x) {
      works.push_back(pg->all_reduce(each));
      works.back().then([&told](const absl::Status& status) { told += status.ok() ? 1 : 1000; });
    }
    wait_all(works);
    rank.sleep_for(absl::Milliseconds(1));  // the callbacks have run by then
    EXPECT_EQ(told.load(), 64);
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

TEST(ThreadBesideTest, StoresAndLocalsRefuseAThreadByName) {
  static const WorldLocal<int> local("number");
  const RunReport report = run_world(fibers(1), [](RankContext& rank) {
    const auto refused = [](auto&& call) {
      std::string text;
      std::thread([&] { text = error_of(call, ErrorKind::kInvalidArgument); }).join();
      return text;
    };
    EXPECT_THAT(refused([&] { rank.store().set("k", "1"); }),
                HasSubstr(absl::StrCat("HashStore, store set: ", kRefused)));
    EXPECT_THAT(refused([&] { (void)rank.store().get("k"); }), HasSubstr(absl::StrCat("store get: ", kRefused)));
    EXPECT_THAT(refused([&] { (void)local.get(rank.world(), [] { return std::make_shared<int>(1); }); }),
                HasSubstr(absl::StrCat("WorldLocal \"number\", get: ", kRefused)));
    EXPECT_THAT(refused([&] { local.forget(rank.world()); }),
                HasSubstr(absl::StrCat("WorldLocal \"number\", forget: ", kRefused)));
    auto pg = init_process_group(rank);
    EXPECT_THAT(refused([&] { pg->start_coalescing(); }), HasSubstr(absl::StrCat("start_coalescing: ", kRefused)));
    std::vector<float> x(1);
    Work work = pg->recv(x, 0, 3);
    EXPECT_THAT(refused([&] { work.then([](const absl::Status&) {}); }), HasSubstr(kRefused));
    const std::vector<float> sent = {1};
    pg->send(sent, 0, 3).wait();
    work.wait();
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

TEST(ThreadBesideTest, AStoreOfAWorldIsEverybodysBeforeAndAfterTheRun) {
  World world(fibers(1));
  std::thread([&] { world.store().set("before", "1"); }).join();
  const RunReport report = world.run([](RankContext& rank) { rank.store().set("k", rank.store().get("before")); });
  EXPECT_TRUE(report.ok()) << report.text();
  std::thread([&] { EXPECT_EQ(world.store().get("k"), "1"); }).join();
}

TEST(ThreadBesideTest, AThreadAsksForWorksBesideTheRanks) {
  const RunReport report = run_world(fibers(2), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<std::vector<float>> x(200, std::vector<float>(4, static_cast<float>(rank.rank() + 1)));
    std::vector<Work> works;
    for (std::vector<float>& each : x) works.push_back(pg->all_reduce(each));
    std::jthread other([works] {
      for (const Work& work : works) {
        while (!work.is_completed()) std::this_thread::yield();
        EXPECT_TRUE(work.is_success());
      }
    });
    go_on(rank, *pg);
    other.join();
    works.clear();
    rank.sleep_for(absl::Milliseconds(1));
    for (std::vector<float>& each : x) pg->all_reduce(each).wait();  // none is refused
    EXPECT_EQ(x[199][3], 6);
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

TEST(ThreadBesideTest, AThreadLearnsOfFailuresBesideTheRanks) {
  const RunReport report = run_world(fibers(2), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<std::shared_ptr<ProcessGroup>> groups;
    for (int i = 0; i < 20; ++i) groups.push_back(pg->new_group());
    std::vector<std::vector<float>> x(20, std::vector<float>(rank.rank() == 0 ? 2 : 3));
    std::vector<Work> works;
    for (size_t i = 0; i < groups.size(); ++i) works.push_back(groups[i]->all_reduce(x[i]));
    pg->barrier().wait();
    std::jthread other([&works] {
      for (const Work& work : works) EXPECT_NE(work.exception(), nullptr);
    });
    go_on(rank, *pg);
    other.join();
    rank.sleep_for(absl::Milliseconds(1));
  });
  EXPECT_TRUE(report.ok()) << report.text();  // no error that no rank asked for
}

TEST(ThreadBesideTest, AThreadLearnsOfFailuresWhileTheReportIsWritten) {
  std::jthread other;
  for (int run = 0; run < 20; ++run) {
    const RunReport report = run_world(fibers(2), [&](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<std::shared_ptr<ProcessGroup>> groups;
      for (int i = 0; i < 50; ++i) groups.push_back(pg->new_group());
      std::vector<std::vector<float>> x(50, std::vector<float>(rank.rank() == 0 ? 2 : 3));
      std::vector<Work> works;
      for (size_t i = 0; i < groups.size(); ++i) works.push_back(groups[i]->all_reduce(x[i]));
      pg->barrier().wait();
      if (rank.rank() == 0) {
        other = std::jthread([works = std::move(works)] {
          for (const Work& work : works) EXPECT_FALSE(work.is_success());
        });
      }
    });
    EXPECT_TRUE(report.ok()) << report.text();
  }
}

// A thread that has acted once need not wait again while the ranks' thread stands in the program's code. A drop of a
// work that is done is no scheduling point, and changes the rank's list of open outputs, as the thread's acts do.
// Nor is a look at one, or a note.
RunReport done_works_beside_drops_of_a_thread(void (*act)(RankContext& rank, std::vector<Work>& done)) {
  return run_world(fibers(1), [act](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<std::vector<float>> x(20'000, std::vector<float>(1)), y(500, std::vector<float>(1));
    std::vector<Work> done, open;
    std::vector<std::shared_ptr<ProcessGroup>> groups;
    for (std::vector<float>& tensor : x) done.push_back(pg->all_reduce(tensor));
    for (std::vector<float>& tensor : y) {
      groups.push_back(pg->new_group());
      open.push_back(groups.back()->recv(tensor, 0));
    }
    std::atomic<int> gone = 0;
    std::jthread other([&] {
      for (Work& work : open) {
        work = Work();
        ++gone;
      }
    });
    while (gone < 5) {
    }
    act(rank, done);
    other.join();
    EXPECT_EQ(gone, 500);
  });
}

TEST(ThreadBesideTest, DropsOfDoneWorksBesideThoseOfAThread) {
  const RunReport report =
      done_works_beside_drops_of_a_thread([](RankContext&, std::vector<Work>& done) { done.clear(); });
  EXPECT_THAT(report.text(), HasSubstr("dropped unfinished"));
}

TEST(ThreadBesideTest, LooksAtDoneWorksBesideDropsOfAThread) {
  const RunReport report = done_works_beside_drops_of_a_thread([](RankContext&, std::vector<Work>& done) {
    for (Work& work : done) EXPECT_TRUE(work.is_completed());
  });
  EXPECT_THAT(report.text(), HasSubstr("dropped unfinished"));
}

TEST(ThreadBesideTest, NotesBesideDropsOfAThread) {
  const RunReport report = done_works_beside_drops_of_a_thread([](RankContext& rank, std::vector<Work>&) {
    for (int i = 0; i < 20'000; ++i) rank.world().note(absl::StrCat("note ", i));
  });
  const auto with = [&report](std::string_view text) {
    return std::count_if(report.notes.begin(), report.notes.end(), [text](const std::string& note) {
      return absl::StrContains(note, absl::string_view(text.data(), text.size()));
    });
  };
  EXPECT_EQ(with("note "), 20'000);
  EXPECT_EQ(with("dropped unfinished"), 500);
}

// The parts of a coalesced call end with the whole, or before, though a thread completes that.
TEST(ThreadBesideTest, APartThatWasWaitedForIsDoneWhoeverCompletesTheWhole) {
  class Link final : public ProcessGroup {
   public:
    Link(RankContext& rank, const std::shared_ptr<const Group>& group) : ProcessGroup(rank, group) {}
    absl::StatusOr<Work> execute(CollectiveCall&&) override { return promise.work(); }
    Promise promise;
  };
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    WorldOptions options = fibers(1);
    options.schedule = Schedule::seeded(seed);
    const RunReport report = run_world(options, [ask_parts = seed % 2 == 0](RankContext& rank) {
      const auto pg = init_process_group(rank, {.make = [](RankContext& of, const std::shared_ptr<const Group>& group) {
                                           return std::make_shared<Link>(of, group);
                                         }});
      std::vector<int32_t> x = {1}, y = {2};
      pg->start_coalescing();
      std::vector<Work> parts = {pg->all_reduce(x), pg->all_reduce(y)};
      Work whole = pg->end_coalescing();
      const World::OutsideWaker waker(&rank.world().scheduler());
      std::jthread other([&pg] { static_cast<Link&>(*pg).promise.set_value({}); });
      if (ask_parts) {
        for (Work& part : parts) part.wait();
      } else {
        whole.wait();
      }
      for (Work& part : parts) EXPECT_TRUE(part.is_success());
    });
    EXPECT_TRUE(report.ok()) << "seed " << seed << ": " << report.text();
  }
}

TEST(ThreadBesideTest, AGroupThatAThreadLetsGoWithCallsThatWereNeverIssued) {
  const RunReport report = run_world(fibers(2), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(4);
    for (int i = 0; i < 20; ++i) {
      auto gone = pg->new_group();
      gone->start_coalescing();
      (void)gone->all_reduce(x);
      std::jthread other([gone = std::move(gone)]() mutable { gone.reset(); });
      go_on(rank, *pg, 20);
    }
  });
  EXPECT_THAT(report.text(), HasSubstr("start_coalescing() without end_coalescing(): never issued: all_reduce"));
}

// A rank that waits in a destructor while its exception unwinds lends its stack to what another rank's thread lets go.
TEST(ThreadBesideTest, ADropIsNoneOfARankThatUnwindsElsewhere) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    WorldOptions options = fibers(2);
    options.schedule = Schedule::seeded(seed);
    const RunReport report = run_world(options, [](RankContext& rank) {
      struct AtEnd {
        RankContext& rank;
        ~AtEnd() {
          for (int i = 0; i < 50; ++i) rank.store().set("k", "");
        }
      };
      auto pg = init_process_group(rank);
      std::vector<float> x(4);
      if (rank.rank() == 0) {
        std::thread([work = pg->all_reduce(x)] {}).join();
        return;
      }
      try {
        const AtEnd at_end{rank};
        throw 1;
      } catch (int) {
      }
      pg->all_reduce(x).wait();
    });
    EXPECT_THAT(report.text(), HasSubstr("all_reduce seq 1: the work was dropped unfinished")) << seed;
    EXPECT_THAT(report.text(), testing::Not(HasSubstr("unwound"))) << seed;
  }
}

// A step of the scheduler may wait for its turn for long, while ranks go on: nobody takes its place meanwhile.
TEST(ThreadBesideTest, ADropWaitsWhileRanksRunToBlock) {
  const RunReport report = run_world(fibers(2), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(4);
    std::vector<std::vector<float>> y(150, std::vector<float>(4, 1));
    if (rank.rank() == 1) return;
    // Without a waker the world may end before the thread has begun.
    std::jthread other(
        [work = pg->recv(x, 1), waker = World::OutsideWaker(&rank.world().scheduler())]() mutable { work = Work(); });
    std::vector<Work> works;
    try {
      for (std::vector<float>& each : y) {
        absl::SleepFor(absl::Milliseconds(1));
        works.push_back(pg->all_reduce(each));
      }
      wait_all(works);
    } catch (const DistError&) {
    }
  });
  EXPECT_THAT(report.text(), HasSubstr("recv from rank 1: the work was dropped unfinished"));
}

// The rank comes to no point, but asks whether the thread is through.
TEST(ThreadBesideTest, ADropThatARankWaitsForByAsking) {
  const RunReport report = run_world(fibers(1), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(600);
    std::atomic<bool> dropped{false};
    std::vector<Work> works;
    for (int tag = 0; tag < 600; ++tag)
      works.push_back(pg->recv(std::span(x).subspan(static_cast<size_t>(tag), 1), 0, tag));
    const absl::Time begun = absl::Now();
    std::jthread other([&dropped, gone = std::move(works)]() mutable {
      gone.clear();
      dropped.store(true);
    });
    while (!dropped.load()) std::this_thread::yield();
    EXPECT_LT(absl::Now() - begun, absl::Seconds(30));  // one wait of 1 s at most, not 600 of 0.1 s
  });
  EXPECT_THAT(report.text(), HasSubstr("recv from rank 0: the work was dropped unfinished"));
}

TEST(ThreadBesideTest, WorksThatThreadsLetGoAfterTheRun) {
  std::vector<std::vector<Work>> works(2);
  std::vector<std::vector<float>> x(2000, std::vector<float>(1));
  World world(fibers(1));
  const RunReport report = world.run([&](RankContext& rank) {
    auto pg = init_process_group(rank);
    for (size_t i = 0; i < x.size(); ++i) works[i % 2].push_back(pg->all_reduce(x[i]));
  });
  EXPECT_TRUE(report.ok()) << report.text();
  std::jthread one([&] { works[0].clear(); });
  works[1].clear();
}

TEST(ThreadBesideTest, AGroupEndsAfterTheRunWhoeverLetItsCallsGo) {
  for (int i = 0; i < 20; ++i) {
    std::shared_ptr<ProcessGroup> kept;
    std::jthread other;
    std::vector<float> x(4);
    World world(fibers(2));
    world.run([&](RankContext& rank) {
      auto pg = init_process_group(rank);
      if (rank.rank() == 1) return;
      kept = pg;
      other = std::jthread([work = pg->recv(x, 1)] {});
    });
    destroy_process_group(kept);
  }
}

// A wait would go on into the run.
TEST(ThreadBesideTest, NoThreadWaitsForAKeyBeforeTheRun) {
  World world(fibers(2));
  world.store().set("there", "1");
  EXPECT_EQ(world.store().get("there"), "1");
  EXPECT_THAT(error_of([&] { (void)world.store().get("last"); }, ErrorKind::kInvalidArgument),
              HasSubstr(absl::StrCat("HashStore, store get: ", kRefused)));
  EXPECT_THAT(error_of([&] { world.store().wait({"last"}, absl::ZeroDuration()); }, ErrorKind::kTimeout),
              HasSubstr("missing"));
  const RunReport report = world.run([](RankContext& rank) { rank.store().set("last", "2"); });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_EQ(world.store().get("last"), "2");
}

TEST(ThreadBesideTest, CallsOfAStoreAsDataAndWaitsForAnyWorkAreRefused) {
  const RunReport report = run_world(fibers(1), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(1);
    std::vector<Work> works;
    works.push_back(pg->recv(x, 0));
    std::thread([&] {
      const StoreCall call{.op = StoreCall::Op::kNumKeys};
      EXPECT_THAT(error_of([&] { (void)rank.store().execute(call); }, ErrorKind::kInvalidArgument),
                  HasSubstr(absl::StrCat("num_keys: ", kRefused)));
      EXPECT_THAT(error_of([&] { (void)wait_any(works); }, ErrorKind::kInvalidArgument),
                  HasSubstr(absl::StrCat("wait_any: ", kRefused)));
    }).join();
    const std::vector<float> sent = {1};
    pg->send(sent, 0).wait();
    EXPECT_EQ(wait_any(works), 0U);
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

TEST(ThreadBesideTest, APromiseIsKeptOnceItsThreadSaysSo) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    WorldOptions options = fibers(2);
    options.schedule = Schedule::seeded(seed);
    const RunReport report = run_world(options, [](RankContext& rank) {
      Promise promise(&rank.world().scheduler(), rank.rank());
      std::thread([&] {
        promise.set_value();
        while (!promise.work().is_completed()) std::this_thread::yield();
      }).join();
      EXPECT_TRUE(promise.work().is_completed());
    });
    EXPECT_TRUE(report.ok()) << report.text();
  }
}

// Callbacks of a promise of no rank are the thread's that keeps it, and so are their exceptions.
TEST(ThreadBesideTest, CallbacksOfAPromiseOfNoRankRunOnTheThreadThatKeepsIt) {
  WorldOptions options = fibers(2);
  options.schedule = Schedule::seeded(1);
  const RunReport report = run_world(options, [](RankContext& rank) {
    Promise promise(&rank.world().scheduler());
    std::thread::id ran;
    promise.work().then([&](const absl::Status&) {
      ran = std::this_thread::get_id();
      rank.store().set("key", "");
    });
    std::jthread other([&, waker = rank.world().outside_waker()] {
      EXPECT_THAT(error_of([&] { promise.set_value(); }, ErrorKind::kInvalidArgument), HasSubstr(kRefused));
      EXPECT_EQ(ran, std::this_thread::get_id());
    });
    promise.work().wait();
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

// As on a thread that completes the work at once: each callback runs, the first exception is thrown, and a chain of
// promises takes no stack.
TEST(ThreadBesideTest, CallbacksOfPromisesOfNoRankBeforeARun) {
  World world(fibers(1));
  Promise promise(&world.scheduler());
  int ran = 0;
  promise.work().then([&](const absl::Status&) {
    ++ran;
    throw std::runtime_error("the first");
  });
  promise.work().then([&](const absl::Status&) { ++ran; });
  EXPECT_THAT([&] { promise.set_value(); }, testing::ThrowsMessage<std::runtime_error>("the first"));
  EXPECT_EQ(ran, 2);
  std::vector<Promise> chain;
  for (int i = 0; i < 100'000; ++i) chain.emplace_back(&world.scheduler());
  for (size_t i = 1; i < chain.size(); ++i)
    chain[i - 1].work().then([next = chain[i]](const absl::Status&) mutable { next.set_value(); });
  chain[0].set_value();
  EXPECT_TRUE(chain.back().work().is_completed());
}

TEST(ThreadBesideTest, AHookOfTheEndWaitsForAThreadThatLetsGo) {
  std::vector<Work> works;
  std::vector<std::vector<float>> x(500, std::vector<float>(1));
  const absl::Time begun = absl::Now();
  const RunReport report = run_world(fibers(1), [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    for (std::vector<float>& each : x) works.push_back(pg->all_reduce(each));
    rank.world().at_end([&] { std::thread([&] { works.clear(); }).join(); });
  });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_LT(absl::Now() - begun, absl::Seconds(30));
}

TEST(ThreadBesideTest, AThreadAsksAStreamForItsStatusWhileCallsFail) {
  const RunReport report = run_world(fibers(2), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    SimStream stream(rank, "side");
    std::atomic<bool> over{false};
    std::jthread other([&] {
      while (!over.load()) (void)stream.status();
    });
    std::vector<float> x(4);
    for (int i = 0; i < 50; ++i) {
      auto child = pg->new_group();
      std::vector<float> y(rank.rank() == 0 ? 2 : 3);
      (void)child->all_reduce(y, ReduceOp::kSum, {.stream = &stream});
      EXPECT_THAT(error_of([&] { stream.synchronize(); }, ErrorKind::kMismatch), HasSubstr("all_reduce seq 1"));
    }
    over.store(true);
    other.join();
    EXPECT_THAT(stream.status().message(), HasSubstr("all_reduce seq 1"));
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

TEST(ThreadBesideTest, AThreadAbortsAFakeGroupBesideItsCalls) {
  const RunReport report = run_world(fibers(1), [](RankContext& rank) {
    auto pg = init_process_group(rank, {.backend = GroupOptions::Backend::kFake});
    std::vector<float> x(4);
    std::jthread other([&] { pg->abort("enough"); });
    for (;;) pg->all_reduce(x).wait();
  });
  EXPECT_THAT(report.text(), HasSubstr("the group failed before: rank 0 aborted group 0: enough"));
}

TEST(ThreadBesideTest, AListenerOfAThreadsAbortMayThrow) {
  const RunReport report = run_world(fibers(2), [](RankContext& rank) {
    rank.world().on_abort([](const absl::Status&) { throw std::runtime_error("a listener's"); });
    auto pg = init_process_group(rank);
    std::jthread other([&] {
      if (rank.rank() == 0) rank.world().abort("enough");
    });
    go_on(rank, *pg, 1'000'000);
  });
  EXPECT_THAT(report.text(), HasSubstr("a listener of on_abort() threw: a listener's"));
}

TEST(BesideRecordTest, WorksThatAThreadLetsGoWhileTheRecordGoes) {
  for (int i = 0; i < 20; ++i) {
    auto record = std::make_shared<CallRecord>();
    auto pg = make_fake_process_group({.rank = 0, .world_size = 8, .options = {.record = record}});
    std::vector<float> x(4);
    std::vector<Work> works;
    for (int call = 0; call < 1000; ++call) works.push_back(pg->all_reduce(x));
    std::jthread other([gone = std::move(works)]() mutable { gone.clear(); });
    if (i % 2 == 0) record->clear();
    pg.reset();
    record.reset();
  }
}

}  // namespace
}  // namespace rankloom

// Worlds: many of them, ranks that are the caller's threads, what belongs to a rank.
#include "rankloom/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "rankloom/sync.h"
#include "sim/scheduler/scheduler.h"
#include "tests/error_of.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class WorldTest : public testing::TestWithParam<WorldMode> {};
INSTANTIATE_TEST_SUITE_P(Gears, WorldTest, every_world(), world_name);

int entries_of(const char* folder) {
  const std::filesystem::directory_iterator all(folder);
  return static_cast<int>(std::distance(begin(all), end(all)));
}

// Ranks that talk, a helper for some, and every tenth world fails.
void make_one_world(const WorldMode& gear, int number) {
  const RunReport report = run_world(gear.options(3), [&](RankContext& rank) {
    rank.store().set("key " + std::to_string(rank.rank()), std::string(100, 'x'));
    if (number % 3 == 0) rank.world().spawn_helper([&rank] { rank.store().add("helped", 1); });
    if (number % 10 == 0 && rank.rank() == 1) throw std::runtime_error("planned");
    rank.store().wait({"key 0", "key 1", "key 2"});
  });
  ASSERT_EQ(report.ok(), number % 10 != 0) << report.text();
}

// The number of runs that a rank makes may depend on the speed of the machine.
TEST(WorldRunTest, RunsWithinARankTakeNoNumber) {
  const auto fails = [] {
    return run_world({.world_size = 1, .engine = EngineKind::kFibers, .schedule = Schedule::seeded(1)},
                     [](RankContext&) { throw std::runtime_error("planned"); });
  };
  const auto number = [&fails] {
    int found = 0;
    EXPECT_EQ(std::sscanf(fails().rerun.c_str(), "RANKLOOM_REPLAY_RUN=%d ", &found), 1);
    return found;
  };
  (void)fails();  // the first has none
  const int before = number();
  const RunReport report = run_world({.world_size = 2}, [&fails](RankContext&) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(fails().rerun, "");
  });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_EQ(number(), before + 2);
}

TEST_P(WorldTest, AWorldLocalIsOneObjectForAllRanks) {
  const WorldLocal<std::set<int>> ranks("ranks");
  const RunReport report = run_world(GetParam().options(3), [&](RankContext& rank) {
    const std::shared_ptr<std::set<int>> mine = ranks.get(rank.world());
    {
      static Mutex mu;
      const MutexLock lock(&mu);
      mine->insert(rank.rank());
    }
    store_barrier(rank.store(), "all in", rank.rank(), 3);
    EXPECT_THAT(*mine, ElementsAre(0, 1, 2));
    store_barrier(rank.store(), "all read", rank.rank(), 3);
    if (rank.rank() == 1) ranks.forget(rank.world());
    store_barrier(rank.store(), "forgotten", rank.rank(), 3);
    EXPECT_NE(ranks.get(rank.world()), mine);
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

TEST_P(WorldTest, AWorldLocalRefusesAnotherTypeUnderItsName) {
  const RunReport report = run_world(GetParam().options(1), [](RankContext& rank) {
    *WorldLocal<int>("x").get(rank.world()) = 3;
    EXPECT_EQ(
        error_of([&] { (void)WorldLocal<float>("x").get(rank.world()); }),
        "InvalidArgument: rank 0, WorldLocal \"x\": it is an object of another type in this world, want another name" +
            here());
    EXPECT_EQ(*WorldLocal<int>("x").get(rank.world()), 3);
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

// Else it would wait for itself where ranks are threads.
TEST_P(WorldTest, AWorldLocalRefusesToBeMadeWhileAnotherOneIs) {
  const RunReport report = run_world(GetParam().options(1), [](RankContext& rank) {
    const auto inner = [&] { return WorldLocal<int>("inner").get(rank.world(), CodeSite{"dir/job.cc", 31}); };
    EXPECT_EQ(error_of([&] { (void)WorldLocal<int>("outer").get(rank.world(), inner); }),
              "InvalidArgument: rank 0, WorldLocal \"inner\": asked for while \"outer\" is made, want it made before "
              "[job.cc:31]");
    // Nothing was made, and nothing is held.
    EXPECT_EQ(*WorldLocal<int>("outer").get(rank.world(), [] { return std::make_shared<int>(4); }), 4);
    EXPECT_EQ(*inner(), 0);
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

TEST_P(WorldTest, TenThousandWorldsLeaveNothingBehind) {
  for (int i = 0; i < 1000; ++i) make_one_world(GetParam(), i);
  const int files = entries_of("/proc/self/fd");
  const int threads = entries_of("/proc/self/task");
  const auto bytes = static_cast<int64_t>(mallinfo2().uordblks);
  for (int i = 1000; i < 10'000; ++i) make_one_world(GetParam(), i);
  EXPECT_EQ(entries_of("/proc/self/fd"), files);
  // A thread that has just ended its rank may not be back in the pool when the next world asks for one.
  EXPECT_LE(entries_of("/proc/self/task"), std::max(threads, 20));
  // 116 bytes a world would show.
  EXPECT_LT(static_cast<int64_t>(mallinfo2().uordblks) - bytes, 1 << 20);
}

TEST_P(WorldTest, AWorldIsGivenWhatItsOptionsSay) {
  World world(GetParam().options(3));
  EXPECT_EQ(world.size(), 3);
  std::vector<std::string> seen(3);
  world.run([&](RankContext& rank) {
    EXPECT_EQ(RankContext::current(), &rank);
    EXPECT_EQ(&rank.world(), &world);
    EXPECT_EQ(&rank.store(), &world.store());
    EXPECT_EQ(rank.world_size(), 3);
    seen[static_cast<size_t>(rank.rank())] = "rank " + std::to_string(rank.rank());
  });
  EXPECT_THAT(seen, ElementsAre("rank 0", "rank 1", "rank 2"));
  EXPECT_EQ(RankContext::current(), nullptr);
}

TEST(WorldOptionsTest, ARankThatIsNoneIsRefused) {
  World world({.world_size = 3});
  EXPECT_EQ(error_of([&] { world.context(3); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: World::context: rank is 3, want 0 <= rank < world_size = 3" + here());
  EXPECT_EQ(error_of([&] { world.context(-1); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: World::context: rank is -1, want 0 <= rank < world_size = 3" + here());
  EXPECT_EQ(error_of([&] { world.rank_failed(7, nullptr); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: World::rank_failed: rank is 7, want 0 <= rank < world_size = 3" + here());
  EXPECT_EQ(world.context(2).rank(), 2);
}

TEST(WorldOptionsTest, OptionsThatDoNotFitAreRefused) {
  EXPECT_EQ(error_of([] { World world({.world_size = 0}); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: world_size is 0, want at least 1" + here());
  EXPECT_EQ(error_of([] { World world({.engine = EngineKind::kFibers, .schedule = Schedule::free()}); },
                     ErrorKind::kInvalidArgument),
            "InvalidArgument: schedule free() needs threads: fibers share one thread, want fifo(), seeded(seed), ..." +
                here());
}

// --- what belongs to a rank

TEST_P(WorldTest, EachRankHasNumbersOfItsOwnThatRepeat) {
  const auto draw = [&](uint64_t seed) {
    WorldOptions options = GetParam().options(4);
    options.seed = seed;
    std::vector<std::vector<uint64_t>> drawn(4);
    run_world(options, [&](RankContext& rank) {
      auto& mine = drawn[static_cast<size_t>(rank.rank())];
      for (int i = 0; i < 3; ++i) {
        mine.push_back(rank.rng().next());
        rank.yield();
      }
      mine.push_back(std::uniform_int_distribution<uint64_t>(0, 1'000'000)(rank.rng()));
    }).throw_if_failed();
    return drawn;
  };
  const auto once = draw(5);
  EXPECT_EQ(draw(5), once);
  EXPECT_NE(draw(6), once);
  std::set<uint64_t> all;
  for (const auto& numbers : once) all.insert(numbers.begin(), numbers.begin() + 3);
  EXPECT_EQ(all.size(), 12u);
}

TEST_P(WorldTest, TheSchedulesSeedIsTheRanksUnlessOneIsGiven) {
  const auto seeds_of = [&](WorldOptions options) {
    std::vector<uint64_t> seeds(2);
    run_world(std::move(options),
              [&](RankContext& rank) { seeds[static_cast<size_t>(rank.rank())] = rank.rng_seed(); });
    return seeds;
  };
  WorldOptions scheduled = GetParam().options(2);
  WorldOptions given = GetParam().options(2);
  given.seed = scheduled.schedule.seed();
  EXPECT_EQ(seeds_of(scheduled), seeds_of(given));
  given.seed = scheduled.schedule.seed() + 1;
  EXPECT_NE(seeds_of(scheduled), seeds_of(given));
}

// Tells of its end.
struct Told {
  std::vector<std::string>* ends = nullptr;
  std::string name;
  ~Told() {
    if (ends != nullptr) ends->push_back(name);
  }
};

TEST_P(WorldTest, LocalsGoInTheReverseOfTheirMaking) {
  static RankLocal<Told> first, second, third;
  std::vector<std::string> ends;
  run_world(GetParam().options(1), [&](RankContext& rank) {
    std::vector<std::string> names;
    for (int i = 0; i < 20; ++i) names.push_back(std::to_string(i * 7919 % 20));
    for (const std::string& name : names) {
      const auto made = WorldLocal<Told>(name).get(rank.world());
      made->name = "world " + name;
      made->ends = &ends;
    }
    for (auto* const local : {&second, &third, &first}) (*local)->ends = &ends;
    second->name = "second";
    third->name = "third";
    first->name = "first";
  }).throw_if_failed();
  ASSERT_EQ(ends.size(), 23);
  std::vector<std::string> expected;
  for (int i = 19; i >= 0; --i) expected.push_back("world " + std::to_string(i * 7919 % 20));
  const auto of_rank = std::find(ends.begin(), ends.end(), "first");
  EXPECT_EQ(std::vector<std::string>(of_rank, of_rank + 3), (std::vector<std::string>{"first", "third", "second"}));
  ends.erase(of_rank, of_rank + 3);
  EXPECT_EQ(ends, expected);
}

TEST_P(WorldTest, ALocalMayMakeOthers) {
  struct Outer {
    Outer() {
      static std::vector<RankLocal<int>> others(100);  // a table of them grows meanwhile
      for (RankLocal<int>& other : others) sum += ++*other;
    }
    int sum = 0;
  };
  static RankLocal<Outer> outer;
  run_world(GetParam().options(1), [&](RankContext&) {
    EXPECT_EQ(outer->sum, 100);
    outer->sum = 3;
    EXPECT_EQ(outer->sum, 3);
  }).throw_if_failed();
}

TEST_P(WorldTest, ALocalMayCallItsWorldWhenItGoes) {
  struct Notes {
    World* world = nullptr;
    int64_t listener = 0;
    ~Notes() {
      if (world == nullptr) return;
      world->forget_on_abort(listener);
      world->note("a local has gone");
    }
  };
  static RankLocal<Notes> notes;
  run_world(GetParam().options(2), [&](RankContext& rank) {
    notes->listener = rank.world().on_abort([](const absl::Status&) {});
    notes->world = &rank.world();
  }).throw_if_failed();
}

// Helpers share their rank's locals, each of which is one object all the same.
TEST_P(WorldTest, HelpersMakeLocalsBesideTheirRank) {
  static std::vector<RankLocal<int>> locals(40);
  run_world(GetParam().options(2), [&](RankContext& rank) {
    std::vector<int*> seen(locals.size());
    rank.world().spawn_helper([&rank, &seen] {
      for (size_t i = 0; i < locals.size(); ++i) seen[i] = &locals[i].get();
      rank.store().set("helped " + std::to_string(rank.rank()), "");
    });
    std::vector<int*> own;
    for (RankLocal<int>& local : locals) own.push_back(&local.get());
    rank.store().wait({"helped " + std::to_string(rank.rank())});
    EXPECT_EQ(own, seen);
  }).throw_if_failed();
}

// An abort wakes ranks; a thread of no world looks for it now and then.
TEST_P(WorldTest, AnAbortEndsTheWaitOfAThreadThatARankMade) {
  if (GetParam().schedule.deterministic()) GTEST_SKIP() << "a rank that joins a thread has the baton meanwhile";
  std::string seen;
  const RunReport report = run_world(GetParam().options(2), [&](RankContext& rank) {
    if (rank.rank() == 1) {
      rank.store().get("begun");
      throw std::runtime_error("no key comes");
    }
    std::thread other([&] {
      rank.store().set("begun", "");
      seen = error_of([&] { (void)rank.store().get("never"); });
    });
    other.join();
  });
  EXPECT_FALSE(report.ok());
  EXPECT_THAT(seen, HasSubstr("no key comes"));
}

TEST_P(WorldTest, ALocalIsOnePerRankAndItsHelpers) {
  static RankLocal<std::vector<int>> numbers;
  std::vector<size_t> sizes(3);
  run_world(GetParam().options(3), [&](RankContext& rank) {
    for (int i = 0; i <= rank.rank(); ++i) {
      numbers->push_back(i);
      rank.yield();
    }
    rank.world().spawn_helper([&rank] {
      numbers->push_back(7);
      rank.store().set("helped " + std::to_string(rank.rank()), "");
    });
    rank.store().wait({"helped " + std::to_string(rank.rank())});
    sizes[static_cast<size_t>(rank.rank())] = numbers->size();
  }).throw_if_failed();
  EXPECT_THAT(sizes, ElementsAre(2, 3, 4));
  EXPECT_THROW(numbers.get(), std::logic_error);
}

TEST_P(WorldTest, AHelperThatThrowsFailsItsRank) {
  const RunReport report = run_world(GetParam().options(3), [](RankContext& rank) {
    if (rank.rank() == 1) rank.world().spawn_helper([] { throw std::runtime_error("planned"); });
    // Its helper is told of the abort, too, and has nothing to add.
    if (rank.rank() == 2) rank.world().spawn_helper([&rank] { rank.store().wait({"never"}); });
    rank.store().wait({"never"});
  });
  EXPECT_EQ(report.first_failed, 1);
  EXPECT_THAT(report.text(),
              testing::StartsWith("rank 1 failed: planned (std::runtime_error)\nranks 0, 2 stopped for it"));
}

TEST_P(WorldTest, TimeBeginsAtZeroAndSleepsAdvanceIt) {
  const absl::Duration nap = GetParam().schedule.deterministic() ? absl::Minutes(30) : absl::Milliseconds(2);
  run_world(GetParam().options(2), [&](RankContext& rank) {
    const absl::Duration begin = rank.now();
    EXPECT_GE(begin, absl::ZeroDuration());
    rank.sleep_for(nap);
    EXPECT_GE(rank.now() - begin, nap);
    if (GetParam().schedule.deterministic()) {
      EXPECT_EQ(rank.now(), nap);
    }
  }).throw_if_failed();
}

TEST_P(WorldTest, ASleepOfThreeHundredYearsIsNoneForEver) {
  if (!GetParam().schedule.deterministic()) return;  // the free gear takes as long
  run_world(GetParam().options(2), [&](RankContext& rank) {
    if (rank.rank() == 1) return rank.store().wait({"awake"}, absl::InfiniteDuration());
    rank.sleep_for(absl::Hours(24 * 365 * 300));
    EXPECT_GE(rank.now(), absl::Hours(24 * 365 * 290));
    rank.sleep_for(absl::Seconds(1));  // the clock stands at its end
    rank.store().set("awake", "");
  }).throw_if_failed();
}

// The clock stands at its end then.
TEST_P(WorldTest, PollsAtTheEndOfTheClockAreHarmless) {
  if (!GetParam().schedule.deterministic()) GTEST_SKIP() << "real time has no end that a test sees";
  run_world(GetParam().options(1), [](RankContext& rank) {
    rank.sleep_for(absl::Hours(24 * 366 * 300));
    for (int i = 0; i < 1000; ++i) rank.yield();
    EXPECT_GT(rank.now(), absl::Hours(24 * 365 * 290));
  }).throw_if_failed();
}

// An object of a thread, older than those that its first call makes, and so the later to go.
struct CallsAtLast {
  RankContext* rank = nullptr;
  ~CallsAtLast() {
    for (int i = 0; rank != nullptr && i < 3; ++i) rank->store().add("late calls", 1);
  }
};
thread_local CallsAtLast calls_at_last;

TEST_P(WorldTest, AThreadMayCallWhileItsLocalsGo) {
  if (GetParam().engine != EngineKind::kThreads) GTEST_SKIP() << "fibers share one thread";
  run_world(GetParam().options(2), [](RankContext& rank) {
    std::thread([&] {
      calls_at_last.rank = &rank;
      rank.store().set("first", "");
    }).join();
    if (rank.rank() == 0) {
      rank.store().wait({"late calls"});
      while (rank.store().add("late calls", 0) < 6) rank.yield();
    }
  }).throw_if_failed();
}

// A sleep that only others can end is no sleep with a deadline: a rank that can never go on is stuck with it.
TEST_P(WorldTest, ASleepForEverIsADeadlock) {
  const RunReport report = run_world(GetParam().options(2), [](RankContext& rank) {
    if (rank.rank() == 0) rank.sleep_for(absl::InfiniteDuration());
    rank.store().wait({"never"}, absl::InfiniteDuration());
  });
  EXPECT_THAT(report.text(), HasSubstr("Deadlock"));
  EXPECT_THAT(report.text(), HasSubstr("rank 0 waits in sleep [world_test.cc:"));
  EXPECT_THAT(report.text(), HasSubstr("rank 1 waits in store wait key \"never\" [world_test.cc:"));
}

TEST_P(WorldTest, ASleepEndsWhenTheWorldIsAborted) {
  const RunReport report = run_world(GetParam().options(2), [&](RankContext& rank) {
    if (rank.rank() == 1) throw std::runtime_error("planned");
    rank.sleep_for(absl::Hours(1000));
  });
  EXPECT_EQ(report.outcomes[0].state, RunReport::Outcome::State::kStopped);
  EXPECT_THAT(report.outcomes[0].text, HasSubstr("rank 1 failed: planned"));
}

// A rank that goes on after an abort is told at its next yield.
TEST_P(WorldTest, AYieldAfterAnAbortThrows) {
  const RunReport report = run_world(GetParam().options(2), [&](RankContext& rank) {
    if (rank.rank() == 1) rank.world().abort("enough");
    for (;;) rank.yield();
  });
  EXPECT_THAT(report.text(), HasSubstr("Aborted: rank 1 aborted the world: enough [world_test.cc:"));
}

TEST_P(WorldTest, AnAbortNamesTheRankOfAHelperAndAThreadOutside) {
  const auto text_of = [&](absl::FunctionRef<void(World&, RankContext&)> abort) {
    World world(GetParam().options(2));
    const RunReport report = world.run([&](RankContext& rank) {
      if (rank.rank() == 1) abort(world, rank);
      rank.store().wait({"never"});
    });
    EXPECT_EQ(report.first_failed, -1);
    return std::string(report.cause.message());
  };
  EXPECT_EQ(text_of([](World& world, RankContext&) {
              world.spawn_helper([&world] { world.abort("enough", {"dir/job.cc", 7}); });
            }),
            "rank 1 aborted the world: enough [job.cc:7]");
  EXPECT_EQ(text_of([](World& world, RankContext&) {
              std::thread([&world] { world.abort("enough", {"dir/job.cc", 8}); }).join();
            }),
            "a thread of no rank aborted the world: enough [job.cc:8]");
  EXPECT_EQ(text_of([](World& world, RankContext&) {
              const WorldOptions inner = {.world_size = 1, .engine = EngineKind::kThreads};
              (void)run_world(inner, [&world](RankContext&) { world.abort("enough", {"dir/job.cc", 9}); });
            }),
            "rank 0 of another world aborted the world: enough [job.cc:9]");
}

TEST_P(WorldTest, RunsOnce) {
  World world(GetParam().options(2));
  const auto program = [&](RankContext& rank) {
    rank.store().add("runs", 1);
    EXPECT_EQ(error_of([&] { (void)world.run([](RankContext&) {}); }, ErrorKind::kInvalidArgument),
              "InvalidArgument: run: this world has run before, want another world for another run" + here());
    EXPECT_EQ(error_of([&] { world.detach(); }, ErrorKind::kInvalidArgument),
              "InvalidArgument: detach: this thread of rank " + std::to_string(rank.rank()) +
                  " did not attach, want attach() before detach()" + here());
  };
  world.run(program).throw_if_failed();
  EXPECT_EQ(error_of([&] { (void)world.run(program); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: run: this world has run before, want another world for another run" + here());
  EXPECT_EQ(world.store().get("runs"), "2");
}

TEST_P(WorldTest, AHelperIsStartedByARankOnly) {
  World world(GetParam().options(1));
  EXPECT_EQ(
      error_of([&] { world.spawn_helper([] {}); }, ErrorKind::kInvalidArgument),
      "InvalidArgument: spawn_helper: called on a thread that belongs to no rank of this world, want a rank's or a "
      "helper's" +
          here());
}

// --- ranks that are the caller's threads

class AttachTest : public testing::TestWithParam<WorldMode> {};
INSTANTIATE_TEST_SUITE_P(Gears, AttachTest, every_threads_world(), world_name);

TEST_P(AttachTest, TheCallersThreadsAreTheRanks) {
  World world(GetParam().options(3));
  std::vector<std::thread> threads;
  for (int r = 2; r >= 0; --r) {
    threads.emplace_back([&world, r] {
      RankContext& rank = world.attach(r);
      EXPECT_EQ(RankContext::current(), &rank);
      rank.store().add("sum", r + 1);
      while (rank.store().add("sum", 0) != 6) rank.yield();
      world.detach();
      EXPECT_EQ(RankContext::current(), nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const RunReport report = world.report();
  EXPECT_TRUE(report.ok()) << report.text();
}

TEST_P(AttachTest, AFailureThatIsHandedToDetachIsTheRanks) {
  World world(GetParam().options(2));
  std::thread other([&] {
    RankContext& rank = world.attach(1);
    try {
      rank.store().wait({"never"});
      ADD_FAILURE() << "came back";
      world.detach();
    } catch (...) {
      world.detach(std::current_exception());
    }
  });
  world.attach(0);
  world.detach(std::make_exception_ptr(std::runtime_error("planned")));
  other.join();
  const RunReport report = world.report();
  EXPECT_EQ(report.first_failed, 0);
  EXPECT_THAT(report.text(), testing::StartsWith("rank 0 failed: planned (std::runtime_error)\nrank 1 stopped for it"));
}

TEST_P(AttachTest, MistakesAreTold) {
  World world(GetParam().options(2));
  EXPECT_EQ(error_of([&] { world.attach(2); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: attach: rank is 2, want 0 <= rank < world_size = 2" + here());
  EXPECT_EQ(error_of([&] { world.attach(-1); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: attach: rank is -1, want 0 <= rank < world_size = 2" + here());
  world.detach();  // of nothing: nothing happens
  std::thread other([&] {
    world.attach(1);
    world.detach();
  });
  world.attach(0);
  EXPECT_EQ(error_of([&] { world.attach(1); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: attach: this thread is rank 0 already, want a thread without a rank" + here());
  std::thread second([&] {
    EXPECT_EQ(error_of([&] { world.attach(0); }, ErrorKind::kInvalidArgument),
              "InvalidArgument: attach: rank 0 has attached already" + here());
  });
  second.join();
  world.detach();
  other.join();
  EXPECT_EQ(error_of([&] { world.attach(0); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: attach: rank 0 has attached already" + here());
  EXPECT_EQ(error_of([&] { (void)world.run([](RankContext&) {}); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: run: ranks of this world have attached, want run() or attach(), not both" + here());
  EXPECT_TRUE(world.report().ok());
  World ran(GetParam().options(1));
  ran.run([](RankContext&) {}).throw_if_failed();
  EXPECT_EQ(error_of([&] { ran.attach(0); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: attach: the world has run, want another world" + here());
}

TEST_P(AttachTest, TheReportWaitsForHelpersThatOutlastTheirRanks) {
  for (int round = 0; round < 50; ++round) {
    const bool fails = round % 2 == 1;
    World world(GetParam().options(2));
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r) {
      threads.emplace_back([&world, fails, r] {
        RankContext& rank = world.attach(r);
        world.spawn_helper([&world, &rank, fails] {
          for (int i = 0; i < 10; ++i) rank.yield();
          world.note("helped rank " + std::to_string(rank.rank()));
          if (fails && rank.rank() == 1) throw std::runtime_error("planned");
        });
        world.detach();
      });
    }
    for (std::thread& thread : threads) thread.join();
    const RunReport report = world.report();
    ASSERT_THAT(report.text(), testing::StartsWith(fails ? "rank 1 failed: planned (std::runtime_error)" : "ok"));
    ASSERT_THAT(report.notes, testing::Contains("helped rank 1"));
    ASSERT_TRUE(world.scheduler().closed());
    ASSERT_EQ(world.report().text(), report.text());
  }
}

TEST_P(AttachTest, SeveralThreadsMayAskForTheReport) {
  World world(GetParam().options(1));
  std::atomic<bool> may_end = false;
  std::thread rank([&] {
    world.attach(0);
    world.spawn_helper([&] {
      RankContext& self = *RankContext::current();
      while (!may_end) self.yield();
      world.note(absl::StrCat("asked by the helper: ", world.report().ok() ? "ok" : "failed"));
    });
    world.detach();
  });
  rank.join();
  std::vector<std::string> told(3);
  std::vector<std::thread> threads;
  for (std::string& text : told) threads.emplace_back([&] { text = world.report().text(); });
  may_end = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(told,
              testing::Each(testing::AllOf(testing::StartsWith("ok"), testing::HasSubstr("asked by the helper: ok"))));
}

TEST_P(WorldTest, AReportDoesNotWaitForRun) {
  World world(GetParam().options(2));
  std::thread asks;
  std::string told;
  const RunReport report = world.run([&](RankContext& rank) {
    if (rank.rank() != 0) return;
    // In real time the rank ends only after the other thread has its report.
    asks = std::thread([&] { told = world.report().text(); });
    asks.join();
  });
  EXPECT_TRUE(report.ok());
  EXPECT_THAT(told, testing::StartsWith("some ranks have not ended"));
}

TEST_P(WorldTest, AHookOfTheEndMayAskForTheReport) {
  std::string told;
  {
    World world(GetParam().options(2));
    world.run([](RankContext&) {}).throw_if_failed();
    world.at_end([&] { told = world.report().text(); });  // too late for run(): when the world goes
  }
  EXPECT_EQ(told, "ok");
}

// An object that a callable holds, with an act for when it goes.
class AtLast {
 public:
  explicit AtLast(std::function<void()> act) : act_(std::move(act)) {}
  AtLast(const AtLast&) = delete;
  AtLast& operator=(const AtLast&) = delete;
  ~AtLast() { act_(); }

 private:
  const std::function<void()> act_;
};

// A default timeout passes with the time that passes for a rank that only asks, as with that of a rank that sleeps.
TEST_P(WorldTest, ADefaultTimeoutPassesWhileAnotherRankPolls) {
  if (!GetParam().schedule.deterministic()) GTEST_SKIP() << "real time passes by itself";
  WorldOptions options = GetParam().options(2);
  options.timeout = absl::Milliseconds(5);
  absl::Duration ended = absl::ZeroDuration();
  const RunReport report = World(std::move(options)).run([&](RankContext& rank) {
    if (rank.rank() == 0) {
      EXPECT_THAT(error_of([&] { rank.store().get("k"); }), HasSubstr("Timeout"));
      ended = rank.now();
      return;
    }
    while (rank.now() < absl::Seconds(1)) rank.yield();
    rank.store().set("k", "v");
  });
  EXPECT_GE(ended, absl::Milliseconds(5));
  EXPECT_LT(ended, absl::Milliseconds(50));
}

// A thousand ranks that ask once are no thousand questions of one: time stands still until all have.
TEST_P(WorldTest, TimePassesForNobodyWhoHasNotBegunInALargeWorld) {
  if (!GetParam().schedule.deterministic()) GTEST_SKIP() << "real time passes by itself";
  const RunReport report = World(GetParam().options(1100)).run([&](RankContext& rank) {
    if (rank.rank() == 0) return rank.store().wait({"go"}, absl::Microseconds(500));
    (void)rank.store().check({"x"});
    if (rank.rank() == 1099) rank.store().set("go", "1");
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

// Each rank may gather a thousand values on its way out, whichever ranks share a thread.
TEST_P(WorldTest, EveryRankMayUseAWatchedValueAfterAnAbort) {
  Watched<int> sum;
  const RunReport report = World(GetParam().options(1100)).run([&](RankContext& rank) {
    try {
      if (rank.rank() == 1099) rank.world().abort("enough");
      rank.store().wait({"never"});
    } catch (const DistError&) {
      sum.update([](int& n) { ++n; });
      throw;
    }
  });
  EXPECT_EQ(sum.get(), 1100);
}

TEST_P(WorldTest, WhatAForgottenListenerHoldsMayCallTheWorld) {
  World world(GetParam().options(2));
  int64_t later = 0;
  world
      .run([&](RankContext& rank) {
        if (rank.rank() != 0) return;
        auto held = std::make_shared<AtLast>([&] {
          rank.store().set("gone", "1");  // a scheduling point, too
          later = world.on_abort([](const absl::Status&) {});
        });
        const int64_t listener = world.on_abort([held](const absl::Status&) {});
        world.forget_on_abort(listener + 1);  // none
        EXPECT_EQ(later, 0);
        held.reset();
        world.forget_on_abort(listener);
        EXPECT_EQ(later, listener + 1);
        EXPECT_TRUE(rank.store().check({"gone"}));
      })
      .throw_if_failed();
}

TEST_P(WorldTest, WhatAForgottenHookOfTheEndHoldsMayCallTheWorld) {
  std::vector<std::string> ran;
  World world(GetParam().options(2));
  world
      .run([&](RankContext& rank) {
        if (rank.rank() != 0) return;
        auto held = std::make_shared<AtLast>([&] {
          rank.store().set("gone", "1");
          world.at_end([&] { ran.push_back("the later one"); });
        });
        const int64_t hook = world.at_end([held, &ran] { ran.push_back("the forgotten one"); });
        held.reset();
        world.forget_at_end(hook);
        EXPECT_TRUE(rank.store().check({"gone"}));
      })
      .throw_if_failed();
  EXPECT_THAT(ran, ElementsAre("the later one"));
}

// An object whose hook of the end is forgotten with it, and goes in an earlier hook.
TEST_P(WorldTest, AHookOfTheEndMayForgetALaterOne) {
  std::vector<std::string> ran;
  World world(GetParam().options(2));
  int64_t later = 0;
  world.at_end([&] {
    ran.push_back("the first");
    world.forget_at_end(later);
    world.at_end([&] { ran.push_back("of the second round"); });
  });
  later = world.at_end([&] { ran.push_back("the forgotten one"); });
  world.at_end([&] { ran.push_back("the last"); });
  world.run([](RankContext&) {}).throw_if_failed();
  EXPECT_THAT(ran, ElementsAre("the first", "the last", "of the second round"));
}

// Listeners that the destructor of a rank's exception leaves go while the world is whole.
TEST_P(WorldTest, AnExceptionThatLeavesAListenerAtTheEnd) {
  struct Exception {
    explicit Exception(World* world, bool* whole) : world(*world), whole(*whole) {}
    Exception(const Exception&) = delete;
    Exception& operator=(const Exception&) = delete;
    ~Exception() {
      world.on_abort([held = std::make_shared<AtLast>([this_world = &world, seen = &whole] {
                        const int64_t hook = this_world->at_end([] {});
                        *seen = this_world->size() == 2 && hook > 0;
                      })](const absl::Status&) {});
    }
    World& world;
    bool& whole;
  };
  bool whole = false;
  {
    World world(GetParam().options(2));
    (void)world.run([&](RankContext& rank) {
      if (rank.rank() == 0) throw std::make_shared<Exception>(&world, &whole);
    });
  }
  EXPECT_TRUE(whole);
}

TEST_P(WorldTest, WhatAWatchedValueHeldMayCallTheWorldWhenAnotherIsSet) {
  std::atomic<int> gone = 0;
  Watched<std::shared_ptr<AtLast>> watched;
  World world(GetParam().options(2));
  world
      .run([&](RankContext& rank) {
        watched.set(std::make_shared<AtLast>([&] {
          rank.store().add("gone", 1);  // a scheduling point
          ++gone;
        }));
        watched.set(nullptr);
      })
      .throw_if_failed();
  EXPECT_EQ(gone, 2);
}

// A listener, a hook and an object of all ranks go while the world is whole, and so does what they leave behind.
TEST_P(WorldTest, WhatIsLeftWithAWorldMayCallItWhenItGoes) {
  static WorldLocal<std::unique_ptr<AtLast>> locals("left with a world");
  int ends = 0;
  World* left = nullptr;
  const auto act = [&] {
    ++ends;
    left->note("too late");
    left->at_end([] {});
    left->forget_on_abort(left->on_abort([](const absl::Status&) {}));
  };
  const auto act_and_forget = [&] {
    act();
    locals.forget(*left);
  };
  {
    World world(GetParam().options(2));
    left = &world;
    world
        .run([&](RankContext& rank) {
          if (rank.rank() != 0) return;
          world.on_abort([held = std::make_shared<AtLast>(act)](const absl::Status&) {});
          locals.get(world, [&] { return std::make_unique<AtLast>(act); });
        })
        .throw_if_failed();
    world.at_end([held = std::make_shared<AtLast>(act_and_forget)] {});
    EXPECT_EQ(ends, 0);
  }
  EXPECT_EQ(ends, 3);
}

// Under a schedule nobody would ever hand such a thread the baton.
TEST_P(WorldTest, ACallBeforeTheRunIsRefusedWhereAScheduleDecides) {
  WorldOptions options = GetParam().options(2);
  const bool scheduled = options.engine == EngineKind::kThreads && options.schedule.deterministic();
  World world(std::move(options));
  if (scheduled) {
    for (const std::function<void()>& call :
         {std::function<void()>([&] { world.context(0).yield(); }),
          std::function<void()>([&] { world.context(1).sleep_for(absl::Milliseconds(1)); })}) {
      EXPECT_THAT(error_of(call), HasSubstr("called before the run, but ranks and their calls take turns by its "
                                            "schedule: want run() or attach() first"));
    }
  }
  EXPECT_TRUE(world.run([](RankContext& rank) { rank.yield(); }).ok());
}

// The ranks of two worlds have the same numbers.
TEST_P(WorldTest, AMutexThatARankOfAnotherWorldTookAlongNamesThatWorld) {
  Mutex mu("m");
  const auto lock = [&mu](RankContext&) ABSL_NO_THREAD_SAFETY_ANALYSIS { mu.lock(); };
  EXPECT_TRUE(run_world(GetParam().options(1), lock).ok());
  WorldOptions second = GetParam().options(1);
  if (!second.schedule.deterministic()) return;  // a thread of the process could free it
  const std::string text = run_world(std::move(second), lock).text();
  EXPECT_THAT(text, testing::AllOf(HasSubstr("rank 0 waits in mutex lock \"m\", locked at world_test.cc:"),
                                   HasSubstr(" by rank 0 of another world"), testing::Not(HasSubstr("cycle"))));
}

TEST_P(AttachTest, ARankOfOneWorldDoesNotDetachFromAnother) {
  World world(GetParam().options(1));
  World other(GetParam().options(1));
  world.attach(0);
  other.detach();  // of nothing
  EXPECT_NE(RankContext::current(), nullptr);
  world.detach();
  EXPECT_TRUE(world.report().ok());
}

TEST(AttachToFibersTest, IsRefused) {
  World world({.world_size = 1, .engine = EngineKind::kFibers});
  EXPECT_EQ(error_of([&] { world.attach(0); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: attach: the ranks are fibers of one thread, want engine threads" + here());
}

// Objects that a watch holds go while the ranks are there.
TEST_P(WorldTest, WhatAWatchHoldsMayCallTheWorldWhenItGoes) {
  int size = 0;
  std::string said;
  run_world(GetParam().options(3), [&](RankContext& rank) {
    if (rank.rank() != 2) return;
    const std::shared_ptr<RankContext> held(&rank, [&](RankContext* self) {
      size = self->world_size();
      said = error_of([&] { self->world().store().check({"k"}); });
    });
    rank.store().watch_key("k", [held](auto, auto) {});
    rank.store().set("k", "1");
  }).throw_if_failed();
  EXPECT_EQ(size, 3);
  EXPECT_THAT(said, HasSubstr("the world has ended"));
}

struct LeavesAnother {
  explicit LeavesAnother(World* world) : world(world) {}
  LeavesAnother(const LeavesAnother&) = delete;
  LeavesAnother& operator=(const LeavesAnother&) = delete;
  ~LeavesAnother() {
    world->on_abort([another = std::make_shared<LeavesAnother>(world)](const absl::Status&) {});
  }
  World* world;
};

TEST(WorldDeathTest, ObjectsThatAlwaysLeaveOthersAreNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto leave = [] {
    World world({.world_size = 1});
    world.on_abort([first = std::make_shared<LeavesAnother>(&world)](const absl::Status&) {});
  };
  EXPECT_DEATH(leave(),
               "rankloom: fatal: the end of a world does not come: objects that it holds .* left others in their "
               "destructors 100 times");
}

}  // namespace
}  // namespace rankloom

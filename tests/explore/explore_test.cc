#include "rankloom/explore.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "examples/known_bugs/known_bugs.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "rankloom/process_group.h"
#include "rankloom/records.h"
#include "rankloom/store.h"
#include "rankloom/stream.h"
#include "rankloom/sync.h"
#include "rankloom/testing.h"
#include "sim/base/system.h"
#include "tests/collectives/streams/fake_device.h"
#include "tests/temp_dir.h"
#include "world/world_state.h"

namespace rankloom {
using namespace internal;

namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::Ge;
using testing::HasSubstr;
using testing::Lt;
using testing::MatchesRegex;
using testing::Not;
using testing::StartsWith;

WorldOptions fibers(int ranks) { return {.world_size = ranks, .engine = EngineKind::kFibers}; }

const KnownBug& bug(std::string_view name) {
  for (const KnownBug& known : known_bugs()) {
    if (name == known.name) return known;
  }
  ADD_FAILURE() << "no bug " << name;
  return known_bugs()[0];
}

void reduce_ten_times(RankContext& rank) {
  auto pg = init_process_group(rank);
  std::vector<float> x = {1.0f + static_cast<float>(rank.rank())};
  for (int i = 0; i < 10; ++i) pg->all_reduce(x, ReduceOp::kMax).wait();
  observe(rank, "max", x[0]);
}

TEST(ExploreOnFibersTest, ARootOnAStreamBesideReceiversThatWaitForItAloneIsDoubted) {
  for (const bool on_stream : {false, true}) {
    ExploreOptions options;
    options.world.world_size = 2;
    options.strategies = {Strategy::exhaustive()};
    const ExploreReport report = explore(options, [on_stream](RankContext& rank) {
      auto pg = init_process_group(rank, {.rooted = GroupOptions::Rooted::kEach});
      std::vector<float> x = {1};
      if (rank.rank() == 0 && on_stream) {
        SimStream stream(rank);
        (void)pg->broadcast(x, 0, {.stream = &stream});
        stream.synchronize();
      } else {
        pg->broadcast(x, 0).wait();
      }
    });
    EXPECT_EQ(report.verified, !on_stream) << report.text();
    EXPECT_EQ(report.text().find("a root's call on a stream, beside receivers") != std::string::npos, on_stream)
        << report.text();
  }
}

// A handle of an earlier run, whose scheduler may have lain where this one's does.
TEST(ExploreOnFibersTest, AGroupOfAnEarlierRunKeepsItsName) {
  static std::shared_ptr<ProcessGroup> kept;
  ExploreOptions options;
  options.world.world_size = 2;
  options.strategies = {Strategy::exhaustive()};
  const ExploreReport report = explore(options, [](RankContext& rank) {
    if (kept != nullptr && kept->group_name() != "0") throw std::runtime_error("another name");
    auto pg = init_process_group(rank);
    rank.store().add("n", 1);
    if (rank.rank() == 1) kept = pg;
  });
  kept = nullptr;
  EXPECT_FALSE(report.failure.has_value()) << report.text();
}

TEST(ExploreOnFibersTest, WorksThatRanksShareAreDoubted) {
  ExploreOptions options;
  options.world.world_size = 2;
  options.strategies = {Strategy::exhaustive()};
  const ExploreReport report = explore(options, [](RankContext& rank) {
    static const WorldLocal<Watched<Work>> kShared("shared");
    const auto shared = kShared.get(rank.world());
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    Work own = pg->all_reduce(x);
    if (rank.rank() == 0) {
      shared->set(own);
      rank.store().set("there", "");
      rank.store().get("dropped");
    } else {
      rank.store().get("there");
      Work copy = shared->get();
      copy = Work();
      rank.store().set("dropped", "");
    }
    own.wait();
    if (rank.rank() == 0) shared->set(Work());
  });
  EXPECT_FALSE(report.verified) << report.text();
  EXPECT_THAT(report.text(), HasSubstr("a handle of a work that another rank lets go"));
}

// A search of two ranks that share these: rank 0 lends, rank 1 uses.
struct LentToOthers {
  Watched<std::shared_ptr<ProcessGroup>> group;
  Watched<std::shared_ptr<CallRecord>> record;
  Watched<Work> work;
  Latch lent{1}, used{1};
};
ExploreReport explore_lent(absl::FunctionRef<void(RankContext&, LentToOthers&)> program) {
  ExploreOptions options;
  options.world.world_size = 2;
  options.strategies = {Strategy::exhaustive()};
  return explore(options, [program](RankContext& rank) {
    static const WorldLocal<LentToOthers> kLent("lent");
    const auto lent = kLent.get(rank.world());
    program(rank, *lent);
    if (rank.rank() == 1) lent->group.set(nullptr);
  });
}

// The report of a search in which rank 1 looks at rank 0's group in a world of its own, run by `run_within`.
std::string look_from_within(absl::FunctionRef<void(absl::FunctionRef<void(RankContext&)>)> run_within) {
  const ExploreReport report = explore_lent([run_within](RankContext& rank, LentToOthers& lent) {
    if (rank.rank() == 0) {
      const auto pg = init_process_group(rank, {.ranks = {0}});
      lent.group.set(pg);
      lent.lent.count_down();
      pg->set_group_name("b");
      return;
    }
    lent.lent.wait();
    const auto pg = lent.group.get();
    std::string seen;
    run_within([&](RankContext&) { seen = pg->group_name(); });
    observe(rank, "seen", seen);
  });
  EXPECT_FALSE(report.verified) << report.text();
  return report.text();
}

TEST(ExploreOnFibersTest, AGroupThatAWorldWithinLooksAtIsDoubted) {
  EXPECT_THAT(
      look_from_within([](auto program) { run_world({.world_size = 1, .engine = EngineKind::kFibers}, program); }),
      HasSubstr("objects that a world within a rank uses, which did not make them"));
}

TEST(ExploreOnFibersTest, AGroupThatASearchWithinLooksAtIsDoubted) {
  EXPECT_THAT(look_from_within([](auto program) {
                ExploreOptions inner;
                inner.world.world_size = 1;
                inner.strategies = {Strategy::exhaustive()};
                explore(inner, program);
              }),
              HasSubstr("threads that ranks made by themselves"));
}

TEST(ExploreOnFibersTest, ARecordThatAnotherRankReadsIsDoubted) {
  const ExploreReport report = explore_lent([](RankContext& rank, LentToOthers& lent) {
    if (rank.rank() == 0) {
      const auto record = std::make_shared<CallRecord>();
      const auto pg = init_process_group(
          rank, {.backend = GroupOptions::Backend::kFake, .fake = FakeOptions{.record = record}, .ranks = {0}});
      lent.record.set(record);
      lent.lent.count_down();
      (void)pg->barrier();
    } else {
      lent.lent.wait();
      observe(rank, "calls", lent.record.get()->calls());
      lent.record.set(nullptr);
    }
  });
  EXPECT_FALSE(report.verified) << report.text();
  EXPECT_THAT(report.text(), HasSubstr("a CallRecord that several ranks use"));
}

TEST(ExploreOnFibersTest, AWorkOfARecordThatAnotherRankWaitsForIsDoubted) {
  const ExploreReport report = explore_lent([](RankContext& rank, LentToOthers& lent) {
    if (rank.rank() == 0) {
      const auto record = std::make_shared<CallRecord>();
      const auto pg = init_process_group(
          rank, {.backend = GroupOptions::Backend::kFake, .fake = FakeOptions{.record = record}, .ranks = {0}});
      std::vector<float> x(1000);
      lent.work.set(pg->all_reduce(x));
      lent.lent.count_down();
      rank.store().set("x", "");
      observe(rank, "now", absl::ToInt64Nanoseconds(record->now()));
    } else {
      lent.lent.wait();
      lent.work.get().wait();
      lent.work.set(Work());
    }
  });
  EXPECT_FALSE(report.verified) << report.text();
  EXPECT_THAT(report.text(), HasSubstr("a CallRecord that several ranks use"));
}

// The work is of a world that a rank ran and that has ended.
TEST(ExploreOnFibersTest, AWorkOfAWorldWithinThatRanksShareIsDoubted) {
  const ExploreReport report = explore_lent([](RankContext& rank, LentToOthers& lent) {
    if (rank.rank() == 0) {
      Work work;
      run_world({.world_size = 1, .engine = EngineKind::kFibers}, [&](RankContext& inner) {
        std::vector<float> x = {1};
        work = init_process_group(inner)->all_reduce(x);
        work.wait();
      });
      lent.work.set(work);
      lent.lent.count_down();
      rank.store().set("x", "");
      work = Work();
    } else {
      lent.lent.wait();
      Work mine = lent.work.get();
      lent.work.set(Work());
    }
  });
  EXPECT_FALSE(report.verified) << report.text();
  EXPECT_THAT(report.text(), HasSubstr("a handle of a work that another rank lets go"));
}

// In the free gear a rank's helper observes beside it.
TEST(ObserveTest, HelpersObserveBesideTheirRank) {
  run_world({.world_size = 1, .engine = EngineKind::kThreads}, [](RankContext& rank) {
    Latch end(1);
    rank.world().spawn_helper([&] {
      for (int i = 0; i < 2000; ++i) observe(rank, "helper", i);
      end.count_down();
    });
    for (int i = 0; i < 2000; ++i) observe(rank, "main", i);
    end.wait();
  }).throw_if_failed();
}

TEST(ExploreOnFibersTest, DrawsOfAnotherRanksRngAreDoubted) {
  const ExploreReport report = explore_lent([](RankContext& rank, LentToOthers& lent) {
    if (rank.rank() == 1) {
      Prng& rng = rank.world().context(0).rng();
      lent.lent.count_down();
      rank.yield();
      observe(rank, "drawn", static_cast<int64_t>(rng.next() >> 1));
    } else {
      lent.lent.wait();
      rank.yield();
      observe(rank, "drawn", static_cast<int64_t>(rank.rng().next() >> 1));
    }
  });
  EXPECT_FALSE(report.verified) << report.text();
  EXPECT_THAT(report.text(), HasSubstr("the rng() of another rank: draws tell of nothing"));
}

TEST(ExploreOnFibersTest, ProvesPlainCollectivesInOneRun) {
  const ExploreReport report = explore({.world = fibers(4), .strategies = {Strategy::exhaustive()}}, reduce_ten_times);
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_TRUE(report.verified);
  EXPECT_THAT(report.text(), HasSubstr("exhaustive: verified: all 1 schedule that can differ, in 1 run"));
  EXPECT_EQ(report.summary(), "verified: all 1 schedule that can differ, in 1 run");
}

void append_thrice(RankContext& rank) {
  for (int i = 0; i < 3; ++i) rank.store().append("log", absl::StrCat(rank.rank()));
}

// One line each: what was looked at, and why that is not all.
TEST(ExploreOnFibersTest, SaysInALineWhatItCameTo) {
  const auto summary = [](ExploreOptions options, absl::FunctionRef<void(RankContext&)> program) {
    options.world.engine = EngineKind::kFibers;
    return explore(options, program).summary();
  };
  EXPECT_THAT(summary({.strategies = {Strategy::exhaustive()}, .max_runs = 10}, append_thrice),
              MatchesRegex("no failure in 10 runs \\(not exhaustive: [0-9]+ schedules that can differ were run, at "
                           "least [0-9]+ more were not\\)"));
  EXPECT_EQ(summary({.strategies = {Strategy::random(), Strategy::pct(2)}, .max_runs = 8}, append_thrice),
            "no failure in 8 runs (not exhaustive: random, pct(2) only)");
  EXPECT_EQ(summary({.strategies = {}}, append_thrice),
            "no failure in 2 runs (not exhaustive: no strategy was asked "
            "for)");
  EXPECT_EQ(summary({.max_runs = 1}, append_thrice), "no failure in 1 run (not exhaustive: the default order only)");
  EXPECT_EQ(summary({.world = {.world_size = 2}}, [](RankContext& rank) { (void)rank.world().describe(); }),
            "no failure in 1000 runs (all 2 schedules that rankloom can see; not verified because of: "
            "World::describe(), which looks at all tasks)");
  const FaultPlan rare = FaultPlan::seeded(1, 1e-9);
  EXPECT_THAT(summary({.world = {.world_size = 2, .faults = rare}, .strategies = {Strategy::exhaustive()}},
                      [](RankContext& rank) { rank.store().add("n", 1); }),
              HasSubstr("not verified because of: faults that each run draws anew"));
  EXPECT_THAT(summary({.strategies = {Strategy::random()}}, bug("racy_counter").bug),
              MatchesRegex("a schedule that fails, found by .* in its run [0-9]+: .*the count is .*"));
  EXPECT_THAT(summary({.max_runs = 0}, append_thrice), StartsWith("explore: max_runs is 0, want 1 or more ["));
  setenv("RANKLOOM_SEED", "7", 1);
  EXPECT_EQ(summary({.world = {.world_size = 2}}, append_thrice),
            "no failure in 3 runs (not exhaustive: seeded:7 only, which RANKLOOM_SEED or its like asks for)");
  EXPECT_THAT(explore({.world = {.world_size = 2}}, append_thrice).text(),
              HasSubstr("seeded:7: 1 run, and no search: RANKLOOM_SEED or its like asks for this schedule"));
  unsetenv("RANKLOOM_SEED");
}

// A schedule without choices has no trace to repeat: the schedule repeats the run.
TEST(ExploreOnFibersTest, AFailureUnderFifoIsRunAgainUnderFifo) {
  setenv("RANKLOOM_SCHEDULE", "fifo", 1);
  const auto body = [](RankContext& rank) {
    if (rank.rank() == 2) {
      rank.store().set("b", "1");
      rank.store().set("a", "1");
      return;
    }
    rank.store().get(rank.rank() == 0 ? "a" : "b");
    if (rank.store().add("order", 1) == 1 && rank.rank() == 1) throw std::runtime_error("b first");
  };
  const ExploreReport report = explore({.world = fibers(3)}, body);
  unsetenv("RANKLOOM_SCHEDULE");
  ASSERT_TRUE(report.failure.has_value());
  EXPECT_THAT(report.failure->rerun, ContainsRegex("RANKLOOM_SCHEDULE='?(fifo|steered:)"));
  EXPECT_THAT(report.text(), AllOf(HasSubstr("b first"), Not(HasSubstr("the same trace"))));
  EXPECT_THAT(run_world(report.failure->world, body).text(), HasSubstr("rank 1 failed: b first"));
}

void waits_for_any_of_two(RankContext& rank) {
  auto pg = init_process_group(rank);
  std::vector<float> x = {0}, y = {0};
  std::vector<Work> works = {pg->all_reduce(x), pg->all_reduce(y)};
  wait_any(works);
  wait_all(works);
}

// A run has the same tasks whether a search records it or not: the works that wait_any() leaves behind have none.
TEST(ExploreOnFibersTest, ARunThatWaitsForAnyWorkIsRepeated) {
  const auto body = [](RankContext& rank) {
    waits_for_any_of_two(rank);
    if (rank.store().add("place", 1) == 1 && rank.rank() == 1) throw std::runtime_error("the last was first");
  };
  for (const Strategy& strategy : {Strategy::exhaustive(), Strategy::random(), Strategy::late_completion()}) {
    const ExploreReport report = explore({.world = fibers(2), .strategies = {strategy}}, body);
    ASSERT_TRUE(report.failure.has_value());
    EXPECT_THAT(report.failure->headline, StartsWith("rank 1 failed: the last was first"));
    EXPECT_THAT(report.failure->rerun, HasSubstr("RANKLOOM_SCHEDULE='steered:"));
    WorldOptions world = report.failure->world;
    world.schedule = Schedule::replay(report.failure->report.trace);
    EXPECT_THAT(run_world(world, body).text(), StartsWith("rank 1 failed: the last was first"));
  }
  EXPECT_THAT(explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, waits_for_any_of_two).summary(),
              StartsWith("verified: all 19 schedules that can differ"));
}

// A number that is none of a choice's: the first is taken, as without a switch.
TEST(ExploreOnFibersTest, ASwitchToAnAlternativeThatIsNotThereIsNone) {
  int64_t sender = -1;
  WorldOptions world = fibers(3);
  world.schedule = *Schedule::parse("steered:1:0#0=2,1#0=2,2#0=2");
  const RunReport report = run_world(world, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {rank.rank()}, y = {0};
    if (rank.rank() < 2) return pg->send(x, 2).wait();
    pg->recv_any(x).wait();
    sender = x[0];
    pg->recv_any(y).wait();
  });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_EQ(sender, 0);
}

// The trace of what was found is what repeats it, whatever the environment says of others.
TEST(ExploreOnFibersTest, AFailureIsFoundThoughTracesAreCut) {
  setenv("RANKLOOM_TRACE_LIMIT", "0", 1);
  const ExploreReport report = explore({.world = fibers(2)}, bug("racy_counter").bug);
  const ExploreReport by_two = explore({.world = fibers(2), .processes = 2}, bug("racy_counter").bug);
  unsetenv("RANKLOOM_TRACE_LIMIT");
  EXPECT_THAT(report.summary(), HasSubstr(": the count is "));
  EXPECT_THAT(by_two.summary(), HasSubstr(": the count is "));
}

// Numbers that differ have texts that differ, and those that do not are equal whatever stands beside their bits.
TEST(ExploreOnFibersTest, ObservedNumbersAreTheirOwn) {
  const auto text_of = [](auto of_first, auto of_second) {
    const ExploreReport report = explore({.world = fibers(2)}, [&](RankContext& rank) {
      observe(rank, "place", rank.store().add("arrived", 1) == 1 ? of_first : of_second);
    });
    return report.text();
  };
  EXPECT_THAT(text_of(int64_t{9007199254740992}, int64_t{9007199254740993}),
              AllOf(HasSubstr("9007199254740992"), HasSubstr("9007199254740993")));
  EXPECT_THAT(text_of(std::vector<uint64_t>{1, 18446744073709551615u}, std::vector<uint64_t>{1, 18446744073709551614u}),
              AllOf(HasSubstr("1 18446744073709551615"), HasSubstr("1 18446744073709551614")));
  EXPECT_THAT(text_of(0.1, 0.25), AllOf(HasSubstr("0.10000000000000001"), HasSubstr("0.25")));
  long double filled[2];
  std::memset(&filled[0], 0x11, sizeof(filled[0]));
  std::memset(&filled[1], 0x22, sizeof(filled[1]));
  for (long double& value : filled) {
    const long double third = 1.0L / 3;
    std::memcpy(&value, &third, std::numeric_limits<long double>::digits == 64 ? 10 : sizeof(third));
  }
  const auto observed = [&](int64_t place) { return std::span(&filled[place - 1], 1); };
  EXPECT_TRUE(explore({.world = fibers(2)}, [&](RankContext& rank) {
                if (rank.rank() == 0) observe(rank, "third", observed(rank.store().add("arrived", 1)));
                if (rank.rank() == 1) rank.store().add("arrived", 1);
              }).ok());
}

// A step of a thread beside the ranks has no column.
TEST(ExploreOnFibersTest, AStoryHasStepsOfNoRank) {
  for (const int ranks : {1, 6}) {
    const ExploreReport report = explore({.world = fibers(ranks)}, [](RankContext& rank) {
      std::thread([&] { rank.world().note("from beside"); }).join();
      for (int i = 0; i < 250; ++i) rank.store().set("a", "b");
      throw std::runtime_error("always");
    });
    ASSERT_TRUE(report.failure.has_value());
    EXPECT_THAT(report.failure->story, Not(HasSubstr("rank -1")));
  }
}

// As that of a run: whoever prints it adds the newline.
TEST(ExploreOnFibersTest, ItsTextEndsWithoutANewline) {
  const ExploreReport good = explore({.world = fibers(2)}, reduce_ten_times);
  EXPECT_THAT(good.text(), testing::EndsWith("verified: all 1 schedule that can differ, in 1 run"));
  for (const char* name : {"racy_counter", "order_dependent_sum", "wrong_root"}) {
    const ExploreReport bad = explore({.world = bug(name).world()}, bug(name).bug);
    ASSERT_TRUE(bad.failure.has_value());
    EXPECT_NE(bad.text().back(), '\n') << name;
    EXPECT_THAT(bad.text(), Not(HasSubstr("\n\n"))) << name;
  }
}

// A rank that waits for the second first may go on before the first is done.
TEST(ExploreOnFibersTest, ProvesAsynchronousCollectivesInARunOrTwo) {
  for (const bool in_order : {true, false}) {
    const ExploreReport report =
        explore({.world = fibers(3), .strategies = {Strategy::exhaustive()}}, [in_order](RankContext& rank) {
          auto pg = init_process_group(rank);
          std::vector<float> x = {1}, y(3), mine = {static_cast<float>(rank.rank())};
          Work first = pg->all_reduce(x);
          Work second = pg->all_gather_into_tensor(y, mine);
          (in_order ? first : second).wait();
          (in_order ? second : first).wait();
        });
    EXPECT_TRUE(report.verified) << report.text();
    EXPECT_EQ(report.shares[0].schedules, in_order ? 1 : 2);
  }
}

TEST(ExploreOnFibersTest, SaysHowFarItCame) {
  const ExploreReport report =
      explore({.world = fibers(4), .strategies = {Strategy::exhaustive()}, .max_runs = 10}, [](RankContext& rank) {
        for (int i = 0; i < 3; ++i) rank.store().append("log", absl::StrCat(rank.rank()));
      });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_FALSE(report.verified);
  EXPECT_THAT(report.text(),
              AllOf(HasSubstr("schedules that can differ, at least "), ContainsRegex(" more (was|were) not run")));
}

TEST(ExploreOnFibersTest, ReportsTheSmallestRunWithItsStory) {
  const ExploreReport report =
      explore({.world = fibers(4), .strategies = {Strategy::pct()}, .min_ranks = 2}, bug("racy_counter").bug);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  const ExploreReport::Failure& failure = *report.failure;
  EXPECT_EQ(failure.world.world_size, 2);
  EXPECT_EQ(failure.size(), 1) << report.text();
  EXPECT_THAT(failure.headline, HasSubstr("the count is 1, want 2"));
  EXPECT_THAT(failure.rerun, HasSubstr("RANKLOOM_RANKS=2 RANKLOOM_ENGINE=fibers RANKLOOM_SCHEDULE='steered:1:"));
  EXPECT_THAT(failure.story, AllOf(HasSubstr("step  rank 0"), HasSubstr("rank 1"), HasSubstr("store set count"),
                                   HasSubstr("store get count"), Not(HasSubstr("barrier seq 1 completes"))))
      << failure.story;
  EXPECT_THAT(report.text(), AllOf(HasSubstr("found by "), HasSubstr("2 ranks"), HasSubstr("run it again: ")));
}

TEST(ExploreOnFibersTest, WhatIsNotShrunkIsToldAsItWasFound) {
  for (const int most : {0, 1, 2}) {
    const ExploreReport report =
        explore({.world = fibers(3), .min_ranks = 2, .max_shrink_runs = most},
                [](RankContext& rank) { observe(rank, "place", rank.store().add("arrived", 1)); });
    ASSERT_FALSE(report.ok());
    const ExploreReport::Failure& failure = *report.failure;
    EXPECT_GT(failure.found_switches, 0);
    EXPECT_THAT(report.text(), Not(HasSubstr("the same trace")));
    if (most > 0) continue;
    EXPECT_EQ(failure.world.world_size, 3);
    EXPECT_EQ(failure.world.schedule.text(), failure.found.text());
    EXPECT_EQ(static_cast<int>(failure.world.schedule.switches().size()), failure.found_switches);
  }
}

TEST(ExploreOnFibersTest, WhatItFoundFailsAgainFromScheduleAndTrace) {
  const KnownBug& known = bug("wrong_root");
  const ExploreReport report = explore({.world = known.world()}, known.bug);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  WorldOptions again = report.failure->world;
  absl::StatusOr<Schedule> schedule = Schedule::parse(again.schedule.text());
  ASSERT_TRUE(schedule.ok());
  EXPECT_EQ(schedule->switches(), again.schedule.switches());
  again.schedule = *schedule;
  EXPECT_EQ(run_world(again, known.bug).cause, report.failure->report.cause);
  again.schedule = Schedule::replay(report.failure->report.trace);
  EXPECT_EQ(run_world(again, known.bug).cause, report.failure->report.cause);
}

// Which run or search of this process a rerun line is for; 1 for those that name none.
int number_of(const std::string& rerun) {
  const std::string name = "RANKLOOM_REPLAY_RUN=";
  return rerun.starts_with(name) ? std::stoi(rerun.substr(name.size())) : 1;
}
std::string without_number(const std::string& rerun) {
  return rerun.starts_with("RANKLOOM_REPLAY_RUN=") ? rerun.substr(rerun.find(' ') + 1) : rerun;
}

// The variables that a rerun line sets, while it lives.
class Rerun {
 public:
  // `number`: in place of the line's own.
  Rerun(const std::string& rerun, int number) {
    for (const absl::string_view word : absl::StrSplit(rerun, ' ')) {
      if (!absl::StartsWith(word, "RANKLOOM_")) break;
      const std::pair<std::string, std::string> set = absl::StrSplit(word, absl::MaxSplits('=', 1));
      set_to(set.first, absl::StrReplaceAll(set.second, {{"'", ""}}));
    }
    set_to("RANKLOOM_REPLAY_RUN", absl::StrCat(number));
  }
  ~Rerun() {
    for (const std::string& name : names_) unsetenv(name.c_str());
  }
  Rerun(const Rerun&) = delete;
  Rerun& operator=(const Rerun&) = delete;

 private:
  void set_to(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
    names_.push_back(name);
  }
  std::vector<std::string> names_;
};

// The bytes are right when the call is done in most orders; only in between are they others.
TEST(ExploreOnFibersTest, AnInputThatIsChangedAndPutBackIsFound) {
  const std::map<std::string, std::function<void(RankContext&)>> programs = {
      {"send",
       [](RankContext& rank) {
         auto pg = init_process_group(rank);
         std::vector<int32_t> x = {1};
         if (rank.rank() == 1) return pg->recv(x, 0).wait();
         Work work = pg->send(x, 1);
         x[0] = 9;
         rank.store().set("k", "");
         x[0] = 1;
         work.wait();
       }},
      {"reduce",
       [](RankContext& rank) {
         auto pg = init_process_group(rank);
         std::vector<int32_t> x = {1};
         Work work = pg->reduce(x, 0);
         if (rank.rank() == 1) {
           x[0] = 9;
           rank.store().set("k", "");
           x[0] = 1;
         }
         work.wait();
       }},
      {"a part of a block, in a helper", [](RankContext& rank) {
         auto pg = init_process_group(rank);
         std::vector<int32_t> x = {1, 2}, y(4);
         pg->start_coalescing();
         (void)pg->all_gather_into_tensor(y, x);
         Work work = pg->end_coalescing();
         Latch done(1);
         if (rank.rank() == 1) {
           rank.world().spawn_helper([&] {
             x[1] = 9;
             rank.store().set("k", "");
             x[1] = 2;
             done.count_down();
           });
           done.wait();
         }
         work.wait();
       }}};
  for (const auto& [name, program] : programs) {
    SCOPED_TRACE(name);
    const ExploreReport report = explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, program);
    EXPECT_FALSE(report.verified) << report.text();
    ASSERT_TRUE(report.failure.has_value()) << report.text();
    EXPECT_THAT(report.failure->report.text(), HasSubstr(": an input was changed or freed between the call ["));
  }
}

// A trace that cannot be followed is no failing schedule: nothing is shrunk, nor written where the trace lies.
TEST(ExploreOnFibersTest, ATraceOfAnotherProgramIsRefused) {
  const KnownBug& known = bug("racy_counter");
  const ExploreOptions options = {.world = fibers(4), .min_ranks = 2};
  const ExploreReport found = explore(options, known.bug);
  ASSERT_TRUE(found.failure.has_value()) << found.text();
  const TempDir dir;
  ASSERT_TRUE(found.failure->report.trace.save(dir.file("found.rltrace")).ok());
  const std::string command = absl::StrCat("RANKLOOM_REPLAY=", dir.file("found.rltrace"));
  const int next = number_of(found.failure->rerun) + 1;
  {
    const Rerun rerun(command, next);
    const ExploreReport again = explore(options, known.bug);
    EXPECT_FALSE(again.failure.has_value());
    EXPECT_THAT(std::string(again.error.message()),
                testing::MatchesRegex("explore: replay diverged at step [0-9]+: expected .*, found .*; the trace is of "
                                      "2 ranks, want RANKLOOM_RANKS=2 beside it"));
    EXPECT_FALSE(again.ok());
  }
  {
    const Rerun rerun(absl::StrCat("RANKLOOM_RANKS=2 ", command), next + 1);
    const ExploreReport again = explore(options, known.bug);
    ASSERT_TRUE(again.failure.has_value()) << again.text();
    EXPECT_EQ(again.failure->report.cause, found.failure->report.cause);
  }
  const Rerun rerun(absl::StrCat("RANKLOOM_RANKS=2 ", command), next + 2);
  const ExploreReport mended = explore(options, known.fix);
  EXPECT_FALSE(mended.failure.has_value());
  EXPECT_THAT(std::string(mended.error.message()),
              testing::EndsWith("; the program is another than the one that left the trace"));
}

// Runs and searches of a program count together.
TEST(ExploreOnFibersTest, TheRerunLineOfOneSearchLeavesTheOthersAsTheyAre) {
  const KnownBug& known = bug("racy_counter");
  const ExploreOptions options = {.world = fibers(4), .min_ranks = 2};
  explore(options, known.fix);
  const ExploreReport found = explore(options, known.bug);
  ASSERT_TRUE(found.failure.has_value()) << found.text();
  const int last = number_of(found.failure->rerun);
  ASSERT_GE(last, 2) << found.failure->rerun;
  EXPECT_THAT(found.failure->rerun,
              StartsWith(absl::StrCat("RANKLOOM_REPLAY_RUN=", last,
                                      " RANKLOOM_RANKS=2 RANKLOOM_ENGINE=fibers RANKLOOM_SCHEDULE='steered:1:")));
  EXPECT_THAT(found.text(), HasSubstr(absl::StrCat("\nrun it again: ", found.failure->rerun)));
  const WorldOptions plain = {.world_size = 3, .engine = EngineKind::kFibers, .schedule = Schedule::seeded(4)};
  std::string second_rerun;
  {
    // The same program once more: a search, a run, the search that is meant, and one behind it.
    const Rerun rerun(found.failure->rerun, last + 3);
    const ExploreReport before = explore({.world = fibers(2)}, known.fix);
    EXPECT_TRUE(before.verified) << before.text();
    EXPECT_EQ(run_world(plain, [](RankContext&) {}).schedule, "seeded:4");
    const ExploreReport again = explore(options, known.bug);
    ASSERT_TRUE(again.failure.has_value()) << again.text();
    EXPECT_EQ(again.failure->report.trace, found.failure->report.trace);
    EXPECT_EQ(again.failure->world.world_size, 2);
    EXPECT_EQ(again.shares.size(), 1u) << again.text();
    EXPECT_THAT(again.shares[0].strategy, StartsWith("steered:1:"));
    second_rerun = again.failure->rerun;
    const ExploreReport behind = explore({.world = fibers(2)}, known.fix);
    EXPECT_TRUE(behind.verified) << behind.text();
  }
  // The rerun line of a rerun has all that it takes.
  EXPECT_EQ(number_of(second_rerun), last + 3);
  EXPECT_EQ(without_number(second_rerun), without_number(found.failure->rerun));
}

// The rerun's world may be one whose default order fails, too: here that of two ranks.
TEST(ExploreOnFibersTest, ARerunIsOfTheFailureThatWasFoundThoughTheDefaultOrderFails) {
  const auto body = [](RankContext& rank) {
    const int64_t place = rank.store().add("k", 1);
    if (rank.rank() == 1 && place == 1) throw std::runtime_error("rank one overtook");
    if (rank.rank() == 1 && rank.world_size() == 2) throw std::runtime_error("never with two");
  };
  const ExploreOptions options{.world = fibers(3), .strategies = {Strategy::random()}, .min_ranks = 2};
  const ExploreReport found = explore(options, body);
  ASSERT_TRUE(found.failure.has_value());
  EXPECT_THAT(found.failure->headline, HasSubstr("rank one overtook"));
  EXPECT_THAT(found.failure->rerun, HasSubstr("RANKLOOM_RANKS=2 "));
  const Rerun again(found.failure->rerun, number_of(found.failure->rerun) + 1);
  const ExploreReport report = explore(options, body);
  ASSERT_TRUE(report.failure.has_value());
  EXPECT_THAT(report.failure->headline, HasSubstr("rank one overtook"));
}

// A trace fits one run, so without a number it is for the first of all.
TEST(ExploreOnFibersTest, ATraceIsReplayedByTheSearchThatItBelongsToOnly) {
  const KnownBug& known = bug("racy_counter");
  const ExploreReport found = explore({.world = fibers(2)}, known.bug);
  ASSERT_TRUE(found.failure.has_value()) << found.text();
  const TempDir folder;
  const std::string path = folder.file("of_one_search.rltrace");
  ASSERT_TRUE(found.failure->report.trace.save(path).ok());
  setenv("RANKLOOM_REPLAY", path.c_str(), 1);
  const ExploreReport other = explore({.world = fibers(2)}, known.fix);
  unsetenv("RANKLOOM_REPLAY");
  EXPECT_TRUE(other.verified) << other.text();
  const int behind = number_of(found.failure->rerun) + 2;
  const Rerun rerun(absl::StrCat("RANKLOOM_REPLAY=", path), behind);
  const ExploreReport again = explore({.world = fibers(2)}, known.bug);
  ASSERT_TRUE(again.failure.has_value()) << again.text();
  EXPECT_EQ(again.failure->report.trace, found.failure->report.trace);
  EXPECT_LE(again.runs, 3);
}

TEST(ExploreOnFibersTest, TheEnvironmentNamesOneRun) {
  const KnownBug& known = bug("racy_counter");
  const ExploreReport found = explore({.world = fibers(4), .min_ranks = 2}, known.bug);
  ASSERT_TRUE(found.failure.has_value()) << found.text();
  setenv("RANKLOOM_SCHEDULE", found.failure->world.schedule.text().c_str(), 1);
  setenv("RANKLOOM_RANKS", "2", 1);
  const ExploreReport again = explore({.world = fibers(4)}, known.bug);
  const ExploreReport fixed = explore({.world = fibers(4)}, known.fix);
  setenv("RANKLOOM_RANKS", "none", 1);
  const ExploreReport wrong = explore({.world = fibers(4)}, known.bug);
  unsetenv("RANKLOOM_RANKS");
  unsetenv("RANKLOOM_SCHEDULE");
  ASSERT_TRUE(again.failure.has_value()) << again.text();
  EXPECT_EQ(again.failure->headline, found.failure->headline);
  EXPECT_EQ(again.failure->world.world_size, 2);
  EXPECT_EQ(without_number(again.failure->rerun), without_number(found.failure->rerun));
  EXPECT_LE(again.runs, 3);
  EXPECT_TRUE(fixed.ok()) << fixed.text();
  EXPECT_EQ(wrong.text(), "RANKLOOM_RANKS is \"none\", want a number from 1");
}

TEST(ExploreOnFibersTest, ComparesWhatRanksObserve) {
  const ExploreReport report = explore({.world = bug("order_dependent_sum").world()}, bug("order_dependent_sum").bug);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.failure->headline, AllOf(HasSubstr("results differ between schedules: rank 0's \"sum\" is "),
                                              HasSubstr(" under steered:1")));
}

TEST(ExploreOnFibersTest, ComparesTheOrderInWhichGroupsAreMade) {
  // All ranks agree on an order, which depends on who was first.
  const auto made_as_it_comes = [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) rank.store().set("order", rank.store().check({"rank 1 is here"}) ? "ba" : "ab");
    if (rank.rank() == 1) rank.store().set("rank 1 is here", "");
    for (const char name : rank.store().get("order")) pg->new_group({.name = std::string(1, name)});
  };
  const ExploreOptions options = {.world = fibers(2), .strategies = {Strategy::exhaustive()}};
  const ExploreReport report = explore(options, made_as_it_comes);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_EQ(
      report.failure->headline,
      "results differ between schedules: the order in which rank 0's groups are made is 0, b, a here, and 0, a, b "
      "under steered:1");
  ExploreOptions whatever = options;
  whatever.checks.groups = false;
  EXPECT_TRUE(explore(whatever, made_as_it_comes).verified);
}

// Rank 0 makes its two in one order, though rank 2 may have asked for the second before.
TEST(ExploreOnFibersTest, AGroupThatAnotherRankAskedForBeforeIsInTheRanksOwnOrder) {
  for (const GroupOptions::Backend backend : {GroupOptions::Backend::kThreaded, GroupOptions::Backend::kFake}) {
    const auto overlapping = [backend](RankContext& rank) {
      const std::vector<std::vector<std::vector<int>>> of = {{{0, 1}, {0, 2}}, {{0, 1}, {1}}, {{2}, {0, 2}}};
      for (const std::vector<int>& ranks : of[static_cast<size_t>(rank.rank())]) {
        auto pg = init_process_group(rank, {.backend = backend, .ranks = ranks});
        pg->barrier().wait();
      }
    };
    const ExploreReport report = explore({.world = fibers(3), .strategies = {Strategy::exhaustive()}}, overlapping);
    EXPECT_TRUE(report.verified) << report.text();
    // Groups that a fake parent gives each rank that asks, and meshes.
    const auto of_a_parent = [backend](RankContext& rank) {
      auto pg = init_process_group(rank, {.backend = backend});
      for (const std::vector<int>& ranks : std::vector<std::vector<int>>{{0, 1}, {2}, {0, 2}, {1}}) {
        if (auto group = pg->new_group(ranks); group != nullptr) group->barrier().wait();
      }
    };
    const ExploreReport made = explore({.world = fibers(3), .strategies = {Strategy::random()}}, of_a_parent);
    EXPECT_TRUE(made.ok()) << made.text();
  }
}

// Ranks may make and call the group of all ranks, or not, as the schedule has it.
TEST(ExploreOnFibersTest, DoesNotCompareWhoUsesTheOnlyGroup) {
  const auto one_sends = [](RankContext& rank) {
    if (rank.rank() > 0 && rank.store().add("first", 1) != 1) return;
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    if (rank.rank() == 0) {
      pg->recv_any(x).wait();
    } else {
      pg->send(x, 0).wait();
    }
  };
  const ExploreReport report = explore({.world = fibers(3), .strategies = {Strategy::exhaustive()}}, one_sends);
  EXPECT_TRUE(report.verified) << report.text();
}

TEST(ExploreOnFibersTest, ComparesGroupsThatOneOfTwoRunsMakes) {
  const auto made_at_times = [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) rank.store().set("order", rank.store().check({"rank 1 is here"}) ? "a" : "");
    if (rank.rank() == 1) rank.store().set("rank 1 is here", "");
    for (const char name : rank.store().get("order")) pg->new_group({.name = std::string(1, name)});
  };
  const ExploreReport report = explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, made_at_times);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_EQ(report.failure->headline,
            "results differ between schedules: the order in which rank 0's groups are made is 0, a here, and 0 under "
            "steered:1");
}

// However many calls come behind the first ones, which records may have lost by then.
TEST(ExploreOnFibersTest, ComparesTheOrderInWhichGroupsAreCalled) {
  for (const int later : {0, 64}) {
    const auto called_as_it_comes = [later](RankContext& rank) {
      auto a = init_process_group(rank, {.name = "a"});
      auto b = init_process_group(rank, {.name = "b"});
      if (rank.rank() == 0) rank.store().set("first", rank.store().check({"rank 1 is here"}) ? "b" : "a");
      if (rank.rank() == 1) rank.store().set("rank 1 is here", "");
      const bool a_first = rank.store().get("first") == "a";
      (a_first ? a : b)->barrier().wait();
      (a_first ? b : a)->barrier().wait();
      for (int i = 0; i < later; ++i) a->barrier().wait();
    };
    const ExploreReport report =
        explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, called_as_it_comes);
    ASSERT_TRUE(report.failure.has_value()) << report.text();
    EXPECT_EQ(
        report.failure->headline,
        "results differ between schedules: the order in which rank 0 first calls its groups is b, a here, and a, b "
        "under steered:1");
  }
}

TEST(ExploreOnFibersTest, ComparesTheKeysInTheStore) {
  const auto leader = [](RankContext& rank) {
    if (rank.store().add("tickets", 1) == 1) rank.store().set(absl::StrCat("leader ", rank.rank()), "1");
  };
  const ExploreReport report = explore({.world = fibers(2)}, leader);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_EQ(
      report.failure->headline,
      "results differ between schedules: what the store holds at the end is leader 1, tickets here, and leader 0, "
      "tickets under steered:1");
  EXPECT_TRUE(explore({.world = fibers(2), .checks = {.store_keys = false}}, leader).ok());
}

TEST(ExploreOnFibersTest, ComparesTheValuesInTheStoreIfAsked) {
  const auto last = [](RankContext& rank) { rank.store().set("last", absl::StrCat(rank.rank())); };
  EXPECT_TRUE(explore({.world = fibers(2)}, last).verified);
  const ExploreReport report = explore({.world = fibers(2), .checks = {.store_values = true}}, last);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.failure->headline, HasSubstr("the value of key \"last\" is 0 here, and 1 under steered:1"));
}

TEST(ExploreOnFibersTest, ComparesTheValuesOfKeysThatBothRunsHave) {
  const ExploreOptions options{.world = fibers(2), .checks = {.store_keys = false, .store_values = true}};
  const auto different_keys = [](RankContext& rank) {
    if (rank.rank() == 0) {
      rank.store().set("a", "1");
    } else {
      rank.store().set(rank.store().check({"a"}) ? "b" : "c", "2");
    }
  };
  const ExploreReport alike = explore(options, different_keys);
  EXPECT_TRUE(alike.verified) << alike.text();
  const ExploreReport report = explore(options, [](RankContext& rank) {
    if (rank.rank() == 0) rank.store().set("a", "1");
    const bool second = rank.store().check({"a"});
    if (rank.rank() == 1 && !second) rank.store().set("0", "2");
    if (rank.rank() == 1) rank.store().set("last", second ? "after" : "before");
  });
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.failure->headline,
              HasSubstr("the value of key \"last\" is before here, and after under steered:1"));
}

TEST(ExploreOnFibersTest, FindsAProgramThatDoesNotRepeatItself) {
  int runs = 0;
  const ExploreReport report = explore({.world = fibers(2)}, [&runs](RankContext& rank) {
    if (rank.rank() == 0) ++runs;
    for (int i = 0; i < runs; ++i) rank.store().add("n", 1);
  });
  ASSERT_TRUE(report.failure.has_value());
  EXPECT_EQ(report.failure->headline, "two runs of one schedule differ: the program is not deterministic");
  EXPECT_THAT(report.text(), AllOf(HasSubstr("found by default order in its run 2"),
                                   HasSubstr("step 2: the first run ends, the other goes on: rank 0 at store add"),
                                   Not(HasSubstr("what happened"))));
}

TEST(ExploreOnFibersTest, VerifiesANotificationAtTheDeadlineOfItsWait) {
  struct Shared {
    Mutex mu;
    CondVar changed;
    bool set = false;
  };
  const WorldLocal<Shared> all("shared");
  std::set<bool> seen;
  const ExploreReport report = explore({.world = fibers(2)}, [&](RankContext& rank) {
    const std::shared_ptr<Shared> shared = all.get(rank.world());
    if (rank.rank() == 0) {
      const MutexLock lock(&shared->mu);
      seen.insert(shared->changed.wait_for(&shared->mu, absl::Milliseconds(5), [&] { return shared->set; }));
      return;
    }
    rank.sleep_for(absl::Milliseconds(5));
    const MutexLock lock(&shared->mu);
    shared->set = true;
    shared->changed.notify_one();
  });
  EXPECT_TRUE(report.verified) << report.text();
  EXPECT_THAT(seen, ElementsAre(false, true));
}

TEST(ExploreOnFibersTest, FindsAHookThatThrowsInOneSchedule) {
  const auto program = [](RankContext& rank) {
    if (rank.rank() == 0) {
      rank.world().at_end([&store = rank.store()] {
        if (store.get("last") == "1") throw std::runtime_error("rank 1 was last");
      });
    }
    rank.store().set("last", absl::StrCat(rank.rank()));
  };
  const ExploreOptions options = {.world = fibers(2), .checks = {.store_keys = false}};
  const ExploreReport report = explore(options, program);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.failure->headline, HasSubstr("a hook of at_end() threw: rank 1 was last"));
}

TEST(ExploreOnFibersTest, FindsAHookOfAHookThatThrows) {
  const ExploreReport report = explore({.world = fibers(1)}, [](RankContext& rank) {
    rank.world().at_end([&world = rank.world()] { world.at_end([] { throw std::runtime_error("inner"); }); });
  });
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.failure->headline, HasSubstr("a hook of at_end() threw: inner"));
}

TEST(ExploreOnFibersTest, HooksThatAlwaysLeaveAnotherEnd) {
  const RunReport report = run_world(fibers(1), [](RankContext& rank) {
    const auto again = std::make_shared<std::function<void()>>();
    *again = [&world = rank.world(), weak = std::weak_ptr(again)] {
      if (const auto hook = weak.lock(); hook != nullptr) world.at_end([hook] { (*hook)(); });
    };
    rank.world().at_end([again] { (*again)(); });
  });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_THAT(report.notes,
              ElementsAre("hooks of at_end() left others 100 times, one after the other; the last did not "
                          "run"));
}

TEST(ExploreOnFibersTest, FindsWhatIsLeftOver) {
  const auto unmatched = [](RankContext& rank) {
    auto pg = init_process_group(rank, {.eager_bytes = 64});
    std::vector<float> x = {1};
    if (rank.rank() == 0) pg->send(x, 1).wait();
  };
  const ExploreReport report = explore({.world = fibers(2)}, unmatched);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.failure->headline, StartsWith("left over: rank 0, group 0, send to rank 1: was never received"));
  EXPECT_TRUE(explore({.world = fibers(2), .checks = {.leaks = false}}, unmatched).ok());

  const ExploreReport dropped = explore({.world = fibers(2)}, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    if (rank.rank() != 0) return;
    [[maybe_unused]] const Work never_waited_for = pg->all_reduce(x);
  });
  ASSERT_TRUE(dropped.failure.has_value()) << dropped.text();
  EXPECT_THAT(dropped.failure->headline, StartsWith("left over: rank 0, group 0, all_reduce seq 1: "));

  const auto key = [](RankContext& rank) { rank.store().set("k", "v"); };
  const ExploreReport keys = explore({.world = fibers(1), .checks = {.keys_left = true}}, key);
  ASSERT_TRUE(keys.failure.has_value());
  EXPECT_EQ(keys.failure->headline, "left over: keys in the store: k");
}

TEST(ExploreOnFibersTest, AWarningIsNoLeftover) {
  WorldOptions world = fibers(2);
  world.warn_after = absl::Milliseconds(1);
  world.on_warning = [](const std::string&) {};
  const ExploreReport report = explore({.world = world, .strategies = {Strategy::exhaustive()}}, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    if (rank.rank() == 1) rank.sleep_for(absl::Milliseconds(3));
    pg->all_reduce(x).wait();
  });
  EXPECT_TRUE(report.ok()) << report.text();

  const ExploreReport noted = explore({.world = fibers(1)}, [](RankContext& rank) {
    rank.world().at_end([&world = rank.world()] { world.note("a file that nobody closed"); });
  });
  ASSERT_TRUE(noted.failure.has_value()) << noted.text();
  EXPECT_EQ(noted.failure->headline, "left over: a file that nobody closed");
}

// Data that ranks share behind their locks; each run makes its own.
struct Accounts {
  Mutex savings_mu{"savings"};
  Mutex cash_mu{"cash"};
  int savings ABSL_GUARDED_BY(savings_mu) = 10;
  int cash ABSL_GUARDED_BY(cash_mu) = 10;
};
std::shared_ptr<Accounts> accounts_of(RankContext& rank) {
  return state_of(rank).world().shared<Accounts>(
      "accounts", [] { return std::make_shared<Accounts>(); }, WorldState::Maker::kSame);
}

TEST(ExploreOnFibersTest, WhoTakesALockFirstIsAChoice) {
  const auto deposit = [](RankContext& rank, bool commutes) {
    const auto accounts = accounts_of(rank);
    auto pg = init_process_group(rank);
    {
      const MutexLock lock(&accounts->savings_mu);
      accounts->savings = rank.rank() == 0 || commutes ? accounts->savings + 5 : accounts->savings * 2;
    }
    pg->barrier().wait();
    const MutexLock lock(&accounts->savings_mu);
    observe(rank, "savings", accounts->savings);
  };
  const ExploreOptions options = {.world = fibers(2), .strategies = {Strategy::exhaustive()}};
  const ExploreReport report = explore(options, [&](RankContext& rank) { deposit(rank, false); });
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.failure->headline, HasSubstr("rank 0's \"savings\" is 25 here, and 30 under steered:1"));
  EXPECT_EQ(report.failure->size(), 1) << report.text();
  const ExploreReport same = explore(options, [&](RankContext& rank) { deposit(rank, true); });
  EXPECT_TRUE(same.verified) << same.text();
  EXPECT_EQ(same.shares[0].schedules, 4) << "two orders at each of two locks";
}

TEST(ExploreOnFibersTest, LocksOfDifferentRanksCommute) {
  const ExploreReport report =
      explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, [](RankContext& rank) {
        const auto accounts = accounts_of(rank);
        if (rank.rank() == 0) {
          const MutexLock lock(&accounts->savings_mu);
          ++accounts->savings;
        } else {
          const MutexLock lock(&accounts->cash_mu);
          --accounts->cash;
        }
      });
  EXPECT_TRUE(report.verified) << report.text();
  EXPECT_EQ(report.shares[0].schedules, 1);
}

TEST(ExploreOnFibersTest, SeesMemoryThatIsWatched) {
  const auto count = [](RankContext& rank, bool atomically) {
    const auto counter = state_of(rank).world().shared<Watched<int>>(
        "counter", [] { return std::make_shared<Watched<int>>(0); }, WorldState::Maker::kSame);
    auto pg = init_process_group(rank);
    if (atomically) {
      counter->update([](int& n) { ++n; });
    } else {
      counter->set(counter->get() + 1);
    }
    pg->barrier().wait();
    observe(rank, "count", counter->get());
  };
  const ExploreOptions options = {.world = fibers(2), .strategies = {Strategy::exhaustive()}};
  const ExploreReport lost = explore(options, [&](RankContext& rank) { count(rank, false); });
  ASSERT_TRUE(lost.failure.has_value()) << lost.text();
  EXPECT_THAT(lost.failure->headline, HasSubstr("rank 0's \"count\" is 1 here, and 2 under steered:1"));
  const ExploreReport good = explore(options, [&](RankContext& rank) { count(rank, true); });
  EXPECT_TRUE(good.verified) << good.text();
}

TEST(ExploreOnFibersTest, DoesNotVerifyAPoll) {
  const ExploreReport report =
      explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, [](RankContext& rank) {
        if (rank.rank() == 1) {
          while (!rank.store().check({"ready"})) rank.yield();
          return;
        }
        for (int i = 0; i < 8; ++i) rank.yield();
        rank.store().set("ready", "1");
      });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_FALSE(report.verified);
  EXPECT_THAT(report.text(), HasSubstr("that rankloom can see, in "));
  EXPECT_THAT(report.text(), HasSubstr(" (not seen: polls, beyond the first few)"));
}

TEST(ExploreOnFibersTest, DoesNotVerifyRanksThatUseNothing) {
  const auto shared = std::make_shared<int>(0);
  const ExploreReport report = explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}},
                                       [shared](RankContext& rank) { *shared = rank.rank(); });
  EXPECT_FALSE(report.verified);
  EXPECT_THAT(report.text(), HasSubstr("all 1 schedule that rankloom can see, in 1 run (not seen: whatever the ranks "
                                       "share: they use nothing of rankloom's)"));
}

TEST(ExploreOnFibersTest, DoesNotVerifyRanksThatDescribeTheirWorld) {
  const ExploreReport report =
      explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, [](RankContext& rank) {
        rank.store().add("n", 1);
        (void)rank.world().describe();
      });
  EXPECT_FALSE(report.verified);
  EXPECT_THAT(report.text(), HasSubstr(" (not seen: World::describe(), which looks at all tasks)"));
}

// Programs that look at what a search does not reorder.
struct Unseen {
  WorldOptions world;
  std::function<void(RankContext& rank)> run;
  const char* reason;
};

TEST(ExploreOnFibersTest, DoesNotVerifyWhatASearchDoesNotReorder) {
  WorldOptions at_once = fibers(2), unpoisoned = fibers(2);
  at_once.late_completion = false;
  unpoisoned.poison = false;
  const auto driver = std::make_shared<FakeDriver>();
  std::shared_ptr<Watched<int>> kept;
  const auto meet = [](RankContext& rank) { init_process_group(rank)->barrier().wait(); };
  const Unseen programs[] = {
      {at_once, meet, "late_completion is off: calls complete at once, by whoever comes last"},
      {unpoisoned, meet, "poison is off: a read of an output before wait() may not show"},
      // Rank 1's call may be done by rank 0 before all_reduce() returns there: its write is then none too early.
      {fibers(2),
       [](RankContext& rank) {
         auto pg = init_process_group(rank);
         std::vector<int32_t> x = {rank.rank()};
         Work work = pg->all_reduce(x);
         if (rank.rank() == 0) x[0] = 7;
         try {
           work.wait();
         } catch (const DistError& error) {
           if (error.kind() != ErrorKind::kInvalidArgument) throw;
         }
       },
       "buffers that ranks changed before their calls were done"},
      {fibers(2),
       [](RankContext& rank) {
         init_process_group(rank)->barrier().wait();
         (void)traces::flight_records(rank.world(), 1 - rank.rank());
       },
       "flight records, which tell of all calls so far"},
      {fibers(2), [](RankContext& rank) { (void)CallRecord::of_rank(rank); },
       "flight records, which tell of all calls so far"},
      {fibers(2),
       [](RankContext& rank) {
         init_process_group(rank)->barrier().wait();
         (void)rank.world().groups();
       },
       "World::groups(), which looks at all groups"},
      {fibers(2),
       [](RankContext& rank) {
         rank.store().add("n", 1);
         run_world({.world_size = 2, .engine = EngineKind::kThreads},
                   [](RankContext& inner) { init_process_group(inner)->barrier().wait(); });
       },
       "a world within a rank, in the free gear"},
      {fibers(2),
       [shared = std::make_shared<Watched<int>>(0)](RankContext& rank) {
         if (rank.rank() == 0) return shared->set(1);
         run_world(fibers(1), [shared](RankContext&) { (void)shared->get(); });
       },
       "objects that a world within a rank uses, which did not make them"},
      {fibers(2),
       [store = std::make_shared<HashStore>()](RankContext& rank) {
         if (rank.rank() == 0) return store->set("k", "v");
         run_world(fibers(1), [store](RankContext&) { (void)store->num_keys(); });
       },
       "objects that a world within a rank uses, which did not make them"},
      // Rank 1's wait may begin with either timeout, and pass after the key is set.
      {fibers(2),
       [](RankContext& rank) {
         if (rank.rank() == 0) {
           rank.store().set_timeout(absl::Milliseconds(1));
           return rank.store().set("k", "");
         }
         try {
           rank.store().wait({"k"});
         } catch (const DistError& error) {
           EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
         }
       },
       "a store's timeout that ranks set beside waits of others"},
      // Done at the first look, in the order that comes first.
      {fibers(2),
       [](RankContext& rank) {
         static const WorldLocal<Work> kHanded("handed");
         const std::shared_ptr<Work> handed = kHanded.get(rank.world());
         if (rank.rank() == 0) {
           Promise promise(&rank.world().scheduler(), 0);
           *handed = promise.work();
           rank.store().set("k", "");
           return promise.set_value();
         }
         rank.store().get("k");
         Work work = *handed;
         (void)run_world(fibers(1), [&](RankContext&) { (void)work.is_completed(); });
         work.wait();
       },
       "objects that a world within a rank uses, which did not make them"},
      {fibers(2),
       [](RankContext& rank) {
         rank.store().add("n", 1);
         run_world(fibers(1),
                   [](RankContext& inner) { const World::OutsideWaker waker = inner.world().outside_waker(); });
       },
       "something outside of the run that wakes ranks"},
      {fibers(2),
       [](RankContext& rank) {
         rank.store().add("n", 1);
         run_world(fibers(1), [](RankContext&) {
           run_world({.world_size = 1, .engine = EngineKind::kThreads}, [](RankContext&) {});
         });
       },
       "a world within a rank, in the free gear"},
      {fibers(2),
       [](RankContext& rank) {
         auto pg = init_process_group(rank);
         Work work = pg->barrier();
         if (rank.rank() == 1) {
           run_world(fibers(1), [&](RankContext&) {
             try {
               (void)work.exception();
             } catch (const DistError& error) {  // refused, where the work is not done
               EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
             }
           });
         }
         work.wait();
       },
       "objects that a world within a rank uses, which did not make them"},
      {fibers(2),
       [](RankContext& rank) {
         const World::OutsideWaker waker = rank.world().outside_waker();
         rank.store().add("n", 1);
       },
       "something outside of the run that wakes ranks"},
      {fibers(2),
       [&](RankContext& rank) {
         use_device(state_of(rank).world(), driver);
         const FakeDeviceStream stream(rank, *driver);  // a wait for it would take as many asks as the device likes
         rank.store().add("n", 1);
       },
       "a device"},
      {fibers(2),
       [&](RankContext& rank) {
         rank.store().append("log", absl::StrCat(rank.rank()));  // runs in two orders
         if (rank.rank() == 1) return;
         const auto now = std::make_shared<Watched<int>>(0);
         (void)std::exchange(kept, now)->get();
       },
       "objects that one run made and a later one uses"},
  };
  kept = std::make_shared<Watched<int>>(0);
  for (const Unseen& program : programs) {
    const ExploreReport report = explore({.world = program.world, .strategies = {Strategy::exhaustive()}}, program.run);
    EXPECT_FALSE(report.verified) << program.reason;
    EXPECT_FALSE(report.failure.has_value()) << report.text();
    EXPECT_THAT(report.text(), AllOf(HasSubstr(" (not seen: "), HasSubstr(program.reason)));
  }
}

TEST(ExploreOnFibersTest, VerifiesWorldsWithinRanksThatUseWhatTheyMade) {
  const ExploreReport report =
      explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, [](RankContext& rank) {
        rank.store().add("n", 1);
        run_world(fibers(2), [](RankContext& inner) {
          const WorldLocal<Mutex> mu("mu");
          const std::shared_ptr<Mutex> held = mu.get(inner.world());
          const MutexLock lock(held.get());
          const auto store = std::make_shared<HashStore>();
          Watched<int> n(0);
          n.set(static_cast<int>(store->add("m", 1)));
          EXPECT_EQ(n.get(), 1);
        });
      });
  EXPECT_TRUE(report.verified) << report.text();
}

TEST(ExploreOnFibersTest, FindsLocksInOppositeOrder) {
  const auto transfer = [](RankContext& rank, bool ordered) {
    const auto accounts = accounts_of(rank);
    if (rank.rank() == 0 || ordered) {
      const MutexLock savings(&accounts->savings_mu);
      const MutexLock cash(&accounts->cash_mu);
      ++accounts->savings;
      --accounts->cash;
    } else {
      const MutexLock cash(&accounts->cash_mu);
      const MutexLock savings(&accounts->savings_mu);
      --accounts->savings;
      ++accounts->cash;
    }
  };
  const ExploreOptions options = {.world = fibers(2), .strategies = {Strategy::exhaustive()}};
  const ExploreReport report = explore(options, [&](RankContext& rank) { transfer(rank, false); });
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.text(),
              AllOf(HasSubstr("rank 0 waits in mutex lock \"cash\" for rank 1, locked at explore_test.cc:"),
                    HasSubstr("cycle: rank 0 -> rank 1 -> rank 0")));
  EXPECT_EQ(report.failure->size(), 1) << report.text();
  EXPECT_TRUE(explore(options, [&](RankContext& rank) { transfer(rank, true); }).verified);
}

TEST(ExploreOnFibersTest, EndsARunThatNeverEnds) {
  const ExploreReport report = explore({.world = fibers(2), .max_steps = 1000}, [](RankContext& rank) {
    while (!rank.store().check({"never"})) {
    }
  });
  ASSERT_TRUE(report.failure.has_value());
  EXPECT_THAT(report.text(), AllOf(HasSubstr("the run did not end within 1000 scheduling points"),
                                   HasSubstr("rank 0 is at store check never"), HasSubstr("rank 1 is at store check")));
}

// No number of points, but the search's time, bounds a run that asks and asks.
TEST(ExploreOnFibersTest, EndsARunThatAsksForAWorkWithoutEnd) {
  const absl::Time begun = absl::Now();
  const ExploreReport report =
      explore({.world = fibers(2), .max_time = absl::Milliseconds(100)}, [](RankContext& rank) {
        auto pg = init_process_group(rank);
        if (rank.rank() == 1) return;
        std::vector<float> x = {1, 2};
        const Work work = pg->all_reduce(x);
        while (!work.is_completed()) {
        }
      });
  ASSERT_TRUE(report.failure.has_value());
  EXPECT_THAT(report.text(),
              AllOf(HasSubstr("Deadlock: the run did not end within 200000 scheduling points\n"
                              "  rank 0 waits in is_completed seq 1 all_reduce for rank 1 (returned) [group 0, "
                              "explore_test.cc:"),
                    HasSubstr("\n  last calls of rank 0: all_reduce seq 1 (scheduled) [group 0, explore_test.cc:")));
  EXPECT_LT(absl::Now() - begun, absl::Seconds(60));
}

TEST(ExploreOnFibersTest, KeepsToItsBudgetAndTellsOfItsProgress) {
  const ExploreReport runs = explore(
      {.world = fibers(2), .strategies = {Strategy::random(), Strategy::starve()}, .max_runs = 40}, reduce_ten_times);
  EXPECT_EQ(runs.runs, 40);
  EXPECT_FALSE(runs.verified);
  EXPECT_THAT(runs.text(),
              AllOf(HasSubstr("explored 40 runs in "), HasSubstr("random: 19 runs"), HasSubstr("starve: 19 runs")));

  std::vector<ExploreOptions::Progress> told;
  const ExploreReport time = explore({.world = fibers(2),
                                      .strategies = {Strategy::random()},
                                      .max_runs = int64_t{1} << 40,
                                      .max_time = absl::Milliseconds(100),
                                      .progress = [&told](const ExploreOptions::Progress& p) { told.push_back(p); }},
                                     reduce_ten_times);
  EXPECT_TRUE(time.ok());
  EXPECT_GE(time.elapsed, absl::Milliseconds(100));
  ASSERT_THAT(told.size(), Ge(1u));
  EXPECT_EQ(told.back().runs, time.runs);
}

TEST(ExploreOnFibersTest, SearchesInSeveralProcesses) {
  const auto rare = [](RankContext& rank) {
    for (int i = 0; i < 8; ++i) rank.yield();
    rank.store().append("order", absl::StrCat(rank.rank()));
    if (rank.rank() == 0 && rank.store().get("order") == "3210") throw std::runtime_error("backwards");
  };
  const ExploreReport report = explore({.world = fibers(4),
                                        .strategies = {Strategy::random()},
                                        .max_runs = 20'000,
                                        .processes = 3,
                                        .checks = {.store_values = false}},
                                       rare);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.failure->headline, HasSubstr("backwards"));

  const ExploreReport none = explore(
      {.world = fibers(2), .strategies = {Strategy::random()}, .max_runs = 300, .processes = 2}, reduce_ten_times);
  EXPECT_TRUE(none.ok()) << none.text();
  EXPECT_THAT(none.runs, Ge(250));
}

TEST(ExploreOnFibersTest, NamesTheRunInWhichAProcessBesideItDied) {
  const pid_t here = getpid();
  const ExploreReport report =
      explore({.world = fibers(2), .strategies = {Strategy::random()}, .max_runs = 2'000, .processes = 2},
              [&](RankContext& rank) {
                rank.yield();
                if (getpid() != here && rank.store().add("came", 1) == 1 && rank.rank() == 1) _exit(7);
              });
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_EQ(report.failure->headline,
            "the process that made this run ended with exit code 7; what it printed stands above");
  EXPECT_THAT(report.failure->rerun, HasSubstr("RANKLOOM_SEED="));
  EXPECT_EQ(report.failure->found.kind(), Schedule::Kind::kSeeded);
  EXPECT_THAT(report.text(), HasSubstr("the process that made this run ended with exit code 7"));

  const ExploreReport crashed = explore(
      {.world = fibers(2), .strategies = {Strategy::random()}, .max_runs = 2'000, .processes = 3}, [&](RankContext&) {
        if (getpid() != here) std::raise(SIGKILL);
      });
  ASSERT_TRUE(crashed.failure.has_value()) << crashed.text();
  EXPECT_THAT(crashed.failure->headline, HasSubstr("ended with signal 9 (Killed)"));
}

TEST(ExploreOnThreadsTest, RunsUnderTheBaton) {
  WorldOptions threads = bug("racy_counter").world();
  threads.engine = EngineKind::kThreads;
  const ExploreReport report =
      explore({.world = threads, .strategies = {Strategy::exhaustive()}, .max_runs = 200}, bug("racy_counter").bug);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_EQ(report.failure->size(), 1);
  EXPECT_TRUE(explore({.world = threads, .strategies = {Strategy::exhaustive()}}, bug("racy_counter").fix).verified);
}

TEST(ExploreOnFibersTest, RefusesTheFreeGear) {
  setenv("RANKLOOM_SCHEDULE", "free", 1);
  const ExploreReport report = explore({.world = fibers(2)}, reduce_ten_times);
  unsetenv("RANKLOOM_SCHEDULE");
  EXPECT_EQ(report.text(), "explore: the schedule is free, want one that repeats itself");
}

TEST(ExploreOnFibersTest, LateCompletionIsFoundByWhoeverAsksTooEarly) {
  // A peer's call is done in some schedules when this rank looks, and not in others.
  const auto looks = [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    Work work = pg->all_reduce(x);
    rank.store().add("n", 0);
    const bool done = work.is_completed();
    work.wait();
    observe(rank, "done", done ? 1 : 0);
  };
  const ExploreReport report = explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, looks);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.failure->headline, HasSubstr("\"done\" is 1 here, and 0 under steered:1"));
}

TEST(ExploreOnFibersTest, ACallMayBeDoneAtOnce) {
  // Between the call and the question there is no other act of the rank.
  const auto looks = [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    Work work = pg->all_reduce(x);
    const bool done = work.is_completed();
    work.wait();
    observe(rank, "done", done ? 1 : 0);
  };
  const ExploreReport report = explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, looks);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.failure->headline, HasSubstr("rank "));
  EXPECT_THAT(report.failure->headline, HasSubstr("'s \"done\" is "));
}

TEST(ExploreOnFibersTest, ACallbackOfACallThatIsDoneAtOnceRunsAtOnce) {
  const auto asks = [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    int called = 0;
    Work work = pg->all_reduce(x);
    work.then([&called](const absl::Status&) { ++called; });
    observe(rank, "called", called);
    work.wait();
    while (called == 0) rank.yield();
  };
  const ExploreReport report = explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, asks);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.failure->headline, HasSubstr("\"called\" is "));
}

TEST(ExploreOnFibersTest, ADroppedCallThatIsDoneAtOnceLetsItsOwnersGoAtOnce) {
  const auto drops = [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const auto owner = std::make_shared<std::vector<float>>(1, 1.0F);
    { const Work work = pg->all_reduce(*owner, ReduceOp::kSum, {.keep_alive = owner}); }
    observe(rank, "owners", static_cast<int64_t>(owner.use_count()));
    pg->barrier().wait();
  };
  const ExploreReport report = explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, drops);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.failure->headline, HasSubstr("\"owners\" is "));
}

TEST(ExploreOnThreadsTest, DoesNotVerifyStoreCallsOfThreadsThatRanksMade) {
  WorldOptions threads = fibers(2);
  threads.engine = EngineKind::kThreads;
  const ExploreReport report =
      explore({.world = threads, .strategies = {Strategy::exhaustive()}}, [](RankContext& rank) {
        rank.store().add("ranks", 1);
        std::thread beside([&rank] { rank.store().add("threads", 1); });
        beside.join();
      });
  EXPECT_FALSE(report.verified);
  EXPECT_THAT(report.text(), HasSubstr("threads that ranks made by themselves"));
}

// Also of a call that is done, whose lock is held while the record is told.
TEST(ExploreOnFibersTest, AThreadThatAsksForAnEndIsTold) {
  for (const bool promises : {false, true}) {
    const ExploreReport report =
        explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, [promises](RankContext& rank) {
          auto pg = init_process_group(rank);
          Work work = pg->barrier();
          work.wait();
          Promise promise(&rank.world().scheduler(), rank.rank());
          std::thread([&] { promises ? promise.set_value() : void(work.is_success()); }).join();
        });
    EXPECT_THAT(report.text(), HasSubstr("threads that ranks made by themselves")) << promises;
  }
}

TEST(ExploreOnFibersTest, AThreadThatAbortsTheWorldOfASearchIsTold) {
  const ExploreReport report =
      explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, [](RankContext& rank) {
        if (rank.rank() == 0) std::thread([&] { rank.world().abort("enough"); }).join();
        rank.store().set("k", "");
      });
  EXPECT_FALSE(report.ok());
  EXPECT_FALSE(report.verified);
  EXPECT_THAT(report.text(), HasSubstr("a thread of no rank aborted the world: enough"));
}

// No thread at all: the end of a run completes what it left, outside of any task.
TEST(ExploreOnFibersTest, ACallThatIsLeftWithItsTensorsEndsWithTheRun) {
  const ExploreReport report =
      explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, [](RankContext& rank) {
        auto pg = init_process_group(rank);
        const auto x = std::make_shared<std::vector<float>>(1);
        if (rank.rank() == 0) (void)pg->recv(*x, 1, 0, {.keep_alive = x});
      });
  EXPECT_THAT(report.text(), HasSubstr("recv from rank 1"));
}

TEST(ExploreOnFibersTest, AThreadThatAsksOrLetsGoOfWorksIsTold) {
  for (const bool drops : {false, true}) {
    const ExploreReport report =
        explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, [drops](RankContext& rank) {
          auto pg = init_process_group(rank);
          Work work = pg->barrier();
          if (rank.rank() == 0) {
            std::thread([copy = drops ? work : Work(), &work, drops]() mutable {
              drops ? void(copy = Work()) : void(work.is_completed());
            }).join();
          }
          work.wait();
        });
    EXPECT_THAT(report.text(), HasSubstr("threads that ranks made by themselves")) << drops;
  }
}

// Objects of users and stores of no world belong to no run: any run of the process may be theirs.
TEST(ExploreOpenCallsTest, ANaNIsTheProgramsOwnWhereOutputsAreNotPoisoned) {
  for (const bool poison : {false, true}) {
    WorldOptions world = fibers(2);
    world.poison = poison;
    const ExploreReport report =
        explore({.world = world, .strategies = {Strategy::exhaustive()}}, [](RankContext& rank) {
          const bool first = rank.store().add("place", 1) == 1;
          observe(rank, "value", first ? std::numeric_limits<double>::quiet_NaN() : 1.0);
        });
    ASSERT_TRUE(report.failure.has_value()) << report.text();
    EXPECT_EQ(absl::StrContains(report.text(), "a value was read before its wait(), perhaps"), poison) << report.text();
  }
}

TEST(ExploreTest, DoesNotVerifyWhatThreadsThatRanksMadeDoWithObjectsOfUsers) {
  using Use = std::function<std::function<void()>(RankContext&)>;
  const std::pair<const char*, Use> uses[] = {
      {"Watched",
       [](RankContext& rank) {
         return [value = WorldLocal<Watched<int>>("value").get(rank.world())] { value->set(value->get() + 1); };
       }},
      {"Latch",
       [](RankContext& rank) {
         const auto latch = WorldLocal<Latch>("latch").get(rank.world(), [] { return std::make_shared<Latch>(2); });
         return [latch] {
           latch->count_down();
           (void)latch->try_wait();
         };
       }},
      {"Mutex",
       [](RankContext& rank) {
         const auto mutex = WorldLocal<Mutex>("mutex").get(rank.world());
         return [mutex] { const MutexLock lock(mutex.get()); };
       }},
      {"HashStore",
       [](RankContext& rank) {
         return [store = WorldLocal<HashStore>("store").get(rank.world())] { store->add("sum", 1); };
       }},
  };
  for (const EngineKind engine : {EngineKind::kFibers, EngineKind::kThreads}) {
    for (const auto& [what, use] : uses) {
      WorldOptions world = fibers(2);
      world.engine = engine;
      const auto program = [&use = use](bool own_thread) {
        return [&use, own_thread](RankContext& rank) {
          const std::function<void()> used = use(rank);
          if (rank.rank() == 1 || !own_thread) return used();
          std::thread beside(used);
          beside.join();
        };
      };
      ExploreOptions options = {.world = world, .strategies = {Strategy::exhaustive()}};
      options.checks.results = false;
      EXPECT_TRUE(explore(options, program(false)).verified) << what;
      const ExploreReport report = explore(options, program(true));
      EXPECT_FALSE(report.verified) << what;
      EXPECT_THAT(report.text(), HasSubstr("threads that ranks made by themselves")) << what;
    }
  }
}

TEST(ExploreOnFibersTest, APollAloneEndsAndIsNotVerified) {
  const auto polls = [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    if (rank.rank() == 1) rank.store().wait({"go"});
    Work work = pg->all_reduce(x);
    if (rank.rank() == 0) rank.store().set("go", "");
    while (!work.is_completed()) {
    }
  };
  const ExploreReport report = explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, polls);
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_FALSE(report.verified);
  EXPECT_THAT(report.text(), HasSubstr(" (not seen: polls, beyond the first few)"));
}

// Time passes for a loop that acts between its questions, and for one that only acts, after a bound that no search
// knows.
TEST(ExploreOnFibersTest, ALoopForWhichTimePassesAtLastIsNotVerified) {
  for (const bool asks : {false, true}) {
    const ExploreReport report =
        explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, [asks](RankContext& rank) {
          if (rank.rank() == 0) return rank.sleep_for(absl::Milliseconds(1));
          while (rank.now() < absl::Milliseconds(1)) {
            rank.store().set("mine", "x");
            if (asks) {
              EXPECT_FALSE(rank.store().check({"never"}));
            }
          }
        });
    EXPECT_TRUE(report.ok()) << report.text();
    EXPECT_FALSE(report.verified);
    EXPECT_THAT(report.text(),
                HasSubstr("(not seen: tasks that ask or act again and again: time passes for them at last)"));
  }
}

TEST(ExploreOnFibersTest, TheTimeoutOfAStoreIsAPieceOfItsState) {
  const auto looks = [](RankContext& rank) {
    if (rank.rank() == 0) return rank.store().set_timeout(absl::Milliseconds(7));
    observe(rank, "timeout", absl::ToInt64Milliseconds(rank.store().timeout()));
  };
  const ExploreReport report = explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, looks);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.failure->headline, HasSubstr("\"timeout\" is "));
}

TEST(NoFailureOnFibersTest, CountsFailedAssertionsOfRanks) {
  const auto body = [](RankContext& rank) {
    const int64_t place = rank.store().add("place", 1);
    EXPECT_EQ(place, rank.rank() + 1) << "not in order";
  };
  testing::TestPartResultArray failures;
  const int line = __LINE__ + 4;
  {
    testing::ScopedFakeTestPartResultReporter kept(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    EXPECT_FALSE(expect_no_failure_in_schedules({.world = fibers(2)}, body));
  }
  ASSERT_EQ(failures.size(), 1);
  EXPECT_EQ(failures.GetTestPartResult(0).line_number(), line);
  EXPECT_THAT(
      failures.GetTestPartResult(0).message(),
      AllOf(HasSubstr("explore_test.cc:"), HasSubstr("not in order"), HasSubstr(", 1 switch from the default order"),
            HasSubstr("trace: "), HasSubstr("--gtest_filter=NoFailureOnFibersTest.CountsFailedAssertionsOfRanks")));
  EXPECT_TRUE(expect_no_failure_in_schedules({.world = fibers(3)},
                                             [](RankContext& rank) { EXPECT_GE(rank.store().add("place", 1), 1); }));
}

TEST(NoFailureOnFibersTest, EachFailedSearchOfATestHasATraceOfItsOwn) {
  testing::TestPartResultArray failures;
  {
    testing::ScopedFakeTestPartResultReporter kept(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    for (const int ranks : {2, 3}) {
      expect_no_failure_in_schedules({.world = fibers(ranks), .min_ranks = ranks}, [](RankContext& rank) {
        EXPECT_EQ(rank.store().add("place", 1), rank.rank() + 1);
      });
    }
  }
  ASSERT_EQ(failures.size(), 2);
  for (const int i : {0, 1}) {
    const std::string message = failures.GetTestPartResult(i).message();
    const size_t at = message.find("\ntrace: ") + sizeof "\ntrace: " - 1;
    const std::string path = message.substr(at, message.find('\n', at) - at);
    const absl::StatusOr<Trace> trace = Trace::load(path);
    ASSERT_TRUE(trace.ok()) << message;
    EXPECT_THAT(message, HasSubstr(absl::StrCat(": ", 2 + i, " ranks, 1 switch "))) << path;
    EXPECT_THAT(path, MatchesRegex(i == 0 ? ".*OfItsOwn.rltrace" : ".*OfItsOwn.search2.rltrace"));
  }
}

TEST(NoFailureOnFibersTest, KeepsTheLineOfEachCall) {
  testing::TestPartResultArray failures;
  int first = 0;
  {
    testing::ScopedFakeTestPartResultReporter kept(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    expect_no_failure_in_schedules({.world = fibers(2)}, [&](RankContext& rank) {
      first = __LINE__ + 1;
      rank.store().set(rank.rank() == 0 ? "a" : "b", "1");
      const bool both = rank.store().check({"a", "b"});
      EXPECT_TRUE(both);
    });
  }
  ASSERT_EQ(failures.size(), 1);
  const std::string text = failures.GetTestPartResult(0).message();
  EXPECT_THAT(text, HasSubstr(absl::StrCat("explore_test.cc:", first)));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("explore_test.cc:", first + 1)));
}

TEST(NoFailureOnFibersTest, ASkippedRunIsGood) {
  EXPECT_TRUE(expect_no_failure_in_schedules({.world = fibers(2), .max_runs = 20}, [](RankContext& rank) {
    if (rank.rank() == 1) GTEST_SKIP() << "not here";
  }));
}

TEST(NoFailureOnFibersTest, NothingIsAskedOfRunsThatAreSkipped) {
  ExploreOptions options{.world = fibers(2), .max_runs = 50};
  const auto body = [](RankContext& rank) {
    rank.store().add("n", 1);
    if (rank.rank() == 1) GTEST_SKIP() << "not here";
    rank.store().set("a", "");
    rank.store().set("b", "");
  };
  EXPECT_TRUE(expect_no_failure_in_schedules(options, body));
  options.checks.keys_left = true;
  EXPECT_TRUE(expect_no_failure_in_schedules(options, body));
}

struct CountIsOne {
  int64_t count = 1;
  ~CountIsOne() { EXPECT_EQ(count, 1) << "at the end of the world"; }
};

TEST(NoFailureOnFibersTest, AnAssertionOfAnObjectThatEndsWithTheWorldCounts) {
  static const WorldLocal<CountIsOne> object("checked at its end");
  testing::TestPartResultArray failures;
  {
    testing::ScopedFakeTestPartResultReporter kept(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    expect_no_failure_in_schedules({.world = fibers(2)}, [](RankContext& rank) {
      const std::shared_ptr<CountIsOne> mine = object.get(rank.world());
      const int64_t place = rank.store().add("k", 1);
      if (rank.rank() == 0) mine->count = place;
    });
  }
  ASSERT_EQ(failures.size(), 1);
  const std::string text = failures.GetTestPartResult(0).message();
  EXPECT_THAT(text, AllOf(HasSubstr("at the end of the world"), HasSubstr("run it again: ")));
}

// Of a run that failed, objects are as the failure left them.
TEST(NoFailureOnFibersTest, AnAssertionAtTheEndOfAFailedRunIsNotItsFailure) {
  static const WorldLocal<CountIsOne> object("checked at its end");
  std::optional<ExploreReport> report;
  testing::TestPartResultArray failures;
  {
    testing::ScopedFakeTestPartResultReporter kept(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    report = explore_assertions({.world = fibers(2)}, [](RankContext& rank) {
      object.get(rank.world())->count = 2;
      if (rank.rank() == 0) rank.store().get("never");
    });
  }
  EXPECT_EQ(failures.size(), 0);
  ASSERT_TRUE(report->failure.has_value());
  EXPECT_THAT(report->failure->headline, StartsWith("Deadlock: no rank can move"));
  EXPECT_THAT(report->text(), Not(HasSubstr("at the end of the world")));
}

// The rank's own run repeats such a search; a command would name the schedule to all of the program.
TEST(ExploreOnFibersTest, ASearchWithinARankHasNoCommandOfItsOwn) {
  std::string text, rerun = "none was found";
  const RunReport report = run_world(fibers(1), [&](RankContext&) {
    const ExploreReport inner = explore({.world = fibers(2)}, bug("racy_counter").bug);
    if (inner.failure.has_value()) rerun = inner.failure->rerun;
    text = inner.text();
  });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_EQ(rerun, "");
  EXPECT_THAT(text, AllOf(HasSubstr("the count is"), Not(HasSubstr("run it again"))));
}

// Runs that go on leave another store behind than one that was skipped.
TEST(NoFailureOnFibersTest, ARunThatIsSkippedUnderSomeSchedulesIsGood) {
  EXPECT_TRUE(expect_no_failure_in_schedules({.world = fibers(2)}, [](RankContext& rank) {
    const int64_t place = rank.store().add("n", 1);
    if (rank.rank() == 1 && place == 1) GTEST_SKIP() << "not in this order";
    if (rank.rank() == 0) rank.store().set("done", "");
  }));
}

TEST(NoFailureOnFibersTest, ATraceThatIsReplayedStaysAsItWas) {
  const auto body = [](RankContext& rank) {
    if (rank.store().add("n", 1) == 1 && rank.rank() == 1) throw std::runtime_error("order");
  };
  const ExploreReport found =
      explore({.world = fibers(2), .strategies = {Strategy::random()}, .max_shrink_runs = 0}, body);
  ASSERT_TRUE(found.failure.has_value());
  const std::string path =
      testing::TempDir() + program_name() + ".NoFailureOnFibersTest.ATraceThatIsReplayedStaysAsItWas.rltrace";
  ASSERT_TRUE(found.failure->report.trace.save(path).ok());
  const auto bytes = [&path] {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string before = bytes();
  const auto written = std::filesystem::last_write_time(path) - std::chrono::hours(1);
  std::filesystem::last_write_time(path, written);
  setenv("RANKLOOM_REPLAY", path.c_str(), 1);
  testing::TestPartResultArray failures;
  {
    testing::ScopedFakeTestPartResultReporter kept(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    expect_no_failure_in_schedules({.world = fibers(2)}, body);
  }
  unsetenv("RANKLOOM_REPLAY");
  ASSERT_EQ(failures.size(), 1);
  EXPECT_THAT(failures.GetTestPartResult(0).message(), HasSubstr(absl::StrCat("trace: ", path)));
  EXPECT_EQ(bytes(), before);
  EXPECT_EQ(std::filesystem::last_write_time(path), written);
}

// Rank 1 reads its output before wait(): what it sees differs between schedules.
TEST(ExploreOpenCallsTest, AResultThatDiffersEndsWithTheCallsThatWereOpen) {
  const ExploreOptions options = {.world = {.world_size = 2, .engine = EngineKind::kFibers},
                                  .strategies = {Strategy::random()}};
  const ExploreReport report = explore(options, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(2, static_cast<float>(rank.rank() + 1));
    Work work = pg->all_reduce(x);
    rank.yield();
    if (rank.rank() == 1) observe(rank, "early", x[0]);
    work.wait();
    observe(rank, "late", x[0]);
  });
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.text(),
              testing::ContainsRegex("results differ between schedules: rank 1's \"early\" is [^\n]*\n"
                                     "outputs hold NaN or 0xEB until their call completes; rank 1 had all_reduce seq 1 "
                                     "\\[explore_test.cc:[0-9]+\\] open\n"));
}

TEST(ExploreOpenCallsTest, AResultThatDiffersForAnotherReasonSaysNothingOfThem) {
  const ExploreOptions options = {.world = {.world_size = 2, .engine = EngineKind::kFibers}};
  const ExploreReport report =
      explore(options, [](RankContext& rank) { observe(rank, "place", rank.store().add("arrived", 1)); });
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.text(), testing::Not(HasSubstr("until their call completes")));
}

TEST(ExploreOnFibersTest, AnObservationOfSomeSchedulesOnlyIsAFailure) {
  const ExploreReport report =
      explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}}, [](RankContext& rank) {
        if (rank.store().add("arrived", 1) == 2) observe(rank, "last", 1);
      });
  ASSERT_TRUE(report.failure.has_value());
  EXPECT_THAT(report.failure->headline,
              AllOf(StartsWith("results differ between schedules: observation 0 of rank "), HasSubstr("\"last\"")));
}

TEST(ExploreOnFibersTest, ProgressTellsOfSchedulesAndOfOpenChoices) {
  std::vector<ExploreOptions::Progress> told;
  const ExploreReport report =
      explore({.world = fibers(4),
               .strategies = {Strategy::exhaustive()},
               .max_runs = 10,
               .progress = [&](const ExploreOptions::Progress& progress) { told.push_back(progress); }},
              append_thrice);
  ASSERT_FALSE(told.empty());
  EXPECT_GT(report.shares[0].open, 0);
  EXPECT_EQ(told.back().open, report.shares[0].open);
  EXPECT_EQ(told.back().schedules, report.shares[0].schedules);
  EXPECT_EQ(told.back().strategy, "exhaustive");
}

TEST(ExploreOnFibersTest, TheFirstRunIsMadeOnceIfAsked) {
  const auto summary_of = [](bool twice) {
    return explore({.world = fibers(2), .strategies = {}, .checks = {.twice = twice}}, append_thrice).summary();
  };
  EXPECT_EQ(summary_of(false), "no failure in 1 run (not exhaustive: no strategy was asked for)");
  EXPECT_EQ(summary_of(true), "no failure in 2 runs (not exhaustive: no strategy was asked for)");
}

TEST(ExploreOnFibersTest, TheWorldsScheduleIsNoneOfTheSearch) {
  WorldOptions world = fibers(2);
  world.schedule = Schedule::seeded(4);
  EXPECT_TRUE(explore({.world = world}, [](RankContext& rank) { rank.store().add("n", 1); }).verified);
}

TEST(ExploreOnFibersTest, TheFirstSeedIsThatOfTheRanks) {
  const ExploreReport report =
      explore({.world = fibers(2), .strategies = {Strategy::random()}, .first_seed = 700},
              [](RankContext& rank) { observe(rank, "place", rank.store().add("arrived", 1)); });
  ASSERT_TRUE(report.failure.has_value());
  EXPECT_EQ(report.failure->found.text(), absl::StrCat("seeded:", 699 + report.failure->run));
  EXPECT_THAT(report.failure->world.schedule.text(), StartsWith("steered:700"));
}

TEST(ExploreTextTest, CountsWhatWasNotRun) {
  ExploreReport report;
  report.runs = 5;
  report.shares.push_back({.strategy = "exhaustive", .runs = 3, .schedules = 2});
  EXPECT_EQ(report.summary(),
            "no failure in 5 runs (not exhaustive: 2 schedules that can differ were run, and perhaps more were not)");
  EXPECT_THAT(report.text(), HasSubstr("exhaustive: 2 schedules that can differ, and perhaps more that were not run"));
  report.shares[0].open = 1;
  EXPECT_THAT(report.summary(), HasSubstr("at least 1 more was not)"));
  EXPECT_THAT(report.text(), HasSubstr("at least 1 more was not run"));
  report.shares[0].open = 2;
  EXPECT_THAT(report.summary(), HasSubstr("at least 2 more were not)"));
  EXPECT_THAT(report.text(), HasSubstr("at least 2 more were not run"));
  report.shares[0].schedules = 1;
  EXPECT_THAT(report.summary(), HasSubstr("1 schedule that can differ was run, "));
}

TEST(ExploreTextTest, SwitchesThatShrinkingAddedAreNotCountedFromFewer) {
  ExploreReport report;
  report.runs = 3;
  report.failure = ExploreReport::Failure();
  ExploreReport::Failure& failure = *report.failure;
  failure.strategy = "random";
  failure.run = 1;
  failure.found = Schedule::seeded(1);
  failure.shrink_runs = 5;
  failure.rerun = "this";
  failure.world.world_size = 2;
  for (const auto& [found, text] : {std::pair<int, const char*>(0, ", 1 switch from the default order\n"),
                                    {1, ", 1 switch from the default order\n"},
                                    {7, ", 7 -> 1 switch from the default order\n"}}) {
    failure.world.schedule = *Schedule::parse("steered:1:1@5>0");
    failure.found_switches = found;
    EXPECT_THAT(report.text(), HasSubstr(absl::StrCat("shrunk in 5 runs: 2 ranks", text)));
    EXPECT_EQ(absl::StrContains(report.text(), "->"), found > 1) << report.text();
  }
  failure.world.schedule = *Schedule::parse("steered:1");
  failure.found_switches = 0;
  EXPECT_THAT(report.text(), HasSubstr("2 ranks, 0 switches from the default order\n"));
  failure.world.faults = *FaultPlan::parse("crash@rank=1,nth=2");
  EXPECT_THAT(report.text(), HasSubstr("2 ranks, 0 switches from the default order, faults crash@rank=1,nth=2\n"));
}

// A trace of many switches would hide what stands behind it.
TEST(ExploreTextTest, ALongScheduleIsCut) {
  ExploreReport report;
  report.failure = ExploreReport::Failure();
  report.failure->rerun = "this";
  std::string switches = "steered:1:1@1>0";
  while (switches.size() < 200) absl::StrAppend(&switches, ",1@", switches.size(), ">0");
  report.failure->found = *Schedule::parse(switches);
  const std::string whole = report.failure->found.text();
  ASSERT_GT(whole.size(), 100U);
  EXPECT_THAT(report.text(), HasSubstr(absl::StrCat(", schedule ", whole.substr(0, 100), "...\n")));
}

TEST(ExploreTextTest, ARootThatGoesOnBeforeTheOthersIsSaid) {
  const auto of = [](GroupOptions::Rooted rooted) {
    return explore({.world = fibers(2), .min_ranks = 2},
                   [rooted](RankContext& rank) {
                     auto pg = init_process_group(rank, {.rooted = rooted});
                     rank.store().set(absl::StrCat("part ", rank.rank()), "x");
                     std::vector<float> x(1);
                     pg->broadcast(x, 0).wait();
                     if (rank.rank() == 0 && rank.store().num_keys() != 2) throw std::runtime_error("not whole");
                   })
        .text();
  };
  constexpr char kSaid[] =
      " switch from the default order\nmembers of rooted calls go on as soon as their own part is "
      "done: first asked at rank 0's broadcast seq 1\nrun it again: ";
  EXPECT_THAT(of(GroupOptions::Rooted::kBySchedule), AllOf(HasSubstr("not whole"), HasSubstr(kSaid)));
  EXPECT_THAT(of(GroupOptions::Rooted::kEach),
              AllOf(HasSubstr("not whole"), Not(HasSubstr("members of rooted calls"))));
}

TEST(ExploreTextTest, OneRunIsOne) {
  const ExploreReport report = explore({.world = {.world_size = 2, .engine = EngineKind::kFibers}},
                                       [](RankContext&) { throw std::runtime_error("always"); });
  EXPECT_THAT(report.text(), testing::StartsWith("explored 1 run in "));
  EXPECT_THAT(report.text(), HasSubstr(", 0 switches from the default order"));
}

TEST(ExploreTextTest, ARunThatCannotBeSteeredHasNoSwitchesCut) {
  bool failed = false;
  const ExploreReport report =
      explore({.world = fibers(2), .strategies = {Strategy::random()}}, [&](RankContext& rank) {
        const int64_t place = rank.store().add("n", 1);
        if (rank.rank() == 1 && place == 1 && !std::exchange(failed, true)) throw std::runtime_error("once");
      });
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.text(),
              AllOf(HasSubstr("2 ranks, the order as it was found: by its switches alone it does not fail so\n"),
                    Not(HasSubstr("0 switches"))));
}

std::string story_of(int world_size, absl::FunctionRef<void(RankContext&)> program) {
  const ExploreReport report = explore({.world = fibers(world_size), .strategies = {Strategy::exhaustive()}}, program);
  EXPECT_TRUE(report.failure.has_value()) << report.text();
  return report.failure.has_value() ? report.failure->story : "";
}

TEST(ExploreStoryTest, ATaskThatIsNoRankSaysSo) {
  const std::string story = story_of(2, [](RankContext& rank) {
    if (rank.rank() == 0) {
      rank.world().spawn_helper([store = &rank.store()] { store->set("late", "1"); });
    } else if (rank.store().check({"late"})) {
      throw std::runtime_error("too late");
    }
  });
  EXPECT_THAT(story, testing::ContainsRegex("\n +[0-9]+  \\(helper\\) store set late \\[explore_test.cc:[0-9]+\\]\n"))
      << story;
}

// Columns are for four ranks at most.
TEST(ExploreStoryTest, OfManyRanksNamesThemInEachLine) {
  for (const int ranks : {4, 5}) {
    const std::string story = story_of(ranks, [ranks](RankContext& rank) {
      if (rank.world_size() < ranks) return;
      if (rank.rank() == 3) rank.store().set("key", "1");
      if (rank.rank() == 1 && !rank.store().check({"key"})) throw std::runtime_error("too early");
    });
    const std::string in_line = "\n +[0-9]+  rank 1: store check key \\[explore_test.cc:[0-9]+\\]\n";
    const std::string in_column = "   step  rank 0 +rank 1 +rank 2 +rank 3\n";
    EXPECT_THAT(story, testing::ContainsRegex(ranks > 4 ? in_line : in_column)) << story;
    EXPECT_THAT(story, Not(testing::ContainsRegex(ranks > 4 ? in_column : in_line))) << story;
  }
}

TEST(ExploreStoryTest, ACallOnSeveralKeysNamesThem) {
  const std::string story = story_of(2, [](RankContext& rank) {
    if (rank.rank() == 0) {
      rank.store().multi_set({"left", "right"}, {"1", "2"});
    } else if (!rank.store().check({"right", "left"})) {
      rank.store().wait({"left", "right"});
      throw std::runtime_error("nothing was there yet");
    }
  });
  EXPECT_THAT(story, AllOf(HasSubstr("store multi_set left, right"), HasSubstr("store check right, left"),
                           HasSubstr("store wait keys \"left\", \"right\"")))
      << story;
  const std::string many = story_of(2, [](RankContext& rank) {
    if (rank.rank() == 0) {
      rank.store().set("c", "");
    } else if (!rank.store().check({"c", "c", "c", "c", "c", "c"})) {
      throw std::runtime_error("nothing there yet");
    }
  });
  EXPECT_THAT(many, HasSubstr("store check c, c, c, c and 2 more")) << many;
  const std::string four = story_of(2, [](RankContext& rank) {
    if (rank.rank() == 0) {
      rank.store().set("c", "");
    } else if (!rank.store().check({"c", "c", "c", "c"})) {
      throw std::runtime_error("nothing there yet");
    }
  });
  EXPECT_THAT(four, AllOf(HasSubstr("store check c, c, c, c"), Not(HasSubstr("more")))) << four;
}

// Rank 1 polls for a flag that rank 0 sets before the value; a switch between the two shows it.
TEST(ExploreStoryTest, OfAProgramThatPollsShowsTheRaceAndCollapsesThePolls) {
  const ExploreOptions options = {.world = {.world_size = 3, .engine = EngineKind::kFibers},
                                  .strategies = {Strategy::random(), Strategy::pct(3)},
                                  .max_runs = 3000};
  const ExploreReport report = explore(options, [](RankContext& rank) {
    if (rank.rank() == 0) {
      for (int i = 0; i < 300; ++i) rank.store().add("progress", 1);
      rank.store().set("ready", "");
      rank.store().set("value", "1");
    } else if (rank.rank() == 1) {
      while (!rank.store().check({"ready"})) rank.yield();
      if (!rank.store().check({"value"})) throw std::runtime_error("no value");
    } else {
      while (!rank.store().check({"value"})) rank.yield();
    }
  });
  ASSERT_FALSE(report.ok());
  const std::string& story = report.failure->story;
  EXPECT_THAT(story, testing::ContainsRegex("store check [^\n]*\\([0-9]+ times since step [0-9]+\\)"));
  EXPECT_THAT(story, HasSubstr("store set ready"));
  EXPECT_THAT(story, HasSubstr("store check value"));
  EXPECT_LT(std::count(story.begin(), story.end(), '\n'), 40) << story;
}

TEST(ExploreStoryTest, ShowsTheStepsAroundAllSwitchesThatFit) {
  std::string strict;
  for (int i = 0; i < 8; ++i) strict += "ab";
  const ExploreReport report = explore(
      {.world = fibers(2), .strategies = {Strategy::exhaustive()}, .max_runs = 100'000}, [&](RankContext& rank) {
        for (int i = 0; i < 8; ++i) rank.store().append("log", rank.rank() == 0 ? "a" : "b");
        if (rank.store().get("log") == strict) throw std::runtime_error("strictly");
      });
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  const std::string& story = report.failure->story;
  size_t appends = 0;
  for (size_t at = story.find("store append log"); at != std::string::npos; at = story.find("store append log", at + 1))
    ++appends;
  EXPECT_EQ(appends, 16u) << story;
  EXPECT_THAT(story, Not(HasSubstr("earlier"))) << story;
}

TEST(ExploreStoryTest, SaysHowManyEarlierSwitchesItDoesNotShow) {
  const ExploreReport report =
      explore({.world = fibers(2), .strategies = {Strategy::random()}, .checks = {.store_values = false}},
              [](RankContext& rank) {
                for (int i = 0; i < 40; ++i) rank.store().append("log", rank.rank() == 0 ? "a" : "b");
                const std::string log = rank.store().get("log");
                int alternations = 0;
                for (size_t i = 1; i < log.size(); ++i) alternations += log[i] != log[i - 1] ? 1 : 0;
                if (log.size() == 80 && alternations >= 25) throw std::runtime_error("to and fro");
              });
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  const int hidden = report.failure->size() - 6;
  EXPECT_GT(hidden, 10) << report.text();
  EXPECT_THAT(report.failure->story, testing::ContainsRegex(absl::StrCat("^  \\.\\.\\. ([0-9]+ earlier steps?, )?",
                                                                         hidden, " earlier switches\n")));
}

}  // namespace
}  // namespace rankloom

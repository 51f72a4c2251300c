// Programs drawn from seeds: one seed gives one trace on both engines, and what ranks compute does not depend on the
// schedule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rankloom/rankloom.h"
#include "sim/scheduler/call_scope.h"
#include "sim/scheduler/scheduler.h"
#include "tests/collectives/threaded/random_program.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Ran {
  RunReport report;
  std::vector<RandomProgram::State> states;
};

Ran run_program(const RandomProgram& program, EngineKind engine, Schedule schedule) {
  Ran run;
  run.states.resize(static_cast<size_t>(program.ranks()));
  run.report =
      run_world({.world_size = program.ranks(), .engine = engine, .schedule = std::move(schedule)},
                [&](RankContext& rank) { run.states[static_cast<size_t>(rank.rank())] = program.run_rank(rank); });
  return run;
}

TEST(DeterminismTest, OneSeedGivesOneTraceOnBothEngines) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const RandomProgram program(seed);
    const Schedule schedule = seed % 4 == 0   ? Schedule::pct(seed, 3)
                              : seed % 4 == 1 ? Schedule::round_robin()
                              : seed % 8 == 2 ? Schedule::fifo()
                                              : Schedule::seeded(seed);
    const Ran on_threads = run_program(program, EngineKind::kThreads, schedule);
    const Ran on_fibers = run_program(program, EngineKind::kFibers, schedule);
    ASSERT_TRUE(on_threads.report.ok()) << on_threads.report.text() << "\n" << program;
    ASSERT_TRUE(on_fibers.report.ok()) << on_fibers.report.text() << "\n" << program;
    ASSERT_EQ(first_difference(on_threads.report.trace, on_fibers.report.trace), "equal")
        << "program " << seed << ", schedule " << schedule.text() << ": " << program;
    ASSERT_EQ(on_threads.report.steps, on_fibers.report.steps) << program;
    ASSERT_EQ(on_fibers.report.trace.empty(), schedule.kind() == Schedule::Kind::kFifo);
    ASSERT_EQ(on_threads.states, on_fibers.states) << program;
    // And the trace repeats itself.
    const Ran replayed = run_program(program, EngineKind::kFibers, Schedule::replay(on_threads.report.trace));
    ASSERT_TRUE(replayed.report.ok()) << replayed.report.text();
    ASSERT_EQ(replayed.states, on_threads.states);
  }
}

TEST(DeterminismTest, TenThousandSeededRunsComputeWhatTheOracleSays) {
  for (uint64_t seed = 0; seed < 10'000; ++seed) {
    const RandomProgram program(seed);
    const Ran run = run_program(program, EngineKind::kFibers, Schedule::seeded(seed));
    ASSERT_TRUE(run.report.ok()) << "seed " << seed << ": " << run.report.text() << "\n" << program;
    ASSERT_EQ(run.states, program.outcome()) << "seed " << seed << ": " << program;
  }
}

TEST(DeterminismTest, RunsOfEveryOtherGearComputeWhatTheOracleSays) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const RandomProgram program(seed);
    const bool free = seed % 2 == 0;
    const Ran run = run_program(program, free ? EngineKind::kThreads : EngineKind::kFibers,
                                free ? Schedule::free() : Schedule::fifo());
    ASSERT_TRUE(run.report.ok()) << "seed " << seed << ": " << run.report.text() << "\n" << program;
    ASSERT_EQ(run.states, program.outcome()) << "seed " << seed << ": " << program;
  }
}

// A schedule changes when things happen: the seeds must differ in that.
TEST(DeterminismTest, SeedsGiveDifferentTraces) {
  const RandomProgram program(3);
  int equal = 0;
  const Ran first = run_program(program, EngineKind::kFibers, Schedule::seeded(0));
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    equal += run_program(program, EngineKind::kFibers, Schedule::seeded(seed)).report.trace.steps() ==
             first.report.trace.steps();
  }
  EXPECT_EQ(equal, 0);
}

// A helper thread that makes a rank's calls, and completions that come late, are tasks as any other.
TEST(DeterminismTest, HelpersAndLateCompletionsGiveOneTraceOnBothEngines) {
  const auto program = [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {rank.rank() + 1}, y = {10 * (rank.rank() + 1)};
    Work early = pg->all_reduce(x);
    rank.world().spawn_helper([&] {
      pg->all_reduce(y).wait();
      rank.store().set("helped " + std::to_string(rank.rank()), "");
    });
    rank.yield();
    early.wait();
    EXPECT_EQ(x[0], 6);
    rank.store().wait({"helped " + std::to_string(rank.rank())});
    EXPECT_EQ(y[0], 60);
  };
  int late = 0;  // seeds under which a completion was a choice of its own
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Trace traces[2];
    for (const EngineKind engine : {EngineKind::kThreads, EngineKind::kFibers}) {
      const RunReport report = run_world(
          {.world_size = 3, .engine = engine, .schedule = Schedule::seeded(seed), .late_completion = true}, program);
      ASSERT_TRUE(report.ok()) << report.text();
      traces[static_cast<size_t>(engine)] = report.trace;
    }
    ASSERT_EQ(first_difference(traces[0], traces[1]), "equal") << "seed " << seed;
    // Three ranks, three helpers: a larger number is a completion's.
    for (const Trace::Step& step : traces[0].steps()) late += step.value > 5;
  }
  EXPECT_GT(late, 0);
}

// Turns end after a thousand points, or when a root is far ahead; time passes after many questions, or many points.
TEST(DeterminismTest, LongTurnsGiveOneRunOnBothEngines) {
  using Turns = std::vector<int>;  // the rank of each round, one rank at a time
  using Program = void (*)(RankContext&, ProcessGroup&, Turns&);
  const std::vector<std::pair<const char*, Program>> programs = {
      {"asks",
       [](RankContext& rank, ProcessGroup& pg, Turns& turns) {
         std::vector<int64_t> x = {rank.rank() + 1};
         if (rank.rank() == 2) rank.sleep_for(absl::Milliseconds(3));
         Work work = pg.all_reduce(x);
         while (!work.is_completed()) {
           for (int i = 0; i <= rank.rank(); ++i) rank.store().set(absl::StrCat("mine ", rank.rank()), absl::StrCat(i));
           turns.push_back(rank.rank());
         }
       }},
      {"goes ahead",
       [](RankContext& rank, ProcessGroup& pg, Turns& turns) {
         std::vector<int64_t> x = {rank.rank() + 1};
         for (int i = 0; i < 100; ++i) {
           pg.broadcast(x, /*root=*/i / 20 % 3).wait();
           turns.push_back(rank.rank());
         }
       }},
      {"acts", [](RankContext& rank, ProcessGroup&, Turns& turns) {
         if (rank.rank() == 0) rank.sleep_for(absl::Milliseconds(1));
         while (rank.store().add("came", rank.rank() == 0 ? 1 : 0) == 0) turns.push_back(rank.rank());
       }}};
  for (const auto& [name, program] : programs) {
    SCOPED_TRACE(name);
    for (const Schedule& schedule : {Schedule::fifo(), Schedule::round_robin(), Schedule::pct(5, 3)}) {
      // Each of the many points would be a switch of threads.
      if (name == std::string_view("acts") && schedule.kind() != Schedule::Kind::kFifo) continue;
      RunReport ran[2];
      Turns turns[2];
      for (const EngineKind engine : {EngineKind::kThreads, EngineKind::kFibers}) {
        const auto which = static_cast<size_t>(engine);
        ran[which] = run_world({.world_size = 3, .engine = engine, .schedule = schedule},
                               [&, program = program](RankContext& rank) {
                                 auto pg = init_process_group(rank);
                                 program(rank, *pg, turns[which]);
                               });
        ASSERT_TRUE(ran[which].ok()) << ran[which].text();
      }
      EXPECT_EQ(first_difference(ran[0].trace, ran[1].trace), "equal") << schedule.text();
      EXPECT_EQ(ran[0].steps, ran[1].steps) << schedule.text();
      EXPECT_TRUE(turns[0] == turns[1]) << schedule.text() << ": " << turns[0].size() << ", " << turns[1].size();
    }
  }
}

// --- what a switch must keep apart

class SwitchTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, SwitchTest, every_world(), world_name);

// Each rank waits within its catch and throws its own exception on.
TEST_P(SwitchTest, ACatchMayEncloseAWait) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const std::string mine = "thrown by rank " + std::to_string(rank.rank());
    try {
      throw std::runtime_error(mine);
    } catch (const std::runtime_error& error) {
      std::vector<int64_t> x = {1};
      pg->all_reduce(x).wait();
      EXPECT_EQ(error.what(), mine);
      rank.yield();
      try {
        throw std::logic_error("inner of rank " + std::to_string(rank.rank()));
      } catch (const std::logic_error& inner) {
        pg->barrier().wait();
        EXPECT_EQ(inner.what(), "inner of rank " + std::to_string(rank.rank()));
      }
      rank.store().add("caught", 1);
      while (rank.store().add("caught", 0) != 3) rank.yield();
      throw;
    }
  });
  for (size_t rank = 0; rank < 3; ++rank) {
    // The first one to leave stops the others, unless they leave on their own.
    if (report.outcomes[rank].state == RunReport::Outcome::State::kFailed) {
      EXPECT_THAT(report.outcomes[rank].text, testing::StartsWith("thrown by rank " + std::to_string(rank) + " ("));
    }
  }
  EXPECT_EQ(report.outcomes[static_cast<size_t>(report.first_failed)].state, RunReport::Outcome::State::kFailed);
}

TEST_P(SwitchTest, AnExceptionPassesManyFramesOfARank) {
  struct Deep {
    static int call(RankContext& rank, int depth) {
      if (depth == 0) throw std::runtime_error("from the depth of rank " + std::to_string(rank.rank()));
      if (depth % 10 == 0) rank.yield();
      return call(rank, depth - 1) + 1;
    }
  };
  for (int round = 0; round < 20; ++round) {
    run(3, [](RankContext& rank) {
      for (int i = 0; i < 5; ++i) {
        try {
          Deep::call(rank, 30);
          ADD_FAILURE() << "nothing was thrown";
        } catch (const std::runtime_error& error) {
          EXPECT_EQ(error.what(), "from the depth of rank " + std::to_string(rank.rank()));
        }
        rank.yield();
      }
    });
  }
}

TEST_P(SwitchTest, UncaughtExceptionsAreCountedByRank) {
  struct Unwinding {
    RankContext& rank;
    std::vector<int>& counts;
    ~Unwinding() {
      rank.world().scheduler().yield(Site{.what = "unwind"});
      counts[static_cast<size_t>(rank.rank())] = std::uncaught_exceptions();
    }
  };
  std::vector<int> counts(4, -1);
  run(4, [&](RankContext& rank) {
    try {
      const Unwinding unwinding{rank, counts};
      if (rank.rank() % 2 == 1) throw std::runtime_error("odd");
    } catch (const std::runtime_error&) {
    }
  });
  EXPECT_THAT(counts, ElementsAre(0, 1, 0, 1));
}

TEST_P(SwitchTest, ErrnoIsTheRanks) {
  run(4, [](RankContext& rank) {
    errno = 100 + rank.rank();
    for (int i = 0; i < 10; ++i) {
      rank.yield();
      ASSERT_EQ(errno, 100 + rank.rank());
    }
  });
}

// --- deadlocks that are classics; further ones stand with what they wait in (point_to_point_test, groups_test)

TEST_P(SwitchTest, ABarrierCountThatIsOffByOneIsADeadlock) {
  const RunReport report = run_to_failure(4, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const int barriers = rank.rank() == 2 ? 2 : 3;
    for (int i = 0; i < barriers; ++i) pg->barrier().wait();
  });
  EXPECT_EQ(error_kind(report.cause), ErrorKind::kDeadlock);
  EXPECT_THAT(report.text(), HasSubstr("ranks 0-1, 3 wait in barrier seq 3 for rank 2 (returned) [group 0, "));
  EXPECT_THAT(report.text(), HasSubstr("last calls of rank 0: barrier seq 1 (completed) "));
}

TEST_P(SwitchTest, ACollectiveAgainstAMutexIsADeadlockWithItsCycle) {
  Mutex mu("m");
  Latch locked(1);
  const RunReport report = run_to_failure(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) {
      MutexLock lock(&mu);
      locked.count_down();
      pg->barrier().wait();
    } else {
      locked.wait();
      MutexLock lock(&mu);
      pg->barrier().wait();
    }
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 0 waits in barrier seq 1 for rank 1 [group 0, "));
  EXPECT_THAT(report.text(), HasSubstr("rank 1 waits in mutex lock \"m\" for rank 0, locked at determinism_test.cc:"));
  EXPECT_THAT(report.text(), HasSubstr("cycle: rank 0 -> rank 1 -> rank 0"));
}

TEST_P(SwitchTest, ARunStopsBeforeACollectiveOfARank) {
  WorldOptions world = options(3);
  world.break_at = Schedule::BreakPoint{.rank = 1, .group = "0", .seq = 2};
  int stops = 0;
  int64_t seq = -1;
  std::shared_ptr<ProcessGroup> group_of_1;
  world.on_break = [&] {
    ++stops;
    EXPECT_EQ(RankContext::current()->rank(), 1);
    seq = group_of_1->sequence_number();
  };
  run(world, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) group_of_1 = pg;
    for (int i = 0; i < 3; ++i) pg->barrier().wait();
  });
  EXPECT_EQ(stops, 1);
  EXPECT_EQ(seq, 1);  // the second call is not made yet
}

TEST_P(SwitchTest, ARunStopsOnce) {
  WorldOptions world = options(2);
  world.break_at = Schedule::BreakPoint{.rank = 1, .group = "g", .seq = 2};
  int stops = 0;
  world.on_break = [&] { ++stops; };
  run(world, [](RankContext& rank) {
    for (int i = 0; i < 3; ++i) rank.world().scheduler().point_before_call({.what = "call", .group = "g", .seq = 2});
  });
  EXPECT_EQ(stops, 1);
}

// Messages are numbered apart: neither their calls nor their waits are that collective.
TEST_P(SwitchTest, ARunStopsAtNoMessage) {
  WorldOptions world = options(2);
  world.break_at = Schedule::BreakPoint{.rank = 1, .group = "0", .seq = 1};
  std::vector<std::string> stops;
  bool received = false;
  world.on_break = [&] { stops.push_back(received ? "at the barrier" : "before the recv was done"); };
  run(world, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> x = {rank.rank()};
    if (rank.rank() == 0) {
      pg->send(x, 1).wait();
    } else {
      pg->recv(x, 0).wait();
      received = true;
    }
    pg->barrier().wait();
  });
  EXPECT_THAT(stops, testing::ElementsAre("at the barrier"));
}

// Traces that no run could have left.
TEST(ReplayOfNoRun, EndsInAnErrorThatSaysSo) {
  const auto program = [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {static_cast<float>(rank.rank())};
    if (rank.rank() > 0) return pg->send(x, 0).wait();
    rank.sleep_for(absl::Milliseconds(1));
    for (int i = 0; i < 2; ++i) pg->recv_any(x).wait();
  };
  for (const EngineKind engine : {EngineKind::kThreads, EngineKind::kFibers}) {
    const auto replay = [&](Trace trace) {
      return run_world({.world_size = 3, .engine = engine, .schedule = Schedule::replay(std::move(trace))}, program);
    };
    Trace empty;
    empty.set_schedule("seeded:1");
    EXPECT_THAT(replay(empty).text(),
                HasSubstr("replay diverged at step 0: expected the end of the trace, which is empty, found rank"));

    const RunReport recorded = run_world({.world_size = 3, .engine = engine, .schedule = Schedule::seeded(1)}, program);
    ASSERT_TRUE(recorded.ok()) << recorded.text();
    Trace wrong;
    wrong.set_schedule("seeded:1");
    size_t changed = 0;
    for (Trace::Step step : recorded.trace.steps()) {
      step.what = wrong.intern(recorded.trace.names()[step.what]);
      if (step.kind == static_cast<uint8_t>(ChoiceKind::kAnySource) && changed == 0) {
        step.value = 1000000;
        changed = wrong.steps().size();
      }
      wrong.add(step);
    }
    ASSERT_GT(changed, 0U);
    EXPECT_THAT(replay(wrong).text(),
                HasSubstr(absl::StrCat("the trace is of no run: its step ", changed, " chooses number 1000000 of 2")));
  }
}

}  // namespace
}  // namespace rankloom

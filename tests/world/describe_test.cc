// A debugger finds its way: where all ranks are, a run that stops at a call, names of threads, and who stands still.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "sim/scheduler/scheduler.h"
#include "tests/error_of.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class DescribeTest : public testing::TestWithParam<WorldMode> {
 protected:
  // Yields at least once, then until `done`; in the free gear others run meanwhile, else each yield is their turn.
  template <typename Done>
  static void yield_until(RankContext& rank, Done done) {
    do rank.yield({"dir/job.cc", 50});
    while (!done());
  }
};
INSTANTIATE_TEST_SUITE_P(Gears, DescribeTest, every_world(), world_name);

TEST_P(DescribeTest, NamesWhoWaitsWhoRunsAndWhoHasEnded) {
  std::string text;
  run_world(GetParam().options(5), [&](RankContext& rank) {
    if (rank.rank() == 3) return;
    if (rank.rank() != 2) {
      rank.store().wait({"go"}, CodeSite{"dir/job.cc", 40 + rank.rank() / 4});
      return;
    }
    const auto is_there = [&] {
      text = rank.world().describe();
      return text.find("ranks 0-1 wait") != std::string::npos && text.find("rank 4 waits") != std::string::npos &&
             text.find("rank 3 returned") != std::string::npos;
    };
    yield_until(rank, is_there);
    rank.store().set("go", "");
  }).throw_if_failed();
  EXPECT_THAT(text, StartsWith("world of 5 ranks, engine " + std::string(engine_kind_name(GetParam().engine)) +
                               ", schedule " + GetParam().schedule.text() + ", at "));
  // Since the world began, in the free gear, too: not since the machine did.
  EXPECT_THAT(text.substr(0, text.find('\n')), testing::MatchesRegex(".*, at ([0-9.]+(ns|us|ms|s)|0)"));
  EXPECT_THAT(text, HasSubstr("\n  ranks 0-1 wait in store wait key \"go\" [job.cc:40]"));
  EXPECT_THAT(text, HasSubstr("\n  rank 4 waits in store wait key \"go\" [job.cc:41]"));
  EXPECT_THAT(text, HasSubstr("\n  rank 2 runs; its last point: yield [job.cc:50]"));
  EXPECT_THAT(text, HasSubstr("\n  rank 3 returned"));
}

// How often the lines of a description begin with each rank: "  ranks 0-2, 4 wait in ...".
std::vector<int> times_told(const std::string& text, int ranks) {
  std::vector<int> times(static_cast<size_t>(ranks));
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (size_t i = 1; i < lines.size(); ++i) {
    std::string line = lines[i];
    if (!absl::StartsWith(line, "  rank") || absl::StrContains(line, "(its ")) continue;
    line = line.substr(line.find(' ', 2) + 1);
    line = line.substr(0, line.find_first_not_of("0123456789-, "));
    for (const absl::string_view part : absl::StrSplit(line, ", ")) {
      const std::vector<std::string> ends = absl::StrSplit(absl::StripAsciiWhitespace(part), '-');
      for (int rank = std::stoi(ends.front()); rank <= std::stoi(ends.back()); ++rank)
        ++times[static_cast<size_t>(rank)];
    }
  }
  return times;
}

TEST_P(DescribeTest, NamesEachRankOnce) {
  constexpr int kRanks = 6;
  std::vector<std::string> texts;
  WorldOptions options = GetParam().options(kRanks);
  run_world(options, [&](RankContext& rank) {
    if (rank.rank() == 0) {
      // While the others come, wait, go on and return, one after the other.
      for (int step = 0; step < 40; ++step) {
        texts.push_back(rank.world().describe());
        rank.yield();
        if (step == 10) rank.store().set("go", "");
      }
      return;
    }
    if (rank.rank() % 2 == 0) rank.store().wait({"go"});
    for (int i = 0; i < 3 * rank.rank(); ++i) rank.yield();
  }).throw_if_failed();
  for (const std::string& text : texts) EXPECT_THAT(times_told(text, kRanks), testing::Each(1)) << text;
}

// As a harness tells of a failure before it tears down.
TEST_P(DescribeTest, ARankThatHasFailedAndGoesOnHasOneLine) {
  std::string running;
  const RunReport report = run_world(GetParam().options(2), [&](RankContext& rank) {
    if (rank.rank() == 1) return rank.store().set("here", "");
    rank.store().wait({"here"}, CodeSite{"dir/job.cc", 30});
    const auto failure = std::make_exception_ptr(std::runtime_error("planned"));
    rank.world().rank_failed(0, failure);
    running = rank.world().describe();
  });
  EXPECT_FALSE(report.ok());
  EXPECT_THAT(running,
              HasSubstr("\n  rank 0 failed: planned (std::runtime_error); it still runs; its last point: store wait"));
  EXPECT_EQ(times_told(running, 2)[0], 1) << running;
}

TEST_P(DescribeTest, ADebuggersCallPrintsTheWorldOfTheThread) {
  testing::internal::CaptureStderr();
  run_world(GetParam().options(1), [](RankContext&) { rankloom_describe(); });
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::MatchesRegex("rankloom: world of 1 ranks, engine [a-z]+, schedule [^\n]*\n"
                                    "  rank 0 runs; it has come to no point yet\n"));
  testing::internal::CaptureStderr();
  rankloom_describe();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("this thread belongs to no rank; select one that does"));
}

TEST_P(DescribeTest, ARunStopsBeforeACallOfARank) {
  WorldOptions options = GetParam().options(3);
  options.break_at = Schedule::BreakPoint{.rank = 1, .group = "g", .seq = 2};
  std::vector<std::string> stops;
  std::vector<int64_t> done(3);
  options.on_break = [&] {
    stops.push_back("rank " + std::to_string(RankContext::current()->rank()) + " after " + std::to_string(done[1]));
  };
  run_world(options, [&](RankContext& rank) {
    for (int64_t seq = 0; seq < 4; ++seq) {
      for (const char* group : {"f", "g"})
        rank.world().scheduler().point_before_call({.what = "call", .group = group, .seq = seq});
      done[static_cast<size_t>(rank.rank())] = seq;
    }
  }).throw_if_failed();
  EXPECT_THAT(stops, ElementsAre("rank 1 after 1"));
}

// As a user sees it without the harness: on stderr, and the exit code.
TEST(StallDeathTest, AFatalStallEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  WorldOptions options{.world_size = 2, .engine = EngineKind::kFibers};
  options.stall_is_fatal = absl::Seconds(2);
  const auto program = [](RankContext& rank) {
    if (rank.rank() == 0) rank.store().get("never", CodeSite{"dir/job.cc", 80});
    for (;;) asm volatile("" ::: "memory");
  };
  EXPECT_EXIT(run_world(options, program), testing::ExitedWithCode(1),
              "rank 1 has come to no scheduling point for 2s of real time.*\n  it has come to no point yet\n"
              "  its stack:\n(.*\n)+  rank 0 waits in store get key \"never\" \\[job.cc:80\\]\n"
              "(.*\n)*nobody can free it: the process ends");
}

TEST(BreakDeathTest, WithoutAHookItIsATrapThatSaysWhere) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  WorldOptions options{.world_size = 2, .engine = EngineKind::kFibers};
  options.break_at = Schedule::BreakPoint{.rank = 1, .group = "0", .seq = 3};
  const auto program = [](RankContext& rank) {
    for (int64_t seq = 0; seq < 5; ++seq) {
      rank.world().scheduler().point_before_call(
          {.what = "barrier", .code = {"dir/job.cc", 9}, .group = "0", .seq = seq});
    }
  };
  EXPECT_EXIT(run_world(options, program), testing::KilledBySignal(SIGTRAP),
              "rankloom: rank 1 stops before barrier seq 3 \\[group 0, job.cc:9\\]");
}

// Fibers: the others have not begun, or stand before a point.
TEST_P(DescribeTest, SeveralRanksHaveTheirLastPoint) {
  if (GetParam().engine != EngineKind::kFibers) GTEST_SKIP() << "where ranks begin is the machine's";
  std::vector<std::string> texts;
  run_world(GetParam().options(4), [&](RankContext& rank) {
    texts.push_back(rank.world().describe());
    rank.yield({"dir/job.cc", 70});
    texts.push_back(rank.world().describe());
    rank.store().get("never", CodeSite{"dir/job.cc", 71});
  });
  EXPECT_THAT(texts.front(), HasSubstr(" can run; they have come to no point yet"));
  EXPECT_THAT(texts, testing::Contains(HasSubstr(" can run; their last point: ")));
  EXPECT_THAT(texts, testing::Each(testing::Not(HasSubstr("start"))));
}

std::string thread_name() {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof name);
  return name;
}

TEST_P(DescribeTest, ThreadsHaveTheirRanksNames) {
  std::vector<std::string> names(12);
  std::vector<std::string> helpers(12);
  run_world(GetParam().options(12), [&](RankContext& rank) {
    names[static_cast<size_t>(rank.rank())] = thread_name();
    if (rank.rank() == 11) rank.world().spawn_helper([&] { helpers[11] = thread_name(); });
  }).throw_if_failed();
  const bool threads = GetParam().engine == EngineKind::kThreads;
  for (size_t rank = 0; rank < 12; ++rank) {
    EXPECT_EQ(names[rank], threads ? "rank " + std::to_string(rank) : "rankloom fibers");
  }
  EXPECT_EQ(helpers[11], threads ? "helper of 11" : "rankloom fibers");
}

TEST_P(DescribeTest, ARankThatStandsStillIsToldWithHowToRunItAgain) {
  WorldOptions options = GetParam().options(2);
  options.stall = absl::Milliseconds(20);
  std::mutex mu;
  std::string text;
  options.on_stall = [&](const std::string& told) {
    const std::lock_guard<std::mutex> lock(mu);
    // A busy machine may have told of it before it came to its yield.
    if (told.find("rank 1 ") == 0 && told.find("yield") != std::string::npos) text = told;
  };
  run_world(options, [&](RankContext& rank) {
    rank.yield({"dir/job.cc", 60 + rank.rank()});
    // Blocks outside of rankloom until somebody has noticed.
    for (bool told = rank.rank() == 0; !told; sched_yield()) {
      const std::lock_guard<std::mutex> lock(mu);
      told = !text.empty();
    }
  }).throw_if_failed();
  EXPECT_THAT(text, StartsWith("rank 1 has come to no scheduling point for 20ms of real time"));
  EXPECT_THAT(text, HasSubstr("\n  its last point: yield [job.cc:61]"));
  // Of the runs of this process, which one.
  const bool repeats = GetParam().schedule.deterministic();
  EXPECT_THAT(text, testing::ContainsRegex(
                        repeats ? "\n  run it again: (RANKLOOM_REPLAY_RUN=[0-9]+ )?RANKLOOM_ENGINE=[a-z]+ RANKLOOM_"
                                : "yield \\[job.cc:61\\]$"));
}

TEST(DescribeTest, TellsOfSeveralRanksAtOnce) {
  World world({.world_size = 3});
  world.attach(0);
  EXPECT_THAT(world.describe(), HasSubstr("\n  ranks 1-2 have not attached; they have come to no point yet"));
  world.detach();
  std::atomic<int> there{0};
  std::atomic<bool> told{false};
  std::string text;
  run_world({.world_size = 3}, [&](RankContext& rank) {
    if (rank.rank() < 2) {
      rank.yield({"dir/job.cc", 90});
      ++there;
      while (!told) sched_yield();
      return;
    }
    while (there < 2) sched_yield();
    text = rank.world().describe();
    told = true;
  }).throw_if_failed();
  EXPECT_THAT(text, HasSubstr("\n  ranks 0-1 run; their last point: yield [job.cc:90]"));
}

}  // namespace
}  // namespace rankloom

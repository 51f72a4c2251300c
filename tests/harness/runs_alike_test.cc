#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "rankloom/process_group.h"
#include "rankloom/testing.h"

namespace rankloom {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

class RunsAlikeTest : public testing::TestWithParam<EngineKind> {
 protected:
  WorldOptions seeded(uint64_t seed) const {
    return {.world_size = 3, .engine = GetParam(), .schedule = Schedule::seeded(seed)};
  }
};
INSTANTIATE_TEST_SUITE_P(Engines, RunsAlikeTest, every_engine(), engine_name);

void meet(RankContext& rank) {
  for (int i = 0; i < 5; ++i) {
    rank.store().add("count", rank.rank());
    rank.yield();
  }
}

TEST_P(RunsAlikeTest, HoldsForADeterministicProgram) {
  for (uint64_t seed = 1; seed <= 20; ++seed) EXPECT_TRUE(runs_alike(seeded(seed), meet));
}

TEST_P(RunsAlikeTest, HoldsForAWorldThatFailsAlike) {
  EXPECT_TRUE(runs_alike(seeded(1), [](RankContext& rank) {
    if (rank.rank() == 1) throw std::runtime_error("no disk");
    rank.store().get("nothing");
  }));
}

TEST_P(RunsAlikeTest, TakesASeedOfItsOwnIfNoScheduleIsGiven) {
  const testing::AssertionResult alike = runs_alike({.world_size = 3, .engine = GetParam(), .seed = 9}, meet);
  EXPECT_TRUE(alike);
  EXPECT_THAT(alike.message(), HasSubstr("seeded:9"));
}

TEST_P(RunsAlikeTest, TakesSeedOneIfNeitherIsGiven) {
  EXPECT_THAT(runs_alike({.world_size = 3, .engine = GetParam()}, meet).message(), HasSubstr("seeded:1"));
}

TEST_P(RunsAlikeTest, NamesTheAssertionThatFailedInOneOfThem) {
  int runs = 0;
  const testing::AssertionResult alike =
      runs_alike({.world_size = 1, .engine = GetParam(), .schedule = Schedule::seeded(1)},
                 [&](RankContext&) { EXPECT_EQ(++runs, 1) << "in the second"; });
  EXPECT_FALSE(alike);
  EXPECT_THAT(alike.message(),
              AllOf(HasSubstr("failed assertions: first run: nothing; second run: "), HasSubstr("in the second")));
}

TEST_P(RunsAlikeTest, ComparesAllChoicesWhateverATraceMayHave) {
  int runs = 0;
  WorldOptions options = seeded(1);
  options.trace_limit = 1;
  const testing::AssertionResult alike = runs_alike(options, [&](RankContext& rank) {
    if (rank.rank() == 1 && ++runs == 2) rank.store().add("only in the second run", 1);
    meet(rank);
  });
  EXPECT_THAT(alike.message(), ContainsRegex("choices: step [0-9]+: first run: "));
}

TEST_P(RunsAlikeTest, NamesRankAndSiteOfAChoiceThatDiffers) {
  int runs = 0;
  const testing::AssertionResult alike = runs_alike(seeded(1), [&](RankContext& rank) {
    if (rank.rank() == 1 && ++runs == 2) rank.store().add("only in the second run", 1);
    meet(rank);
  });
  EXPECT_FALSE(alike);
  EXPECT_THAT(alike.message(),
              ContainsRegex("choices: step [0-9]+: first run: rank [0-2] at .*; second run: rank 1 at store add"));
}

TEST_P(RunsAlikeTest, NamesRankAndLineOfACallThatDiffers) {
  int runs = 0;
  const testing::AssertionResult alike = runs_alike(seeded(1), [&](RankContext& rank) {
    if (rank.rank() == 0) ++runs;
    auto pg = init_process_group(rank);
    std::vector<float> x(4, 1.0f);
    pg->all_reduce(x).wait();
    x.resize(runs == 1 ? 4 : 5);
    if (rank.rank() == 0) pg->all_reduce(x).wait();
  });
  EXPECT_FALSE(alike);
  EXPECT_THAT(alike.message(),
              ContainsRegex("calls of rank 0: first run: all_reduce seq 2, .*shapes \\[4\\].*"
                            "runs_alike_test.cc:[0-9]+\\]; second run: all_reduce seq 2, .*shapes \\[5\\]"));
}

TEST_P(RunsAlikeTest, NamesAnotherPeer) {
  int runs = 0;
  const testing::AssertionResult alike = runs_alike(seeded(1), [&](RankContext& rank) {
    auto pg = init_process_group(rank, {.backend = GroupOptions::Backend::kFake});
    if (rank.rank() != 0) return;
    std::vector<float> x(1);
    pg->send(x, ++runs).wait();
  });
  EXPECT_FALSE(alike);
  EXPECT_THAT(alike.message(), ContainsRegex("first run: send.*, peer 1.*; second run: send.*, peer 2"));
}

TEST_P(RunsAlikeTest, NamesRootTagAndDTypeThatDiffer) {
  for (const char* what : {"root", "tag", "dtype"}) {
    int runs = 0;
    const testing::AssertionResult alike = runs_alike(seeded(1), [&](RankContext& rank) {
      if (rank.rank() == 0) ++runs;
      auto pg = init_process_group(rank);
      std::vector<float> x(2, 1.0f);
      std::vector<int32_t> y(2, 1);
      pg->barrier().wait();
      if (what == std::string_view("root")) {
        pg->broadcast(x, runs).wait();
      } else if (what == std::string_view("dtype")) {
        if (runs == 1) pg->all_reduce(x).wait();
        if (runs == 2) pg->all_reduce(y).wait();
      } else if (rank.rank() < 2) {
        if (rank.rank() == 0) pg->send(x, 1, runs).wait();
        if (rank.rank() == 1) pg->recv(x, 0, runs).wait();
      }
    });
    EXPECT_FALSE(alike) << what;
    EXPECT_THAT(alike.message(), ContainsRegex(absl::StrCat("calls of rank 0: first run: [^;]*, ", what,
                                                            " [^;]*; second run: [^;]*, ", what)));
  }
}

TEST_P(RunsAlikeTest, CountsSchedulingPoints) {
  int runs = 0;
  const testing::AssertionResult alike =
      runs_alike({.world_size = 1, .engine = GetParam(), .schedule = Schedule::seeded(1)}, [&](RankContext& rank) {
        if (++runs == 2) rank.yield();
      });
  EXPECT_FALSE(alike);
  EXPECT_THAT(alike.message(), ContainsRegex("scheduling points: first run: [0-9]+; second run: [0-9]+"));
}

TEST_P(RunsAlikeTest, SaysHowACallThatDiffersEnded) {
  int runs = 0;
  const testing::AssertionResult alike = runs_alike(seeded(1), [&](RankContext& rank) {
    if (rank.rank() == 0) ++runs;
    auto pg = init_process_group(rank);
    std::vector<float> x(4, 1.0f);
    if (rank.rank() == 0 || runs == 1) pg->all_reduce(x).wait();
    if (rank.rank() == 0 && runs == 2) throw std::runtime_error("no disk");
    if (runs == 2) pg->all_reduce(x).wait();
  });
  EXPECT_FALSE(alike);
  EXPECT_THAT(alike.message(), HasSubstr(", completed, begun at"));
  EXPECT_THAT(alike.message(), HasSubstr(", failed, begun at"));
}

TEST_P(RunsAlikeTest, NamesTheRankWhoseEndDiffers) {
  int runs = 0;
  const testing::AssertionResult alike = runs_alike(seeded(1), [&](RankContext& rank) {
    if (rank.rank() == 2) throw std::runtime_error("run " + std::to_string(++runs));
  });
  EXPECT_FALSE(alike);
  EXPECT_THAT(alike.message(),
              HasSubstr("outcomes: first run: rank 2 failed: run 1 (std::runtime_error); second run: rank 2 failed: "
                        "run 2 (std::runtime_error)"));
}

TEST_P(RunsAlikeTest, NamesTheKeyWhoseValueDiffers) {
  int runs = 0;
  const testing::AssertionResult alike = runs_alike(seeded(1), [&](RankContext& rank) {
    if (rank.rank() == 2) rank.store().set("runs", std::to_string(++runs));
  });
  EXPECT_FALSE(alike);
  EXPECT_THAT(alike.message(), HasSubstr(R"(store: first run: key "runs" = "1"; second run: key "runs" = "2")"));
}

TEST_P(RunsAlikeTest, ReportsFailedAssertionsOnce) {
  EXPECT_NONFATAL_FAILURE(EXPECT_TRUE(runs_alike(seeded(1), [](RankContext&) { EXPECT_TRUE(false) << "both times"; })),
                          "ranks 0-2: ");
}

// Both runs are one for RANKLOOM_REPLAY_RUN.
TEST_P(RunsAlikeTest, ObeysAnEnvironmentThatMeansIt) {
  const auto restore = absl::MakeCleanup([] {
    unsetenv("RANKLOOM_REPLAY_RUN");
    unsetenv("RANKLOOM_SEED");
  });
  setenv("RANKLOOM_SEED", "77", 1);
  const auto schedules = [this] {
    std::vector<std::string> seen;
    EXPECT_TRUE(runs_alike(seeded(1), [&](RankContext& rank) {
      if (rank.rank() == 0) seen.push_back(rank.world().options().schedule.text());
    }));
    return seen;
  };
  setenv("RANKLOOM_REPLAY_RUN", "2", 1);
  EXPECT_THAT(schedules(), testing::ElementsAre("seeded:1", "seeded:1"));
  EXPECT_THAT(schedules(), testing::ElementsAre("seeded:77", "seeded:77"));
  EXPECT_THAT(schedules(), testing::ElementsAre("seeded:1", "seeded:1"));
}

TEST(RunsAlike, RefusesTheFreeGear) {
  const testing::AssertionResult alike =
      runs_alike({.world_size = 2, .schedule = Schedule::free()}, [](RankContext&) {});
  EXPECT_FALSE(alike);
  EXPECT_THAT(alike.message(), AllOf(HasSubstr("free"), HasSubstr("repeats itself")));
}

}  // namespace
}  // namespace rankloom

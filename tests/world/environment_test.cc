// The environment's wishes, read in one place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>  // environ

#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>

#include "rankloom/error.h"
#include "rankloom/options.h"
#include "rankloom/schedule.h"
#include "rankloom/world.h"
#include "tests/temp_dir.h"
#include "world/run_options.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::HasSubstr;
using testing::StartsWith;

// The variables of the library that are set, with their values.
std::map<std::string, std::string> variables() {
  std::map<std::string, std::string> found;
  for (char* const* variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const size_t equals = text.find('=');
    if (text.starts_with("RANKLOOM_") && equals != std::string_view::npos)
      found.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return found;
}

// Tests begin without variables of the library and set some; those that were there before come back.
class EnvironmentTest : public testing::Test {
 protected:
  EnvironmentTest() { clear(); }
  ~EnvironmentTest() override {
    clear();
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }

  static void clear() {
    for (const auto& [name, value] : variables()) unsetenv(name.c_str());
  }

  static std::string error() {
    WorldOptions options;
    const absl::Status status = apply_environment(&options);
    EXPECT_EQ(error_kind(status), ErrorKind::kInvalidArgument) << status;
    return std::string(status.message());
  }
  static WorldOptions applied(WorldOptions options = {}) {
    const absl::Status status = apply_environment(&options);
    EXPECT_TRUE(status.ok()) << status;
    return options;
  }

 private:
  const std::map<std::string, std::string> before_ = variables();
};

// A run of these tests under some of the variables.
TEST(EnvironmentFixtureTest, TakesEachVariableAwayAndBringsItBack) {
  class Case : public EnvironmentTest {
    void TestBody() override {}
  };
  const std::map<std::string, std::string> before = variables();
  setenv("RANKLOOM_FAULTS", "hang@rank=0", 1);
  setenv("RANKLOOM_OF_TOMORROW", "a=b", 1);
  {
    const Case test;
    EXPECT_THAT(variables(), testing::IsEmpty());
    setenv("RANKLOOM_SEED", "1", 1);
  }
  std::map<std::string, std::string> after = variables();
  EXPECT_EQ(after["RANKLOOM_FAULTS"], "hang@rank=0");
  EXPECT_EQ(after["RANKLOOM_OF_TOMORROW"], "a=b");
  unsetenv("RANKLOOM_OF_TOMORROW");
  unsetenv("RANKLOOM_FAULTS");
  unsetenv("RANKLOOM_SEED");
  for (const auto& [name, value] : before) setenv(name.c_str(), value.c_str(), 1);
  EXPECT_EQ(variables(), before);
}

TEST_F(EnvironmentTest, AnEmptyOneChangesNothing) {
  const WorldOptions options =
      applied({.world_size = 3, .engine = EngineKind::kFibers, .schedule = Schedule::seeded(4)});
  EXPECT_EQ(options.world_size, 3);
  EXPECT_EQ(options.engine, EngineKind::kFibers);
  EXPECT_EQ(options.schedule.text(), "seeded:4");
  EXPECT_FALSE(options.break_at.has_value());
}

TEST_F(EnvironmentTest, NamesTheEngine) {
  setenv("RANKLOOM_ENGINE", "fibers", 1);
  EXPECT_EQ(applied().engine, EngineKind::kFibers);
  setenv("RANKLOOM_ENGINE", "threads", 1);
  EXPECT_EQ(applied({.engine = EngineKind::kFibers}).engine, EngineKind::kThreads);
  setenv("RANKLOOM_ENGINE", "goroutines", 1);
  EXPECT_EQ(error(), "RANKLOOM_ENGINE is \"goroutines\", want threads or fibers");
}

TEST_F(EnvironmentTest, NamesTheSeed) {
  setenv("RANKLOOM_SEED", "18446744073709551615", 1);
  EXPECT_EQ(applied({.schedule = Schedule::fifo()}).schedule.text(), "seeded:18446744073709551615");
  for (const char* wrong : {"", "-1", "seven", "18446744073709551616"}) {
    setenv("RANKLOOM_SEED", wrong, 1);
    EXPECT_EQ(error(), std::string("RANKLOOM_SEED is \"") + wrong + "\", want a number from 0 to 2^64 - 1");
  }
}

TEST_F(EnvironmentTest, NamesTheSchedule) {
  setenv("RANKLOOM_SCHEDULE", "pct:3:4", 1);
  EXPECT_EQ(applied().schedule.text(), "pct:3:4");
  setenv("RANKLOOM_SEED", "1", 1);
  EXPECT_EQ(applied().schedule.text(), "pct:3:4");  // the schedule says more
  setenv("RANKLOOM_SCHEDULE", "chaotic", 1);
  EXPECT_THAT(error(), StartsWith("RANKLOOM_SCHEDULE: schedule \"chaotic\" is none of free, fifo, round_robin"));
}

TEST_F(EnvironmentTest, NamesTheTraceToReplay) {
  const RunReport report = run_world({.world_size = 3, .schedule = Schedule::seeded(9)}, [](RankContext& rank) {
    for (int i = 0; i < 4; ++i) rank.yield();
  });
  const TempDir dir;
  const std::string path = dir.file("run.rltrace");
  ASSERT_TRUE(report.trace.save(path).ok());
  setenv("RANKLOOM_REPLAY", path.c_str(), 1);
  setenv("RANKLOOM_SEED", "1", 1);
  const WorldOptions options = applied();
  ASSERT_NE(options.schedule.trace(), nullptr);
  EXPECT_EQ(*options.schedule.trace(), report.trace);
  // The command by which a failing replay is run again.
  EXPECT_THAT(rerun_command(options), StartsWith("RANKLOOM_ENGINE=threads RANKLOOM_REPLAY=" + path + " "));
  setenv("RANKLOOM_REPLAY", "/nowhere/at/all", 1);
  EXPECT_THAT(error(), StartsWith("RANKLOOM_REPLAY: "));
  EXPECT_THAT(error(), HasSubstr("/nowhere/at/all"));
}

TEST_F(EnvironmentTest, NamesABreakPoint) {
  setenv("RANKLOOM_BREAK_AT", "2:tp:1:15", 1);
  const WorldOptions options = applied();
  ASSERT_TRUE(options.break_at.has_value());
  EXPECT_EQ(options.break_at->rank, 2);
  EXPECT_EQ(options.break_at->group, "tp:1");
  EXPECT_EQ(options.break_at->seq, 15);
  for (const char* wrong : {"", "2", "2:0", "two:0:15", "-2:0:15", "2:0:x", "2:0:-1"}) {
    setenv("RANKLOOM_BREAK_AT", wrong, 1);
    EXPECT_EQ(error(),
              std::string("RANKLOOM_BREAK_AT: break point \"") + wrong + "\" is not RANK:GROUP:SEQ, such as 2:0:15");
  }
}

TEST_F(EnvironmentTest, NamesHowMuchOfATraceIsKept) {
  EXPECT_EQ(applied().trace_limit, 10'000'000u);
  EXPECT_EQ(applied({.trace_limit = 5}).trace_limit, 5u);
  setenv("RANKLOOM_TRACE_LIMIT", "0", 1);
  EXPECT_EQ(applied({.trace_limit = 5}).trace_limit, 0u);
  setenv("RANKLOOM_TRACE_LIMIT", "18446744073709551615", 1);
  EXPECT_EQ(applied().trace_limit, Trace::kWhole);
  for (const char* wrong : {"", "-1", "all", "1.5"}) {
    setenv("RANKLOOM_TRACE_LIMIT", wrong, 1);
    EXPECT_EQ(error(), std::string("RANKLOOM_TRACE_LIMIT is \"") + wrong + "\", want a number of choices from 0");
  }
}

// A run that a misspelt one was to repeat would go as ever, and pass.
TEST_F(EnvironmentTest, AMisspeltOneIsRefused) {
  for (const auto& [wrong, want] :
       std::vector<std::pair<std::string, std::string>>{{"SEDE", "SEED"},
                                                        {"SEEDS", "SEED"},
                                                        {"SPEED", "SEED"},
                                                        {"REPORTS", "REPORT"},
                                                        {"SHEDUEL", "SCHEDULE"},
                                                        {"REPLAY_RNUS", "REPLAY_RUN"},
                                                        {"BREAKAT", "BREAK_AT"},
                                                        {"STALLS_FATAL", "STALL_IS_FATAL"}}) {
    const std::string name = "RANKLOOM_" + wrong;
    setenv(name.c_str(), "1", 1);
    const std::string text = name + " is no variable of rankloom, want RANKLOOM_" + want;
    EXPECT_EQ(error(), text);
    const RunReport report = run_world({.world_size = 2}, [](RankContext&) {});
    EXPECT_THAT(report.text(), HasSubstr(text));
    unsetenv(name.c_str());
  }
  // Others are a program's own.
  for (const char* own : {"RANKLOOM_", "RANKLOOM_SEE_DS", "RANKLOOM_LOG", "RANKLOOM_REPLICAS",
                          "RANKLOOM_SCHEDULES_OF_MINE", "RANKLOOM_TRACE"}) {
    setenv(own, "1", 1);
    EXPECT_EQ(applied().schedule.text(), WorldOptions().schedule.text()) << own;
    unsetenv(own);
  }
}

TEST_F(EnvironmentTest, NamesFaults) {
  EXPECT_TRUE(applied().faults.empty());
  setenv("RANKLOOM_FAULTS", "delay@rank=1,by=2s;seeded:7:0.01:crash", 1);
  EXPECT_EQ(applied({.faults = {{.kind = Fault::Kind::kHang}}}).faults.text(),
            "delay@rank=1,by=2s;seeded:7:0.01:crash");
  setenv("RANKLOOM_FAULTS", "flood", 1);
  EXPECT_THAT(error(),
              StartsWith("RANKLOOM_FAULTS: fault \"flood\": unknown kind \"flood\", want KIND[@NAME=VALUE,...] "
                         "with KIND one of crash hang delay drop duplicate corrupt abort store_timeout and"));
  setenv("RANKLOOM_FAULTS", "crash@rank=1,seq=2,rank=2", 1);
  EXPECT_THAT(error(), StartsWith("RANKLOOM_FAULTS: fault \"crash@rank=1,seq=2,rank=2\": \"rank\" twice, want KIND"));
}

TEST_F(EnvironmentTest, NamesWhenAStallIsFatal) {
  setenv("RANKLOOM_STALL_IS_FATAL", "90s", 1);
  EXPECT_EQ(applied().stall_is_fatal, absl::Seconds(90));
  setenv("RANKLOOM_STALL_IS_FATAL", "0", 1);
  EXPECT_EQ(applied({.stall_is_fatal = absl::Seconds(5)}).stall_is_fatal, absl::ZeroDuration());
  for (const char* wrong : {"", "-1s", "soon", "90"}) {
    setenv("RANKLOOM_STALL_IS_FATAL", wrong, 1);
    EXPECT_EQ(error(), std::string("RANKLOOM_STALL_IS_FATAL is \"") + wrong +
                           "\", want a duration, as 90s or 2m, or 0 for never");
  }
}

TEST_F(EnvironmentTest, NamesTheRanksOfASearch) {
  EXPECT_EQ(*ranks_from_environment(1), 0);
  setenv("RANKLOOM_RANKS", "5", 1);
  EXPECT_EQ(*ranks_from_environment(1), 5);
  EXPECT_EQ(*ranks_from_environment(2), 5);
  setenv("RANKLOOM_REPLAY_RUN", "2", 1);
  EXPECT_EQ(*ranks_from_environment(1), 0);
  EXPECT_EQ(*ranks_from_environment(2), 5);
  unsetenv("RANKLOOM_REPLAY_RUN");
  for (const char* wrong : {"", "0", "-1", "all"}) {
    setenv("RANKLOOM_RANKS", wrong, 1);
    EXPECT_EQ(ranks_from_environment(1).status().message(),
              std::string("RANKLOOM_RANKS is \"") + wrong + "\", want a number from 1");
  }
}

TEST_F(EnvironmentTest, NamesWhereTracesGo) {
  EXPECT_EQ(run_files_from_environment()->folder, "");
  EXPECT_EQ(run_files_from_environment()->replayed_run, 1);
  EXPECT_EQ(run_files_from_environment()->reports, "");
  setenv("RANKLOOM_TRACE_DIR", "/some/where", 1);
  setenv("RANKLOOM_REPORT", "/where/else", 1);
  setenv("RANKLOOM_REPLAY_RUN", "3", 1);
  EXPECT_EQ(run_files_from_environment()->reports, "/where/else");
  EXPECT_EQ(run_files_from_environment()->folder, "/some/where");
  EXPECT_EQ(run_files_from_environment()->replayed_run, 3);
  for (const char* wrong : {"0", "-1", "first"}) {
    setenv("RANKLOOM_REPLAY_RUN", wrong, 1);
    EXPECT_EQ(run_files_from_environment().status().message(),
              std::string("RANKLOOM_REPLAY_RUN is \"") + wrong + "\", want a number from 1");
  }
}

TEST_F(EnvironmentTest, TheRerunCommandSetsWhatTheRunHad) {
  EXPECT_EQ(rerun_command({}), "");
  EXPECT_THAT(rerun_command({.engine = EngineKind::kFibers}),
              StartsWith("RANKLOOM_ENGINE=fibers RANKLOOM_SCHEDULE=fifo "));
  EXPECT_THAT(rerun_command({.schedule = Schedule::seeded(7)}), StartsWith("RANKLOOM_ENGINE=threads RANKLOOM_SEED=7 "));
  EXPECT_THAT(rerun_command({.schedule = Schedule::pct(7, 2)}),
              StartsWith("RANKLOOM_ENGINE=threads RANKLOOM_SCHEDULE=pct:7:2 "));
  unsetenv("RANKLOOM_REPLAY");
  EXPECT_THAT(rerun_command({.schedule = Schedule::replay(Trace())}),
              StartsWith("RANKLOOM_ENGINE=threads RANKLOOM_REPLAY='<the same trace>' "));
  EXPECT_THAT(rerun_command({.schedule = Schedule::seeded(7)}, "/a b/it's"),
              StartsWith("RANKLOOM_ENGINE=threads RANKLOOM_REPLAY='/a b/it'\\''s' "));
}

// ---- run_world()

constexpr auto kFails = [](RankContext& rank) {
  for (int i = 0; i < 4; ++i) rank.yield();
  if (rank.rank() == 1) throw std::runtime_error("planned");
};

TEST_F(EnvironmentTest, IsObeyedByEachRunOfAProgram) {
  const WorldOptions options = {.world_size = 3, .engine = EngineKind::kThreads, .schedule = Schedule::seeded(4)};
  const RunReport before = run_world(options, kFails);
  EXPECT_EQ(before.schedule, "seeded:4");
  setenv("RANKLOOM_SEED", "9", 1);
  setenv("RANKLOOM_ENGINE", "fibers", 1);
  for (int i = 0; i < 2; ++i) {
    const RunReport report = run_world(options, kFails);
    EXPECT_EQ(report.schedule, "seeded:9");
    EXPECT_EQ(report.engine, "fibers");
  }
}

// The number of the run that failed, as its rerun line has it.
int run_of(const RunReport& report) {
  const std::string name = "RANKLOOM_REPLAY_RUN=";
  EXPECT_THAT(report.rerun, StartsWith(name));
  EXPECT_THAT(report.text(), HasSubstr("run it again: " + name));
  return std::stoi(report.rerun.substr(name.size()));
}

TEST_F(EnvironmentTest, IsMeantForTheRunThatTheRerunLineNames) {
  const WorldOptions options = {.world_size = 3, .engine = EngineKind::kFibers, .schedule = Schedule::seeded(4)};
  run_world(options, kFails);
  const int last = run_of(run_world(options, kFails));
  setenv("RANKLOOM_SEED", "9", 1);
  setenv("RANKLOOM_REPLAY_RUN", std::to_string(last + 2).c_str(), 1);
  EXPECT_EQ(run_world(options, kFails).schedule, "seeded:4");
  const RunReport meant = run_world(options, kFails);
  EXPECT_EQ(meant.schedule, "seeded:9");
  EXPECT_EQ(run_of(meant), last + 2);
  EXPECT_EQ(run_world(options, kFails).schedule, "seeded:4");
}

TEST_F(EnvironmentTest, TheRerunCommandNamesEachRunButTheFirst) {
  EXPECT_EQ(rerun_of_run(1, "RANKLOOM_SEED=7 ./a"), "RANKLOOM_SEED=7 ./a");
  EXPECT_EQ(rerun_of_run(2, "RANKLOOM_SEED=7 ./a"), "RANKLOOM_REPLAY_RUN=2 RANKLOOM_SEED=7 ./a");
  EXPECT_EQ(rerun_of_run(2, ""), "");
}

TEST_F(EnvironmentTest, ATraceIsReplayedByTheRunThatItBelongsToOnly) {
  const WorldOptions options = {.world_size = 3, .engine = EngineKind::kFibers, .schedule = Schedule::seeded(4)};
  run_world(options, kFails);
  const RunReport recorded = run_world(options, kFails);
  const TempDir dir;
  const std::string path = dir.file("run.rltrace");
  ASSERT_TRUE(recorded.trace.save(path).ok());
  setenv("RANKLOOM_REPLAY", path.c_str(), 1);
  EXPECT_EQ(run_world(options, kFails).schedule, "seeded:4");  // the first of the process was long ago
  setenv("RANKLOOM_REPLAY_RUN", std::to_string(run_of(recorded) + 2).c_str(), 1);
  const RunReport replayed = run_world(options, kFails);
  EXPECT_EQ(replayed.trace, recorded.trace);
  EXPECT_THAT(replayed.rerun, HasSubstr("RANKLOOM_REPLAY=" + path));
}

TEST_F(EnvironmentTest, ThatMakesNoSenseFailsTheRun) {
  setenv("RANKLOOM_SEED", "seven", 1);
  const RunReport report = run_world({.world_size = 2}, [](RankContext&) { ADD_FAILURE() << "no rank runs"; });
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report.text(), "InvalidArgument: RANKLOOM_SEED is \"seven\", want a number from 0 to 2^64 - 1");
  EXPECT_THAT([&] { report.throw_if_failed(); }, testing::Throws<DistError>());
}

// The words of a command as a shell reads them.
TEST(ShellQuotedTest, QuotesWhatAShellWouldRead) {
  EXPECT_EQ(shell_quoted(""), "''");
  EXPECT_EQ(shell_quoted("-k=a/b:c,d@e%f+g.h_1"), "-k=a/b:c,d@e%f+g.h_1");
  EXPECT_EQ(shell_quoted("a b"), "'a b'");
  EXPECT_EQ(shell_quoted("it's"), "'it'\\''s'");
}

}  // namespace
}  // namespace rankloom

// Runs as files: when one is written, where, and what reports say of it. The command's tests read them back.
#include "world/run_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "rankloom/world.h"
#include "tests/error_of.h"
#include "tests/temp_dir.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using testing::StartsWith;

class RunFileTest : public EveryWorldTest {
 protected:
  RunFileTest() { unsetenv("RANKLOOM_REPORT"); }
  ~RunFileTest() override { unsetenv("RANKLOOM_REPORT"); }

  RunReport fails() {
    return run_to_failure(3, [](RankContext& rank) {
      if (rank.rank() == 1) throw std::runtime_error("no batch");
      rank.store().wait({"never"});
    });
  }

  TempDir folder_;
};
INSTANTIATE_TEST_SUITE_P(Worlds, RunFileTest, every_world(), world_name);

TEST_P(RunFileTest, TheReportOfAFailedRunEndsWithItsFile) {
  const std::string into = folder_.file("made/when/missing");
  setenv("RANKLOOM_REPORT", into.c_str(), 1);
  const RunReport report = fails();
  ASSERT_THAT(report.text(), MatchesRegex("(.|\n)*\nrun file: [^\n]*/world_run_file_test\\.run[0-9]+\\.rlrun; see it: "
                                          "rankloom report [^\n]*\\.rlrun -o run\\.html"));
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(into)) {
    ++files;
    EXPECT_THAT(report.run_file, HasSubstr(entry.path().string()));
    const std::string text = read_file(entry.path());
    EXPECT_THAT(text, StartsWith("{\"rlrun\":1,\"writer\":\"rankloom "));
    EXPECT_THAT(text, HasSubstr("\"states\":\"sfs\""));
    EXPECT_THAT(text, HasSubstr("rank 1 failed: no batch"));
    EXPECT_THAT(text, Not(HasSubstr("see it")));
  }
  EXPECT_EQ(files, 1U);
}

TEST_P(RunFileTest, TheCommandThatShowsItIsAShells) {
  const std::string into = folder_.file("it's here");
  setenv("RANKLOOM_REPORT", into.c_str(), 1);
  EXPECT_THAT(fails().text(),
              MatchesRegex("(.|\n)*\nrun file: [^\n]*/it's here/[^\n]*\\.rlrun; see it: rankloom report "
                           "'[^\n]*/it'\\\\''s here/[^\n]*\\.rlrun' -o run\\.html"));
}

TEST_P(RunFileTest, ARunThatGoesWellLeavesNoFile) {
  setenv("RANKLOOM_REPORT", folder_.file("none").c_str(), 1);
  EXPECT_EQ(run(2, [](RankContext&) {}).text(), "ok");
  EXPECT_FALSE(std::filesystem::exists(folder_.file("none")));
}

TEST_P(RunFileTest, SaysWhyThereIsNoFile) {
  std::ofstream(folder_.file("file")) << "no folder";
  setenv("RANKLOOM_REPORT", folder_.file("file").c_str(), 1);
  EXPECT_THAT(fails().text(), EndsWith("cannot be written: Not a directory"));
  EXPECT_THAT(fails().text(), HasSubstr("\nno run file: file \""));
}

TEST_P(RunFileTest, KeepsTheWaitsOfAStuckRun) {
  const RunReport report =
      run_to_failure(2, [](RankContext& rank) { rank.store().wait({rank.rank() == 0 ? "a" : "b"}); });
  ASSERT_NE(report.kept, nullptr);
  EXPECT_EQ(report.kept->stuck.waits.size(), 2U);
  const std::string text = run_file_text(report);
  EXPECT_THAT(text, HasSubstr("\"what\":\"store wait\""));
  EXPECT_THAT(text, HasSubstr("\"detail\":\"key \\\"a\\\"\""));
}

// Texts about who waits are asked for by more than deadlocks.
TEST_P(RunFileTest, AWaitThatTimedOutBeforeTheFailureIsNoStuckRun) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    if (rank.rank() == 1) return;
    EXPECT_THAT(error_of([&] { rank.store().wait({"k"}, absl::Milliseconds(2)); }), HasSubstr("rank 0 waits in store"));
    EXPECT_THAT(rank.world().describe(), HasSubstr("rank 0 runs"));
    throw std::runtime_error("no batch");
  });
  ASSERT_NE(report.kept, nullptr);
  EXPECT_TRUE(report.kept->stuck.waits.empty());
  EXPECT_THAT(run_file_text(report), HasSubstr("waits at the end: known of a run in which no rank can move only"));
}

TEST_P(RunFileTest, KeepsNothingOfARunThatGoesWellUnlessAsked) {
  const RunReport report = run(2, [](RankContext&) {});
  EXPECT_EQ(report.kept, nullptr);
  EXPECT_THAT(run_file_text(report), HasSubstr("only with WorldOptions::keep_run"));
  WorldOptions asked = options(2);
  asked.keep_run = true;
  EXPECT_NE(run(asked, [](RankContext&) {}).kept, nullptr);
}

TEST_P(RunFileTest, ABadPathIsNamed) {
  const absl::Status written = run(1, [](RankContext&) {}).write_run(folder_.file("missing/run.rlrun"));
  EXPECT_THAT(std::string(written.message()), EndsWith("cannot be written: No such file or directory"));
}

}  // namespace
}  // namespace rankloom

// Runs as files: when one is written, where, and what reports say of it. The command's tests read them back.
#include "world/run_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>

#include "absl/strings/str_cat.h"
#include "rankloom/faults.h"
#include "rankloom/sync.h"
#include "rankloom/world.h"
#include "sim/base/printable.h"
#include "tests/error_of.h"
#include "tests/temp_dir.h"
#include "tests/world/every_world.h"
#include "world/run_data.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AllOf;
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
  ASSERT_THAT(report.text(), MatchesRegex("(.|\n)*\nrun file: [^\n]*/world_[a-z_]*\\.run[0-9]+\\.rlrun; see it: "
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

TEST_P(RunFileTest, ARelativeFolderIsThatOfTheBeginning) {
  (void)run(1, [](RankContext&) {});  // the process's first world, at the latest
  const std::filesystem::path here = std::filesystem::current_path();
  setenv("RANKLOOM_REPORT", std::filesystem::relative(folder_.file("kept")).c_str(), 1);
  std::filesystem::current_path("/");
  const RunReport report = fails();
  std::filesystem::current_path(here);
  EXPECT_THAT(report.run_file, StartsWith("run file: /"));
  EXPECT_FALSE(std::filesystem::is_empty(folder_.file("kept")));
}

TEST_P(RunFileTest, AnEmptyFolderIsNoneFromAnywhere) {
  (void)run(1, [](RankContext&) {});
  const std::filesystem::path here = std::filesystem::current_path();
  setenv("RANKLOOM_REPORT", "", 1);
  std::filesystem::current_path("/");
  const RunReport report = fails();
  std::filesystem::current_path(here);
  EXPECT_EQ(report.run_file, "");
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

TEST_P(RunFileTest, KeepsRanksAsRanges) {
  const RunReport report = run_to_failure(5, [](RankContext& rank) {
    if (rank.rank() != 2) rank.store().wait({"never"});
  });
  EXPECT_THAT(run_file_text(report), HasSubstr("{\"ranks\":[[0,1],[3,4]],"));
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
  EXPECT_THAT(run_file_text(report), HasSubstr("waits at the end: known only of a run in which no rank could move"));
}

TEST_P(RunFileTest, KeepsNothingOfARunThatGoesWellUnlessAsked) {
  const RunReport report = run(2, [](RankContext&) {});
  EXPECT_EQ(report.kept, nullptr);
  EXPECT_THAT(run_file_text(report), HasSubstr("only with WorldOptions::keep_run"));
  WorldOptions asked = options(2);
  asked.keep_run = true;
  EXPECT_NE(run(asked, [](RankContext&) {}).kept, nullptr);
}

// Of a run with operations of all kinds on the store.
void uses_the_store(RankContext& rank) {
  Store& store = rank.store();
  if (rank.rank() == 0) {
    store.set("long", std::string(100, 'x'));
    store.set("bytes", std::string("a\0\xff", 3));
    store.add("count", 5);
    store.queue_push("queue", "pushed");
    store.multi_set({"one", "two"}, {"1", "22"});
  } else {
    (void)store.get("long");
    (void)store.multi_get({"one", "two"});
    EXPECT_EQ(store.queue_pop("queue"), "pushed");
    EXPECT_TRUE(store.check({"long", "one"}));
    EXPECT_EQ(store.compare_set("count", "4", "6"), "5");
    throw std::runtime_error("no batch");
  }
}

TEST_P(RunFileTest, KeepsWhatRanksDidWithTheStore) {
  WorldOptions asked = options(2);
  asked.keep_run = true;
  const std::string text = run_file_text(run_to_failure(asked, uses_the_store));
  const std::string x(64, 'x');
  EXPECT_THAT(text, HasSubstr("{\"t\":\"store\",\"rank\":0,\"made\":5,\"ops\":["));
  EXPECT_THAT(text, HasSubstr("{\"op\":\"store set\",\"key\":\"long\",\"given\":\"" + x + "\",\"given_bytes\":100,"));
  EXPECT_THAT(text, HasSubstr("\"given\":\"a\\u0000\\\\xff\",\"given_bytes\":3,"));
  EXPECT_THAT(text,
              HasSubstr("{\"op\":\"store add\",\"key\":\"count\",\"given\":\"5\",\"given_bytes\":1,\"got\":\"5\","));
  EXPECT_THAT(text, HasSubstr("{\"op\":\"store get\",\"key\":\"long\",\"got\":\"" + x + "\",\"got_bytes\":100,"));
  EXPECT_THAT(text, HasSubstr("\"key\":\"one\",\"keys\":2,\"got\":\"1\",\"got_bytes\":3,"));
  EXPECT_THAT(text, HasSubstr("{\"op\":\"store queue_pop\",\"key\":\"queue\",\"got\":\"pushed\",\"got_bytes\":6,"));
  EXPECT_THAT(text, HasSubstr("\"keys\":2,\"got\":\"true\","));
  EXPECT_EQ(text.find("\"step\":") != std::string::npos, deterministic());
  EXPECT_EQ(text.find("steps: a run without a schedule") != std::string::npos, !deterministic());
}

TEST_P(RunFileTest, KeepsEmptyValues) {
  WorldOptions asked = options(1);
  asked.keep_run = true;
  const std::string text = run_file_text(run(asked, [](RankContext& rank) {
    rank.store().set("empty", "");
    EXPECT_EQ(rank.store().get("empty"), "");
  }));
  EXPECT_THAT(text, HasSubstr("{\"op\":\"store set\",\"key\":\"empty\",\"given\":\"\",\"given_bytes\":0,"));
  EXPECT_THAT(text, HasSubstr("{\"op\":\"store get\",\"key\":\"empty\",\"got\":\"\",\"got_bytes\":0,"));
}

// The wait at the end is open, and the operation that fails has no value.
TEST_P(RunFileTest, KeepsWhatEndedNoMore) {
  WorldOptions asked = options(2);
  asked.keep_run = true;
  const RunReport report = run_to_failure(asked, [](RankContext& rank) {
    if (rank.rank() == 0) (void)rank.store().get("never");
    rank.sleep_for(absl::Milliseconds(1));  // virtual: rank 0 has come to its wait
    rank.store().set("text", "no number");
    rank.store().add("text", 1);
  });
  ASSERT_NE(report.kept, nullptr);
  const std::vector<StoreOperation> waited = report.kept->ranks[0].store.last, added = report.kept->ranks[1].store.last;
  ASSERT_EQ(added.size(), 2U);
  EXPECT_EQ(added[0].state, StoreOperation::State::kDone);
  EXPECT_EQ(added[1].state, StoreOperation::State::kFailed);
  if (!deterministic()) return;  // rank 0 may not have come so far
  EXPECT_LT(added[0].begun_step, added[1].begun_step);
  ASSERT_EQ(waited.size(), 1U);
  EXPECT_EQ(waited[0].state, StoreOperation::State::kFailed);  // the end of the world took the rank out of it
  EXPECT_EQ(waited[0].got.bytes, -1);
  EXPECT_LT(waited[0].begun_step, waited[0].ended_step);
}

TEST_P(RunFileTest, KeepsTheLastOperationsOnly) {
  WorldOptions asked = options(1);
  asked.keep_run = true;
  asked.recorded_calls = 3;
  const RunReport report = run(asked, [](RankContext& rank) {
    for (int i = 0; i < 10; ++i) rank.store().add("n", 1);
  });
  ASSERT_NE(report.kept, nullptr);
  const OperationLog::StoreOperations& kept = report.kept->ranks[0].store;
  EXPECT_EQ(kept.made, 10);
  ASSERT_EQ(kept.last.size(), 3U);
  EXPECT_EQ(kept.last[0].got.shown, "8");
  EXPECT_EQ(kept.last[2].got.shown, "10");
  EXPECT_THAT(run_file_text(report), HasSubstr("operations on the store: 7 of 10 are gone"));
}

// An operation of a helper that others overtake: its end is its own, or nobody's once its place is another's.
TEST_P(RunFileTest, AnOperationThatEndsLateIsNoOther) {
  if (!deterministic()) GTEST_SKIP() << "when a helper has come to its wait is the machine's";
  for (const int overtake : {2, 3}) {
    WorldOptions asked = options(1);
    asked.keep_run = true;
    asked.recorded_calls = 3;
    const RunReport report = run(asked, [&](RankContext& rank) {
      Store& store = rank.store();
      const auto begun = std::make_shared<Latch>(1), ended = std::make_shared<Latch>(1);
      rank.world().spawn_helper([&store, begun, ended] {
        begun->count_down();
        (void)store.get("k");
        ended->count_down();
      });
      begun->wait();
      rank.sleep_for(absl::Milliseconds(1));  // virtual: the helper has come to its wait
      for (int i = 1; i < overtake; ++i) store.add("n", 1);
      store.set("k", "v");
      ended->wait();
    });
    ASSERT_NE(report.kept, nullptr);
    const OperationLog::StoreOperations& kept = report.kept->ranks[0].store;
    EXPECT_EQ(kept.made, overtake + 1);
    ASSERT_EQ(kept.last.size(), 3U);
    for (const StoreOperation& operation : kept.last) EXPECT_EQ(operation.state, StoreOperation::State::kDone);
    EXPECT_EQ(kept.last[2].got.bytes, -1);  // the set
    EXPECT_EQ(kept.last[1].got.shown, absl::StrCat(overtake - 1));
    EXPECT_EQ(kept.last[0].got.shown, overtake == 2 ? "v" : "1");
  }
}

TEST_P(RunFileTest, KeepsNothingOfTheStoreUnlessAsked) {
  const auto text = [this] {
    return run_file_text(run_to_failure(1, [](RankContext& rank) {
      rank.store().set("key", "value");
      throw std::runtime_error("no batch");
    }));
  };
  EXPECT_THAT(text(), AllOf(Not(HasSubstr("\"t\":\"store\"")),
                            HasSubstr("steps of calls, and operations on the store: kept only with")));
  setenv("RANKLOOM_REPORT", folder_.file("asked").c_str(), 1);
  EXPECT_THAT(text(), HasSubstr("{\"op\":\"store set\",\"key\":\"key\",\"given\":\"value\",\"given_bytes\":5,"));
}

// A run that is kept is the same run: operations come to no further scheduling points.
TEST_P(RunFileTest, ARunThatIsKeptIsTheSame) {
  if (!deterministic()) return;
  const auto program = [](RankContext& rank) {
    Store& store = rank.store();
    for (int i = 0; i < 5; ++i) {
      store.queue_push(std::to_string(rank.rank()), "x");
      EXPECT_EQ(store.queue_pop(std::to_string((rank.rank() + 1) % 3)), "x");
      store.wait({"go", "on"}, absl::ZeroDuration() + (rank.rank() == 0 ? absl::Seconds(1) : absl::Seconds(2)));
    }
  };
  const auto run_of = [&](bool keep) {
    WorldOptions asked = options(3);
    asked.keep_run = keep;
    return run(asked, [&](RankContext& rank) {
      if (rank.rank() == 2) rank.store().multi_set({"go", "on"}, {"1", "2"});
      program(rank);
    });
  };
  const RunReport plain = run_of(false), kept = run_of(true);
  EXPECT_EQ(plain.steps, kept.steps);
  EXPECT_TRUE(plain.trace == kept.trace) << first_difference(plain.trace, kept.trace);
}

TEST_P(RunFileTest, ABadPathIsNamed) {
  const absl::Status written = run(1, [](RankContext&) {}).write_run(folder_.file("missing/run.rlrun"));
  EXPECT_THAT(std::string(written.message()), EndsWith("cannot be written: No such file or directory"));
}

TEST_P(RunFileTest, HasWhatTheWorldWasGiven) {
  WorldOptions asked = options(2);
  asked.keep_run = true;
  asked.timeout = absl::Seconds(7);
  asked.seed = 9;
  asked.faults = *FaultPlan::parse("delay@rank=1,nth=5,by=1ms");
  const std::string text = run_file_text(run(asked, [](RankContext&) {}));
  EXPECT_THAT(
      text, HasSubstr(absl::StrCat("\"timeout_ns\":7000000000,\"warn_after_ns\":-1,\"seed\":\"9\",\"planned_faults\":",
                                   json_string(asked.faults.text()), ",")));
  asked.warn_after = absl::Seconds(3);
  asked.timeout = absl::InfiniteDuration();
  EXPECT_THAT(run_file_text(run(asked, [](RankContext&) {})),
              HasSubstr("\"timeout_ns\":-1,\"warn_after_ns\":3000000000,"));
}

TEST_P(RunFileTest, KeepsWholeCharactersAndWhatKeysThereAre) {
  WorldOptions asked = options(1);
  asked.keep_run = true;
  const std::string x(63, 'x');
  const std::string text = run_file_text(run(asked, [&x](RankContext& rank) {
    rank.store().set("k", x + "\xc3\xa9");  // 65 bytes, of which the 64th is half a letter
    (void)rank.store().list_keys();
    (void)rank.store().delete_key("k");
    (void)rank.store().delete_key("k");
  }));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("\"given\":\"", x, "\",\"given_bytes\":65,")));
  EXPECT_THAT(text, HasSubstr("{\"op\":\"store list_keys\",\"got\":\"1\","));
  EXPECT_THAT(text, HasSubstr("{\"op\":\"store delete_key\",\"key\":\"k\",\"got\":\"true\","));
  EXPECT_THAT(text, HasSubstr("{\"op\":\"store delete_key\",\"key\":\"k\",\"got\":\"false\","));
}

}  // namespace
}  // namespace rankloom

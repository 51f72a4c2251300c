// The report of a run: the first failure leads, the others are folded under it, and how to run it again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "rankloom/world.h"
#include "sim/base/blame.h"
#include "tests/error_of.h"
#include "tests/world/every_world.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class ReportTest : public testing::TestWithParam<WorldMode> {};
INSTANTIATE_TEST_SUITE_P(Gears, ReportTest, every_world(), world_name);

TEST_P(ReportTest, ARunInWhichAllReturnIsOk) {
  const RunReport report = run_world(GetParam().options(2), [](RankContext&) {});
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.text(), "ok");
  EXPECT_EQ(report.first_failed, -1);
  EXPECT_NO_THROW(report.throw_if_failed());
}

TEST_P(ReportTest, TheFirstFailureLeadsAndTheOthersAreFoldedUnderIt) {
  const RunReport report = run_world(GetParam().options(5), [](RankContext& rank) {
    if (rank.rank() == 3) throw std::runtime_error("planned");
    rank.store().wait({"never"});
  });
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report.first_failed, 3);
  EXPECT_THAT(report.text(), StartsWith("rank 3 failed: planned (std::runtime_error)\nranks 0-2, 4 stopped for it"));
  EXPECT_EQ(report.outcomes[3].state, RunReport::Outcome::State::kFailed);
  EXPECT_THROW(std::rethrow_exception(report.outcomes[3].exception), std::runtime_error);
  for (const int rank : {0, 1, 2, 4}) {
    EXPECT_EQ(report.outcomes[static_cast<size_t>(rank)].state, RunReport::Outcome::State::kStopped) << rank;
    EXPECT_THAT(report.outcomes[static_cast<size_t>(rank)].text, HasSubstr("rank 3 failed: planned"));
  }
  EXPECT_EQ(error_of([&] { report.throw_if_failed(); }, ErrorKind::kRankFailed), "RankFailed: " + report.text());
}

TEST_P(ReportTest, RanksThatFailAlikeShareALine) {
  const RunReport report = run_world(GetParam().options(4), [](RankContext& rank) {
    if (rank.rank() == 2) return;
    // No point in between: each fails by itself.
    throw std::runtime_error(rank.rank() == 1 ? "other" : "same");
  });
  EXPECT_THAT(report.text(), HasSubstr("ranks 0, 3 failed: same"));
  EXPECT_THAT(report.text(), HasSubstr("rank 1 failed: other"));
  EXPECT_EQ(report.outcomes[2].state, RunReport::Outcome::State::kReturned);
}

TEST_P(ReportTest, RanksWhoseFailuresDifferInTheirRankOnlyShareALine) {
  RunReport report;
  report.first_failed = 2;
  const auto failed = [](int rank, const std::string& what) {
    return RunReport::Outcome{.state = RunReport::Outcome::State::kFailed,
                              .text = "InvalidArgument: rank " + std::to_string(rank) + ", group 0, send: " + what,
                              .exception = nullptr};
  };
  report.outcomes = {failed(0, "no peer [a.cc:1]"), failed(1, "no tensor [a.cc:1]"), failed(2, "no peer [a.cc:1]"),
                     failed(3, "no peer [a.cc:1]")};
  report.notes = {"rank 1, group 0, send to rank 3: was never received [a.cc:9]", "something",
                  "rank 0, group 0, send to rank 3: was never received [a.cc:9]", "something",
                  "rank 2, group 0, send to rank 1: was never received [a.cc:9]"};
  EXPECT_EQ(report.text(),
            "ranks 0, 2-3 failed: InvalidArgument: group 0, send: no peer [a.cc:1]\n"
            "rank 1 failed: InvalidArgument: rank 1, group 0, send: no tensor [a.cc:1]\n"
            "note: ranks 0-1, group 0, send to rank 3: was never received [a.cc:9]\n"
            "note: something\n"
            "note: rank 2, group 0, send to rank 1: was never received [a.cc:9]");
}

TEST_P(ReportTest, ARankThatFailsIsNamedOnce) {
  const auto text_of = [](const std::string& what) {
    const RunReport report = run_world(GetParam().options(2), [&](RankContext& rank) {
      if (rank.rank() == 1)
        throw DistError(make_error(ErrorKind::kRankFailed, what), {.rank = 1, .group = {}, .op = {}});
    });
    return report.text().substr(0, report.text().find('\n'));
  };
  EXPECT_EQ(text_of("rank 1, group 0, send: no power [a.cc:1]"), "rank 1 failed: group 0, send: no power [a.cc:1]");
  EXPECT_EQ(text_of("rank 12, of another world: no power [a.cc:1]"),
            "rank 1 failed: rank 12, of another world: no power [a.cc:1]");
  EXPECT_EQ(text_of("no power [a.cc:1]"), "rank 1 failed: no power [a.cc:1]");
  // Nor does a note say again what leads.
  RunReport report;
  report.first_failed = 1;
  report.cause = make_error(ErrorKind::kRankFailed, "rank 1 failed: group 0, send: dropped [a.cc:1]");
  report.outcomes = {
      {.state = RunReport::Outcome::State::kStopped, .text = {}, .exception = nullptr},
      {.state = RunReport::Outcome::State::kFailed, .text = "group 0, send: dropped [a.cc:1]", .exception = nullptr}};
  report.notes = {"rank 1, group 0, send: dropped [a.cc:1]", "rank 0, group 0, recv: dropped [a.cc:1]"};
  EXPECT_EQ(report.text(),
            "rank 1 failed: group 0, send: dropped [a.cc:1]\nrank 0 stopped for it\n"
            "note: rank 0, group 0, recv: dropped [a.cc:1]");
}

TEST_P(ReportTest, WhateverARankThrowsIsCaught) {
  const RunReport report = run_world(GetParam().options(1), [](RankContext&) { throw 7; });
  EXPECT_THAT(report.text(), StartsWith("rank 0 failed: an exception that is no std::exception (int)"));
  EXPECT_EQ(error_of([&] { report.throw_if_failed(); }, ErrorKind::kRankFailed), "RankFailed: " + report.text());
}

TEST(ErrorTest, APrintedStatusNamesItsKind) {
  for (const auto& [kind, name] : {std::pair(ErrorKind::kInvalidArgument, "InvalidArgument"),
                                   {ErrorKind::kMismatch, "Mismatch"},
                                   {ErrorKind::kRankFailed, "RankFailed"},
                                   {ErrorKind::kDeadlock, "Deadlock"},
                                   {ErrorKind::kTimeout, "Timeout"},
                                   {ErrorKind::kAborted, "Aborted"},
                                   {ErrorKind::kStoreError, "StoreError"},
                                   {ErrorKind::kCollectiveError, "CollectiveError"}}) {
    const absl::Status status = make_error(kind, "text");
    EXPECT_EQ(error_kind(status), kind);
    EXPECT_EQ(status.ToString(),
              std::string(absl::StatusCodeToString(status.code())) + ": text [rankloom.kind='" + name + "']");
  }
}

// absl prints several payloads in the order of addresses: a printed status would differ from run to run.
TEST(ErrorTest, AStatusThatBlamesARankHasOnePayload) {
  const absl::Status blamed = blamed_on(2, make_error(ErrorKind::kTimeout, "rank 2 is late"), /*unwinds=*/true);
  const absl::Status later = blamed_as(make_error(ErrorKind::kAborted, "ended"), blamed);
  for (const absl::Status& status : {blamed, later}) {
    int payloads = 0;
    status.ForEachPayload([&](absl::string_view, const absl::Cord&) { ++payloads; });
    EXPECT_EQ(payloads, 1) << status;
    const std::optional<Blame> blame = blame_of(status);
    ASSERT_TRUE(blame.has_value());
    EXPECT_EQ(blame->rank, 2);
    EXPECT_TRUE(blame->unwinds);
    EXPECT_EQ(blame->status, make_error(ErrorKind::kTimeout, "rank 2 is late"));
  }
  EXPECT_EQ(error_kind(blamed), ErrorKind::kTimeout);
  EXPECT_EQ(error_kind(later), ErrorKind::kAborted);
  EXPECT_FALSE(blame_of(make_error(ErrorKind::kAborted, "2 1 0 nobody")).has_value());
  const absl::Status plain = make_error(ErrorKind::kMismatch, "m");
  EXPECT_EQ(blamed_as(plain, make_error(ErrorKind::kAborted, "nobody's")), plain);
}

TEST_P(ReportTest, ADistErrorKeepsItsKind) {
  const RunReport report = run_world(GetParam().options(2), [](RankContext& rank) {
    if (rank.rank() == 0) rank.store().wait({"never"}, absl::Milliseconds(1));
  });
  EXPECT_EQ(report.first_failed, 0);
  EXPECT_THAT(error_of([&] { report.throw_if_failed(); }, ErrorKind::kTimeout), HasSubstr("key \"never\""));
}

TEST_P(ReportTest, AnAbortOfTheProgramIsTheCause) {
  const RunReport report = run_world(GetParam().options(2), [](RankContext& rank) {
    if (rank.rank() == 0) rank.world().abort("enough of it", CodeSite{"dir/job.cc", 31});
    rank.store().wait({"never"});
  });
  EXPECT_EQ(report.first_failed, -1);
  EXPECT_THAT(report.text(),
              StartsWith("Aborted: rank 0 aborted the world: enough of it [job.cc:31]\nranks 0-1 stopped for it"));
  EXPECT_THAT(error_of([&] { report.throw_if_failed(); }, ErrorKind::kAborted), HasSubstr("enough of it"));
}

TEST_P(ReportTest, ADeadlockIsTheCauseWithWhoWaits) {
  const RunReport report = run_world(GetParam().options(3), [](RankContext& rank) {
    if (rank.rank() != 1) rank.store().wait({"never"}, CodeSite{"dir/job.cc", 31});
  });
  EXPECT_THAT(report.text(), StartsWith("Deadlock: no rank can move\n  ranks 0, 2 wait in store wait"));
  EXPECT_THAT(report.text(), HasSubstr("key \"never\""));
  EXPECT_THAT(report.text(), HasSubstr("[job.cc:31]"));
}

TEST_P(ReportTest, NotesAreTold) {
  const RunReport report =
      run_world(GetParam().options(1), [](RankContext& rank) { rank.world().note("something was left over"); });
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.text(), "ok\nnote: something was left over");
}

TEST_P(ReportTest, AFailureOfADeterministicRunSaysHowToRunItAgain) {
  const WorldMode& gear = GetParam();
  const RunReport report = run_world(gear.options(2), [](RankContext&) { throw std::runtime_error("planned"); });
  if (!gear.schedule.deterministic()) {
    EXPECT_THAT(report.text(), Not(HasSubstr("run it again")));
    return;
  }
  const std::string engine(engine_kind_name(gear.engine));
  EXPECT_THAT(report.text(),
              HasSubstr("\nschedule " + gear.schedule.text() + ", engine " + engine + "; run it again: "));
  EXPECT_THAT(report.rerun, HasSubstr("RANKLOOM_ENGINE=" + engine + " RANKLOOM_S"));
  EXPECT_THAT(report.text(), testing::EndsWith(report.rerun));
  EXPECT_THAT(report.rerun, testing::ContainsRegex("world_[a-z_]*test"));
}

TEST_P(ReportTest, ATraceReplaysTheFailure) {
  const auto race = [](RankContext& rank) {
    const int64_t before = rank.store().add("turn", 1);
    if (rank.rank() == 2 && before == 1) throw std::runtime_error("rank 2 was first");
    rank.yield();
  };
  if (GetParam().schedule.kind() != Schedule::Kind::kSeeded) GTEST_SKIP() << "nothing is chosen there";
  for (uint64_t seed = 1; seed < 100; ++seed) {
    WorldOptions options = GetParam().options(4);
    options.schedule = Schedule::seeded(seed);
    const RunReport report = run_world(options, race);
    if (report.ok()) continue;
    // On either engine.
    for (const EngineKind engine : {EngineKind::kThreads, EngineKind::kFibers}) {
      options.engine = engine;
      options.schedule = Schedule::replay(report.trace);
      const RunReport again = run_world(options, race);
      EXPECT_EQ(again.first_failed, 2);
      EXPECT_EQ(again.trace, report.trace) << first_difference(again.trace, report.trace);
    }
    return;
  }
  ADD_FAILURE() << "no seed made rank 2 the first";
}

TEST(RunReportTest, ManyNotesAreToldOnceEachInTimeThatGrowsWithTheirNumber) {
  RunReport report;
  for (int i = 0; i < 100'000; ++i) report.notes.push_back(absl::StrCat("note ", i / 2, " of the run"));
  const std::string text = report.text();  // some hours, were each note looked for in the text of all others
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 50'000);
  EXPECT_THAT(text, testing::EndsWith("\nnote: note 49999 of the run"));
}

TEST_P(ReportTest, ARunThatIsTooLongForItsTraceSaysSo) {
  const bool records = GetParam().schedule.kind() == Schedule::Kind::kSeeded;
  const auto run_with = [](WorldOptions options, uint64_t limit, bool fails) {
    options.trace_limit = limit;
    return run_world(options, [fails](RankContext& rank) {
      for (int i = 0; i < 20; ++i) rank.yield();
      if (fails && rank.rank() == 1) throw std::runtime_error("planned");
    });
  };
  const std::string why =
      "no trace was kept: the run made more than 8 choices, want a larger trace_limit (RANKLOOM_TRACE_LIMIT) to replay "
      "it";
  const RunReport failed = run_with(GetParam().options(3), 8, true);
  EXPECT_EQ(failed.trace.cut(), records);
  EXPECT_THAT(failed.text(), testing::StartsWith("rank 1 failed: planned"));
  const RunReport good = run_with(GetParam().options(3), 8, false);
  EXPECT_TRUE(good.ok());
  EXPECT_THAT(good.notes, testing::IsEmpty());  // nothing is left over
  if (!records) {
    EXPECT_THAT(failed.text(), Not(HasSubstr("trace")));
    EXPECT_EQ(good.text(), "ok");
    return;
  }
  EXPECT_THAT(failed.text(), HasSubstr("\nnote: " + why + "\nschedule " + GetParam().schedule.text()));
  EXPECT_EQ(good.text(), "ok\nnote: " + why);
  EXPECT_TRUE(failed.trace.empty());
  // The seed repeats it, with the whole trace where there is room.
  EXPECT_THAT(failed.rerun, HasSubstr("RANKLOOM_SEED="));
  const RunReport whole = run_with(GetParam().options(3), Trace::kWhole, true);
  EXPECT_FALSE(whole.trace.cut());
  EXPECT_GT(whole.trace.steps().size(), 8u);
  EXPECT_EQ(whole.outcomes[1].text, "planned (std::runtime_error)");
  EXPECT_THAT(whole.text(), Not(HasSubstr("trace")));
  // One that just fits is kept.
  EXPECT_EQ(run_with(GetParam().options(3), whole.trace.steps().size(), true).trace, whole.trace);
  EXPECT_TRUE(run_with(GetParam().options(3), whole.trace.steps().size() - 1, true).trace.cut());
  // A trace that was not kept replays nothing.
  WorldOptions again = GetParam().options(3);
  again.schedule = Schedule::replay(failed.trace);
  EXPECT_THAT(run_with(again, Trace::kWhole, true).text(), testing::StartsWith("Aborted: cannot replay: " + why));
  // A replay of a whole one may keep none itself.
  again.schedule = Schedule::replay(whole.trace);
  const RunReport replayed = run_with(again, 0, true);
  EXPECT_THAT(replayed.text(), testing::StartsWith("rank 1 failed: planned"));
  EXPECT_THAT(replayed.text(), HasSubstr("\nnote: no trace was kept: trace_limit is 0\n"));
  // A world that wanted none is not told of a run that went well.
  EXPECT_EQ(run_with(GetParam().options(3), 0, false).text(), "ok");
}

// The parts of its schedule that a run takes beside the choices: numbers, and whether completions come late.
TEST(ReplayTest, IsAsTheRecordedRunInAllElse) {
  for (const Schedule& schedule : {Schedule::seeded(9), Schedule::pct(9, 2), Schedule::round_robin()}) {
    std::vector<uint64_t> drawn[2];
    bool late[2] = {};
    Trace trace;
    for (const int again : {0, 1}) {
      World world({.world_size = 3, .schedule = again ? Schedule::replay(trace) : schedule});
      late[again] = state_of(world).late_completion();
      drawn[again].resize(3);
      const RunReport report = world.run([&](RankContext& rank) {
        rank.yield();
        drawn[again][static_cast<size_t>(rank.rank())] = rank.rng().next();
      });
      EXPECT_TRUE(report.ok()) << report.text();
      trace = report.trace;
    }
    EXPECT_EQ(drawn[0], drawn[1]) << schedule.text();
    EXPECT_EQ(late[0], late[1]) << schedule.text();
    EXPECT_EQ(late[0], schedule.kind() != Schedule::Kind::kRoundRobin);
  }
}

TEST_P(ReportTest, AReplayThatDoesNotFitNamesTheFirstDifference) {
  if (GetParam().schedule.kind() != Schedule::Kind::kSeeded) GTEST_SKIP() << "nothing is chosen there";
  const auto program = [](int steps) {
    return [steps](RankContext& rank) {
      for (int i = 0; i < steps; ++i) rank.yield();
      rank.store().set("key " + std::to_string(rank.rank()), "");
    };
  };
  const auto run_program = [&](Schedule schedule, int steps) {
    WorldOptions options = GetParam().options(3);
    options.schedule = std::move(schedule);
    return run_world(options, program(steps));
  };
  const RunReport recorded = run_program(GetParam().schedule, 2);
  ASSERT_TRUE(recorded.ok());
  EXPECT_TRUE(run_program(Schedule::replay(recorded.trace), 2).ok());
  const RunReport diverged = run_program(Schedule::replay(recorded.trace), 1);
  EXPECT_THAT(diverged.text(), StartsWith("Aborted: replay diverged at step "));
  EXPECT_THAT(diverged.text(), HasSubstr(": expected rank "));
  EXPECT_THAT(diverged.text(), HasSubstr(" at yield"));
  EXPECT_THAT(diverged.text(), HasSubstr(", found rank "));
  EXPECT_THAT(diverged.text(), HasSubstr(" at store set"));
  // Longer than what was recorded.
  const RunReport longer = run_program(Schedule::replay(recorded.trace), 30);
  EXPECT_THAT(longer.text(), StartsWith("Aborted: replay diverged at step "));
}

TEST_P(ReportTest, AReplayThatIsOverBeforeItsTraceSaysSo) {
  if (GetParam().schedule.kind() != Schedule::Kind::kSeeded) GTEST_SKIP() << "nothing is chosen there";
  const auto run_program = [&](Schedule schedule, bool throws) {
    WorldOptions options = GetParam().options(3);
    options.schedule = std::move(schedule);
    return run_world(options, [throws](RankContext& rank) {
      for (int i = 0; i < 20; ++i) {
        rank.yield();
        if (throws && i == 5) throw std::runtime_error("too early");
      }
    });
  };
  const RunReport recorded = run_program(GetParam().schedule, false);
  EXPECT_THAT(run_program(Schedule::replay(recorded.trace), false).notes, testing::IsEmpty());
  const RunReport shorter = run_program(Schedule::replay(recorded.trace), true);
  EXPECT_THAT(shorter.text(), HasSubstr("too early"));
  EXPECT_THAT(shorter.notes, testing::ElementsAre(testing::MatchesRegex(
                                 "the replay ended after [0-9]+ of the [0-9]+ steps of its trace: the run that was "
                                 "recorded was another one")));
}

TEST(MovedReportTest, TellsOfNoRankThatItDoesNotHave) {
  RunReport report = run_world({.world_size = 2}, [](RankContext& rank) {
    if (rank.rank() == 1) throw std::runtime_error("the disk is full");
  });
  const RunReport moved = std::move(report);
  EXPECT_THAT(error_of([&] { moved.throw_if_failed(); }), HasSubstr("rank 1 failed: the disk is full"));
  report.cause = absl::InternalError("by hand");  // NOLINT(bugprone-use-after-move): that is what is tried
  report.first_failed = 1;
  EXPECT_THROW(report.throw_if_failed(), DistError);
  report.outcomes.clear();
  report.first_failed = 7;
  EXPECT_THROW(report.throw_if_failed(), DistError);
}

}  // namespace
}  // namespace rankloom

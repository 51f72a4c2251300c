// The report of a run that failed: the culprit first; then the calls that the others were at.
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/matchers.h"
#include "rankloom/process_group.h"
#include "rankloom/stream.h"
#include "rankloom/world.h"
#include "tests/world/every_world.h"

namespace rankloom {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class CulpritTest : public EveryWorldTest {
 protected:
  // In the free gear, too, buffers are watched.
  WorldOptions watched(int world_size) const {
    WorldOptions world = options(world_size);
    world.poison = true;
    return world;
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, CulpritTest, every_world(), world_name);

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Rank 2 changes its input while its call is open.
Work change_input(RankContext& rank, ProcessGroup& pg, std::vector<float>& in, std::vector<float>& out) {
  if (rank.rank() != 2) rank.store().wait({"changed"});
  Work work = pg.all_gather_into_tensor(out, in);
  if (rank.rank() == 2) {
    in[0] = 7;
    rank.store().set("changed", "");
  }
  return work;
}

constexpr char kChanged[] =
    "^rank 2 failed: InvalidArgument: rank 2, group 0, all_gather_into_tensor seq 1: an input was changed or freed "
    "between the call \\[culprit_test.cc:[0-9]+\\] and its completion, when rank 2 was at [a-z_ ]+(seq 1 )?"
    "\\[culprit_test.cc:[0-9]+\\], want it unchanged until wait\\(\\)\nranks 0-1, 3 stopped for it";

TEST_P(CulpritTest, OfAChangedInputLeads) {
  const RunReport report = run_to_failure(watched(4), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> in(2, static_cast<float>(rank.rank()));
    std::vector<float> out(8);
    change_input(rank, *pg, in, out).wait();
  });
  EXPECT_THAT(report.text(), ContainsRegex(kChanged));
  EXPECT_EQ(report.first_failed, 2);
  EXPECT_EQ(report.outcomes[2].state, RunReport::Outcome::State::kFailed);
  for (const size_t victim : {0, 1, 3}) EXPECT_EQ(report.outcomes[victim].state, RunReport::Outcome::State::kStopped);
  EXPECT_THAT([&] { report.throw_if_failed(); }, ThrowsDistError(ErrorKind::kInvalidArgument));
}

TEST_P(CulpritTest, LeadsBeforeAVictimWhoseNextCallIsRefused) {
  const RunReport report = run_to_failure(watched(4), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> in(2, static_cast<float>(rank.rank()));
    std::vector<float> out(8);
    Work work = change_input(rank, *pg, in, out);
    while (!work.is_completed()) rank.yield();
    pg->barrier().wait();
  });
  EXPECT_THAT(report.text(), ContainsRegex(kChanged));
  EXPECT_THAT(report.text(), Not(HasSubstr("the group failed before")));
}

TEST_P(CulpritTest, IsNotTheRankThatOnlyWaitsForItsOwnCall) {
  // The receiver wrote into its buffer; the sender waits.
  const RunReport report = run_to_failure(watched(2), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(2, static_cast<float>(rank.rank()));
    if (rank.rank() == 0) {
      rank.store().wait({"written"});
      pg->send(x, 1).wait();
    } else {
      Work work = pg->recv(x, 0);
      x[1] = 3;
      rank.store().set("written", "");
      work.wait();
    }
  });
  EXPECT_THAT(report.text(),
              StartsWith("rank 1 failed: InvalidArgument: rank 1, group 0, recv from rank 0: an output was "
                         "written or freed between the call [culprit_test.cc:"));
  EXPECT_THAT(report.text(), HasSubstr("\nrank 0 stopped for it"));
}

// Rank 1 breaks the group by `act` after an all_reduce; rank 0 waits in the next one, and rank 2 calls when that has
// failed.
RunReport broken_by(const WorldOptions& world, void (*act)(RankContext&, ProcessGroup&)) {
  return run_world(world, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(3, static_cast<float>(rank.rank()));
    pg->all_reduce(x).wait();
    if (rank.rank() == 1) {
      act(rank, *pg);
      rank.store().set("broken", "");
      return;
    }
    if (rank.rank() == 2) rank.store().wait({"broken"});
    pg->all_reduce(x).wait();
  });
}

TEST_P(CulpritTest, OfADroppedWorkLeadsAndIsSaidOnce) {
  const RunReport report = broken_by(options(3), [](RankContext&, ProcessGroup& pg) {
    std::vector<float> x(3);
    (void)pg.all_reduce(x);
  });
  EXPECT_THAT(
      report.text(),
      ContainsRegex("^rank 1 failed: group 0, all_reduce seq 2: the work was dropped unfinished, "
                    "want wait\\(\\) or keep_alive \\[group 0, culprit_test.cc:[0-9]+\\]\nranks 0, 2 stopped for it"));
  EXPECT_EQ(count_of(report.text(), "dropped"), 1);
  EXPECT_THAT([&] { report.throw_if_failed(); }, ThrowsDistError(ErrorKind::kRankFailed));
}

TEST_P(CulpritTest, OfADroppedMessageLeads) {
  const RunReport report = broken_by(options(3), [](RankContext&, ProcessGroup& pg) {
    std::vector<float> x(3);
    (void)pg.recv(x, 0, 5);
  });
  EXPECT_THAT(report.text(), StartsWith("rank 1 failed: group 0, recv from rank 0, tag 5: the work was "
                                        "dropped unfinished, want wait() or keep_alive [group 0, culprit_test.cc:"));
  EXPECT_EQ(count_of(report.text(), "dropped"), 1);
}

TEST_P(CulpritTest, OfAWorkThatAnExceptionDroppedLeads) {
  const RunReport report = broken_by(options(3), [](RankContext&, ProcessGroup& pg) {
    std::vector<float> x(3);
    try {
      Work work = pg.all_reduce(x);
      throw std::runtime_error("caught");
    } catch (const std::runtime_error&) {
    }
  });
  EXPECT_THAT(report.text(),
              ContainsRegex("^rank 1 failed: group 0: rank 1 dropped its all_reduce seq 2 while an "
                            "exception unwound, [^\n]*\\[group 0, culprit_test.cc:[0-9]+\\]\nranks 0, 2 stopped"));
  EXPECT_EQ(count_of(report.text(), "dropped"), 1);
}

// Ranks 0 and 1 disagree; `hears` is what rank 1 does about it.
RunReport disagree(WorldOptions world, void (*hears)(ProcessGroup& pg, Work& work)) {
  std::vector<std::vector<float>> x = {{1}, {1, 2}};
  std::vector<Work> kept(2);
  return run_world(std::move(world), [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    Work& work = kept[static_cast<size_t>(rank.rank())];
    work = pg->all_reduce(x[static_cast<size_t>(rank.rank())]);
    rank.store().add("called", 1);
    if (rank.rank() == 1 && hears != nullptr) hears(*pg, work);
  });
}

TEST_P(CulpritTest, AnErrorThatNoRankAskedForIsALeftover) {
  const RunReport report = disagree(options(2), nullptr);
  EXPECT_TRUE(report.ok()) << report.text();
  ASSERT_EQ(report.notes.size(), 1U);
  EXPECT_THAT(report.notes[0],
              StartsWith("an error that no rank asked for: Mismatch: group 0, seq 1: members issued different calls"));
  EXPECT_THAT(report.notes[0], HasSubstr("  shape | [1]   | 0     | culprit_test.cc:"));
}

TEST_P(CulpritTest, ThatARankHeardOfIsNone) {
  const std::vector<std::pair<const char*, void (*)(ProcessGroup&, Work&)>> ways = {
      {"wait",
       [](ProcessGroup&, Work& work) { EXPECT_THAT([&] { work.wait(); }, ThrowsDistError(ErrorKind::kMismatch)); }},
      {"is_success",
       [](ProcessGroup&, Work& work) {
         while (!work.is_completed()) {
         }
         EXPECT_FALSE(work.is_success());
       }},
      {"exception",
       [](ProcessGroup&, Work& work) {
         while (!work.is_completed()) {
         }
         EXPECT_NE(work.exception(), nullptr);
       }},
      {"then",
       [](ProcessGroup&, Work& work) {
         work.then(
             [](const absl::Status& end) { EXPECT_THAT(end.message(), HasSubstr("members issued different calls")); });
       }},
      {"another call",
       [](ProcessGroup& pg, Work& work) {
         while (!work.is_completed()) {
         }
         std::vector<float> y(1);
         EXPECT_THAT(
             [&] { pg.all_reduce(y).wait(); },
             ThrowsDistError(ErrorKind::kAborted, HasSubstr("the group failed before: group 0, seq 1: members")));
       }},
      {"a message", [](ProcessGroup& pg, Work& work) {
         while (!work.is_completed()) {
         }
         std::vector<float> y(1);
         EXPECT_THAT(
             [&] { pg.send(y, 0).wait(); },
             ThrowsDistError(ErrorKind::kAborted, HasSubstr("the group failed before: group 0, seq 1: members")));
       }}};
  for (const auto& [name, hears] : ways) {
    const RunReport report = disagree(options(2), hears);
    EXPECT_TRUE(report.ok()) << name << ": " << report.text();
    EXPECT_THAT(report.notes, testing::IsEmpty()) << name;
  }
}

TEST_P(CulpritTest, ThatARankHeardOfInOtherWaysIsNone) {
  using Program = void (*)(RankContext&, ProcessGroup&);
  const std::vector<std::pair<const char*, Program>> ways = {
      {"coalesced",
       [](RankContext& rank, ProcessGroup& pg) {
         std::vector<float> x(static_cast<size_t>(rank.rank()) + 1);
         pg.start_coalescing();
         (void)pg.all_reduce(x);
         Work whole = pg.end_coalescing();
         EXPECT_THAT([&] { whole.wait(); }, ThrowsDistError(ErrorKind::kMismatch));
       }},
      {"a part of coalesced calls",
       [](RankContext& rank, ProcessGroup& pg) {
         std::vector<float> x(static_cast<size_t>(rank.rank()) + 1);
         pg.start_coalescing();
         Work part = pg.all_reduce(x);
         Work whole = pg.end_coalescing();
         EXPECT_THAT([&] { part.wait(); }, ThrowsDistError(ErrorKind::kMismatch));
       }},
      {"a group",
       [](RankContext& rank, ProcessGroup& pg) {
         EXPECT_THAT(
             [&] {
               pg.new_group(rank.rank() == 0 ? std::vector<int>{0, 1} : std::vector<int>{1});
             },
             ThrowsDistError(ErrorKind::kMismatch));
       }},
      {"a stream",
       [](RankContext& rank, ProcessGroup& pg) {
         std::vector<float> x(static_cast<size_t>(rank.rank()) + 1);
         SimStream stream(rank);
         Work work = pg.all_reduce(x, ReduceOp::kSum, {.stream = &stream});
         EXPECT_THAT([&] { stream.synchronize(); }, ThrowsDistError(ErrorKind::kMismatch));
       }},
      {"the status of a stream",
       [](RankContext& rank, ProcessGroup& pg) {
         std::vector<float> x(static_cast<size_t>(rank.rank()) + 1);
         SimStream stream(rank);
         Work work = pg.all_reduce(x, ReduceOp::kSum, {.stream = &stream});
         stream.record().synchronize();
         EXPECT_FALSE(stream.status().ok());
       }},
      {"shutdown",
       [](RankContext& rank, ProcessGroup& pg) {
         std::vector<float> x(static_cast<size_t>(rank.rank()) + 1);
         if (rank.rank() == 1) rank.store().wait({"called"});
         Work work = pg.all_reduce(x);
         rank.store().set("called", "");
         if (rank.rank() == 0) {
           bool thrown = false;
           try {
             pg.shutdown();
           } catch (const DistError& error) {
             thrown = error.kind() == ErrorKind::kMismatch;
           }
           // The call may have ended before, and a shutdown throws the errors of those on their way.
           if (!thrown) {
             EXPECT_THAT([&] { work.wait(); }, ThrowsDistError(ErrorKind::kMismatch));
           }
         }
         while (!work.is_completed()) rank.yield();
       }},
      {"a stream that is blocked", [](RankContext& rank, ProcessGroup& pg) {
         std::vector<float> x(static_cast<size_t>(rank.rank()) + 1);
         SimStream stream(rank);
         Work work = pg.all_reduce(x);
         work.block_current_stream(stream);
         EXPECT_THAT([&] { stream.synchronize(); }, ThrowsDistError(ErrorKind::kMismatch));
       }}};
  for (const auto& [name, program] : ways) {
    const RunReport report = run_world(options(2), [program = program](RankContext& rank) {
      auto pg = init_process_group(rank);
      program(rank, *pg);
    });
    EXPECT_TRUE(report.ok()) << name << ": " << report.text();
    EXPECT_THAT(report.notes, testing::IsEmpty()) << name;
  }
}

// wait_any() tells which work is done, and not how that ended.
TEST_P(CulpritTest, ThatWaitAnyFoundDoneIsALeftover) {
  const RunReport report = disagree(options(2), [](ProcessGroup&, Work& work) { EXPECT_EQ(wait_any({&work, 1}), 0U); });
  EXPECT_TRUE(report.ok()) << report.text();
  ASSERT_EQ(report.notes.size(), 1U);
  EXPECT_THAT(report.notes[0], StartsWith("an error that no rank asked for: Mismatch: "));
}

TEST_P(CulpritTest, AMessageThatNoRankAskedForIsALeftover) {
  std::vector<std::vector<float>> x = {{1}, {1, 2}};
  std::vector<Work> kept(2);
  const RunReport report = run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    const auto own = static_cast<size_t>(rank.rank());
    kept[own] = rank.rank() == 0 ? pg->send(x[own], 1) : pg->recv(x[own], 0);
  });
  ASSERT_EQ(report.notes.size(), 1U);
  EXPECT_THAT(report.notes[0], StartsWith("an error that no rank asked for: Mismatch: group 0, "));
}

TEST_P(CulpritTest, ThatAbortsTheGroupLeadsWithItsLastCall) {
  const RunReport report =
      broken_by(options(3), [](RankContext&, ProcessGroup& pg) { pg.abort("the loss is no number"); });
  EXPECT_THAT(report.text(),
              ContainsRegex("^rank 1 failed: Aborted: rank 1 aborted group 0: the loss is no number "
                            "\\[culprit_test.cc:[0-9]+\\], after all_reduce seq 1 "
                            "\\(completed\\) \\[group 0, culprit_test.cc:[0-9]+\\]\nranks 0, 2 stopped for it"));
  EXPECT_THAT([&] { report.throw_if_failed(); }, ThrowsDistError(ErrorKind::kAborted));
}

TEST_P(CulpritTest, IsTheRankWhoseTimeRanOut) {
  const RunReport report = broken_by(options(3), [](RankContext&, ProcessGroup& pg) {
    std::vector<float> x(3);
    try {
      pg.recv(x, 0, 5, {.timeout = absl::Milliseconds(5)}).wait();
    } catch (const DistError&) {  // and goes on
    }
  });
  EXPECT_THAT(report.text(),
              StartsWith("rank 1 failed: Timeout: rank 1, group 0, recv from rank 0, tag 5: timed out after "
                         "5ms waiting for rank 0 [group 0, culprit_test.cc:"));
  EXPECT_THAT(report.text(), HasSubstr("\nranks 0, 2 stopped for it"));
  EXPECT_THAT(report.text(), Not(HasSubstr("the group failed before")));
}

TEST_P(CulpritTest, ThatIsKilledByPlanIsNamedWithItsLine) {
  WorldOptions world = options(3);
  world.faults = *FaultPlan::parse("crash@rank=1,op=all_reduce,seq=2");
  const RunReport report = run_to_failure(world, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(3, static_cast<float>(rank.rank()));
    for (int i = 0; i < 2; ++i) pg->all_reduce(x).wait();
  });
  EXPECT_THAT(report.text(),
              ContainsRegex("^rank 1 failed: group 0, all_reduce seq 2: the rank crashed "
                            "\\(injected, before the call\\) \\[culprit_test.cc:[0-9]+\\]\nranks 0, 2 stopped"));
}

TEST_P(CulpritTest, OfAStoreErrorHasTheLine) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    rank.store().set("word", "x");
    if (rank.rank() == 2) rank.store().add("word", 1);
    if (rank.rank() == 1) rank.store().wait({"never"});
  });
  EXPECT_THAT(report.text(),
              ContainsRegex("^rank 2 failed: StoreError: rank 2, HashStore add key \"word\": have \"x\", want a "
                            "decimal int64 \\[culprit_test.cc:[0-9]+\\]\n"));
  const RunReport late = run_to_failure(
      2, [](RankContext& rank) { rank.store().wait({"never"}, absl::Milliseconds(2 + 50000 * rank.rank())); });
  EXPECT_THAT(late.text(),
              ContainsRegex("^rank 0 failed: Timeout: rank 0, HashStore wait: timed out after 2ms: missing key "
                            "\"never\" \\[culprit_test.cc:[0-9]+\\]\n(  ranks? 0[^\n]*\n)?rank 1 stopped"));
}

// The rank and its helper wait in different places.
TEST_P(CulpritTest, OfADeadlockTellsTheLastCallsOfARankOnce) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(3, static_cast<float>(rank.rank()));
    pg->all_reduce(x).wait();
    if (rank.rank() == 1) return;
    rank.world().spawn_helper([&rank] { rank.store().get("never"); });
    pg->barrier().wait();
  });
  EXPECT_THAT(report.text(), HasSubstr(" (its helper)"));
  EXPECT_EQ(count_of(report.text(), "\n  last calls of rank 0: "), 1);
}

TEST_P(CulpritTest, OfADeadlockIsShownWithItsLastCall) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(3, static_cast<float>(rank.rank()));
    pg->all_reduce(x).wait();
    if (rank.rank() == 1) return;
    pg->barrier().wait();
  });
  EXPECT_THAT(report.text(), AllOf(HasSubstr("ranks 0, 2 wait in barrier seq 2 for rank 1 (returned)"),
                                   HasSubstr("\n  last call of rank 1: all_reduce seq 1 (completed) [group 0, "
                                             "culprit_test.cc:")));
}

TEST_P(CulpritTest, OfATimeoutIsShownWhereItIs) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    pg->barrier().wait();
    rank.store().add("past", 1);
    if (rank.rank() == 1) rank.sleep_for(absl::Hours(1));
    if (rank.rank() == 2) rank.store().wait({"never"}, absl::Hours(1));
    // The others are there by then; in real time that may take long.
    const auto there = [&rank](const char* where) { return absl::StrContains(rank.world().describe(), where); };
    if (!rank.world().options().schedule.deterministic()) {
      while (!there("rank 1 waits in sleep") || !there("rank 2 waits in store wait")) std::this_thread::yield();
    }
    rank.sleep_for(absl::Milliseconds(50));
    pg->barrier({.timeout = absl::Milliseconds(50)}).wait();
  });
  EXPECT_THAT(report.text(), AllOf(StartsWith("rank 0 failed: Timeout: rank 0, group 0, barrier seq 2: timed out after "
                                              "50ms waiting for ranks 1-2"),
                                   HasSubstr("\n  last point of rank 1: sleep [culprit_test.cc:"),
                                   HasSubstr("\n  last point of rank 2: store wait"),
                                   HasSubstr("\n  last call of rank 1: barrier seq 1 (completed)")));
}

TEST_P(CulpritTest, ThatThrewIsShownWithTypeAndLastCall) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    pg->barrier().wait();
    if (rank.rank() == 1) throw std::out_of_range("vector::at");
    pg->barrier().wait();
  });
  EXPECT_THAT(report.text(),
              StartsWith("rank 1 failed: vector::at (std::out_of_range), after barrier seq 1 (completed) "
                         "[group 0, culprit_test.cc:"));
}

TEST_P(CulpritTest, AMessageHasOneNameEverywhere) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(3, static_cast<float>(rank.rank()));
    for (int tag = 1; tag <= 3; ++tag) {
      rank.rank() == 0 ? pg->send(x, 1, tag).wait() : pg->recv(x, 0, tag).wait();
    }
    pg->recv(x, 1 - rank.rank(), 2).wait();
  });
  EXPECT_THAT(
      report.text(),
      AllOf(HasSubstr("rank 0 waits in recv seq 4 tag 2 for rank 1"),
            HasSubstr("rank 1 waits in recv seq 4 tag 2 for rank 0"),
            HasSubstr("last calls of rank 0: send seq 1 to rank 1, tag 1 (completed) [group 0, culprit_test.cc:"),
            HasSubstr("; recv seq 4 from rank 1, tag 2 (scheduled) [")));
}

TEST_P(CulpritTest, AMismatchListsLastCallsOnce) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(3, static_cast<float>(rank.rank()));
    rank.rank() == 0 ? pg->send(x, 1, 5).wait() : pg->recv(x, 0, 2).wait();
  });
  EXPECT_THAT(report.text(), HasSubstr("Mismatch: "));
  EXPECT_EQ(count_of(report.text(), "last calls of rank 0"), 1) << report.text();
  EXPECT_EQ(count_of(report.text(), "last calls of rank 1"), 1) << report.text();
}

}  // namespace
}  // namespace rankloom

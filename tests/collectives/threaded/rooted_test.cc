// When members of broadcast, scatter, reduce and gather are done: together, each by itself, or as the schedule says.

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/explore.h"
#include "rankloom/process_group.h"
#include "rankloom/stream.h"
#include "rankloom/work.h"
#include "tests/error_of.h"
#include "tests/world/every_world.h"

namespace rankloom {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Rooted = GroupOptions::Rooted;

class RootedTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, RootedTest, every_world(), world_name);

std::vector<int32_t> data_of(int rank) { return {10 * rank + 1, 10 * rank + 2}; }

// All four, several rounds, each root, against what they must give. Every rank may be ahead of the others.
void all_four(RankContext& rank, Rooted rooted) {
  const auto pg = init_process_group(rank, {.rooted = rooted});
  const int me = rank.rank();
  const int n = pg->size();
  for (int round = 0; round < 6; ++round) {
    const int root = round % n;
    std::vector<int32_t> sent = me == root ? std::vector<int32_t>{round, -round, 7} : std::vector<int32_t>(3, -1);
    pg->broadcast(sent, root).wait();
    EXPECT_THAT(sent, ElementsAre(round, -round, 7));

    std::vector<std::vector<int32_t>> parts;
    for (int to = 0; to < n && me == root; ++to) parts.push_back({100 * to + round, to});
    const std::vector<TensorView> inputs(parts.begin(), parts.end());
    std::vector<int32_t> mine(2, -1);
    pg->scatter(mine, inputs, root).wait();
    EXPECT_THAT(mine, ElementsAre(100 * me + round, me));

    std::vector<int32_t> sum = {me + round, 1 << me};
    pg->reduce(sum, root).wait();
    if (me == root) {
      EXPECT_THAT(sum, ElementsAre(n * (n - 1) / 2 + n * round, (1 << n) - 1));
    } else {
      EXPECT_THAT(sum, ElementsAre(me + round, 1 << me));
    }

    std::vector<int32_t> given = {me, round};
    std::vector<std::vector<int32_t>> rows(me == root ? static_cast<size_t>(n) : 0, std::vector<int32_t>(2, -1));
    pg->gather(std::vector<TensorView>(rows.begin(), rows.end()), given, root).wait();
    for (size_t from = 0; from < rows.size(); ++from) {
      EXPECT_THAT(rows[from], ElementsAre(static_cast<int32_t>(from), round));
    }
  }
  pg->barrier().wait();
}

TEST_P(RootedTest, ResultsAreTheSame) {
  for (const Rooted rooted : {Rooted::kTogether, Rooted::kEach, Rooted::kBySchedule}) {
    run(4, [&](RankContext& rank) { all_four(rank, rooted); });
  }
}

// The one that only gives is through before anybody else has come: the store says so.
TEST_P(RootedTest, WhoOnlyGivesNeedsNobody) {
  run(3, [](RankContext& rank) {
    const auto pg = init_process_group(rank, {.rooted = Rooted::kEach});
    const int me = rank.rank();
    std::vector<int32_t> x = data_of(me);
    std::vector<std::vector<int32_t>> rows(3, std::vector<int32_t>(2));
    std::vector<int32_t> part(2);
    if (me == 0) {
      pg->broadcast(x, 0).wait();
      x = {-1, -1};  // the copy is on its way
      rows = {{1, 2}, {3, 4}, {5, 6}};
      pg->scatter(part, std::vector<TensorView>(rows.begin(), rows.end()), 0).wait();
      EXPECT_THAT(part, ElementsAre(1, 2));
      rows = {};
      std::vector<int32_t> sum = {4, 5};
      pg->reduce(sum, 1).wait();
      sum = {-1, -1};
      sum = {8, 9};
      pg->gather({}, sum, 1).wait();
      rank.store().set("rank 0 is through", "1");
      return;
    }
    rank.store().wait({"rank 0 is through"});
    pg->broadcast(x, 0).wait();
    EXPECT_THAT(x, ElementsAre(1, 2));
    pg->scatter(part, {}, 0).wait();
    EXPECT_THAT(part, ElementsAre(2 * me + 1, 2 * me + 2));
    std::vector<int32_t> sum = {me, me};
    pg->reduce(sum, 1).wait();
    std::vector<TensorView> outputs;
    if (me == 1) {
      EXPECT_THAT(sum, ElementsAre(7, 8));
      outputs.assign(rows.begin(), rows.end());
    }
    sum = {me, 10 * me};
    pg->gather(outputs, sum, 1).wait();
    if (me == 1) {
      EXPECT_THAT(rows, ElementsAre(ElementsAre(8, 9), ElementsAre(1, 10), ElementsAre(2, 20)));
    }
  });
}

// A receiver needs the root, not the other receivers.
TEST_P(RootedTest, AReceiverNeedsOnlyTheRoot) {
  run(3, [](RankContext& rank) {
    const auto pg = init_process_group(rank, {.rooted = Rooted::kEach});
    std::vector<int32_t> x = data_of(rank.rank());
    if (rank.rank() == 2) rank.store().wait({"rank 1 has it"});
    if (rank.rank() == 0) rank.sleep_for(absl::Milliseconds(2));
    pg->broadcast(x, 0).wait();
    EXPECT_THAT(x, ElementsAre(1, 2));
    if (rank.rank() == 1) rank.store().set("rank 1 has it", "1");
  });
}

TEST_P(RootedTest, TogetherMeansTogether) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    const auto pg = init_process_group(rank, {.timeout = absl::Milliseconds(50), .rooted = Rooted::kTogether});
    std::vector<int32_t> x = data_of(rank.rank());
    if (rank.rank() == 1) rank.store().get("the broadcast is done");
    pg->broadcast(x, 0).wait();
    rank.store().set("the broadcast is done", "1");
  });
  EXPECT_THAT(report.text(), HasSubstr("broadcast seq 1"));
}

TEST_P(RootedTest, EagerBytesCoverWhatRootedCallsGive) {
  run(2, [](RankContext& rank) {
    const auto pg = init_process_group(rank, {.eager_bytes = 8});
    std::vector<int32_t> x = data_of(rank.rank());
    if (rank.rank() == 1) rank.store().wait({"through"});
    pg->broadcast(x, 0).wait();
    EXPECT_THAT(x, ElementsAre(1, 2));
    if (rank.rank() == 0) rank.store().set("through", "1");
  });
}

// Of all parts of a scatter together; and nothing is covered where eager_bytes is 0, nor what has no bytes at all.
TEST_P(RootedTest, EagerBytesCoverNoMore) {
  WorldOptions options = this->options(2);
  options.poison = false;
  const auto waits_for_the_other = [&](size_t eager_bytes, const std::function<Work(ProcessGroup&)>& call) {
    SCOPED_TRACE(eager_bytes);
    run(options, [&](RankContext& rank) {
      const auto pg = init_process_group(rank, {.eager_bytes = eager_bytes});
      if (rank.rank() == 1) rank.store().wait({"looked"});
      Work work = call(*pg);
      if (rank.rank() == 0) {
        EXPECT_FALSE(work.is_completed());
        rank.store().set("looked", "");
      }
      work.wait();
    });
  };
  waits_for_the_other(8, [](ProcessGroup& pg) {
    static std::array<std::array<int32_t, 3>, 2> x;
    return pg.broadcast(x[static_cast<size_t>(pg.rank())], 0);
  });
  waits_for_the_other(8, [](ProcessGroup& pg) {
    static std::array<std::array<int32_t, 2>, 2> out, in;
    return pg.scatter(out[static_cast<size_t>(pg.rank())],
                      pg.rank() == 0 ? std::vector<TensorView>{in[0], in[1]} : std::vector<TensorView>(), 0);
  });
  waits_for_the_other(0, [](ProcessGroup& pg) {
    static std::vector<float> nothing;
    return pg.broadcast(nothing, 0);
  });
}

TEST_P(RootedTest, NewGroupsHaveTheirParentsSemantics) {
  run(3, [](RankContext& rank) {
    const auto pg = init_process_group(rank, {.rooted = Rooted::kEach});
    const auto pair = pg->new_group({1, 2});
    if (pair == nullptr) return;
    std::vector<int32_t> x = data_of(rank.rank());
    if (rank.rank() == 2) rank.store().wait({"through"});
    pair->broadcast(x, 0).wait();
    EXPECT_THAT(x, ElementsAre(11, 12));
    if (rank.rank() == 1) rank.store().set("through", "1");
  });
}

// Members that went ahead are compared when the others come, and stand in the table.
// The root's call, which a stream makes, moves the data of receivers that have come before it, too.
TEST_P(RootedTest, AReceiverNeedsOnlyTheRootWhoseCallIsOnAStream) {
  for (const bool root_first : {false, true}) {
    run(3, [&](RankContext& rank) {
      const auto pg = init_process_group(rank, {.rooted = Rooted::kEach});
      std::vector<int32_t> x = data_of(rank.rank());
      std::vector<int32_t> y(1);
      if (rank.rank() == 0) {
        SimStream stream(rank, "comm");
        if (!root_first) rank.store().wait({"called"});
        Work work = pg->broadcast(x, 0, {.stream = &stream});
        rank.store().set("root has called", "");
        stream.synchronize();
      } else if (rank.rank() == 1) {
        if (root_first) rank.store().wait({"root has called"});
        Work work = pg->broadcast(x, 0);
        rank.store().set("called", "");
        work.wait();
        pg->send(y, 2).wait();
      } else {
        pg->recv(y, 1).wait();
        pg->broadcast(x, 0).wait();
      }
      EXPECT_THAT(x, ElementsAre(1, 2));
    });
  }
}

TEST_P(RootedTest, AMismatchNamesWhoWentAhead) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    const auto pg = init_process_group(rank, {.rooted = Rooted::kEach});
    std::vector<int32_t> x(rank.rank() == 2 ? 3 : 2, rank.rank());
    if (rank.rank() == 2) rank.store().wait({"0", "1"});
    pg->broadcast(x, 0).wait();
    Work barrier = pg->barrier();  // before rank 2 makes the group fail
    rank.store().set(absl::StrCat(rank.rank()), "through");
    barrier.wait();
  });
  EXPECT_THAT(report.text(), HasSubstr("ranks 0-2 failed: Mismatch: group 0, seq 1: members issued different calls"));
  EXPECT_THAT(report.text(), HasSubstr("shape | [2]   | 0-1"));
  EXPECT_THAT(report.text(), HasSubstr("| [3]   | 2 "));
}

TEST_P(RootedTest, AReceiverWhoseRootNeverComesNamesTheRootOnly) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    const auto pg = init_process_group(rank, {.rooted = Rooted::kEach});
    std::vector<int32_t> x = data_of(rank.rank());
    if (rank.rank() != 1) return;
    pg->broadcast(x, 0, {.timeout = absl::Milliseconds(30)}).wait();
  });
  EXPECT_THAT(report.text(), AllOf(HasSubstr("rank 0"), Not(HasSubstr("ranks 0, 2")), Not(HasSubstr("for rank 2"))));
}

TEST_P(RootedTest, WhoNeverCameToADoneCallIsNoted) {
  const RunReport report = run(3, [](RankContext& rank) {
    const auto pg = init_process_group(rank, {.rooted = Rooted::kEach});
    std::vector<int32_t> x = data_of(rank.rank());
    if (rank.rank() != 2) pg->broadcast(x, 0).wait();
  });
  ASSERT_EQ(report.notes.size(), 1);
  EXPECT_THAT(report.notes[0], HasSubstr("ranks 0-1, group 0, broadcast seq 1: rank 2 never came"));
}

TEST_P(RootedTest, WhoNeverCameStandsInTheOrderOfTheWorldsRanks) {
  const RunReport report = run(4, [](RankContext& rank) {
    const auto turned = init_process_group(rank)->split_group(0, -rank.rank(), {.rooted = Rooted::kEach});
    std::vector<int32_t> x = data_of(rank.rank());
    if (rank.rank() % 2 == 1) turned->broadcast(x, 0).wait();
  });
  ASSERT_EQ(report.notes.size(), 1);
  EXPECT_THAT(report.notes[0], HasSubstr("ranks 1, 3, group 0.1:0, broadcast seq 1: ranks 0, 2 never came"));
}

TEST_P(RootedTest, AReceiverOfASubgroupNamesTheRootByTheWorldsNumber) {
  run(4, [](RankContext& rank) {
    const auto pair = init_process_group(rank)->new_group({1, 3}, {.rooted = Rooted::kEach});
    std::vector<int32_t> x = data_of(rank.rank());
    if (rank.rank() == 1) rank.store().wait({"told"});
    if (rank.rank() != 3) return;
    EXPECT_THAT(
        error_of([&] { pair->broadcast(x, 0, {.timeout = absl::Milliseconds(5)}).wait(); }, ErrorKind::kTimeout),
        HasSubstr("timed out after 5ms waiting for rank 1 ["));
    rank.store().set("told", "");
  });
}

TEST_P(RootedTest, AGroupThatFailsLeavesDoneWorksDone) {
  run(3, [](RankContext& rank) {
    const auto pg = init_process_group(rank, {.rooted = Rooted::kEach});
    std::vector<int32_t> x = data_of(rank.rank());
    std::vector<int32_t> y = data_of(rank.rank());
    if (rank.rank() == 0) {
      Work given = pg->broadcast(x, 0);
      EXPECT_TRUE(given.is_completed());
      pg->abort("enough");
      given.wait();
      rank.store().set("aborted", "1");
    } else {
      rank.store().wait({"aborted"});
      EXPECT_THAT(error_of([&] { pg->broadcast(x, 0).wait(); }, ErrorKind::kAborted), HasSubstr("enough"));
      EXPECT_THAT(x, ElementsAre(10 * rank.rank() + 1, 10 * rank.rank() + 2));
    }
  });
}

// A root may be far ahead; each call keeps its own data.
TEST_P(RootedTest, ARootFarAheadKeepsEachCallsData) {
  constexpr int kRounds = 200;
  run(3, [](RankContext& rank) {
    const auto pg = init_process_group(rank, {.rooted = Rooted::kEach});
    std::vector<int32_t> x(2);
    if (rank.rank() != 0) rank.store().wait({"through"});
    for (int round = 0; round < kRounds; ++round) {
      if (rank.rank() == 0) x = {round, 3 * round};
      pg->broadcast(x, 0).wait();
      ASSERT_THAT(x, ElementsAre(round, 3 * round));
    }
    if (rank.rank() == 0) rank.store().set("through", "1");
  });
}

// Rank 0 says by a broadcast that a file is there, and removes it: who takes the broadcast for a barrier is too late.
void broadcast_as_barrier(RankContext& rank) {
  const auto pg = init_process_group(rank);
  std::vector<int32_t> there = {0};
  if (rank.rank() == 0) {
    rank.store().set("file", "data");
    there[0] = 1;
  }
  pg->broadcast(there, 0).wait();
  if (rank.rank() == 1 && !rank.store().check({"file"})) throw std::runtime_error("the file is gone");
  if (rank.rank() == 0) rank.store().delete_key("file");
}

void with_a_barrier(RankContext& rank) {
  const auto pg = init_process_group(rank);
  std::vector<int32_t> there = {0};
  if (rank.rank() == 0) {
    rank.store().set("file", "data");
    there[0] = 1;
  }
  pg->broadcast(there, 0).wait();
  if (rank.rank() == 1 && !rank.store().check({"file"})) throw std::runtime_error("the file is gone");
  pg->barrier().wait();
  if (rank.rank() == 0) rank.store().delete_key("file");
}

// Unsafe: right only if the root of the broadcast does not wait for the other.
void receives_before_the_broadcast(RankContext& rank) {
  const auto pg = init_process_group(rank);
  std::vector<int32_t> x = data_of(rank.rank());
  std::vector<int32_t> y = {5};
  if (rank.rank() == 0) {
    pg->broadcast(x, 0).wait();
    pg->send(y, 1).wait();
  } else {
    pg->recv(y, 0).wait();
    pg->broadcast(x, 0).wait();
  }
}

TEST(RootedSearchTest, ASearchSeesBothSemantics) {
  const ExploreReport fixed =
      explore({.world = {.world_size = 2}, .strategies = {Strategy::exhaustive()}}, with_a_barrier);
  EXPECT_TRUE(fixed.verified) << fixed.text();

  const ExploreReport gone =
      explore({.world = {.world_size = 2}, .strategies = {Strategy::exhaustive()}}, broadcast_as_barrier);
  ASSERT_TRUE(gone.failure.has_value()) << gone.text();
  EXPECT_THAT(gone.text(), HasSubstr("the file is gone"));

  const ExploreReport stuck =
      explore({.world = {.world_size = 2}, .strategies = {Strategy::exhaustive()}}, receives_before_the_broadcast);
  ASSERT_TRUE(stuck.failure.has_value()) << stuck.text();
  EXPECT_THAT(stuck.text(), HasSubstr("Deadlock"));
}

TEST(RootedSearchTest, SeedsDrawBothAndRepeatThem) {
  std::set<std::string> outcomes;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto outcome = [seed] {
      const RunReport report =
          run_world({.world_size = 2, .schedule = Schedule::seeded(seed)}, receives_before_the_broadcast);
      return report.ok() ? "ok" : report.cause.ok() ? "failed" : "stuck";
    };
    const std::string first = outcome();
    EXPECT_EQ(first, outcome()) << seed;
    outcomes.insert(first);
  }
  EXPECT_THAT(outcomes, ElementsAre("ok", "stuck"));
}

TEST(RootedSearchTest, AReplayHasTheSemanticsOfItsRun) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const WorldOptions world{.world_size = 2, .engine = EngineKind::kFibers, .schedule = Schedule::seeded(seed)};
    const RunReport report = run_world(world, receives_before_the_broadcast);
    const RunReport again =
        run_world({.world_size = 2, .engine = EngineKind::kFibers, .schedule = Schedule::replay(report.trace)},
                  receives_before_the_broadcast);
    EXPECT_EQ(report.ok(), again.ok()) << again.text();
  }
}

// Whether a wait is missing shows although each member is done by itself.
TEST(RootedSearchTest, AMissingWaitOfAReceiverShows) {
  const ExploreReport report =
      explore({.world = {.world_size = 2}, .strategies = {Strategy::exhaustive()}}, [](RankContext& rank) {
        const auto pg = init_process_group(rank, {.rooted = Rooted::kEach});
        std::vector<int32_t> x = data_of(rank.rank());
        if (rank.rank() == 1) rank.store().wait({"through"});
        Work work = pg->broadcast(x, 0);
        if (rank.rank() == 0) rank.store().set("through", "1");
        const int32_t seen = x[0];
        work.wait();
        if (seen != 1) throw std::runtime_error("read before the wait");
      });
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.text(), HasSubstr("read before the wait"));
}

// Copies and slots of a thousand calls would not stay in the caches.
TEST(RootedTurnsTest, UnderFifoOnFibersTheRootIsAFewCallsAhead) {
  int given = 0;
  int most_ahead = 0;
  constexpr int kCalls = 200;
  const RunReport report = run_world({.world_size = 3, .engine = EngineKind::kFibers}, [&](RankContext& rank) {
    const auto pg = init_process_group(rank, {.rooted = Rooted::kEach});
    pg->barrier().wait();
    for (int i = 0; i < kCalls; ++i) {
      std::vector<int32_t> x = {rank.rank() == 0 ? i : -1};
      pg->broadcast(x, 0).wait();
      EXPECT_THAT(x, ElementsAre(i));
      if (rank.rank() == 0) {
        ++given;
      } else {
        most_ahead = std::max(most_ahead, given - i);
      }
    }
  });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_EQ(given, kCalls);
  EXPECT_LE(most_ahead, 6);
}

// The others need what the root does after more calls than it is ever ahead of them: it goes on.
TEST_P(RootedTest, ARootWhoseCallsNobodyMakesYetGoesOn) {
  run(3, [](RankContext& rank) {
    const auto pg = init_process_group(rank, {.rooted = Rooted::kEach});
    constexpr int kCalls = 100;
    int32_t word = rank.rank();
    for (int to = 1; to < 3 && rank.rank() != 0; ++to) {
      if (to == rank.rank()) pg->recv(TensorView::scalar(word), 0).wait();
    }
    for (int i = 0; i < kCalls; ++i) {
      std::vector<int32_t> x = {rank.rank() == 0 ? i : -1};
      pg->broadcast(x, 0).wait();
      EXPECT_THAT(x, ElementsAre(i));
    }
    for (int to = 1; to < 3 && rank.rank() == 0; ++to) {
      word = 7 * to;
      pg->send(ConstTensorView::scalar(word), to).wait();
    }
    EXPECT_EQ(word, rank.rank() == 0 ? 14 : 7 * rank.rank());
  });
}

TEST(RootedSearchTest, AnEarlyWriteOfAReceiverIsNamed) {
  const RunReport report = run_world({.world_size = 2, .engine = EngineKind::kFibers, .schedule = Schedule::seeded(3)},
                                     [](RankContext& rank) {
                                       const auto pg = init_process_group(rank, {.rooted = Rooted::kEach});
                                       std::vector<int32_t> x = data_of(rank.rank());
                                       if (rank.rank() == 0) rank.store().wait({"written"});
                                       Work work = pg->broadcast(x, 0);
                                       if (rank.rank() == 1) {
                                         x[0] = 9;
                                         rank.store().set("written", "1");
                                       }
                                       work.wait();
                                     });
  EXPECT_FALSE(report.ok());
  EXPECT_THAT(report.text(), AllOf(HasSubstr("rank 1, group 0, broadcast seq 1"), HasSubstr("an output was written")));
}

// The root has ended by then, and the receiver only asks.
TEST(RootedSearchTest, AnEarlyWriteOfAReceiverThatDoesNotWaitIsNamed) {
  const RunReport report = run_world({.world_size = 2, .engine = EngineKind::kFibers, .schedule = Schedule::seeded(3)},
                                     [](RankContext& rank) {
                                       const auto pg = init_process_group(rank, {.rooted = Rooted::kEach});
                                       std::vector<int32_t> x = data_of(rank.rank());
                                       if (rank.rank() == 0) {
                                         rank.store().wait({"written"});
                                         return pg->broadcast(x, 0).wait();
                                       }
                                       Work work = pg->broadcast(x, 0);
                                       x[0] = 9;
                                       rank.store().set("written", "1");
                                       while (!work.is_completed()) {
                                       }
                                     });
  EXPECT_THAT(report.text(), AllOf(HasSubstr("note: an error that no rank asked for: InvalidArgument: rank 1, group 0, "
                                             "broadcast seq 1: an output was written"),
                                   HasSubstr("want it left alone until wait()")));
}

}  // namespace
}  // namespace rankloom

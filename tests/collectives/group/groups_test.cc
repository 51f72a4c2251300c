#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collectives/ops/group_request.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/error.h"
#include "rankloom/fake.h"
#include "rankloom/matchers.h"
#include "rankloom/process_group.h"
#include "rankloom/records.h"
#include "rankloom/stream.h"
#include "rankloom/sync.h"
#include "rankloom/world.h"
#include "tests/world/every_world.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class GroupsTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, GroupsTest, every_world(), world_name);

int64_t sum_over(ProcessGroup& pg, int64_t mine) {
  std::vector<int64_t> x = {mine};
  pg.all_reduce(x).wait();
  return x[0];
}

// Without a call of the others: a bridge makes its groups so.
TEST_P(GroupsTest, InitMakesAGroupOfGivenRanks) {
  const RunReport report = run(5, [](RankContext& rank) {
    if (rank.rank() == 2) return;
    const bool even = rank.rank() % 2 == 0;
    const std::vector<int> ranks = even ? std::vector<int>{4, 0} : std::vector<int>{1, 3};
    auto pg = init_process_group(rank, {.description = "mine", .ranks = ranks});
    EXPECT_EQ(pg->group_name(), even ? "ranks 0, 4" : "ranks 1, 3");
    EXPECT_EQ(pg->description(), "mine");
    EXPECT_EQ(pg->global_rank(0), ranks[0]);
    EXPECT_EQ(pg->rank(), rank.rank() == ranks[0] ? 0 : 1);
    EXPECT_EQ(sum_over(*pg, 10 + rank.rank()), 20 + ranks[0] + ranks[1]);
    // Of one name and other ranks, of one name and these ranks again: each is a group of its own.
    auto named = init_process_group(rank, {.name = "n", .ranks = ranks});
    auto again = init_process_group(rank, {.name = "n", .ranks = ranks});
    EXPECT_NE(named->group()->id(), again->group()->id());
    EXPECT_EQ(again->group_name(), "n");
    EXPECT_EQ(again->description(), "undefined");
    std::vector<int64_t> y = {rank.rank()};
    Work late = named->broadcast(y, 0);
    EXPECT_EQ(sum_over(*again, rank.rank()), ranks[0] + ranks[1]);
    late.wait();
    destroy_process_group(named);
    EXPECT_EQ(sum_over(*init_process_group(rank, {.name = "n", .ranks = ranks}), 1), 2);
  });
  EXPECT_THAT(report.notes, testing::IsEmpty());
}

TEST_P(GroupsTest, GroupsOfGivenRanksGoWrongByPlan) {
  WorldOptions options = this->options(3);
  options.faults = {{.kind = Fault::Kind::kCrash, .rank = 2, .group = "pair", .op = "all_reduce", .seq = 2}};
  const RunReport report = run_to_failure(std::move(options), [](RankContext& rank) {
    if (rank.rank() == 0) return;
    auto pg = init_process_group(rank, {.name = "pair", .ranks = {1, 2}});
    EXPECT_EQ(sum_over(*pg, rank.rank()), 3);
    sum_over(*pg, 1);
  });
  ASSERT_EQ(report.faults.size(), 1U);
  EXPECT_EQ(report.faults[0].text(), "crash@rank=2,nth=2");
}

TEST_P(GroupsTest, OnlyInitTakesRanksFromOptions) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    EXPECT_THAT(
        [&] { pg->new_group({0}, {.ranks = {0}}); },
        ThrowsDistError(ErrorKind::kInvalidArgument,
                        HasSubstr("new_group: GroupOptions::ranks are set, which init_process_group() reads, want "
                                  "the ranks as an argument")));
    EXPECT_EQ(sum_over(*pg, rank.rank() + 1), 3);
  });
}

TEST_P(GroupsTest, MakesAGroupOfSomeRanks) {
  run(5, [this](RankContext& rank) {
    auto pg = init_process_group(rank);
    // In any order: the group's is ascending, as c10d has it.
    auto some = pg->new_group({4, 1, 2}, {.description = "some"});
    if (rank.rank() == 0 || rank.rank() == 3) {
      EXPECT_EQ(some, nullptr);
      return;
    }
    EXPECT_EQ(some->size(), 3);
    EXPECT_EQ(some->rank(), rank.rank() == 4 ? 2 : rank.rank() - 1);
    EXPECT_EQ(some->global_rank(), rank.rank());
    EXPECT_EQ(some->global_rank(2), 4);
    EXPECT_EQ(some->group_name(), "0.1");
    EXPECT_EQ(some->description(), "some");
    EXPECT_EQ(some->backend_name(), backend());
    EXPECT_EQ(some->group()->id(), 1);
    EXPECT_EQ(some->sequence_number(), 0);
    std::ostringstream printed;
    printed << *some;
    EXPECT_EQ(printed.str(), absl::StrCat(backend(), " group 0.1: rank ", some->rank(), " of 3"));
    EXPECT_EQ(sum_over(*some, 10 + rank.rank()), 37);
    std::vector<int32_t> x = {rank.rank()};
    some->broadcast(x, /*root=*/2).wait();  // a rank in the group
    EXPECT_THAT(x, ElementsAre(4));
    if (some->rank() == 0) some->send(x, 1).wait();
    if (some->rank() == 1) some->recv(x, 0).wait();
  });
}

TEST_P(GroupsTest, MakesGroupsFromGroups) {
  run(6, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto odd = pg->new_group({1, 3, 5});
    if (odd == nullptr) return;
    auto ends = odd->new_group({0, 2});
    if (rank.rank() == 3) {
      EXPECT_EQ(ends, nullptr);
      return;
    }
    EXPECT_EQ(ends->group_name(), "0.1.1");
    EXPECT_EQ(ends->global_rank(1), 5);
    EXPECT_EQ(sum_over(*ends, rank.rank()), 6);
  });
}

TEST_P(GroupsTest, KeepsGroupsOverTheSameRanksApart) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto a = pg->new_group();
    auto b = pg->new_group({.name = "b"});
    EXPECT_EQ(b->group_name(), "b");
    EXPECT_NE(a->group()->id(), b->group()->id());
    // In flight at once, started in opposite orders.
    std::vector<int64_t> x = {rank.rank()};
    std::vector<int64_t> y = {10 * rank.rank()};
    std::vector<Work> works;
    if (rank.rank() == 1) {
      works.push_back(a->all_reduce(x));
      works.push_back(b->all_reduce(y));
    } else {
      works.push_back(b->all_reduce(y));
      works.push_back(a->all_reduce(x));
    }
    wait_all(works);
    EXPECT_THAT(x, ElementsAre(3));
    EXPECT_THAT(y, ElementsAre(30));
    EXPECT_EQ(sum_over(*pg, 1), 3);
  });
}

TEST_P(GroupsTest, WritesNamesSoThatTheyCanBePrinted) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    const std::string name("a\"b\n\x01\xff\xc3( \xe2\x82\xac\xed\xa0\x80\0z", 17);
    auto pg = init_process_group(rank, {.name = name, .description = name});
    const std::string shown = "a\"b\\n\\x01\\xff\\xc3( \xe2\x82\xac\\xed\\xa0\\x80\\x00z";
    EXPECT_EQ(pg->group()->name(), shown);
    auto child = pg->new_group({.name = name, .description = name});
    EXPECT_EQ(child->group()->name(), shown);
    EXPECT_EQ(child->group()->description(), shown);
    if (rank.rank() == 0) child->barrier({}, "at\xff").wait();
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 0 waits in barrier seq 1 at\\xff for rank 1 (returned) [group a\"b\\n"));
  const RunReport monitored = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) pg->monitored_barrier({}, false, "at\xff");
  });
  EXPECT_THAT(monitored.text(), HasSubstr("rank 0 waits in monitored_barrier seq 1 at\\xff for rank 1 (returned)"));
}

TEST_P(GroupsTest, Splits) {
  run(6, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const int color = rank.rank() == 5 ? ProcessGroup::kNoColor : rank.rank() % 2;
    auto part = pg->split_group(color, /*key=*/-rank.rank(), {.description = "part"});
    if (rank.rank() == 5) {
      EXPECT_EQ(part, nullptr);
      return;
    }
    // Even ranks 4, 2, 0; odd ranks 3, 1.
    EXPECT_EQ(part->size(), color == 0 ? 3 : 2);
    EXPECT_EQ(part->group_name(), absl::StrCat("0.1:", color));
    EXPECT_EQ(part->description(), "part");
    EXPECT_EQ(part->global_rank(0), color == 0 ? 4 : 3);
    EXPECT_EQ(part->global_rank(), rank.rank());
    std::vector<int32_t> mine = {rank.rank()};
    std::vector<int32_t> all(static_cast<size_t>(part->size()));
    part->all_gather_into_tensor(all, mine).wait();
    EXPECT_EQ(all, color == 0 ? (std::vector<int32_t>{4, 2, 0}) : (std::vector<int32_t>{3, 1}));
  });
}

TEST_P(GroupsTest, GivesChildrenTheSettingsOfTheirParent) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank, {.timeout = absl::Seconds(7)});
    EXPECT_EQ(pg->description(), "default_pg");
    auto child = pg->new_group();
    EXPECT_EQ(child->timeout(), absl::Seconds(7));
    EXPECT_EQ(child->description(), "undefined");
    auto other = pg->new_group({.timeout = absl::Seconds(2)});
    EXPECT_EQ(other->timeout(), absl::Seconds(2));
    // Real dimensions beside fake ones.
    auto fake = pg->new_group({.backend = GroupOptions::Backend::kFake});
    EXPECT_EQ(fake->backend_name(), "fake");
    EXPECT_EQ(fake->rank(), rank.rank());
    std::vector<int64_t> x = {5};
    fake->all_reduce(x).wait();
    EXPECT_THAT(x, ElementsAre(5));
  });
}

TEST_P(GroupsTest, TellsOfDifferentRanks) {
  const RunReport report = run_to_failure(4, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    pg->new_group(rank.rank() == 2 ? std::vector<int>{0, 2, 3} : std::vector<int>{0, 1, 2});
  });
  EXPECT_THAT(report.text(), StartsWith("ranks 0-3 failed: Mismatch: group 0, seq 1: members issued different calls\n"
                                        "  field | value  | ranks  | call site\n"
                                        "  ranks | 0-2    | 0-1, 3 | groups_test.cc:"));
  EXPECT_THAT(report.text(), HasSubstr("\n        | 0, 2-3 | 2      | groups_test.cc:"));
}

TEST_P(GroupsTest, TellsOfDifferentRanksOfASubgroupByTheWorldsNumbers) {
  const RunReport report = run_to_failure(4, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto sub = pg->new_group({1, 2, 3});
    if (sub == nullptr) return;
    sub->new_group(rank.rank() == 1 ? std::vector<int>{0, 1} : std::vector<int>{0, 2});
  });
  EXPECT_THAT(report.text(), AllOf(HasSubstr("  ranks | 1-2   | 1     | groups_test.cc:"),
                                   HasSubstr("\n        | 1, 3  | 2-3   | groups_test.cc:")));
}

TEST_P(GroupsTest, AHelperMayJoinTheWorldsGroupBesideItsRank) {
  for (int i = 0; i < (deterministic() ? 2 : 200); ++i) {
    World world(options(1));
    world
        .run([&](RankContext& rank) {
          Latch joined(1);
          rank.world().spawn_helper([&] {
            EXPECT_EQ(init_process_group(rank)->size(), 1);
            joined.count_down();
          });
          EXPECT_EQ(init_process_group(rank)->size(), 1);
          joined.wait();
        })
        .throw_if_failed();
  }
}

// Names and descriptions that read alike, one after the other, are not.
TEST_P(GroupsTest, TellsANameFromADescriptionAndTwoFromOne) {
  const auto text_of = [this](const GroupOptions& of_first, const GroupOptions& of_second) {
    return run_to_failure(2,
                          [&](RankContext& rank) {
                            auto pg = init_process_group(rank);
                            pg->new_group(rank.rank() == 0 ? of_first : of_second);
                          })
        .text();
  };
  EXPECT_THAT(text_of({.name = "tp"}, {.description = "tp"}),
              AllOf(HasSubstr("Mismatch: group 0, seq 1"), HasSubstr("\"description tp\"")));
  EXPECT_THAT(text_of({.name = "a, b"}, {.name = "a", .description = "b"}), HasSubstr("Mismatch: group 0, seq 1"));
  EXPECT_THAT(text_of({.name = "a, description b"}, {.name = "a", .description = "b"}),
              HasSubstr("Mismatch: group 0, seq 1"));
  EXPECT_THAT(text_of({.name = "description x"}, {.name = "\"description x\""}), HasSubstr("Mismatch: group 0, seq 1"));
}

TEST_P(GroupsTest, TellsOfDifferentNamesAndCalls) {
  EXPECT_THAT(run_to_failure(2,
                             [](RankContext& rank) {
                               auto pg = init_process_group(rank);
                               pg->new_group({.name = rank.rank() == 0 ? "a" : "b"});
                             })
                  .text(),
              HasSubstr("\n  label | \"a\"   | 0     | groups_test.cc:"));
  EXPECT_THAT(run_to_failure(2,
                             [](RankContext& rank) {
                               auto pg = init_process_group(rank);
                               rank.rank() == 0 ? pg->new_group() : pg->split_group(0);
                             })
                  .text(),
              HasSubstr("\n  op    | new_group   | 0     | groups_test.cc:"));
}

TEST_P(GroupsTest, NamesTheRankThatDoesNotMakeTheGroup) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    // A usual mistake: only the members call it.
    if (rank.rank() != 1) pg->new_group({0, 2}, {.description = "outer"});
  });
  EXPECT_THAT(
      report.text(),
      HasSubstr(
          "ranks 0, 2 wait in new_group seq 1 description outer for rank 1 (returned) [group 0, groups_test.cc:"));
}

TEST_P(GroupsTest, NamesTheCycleThroughTwoGroups) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto a = pg->new_group({.name = "a"});
    auto b = pg->new_group({.name = "b"});
    std::vector<int64_t> x = {1};
    (rank.rank() == 0 ? a : b)->all_reduce(x).wait();
    (rank.rank() == 0 ? b : a)->all_reduce(x).wait();
  });
  EXPECT_THAT(report.text(), AllOf(StartsWith("Deadlock: no rank can move\n"),
                                   HasSubstr("rank 0 waits in all_reduce seq 1 for rank 1 [group a, groups_test.cc:"),
                                   HasSubstr("rank 1 waits in all_reduce seq 1 for rank 0 [group b, groups_test.cc:"),
                                   HasSubstr("cycle: rank 0 -> rank 1 -> rank 0\n")));
}

TEST_P(GroupsTest, NamesTheMissingRankAndTheMembersThatDiffer) {
  const RunReport report = run_to_failure(4, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 3) return;
    std::vector<float> x(static_cast<size_t>(rank.rank() == 1 ? 6 : 5));
    pg->all_reduce(x).wait();
  });
  EXPECT_THAT(report.text(), AllOf(StartsWith("Mismatch: group 0, seq 1: members issued different calls\n"
                                              "  field | value | ranks | call site\n"
                                              "  shape | [5]   | 0, 2  | groups_test.cc:"),
                                   HasSubstr("\nmissing:\n  rank 3: returned\n"),
                                   HasSubstr("ranks 0-2 wait in all_reduce seq 1 for rank 3 (returned) [group 0")));
}

TEST_P(GroupsTest, RefusesWrongArguments) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const auto refuses = [&](std::vector<int> ranks, const std::string& text) {
      EXPECT_THAT([&] { pg->new_group(ranks); },
                  ThrowsDistError(
                      ErrorKind::kInvalidArgument,
                      testing::StartsWith(absl::StrCat("InvalidArgument: rank ", rank.rank(),
                                                       ", group 0, new_group seq 1: ", text, " [groups_test.cc:"))));
    };
    refuses({}, "ranks is empty, want at least one");
    refuses({0, 3}, "ranks has 3, want 0 <= rank < size = 3");
    refuses({1, -1}, "ranks has -1, want 0 <= rank < size = 3");
    refuses({2, 0, 2}, "ranks has 2 twice, want each once");
    EXPECT_THAT([&] { pg->split_group(-2); },
                ThrowsDistError(ErrorKind::kInvalidArgument,
                                HasSubstr("split_group seq 1: color is -2, want 0 or more, or kNoColor = -1")));
    EXPECT_THAT(
        [&] { pg->new_group({.timeout = absl::Seconds(-1)}); },
        ThrowsDistError(ErrorKind::kInvalidArgument, HasSubstr("group 0, new_group: timeout is -1s, want 0 or more")));
    pg->start_coalescing();
    EXPECT_THAT([&] { pg->new_group(); },
                ThrowsDistError(ErrorKind::kInvalidArgument,
                                HasSubstr("new_group seq 1: it cannot be coalesced, want end_coalescing() first")));
    pg->end_coalescing().wait();
  });
}

TEST_P(GroupsTest, RefusesTheHandleOfAnotherRank) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    static std::shared_ptr<ProcessGroup> of_zero;
    if (rank.rank() == 0) {
      of_zero = pg;
      rank.store().set("given", "");
      rank.store().wait({"used"});
      of_zero.reset();
      destroy_process_group(pg);  // as if nobody had tried
    } else {
      rank.store().wait({"given"});
      std::vector<int64_t> x = {1};
      EXPECT_THAT([&] { (void)of_zero->all_reduce(x); },
                  ThrowsDistError(ErrorKind::kInvalidArgument,
                                  HasSubstr("rank 0, group 0, all_reduce seq 1: the handle of rank 0 was used by rank "
                                            "1, want the rank's own handle")));
      // State that no schedule tells of.
      const std::map<std::string, std::function<void()>> calls = {
          {"sequence_number", [] { (void)of_zero->sequence_number(); }},
          {"timeout", [] { (void)of_zero->timeout(); }},
          {"warn_after", [] { (void)of_zero->warn_after(); }},
          {"set_timeout", [] { of_zero->set_timeout(absl::Seconds(1)); }},
          {"set_warn_after", [] { of_zero->set_warn_after(absl::Seconds(1)); }},
          {"set_reduce_order", [] { of_zero->set_reduce_order({.kind = ReduceOp::Order::Kind::kTree}); }},
          {"shutdown", [] { of_zero->shutdown(); }},
          {"start_coalescing", [] { of_zero->start_coalescing(); }},
          {"end_coalescing", [] { (void)of_zero->end_coalescing(); }},
          {"destroy_process_group", [] { destroy_process_group(of_zero); }}};
      for (const auto& [call, made] : calls) {
        EXPECT_THAT(made, ThrowsDistError(ErrorKind::kInvalidArgument,
                                          HasSubstr(absl::StrCat("rank 0, group 0, ", call,
                                                                 ": the handle of rank 0 was used by rank 1, want the "
                                                                 "rank's own handle [groups_test.cc:"))));
      }
      rank.store().set("used", "");
      throw std::runtime_error("enough");
    }
  });
  EXPECT_THAT(report.text(), StartsWith("rank 1 failed: enough"));
}

TEST_P(GroupsTest, AnAbortByTheHandleOfAnotherRankNamesTheRankThatAborts) {
  std::shared_ptr<ProcessGroup> of_zero;
  const RunReport report = run_to_failure(3, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) of_zero = pg;
    pg->barrier().wait();
    if (rank.rank() == 1) of_zero->abort("the watch saw enough");
    pg->barrier().wait();
  });
  of_zero.reset();
  EXPECT_THAT(report.text(), HasSubstr("rank 1 aborted group 0: the watch saw enough"));
}

// ---- lives of groups

TEST_P(GroupsTest, StartsAnewAfterDestroying) {
  run(3, [](RankContext& rank) {
    for (int round = 0; round < 3; ++round) {
      auto pg = init_process_group(rank);
      EXPECT_EQ(pg->group_name(), std::to_string(round));
      EXPECT_EQ(pg->sequence_number(), 0);
      auto child = pg->new_group({0, 1});
      if (child != nullptr) {
        EXPECT_EQ(sum_over(*child, 1), 2);
      }
      EXPECT_EQ(sum_over(*pg, rank.rank()), 3);
      destroy_process_group(pg);
      std::vector<int64_t> x = {1};
      EXPECT_THAT(
          [&] { (void)pg->all_reduce(x); },
          ThrowsDistError(ErrorKind::kAborted, HasSubstr("the group was shut down, want no call after shutdown()")));
      if (child != nullptr) {
        EXPECT_THAT([&] { (void)child->barrier(); }, ThrowsDistError(ErrorKind::kAborted));
      }
      destroy_process_group(child);  // null on one rank, destroyed before on the others
    }
  });
}

TEST_P(GroupsTest, ForgetsWhatAllHaveDestroyed) {
  WorldOptions world_options = options(2);
  World world(world_options);
  const RunReport report = world.run([](RankContext& rank) {
    auto pg = init_process_group(rank);
    destroy_process_group(pg);
    (void)pg->barrier();
  });
  EXPECT_FALSE(report.ok());
  bool made = false;
  state_of(world).shared<int>("core of group 0", [&] {
    made = true;
    return std::make_shared<int>(0);
  });
  EXPECT_TRUE(made);
  EXPECT_EQ(world.groups().size(), 1U);  // that of all ranks stays
}

TEST_P(GroupsTest, DrainsBeforeItShutsDown) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {rank.rank() + 1};
    std::vector<int64_t> y = {rank.rank() + 5};
    std::vector<int64_t> z = {rank.rank() + 7};
    Work reduced = pg->all_reduce(x);
    Work sent = rank.rank() == 0 ? pg->send(y, 1) : pg->recv(y, 0);
    Work received = rank.rank() == 0 ? pg->recv(z, 1) : pg->send(z, 0);
    pg->shutdown();
    EXPECT_TRUE(reduced.is_success());
    EXPECT_TRUE(sent.is_success());
    EXPECT_TRUE(received.is_success());
    EXPECT_THAT(x, ElementsAre(3));
    EXPECT_THAT(y, ElementsAre(5));
    EXPECT_THAT(z, ElementsAre(8));
    EXPECT_THAT([&] { (void)pg->barrier(); },
                ThrowsDistError(ErrorKind::kAborted,
                                HasSubstr(absl::StrCat("rank ", rank.rank(),
                                                       ", group 0, barrier seq 2: the group was shut down"))));
    pg->shutdown();
  });
}

// An end that another thread has found is told of a moment later: shutdown() waits for that, too.
TEST_P(GroupsTest, ShutdownWaitsForEndsThatAreOnTheirWay) {
  for (int64_t world = 0; world < 40; ++world) {
    run(2, [world](RankContext& rank) {
      for (int64_t i = 0; i < 40; ++i) {
        const int64_t round = 40 * world + i;
        auto pg = init_process_group(rank);
        std::vector<int64_t> x = {rank.rank() + round};
        std::vector<int64_t> y = {rank.rank() + 5};
        Work reduced = pg->all_reduce(x);
        Work moved = rank.rank() == 0 ? pg->send(y, 1) : pg->recv(y, 0);
        pg->shutdown();
        EXPECT_TRUE(reduced.is_success() && moved.is_success()) << "round " << round;
        EXPECT_THAT(x, ElementsAre(2 * round + 1));
        EXPECT_THAT(y, ElementsAre(5));
        if (i + 1 < 40) destroy_process_group(pg);
      }
    });
  }
}

// A stream that posts a message while shutdown() waits for an older one: shutdown() does not wait for the newer one.
TEST_P(GroupsTest, ShutdownWaitsForNoMessageThatAStreamPostsMeanwhile) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {rank.rank() + 1};
    std::vector<int64_t> y = {rank.rank() + 5};
    if (rank.rank() == 0) {
      // By a task of this rank, since a process of MPI knows nothing of waits in others.
      rank.world().spawn_helper([&rank] {
        const auto sees = [&rank](const char* wait) {
          while (!absl::StrContains(rank.world().describe(), wait)) rank.yield();
        };
        sees("rank 0 waits in recv seq 2");
        rank.store().set("go", "");
        sees("rank 0 waits in recv seq 1");
        rank.store().set("both posted", "");
      });
      SimStream stream(rank, "late");
      stream.launch([&rank] { rank.store().wait({"go"}); });
      Work second = pg->recv(y, 1, 2, {.stream = &stream});
      Work first = pg->recv(x, 1, 1);
      pg->shutdown();
      EXPECT_TRUE(first.is_success());
      rank.store().set("shut down", "");
      stream.synchronize();
      EXPECT_THAT(x, ElementsAre(2));
      EXPECT_THAT(y, ElementsAre(6));
      return;
    }
    rank.store().wait({"both posted"});
    pg->send(x, 0, 1).wait();
    rank.store().wait({"shut down"});
    pg->send(y, 0, 2).wait();
  });
}

TEST_P(GroupsTest, TellsWhomShutdownWaitsFor) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {1};
    if (rank.rank() == 1) return;
    Work work = pg->send(x, 1);
    pg->shutdown();
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 0 waits in send seq 1 for rank 1 (returned) [group 0, groups_test.cc:"));
}

TEST_P(GroupsTest, ThrowsTheErrorOfACallThatShutdownWaitsFor) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {1};
    if (rank.rank() == 1) return rank.store().wait({"done"});
    Work work = pg->all_reduce(x, ReduceOp::kSum, {.timeout = absl::Milliseconds(4)});
    EXPECT_THAT(
        [&] { pg->shutdown(); },
        ThrowsDistError(ErrorKind::kTimeout, HasSubstr("all_reduce seq 1: timed out after 4ms waiting for rank 1")));
    EXPECT_THAT([&] { (void)pg->barrier(); },
                ThrowsDistError(ErrorKind::kAborted, HasSubstr("the group was shut down")));
    rank.store().set("done", "");
  });
}

TEST_P(GroupsTest, ShutdownWaitsForAMessageOfABlockAsLongAsTheBlocksTimeoutSays) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> x = {1};
    if (rank.rank() == 1) return rank.store().wait({"done"});
    pg->start_coalescing();
    (void)pg->recv(x, 1, 0, {.timeout = absl::Hours(2)});
    Work work = pg->end_coalescing({.timeout = absl::Milliseconds(4)});
    EXPECT_THAT([&] { pg->shutdown(); },
                ThrowsDistError(ErrorKind::kTimeout, HasSubstr("timed out after 4ms waiting for rank 1")));
    rank.store().set("done", "");
  });
}

TEST_P(GroupsTest, EndsAllWaitsWithAnAbort) {
  run(4, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {1};
    std::vector<int64_t> y = {1};
    const std::string cause = "rank 3 aborted group 0: enough of this";
    if (rank.rank() == 3) {
      rank.store().wait({"0", "1", "2"});
      pg->abort("enough of this");
      EXPECT_THAT([&] { (void)pg->all_reduce(x); },
                  ThrowsDistError(ErrorKind::kAborted, HasSubstr(absl::StrCat("the group failed before: ", cause))));
      return;
    }
    Work work = pg->all_reduce(x);
    Work message = pg->recv(y, 3);
    rank.store().set(std::to_string(rank.rank()), "");
    EXPECT_THAT([&] { work.wait(); }, ThrowsDistError(ErrorKind::kAborted, HasSubstr(cause)));
    EXPECT_THAT([&] { message.wait(); }, ThrowsDistError(ErrorKind::kAborted, HasSubstr(cause)));
  });
}

// ---- users' own and fake groups

TEST_P(GroupsTest, AsksTheCallerForGroupsOfABackendThatMakesNone) {
  class Loop final : public ProcessGroup {
   public:
    Loop(RankContext* context, std::shared_ptr<const Group> group) : ProcessGroup(*context, std::move(group)) {}
    absl::StatusOr<Work> execute(CollectiveCall&& call) override {
      if (call.way.request != nullptr) internal::make_groups_alone(call.way.request, ProcessGroup::rank());
      return Work();
    }
  };
  run(2, [](RankContext& rank) {
    const auto make = [](RankContext& context,
                         const std::shared_ptr<const Group>& group) -> std::shared_ptr<ProcessGroup> {
      return std::make_shared<Loop>(&context, group);
    };
    auto pg = init_process_group(rank, {.make = make});
    EXPECT_EQ(pg->backend_name(), "custom");
    EXPECT_THAT(
        [&] {
          pg->new_group({}, CodeSite{"some/train.cc", 12});
        },
        ThrowsDistError(ErrorKind::kCollectiveError,
                        testing::StrEq(absl::StrCat("CollectiveError: rank ", rank.rank(),
                                                    ", group 0: backend custom makes no group 0.1, want "
                                                    "GroupOptions::make [train.cc:12]"))));
    EXPECT_EQ(pg->new_group({.make = make})->backend_name(), "custom");
  });
}

TEST_P(GroupsTest, TheYoungestGroupIsLeftFirst) {
  class Leaving final : public ProcessGroup {
   public:
    Leaving(RankContext* context, std::shared_ptr<const Group> group, std::vector<std::string>* left)
        : ProcessGroup(*context, std::move(group)), left_(left) {}
    absl::StatusOr<Work> execute(CollectiveCall&& call) override {
      if (call.way.request != nullptr) internal::make_groups_alone(call.way.request, ProcessGroup::rank());
      return Work();
    }
    void leave() override { left_->push_back(group_name()); }

   private:
    std::vector<std::string>* const left_;
  };
  std::vector<std::string> left;
  run(1, [&](RankContext& rank) {
    const auto make = [&](RankContext& context,
                          const std::shared_ptr<const Group>& group) -> std::shared_ptr<ProcessGroup> {
      return std::make_shared<Leaving>(&context, group, &left);
    };
    auto pg = init_process_group(rank, {.make = make});
    auto a = pg->new_group({.make = make, .name = "a"});
    auto b = pg->new_group({.make = make, .name = "b"});
    destroy_process_group(pg);
    EXPECT_THAT(left, ElementsAre("b", "a", "0"));
  });
}

TEST_P(GroupsTest, RefusesABackendThatMakesNullForAGroup) {
  class Nobody final : public ProcessGroup {
   public:
    Nobody(RankContext* context, std::shared_ptr<const Group> group) : ProcessGroup(*context, std::move(group)) {}
    absl::StatusOr<Work> execute(CollectiveCall&& call) override {
      if (call.way.request != nullptr) internal::make_groups_alone(call.way.request, ProcessGroup::rank());
      return Work();
    }
    std::shared_ptr<ProcessGroup> make_member(const std::shared_ptr<const Group>&, const GroupOptions&) override {
      return nullptr;
    }
  };
  run(2, [](RankContext& rank) {
    const auto make = [](RankContext& context,
                         const std::shared_ptr<const Group>& group) -> std::shared_ptr<ProcessGroup> {
      return std::make_shared<Nobody>(&context, group);
    };
    auto pg = init_process_group(rank, {.make = make});
    EXPECT_THAT(
        [&] {
          pg->new_group({}, CodeSite{"some/train.cc", 12});
        },
        ThrowsDistError(ErrorKind::kInvalidArgument,
                        testing::StrEq(absl::StrCat("InvalidArgument: rank ", rank.rank(),
                                                    ", group 0: backend custom's make_member() gave null for "
                                                    "group 0.1, want a group [train.cc:12]"))));
  });
}

TEST_P(GroupsTest, AGroupThatIsItsOwnChildEndsOnce) {
  run(1, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const auto same = pg->new_group(
        {.make = [pg](RankContext&, const std::shared_ptr<const Group>&) -> std::shared_ptr<ProcessGroup> {
          return pg;
        }});
    EXPECT_EQ(same, pg);
    destroy_process_group(pg);
    EXPECT_THAT([&] { (void)pg->barrier(); },
                ThrowsDistError(ErrorKind::kAborted, HasSubstr("the group was shut down")));
  });
}

// While a group's children end, a callback makes further ones. Where the parent has ended by then, they are refused,
// and a member that asks for one more than the other waits in vain.
TEST_P(GroupsTest, CallbacksMayMakeGroupsWhileTheirParentEnds) {
  if (!deterministic()) GTEST_SKIP() << "a handle is for one thread at a time";
  std::atomic<int> made{0};
  const RunReport report = run_world(options(2), [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto child = pg->new_group();
    const auto x = std::make_shared<std::vector<float>>(1, 1.0F), y = std::make_shared<std::vector<float>>(1, 2.0F);
    child->all_reduce(*x, ReduceOp::kSum, {.keep_alive = x}).then([&made, pg](const absl::Status&) {
      for (int i = 0; i < 9; ++i, ++made) pg->new_group();
    });
    if (rank.rank() == 1) rank.store().wait({"0 ends"});
    Work last = child->all_reduce(*y, ReduceOp::kSum, {.keep_alive = y});
    if (rank.rank() == 0) rank.store().set("0 ends", "");
    destroy_process_group(pg);
  });
  if (made < 18) {
    EXPECT_THAT(report.text(), testing::AnyOf(HasSubstr("the group was shut down, want no call after shutdown()"),
                                              HasSubstr("Deadlock: no rank can move")));
  }
}

TEST_P(GroupsTest, AnswersInAFakeWorld) {
  run(4, [](RankContext& rank) {
    auto pg = init_process_group(rank, {.backend = GroupOptions::Backend::kFake});
    auto some = pg->new_group({1, 3});
    EXPECT_EQ(some == nullptr, rank.rank() % 2 == 0);
    auto split = pg->split_group(rank.rank() % 2);
    EXPECT_EQ(split->size(), 4);  // a fake group has no peers to ask
    EXPECT_EQ(split->group_name(), absl::StrCat("0.2:", rank.rank() % 2));
    EXPECT_EQ(pg->split_group(ProcessGroup::kNoColor), nullptr);
    std::vector<int64_t> x = {1};
    pg->send(x, (rank.rank() + 1) % 4).wait();
    pg->recv(x, (rank.rank() + 1) % 4).wait();
    pg->recv_any(x).wait();
    pg->start_coalescing();
    Work part = pg->all_reduce(x);
    EXPECT_FALSE(part.is_completed());
    EXPECT_TRUE(pg->end_coalescing().is_success());
    EXPECT_TRUE(part.is_success());
    EXPECT_THAT(
        [&] {
          pg->new_group({0, 4});
        },
        ThrowsDistError(ErrorKind::kInvalidArgument, HasSubstr("ranks has 4, want 0 <= rank < size = 4")));
    EXPECT_THAT([&] { (void)pg->send(x, 4); }, ThrowsDistError(ErrorKind::kInvalidArgument));
    for (const FlightEntry& entry : state_of(rank).recorder().entries())
      EXPECT_EQ(entry.state, FlightEntry::State::kCompleted) << entry.op;
  });
}

TEST(FakeGroupsTest, AnswerWithoutAWorld) {
  auto pg = make_fake_process_group({.rank = 70000, .world_size = 100000});
  auto some = pg->new_group({5, 70000, 99999});
  EXPECT_EQ(some->rank(), 1);
  EXPECT_EQ(some->size(), 3);
  EXPECT_EQ(some->global_rank(), 70000);
  EXPECT_EQ(some->group_name(), "0.1");
  EXPECT_EQ(some->new_group({0}), nullptr);
  EXPECT_EQ(pg->new_group({5, 6}), nullptr);
  EXPECT_EQ(pg->split_group(3)->size(), 100000);
  std::vector<float> x(3);
  some->all_reduce(x).wait();
  destroy_process_group(pg);
  EXPECT_THAT([&] { (void)some->all_reduce(x); }, ThrowsDistError(ErrorKind::kAborted));
}

TEST(FakeGroupsTest, RefuseEverythingIfAsked) {
  auto pg = make_fake_process_group({.rank = 1, .world_size = 4, .options = {.error_on_collective = true}});
  std::vector<float> x(3);
  const auto refuses = [](auto call, const std::string& text) {
    EXPECT_THAT(call, ThrowsDistError(ErrorKind::kCollectiveError,
                                      HasSubstr("FakeProcessGroup collective operation error: " + text)));
  };
  refuses([&] { (void)pg->all_reduce(x); }, "all_reduce, rank 1, group 0, inputs [float32[3]], outputs [float32[3]]");
  refuses([&] { (void)pg->send(x, 2); }, "send to 2, rank 1, group 0, inputs [float32[3]], outputs []");
  refuses([&] { (void)pg->recv(x, 2); }, "recv from 2, rank 1, group 0, inputs [], outputs [float32[3]]");
  refuses([&] { (void)pg->recv_any(x); }, "recv from any, rank 1, group 0, inputs [], outputs [float32[3]]");
  refuses([&] { pg->new_group({0, 1}); }, "new_group, rank 1, group 0");
  pg->start_coalescing();
  (void)pg->all_reduce(x);
  (void)pg->send(x, 0);
  refuses([&] { (void)pg->end_coalescing(); },
          "coalesced, rank 1, group 0, all_reduce, inputs [float32[3]], outputs [float32[3]]; send to 0, inputs "
          "[float32[3]], outputs []");
}

TEST(FlightRecordSplitsTest, OfAListOfVeryManyTensorsHaveNoSplits) {
  constexpr size_t kTensors = 70'000;
  run_world({.world_size = 1}, [&](RankContext& rank) {
    auto pg = init_process_group(rank, {.backend = GroupOptions::Backend::kFake});
    pg->all_reduce_coalesced(std::vector<TensorView>(kTensors, TensorView::meta({1}, DType::kFloat32))).wait();
    const std::shared_ptr<CallRecord> record = CallRecord::of_rank(rank);
    ASSERT_EQ(record->calls(), 1);
    const CallRecord::Call call = (*record)[0];
    EXPECT_EQ(call.inputs.size(), kTensors);
    EXPECT_EQ(call.outputs.size(), kTensors);
    EXPECT_TRUE(call.in_splits.empty());
    EXPECT_TRUE(call.out_splits.empty());
  }).throw_if_failed();
}

// A call that stands at its scheduling point while the rank's main task leaves the group is one after shutdown(). With
// one member nothing else could refuse the call.
TEST_P(GroupsTest, ACallThatWaitsForItsTurnWhileTheGroupIsDestroyedIsRefused) {
  int refused = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    WorldOptions options = this->options(1);
    if (deterministic()) options.schedule = Schedule::seeded(seed);
    options.keep_run = true;
    const RunReport report = run_world(std::move(options), [this, &refused](RankContext& rank) {
      auto pg = init_process_group(rank)->new_group({0});
      Latch done(1);
      rank.world().spawn_helper([pg, &done, &refused]() mutable {
        std::vector<float> x = {1};
        try {
          for (int i = 0; i < 3; ++i) pg->all_reduce(x).wait();
        } catch (const DistError& error) {
          ++refused;
          EXPECT_EQ(error.kind(), ErrorKind::kAborted);
          // One that shutdown() did not see any more has been made before the rank left.
          EXPECT_THAT(error.what(), AnyOf(HasSubstr(": the group was shut down, want no call after shutdown()"),
                                          StartsWith("Aborted: all members have left group ")));
        }
        pg.reset();
        done.count_down();
      });
      if (!deterministic()) done.wait();  // a handle is one thread's at a time
      destroy_process_group(pg);
      pg.reset();
      done.wait();
    });
    EXPECT_TRUE(report.ok()) << report.text();
  }
  EXPECT_EQ(refused > 0, deterministic());
}

// The number of a call that was refused is that of the next one, though a helper has made another call meanwhile.
// Also a group of one compares what it gives itself.
TEST_P(GroupsTest, TheOnlyMemberMustFitItself) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto alone = pg->new_group({1});
    if (alone == nullptr) return;
    std::vector<float> given = {1, 2}, wide(8);
    alone->all_to_all_single(wide, given).wait();
  });
  const std::string text = report.text();
  EXPECT_THAT(text, HasSubstr("rank 1 sends 2 rows to rank 1, which expects 8"));
  EXPECT_THAT(text, HasSubstr("last calls of rank 1"));
  EXPECT_EQ(text.find("last calls of rank 1"), text.rfind("last calls of rank 1"));
}

TEST_P(GroupsTest, TheNumberOfARefusedCallIsTakenByTheNext) {
  if (!deterministic()) return;  // a handle is one thread's at a time
  WorldOptions options = this->options(2);
  options.faults = {
      {.kind = Fault::Kind::kDelay, .rank = 0, .op = "all_reduce", .seq = 1, .by = absl::Milliseconds(300)}};
  const RunReport report = run_world(std::move(options), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {static_cast<float>(2 + rank.rank())};
    std::vector<float> y = {static_cast<float>(5 + rank.rank())};
    if (rank.rank() == 1) {
      pg->all_reduce(y).wait();
      pg->all_reduce(x).wait();
    } else {
      Work second;
      Latch made(1);
      rank.world().spawn_helper([&] {
        rank.sleep_for(absl::Milliseconds(100));  // while the first call is delayed
        second = pg->all_reduce(x);
        made.count_down();
      });
      EXPECT_THAT([&] { pg->all_reduce(x).wait(); },
                  ThrowsDistError(ErrorKind::kInvalidArgument,
                                  HasSubstr("all_reduce seq 1: its output overlaps that of all_reduce seq 2")));
      made.wait();
      EXPECT_EQ(pg->sequence_number(), 2);
      pg->all_reduce(y).wait();  // as the first
      second.wait();
    }
    EXPECT_EQ(x[0], 5);
    EXPECT_EQ(y[0], 11);
    EXPECT_EQ(pg->sequence_number(), 2);
    EXPECT_EQ(sum_over(*pg, 1), 2);
    EXPECT_EQ(pg->sequence_number(), 3);
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

}  // namespace
}  // namespace rankloom

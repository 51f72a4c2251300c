// A search in parts, which processes take up, put down, give away and lose, runs the same classes of schedules as one
// search: those of programs whose number is known. Random programs: brute_force_test.

#include "sim/schedule/schedule_trunk.h"

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/process_group.h"
#include "sim/engine/fiber_engine.h"
#include "tests/explore/counted_programs.h"
#include "tests/explore/searches.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

struct Counted {
  CountedProgram program;
  int64_t schedules;
};

void PrintTo(const Counted& counted, std::ostream* out) { *out << counted.program.name; }

Outcome run_counted(const CountedProgram& program, const Schedule& schedule, const RunHooks& hooks) {
  const std::unique_ptr<World> world = WorldState::make({.world_size = program.tasks,
                                                         .engine = EngineKind::kFibers,
                                                         .schedule = schedule,
                                                         .recorded_calls = 0,
                                                         .stall = absl::InfiniteDuration()},
                                                        hooks);
  program.clear(world->store());
  std::vector<std::string> seen(static_cast<size_t>(program.tasks));
  return outcome_of(world->run([&](RankContext& rank) {
    seen[static_cast<size_t>(rank.rank())] = program.run(rank.store(), rank.rank());
  }),
                    seen);
}

class SearchInPartsOnFibersTest : public testing::TestWithParam<Counted> {};

TEST_P(SearchInPartsOnFibersTest, RunsEachClassOnce) {
  const auto run = [](const Schedule& schedule, const RunHooks& hooks) {
    return run_counted(GetParam().program, schedule, hooks);
  };
  with_fiber_thread([&] {
    const Found whole = search_tree(run, {}, 100'000);
    ASSERT_EQ(whole.schedules, GetParam().schedules);
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      const Found parts = search_parts(run, seed, 200'000);
      EXPECT_TRUE(parts.all) << "seed " << seed;
      EXPECT_EQ(parts.schedules, whole.schedules) << "seed " << seed;
      EXPECT_THAT(parts.aborts, testing::IsEmpty()) << "seed " << seed;
      ASSERT_EQ(parts.outcomes.size(), whole.outcomes.size()) << "seed " << seed;
      for (const auto& [outcome, schedule] : whole.outcomes) EXPECT_TRUE(parts.outcomes.contains(outcome)) << outcome;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Known, SearchInPartsOnFibersTest,
                         testing::Values(Counted{readers(1), 2}, Counted{readers(3), 8}, Counted{readers(8), 256},
                                         Counted{lastzero(2), 5}, Counted{lastzero(5), 64}, Counted{lastzero(7), 320},
                                         Counted{indexer(11), 1}, Counted{indexer(12), 8}, Counted{indexer(13), 64},
                                         Counted{increments(3), 6}, Counted{increments(5), 120},
                                         Counted{increments_of_two(3), 36}, Counted{writers(3), 120}));

TEST(ScheduleTrunkTest, HandsOutTheWholeTreeFirstAndNothingMore) {
  ScheduleTrunk trunk(/*rooted=*/1);
  EXPECT_EQ(trunk.open(), 1);
  const int64_t all = trunk.take();
  EXPECT_EQ(all, 0);
  EXPECT_EQ(trunk.take(), -1);
  EXPECT_EQ(trunk.open(), 0);
  EXPECT_FALSE(trunk.fresh(all));
  const TreePart part = trunk.part(all);
  EXPECT_EQ(part.floor, 0u);
  EXPECT_EQ(part.rooted, 1);
  EXPECT_THAT(part.path, testing::IsEmpty());
  EXPECT_FALSE(trunk.finished());
  trunk.finish(all);
  EXPECT_TRUE(trunk.finished());
}

// Tasks 0 to 2 can go first; task 0 was tried, task 1 runs now, and task 2 is to be.
GivenNode first_choice() {
  return {.node = {.chosen = 1,
                   .candidates = {0, 1, 2},
                   .todo = {0, 1, 2},
                   .tried = {{.id = 0, .one_way = true, .ops = {{StepRecord::What::kWrite, 7}}}}},
          .chosen = {.id = 1, .one_way = true, .ops = {{StepRecord::What::kRead, 7}}}};
}

TEST(ScheduleTrunkTest, AnAlternativeKnowsThoseBeforeIt) {
  ScheduleTrunk trunk(0);
  const int64_t all = trunk.take();
  ASSERT_TRUE(trunk.give(all, {first_choice()}));
  EXPECT_EQ(trunk.open(), 1);
  const int64_t other = trunk.take();
  ASSERT_EQ(other, 1);
  EXPECT_TRUE(trunk.fresh(other));
  EXPECT_FALSE(trunk.fresh(all));
  const TreePart part = trunk.part(other);
  ASSERT_EQ(part.floor, 1u);
  EXPECT_EQ(part.path[0].chosen, 2);
  ASSERT_EQ(part.path[0].tried.size(), 2u);
  EXPECT_EQ(part.path[0].tried[0].id, 0);
  EXPECT_EQ(part.path[0].tried[1].id, 1);
  EXPECT_EQ(part.path[0].tried[1].ops[0].object, 7u);
  // The one before it does not know of it.
  EXPECT_EQ(trunk.part(all, {}).path[0].tried.size(), 1u);
}

TEST(ScheduleTrunkTest, AnAlternativeWaitsUntilTheOneBeforeHasTold) {
  ScheduleTrunk trunk(0);
  const int64_t all = trunk.take();
  GivenNode choice = first_choice();
  choice.node.candidates.push_back(3);
  choice.node.todo.push_back(3);
  ASSERT_TRUE(trunk.give(all, {choice}));
  const int64_t second = trunk.take();
  EXPECT_EQ(trunk.take(), -1);
  EXPECT_EQ(trunk.open(), 1);
  EXPECT_FALSE(trunk.opened(second, {.id = 3})) << "another task's step";
  EXPECT_FALSE(trunk.give(second, {first_choice()})) << "it has not told of its own step";
  EXPECT_TRUE(trunk.opened(second, {.id = 2, .one_way = false}));
  const int64_t third = trunk.take();
  ASSERT_GE(third, 0);
  EXPECT_EQ(trunk.part(third).path[0].tried.size(), 3u);
  EXPECT_TRUE(trunk.part(second).path[0].chose_within);
}

TEST(ScheduleTrunkTest, IsFinishedOnlyWhenEveryPartIs) {
  ScheduleTrunk trunk(0);
  const int64_t all = trunk.take();
  ASSERT_TRUE(trunk.give(all, {first_choice()}));
  trunk.finish(all);
  EXPECT_FALSE(trunk.finished()) << "an alternative was not handed out";
  const int64_t other = trunk.take();
  ASSERT_TRUE(trunk.opened(other, {.id = 2}));
  EXPECT_FALSE(trunk.finished());
  trunk.finish(other);
  EXPECT_TRUE(trunk.finished());
}

TEST(ScheduleTrunkTest, AWishIsHeardOnceAndWhereItFits) {
  ScheduleTrunk trunk(0);
  const int64_t all = trunk.take();
  GivenNode choice = first_choice();
  choice.node.todo = {0, 1};
  ASSERT_TRUE(trunk.give(all, {choice}));
  EXPECT_EQ(trunk.take(), -1);
  EXPECT_TRUE(trunk.wish(all, {.node = 0, .any_of = {0, 2}})) << "task 0 was tried";
  EXPECT_EQ(trunk.open(), 0);
  EXPECT_TRUE(trunk.wish(all, {.node = 0, .any_of = {2}}));
  EXPECT_TRUE(trunk.wish(all, {.node = 0, .any_of = {2}}));
  EXPECT_EQ(trunk.open(), 1);
  EXPECT_FALSE(trunk.wish(all, {.node = 1, .any_of = {2}})) << "the part's own choice";
  EXPECT_FALSE(trunk.wish(all, {.node = 0, .any_of = {}}));
}

TEST(ScheduleTrunkTest, ValuesNeedNotWaitForEachOther) {
  ScheduleTrunk trunk(0);
  const int64_t all = trunk.take();
  ASSERT_TRUE(trunk.give(
      all, {{.node = {.kind = ChoiceKind::kAnySource, .size = 4, .chosen = 1, .step = 3}, .chosen = {.id = 1}}}));
  const int64_t third = trunk.take();
  const int64_t fourth = trunk.take();
  EXPECT_EQ(trunk.take(), -1);
  EXPECT_EQ(trunk.part(third).path[0].chosen, 2);
  EXPECT_EQ(trunk.part(fourth).path[0].chosen, 3);
  EXPECT_EQ(trunk.part(fourth).new_from, 2);
  for (const int64_t part : {all, third, fourth}) trunk.finish(part);
  EXPECT_TRUE(trunk.finished());
}

}  // namespace
}  // namespace rankloom

// Programs whose number of schedules that can differ is known from the literature and from other tools.
// The programs and their sources: counted_programs.h.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "rankloom/random.h"
#include "rankloom/world.h"
#include "sim/engine/fiber_engine.h"
#include "sim/schedule/schedule_tree.h"
#include "tests/explore/counted_programs.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

struct Counts {
  int64_t schedules;
  int64_t repeated;
};

// Runs `program` under all schedules of the reduced tree. `ranks`: [task] the rank that is it. `shuffle`: seed of the
// order in which the search goes.
Counts count(const CountedProgram& program, const std::vector<int>& ranks, uint64_t shuffle) {
  std::vector<int> tasks(static_cast<size_t>(program.tasks));
  std::iota(tasks.begin(), tasks.end(), 0);
  for (size_t task = 0; task < ranks.size(); ++task) tasks[static_cast<size_t>(ranks[task])] = static_cast<int>(task);
  ScheduleTree tree(ScheduleTree::Options{.shuffle = shuffle});
  with_fiber_thread([&] {  // once, not for each of thousands of runs
    while (tree.more()) {
      const std::unique_ptr<World> made = WorldState::make({.world_size = program.tasks,
                                                            .engine = EngineKind::kFibers,
                                                            .schedule = Schedule::steered(0, {}),
                                                            .recorded_calls = 0,
                                                            .stall = absl::InfiniteDuration()},
                                                           tree.hooks());
      World& world = *made;
      program.clear(world.store());
      const RunReport report =
          world.run([&](RankContext& rank) { program.run(rank.store(), tasks[static_cast<size_t>(rank.rank())]); });
      if (!report.ok()) ADD_FAILURE() << report.text();
      tree.advance();
    }
  });
  return {.schedules = tree.schedules(), .repeated = tree.repeated()};
}

// The count is that of every way to number the ranks and of every order in which the search goes: with `variants`, so
// many of both are tried. Source sets leave some runs that only repeat others: how many does depend on the order.
void expect_count(const CountedProgram& program, int64_t want, int variants = 0) {
  std::vector<int> ranks(static_cast<size_t>(program.tasks));
  std::iota(ranks.begin(), ranks.end(), 0);
  Prng prng(7);
  int64_t most_repeated = 0;
  for (int i = 0; i <= variants; ++i) {
    // The second: the other way round.
    if (i == 1) std::reverse(ranks.begin(), ranks.end());
    if (i > 1) std::shuffle(ranks.begin(), ranks.end(), prng);
    for (const int shuffle : {0, i}) {
      const Counts counts = count(program, ranks, static_cast<uint64_t>(shuffle));
      EXPECT_EQ(counts.schedules, want) << program.name << ", tasks on ranks " << absl::StrJoin(ranks, " ")
                                        << ", order of the search " << shuffle;
      if (shuffle == 0) most_repeated = std::max(most_repeated, counts.repeated);
      if (i == 0) break;
    }
  }
  std::printf("%s: %ld schedules, at most %ld runs more\n", program.name.c_str(), want, most_repeated);
  EXPECT_LE(most_repeated, want) << program.name;
}

TEST(KnownCountsTest, ReadersAre2ToTheN) {
  for (int n = 1; n <= 8; ++n) expect_count(readers(n), int64_t{1} << n, 4);
  expect_count(readers(13), 8192, 1);
}

TEST(KnownCountsTest, LastZero) {
  for (int n = 2; n <= 8; ++n) expect_count(lastzero(n), (n + 3) * (int64_t{1} << n) / 4, 4);
  expect_count(lastzero(10), 3'328, 2);
}

TEST(KnownCountsTest, LastZeroOfSixteenTasks) { expect_count(lastzero(15), 147'456); }

TEST(KnownCountsTest, IndexerIs8ForEachTaskBeyondEleven) {
  expect_count(indexer(11), 1, 1);
  expect_count(indexer(12), 8, 4);
  expect_count(indexer(13), 64, 4);
  expect_count(indexer(15), 4'096, 1);
}

TEST(KnownCountsTest, IncrementsAreNFactorial) {
  int64_t factorial = 1;
  for (int n = 2; n <= 7; ++n) expect_count(increments(n), factorial *= n, 2);
}

TEST(KnownCountsTest, IncrementsOfTwoCellsAreNFactorialSquared) {
  expect_count(increments_of_two(2), 4, 2);
  expect_count(increments_of_two(3), 36, 4);
  expect_count(increments_of_two(4), 576, 4);
}

TEST(KnownCountsTest, WritersAndAReaderAreOfAnyOrder) {
  int64_t factorial = 2;
  for (int n = 1; n <= 4; ++n) expect_count(writers(n), factorial *= n + 2, 4);
}

}  // namespace
}  // namespace rankloom

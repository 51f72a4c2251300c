// Programs whose number of schedules that can differ is known from the literature and from other tools.
//
// Counted are Mazurkiewicz traces, runs that differ in the order of two steps which conflict. Cells are store
// keys; a read is get(), a write is set() of a key that is there, and both act on one key only and never wait. An
// atomic increment is add(), which conflicts with every other one of its key; compare_set() counts as a write whether
// it changes the value or not.
// Sources: GenMC tests/correct/synthetic (readers, lastzero, indexer, ainc, binc, n writers and a reader); P. Abdulla
// et al., "Optimal Dynamic Partial Order Reduction", POPL 2014, table 1.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "rankloom/random.h"
#include "rankloom/world.h"
#include "sim/engine/fiber_engine.h"
#include "sim/schedule/schedule_tree.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

// A program of numbered tasks on numbered cells, which are 0 at first.
struct Program {
  std::string name;
  int tasks;
  int cells;
  std::function<void(Store& store, int task)> run;
};

std::string cell(int i) { return absl::StrCat("c", i); }

int read(Store& store, int i) {
  int value = 0;
  EXPECT_TRUE(absl::SimpleAtoi(store.get(cell(i)), &value));
  return value;
}

void write(Store& store, int i, int value) { store.set(cell(i), absl::StrCat(value)); }

// One writer, n readers.
Program readers(int n) {
  return {absl::StrCat("readers(", n, ")"), n + 1, 1, [](Store& store, int task) {
            if (task == 0) {
              write(store, 0, 1);
            } else {
              read(store, 0);
            }
          }};
}

// Task j > 0 makes cell j one more than cell j - 1; task 0 looks for the last cell that is zero.
Program lastzero(int n) {
  return {absl::StrCat("lastzero(", n, ")"), n + 1, n + 1, [n](Store& store, int task) {
            if (task == 0) {
              int i = n;
              while (read(store, i) != 0) --i;
            } else {
              const int before = read(store, task - 1);
              write(store, task, before + 1);
            }
          }};
}

// Each task puts four numbers into a hash table of 128 cells: tasks meet from the twelfth on.
Program indexer(int n) {
  return {absl::StrCat("indexer(", n, ")"), n, 128, [](Store& store, int task) {
            for (int m = 1; m <= 4; ++m) {
              const int w = m * 11 + task;
              int h = (w * 7) % 128;
              while (store.compare_set(cell(h), "0", absl::StrCat(w)) != absl::StrCat(w)) h = (h + 1) % 128;
            }
          }};
}

Program increments(int n) {
  return {absl::StrCat("ainc(", n, ")"), n, 1, [](Store& store, int) { store.add(cell(0), 1); }};
}

// The same for two cells, one after the other: the order on each is any.
Program increments_of_two(int n) {
  return {absl::StrCat("binc(", n, ")"), n, 2, [](Store& store, int) {
            store.add(cell(0), 1);
            store.add(cell(1), 1);
          }};
}

// n + 1 writers and a reader of one cell.
Program writers(int n) {
  return {absl::StrCat("writers(", n, ")"), n + 2, 1, [](Store& store, int task) {
            if (task == 0) {
              read(store, 0);
            } else {
              write(store, 0, task);
            }
          }};
}

struct Counts {
  int64_t schedules;
  int64_t repeated;
};

// Runs `program` under all schedules of the reduced tree. `ranks`: [task] the rank that is it. `shuffle`: seed of the
// order in which the search goes.
Counts count(const Program& program, const std::vector<int>& ranks, uint64_t shuffle) {
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
      for (int i = 0; i < program.cells; ++i) write(world.store(), i, 0);
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
void expect_count(const Program& program, int64_t want, int variants = 0) {
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

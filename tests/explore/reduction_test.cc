// Partial-order reduction leaves no result out: random programs, each run under all schedules and under the reduced
// ones.

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/error.h"
#include "rankloom/explore.h"
#include "rankloom/process_group.h"
#include "rankloom/random.h"
#include "rankloom/world.h"
#include "sim/engine/fiber_engine.h"
#include "sim/schedule/schedule_tree.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

constexpr int kMost = 5'000;

struct Explored {
  std::set<std::string> results;
  int64_t schedules = 0;
  int64_t repeated = 0;
  bool all = false;
};

using Program = std::string (*)(RankContext& rank, uint64_t seed);

Explored explore_all(int ranks, bool reduce, uint64_t seed, Program program) {
  ScheduleTree tree(reduce);
  Explored explored;
  with_fiber_thread([&] {  // once, not for each of thousands of runs
    for (int i = 0; i < kMost && tree.more(); ++i) {
      std::vector<std::string> results(static_cast<size_t>(ranks));
      const std::unique_ptr<World> made = WorldState::make(
          {.world_size = ranks, .engine = EngineKind::kFibers, .schedule = Schedule::steered(0, {})}, tree.hooks());
      World& world = *made;
      const RunReport report =
          world.run([&](RankContext& rank) { results[static_cast<size_t>(rank.rank())] = program(rank, seed); });
      EXPECT_TRUE(report.ok()) << report.text();
      explored.results.insert(absl::StrJoin(results, "|"));
      tree.advance();
    }
  });
  explored.schedules = tree.schedules();
  explored.repeated = tree.repeated();
  explored.all = !tree.more();
  return explored;
}

std::string random_store_calls(RankContext& rank, uint64_t seed) {
  Prng prng(seed * 100 + static_cast<uint64_t>(rank.rank()));
  Store& store = rank.store();
  const std::string me = absl::StrCat(rank.rank());
  std::string seen;
  for (int i = 0; i < 3; ++i) {
    const std::string key = absl::StrCat("k", prng.below(2));
    switch (prng.below(11)) {
      case 0:
        store.set(key, me);
        break;
      case 1:
        absl::StrAppend(&seen, " add ", store.add("n" + key, 1));
        break;
      case 2:
        absl::StrAppend(&seen, " check ", store.check({key}));
        break;
      case 3:
        absl::StrAppend(&seen, " compare_set ", store.compare_set(key, "", me));
        break;
      case 4:
        absl::StrAppend(&seen, " delete ", store.delete_key(key));
        break;
      case 5:
        store.append(key, me);
        break;
      case 6:
        absl::StrAppend(&seen, " keys ", store.num_keys());
        break;
      case 7:
        store.queue_push("q", me);
        absl::StrAppend(&seen, " pop ", store.queue_pop("q"));
        break;
      case 8:
        absl::StrAppend(&seen, " list ", absl::StrJoin(store.list_keys(), ","));
        break;
      case 9:
        store.multi_set({"m0", "m1"}, {me, me});
        absl::StrAppend(&seen, " multi ", absl::StrJoin(store.multi_get({"m1", "m0"}), ","));
        break;
      default:
        store.set("w" + me, me);
        store.wait({"w" + me});
        absl::StrAppend(&seen, " length ", store.queue_len("q"));
    }
  }
  return seen;
}

std::string looks_at_works(RankContext& rank, uint64_t seed) {
  Prng prng(seed * 100 + static_cast<uint64_t>(rank.rank()));
  auto pg = init_process_group(rank);
  std::vector<float> x = {1}, y = {1};
  std::string seen;
  Work first = pg->all_reduce(x);
  if (prng.below(2) == 0) absl::StrAppend(&seen, " store ", rank.store().add("n", 1));
  if (prng.below(2) == 0) absl::StrAppend(&seen, " first ", first.is_completed());
  Work second = pg->all_reduce(y);
  if (prng.below(2) == 0) absl::StrAppend(&seen, " first ", first.is_success());
  std::vector<Work> both = {first, second};
  if (prng.below(3) == 0) absl::StrAppend(&seen, " any ", wait_any(both));
  wait_all(both);
  return seen;
}

// A send that is ready before its receive, and one that is not.
std::string any_sources(RankContext& rank, uint64_t seed) {
  auto pg = init_process_group(rank);
  std::vector<float> x = {0};
  if (rank.rank() != 0) {
    if (seed % 2 == 0) rank.store().add("n", 1);
    pg->send(x, 0, static_cast<int>(seed % 3 == 0 ? rank.rank() % 2 : 0)).wait();
    return "";
  }
  std::string seen;
  for (int i = 1; i < rank.world_size(); ++i) {
    Work work = seed % 3 == 0 ? pg->recv_any(x, i % 2) : pg->recv_any(x);
    if (seed % 4 == 1) absl::StrAppend(&seen, work.is_completed() ? " done" : " open");
    work.wait();
    absl::StrAppend(&seen, " from ", work.source());
  }
  return seen;
}

void expect_same_results(int ranks, uint64_t seed, Program program) {
  const Explored full = explore_all(ranks, /*reduce=*/false, seed, program);
  const Explored reduced = explore_all(ranks, /*reduce=*/true, seed, program);
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  EXPECT_TRUE(reduced.all);
  EXPECT_LE(reduced.schedules, full.schedules);
  if (full.all) {
    EXPECT_EQ(reduced.results, full.results);
  } else {
    EXPECT_THAT(reduced.results, testing::IsSupersetOf(full.results));
  }
}

TEST(ReductionOnFibersTest, FindsEveryResultOfStoreCalls) {
  for (uint64_t seed = 1; seed <= 12; ++seed) expect_same_results(2, seed, random_store_calls);
}

TEST(ReductionOnFibersTest, FindsEveryResultOfStoreCallsOfThreeRanks) {
  for (uint64_t seed = 21; seed <= 24; ++seed) expect_same_results(3, seed, random_store_calls);
}

TEST(ReductionOnFibersTest, FindsEveryResultOfLooksAtWorks) {
  for (uint64_t seed = 1; seed <= 6; ++seed) expect_same_results(2, seed, looks_at_works);
}

TEST(ReductionOnFibersTest, FindsEveryResultOfAnySourceReceives) {
  for (uint64_t seed = 0; seed <= 5; ++seed) expect_same_results(3, seed, any_sources);
}

TEST(ReductionOnFibersTest, RunsEachClassOfSchedulesOnce) {
  // Three ranks append to one key: 6 orders.
  const Explored explored = explore_all(3, /*reduce=*/true, 0, [](RankContext& rank, uint64_t) {
    rank.store().append("log", absl::StrCat(rank.rank()));
    rank.store().add(absl::StrCat("mine ", rank.rank()), 1);
    return std::string();
  });
  EXPECT_TRUE(explored.all);
  EXPECT_EQ(explored.schedules, 6);
  EXPECT_EQ(explored.repeated, 0);
}

// A rank on fibers makes what its call needs before the call's point, one on a thread after it.
TEST(ReductionTest, TheEngineDoesNotChangeTheNumberOfSchedules) {
  for (const EngineKind engine : {EngineKind::kFibers, EngineKind::kThreads}) {
    ExploreOptions options;
    options.world = {.world_size = 2, .engine = engine};
    options.strategies = {Strategy::exhaustive()};
    options.checks = {.results = false, .groups = false, .store_keys = false, .leaks = false};
    const ExploreReport report = explore(options, [](RankContext& rank) {
      auto pg = init_process_group(rank);
      if (rank.rank() == 1) pg->abort("enough");
      std::vector<int32_t> x = {-1 - rank.rank()};
      try {
        pg->recv_any(x).wait(absl::Milliseconds(5));
      } catch (const DistError&) {
      }
    });
    EXPECT_EQ(report.summary(), "verified: all 3 schedules that can differ, in 3 runs");
  }
}

TEST(ReductionOnFibersTest, NamesAProgramThatDoesNotRepeatItself) {
  ScheduleTree tree;
  int run = 0;
  std::string cause;
  while (tree.more() && run < 10) {
    ++run;
    const std::unique_ptr<World> made = WorldState::make(
        {.world_size = 2, .engine = EngineKind::kFibers, .schedule = Schedule::steered(0, {})}, tree.hooks());
    World& world = *made;
    const RunReport report = world.run([&](RankContext& rank) {
      if (run > 1 && rank.rank() == 0) return;
      rank.store().append("log", "x");
      rank.store().append("log", "y");
    });
    if (!report.ok()) cause = report.text();
    tree.advance();
  }
  EXPECT_THAT(cause, testing::HasSubstr("the program is not deterministic: at choice "));
}

}  // namespace
}  // namespace rankloom

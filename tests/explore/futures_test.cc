// When a run was lost: how many schedules begin as it does, and fail.

#include "harness/explore/futures.h"

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/explore.h"
#include "rankloom/process_group.h"
#include "tests/temp_dir.h"
#include "world/run_data.h"

namespace rankloom {
namespace {

using internal::RunData;
using testing::IsEmpty;
using testing::SizeIs;

// The search of a failure of the program, with run files wanted or not.
RunData::Search search_of(absl::FunctionRef<void(RankContext&)> program, bool files, int* runs = nullptr) {
  const TempDir folder;
  if (files) setenv("RANKLOOM_REPORT", folder.file("runs").c_str(), 1);
  const ExploreOptions options = {.world = {.world_size = 2, .engine = EngineKind::kFibers},
                                  .progress = [](const ExploreOptions::Progress&) {}};
  const ExploreReport report = explore(options, [&](RankContext& rank) {
    if (rank.rank() == 0 && runs != nullptr) ++*runs;
    program(rank);
  });
  unsetenv("RANKLOOM_REPORT");
  if (!report.failure.has_value() || report.failure->report.kept == nullptr) {
    ADD_FAILURE() << report.text();
    return {};
  }
  return report.failure->report.kept->search;
}

void comes_first_or_second(RankContext& rank) { observe(rank, "place", rank.store().add("arrived", 1)); }

void counts(RankContext& rank) {
  auto pg = init_process_group(rank);
  Store& store = rank.store();
  if (rank.rank() == 0) store.set("count", "0");
  pg->barrier().wait();
  store.set("count", std::to_string(std::stoi(store.get("count")) + 1));
  pg->barrier().wait();
  if (store.get("count") != std::to_string(pg->size())) throw std::runtime_error("too few");
}

TEST(FuturesOnFibersTest, AllSchedulesOfASmallRunAreCounted) {
  const RunData::Search search = search_of(comes_first_or_second, /*files=*/true);
  EXPECT_FALSE(search.sampled);
  ASSERT_THAT(search.futures, SizeIs(search.choices.size() + 1));
  ASSERT_GT(search.futures.size(), 1U);
  for (size_t made = 1; made < search.futures.size(); ++made) {
    EXPECT_LE(search.futures[made].all, search.futures[made - 1].all);
    EXPECT_LE(search.futures[made].fail, search.futures[made - 1].fail);
    EXPECT_LE(search.futures[made].fail, search.futures[made].all);
  }
  // Two ranks that do the same: who comes first is as often the one as the other.
  EXPECT_EQ(search.futures.front().all, 2 * search.futures.front().fail);
  EXPECT_EQ(search.futures.back().all, 1);
  EXPECT_EQ(search.futures.back().fail, 1);
}

TEST(FuturesOnFibersTest, ALongerRunIsSampled) {
  const RunData::Search search = search_of(counts, /*files=*/true);
  EXPECT_TRUE(search.sampled);
  ASSERT_THAT(search.futures, SizeIs(search.choices.size() + 1));
  for (const RunData::Search::Futures& futures : search.futures) EXPECT_EQ(futures.all, search.futures[0].all);
  EXPECT_GT(search.futures.front().fail, 0);
  EXPECT_LT(search.futures.front().fail, search.futures.front().all);
  EXPECT_EQ(search.futures.back().fail, search.futures.back().all);  // all of the run was chosen
}

TEST(FuturesOnFibersTest, ASampleIsTheSameEachTime) {
  const RunData::Search one = search_of(counts, /*files=*/true), other = search_of(counts, /*files=*/true);
  ASSERT_EQ(one.futures.size(), other.futures.size());
  for (size_t made = 0; made < one.futures.size(); ++made) EXPECT_EQ(one.futures[made].fail, other.futures[made].fail);
}

TEST(FuturesOnFibersTest, NothingIsCountedUnlessFilesAreWanted) {
  int with = 0, without = 0;
  EXPECT_FALSE(search_of(comes_first_or_second, /*files=*/true, &with).futures.empty());
  const RunData::Search search = search_of(comes_first_or_second, /*files=*/false, &without);
  EXPECT_THAT(search.futures, IsEmpty());
  EXPECT_THAT(search.choices, IsEmpty());
  EXPECT_GT(search.run, 0);
  EXPECT_THAT(search.shares, SizeIs(1));
  EXPECT_LT(without, with);
}

}  // namespace
}  // namespace rankloom

#include "sim/base/ranks_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace rankloom::internal {
namespace {

using testing::EndsWith;

std::vector<int> even_ranks(int end) {
  std::vector<int> even;
  for (int rank = 0; rank < end; rank += 2) even.push_back(rank);
  return even;
}

TEST(RanksTextTest, NeighboursAreRanges) {
  EXPECT_EQ(rank_ranges({}), "");
  EXPECT_EQ(rank_ranges({3}), "3");
  EXPECT_EQ(rank_ranges({0, 1, 4, 6, 7, 8}), "0-1, 4, 6-8");
}

TEST(RanksTextTest, ALongListOfRangesIsWhole) { EXPECT_THAT(rank_ranges(even_ranks(100)), EndsWith(", 96, 98")); }

TEST(RanksTextTest, OneRankIsARankAndMoreAreRanks) {
  EXPECT_EQ(ranks_text({3}), "rank 3");
  EXPECT_EQ(ranks_text({3, 4}), "ranks 3-4");
}

TEST(RanksTextTest, ShortListsAreSortedAndTwoNeighboursAreNoRange) {
  EXPECT_EQ(short_ranks({}), "");
  EXPECT_EQ(short_ranks({3}), "3");
  EXPECT_EQ(short_ranks({4, 3}), "3, 4");
  EXPECT_EQ(short_ranks({5, 0, 2, 4, 3}), "0, 2-5");
}

TEST(RanksTextTest, ShortListsAreCut) {
  EXPECT_THAT(short_ranks(even_ranks(40)), EndsWith(", 36, 38"));
  EXPECT_THAT(short_ranks(even_ranks(100)), EndsWith(", 38, ... (50 ranks)"));
}

}  // namespace
}  // namespace rankloom::internal

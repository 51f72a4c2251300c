#include "sim/base/ranks_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace rankloom::internal {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::StartsWith;

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

TEST(RanksTextTest, ShortListsAreSorted) {
  EXPECT_EQ(short_ranks({}), "");
  EXPECT_EQ(short_ranks({3}), "3");
  EXPECT_EQ(short_ranks({4, 3}), "3-4");
  EXPECT_EQ(short_ranks({5, 0, 2, 4, 3}), "0, 2-5");
}

TEST(RanksTextTest, ShortListsAreCut) {
  EXPECT_THAT(short_ranks(even_ranks(40)), EndsWith(", 36, 38"));
  EXPECT_THAT(short_ranks(even_ranks(100)), EndsWith(", 38, ... (50 ranks)"));
}

TEST(RanksTextTest, ShortListsHaveTheSameWord) {
  EXPECT_EQ(short_ranks_text({3}), "rank 3");
  EXPECT_EQ(short_ranks_text({4, 0, 3}), "ranks 0, 3-4");
  EXPECT_THAT(short_ranks_text(even_ranks(100)), AllOf(StartsWith("ranks 0, 2, "), EndsWith(", ... (50 ranks)")));
}

TEST(FoldedByRankTest, WhatARankHadOpenAndWhereItWasIsToldOfAll) {
  const std::vector<SaidByRanks> said = folded_by_rank({{0, "nan is not 2\nhint; rank 0 had all_reduce seq 1 open"},
                                                        {1, "nan is not 2\nhint; rank 1 had all_reduce seq 1 open"},
                                                        {2, "nan is not 2\nhint; rank 2 had all_reduce seq 2 open"},
                                                        {3, "rank 3, send: changed, when rank 3 was at barrier"},
                                                        {4, "rank 4, send: changed, when rank 4 was at barrier"},
                                                        {5, "rank 5, send: changed, when rank 4 was at barrier"}});
  std::vector<std::string> lines;
  for (const SaidByRanks& one : said) lines.push_back(ranks_text(one.ranks) + ": " + one.text);
  EXPECT_THAT(lines, testing::ElementsAre("ranks 0-1: nan is not 2\nhint; ranks 0-1 had all_reduce seq 1 open",
                                          "rank 2: nan is not 2\nhint; rank 2 had all_reduce seq 2 open",
                                          "ranks 3-4: send: changed, when the rank was at barrier",
                                          "rank 5: rank 5, send: changed, when rank 4 was at barrier"));
}

TEST(FoldedByRankTest, TextsThatDifferInTheirRankOnlyAreOne) {
  const std::vector<SaidByRanks> said = folded_by_rank({{0, "InvalidArgument: rank 0, group 0, send: no peer"},
                                                        {1, "rank 1, group 0: late"},
                                                        {2, "InvalidArgument: rank 2, group 0, send: no peer"},
                                                        {3, "rank 4, group 0: late"},
                                                        {4, "rank 4, group 0: late"},
                                                        {5, "lost"},
                                                        {6, "lost"},
                                                        {7, ""}});
  std::vector<std::string> lines;
  for (const SaidByRanks& one : said) lines.push_back(ranks_text(one.ranks) + ": " + one.text);
  EXPECT_THAT(lines,
              testing::ElementsAre("ranks 0, 2: InvalidArgument: group 0, send: no peer", "ranks 1, 4: group 0: late",
                                   "rank 3: rank 4, group 0: late", "ranks 5-6: lost", "rank 7: "));
}

}  // namespace
}  // namespace rankloom::internal

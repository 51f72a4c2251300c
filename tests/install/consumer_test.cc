// A user's test: the installed library with its GoogleTest side.
#include <gtest/gtest.h>
#include <rankloom/testing.h>

TEST(ConsumerTest, Links) { EXPECT_FALSE(rankloom::version().empty()); }

class ConsumerRanks : public rankloom::MultiThreadedTestCase {};
INSTANTIATE_TEST_SUITE_P(Engines, ConsumerRanks, rankloom::every_engine(), rankloom::engine_name);

TEST_P(ConsumerRanks, Run) {
  run_ranks(/*world_size=*/2, [](rankloom::RankContext& rank) { EXPECT_EQ(rank.world_size(), 2); });
}

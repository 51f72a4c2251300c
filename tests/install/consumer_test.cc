// A user's test: the installed library with its GoogleTest side.
#include <gtest/gtest.h>
#include <rankloom/testing.h>

TEST(ConsumerTest, Links) { EXPECT_FALSE(rankloom::version().empty()); }

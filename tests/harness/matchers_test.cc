#include "rankloom/matchers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "rankloom/world.h"

namespace rankloom {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

template <typename Matcher, typename Value>
std::string explanation(const Matcher& matcher, const Value& value) {
  testing::StringMatchResultListener listener;
  EXPECT_FALSE(testing::ExplainMatchResult(matcher, value, &listener));
  return listener.str();
}

[[noreturn]] void time_out() {
  throw DistError(make_error(ErrorKind::kTimeout, "after 5 s"),
                  {.rank = 2, .group = "0", .op = "all_reduce", .seq = 3});
}

TEST(DistErrorMatchers, TakeKindAndText) {
  EXPECT_THAT(time_out, ThrowsDistError(ErrorKind::kTimeout));
  EXPECT_THAT(time_out, ThrowsDistError(ErrorKind::kTimeout, HasSubstr("after 5 s")));
  EXPECT_THAT(time_out, Not(ThrowsDistError(ErrorKind::kTimeout, HasSubstr("after 6 s"))));
  EXPECT_THAT(time_out, Not(ThrowsDistError(ErrorKind::kMismatch, HasSubstr("after 5 s"))));
  EXPECT_THAT([] {}, Not(ThrowsDistError(ErrorKind::kTimeout)));
  EXPECT_THAT([] { throw std::runtime_error("after 5 s"); }, Not(ThrowsDistError(ErrorKind::kTimeout)));
}

TEST(DistErrorMatchers, SayWhichKindTheErrorHas) {
  const auto call = [] { time_out(); };
  EXPECT_THAT(explanation(ThrowsDistError(ErrorKind::kMismatch), call), HasSubstr("Timeout"));
}

TEST(DistErrorMatchers, MatchACaughtError) {
  try {
    time_out();
  } catch (const DistError& error) {
    EXPECT_THAT(error, IsDistError(ErrorKind::kTimeout, StartsWith("Timeout")));
    EXPECT_THAT(error, Not(IsDistError(ErrorKind::kAborted)));
  }
}

TEST(ReportMatchers, TellSuccessFromFailure) {
  const RunReport good = run_world({.world_size = 2}, [](RankContext&) {});
  const RunReport bad = run_world({.world_size = 2}, [](RankContext& rank) {
    if (rank.rank() == 1) throw std::runtime_error("no disk");
  });
  EXPECT_THAT(good, Succeeded());
  EXPECT_THAT(good, Not(FailsWith("")));
  EXPECT_THAT(bad, Not(Succeeded()));
  EXPECT_THAT(bad, FailsWith("no disk"));
  EXPECT_THAT(bad, FailsWith(StartsWith("rank 1 failed: ")));
  EXPECT_THAT(bad, Not(FailsWith("no memory")));
  EXPECT_THAT(explanation(Succeeded(), bad), HasSubstr("rank 1 failed: no disk"));
  EXPECT_THAT(explanation(FailsWith("no memory"), good), HasSubstr("succeeded"));
  EXPECT_EQ(testing::PrintToString(bad), bad.text());
}

TEST(BitsEqualMatcher, ComparesBits) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT((std::vector<float>{1, nan, 0.0f}), BitsEqual(std::vector<float>{1, nan, 0.0f}));
  EXPECT_THAT((std::vector<float>{0.0f}), Not(BitsEqual(std::vector<float>{-0.0f})));
  EXPECT_THAT((std::vector<double>{0.1 + 0.2}), Not(BitsEqual(std::vector<double>{0.3})));
  EXPECT_THAT(std::vector<float>(), BitsEqual(std::vector<float>()));
}

TEST(BitsEqualMatcher, TakesOtherRanges) {
  const int values[] = {1, 2, 3};
  EXPECT_THAT(std::span(values), BitsEqual(std::vector<int>{1, 2, 3}));
}

TEST(BitsEqualMatcher, NamesTheFirstDifferenceAndTheirNumber) {
  const std::vector<float> have = {1, 2, 3};
  EXPECT_EQ(explanation(BitsEqual(std::vector<float>{1, 2.5f, 4}), have),
            "whose element 1 is 2 (0x40000000), want 2.5 (0x40200000); 2 of 3 elements differ");
  EXPECT_EQ(explanation(BitsEqual(std::vector<float>{1}), have), "which has 3 elements, want 1");
}

}  // namespace
}  // namespace rankloom

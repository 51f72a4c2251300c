// Every known bug is found, by the guided strategies within 1,000 runs and by the exhaustive one; shrunk to what
// somebody who knows it would write; and gone with the fix, in every schedule.

#include <string>
#include <vector>

#include "examples/known_bugs/known_bugs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankloom {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::Le;

class CorpusTest : public testing::TestWithParam<KnownBug> {
 protected:
  static ExploreOptions options(std::vector<Strategy> strategies) {
    return {.world = GetParam().world(), .strategies = std::move(strategies), .max_runs = 1000};
  }
};
INSTANTIATE_TEST_SUITE_P(BugsOnFibers, CorpusTest, testing::ValuesIn(known_bugs().begin(), known_bugs().end()),
                         [](const testing::TestParamInfo<KnownBug>& info) { return std::string(info.param.name); });

TEST_P(CorpusTest, IsFoundExhaustively) {
  const ExploreReport report = explore(options({Strategy::exhaustive()}), GetParam().bug);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.text(), HasSubstr(GetParam().symptom));
}

TEST_P(CorpusTest, IsFoundByGuidedStrategiesAndShrinksToTheMinimum) {
  const ExploreReport report =
      explore(options({Strategy::pct(), Strategy::starve(), Strategy::late_completion()}), GetParam().bug);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.text(), HasSubstr(GetParam().symptom));
  EXPECT_THAT(report.failure->size(), Le(2 * GetParam().minimum)) << report.text();
  EXPECT_THAT(report.failure->rerun, HasSubstr("RANKLOOM_SCHEDULE="));
}

TEST_P(CorpusTest, IsGoneWithTheFixInAllSchedules) {
  ExploreOptions all = options({Strategy::exhaustive()});
  all.max_runs = 20'000;
  const ExploreReport report = explore(all, GetParam().fix);
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_TRUE(report.verified) << report.text();
}

TEST_P(CorpusTest, IsGoneWithTheFixUnderGuidedStrategies) {
  ExploreOptions drawn =
      options({Strategy::pct(), Strategy::starve(), Strategy::late_completion(), Strategy::random()});
  drawn.max_runs = 300;
  const ExploreReport report = explore(drawn, GetParam().fix);
  EXPECT_TRUE(report.ok()) << report.text();
}

}  // namespace
}  // namespace rankloom

#include "rankloom/version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace rankloom {
namespace {

TEST(VersionTest, HasThreeNumbers) {
  EXPECT_THAT(std::string(version()), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

}  // namespace
}  // namespace rankloom

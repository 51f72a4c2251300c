// The program of a folder's tests where these are compiled together: of all its cases those run that stand in one
// source.
//     PROGRAM NAME [GOOGLETEST FLAG]...: the cases of NAME.cc
// Of these, $GTEST_FILTER leaves out what it always does. A flag --gtest_filter says which cases run, whatever their
// source.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"

namespace {

std::string source_of(const testing::TestInfo& test) { return std::filesystem::path(test.file()).stem(); }

// The beginning of a filter for all cases of `source`; empty if there are none. Ends the program if one of its suites
// has cases of another source, too.
std::string cases_of(const std::string& source) {
  std::string suites;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    int cases = 0;
    for (int j = 0; j < suite.total_test_count(); ++j) cases += source_of(*suite.GetTestInfo(j)) == source ? 1 : 0;
    if (cases == 0) continue;
    if (cases != suite.total_test_count()) {
      std::cerr << suite.name() << ": has cases in " << source << ".cc and in another source, want one of them\n";
      std::exit(2);
    }
    absl::StrAppend(&suites, suites.empty() ? "" : ":", suite.name(), ".*");
  }
  return suites;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  if (argc != 2) {
    std::cerr << argv[0] << ": want the name of a test's source and GoogleTest's flags\n";
    return 2;
  }
  const std::string filter = testing::GTEST_FLAG(filter);
  if (!filter.empty() && filter != "*" && filter[0] != '-') return RUN_ALL_TESTS();
  const std::string names = cases_of(argv[1]);
  if (names.empty()) {
    std::cerr << argv[0] << ": no case stands in " << argv[1] << ".cc\n";
    return 2;
  }
  testing::GTEST_FLAG(filter) = absl::StrCat(names, filter[0] == '-' ? filter : "");
  return RUN_ALL_TESTS();
}

#include "harness/coloured_failures.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "world/run_options.h"
#include "world/terminal.h"

namespace rankloom::internal {
namespace {

using testing::TestInfo;
using testing::TestPartResult;
using testing::TestSuite;
using testing::UnitTest;

// The text that is reported now; null: none. GoogleTest's own thread.
const std::string* reported = nullptr;

// GoogleTest's printer, to which all is passed on.
class ColouredPrinter final : public testing::TestEventListener {
 public:
  explicit ColouredPrinter(std::unique_ptr<TestEventListener> printer) : printer_(std::move(printer)) {}

  void OnTestPartResult(const TestPartResult& result) override {
    const std::string_view message = result.message();
    if (reported == nullptr || !result.failed() || !message.starts_with(*reported))
      return printer_->OnTestPartResult(result);
    printer_->OnTestPartResult(
        TestPartResult(result.type(), result.file_name(), result.line_number(), failure_in_colours(message).c_str()));
  }

  void OnTestProgramStart(const UnitTest& all) override { printer_->OnTestProgramStart(all); }
  void OnTestIterationStart(const UnitTest& all, int n) override { printer_->OnTestIterationStart(all, n); }
  void OnEnvironmentsSetUpStart(const UnitTest& all) override { printer_->OnEnvironmentsSetUpStart(all); }
  void OnEnvironmentsSetUpEnd(const UnitTest& all) override { printer_->OnEnvironmentsSetUpEnd(all); }
  void OnTestSuiteStart(const TestSuite& suite) override { printer_->OnTestSuiteStart(suite); }
  void OnTestStart(const TestInfo& test) override { printer_->OnTestStart(test); }
  void OnTestDisabled(const TestInfo& test) override { printer_->OnTestDisabled(test); }
  void OnTestEnd(const TestInfo& test) override { printer_->OnTestEnd(test); }
  void OnTestSuiteEnd(const TestSuite& suite) override { printer_->OnTestSuiteEnd(suite); }
  void OnEnvironmentsTearDownStart(const UnitTest& all) override { printer_->OnEnvironmentsTearDownStart(all); }
  void OnEnvironmentsTearDownEnd(const UnitTest& all) override { printer_->OnEnvironmentsTearDownEnd(all); }
  void OnTestIterationEnd(const UnitTest& all, int n) override { printer_->OnTestIterationEnd(all, n); }
  void OnTestProgramEnd(const UnitTest& all) override { printer_->OnTestProgramEnd(all); }
#ifndef GTEST_REMOVE_LEGACY_TEST_CASEAPI_
  // The names that GoogleTest's printer itself listens to.
  void OnTestCaseStart(const TestSuite& suite) override { printer_->OnTestCaseStart(suite); }
  void OnTestCaseEnd(const TestSuite& suite) override { printer_->OnTestCaseEnd(suite); }
#endif

 private:
  const std::unique_ptr<TestEventListener> printer_;
};

bool colours_are_wanted() {
  // GoogleTest's words for a yes.
  const std::string flag = absl::AsciiStrToLower(GTEST_FLAG_GET(color));
  return takes_colours(stdout) && (flag == "auto" || flag == "yes" || flag == "true" || flag == "t" || flag == "1");
}

// Puts a ColouredPrinter in the place of GoogleTest's printer, the first time that there is one.
void take_printer() {
  testing::TestEventListeners& listeners = UnitTest::GetInstance()->listeners();
  testing::TestEventListener* const printer = listeners.default_result_printer();
  if (printer == nullptr) return;  // the printer was taken, by this or by the program
  listeners.Append(new ColouredPrinter(std::unique_ptr<testing::TestEventListener>(listeners.Release(printer))));
}

}  // namespace

ColouredFailure::ColouredFailure(const std::string& text) {
  if (!colours_are_wanted()) return;
  take_printer();
  reported = &text;
}

ColouredFailure::~ColouredFailure() { reported = nullptr; }

}  // namespace rankloom::internal

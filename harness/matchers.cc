#include "rankloom/matchers.h"

#include <utility>

namespace rankloom {

using namespace internal;

namespace {

using testing::MatchResultListener;

class SuccessMatcher {
 public:
  using is_gtest_matcher = void;
  bool MatchAndExplain(const RunReport& report, MatchResultListener* listener) const {
    if (!report.ok()) *listener << "which says: " << report.text();
    return report.ok();
  }
  void DescribeTo(std::ostream* out) const { *out << "succeeded"; }
  void DescribeNegationTo(std::ostream* out) const { *out << "failed"; }
};

class FailureMatcher {
 public:
  using is_gtest_matcher = void;
  explicit FailureMatcher(testing::Matcher<std::string> text) : text_(std::move(text)) {}
  bool MatchAndExplain(const RunReport& report, MatchResultListener* listener) const {
    if (!report.ok()) return text_.MatchAndExplain(report.text(), listener);
    *listener << "which succeeded";
    return false;
  }
  void DescribeTo(std::ostream* out) const { *out << "is a failure with a text like that"; }
  void DescribeNegationTo(std::ostream* out) const { *out << "is not a failure like that"; }

 private:
  testing::Matcher<std::string> text_;
};

class CallsMatcher {
 public:
  using is_gtest_matcher = void;
  explicit CallsMatcher(ExpectedCalls expected) : expected_(std::move(expected)) {}
  bool MatchAndExplain(const CallRecord& record, MatchResultListener* listener) const {
    const int64_t have = record.calls(expected_.op, expected_.group);
    *listener << "which has " << have << " such calls of " << record.calls();
    return have == expected_.count;
  }
  void DescribeTo(std::ostream* out) const { *out << "has " << testing::PrintToString(expected_); }
  void DescribeNegationTo(std::ostream* out) const { *out << "has not " << testing::PrintToString(expected_); }

 private:
  ExpectedCalls expected_;
};

class CallsExactlyMatcher {
 public:
  using is_gtest_matcher = void;
  explicit CallsExactlyMatcher(std::vector<ExpectedCalls> expected) : expected_(std::move(expected)) {}
  bool MatchAndExplain(const CallRecord& record, MatchResultListener* listener) const {
    bool equal = true;
    int64_t sum = 0;
    for (const ExpectedCalls& one : expected_) {
      const int64_t have = record.calls(one.op, one.group);
      sum += one.count;
      if (have == one.count) continue;
      *listener << (equal ? "which has " : ", ") << have << " x " << op_name(one.op) << " on " << one.group;
      equal = false;
    }
    if (equal && sum != record.calls()) {
      *listener << "which has " << record.calls() << " calls, want " << sum;
      equal = false;
    }
    if (!equal) *listener << "; it is\n" << record.text();
    return equal;
  }
  void DescribeTo(std::ostream* out) const { describe(out, "has exactly"); }
  void DescribeNegationTo(std::ostream* out) const { describe(out, "has not exactly"); }

 private:
  void describe(std::ostream* out, const char* verb) const {
    *out << verb;
    for (size_t i = 0; i < expected_.size(); ++i) *out << (i == 0 ? " " : ", ") << testing::PrintToString(expected_[i]);
    if (expected_.empty()) *out << " no calls";
  }

  std::vector<ExpectedCalls> expected_;
};

}  // namespace

void internal::PrintTo(const ExpectedCalls& expected, std::ostream* out) {
  *out << expected.count << " x " << op_name(expected.op) << " on " << expected.group;
}

testing::Matcher<const DistError&> IsDistError(ErrorKind kind, const testing::Matcher<std::string>& text) {
  return testing::AllOf(testing::Property("kind", &DistError::kind, kind),
                        testing::ResultOf(
                            "text", [](const DistError& error) { return std::string(error.what()); }, text));
}

testing::Matcher<const RunReport&> Succeeded() { return SuccessMatcher(); }

testing::Matcher<const CallRecord&> Calls(int64_t count, OpType op, const std::string& group) {
  return CallsMatcher({count, op, group});
}

testing::Matcher<const CallRecord&> CallsExactly(std::vector<ExpectedCalls> expected) {
  return CallsExactlyMatcher(std::move(expected));
}

namespace internal {

testing::Matcher<const RunReport&> fails_with(const testing::Matcher<std::string>& text) {
  return FailureMatcher(text);
}

std::string bits_text(const void* number, size_t bytes) {
  const unsigned char* const byte = static_cast<const unsigned char*>(number);
  std::string text = "0x";
  for (size_t i = bytes; i > 0; --i) {
    for (const int digit : {byte[i - 1] >> 4, byte[i - 1] & 15}) text += "0123456789abcdef"[digit];
  }
  return text;
}

}  // namespace internal
}  // namespace rankloom

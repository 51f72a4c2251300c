#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "collectives/ops/op_table.h"
#include "gmock/gmock.h"
#include "rankloom/error.h"
#include "rankloom/records.h"
#include "rankloom/report.h"

namespace rankloom {

// How GoogleTest prints them.
inline void PrintTo(ErrorKind kind, std::ostream* out) { *out << error_kind_name(kind); }
inline void PrintTo(const RunReport& report, std::ostream* out) { *out << report.text(); }

// A DistError of this kind whose text matches: EXPECT_THAT(error, IsDistError(ErrorKind::kTimeout, HasSubstr("all_reduce"))).
inline testing::Matcher<const DistError&> IsDistError(ErrorKind kind,
                                                      const testing::Matcher<std::string>& text = testing::_) {
  return testing::AllOf(testing::Property("kind", &DistError::kind, kind),
                        testing::ResultOf(
                            "text", [](const DistError& error) { return std::string(error.what()); }, text));
}

// A call that throws such a DistError: EXPECT_THAT([&] { pg->barrier().wait(); }, ThrowsDistError(ErrorKind::kTimeout, ...)).
inline auto ThrowsDistError(ErrorKind kind, const testing::Matcher<std::string>& text = testing::_) {
  return testing::Throws<DistError>(IsDistError(kind, text));
}

// A RunReport of a world in which every rank returned.
MATCHER(Succeeded, negation ? "failed" : "succeeded") {
  if (!arg.ok()) *result_listener << "which says: " << arg.text();
  return arg.ok();
}

// A RunReport of a world that failed, with a text that matches: EXPECT_THAT(report, FailsWith("rank 1 failed: no disk")).
// A plain string means a part of the text.
MATCHER_P(FailsWith, text, negation ? "is not a failure like that" : "is a failure with a text like that") {
  if (arg.ok()) {
    *result_listener << "which succeeded";
    return false;
  }
  if constexpr (std::is_convertible_v<decltype(text), std::string>) {
    return testing::ExplainMatchResult(testing::HasSubstr(std::string(text)), arg.text(), result_listener);
  } else {
    return testing::ExplainMatchResult(text, arg.text(), result_listener);
  }
}

namespace internal {

// Bits of a number, for a text: "0x3f800000". As many digits as bytes.
template <typename T>
std::string bits_text(const T& value) {
  unsigned char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  std::string text = "0x";
  for (size_t i = sizeof(T); i > 0; --i) {
    for (const int digit : {bytes[i - 1] >> 4, bytes[i - 1] & 15}) text += "0123456789abcdef"[digit];
  }
  return text;
}

}  // namespace internal

// A range of the same numbers, bit by bit: -0.0 is not 0.0, and a NaN equals itself. `want` is a vector or another range of
// the same element type: EXPECT_THAT(sums, BitsEqual(std::vector<float>{1, 2, 3})).
MATCHER_P(BitsEqual, want,
          std::string(negation ? "differs from " : "has the same bits as ") + testing::PrintToString(want)) {
  using Have = std::remove_cvref_t<decltype(*std::begin(arg))>;
  using Want = std::remove_cvref_t<decltype(*std::begin(want))>;
  static_assert(std::is_same_v<Have, Want>, "BitsEqual compares elements of one type");
  static_assert(std::is_trivially_copyable_v<Have>, "BitsEqual compares plain numbers");
  const size_t have_size = static_cast<size_t>(std::distance(std::begin(arg), std::end(arg)));
  const size_t want_size = static_cast<size_t>(std::distance(std::begin(want), std::end(want)));
  if (have_size != want_size) {
    *result_listener << "which has " << have_size << " elements, want " << want_size;
    return false;
  }
  auto have_at = std::begin(arg);
  auto want_at = std::begin(want);
  size_t differ = 0;
  for (size_t i = 0; i < have_size; ++i, ++have_at, ++want_at) {
    const Have have_value = *have_at;
    const Want want_value = *want_at;
    if (std::memcmp(&have_value, &want_value, sizeof(Have)) == 0) continue;
    if (++differ == 1) {
      *result_listener << "whose element " << i << " is " << testing::PrintToString(have_value) << " ("
                       << internal::bits_text(have_value) << "), want " << testing::PrintToString(want_value) << " ("
                       << internal::bits_text(want_value) << ")";
    }
  }
  if (differ > 1) *result_listener << "; " << differ << " of " << have_size << " elements differ";
  return differ == 0;
}

// How GoogleTest prints them.
inline void PrintTo(const CallRecord& record, std::ostream* out) { *out << record.text(); }
inline void PrintTo(const RecordedCall& call, std::ostream* out) { *out << call.name << " seq " << call.seq; }

// So many calls of an operation on a group: its mesh dimension ("tp"), name ("0.1") or description.
struct ExpectedCalls {
  int64_t count;
  OpType op;
  std::string group;
};

inline void PrintTo(const ExpectedCalls& expected, std::ostream* out) {
  *out << expected.count << " x " << op_row(expected.op).name << " on " << expected.group;
}

// A CallRecord that holds so many calls of this operation on this group, whatever else it holds:
//   EXPECT_THAT(*record, Calls(3, OpType::kAllGatherIntoTensor, "tp"));
MATCHER_P3(Calls, count, op, group,
           std::string(negation ? "has not " : "has ") +
               testing::PrintToString(ExpectedCalls{static_cast<int64_t>(count), op, group})) {
  const int64_t have = arg.calls(op, group);
  *result_listener << "which has " << have << " such calls of " << arg.calls();
  return have == count;
}

// A CallRecord of exactly these calls and no others, in any order:
//   EXPECT_THAT(*record, CallsExactly({{3, OpType::kAllGatherIntoTensor, "tp"}, {1, OpType::kReduceScatterTensor, "dp"}}));
inline testing::Matcher<const CallRecord&> CallsExactly(std::vector<ExpectedCalls> expected) {
  class Exactly {
   public:
    using is_gtest_matcher = void;
    explicit Exactly(std::vector<ExpectedCalls> expected) : expected_(std::move(expected)) {}
    bool MatchAndExplain(const CallRecord& record, testing::MatchResultListener* listener) const {
      bool equal = true;
      int64_t sum = 0;
      for (const ExpectedCalls& one : expected_) {
        const int64_t have = record.calls(one.op, one.group);
        sum += one.count;
        if (have == one.count) continue;
        *listener << (equal ? "which has " : ", ") << have << " x " << op_row(one.op).name << " on " << one.group;
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
      for (size_t i = 0; i < expected_.size(); ++i)
        *out << (i == 0 ? " " : ", ") << testing::PrintToString(expected_[i]);
      if (expected_.empty()) *out << " no calls";
    }

    std::vector<ExpectedCalls> expected_;
  };
  return Exactly(std::move(expected));
}

}  // namespace rankloom

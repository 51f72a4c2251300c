#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "rankloom/collective_call.h"
#include "rankloom/error.h"
#include "rankloom/records.h"
#include "rankloom/world.h"

namespace rankloom {

// How GoogleTest prints them.
inline std::ostream& operator<<(std::ostream& out, ErrorKind kind) { return out << internal::error_kind_name(kind); }
inline std::ostream& operator<<(std::ostream& out, const RunReport& report) { return out << report.text(); }
inline std::ostream& operator<<(std::ostream& out, const CallRecord& record) { return out << record.text(); }
inline std::ostream& operator<<(std::ostream& out, const CallRecord::Call& call) {
  return out << call.name << " seq " << call.seq;
}

// A DistError of this kind whose text matches: EXPECT_THAT(error, IsDistError(ErrorKind::kTimeout,
// HasSubstr("all_reduce"))).
testing::Matcher<const DistError&> IsDistError(ErrorKind kind, const testing::Matcher<std::string>& text = testing::_);

// A call that throws such a DistError: EXPECT_THAT([&] { pg->barrier().wait(); }, ThrowsDistError(ErrorKind::kTimeout,
// ...)).
inline auto ThrowsDistError(ErrorKind kind, const testing::Matcher<std::string>& text = testing::_) {
  return testing::Throws<DistError>(IsDistError(kind, text));
}

// A RunReport of a world in which every rank returned.
testing::Matcher<const RunReport&> Succeeded();

namespace internal {

testing::Matcher<const RunReport&> fails_with(const testing::Matcher<std::string>& text);

}  // namespace internal

// A RunReport of a world that failed, with a text that matches: EXPECT_THAT(report, FailsWith("rank 1 failed: no
// disk")). A plain string means a part of the text.
template <typename Text>
testing::Matcher<const RunReport&> FailsWith(const Text& text) {
  if constexpr (std::is_convertible_v<const Text&, std::string>) {
    return internal::fails_with(testing::HasSubstr(std::string(text)));
  } else {
    return internal::fails_with(testing::SafeMatcherCast<std::string>(text));
  }
}

namespace internal {

// The bytes of a number, the highest first, for a text: "0x3f800000".
std::string bits_text(const void* number, size_t bytes);

template <typename WantRange>
class BitsEqualMatcher {
 public:
  using is_gtest_matcher = void;
  explicit BitsEqualMatcher(WantRange want) : want_(std::move(want)) {}

  template <typename HaveRange>
  bool MatchAndExplain(const HaveRange& have, testing::MatchResultListener* listener) const {
    using Have = std::remove_cvref_t<decltype(*std::begin(have))>;
    using Want = std::remove_cvref_t<decltype(*std::begin(want_))>;
    static_assert(std::is_same_v<Have, Want>, "BitsEqual compares elements of one type");
    static_assert(std::is_trivially_copyable_v<Have>, "BitsEqual compares plain numbers");
    const size_t have_size = static_cast<size_t>(std::distance(std::begin(have), std::end(have)));
    const size_t want_size = static_cast<size_t>(std::distance(std::begin(want_), std::end(want_)));
    if (have_size != want_size) {
      *listener << "which has " << have_size << " elements, want " << want_size;
      return false;
    }
    auto have_at = std::begin(have);
    auto want_at = std::begin(want_);
    size_t differ = 0;
    for (size_t i = 0; i < have_size; ++i, ++have_at, ++want_at) {
      const Have have_value = *have_at;
      const Want want_value = *want_at;
      if (std::memcmp(&have_value, &want_value, sizeof(Have)) == 0) continue;
      if (++differ == 1) {
        *listener << "whose element " << i << " is " << testing::PrintToString(have_value) << " ("
                  << bits_text(&have_value, sizeof(Have)) << "), want " << testing::PrintToString(want_value) << " ("
                  << bits_text(&want_value, sizeof(Want)) << ")";
      }
    }
    if (differ > 1) *listener << "; " << differ << " of " << have_size << " elements differ";
    return differ == 0;
  }
  void DescribeTo(std::ostream* out) const { *out << "has the same bits as " << testing::PrintToString(want_); }
  void DescribeNegationTo(std::ostream* out) const { *out << "differs from " << testing::PrintToString(want_); }

 private:
  WantRange want_;
};

}  // namespace internal

// A range of the same numbers, bit by bit: -0.0 is not 0.0, and a NaN equals itself. `want` is a vector or another
// range of the same element type: EXPECT_THAT(sums, BitsEqual(std::vector<float>{1, 2, 3})).
template <typename Range>
internal::BitsEqualMatcher<Range> BitsEqual(Range want) {
  return internal::BitsEqualMatcher<Range>(std::move(want));
}

namespace internal {

// So many calls of an operation on a group: its mesh dimension ("tp"), name ("0.1") or description.
struct ExpectedCalls {
  int64_t count;
  OpType op;
  std::string group;
};
void PrintTo(const ExpectedCalls& expected, std::ostream* out);

}  // namespace internal

// A CallRecord that holds so many calls of this operation on this group, whatever else it holds:
//   EXPECT_THAT(*record, Calls(3, OpType::kAllGatherIntoTensor, "tp"));
testing::Matcher<const CallRecord&> Calls(int64_t count, OpType op, const std::string& group);

// A CallRecord of exactly these calls and no others, in any order:
//   EXPECT_THAT(*record, CallsExactly({{3, OpType::kAllGatherIntoTensor, "tp"}, {1, OpType::kAllReduce, "dp"}}));
testing::Matcher<const CallRecord&> CallsExactly(std::vector<internal::ExpectedCalls> expected);

}  // namespace rankloom

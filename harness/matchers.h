#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "sim/base/dist_error.h"
#include "world/run_report.h"

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

}  // namespace rankloom

#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "rankloom/error.h"

namespace rankloom::internal {

[[noreturn]] void throw_dist_error(const absl::Status& status, const ErrorOrigin& origin);

// A Status that is not OK becomes a DistError.
inline void throw_if_error(const absl::Status& status, const ErrorOrigin& origin) {
  if (!status.ok()) [[unlikely]]
    throw_dist_error(status, origin);
}

// make_error(), out of the way of code that runs.
[[gnu::cold]] absl::Status cold_error(ErrorKind kind, const std::string& text);

// How the library makes errors: of parts, strung together as absl::StrCat does. Inlined, so that no part's address is
// known to others, and callers keep theirs in registers.
template <typename... Parts>
[[gnu::always_inline]] inline absl::Status make_error(ErrorKind kind, const Parts&... parts) {
  return cold_error(kind, absl::StrCat(parts...));
}
template <typename... Parts>
[[gnu::always_inline]] inline absl::Status invalid_argument(const Parts&... parts) {
  return make_error(ErrorKind::kInvalidArgument, parts...);
}
// `status` again, with these parts before its text.
template <typename... Parts>
[[gnu::always_inline]] inline absl::Status prefixed(const absl::Status& status, const Parts&... parts) {
  return make_error(error_kind(status), parts..., status.message());
}
// Throws such an error: what a call that is refused ends with.
template <typename... Parts>
[[noreturn, gnu::always_inline]] inline void refuse(const ErrorOrigin& origin, ErrorKind kind, const Parts&... parts) {
  throw_dist_error(make_error(kind, parts...), origin);
}

// Unwinds a rank that a fault plan crashes (Fault::Kind::kCrash), up to world/rank_main.cc. Not a std::exception on
// purpose: a rank program that catches those must still end.
struct RankCrashed {};

// A broken invariant of rankloom itself: prints rank and text, then aborts the process.
[[noreturn]] void fatal(std::string_view text);

}  // namespace rankloom::internal

#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "rankloom/error.h"

namespace rankloom::internal {

[[noreturn]] void throw_dist_error(const absl::Status& status, const ErrorOrigin& origin);

// The one place where a Status becomes a DistError.
inline void throw_if_error(const absl::Status& status, const ErrorOrigin& origin) {
  if (!status.ok()) [[unlikely]]
    throw_dist_error(status, origin);
}

// Throws a DistError of this kind and text: what a call that is refused ends with.
[[noreturn]] void refuse(const ErrorOrigin& origin, ErrorKind kind, std::string_view text);

// InvalidArgument, with a text of these parts, strung together as absl::StrCat does.
template <typename... Parts>
absl::Status invalid_argument(const Parts&... parts) {
  return make_error(ErrorKind::kInvalidArgument, absl::StrCat(parts...));
}

// Unwinds a rank that goes on making calls long after its world was aborted. Not a std::exception on purpose: a rank
// program that catches those must still end. Caught in world/rank_main.cc only.
struct RankCancelled {};

// A broken invariant of rankloom itself: prints rank and text, then aborts the process.
[[noreturn]] void fatal(std::string_view text);

}  // namespace rankloom::internal

#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "rankloom/error.h"

namespace rankloom::internal {

// The bytes in quotes, escaped where they are no text, cut where they are long: "done", "a\x00b", "aaa..." (100000
// bytes).
std::string quote(std::string_view bytes);
// `"a", "b" and 12 more`.
std::string quote_list(absl::Span<const std::string_view> items);

// "get" of an operation's name, "store get".
std::string_view short_name(const char* name);

// A StoreError: `<who>: <what>`.
absl::Status store_error(std::string_view who, std::string_view what);
absl::Status negative_timeout(std::string_view who, absl::Duration have);
// `status`, whose headline ends with the line of the call.
absl::Status at_line(const absl::Status& status, CodeSite code);

}  // namespace rankloom::internal

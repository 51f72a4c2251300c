#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rankloom::internal {

// Debian's absl::string_view is a type of its own; absl::StrCat and friends take no std::string_view there.
inline absl::string_view sv(std::string_view text) { return {text.data(), text.size()}; }

inline std::string message_of(const absl::Status& status) { return std::string(status.message()); }

}  // namespace rankloom::internal

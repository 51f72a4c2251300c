#pragma once

#include <string_view>

#include "absl/strings/string_view.h"

namespace rankloom {

// Debian's absl::string_view is a type of its own; absl::StrCat and friends take no std::string_view there.
inline absl::string_view sv(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace rankloom

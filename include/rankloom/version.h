#pragma once

#include <string_view>

namespace rankloom {

// The version of the library, e.g. "0.1.0", as meson.build states it.
std::string_view version();

}  // namespace rankloom

#pragma once

#include <string>

#include "sim/base/task.h"

namespace rankloom::internal {

// "all_gather seq 1", "store get key \"done\"".
std::string site_text(const Site& site);
// " [group 0, train.cc:12]", or less where less is known.
std::string site_place(const Site& site);
// The last part of a path.
std::string_view base_name(std::string_view path);

}  // namespace rankloom::internal

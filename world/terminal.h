#pragma once

#include <string>
#include <string_view>

namespace rankloom::internal {

// The text of a failure in a terminal's colours: the headline, a deadlock's circle and the command that repeats the
// run. Escape sequences aside, the same text.
std::string failure_in_colours(std::string_view text);

}  // namespace rankloom::internal

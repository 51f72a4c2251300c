#pragma once

#include <string>

namespace rankloom::internal {

// `text` as reports, JSON and pickles can hold it. Unchanged if it is UTF-8 without control characters; else each byte that is
// none of that is written out: "a\\xff\\n".
std::string printable(std::string text);

}  // namespace rankloom::internal

#pragma once

#include <string>
#include <string_view>

namespace rankloom::internal {

// `text` as reports, JSON and pickles can hold it. Unchanged if it is UTF-8 without control characters; else each byte
// that is none of that is written out: "a\\xff\\n".
std::string printable(std::string text);

// `text` as UTF-8, for formats that hold any character: bytes that are no UTF-8 written out as printable() does.
std::string utf8_text(std::string_view text);

// `text` as a JSON string, with quotes: control characters escaped, bytes that are no UTF-8 written out as printable()
// does.
std::string json_string(std::string_view text);

}  // namespace rankloom::internal

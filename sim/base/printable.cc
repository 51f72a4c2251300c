#include "sim/base/printable.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_format.h"

namespace rankloom::internal {
namespace {

// Bytes of the character that begins at `i`; 0: no UTF-8.
size_t utf8(std::string_view text, size_t i) {
  const auto byte = [&text](size_t at) { return static_cast<uint8_t>(text[at]); };
  const uint8_t first = byte(i);
  if (first < 0x80) return 1;
  const size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || i + size > text.size()) return 0;
  for (size_t k = 1; k < size; ++k) {
    if ((byte(i + k) & 0xc0) != 0x80) return 0;
  }
  const uint8_t second = byte(i + 1);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool surrogate = first == 0xed && second >= 0xa0;
  const bool too_large = first == 0xf4 && second >= 0x90;
  return overlong || surrogate || too_large ? 0 : size;
}

// The same; 0 for a control character, too.
size_t character(std::string_view text, size_t i) {
  const size_t size = utf8(text, i);
  if (size == 0) return 0;
  const auto first = static_cast<uint8_t>(text[i]);
  const bool control = first < 0x20 || first == 0x7f || (first == 0xc2 && static_cast<uint8_t>(text[i + 1]) < 0xa0);
  return control ? 0 : size;
}

}  // namespace

std::string printable(std::string text) {
  size_t i = 0;
  while (i < text.size()) {
    const size_t size = character(text, i);
    if (size == 0) break;
    i += size;
  }
  if (i == text.size()) return text;
  std::string shown = text.substr(0, i);
  while (i < text.size()) {
    const size_t size = character(text, i);
    if (size > 0) {
      shown.append(text, i, size);
    } else if (text[i] == '\n') {
      shown += "\\n";
    } else {
      absl::StrAppendFormat(&shown, "\\x%02x", static_cast<unsigned>(static_cast<uint8_t>(text[i])));
    }
    i += size > 0 ? size : 1;
  }
  return shown;
}

std::string utf8_text(std::string_view text) {
  std::string shown;
  for (size_t i = 0; i < text.size();) {
    const size_t size = utf8(text, i);
    if (size == 0) absl::StrAppendFormat(&shown, "\\x%02x", static_cast<unsigned>(static_cast<uint8_t>(text[i])));
    shown.append(text, i, size);
    i += size > 0 ? size : 1;
  }
  return shown;
}

std::string json_string(std::string_view text) {
  std::string quoted = "\"";
  for (size_t i = 0; i < text.size();) {
    const size_t size = utf8(text, i);
    const char c = text[i];
    if (size == 0) {
      absl::StrAppendFormat(&quoted, "\\\\x%02x", static_cast<unsigned>(static_cast<uint8_t>(c)));
    } else if (static_cast<uint8_t>(c) < 0x20) {
      absl::StrAppendFormat(&quoted, "\\u%04x", static_cast<unsigned>(c));
    } else {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted.append(text, i, size);
    }
    i += size > 0 ? size : 1;
  }
  return quoted + '"';
}

}  // namespace rankloom::internal

#include "world/terminal.h"

#include "absl/strings/str_cat.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

constexpr std::string_view kPlain = "\x1b[0m";
constexpr std::string_view kHeadline = "\x1b[31;1m";
constexpr std::string_view kCircle = "\x1b[33m";
constexpr std::string_view kCommand = "\x1b[1m";

void append_line(std::string_view line, bool first, std::string* out) {
  constexpr std::string_view kRerun = "run it again: ";
  if (first) {
    absl::StrAppend(out, sv(kHeadline), sv(line), sv(kPlain));
  } else if (line.starts_with("  cycle: ")) {
    absl::StrAppend(out, sv(kCircle), sv(line), sv(kPlain));
  } else if (const size_t at = line.find(kRerun); at != std::string_view::npos) {
    const size_t command = at + kRerun.size();
    absl::StrAppend(out, sv(line.substr(0, command)), sv(kCommand), sv(line.substr(command)), sv(kPlain));
  } else {
    absl::StrAppend(out, sv(line));
  }
}

}  // namespace

std::string failure_in_colours(std::string_view text) {
  std::string out;
  bool first = true;
  for (;;) {
    const size_t end = text.find('\n');
    append_line(text.substr(0, end), first, &out);
    if (end == std::string_view::npos) return out;
    out += '\n';
    text.remove_prefix(end + 1);
    first = false;
  }
}

}  // namespace rankloom::internal

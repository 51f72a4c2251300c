#include "world/poison_hint.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

constexpr std::string_view kHint = "\noutputs hold NaN or 0xEB until their call completes; ";

// "nan" as a word, in any case.
bool says_nan(std::string_view text) {
  const auto is_letter = [text](size_t i) {
    return i < text.size() && (absl::ascii_isalnum(static_cast<unsigned char>(text[i])) || text[i] == '_');
  };
  const std::string lower = absl::AsciiStrToLower(absl::string_view(text.data(), text.size()));
  for (size_t at = lower.find("nan"); at != std::string::npos; at = lower.find("nan", at + 1)) {
    if (!(at > 0 && is_letter(at - 1)) && !is_letter(at + 3)) return true;
  }
  return false;
}

}  // namespace

std::string open_outputs_hint(const std::vector<std::pair<std::string, std::string>>& who_had_what) {
  std::string text;
  for (const auto& [who, calls] : who_had_what)
    absl::StrAppend(&text, text.empty() ? sv(kHint) : sv("; "), who, " had ", calls, " open");
  return text;
}

std::string poison_hint(std::string_view values) {
  constexpr std::string_view kInt32 = "-336860181", kInt64 = "-1446803456761533461";  // of bytes 0xEB
  const bool shows = values.find(kInt32) != std::string_view::npos || values.find(kInt64) != std::string_view::npos;
  if (!shows && !says_nan(values)) return "";
  return absl::StrCat(sv(kHint), "a value was read before its wait(), perhaps");
}

bool has_poison_hint(std::string_view text) { return text.find(kHint) != std::string_view::npos; }

}  // namespace rankloom::internal

#include "fake_store/store_text.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"

namespace rankloom::internal {

std::string quote(std::string_view bytes) {
  constexpr size_t kShown = 80;
  const std::string text = absl::CHexEscape(sv(bytes.substr(0, kShown)));
  if (bytes.size() <= kShown) return absl::StrCat("\"", text, "\"");
  return absl::StrCat("\"", text, "...\" (", bytes.size(), " bytes)");
}

std::string quote_list(absl::Span<const std::string_view> items) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(items.size(), kShown); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", quote(items[i]));
  }
  if (items.size() > kShown) absl::StrAppend(&text, " and ", items.size() - kShown, " more");
  return text;
}

std::string_view short_name(const char* name) { return name + std::string_view("store ").size(); }

absl::Status store_error(std::string_view who, std::string_view what) {
  return make_error(ErrorKind::kStoreError, sv(who), ": ", sv(what));
}

absl::Status negative_timeout(std::string_view who, absl::Duration have) {
  return store_error(who, absl::StrCat("negative timeout: have ", absl::FormatDuration(have), ", want 0 or more"));
}

absl::Status at_line(const absl::Status& status, CodeSite code) {
  const std::string text = message_of(status);
  const size_t headline = std::min(text.find('\n'), text.size());
  return make_error(error_kind(status), located(text.substr(0, headline), code), text.substr(headline));
}

}  // namespace rankloom::internal

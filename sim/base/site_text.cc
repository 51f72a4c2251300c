#include "sim/base/site_text.h"

#include "absl/strings/str_cat.h"
#include "sim/base/text.h"

namespace rankloom::internal {
std::string_view base_name(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

std::string site_text(const Site& site) {
  std::string text = site.what;
  if (site.seq >= 0) absl::StrAppend(&text, " seq ", site.seq);
  if (!site.detail.empty()) absl::StrAppend(&text, " ", sv(site.detail));
  return text;
}

std::string site_place(const Site& site) {
  const bool has_file = site.code.file != nullptr && *site.code.file != '\0';
  if (site.group.empty() && !has_file) return "";
  std::string text = " [";
  if (!site.group.empty()) absl::StrAppend(&text, "group ", sv(site.group), has_file ? ", " : "");
  if (has_file) absl::StrAppend(&text, sv(base_name(site.code.file)), ":", site.code.line);
  return absl::StrCat(text, "]");
}

bool at_start(const Site& last) { return last.what == std::string_view(Site().what) && last.code.line == 0; }

std::string last_point_text(const Site& last, bool several) {
  if (at_start(last)) return several ? "they have come to no point yet" : "it has come to no point yet";
  return absl::StrCat(several ? "their" : "its", " last point: ", site_text(last), site_place(last));
}

const char* task_kind_name(TaskKind kind) {
  switch (kind) {
    case TaskKind::kRank:
      return "rank";
    case TaskKind::kHelper:
      return "helper";
    case TaskKind::kStream:
      return "stream";
    case TaskKind::kCompletion:
      return "completion";
  }
  return "task";
}

std::string whose_text(TaskKind kind) {
  return kind == TaskKind::kRank ? "" : absl::StrCat(" (its ", task_kind_name(kind), ")");
}

namespace {

// "[2, 3]" is no place: one ends with a colon and a number.
bool ends_with_place(std::string_view text) {
  const size_t colon = text.rfind(':');
  return text.ends_with(']') && colon != std::string_view::npos && colon + 2 < text.size() &&
         text.find_first_not_of("0123456789", colon + 1) == text.size() - 1;
}

}  // namespace

std::string located(std::string_view text, CodeSite code) {
  return absl::StrCat(sv(text), ends_with_place(text) ? "" : site_place(Site{.code = code}));
}

bool names_place(std::string_view text) {
  for (size_t at = text.find(']'); at != std::string_view::npos; at = text.find(']', at + 1)) {
    if (ends_with_place(text.substr(0, at + 1))) return true;
  }
  return false;
}

}  // namespace rankloom::internal

#include "fake_store/store_text.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/ranks_text.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"

namespace rankloom::internal {

std::string quote(std::string_view bytes) {
  constexpr size_t kShown = 80;
  const std::string text = absl::CHexEscape(sv(bytes.substr(0, kShown)));
  if (bytes.size() <= kShown) return absl::StrCat("\"", text, "\"");
  return absl::StrCat("\"", text, "...\" (", bytes.size(), " bytes)");
}

std::string keys_text(absl::Span<const std::string_view> keys) {
  constexpr size_t kShown = 4;
  std::string text;
  for (const std::string_view key : keys.subspan(0, kShown)) absl::StrAppend(&text, text.empty() ? "" : ", ", sv(key));
  if (keys.size() > kShown) absl::StrAppend(&text, " and ", keys.size() - kShown, " more");
  return text;
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

std::string barrier_arrivals_key(std::string_view go_key) {
  constexpr std::string_view kGo = "/go/";
  const size_t at = go_key.rfind(kGo);
  if (at == std::string_view::npos) return "";
  return absl::StrCat(sv(go_key.substr(0, at)), "/arrived/", sv(go_key.substr(at + kGo.size())));
}

bool has_arrived(std::string_view arrived, int rank) {
  const std::string word = absl::StrCat(rank, " ");
  for (size_t at = arrived.find(word); at != std::string_view::npos; at = arrived.find(word, at + 1)) {
    if (at == 0 || arrived[at - 1] == ' ') return true;
  }
  return false;
}

std::vector<int> arrived_ranks(std::string_view arrived, int size) {
  std::vector<int> ranks;
  for (absl::string_view word : absl::StrSplit(sv(arrived), ' ', absl::SkipEmpty())) {
    int rank = -1;
    if (absl::SimpleAtoi(word, &rank) && rank >= 0 && rank < size) ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::vector<int> missing_ranks(std::string_view arrived, int size) {
  const std::vector<int> here = arrived_ranks(arrived, size);
  std::vector<int> missing;
  auto next = here.begin();
  for (int rank = 0; rank < size; ++rank) {
    if (next != here.end() && *next == rank) {
      ++next;
    } else {
      missing.push_back(rank);
    }
  }
  return missing;
}

std::string missing_ranks_text(std::string_view arrived, int size) {
  constexpr int kListed = 1 << 16;  // of more ranks a list would take too much memory
  if (size <= kListed) return short_ranks_text(missing_ranks(arrived, size));
  const std::vector<int> here = arrived_ranks(arrived, size);
  return absl::StrCat(size - static_cast<int>(here.size()), " ranks, all",
                      here.empty() ? "" : absl::StrCat(" but ", short_ranks_text(here)));
}

std::string_view short_name(const char* name) { return name + std::string_view("store ").size(); }

absl::Status store_error(std::string_view who, std::string_view what) {
  return make_error(ErrorKind::kStoreError, sv(who), ": ", sv(what));
}

absl::Status empty_queue_error(std::string_view kind, std::string_view key) {
  return store_error(absl::StrCat(sv(kind), " queue_pop key ", quote(key)),
                     "the queue is empty: have 0 values, want 1");
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

#include "sim/base/ranks_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace rankloom::internal {
namespace {

// `range`: so many neighbours are shown as a range. `most`: entries, after which the list is cut.
std::string list_of(const std::vector<int>& ranks, size_t range, size_t most) {
  std::string text;
  size_t entries = 0;
  for (size_t begin = 0; begin < ranks.size();) {
    if (entries++ == most) return absl::StrCat(text, ", ... (", ranks.size(), " ranks)");
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - begin < range) end = begin + 1;
    absl::StrAppend(&text, begin == 0 ? "" : ", ", ranks[begin]);
    if (end - begin > 1) absl::StrAppend(&text, "-", ranks[end - 1]);
    begin = end;
  }
  return text;
}

}  // namespace

std::string rank_ranges(const std::vector<int>& ranks) { return list_of(ranks, /*range=*/2, /*most=*/ranks.size()); }

std::string ranks_text(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", rank_ranges(ranks));
}

std::string short_ranks(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return list_of(ranks, /*range=*/3, /*most=*/20);
}

}  // namespace rankloom::internal

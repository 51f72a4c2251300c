#include "collectives/ops/ranks_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace rankloom::internal {
namespace {

constexpr size_t kMaxRuns = 20;  // runs in a list of ranks

}  // namespace

std::string ranks_text(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  size_t runs = 0;
  for (size_t begin = 0; begin < ranks.size();) {
    if (runs == kMaxRuns) return absl::StrCat(text, ", ... (", ranks.size(), " ranks)");
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - begin == 2) end = begin + 1;  // two are a list
    absl::StrAppend(&text, begin == 0 ? "" : ", ", ranks[begin]);
    if (end - begin > 1) absl::StrAppend(&text, "-", ranks[end - 1]);
    begin = end;
    ++runs;
  }
  return text;
}

}  // namespace rankloom::internal

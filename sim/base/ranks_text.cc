#include "sim/base/ranks_text.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

// `most`: entries, after which the list is cut.
std::string list_of(const std::vector<int>& ranks, size_t most) {
  std::string text;
  size_t entries = 0;
  for (size_t begin = 0; begin < ranks.size();) {
    if (entries++ == most) return absl::StrCat(text, ", ... (", ranks.size(), " ranks)");
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    absl::StrAppend(&text, begin == 0 ? "" : ", ", ranks[begin]);
    if (end - begin > 1) absl::StrAppend(&text, "-", ranks[end - 1]);
    begin = end;
  }
  return text;
}

std::string with_word(size_t ranks, std::string_view list) {
  return absl::StrCat(ranks == 1 ? "rank " : "ranks ", sv(list));
}

}  // namespace

std::string rank_ranges(const std::vector<int>& ranks) { return list_of(ranks, /*most=*/ranks.size()); }

std::string ranks_text(const std::vector<int>& ranks) { return with_word(ranks.size(), rank_ranges(ranks)); }

std::string short_ranks(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return list_of(ranks, /*most=*/20);
}

std::string short_ranks_text(std::vector<int> ranks) {
  const size_t size = ranks.size();
  return with_word(size, short_ranks(std::move(ranks)));
}

namespace {

// Stands for the ranks that say a text, within it.
constexpr char kSpeakers[] = "\1";

// `text` without "rank 2, ", if `rank`, 2, says it of itself, and the same for all ranks that were or had something.
std::string without_rank(std::string text, int rank) {
  absl::StrReplaceAll({{absl::StrCat(", when rank ", rank, " "), ", when the rank "},
                       {absl::StrCat("; rank ", rank, " had "), absl::StrCat("; ", kSpeakers, " had ")}},
                      &text);
  const std::string own = absl::StrCat("rank ", rank, ", ");
  const size_t kind = text.find(' ');
  const bool has_kind = kind != std::string::npos && kind > 0 && text[kind - 1] == ':';
  const size_t at = has_kind ? kind + 1 : 0;
  if (text.compare(at, own.size(), own) == 0) text.erase(at, own.size());
  return text;
}

}  // namespace

std::vector<SaidByRanks> folded_by_rank(const std::vector<std::pair<int, std::string>>& said) {
  std::vector<SaidByRanks> all;
  std::map<std::string, size_t> places;
  for (const auto& [rank, text] : said) {
    const std::string common = without_rank(text, rank);
    const auto [place, added] = places.try_emplace(common, all.size());
    if (added) all.push_back({.ranks = {}, .text = text});
    SaidByRanks& one = all[place->second];
    one.ranks.push_back(rank);
    if (one.ranks.size() > 1) one.text = common;
  }
  for (SaidByRanks& one : all) absl::StrReplaceAll({{kSpeakers, ranks_text(one.ranks)}}, &one.text);
  return all;
}

}  // namespace rankloom::internal

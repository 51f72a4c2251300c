#include "sim/scheduler/deadlock_report.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sim/base/ranks_text.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

constexpr size_t kMaxHints = 8;  // lines of WaitsFor::hint()
constexpr int kMaxGone = 4;      // ranks that left whose last call is shown

// A path rank -> rank it waits for -> ... that comes back to its start; empty if there is none.
std::vector<int> find_cycle(const std::map<int, std::vector<int>>& waits) {
  std::map<int, int> state;  // 1: on the path, 2: leads to no cycle
  std::vector<int> path;
  for (const auto& [start, unused] : waits) {
    if (state[start] != 0) continue;
    // Depth first with an explicit stack of (rank, next edge): a million ranks may be in a chain.
    std::vector<std::pair<int, size_t>> stack = {{start, 0}};
    state[start] = 1;
    while (!stack.empty()) {
      auto& [rank, edge] = stack.back();
      const auto it = waits.find(rank);
      if (it == waits.end() || edge == it->second.size()) {
        state[rank] = 2;
        stack.pop_back();
        continue;
      }
      const int to = it->second[edge++];
      if (state[to] == 1) {
        bool in_cycle = false;
        for (const auto& [r, e] : stack) {
          in_cycle = in_cycle || r == to;
          if (in_cycle) path.push_back(r);
        }
        path.push_back(to);
        return path;
      }
      if (state[to] == 0) {
        state[to] = 1;
        stack.push_back({to, 0});
      }
    }
  }
  return {};
}

}  // namespace

std::string targets_text(const std::vector<int>& ranks, const RankFacts& facts) {
  // Ranks in the same state share a bracket.
  std::map<std::string, std::vector<int>> by_state;
  for (const int rank : ranks) by_state[facts.ended ? facts.ended(rank) : ""].push_back(rank);
  std::vector<std::string> parts;
  for (const auto& [state, members] : by_state) {
    parts.push_back(absl::StrCat(ranks_text(members), state.empty() ? "" : " (" + state + ")"));
  }
  return absl::StrJoin(parts, " and ");
}

WaitPart wait_part(const Task& task) {
  const Site& site = task.site;
  WaitPart part{.wait = {.ranks = {task.info.rank},
                         .kind = task.info.kind,
                         .what = site.what,
                         .group = std::string(site.group),
                         .detail = std::string(site.detail),
                         .seq = site.seq,
                         .code = site.code,
                         .waits_for = {},
                         .remark = {}},
                .hint = {}};
  if (site.waits_for == nullptr) return part;
  std::vector<int>& targets = part.wait.waits_for;
  site.waits_for->append_ranks(&targets);
  std::sort(targets.begin(), targets.end());
  targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
  part.wait.remark = site.waits_for->remark();
  part.hint = site.waits_for->hint();
  return part;
}

void WaitTable::add(WaitPart part) {
  StuckRun::Wait& wait = part.wait;
  awaited_.insert(wait.waits_for.begin(), wait.waits_for.end());
  for (const int rank : wait.ranks) {
    std::vector<int>& edges = edges_[rank];
    edges.insert(edges.end(), wait.waits_for.begin(), wait.waits_for.end());
  }
  if (!part.hint.empty() && std::find(hints_.begin(), hints_.end(), part.hint) == hints_.end())
    hints_.push_back(part.hint);
  const Site site{
      .what = wait.what.c_str(), .code = wait.code, .group = wait.group, .seq = wait.seq, .detail = wait.detail};
  std::string rest = absl::StrCat(
      " in ", site_text(site), wait.waits_for.empty() ? "" : " for " + targets_text(wait.waits_for, facts_),
      wait.remark.empty() ? "" : ", " + wait.remark, whose_text(wait.kind), site_place(site));
  const auto [at, added] = line_of_.try_emplace(std::move(rest), parts_.size());
  if (added) {
    parts_.push_back(std::move(part));
    return;
  }
  std::vector<int>& ranks = parts_[at->second].wait.ranks;
  ranks.insert(ranks.end(), wait.ranks.begin(), wait.ranks.end());
}

std::string WaitTable::last_calls() const {
  std::string text;
  // One rank of each line speaks for it: its peers wait alike. A rank of several lines, by its helper, speaks once.
  std::set<int> told;
  for (const WaitPart& part : parts_) {
    const std::vector<int>& ranks = part.wait.ranks;
    const auto speaker = std::find_if(ranks.begin(), ranks.end(), [&told](int rank) { return !told.contains(rank); });
    if (speaker == ranks.end()) continue;
    told.insert(*speaker);
    const std::vector<std::string> calls = facts_.last_calls(*speaker);
    if (!calls.empty()) absl::StrAppend(&text, "\n  last calls of rank ", *speaker, ": ", absl::StrJoin(calls, "; "));
  }
  // Ranks that left are those that others miss.
  int shown = 0;
  for (const int rank : awaited_) {
    if (!facts_.ended || facts_.ended(rank).empty()) continue;
    const std::vector<std::string> calls = facts_.last_calls(rank);
    if (calls.empty()) continue;
    absl::StrAppend(&text, "\n  last call of rank ", rank, ": ", calls.back());
    if (++shown == kMaxGone) break;
  }
  return text;
}

std::string WaitTable::text(StuckRun* stuck) {
  std::vector<std::string_view> rests(parts_.size());
  for (const auto& [rest, line] : line_of_) rests[line] = rest;
  std::string text;
  for (size_t line = 0; line < parts_.size(); ++line) {
    std::vector<int>& ranks = parts_[line].wait.ranks;
    std::sort(ranks.begin(), ranks.end());
    absl::StrAppend(&text, "\n  ", ranks_text(ranks), ranks.size() == 1 ? " waits" : " wait", sv(rests[line]));
  }
  const std::vector<int> cycle = find_cycle(edges_);
  if (!cycle.empty()) absl::StrAppend(&text, "\n  cycle: rank ", absl::StrJoin(cycle, " -> rank "));
  const size_t hints = std::min(hints_.size(), kMaxHints);
  for (size_t i = 0; i < hints; ++i) absl::StrAppend(&text, "\n  ", hints_[i]);
  if (stuck != nullptr) {
    stuck->cycle = cycle;
    for (const WaitPart& part : parts_) stuck->waits.push_back(part.wait);
  }
  if (facts_.last_calls) absl::StrAppend(&text, last_calls());
  return text;
}

std::string wait_lines(const std::vector<Task*>& waiting, const RankFacts& facts, StuckRun* stuck) {
  WaitTable table(facts);
  for (const Task* task : waiting) {
    if (task->info.rank >= 0) table.add(wait_part(*task));
  }
  return table.text(stuck);
}

}  // namespace rankloom::internal

#include "sim/scheduler/deadlock_report.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sim/base/ranks_text.h"
#include "sim/base/site_text.h"

namespace rankloom::internal {
namespace {

constexpr int kMaxGone = 4;  // ranks that left whose last call is shown

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

std::string deadlock_text(const std::vector<Task*>& blocked, const RankFacts& facts) {
  struct Line {
    std::vector<int> ranks;
    std::string rest;
  };
  std::vector<Line> lines;
  std::map<std::string, size_t> line_of;
  std::map<int, std::vector<int>> waits;
  std::set<int> awaited;
  for (const Task* task : blocked) {
    if (task->info.rank < 0) continue;
    std::vector<int> targets;
    if (task->site.waits_for != nullptr) task->site.waits_for->append_ranks(&targets);
    std::sort(targets.begin(), targets.end());
    targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
    awaited.insert(targets.begin(), targets.end());
    std::vector<int>& edges = waits[task->info.rank];
    edges.insert(edges.end(), targets.begin(), targets.end());
    const std::string remark = task->site.waits_for != nullptr ? task->site.waits_for->remark() : "";
    const bool helper = task->info.kind != TaskKind::kRank;
    std::string rest =
        absl::StrCat(" in ", site_text(task->site), targets.empty() ? "" : " for " + targets_text(targets, facts),
                     remark.empty() ? "" : ", " + remark,
                     helper ? (task->info.kind == TaskKind::kStream ? " (its stream)" : " (its helper)") : "",
                     site_place(task->site));
    const auto [it, added] = line_of.try_emplace(rest, lines.size());
    if (added) lines.push_back({{}, std::move(rest)});
    lines[it->second].ranks.push_back(task->info.rank);
  }
  std::string text = "no rank can move";
  for (Line& line : lines) {
    std::sort(line.ranks.begin(), line.ranks.end());
    absl::StrAppend(&text, "\n  ", ranks_text(line.ranks), line.ranks.size() == 1 ? " waits" : " wait", line.rest);
  }
  if (const std::vector<int> cycle = find_cycle(waits); !cycle.empty()) {
    absl::StrAppend(&text, "\n  cycle: rank ", absl::StrJoin(cycle, " -> rank "));
  }
  if (facts.last_calls) {
    // One rank of each line speaks for it: its peers wait alike.
    for (const Line& line : lines) {
      const std::vector<std::string> calls = facts.last_calls(line.ranks[0]);
      if (!calls.empty())
        absl::StrAppend(&text, "\n  last calls of rank ", line.ranks[0], ": ", absl::StrJoin(calls, "; "));
    }
    // Ranks that left are those that others miss.
    int shown = 0;
    for (const int rank : awaited) {
      if (!facts.ended || facts.ended(rank).empty()) continue;
      const std::vector<std::string> calls = facts.last_calls(rank);
      if (calls.empty()) continue;
      absl::StrAppend(&text, "\n  last call of rank ", rank, ": ", calls.back());
      if (++shown == kMaxGone) break;
    }
  }
  return text;
}

}  // namespace rankloom::internal

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

namespace {

// "ranks 0-2 wait" and the rest.
struct Line {
  std::vector<int> ranks;
  std::string rest;
  StuckRun::Wait wait;  // without its ranks
};

// The waits of a report: ranks in the same wait share a line.
struct Waits {
  std::vector<Line> lines;
  std::map<int, std::vector<int>> edges;  // rank -> the ranks that it waits for
  std::set<int> awaited;
  std::vector<std::string> hints;  // each once
};

Waits waits_of(const std::vector<Task*>& blocked, const RankFacts& facts) {
  Waits waits;
  std::map<std::string, size_t> line_of;
  for (const Task* task : blocked) {
    if (task->info.rank < 0) continue;
    std::vector<int> targets;
    if (task->site.waits_for != nullptr) task->site.waits_for->append_ranks(&targets);
    std::sort(targets.begin(), targets.end());
    targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
    waits.awaited.insert(targets.begin(), targets.end());
    std::vector<int>& edges = waits.edges[task->info.rank];
    edges.insert(edges.end(), targets.begin(), targets.end());
    const std::string remark = task->site.waits_for != nullptr ? task->site.waits_for->remark() : "";
    if (std::string hint = task->site.waits_for != nullptr ? task->site.waits_for->hint() : "";
        !hint.empty() && std::find(waits.hints.begin(), waits.hints.end(), hint) == waits.hints.end())
      waits.hints.push_back(std::move(hint));
    std::string rest =
        absl::StrCat(" in ", site_text(task->site), targets.empty() ? "" : " for " + targets_text(targets, facts),
                     remark.empty() ? "" : ", " + remark, whose_text(task->info.kind), site_place(task->site));
    const auto [it, added] = line_of.try_emplace(rest, waits.lines.size());
    if (added) {
      const Site& site = task->site;
      waits.lines.push_back({.ranks = {},
                             .rest = std::move(rest),
                             .wait = {.ranks = {},
                                      .kind = task->info.kind,
                                      .what = site.what,
                                      .group = std::string(site.group),
                                      .detail = std::string(site.detail),
                                      .seq = site.seq,
                                      .code = site.code,
                                      .waits_for = targets,
                                      .remark = remark}});
    }
    waits.lines[it->second].ranks.push_back(task->info.rank);
  }
  for (Line& line : waits.lines) std::sort(line.ranks.begin(), line.ranks.end());
  return waits;
}

void append_last_calls(const Waits& waits, const RankFacts& facts, std::string* text) {
  // One rank of each line speaks for it: its peers wait alike. A rank of several lines, by its helper, speaks once.
  std::set<int> told;
  for (const Line& line : waits.lines) {
    const auto speaker =
        std::find_if(line.ranks.begin(), line.ranks.end(), [&told](int rank) { return !told.contains(rank); });
    if (speaker == line.ranks.end()) continue;
    told.insert(*speaker);
    const std::vector<std::string> calls = facts.last_calls(*speaker);
    if (!calls.empty()) absl::StrAppend(text, "\n  last calls of rank ", *speaker, ": ", absl::StrJoin(calls, "; "));
  }
  // Ranks that left are those that others miss.
  int shown = 0;
  for (const int rank : waits.awaited) {
    if (!facts.ended || facts.ended(rank).empty()) continue;
    const std::vector<std::string> calls = facts.last_calls(rank);
    if (calls.empty()) continue;
    absl::StrAppend(text, "\n  last call of rank ", rank, ": ", calls.back());
    if (++shown == kMaxGone) break;
  }
}

}  // namespace

std::string wait_lines(const std::vector<Task*>& waiting, const RankFacts& facts, StuckRun* stuck) {
  const Waits waits = waits_of(waiting, facts);
  std::string text;
  for (const Line& line : waits.lines) {
    absl::StrAppend(&text, "\n  ", ranks_text(line.ranks), line.ranks.size() == 1 ? " waits" : " wait", line.rest);
  }
  const std::vector<int> cycle = find_cycle(waits.edges);
  if (!cycle.empty()) absl::StrAppend(&text, "\n  cycle: rank ", absl::StrJoin(cycle, " -> rank "));
  const size_t hints = std::min(waits.hints.size(), kMaxHints);
  for (size_t i = 0; i < hints; ++i) absl::StrAppend(&text, "\n  ", waits.hints[i]);
  if (stuck != nullptr) {
    stuck->cycle = cycle;
    for (const Line& line : waits.lines) {
      stuck->waits.push_back(line.wait);
      stuck->waits.back().ranks = line.ranks;
    }
  }
  if (facts.last_calls) append_last_calls(waits, facts, &text);
  return text;
}

}  // namespace rankloom::internal

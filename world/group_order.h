#pragma once

#include <map>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace rankloom::internal {

// In which order the ranks of an explored run asked for groups, each of which the first rank to ask makes. Groups are
// numbered as they are made, so that a rank that finds one may have come first with other numbers.
// Thread-safety: none.
class GroupOrder {
 public:
  // `rank` asks for the group `id`. True: there is another group that the rank has not asked for, made by one that
  // had not asked for this one. Had `rank` come before that, this group would have the lower number.
  bool asks(int rank, int id) {
    std::vector<int>& askers = first_[id];
    const bool found = !askers.empty();
    if (!found) askers = {rank};
    const int turn = ++turns_;
    Turns& mine = turns_of_[rank];
    mine.emplace(id, turn);
    if (!found) return false;
    for (const auto& [other, makers] : first_) {
      if (other == id || mine.contains(other)) continue;
      bool behind = false;  // of that group this one was made before, whoever came first
      for (const int maker : makers) behind = behind || asked_before(maker, id, other);
      if (!behind) return true;
    }
    return false;
  }
  // All of `ranks` made the group together.
  void made_by(const std::vector<int>& ranks, int id) {
    first_[id] = ranks;
    const int turn = ++turns_;
    for (const int rank : ranks) turns_of_[rank].emplace(id, turn);
  }

 private:
  using Turns = absl::flat_hash_map<int, int>;  // when the rank first asked, by group

  bool asked_before(int rank, int id, int other) const {
    const auto at = turns_of_.find(rank);
    if (at == turns_of_.end()) return false;
    const auto one = at->second.find(id), two = at->second.find(other);
    return one != at->second.end() && two != at->second.end() && one->second < two->second;
  }

  int turns_ = 0;
  std::map<int, std::vector<int>> first_;  // those that made it, by group
  absl::flat_hash_map<int, Turns> turns_of_;
};

}  // namespace rankloom::internal

#include "tests/campaign/sights.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace rankloom {

std::string group_text(const std::vector<int>& ranks, int member) {
  return absl::StrCat("rank ", member, " of ", absl::StrJoin(ranks, ","), ";");
}

std::string shared_count_text(int world_size) { return absl::StrCat("all ", world_size * (world_size + 1) / 2); }

// Ways to meet in the store: 0 each sets a key and reads all, 1 all add up, 2 the first pushes and the last pops,
// 3 all want one key, 4 the last watches what the first sets, 5 the first appends and all wait for the end.
std::string meeting_text(const Act& act, int world_size, int rank) {
  const auto value = [&](int i) { return absl::StrCat(act.id, ".", i); };
  std::string saw;
  switch (act.a) {
    case 0:
      for (int i = 0; i < world_size; ++i) absl::StrAppend(&saw, value(i), ",");
      return saw;
    case 1:
      return absl::StrCat((1 << world_size) - 1);
    case 2:
      if (rank == world_size - 1) {
        for (int i = 0; i < 3; ++i) absl::StrAppend(&saw, value(i), ",");
      }
      return saw;
    case 3:
      return "one wins";
    case 4:
      if (rank != world_size - 1) return "";
      return absl::StrCat("->", value(0), "->", value(1), "->", value(2));
    case 5:
      return absl::StrCat(value(0), value(1), value(2));
    default:
      no_such("way to meet in the store", act.a);
  }
}

}  // namespace rankloom

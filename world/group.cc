#include "rankloom/group.h"

#include <algorithm>

#include "sim/base/printable.h"

namespace rankloom {

using namespace internal;

namespace {

// (global rank, rank) ascending; empty if `ranks` ascends itself.
std::vector<std::pair<int, int>> sorted_members(const std::vector<int>& ranks) {
  std::vector<std::pair<int, int>> members;
  if (std::is_sorted(ranks.begin(), ranks.end())) return members;
  for (size_t i = 0; i < ranks.size(); ++i) members.emplace_back(ranks[i], static_cast<int>(i));
  std::sort(members.begin(), members.end());
  return members;
}

}  // namespace

Group::Group(int id, std::string name, int world_size)
    : id_(id), name_(printable(std::move(name))), description_("default_pg"), size_(world_size) {}

Group::Group(int id, std::string name, int first, int stride, int size, std::string description)
    : id_(id),
      name_(printable(std::move(name))),
      description_(printable(std::move(description))),
      size_(size),
      first_(first),
      stride_(stride) {}

Group::Group(int id, std::string name, std::vector<int> ranks, std::string description)
    : id_(id),
      name_(printable(std::move(name))),
      description_(printable(std::move(description))),
      size_(static_cast<int>(ranks.size())),
      ranks_(std::move(ranks)),
      sorted_(sorted_members(ranks_)) {}

int Group::group_rank(int global_rank) const {
  if (ranks_.empty()) {
    const int64_t from_first = int64_t{global_rank} - first_;
    const bool member = from_first >= 0 && from_first % stride_ == 0 && from_first / stride_ < size_;
    return member ? static_cast<int>(from_first / stride_) : -1;
  }
  if (sorted_.empty()) {  // ranks_ ascends
    const auto at = std::lower_bound(ranks_.begin(), ranks_.end(), global_rank);
    return at != ranks_.end() && *at == global_rank ? static_cast<int>(at - ranks_.begin()) : -1;
  }
  const auto at = std::lower_bound(sorted_.begin(), sorted_.end(), std::pair<int, int>(global_rank, 0));
  return at != sorted_.end() && at->first == global_rank ? at->second : -1;
}

}  // namespace rankloom

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/printable.h"
#include "sim/schedule/step_record.h"

namespace rankloom {

// Which ranks talk to each other. The same object for all members. const after construction. Name and description are printable().
class Group : public std::enable_shared_from_this<Group> {
 public:
  // The group of all ranks.
  Group(int id, std::string name, int world_size)
      : id_(id), name_(printable(std::move(name))), description_("default_pg"), size_(world_size) {}
  // `size` ranks from `first` on, `stride` apart: costs the same at any size.
  Group(int id, std::string name, int first, int stride, int size, std::string description)
      : id_(id),
        name_(printable(std::move(name))),
        description_(printable(std::move(description))),
        size_(size),
        first_(first),
        stride_(stride) {}
  // `ranks`: global ranks in group order, each once.
  Group(int id, std::string name, std::vector<int> ranks, std::string description = "undefined")
      : id_(id),
        name_(printable(std::move(name))),
        description_(printable(std::move(description))),
        size_(static_cast<int>(ranks.size())),
        ranks_(std::move(ranks)),
        sorted_(sorted_members(ranks_)) {}

  int id() const { return id_; }  // unique in its world
  // What explored runs call the group; unlike its id, the same in whatever order groups are made. 0: outside of a world.
  uint64_t object() const { return object_; }
  void set_object(uint64_t object) { object_ = object; }
  // A world has it in World::groups(), until all members have left.
  bool of_world() const { return of_world_; }
  void set_of_world() { of_world_ = true; }
  // Some member has left it.
  bool any_left() const { return std::atomic_ref(any_left_).load(std::memory_order_acquire); }
  void set_any_left() const { std::atomic_ref(any_left_).store(true, std::memory_order_release); }
  // And its calls, which commute but for what makes the group fail.
  uint64_t calls_object() const { return numbered_object(object_, 1); }
  const std::string& name() const { return name_; }                // what reports print: "0" for the group of all ranks
  const std::string& description() const { return description_; }  // what it is for: "default_pg", "mesh_tp"
  int size() const { return size_; }
  int global_rank(int rank) const {
    return ranks_.empty() ? first_ + rank * stride_ : ranks_[static_cast<size_t>(rank)];
  }
  // It was made as ranks at equal distances, such as all ranks of the world.
  bool evenly_spaced() const { return ranks_.empty(); }
  // -1: not a member.
  int group_rank(int global_rank) const {
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

 private:
  // (global rank, rank) ascending; empty if `ranks` ascends itself.
  static std::vector<std::pair<int, int>> sorted_members(const std::vector<int>& ranks) {
    std::vector<std::pair<int, int>> members;
    if (std::is_sorted(ranks.begin(), ranks.end())) return members;
    for (size_t i = 0; i < ranks.size(); ++i) members.emplace_back(ranks[i], static_cast<int>(i));
    std::sort(members.begin(), members.end());
    return members;
  }

  const int id_;
  // const after the world has the group
  uint64_t object_ = 0;
  bool of_world_ = false;
  mutable bool any_left_ = false;  // by an atomic_ref: groups are moved before others know them
  const std::string name_;
  const std::string description_;
  const int size_;
  const int first_ = 0;
  const int stride_ = 1;
  const std::vector<int> ranks_;  // empty: those that first_, stride_ and size_ say
  const std::vector<std::pair<int, int>> sorted_;
};

}  // namespace rankloom

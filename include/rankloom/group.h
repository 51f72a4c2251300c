#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace rankloom {
namespace internal {
struct GroupAccess;
}  // namespace internal

// Which ranks talk to each other. The same object for all members; const after construction, and may outlive its world.
//   for (const std::shared_ptr<const Group>& group : world.groups()) std::puts(group->name().c_str());
// Holds no connection: a member's handle on a group, with which it calls, is a ProcessGroup.
// Names and descriptions are UTF-8 without control characters; other bytes are written out ("a\\xff").
// Thread-safety: all methods.
class Group : public std::enable_shared_from_this<Group> {
 public:
  // The group of all ranks.
  Group(int id, std::string name, int world_size);
  // `size` ranks from `first` on, `stride` apart: costs the same at any size.
  Group(int id, std::string name, int first, int stride, int size, std::string description);
  // `ranks`: global ranks in group order, each once.
  Group(int id, std::string name, std::vector<int> ranks, std::string description = "undefined");

  int id() const { return id_; }                                   // unique in its world
  const std::string& name() const { return name_; }                // what reports print: "0" for the group of all ranks
  const std::string& description() const { return description_; }  // what it is for: "default_pg", "mesh_tp"
  int size() const { return size_; }
  // The rank in the world of the member with this rank in the group. 0 <= rank < size().
  int global_rank(int rank) const {
    return ranks_.empty() ? first_ + rank * stride_ : ranks_[static_cast<size_t>(rank)];
  }
  // The rank in the group of a rank in the world; -1: not a member.
  int group_rank(int global_rank) const;
  // Made as ranks at equal distances, such as all ranks of the world.
  bool evenly_spaced() const { return ranks_.empty(); }

 private:
  friend struct internal::GroupAccess;

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
  const std::vector<int> ranks_;                   // empty: those that first_, stride_ and size_ say
  const std::vector<std::pair<int, int>> sorted_;  // (global rank, rank) ascending; empty if ranks_ ascends itself
};

}  // namespace rankloom

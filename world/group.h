#pragma once

#include <string>
#include <vector>

namespace rankloom {

// Which ranks talk to each other. The same object for all members. const after construction.
class Group {
 public:
  // The group of all ranks.
  Group(int id, std::string name, int world_size) : id_(id), name_(std::move(name)), size_(world_size) {}
  // `ranks`: global ranks in group order, each once.
  Group(int id, std::string name, std::vector<int> ranks)
      : id_(id), name_(std::move(name)), size_(static_cast<int>(ranks.size())), ranks_(std::move(ranks)) {}

  int id() const { return id_; }                     // unique in its world
  const std::string& name() const { return name_; }  // what reports print: "0" for the group of all ranks
  int size() const { return size_; }
  int global_rank(int rank) const { return ranks_.empty() ? rank : ranks_[static_cast<size_t>(rank)]; }
  // -1: not a member.
  int group_rank(int global_rank) const {
    if (ranks_.empty()) return global_rank >= 0 && global_rank < size_ ? global_rank : -1;
    for (int i = 0; i < size_; ++i) {
      if (ranks_[static_cast<size_t>(i)] == global_rank) return i;
    }
    return -1;
  }

 private:
  const int id_;
  const std::string name_;
  const int size_;
  const std::vector<int> ranks_;  // empty: all
};

}  // namespace rankloom

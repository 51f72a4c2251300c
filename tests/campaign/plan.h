#pragma once

#include <map>
#include <utility>
#include <vector>

#include "tests/campaign/job.h"

namespace rankloom {

// Groups that an act makes: separate ones, so that a rank is in one of them or in none.
struct Partition {
  std::vector<std::vector<int>> sets;  // global ranks, in the order of the group
  std::vector<int> set_of;             // by global rank; -1: in none
  std::vector<int> member_of;          // by global rank: its rank in its group

  Partition(std::vector<std::vector<int>> groups, int world_size);
  bool has(int rank) const { return set_of[static_cast<size_t>(rank)] >= 0; }
  const std::vector<int>& of(int rank) const { return sets[static_cast<size_t>(set_of[static_cast<size_t>(rank)])]; }
  int member(int rank) const { return member_of[static_cast<size_t>(rank)]; }
};

// Which groups a job has, and when. Acts on groups that are not there, since what makes them was cut out or all have
// destroyed them, are void: nobody does anything.
class Plan {
 public:
  explicit Plan(const Job& job);  // which stays

  const Job& job() const { return job_; }
  // By place in Job::acts. The groups in which the act is made; null: it is void. For acts of the world: the first.
  const Partition* where(size_t act) const { return where_[act]; }
  // The groups that it makes along a dimension.
  const Partition* made(int id, int dim) const;

 private:
  using Key = std::pair<int, int>;  // id of the act that made it, dimension

  const Partition* alive(Key key) const;
  void make(const Act& act, const Partition& parent);
  void destroy(Key key);

  const Job& job_;
  std::vector<const Partition*> where_;
  std::map<Key, Partition> made_;
  std::map<Key, Key> parents_;
  std::map<Key, bool> gone_;
};

}  // namespace rankloom

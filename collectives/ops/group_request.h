#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rankloom/collective_call.h"
#include "rankloom/group.h"

namespace rankloom::internal {

class KernelPlan;
class WorldState;

// A member's wish in new_group(), split_group() or init_device_mesh(), and the groups that the member gets.
struct GroupRequest {
  enum class Kind : uint8_t { kRanks, kSplit, kMesh };
  static constexpr int kNoColor = -1;  // kSplit: in no group
  Kind kind = Kind::kRanks;
  WorldState* world = nullptr;    // null outside a world
  const Group* parent = nullptr;  // whose members agree
  std::string name;               // what names of the new groups begin with
  std::string description;
  std::vector<int> ranks;              // kRanks: in the parent, ascending
  int color = kNoColor;                // kSplit: members of one color are together
  int key = 0;                         // kSplit: their order, then the parent's
  std::vector<int> shape;              // kMesh: the parent's ranks in row-major order
  std::vector<std::string> dim_names;  // kMesh: empty, or one for each dimension
  int64_t seq = -1;                    // of the call, once it runs
  int number = 0;                      // of the parent's calls that make groups, from 1
  // The result: empty for a non-member; kMesh: the group along each dimension.
  std::vector<std::shared_ptr<const Group>> made = {};
};

// The kernel of kNewGroup and kSplitGroup: makes each group once and gives it to its members.
void run_new_group(MemberCalls calls, KernelPlan* plan);

// Makes the groups of a member without peers: of a split it knows its own color only, and takes it for everybody's.
void make_groups_alone(GroupRequest* request, int rank);

// "0, 2-4", in ranks of the world.
std::string requested_ranks_text(const GroupRequest& request);

}  // namespace rankloom::internal

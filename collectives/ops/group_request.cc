#include "collectives/ops/group_request.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "sim/base/ranks_text.h"
#include "world/group_access.h"
#include "world/world_state.h"

namespace rankloom::internal {
namespace {

// The name of a group in explored runs: by the call that makes it.
uint64_t object_of(const GroupRequest& request, std::string_view name) {
  return named_object(numbered_object(GroupAccess::object(*request.parent), static_cast<uint64_t>(request.seq)), name);
}

// `ranks` are the parent's.
std::shared_ptr<const Group> make_group(const GroupRequest& request, std::string name, std::string description,
                                        std::vector<int> ranks) {
  for (int& rank : ranks) rank = request.parent->global_rank(rank);
  if (request.world == nullptr)
    return std::make_shared<const Group>(0, std::move(name), std::move(ranks), std::move(description));
  const uint64_t object = object_of(request, name);
  return request.world->add_group(std::move(name), std::move(ranks), std::move(description), object);
}

// The same of `size` ranks of the parent, `stride` apart. Costs the same at any size unless the parent lists its ranks.
std::shared_ptr<const Group> make_group(const GroupRequest& request, std::string name, std::string description,
                                        int first, int stride, int size) {
  if (!request.parent->evenly_spaced()) {
    std::vector<int> ranks(static_cast<size_t>(size));
    for (int i = 0; i < size; ++i) ranks[static_cast<size_t>(i)] = first + i * stride;
    return make_group(request, std::move(name), std::move(description), std::move(ranks));
  }
  const int begin = request.parent->global_rank(first);
  const int step = size > 1 ? request.parent->global_rank(first + stride) - begin : 1;
  if (request.world == nullptr)
    return std::make_shared<const Group>(0, std::move(name), begin, step, size, std::move(description));
  const uint64_t object = object_of(request, name);
  return request.world->add_group(std::move(name), begin, step, size, std::move(description), object);
}

// The groups along one dimension of a mesh: `visit` gets the number of the group among them and its ranks in the
// parent.
struct MeshDimension {
  MeshDimension(const std::vector<int>& shape, size_t dim)
      : size(shape[dim]),
        stride(std::accumulate(shape.begin() + static_cast<int64_t>(dim) + 1, shape.end(), 1, std::multiplies<>())),
        groups(std::accumulate(shape.begin(), shape.end(), 1, std::multiplies<>()) / size) {}

  int group_of(int rank) const { return rank / (size * stride) * stride + rank % stride; }
  int first_of(int group) const { return group / stride * size * stride + group % stride; }

  const int size;    // ranks of a group
  const int stride;  // between its ranks
  const int groups;
};

std::string dim_name(const GroupRequest& request, size_t dim) {
  return request.dim_names.empty() ? absl::StrCat("dim", dim) : request.dim_names[dim];
}
std::string mesh_group_name(const GroupRequest& request, size_t dim, int group) {
  return absl::StrCat(request.name, ".", dim_name(request, dim), "[", group, "]");
}
std::string mesh_description(const GroupRequest& request, size_t dim) {
  return absl::StrCat("mesh_", dim_name(request, dim));
}

void make_split(MemberCalls calls) {
  const GroupRequest& first = *calls[0]->way.request;
  std::vector<std::tuple<int, int, int>> order;  // color, key, rank
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    const GroupRequest& request = *calls[rank]->way.request;
    if (request.color >= 0) order.emplace_back(request.color, request.key, static_cast<int>(rank));
  }
  std::sort(order.begin(), order.end());
  for (size_t begin = 0; begin < order.size();) {
    const int color = std::get<0>(order[begin]);
    std::vector<int> ranks;
    for (; begin < order.size() && std::get<0>(order[begin]) == color; ++begin)
      ranks.push_back(std::get<2>(order[begin]));
    const std::shared_ptr<const Group> group =
        make_group(first, absl::StrCat(first.name, ":", color), first.description, ranks);
    for (const int rank : ranks) calls[static_cast<size_t>(rank)]->way.request->made = {group};
  }
}

void make_mesh(MemberCalls calls) {
  const GroupRequest& first = *calls[0]->way.request;
  for (size_t dim = 0; dim < first.shape.size(); ++dim) {
    const MeshDimension along(first.shape, dim);
    for (int i = 0; i < along.groups; ++i) {
      const int from = along.first_of(i);
      const std::shared_ptr<const Group> group = make_group(
          first, mesh_group_name(first, dim, i), mesh_description(first, dim), from, along.stride, along.size);
      for (int k = 0; k < along.size; ++k) {
        calls[static_cast<size_t>(from + k * along.stride)]->way.request->made.push_back(group);
      }
    }
  }
}

}  // namespace

void run_new_group(MemberCalls calls, KernelPlan* /*plan*/) {
  GroupRequest* const first = calls[0]->way.request;
  if (first == nullptr) return;
  first->seq = calls[0]->seq;
  switch (first->kind) {
    case GroupRequest::Kind::kRanks: {
      const std::shared_ptr<const Group> group = make_group(*first, first->name, first->description, first->ranks);
      for (const int rank : first->ranks) calls[static_cast<size_t>(rank)]->way.request->made = {group};
      break;
    }
    case GroupRequest::Kind::kSplit:
      make_split(calls);
      break;
    case GroupRequest::Kind::kMesh:
      make_mesh(calls);
      break;
  }
  if (first->world == nullptr) return;
  for (int rank = 0; rank < first->parent->size(); ++rank) {
    for (const std::shared_ptr<const Group>& group : calls[static_cast<size_t>(rank)]->way.request->made) {
      first->world->made_together(*group, *first->parent);
      first->world->gets_group(*group, first->parent->global_rank(rank));
    }
  }
}

namespace {

// The groups that ranks of a world have made of one call of fake groups, until all of the parent have called.
struct FakeGroups {
  explicit FakeGroups(Scheduler* scheduler) : mu(scheduler, LockLevel::kMadeGroups) {}
  struct Made {
    std::shared_ptr<const Group> group;
    int members = 0;  // that have asked for it
  };
  ObservedMutex mu;
  std::map<std::string, Made> by_name ABSL_GUARDED_BY(mu);
  int ranks ABSL_GUARDED_BY(mu) = 0;  // that have called
};

using MakeGroup = absl::FunctionRef<std::shared_ptr<const Group>()>;
// The group of this name, made if nobody has.
using SharedGroup = absl::FunctionRef<std::shared_ptr<const Group>(const std::string& name, MakeGroup make)>;
void make_alone(GroupRequest* request, int rank, SharedGroup shared);

// Whether a group that another rank made is the one that this request asks for.
bool is_that_of(const Group& group, const GroupRequest& request) {
  if (group.description() != request.description) return false;
  if (request.kind != GroupRequest::Kind::kRanks) return true;  // the name has the rest
  if (group.size() != static_cast<int>(request.ranks.size())) return false;
  for (int i = 0; i < group.size(); ++i) {
    if (group.global_rank(i) != request.parent->global_rank(request.ranks[static_cast<size_t>(i)])) return false;
  }
  return true;
}

// Global rank `rank` asks for a group that it makes, or that another rank has made: the first says what it is.
[[gnu::noinline]] void told_of_made_alone(WorldState& world, std::string_view name, bool makes, const Group& group,
                                          const GroupRequest& request, int rank) {
  world.gets_group(group, rank);
  StepRecord* const record = world.scheduler().record();
  if (record == nullptr) return;
  if (makes) record->access(named_object(0, name), Access::kWrite);
  if (!makes && !is_that_of(group, request)) record->access(named_object(0, name), Access::kRead);
  world.asks_for_group(group, rank);
}

}  // namespace

void make_groups_alone(GroupRequest* request, int rank) {
  if (request->world == nullptr) {
    make_alone(request, rank, [](const std::string&, MakeGroup make) { return make(); });
    return;
  }
  // Ranks of one world with fake groups still mean the same ones.
  WorldState& world = *request->world;
  const std::string key = absl::StrCat("fake groups ", request->parent->id(), " ", request->number);
  const auto made = world.shared<FakeGroups>(
      key, [&] { return std::make_shared<FakeGroups>(&world.scheduler()); }, WorldState::Maker::kSame);
  ObservedMutexLock lock(&made->mu);
  lock.apart();  // the first rank to come makes them
  make_alone(request, rank,
             [&made, &world, &key, request, own = request->parent->global_rank(rank)](
                 const std::string& name, MakeGroup make) ABSL_NO_THREAD_SAFETY_ANALYSIS {
               FakeGroups::Made& slot = made->by_name[name];
               const bool makes = slot.group == nullptr;
               if (makes) slot.group = make();
               told_of_made_alone(world, absl::StrCat(key, " ", name), makes, *slot.group, *request, own);
               ++slot.members;
               return slot.group;
             });
  if (++made->ranks < request->parent->size()) return;
  world.unshare(key);
  // Of a split, each rank took its own color for everybody's.
  for (const auto& [name, slot] : made->by_name) {
    if (slot.members < slot.group->size()) world.leave_group_absent(*slot.group, slot.group->size() - slot.members);
  }
}

namespace {

void make_alone(GroupRequest* request, int rank, SharedGroup shared) {
  switch (request->kind) {
    case GroupRequest::Kind::kRanks:
      if (!std::binary_search(request->ranks.begin(), request->ranks.end(), rank)) return;
      request->made = {shared(request->name, [request] {
        return make_group(*request, request->name, request->description, request->ranks);
      })};
      break;
    case GroupRequest::Kind::kSplit: {
      if (request->color < 0) return;
      const std::string name = absl::StrCat(request->name, ":", request->color);
      request->made = {shared(
          name, [&] { return make_group(*request, name, request->description, 0, 1, request->parent->size()); })};
      break;
    }
    case GroupRequest::Kind::kMesh:
      for (size_t dim = 0; dim < request->shape.size(); ++dim) {
        const MeshDimension along(request->shape, dim);
        const int i = along.group_of(rank);
        const std::string name = mesh_group_name(*request, dim, i);
        request->made.push_back(shared(name, [&] {
          return make_group(*request, name, mesh_description(*request, dim), along.first_of(i), along.stride,
                            along.size);
        }));
      }
      break;
  }
}

}  // namespace

std::string requested_ranks_text(const GroupRequest& request) {
  std::vector<int> ranks = request.ranks;
  if (request.parent != nullptr) {
    for (int& rank : ranks) rank = request.parent->global_rank(rank);
  }
  return short_ranks(std::move(ranks));
}

}  // namespace rankloom::internal

#include "tests/campaign/plan.h"

#include <algorithm>
#include <numeric>

namespace rankloom {

namespace {

constexpr std::pair<int, int> kWorld = {0, 0};
constexpr std::pair<int, int> kNone = {-1, 0};

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Act::rank has a part of its own.
bool names_a_rank(ActKind kind) {
  switch (kind) {
    case ActKind::kWait:
    case ActKind::kOptions:
    case ActKind::kStoreScript:
    case ActKind::kStoreTimeout:
    case ActKind::kYield:
    case ActKind::kSleep:
    case ActKind::kRandom:
    case ActKind::kHelper:
    case ActKind::kNestedWorld:
    case ActKind::kThrow:
    case ActKind::kAbortWorld:
    case ActKind::kAbortGroup:
    case ActKind::kDropWork:
    case ActKind::kLeave:
    case ActKind::kOtherCall:
    case ActKind::kGroupTimeout:
      return true;
    case ActKind::kCollective:
    case ActKind::kCoalesced:
    case ActKind::kMessage:
    case ActKind::kAnySource:
    case ActKind::kRing:
    case ActKind::kCrossed:
    case ActKind::kTwoGroups:
    case ActKind::kMonitored:
    case ActKind::kNewGroup:
    case ActKind::kSplitGroup:
    case ActKind::kMesh:
    case ActKind::kInitGroup:
    case ActKind::kDestroyGroup:
    case ActKind::kRefused:
    case ActKind::kStoreMeeting:
    case ActKind::kSharedCount:
    case ActKind::kCount:
      return false;
  }
  no_such("act", static_cast<int>(kind));
}

}  // namespace

Partition::Partition(std::vector<std::vector<int>> groups, int world_size)
    : sets(std::move(groups)),
      set_of(static_cast<size_t>(world_size), -1),
      member_of(static_cast<size_t>(world_size), -1) {
  for (size_t set = 0; set < sets.size(); ++set) {
    for (size_t member = 0; member < sets[set].size(); ++member) {
      set_of[static_cast<size_t>(sets[set][member])] = static_cast<int>(set);
      member_of[static_cast<size_t>(sets[set][member])] = static_cast<int>(member);
    }
  }
}

Plan::Plan(const Job& job) : job_(job) {
  made_.emplace(kWorld, Partition({all_ranks(job.world_size)}, job.world_size));
  parents_[kWorld] = kNone;
  const Partition* const world = &made_.at(kWorld);
  for (const Act& act : job.acts) {
    const Key key = {act.group, act.dim};
    const Partition* parent = alive(key);
    switch (act.type()) {
      case ActKind::kCollective:
      case ActKind::kCoalesced:
      case ActKind::kMessage:
      case ActKind::kAnySource:
      case ActKind::kRing:
      case ActKind::kCrossed:
      case ActKind::kMonitored:
      case ActKind::kOptions:
      case ActKind::kRefused:
      case ActKind::kAbortGroup:
      case ActKind::kOtherCall:
      case ActKind::kGroupTimeout:
        break;
      case ActKind::kTwoGroups:
        if (alive({act.a, act.b}) == nullptr || Key{act.a, act.b} == key) parent = nullptr;
        break;
      case ActKind::kDestroyGroup:
        if (parent != nullptr) destroy(key);
        break;
      case ActKind::kNewGroup:
      case ActKind::kSplitGroup:
      case ActKind::kMesh:
        if (act.type() == ActKind::kMesh && parent != nullptr) {
          const bool fits = std::all_of(parent->sets.begin(), parent->sets.end(), [&](const auto& set) {
            return static_cast<int>(set.size()) % std::max(1, act.a) == 0;
          });
          if (!fits) parent = nullptr;
        }
        if (parent != nullptr) make(act, *parent);
        break;
      case ActKind::kInitGroup:
        parent = world;
        make(act, *world);
        break;
      case ActKind::kWait:
      case ActKind::kStoreScript:
      case ActKind::kStoreMeeting:
      case ActKind::kStoreTimeout:
      case ActKind::kSharedCount:
      case ActKind::kYield:
      case ActKind::kSleep:
      case ActKind::kRandom:
      case ActKind::kHelper:
      case ActKind::kNestedWorld:
      case ActKind::kThrow:
      case ActKind::kAbortWorld:
      case ActKind::kDropWork:
      case ActKind::kLeave:
        parent = world;
        break;
      case ActKind::kCount:
        no_such("act", act.kind);
    }
    if (names_a_rank(act.type()) && act.rank >= job.world_size) parent = nullptr;
    where_.push_back(parent);
  }
}

const Partition* Plan::made(int id, int dim) const {
  const auto it = made_.find({id, dim});
  return it == made_.end() ? nullptr : &it->second;
}

const Partition* Plan::alive(Key key) const {
  if (gone_.count(key) != 0) return nullptr;
  return made(key.first, key.second);
}

void Plan::make(const Act& act, const Partition& parent) {
  const auto add = [&](int dim, std::vector<std::vector<int>> sets) {
    made_.emplace(Key{act.id, dim}, Partition(std::move(sets), job_.world_size));
    parents_[{act.id, dim}] = act.type() == ActKind::kInitGroup ? kNone : Key{act.group, act.dim};
  };
  std::vector<std::vector<int>> sets, columns;
  for (const std::vector<int>& members : parent.sets) {
    const int size = static_cast<int>(members.size());
    if (act.type() == ActKind::kSplitGroup) {
      std::map<int, std::vector<int>> colors;
      for (int i = 0; i < size; ++i) {
        if (act.b == 1 && i == size - 1) continue;
        std::vector<int>& own = colors[i / std::max(1, act.a)];
        own.insert(act.c == 1 ? own.begin() : own.end(), members[static_cast<size_t>(i)]);
      }
      for (auto& [color, ranks] : colors) sets.push_back(std::move(ranks));
    } else if (act.type() == ActKind::kMesh) {
      const int width = std::max(1, act.a);
      for (int row = 0; row < size / width; ++row) {
        sets.emplace_back(members.begin() + row * width, members.begin() + (row + 1) * width);
      }
      for (int column = 0; column < width; ++column) {
        std::vector<int>& own = columns.emplace_back();
        for (int i = column; i < size; i += width) own.push_back(members[static_cast<size_t>(i)]);
      }
    } else {
      std::vector<int> chosen;
      for (int i = 0; i < size; ++i) {
        const bool all = act.type() == ActKind::kNewGroup ? act.b == 1 : act.a == 0;
        if (all || (act.a >> i & 1) != 0 || (i == 0 && (act.a & ((1 << size) - 1)) == 0)) {
          chosen.push_back(members[static_cast<size_t>(i)]);
        }
      }
      // new_group() sorts the ranks that it is given, init_process_group() takes their order.
      if (act.type() == ActKind::kInitGroup && act.a != 0 && act.c == 1) std::reverse(chosen.begin(), chosen.end());
      sets.push_back(std::move(chosen));
    }
  }
  if (act.type() == ActKind::kMesh) {
    add(0, std::move(columns));
    add(1, std::move(sets));
  } else {
    add(0, std::move(sets));
  }
}

void Plan::destroy(Key key) {
  gone_[key] = true;
  for (const auto& [child, parent] : parents_) {
    if (parent == key && gone_.count(child) == 0) destroy(child);
  }
}

}  // namespace rankloom

#include "sim/schedule/schedule_trunk.h"

#include <algorithm>

#include "absl/algorithm/container.h"

namespace rankloom::internal {

std::vector<TaskId> ScheduleTrunk::untried(const Node& node) {
  std::vector<TaskId> ids;
  absl::c_copy_if(node.facts.todo, std::back_inserter(ids), [&node](TaskId id) {
    return absl::c_none_of(node.branches, [id](const Branch& branch) { return branch.step.id == id; }) &&
           absl::c_none_of(node.facts.asleep, [id](const TriedTask& tried) { return tried.id == id; });
  });
  return ids;
}

void ScheduleTrunk::look_at(Node* node) {
  const int64_t open =
      is_task(*node) ? static_cast<int64_t>(untried(*node).size()) : int64_t{node->facts.size} - node->next_value;
  open_ += open - std::exchange(node->open, open);
  const bool known = !is_task(*node) || absl::c_all_of(node->branches, [](const Branch& b) { return b.known; });
  const std::pair<int64_t, int64_t> key(node->depth, node->serial);
  if (open > 0 && known) {
    ready_[key] = node;
  } else {
    ready_.erase(key);
  }
}

int64_t ScheduleTrunk::take() {
  if (!std::exchange(root_taken_, true)) {
    parts_[numbers_] = {};
    return numbers_++;
  }
  if (ready_.empty()) return -1;
  Node* const node = ready_.begin()->second;
  Branch& branch = node->branches.emplace_back();
  if (is_task(*node)) {
    node->branches.pop_back();
    const TaskId id = untried(*node).front();
    node->branches.push_back({.step = {.id = id}});
  } else {
    branch.step.id = node->next_value++;
    branch.known = true;
  }
  parts_[numbers_] = {.at = node, .branch = node->branches.size() - 1};
  look_at(node);
  return numbers_++;
}

TreePart ScheduleTrunk::part(int64_t number) const {
  const Part& part = parts_.at(number);
  TreePart made = this->part(number, {});
  if (part.at == nullptr) return made;
  const int step = part.at->facts.step;
  made.new_from = is_task(*part.at) ? step : std::max(0, step - 1);
  return made;
}

TreePart ScheduleTrunk::part(int64_t number, const TreePart& rest) const {
  const Part& part = parts_.at(number);
  TreePart made{.new_from = rest.new_from, .rooted = rooted_, .completions_write = rest.completions_write};
  size_t branch = part.branch;
  for (const Node* node = part.at; node != nullptr; branch = node->branch, node = node->parent) {
    TreeNode& facts = made.path.emplace_back(node->facts);
    const Branch& here = node->branches[branch];
    facts.chosen = here.step.id;
    facts.chose_within = is_task(*node) && here.known && !here.step.one_way;
    facts.tried.clear();
    if (!is_task(*node)) continue;
    for (size_t i = 0; i < branch; ++i) facts.tried.push_back(node->branches[i].step);
  }
  absl::c_reverse(made.path);
  made.floor = made.path.size();
  made.path.insert(made.path.end(), rest.path.begin(), rest.path.end());
  return made;
}

bool ScheduleTrunk::fresh(int64_t number) const {
  const Part& part = parts_.at(number);
  return part.at != nullptr && !part.at->branches[part.branch].known;
}

bool ScheduleTrunk::opened(int64_t number, TriedTask step) {
  const Part& part = parts_.at(number);
  if (part.at == nullptr) return true;
  Branch& branch = part.at->branches[part.branch];
  if (branch.known) return true;
  if (step.id != branch.step.id) return false;
  branch.step = std::move(step);
  branch.known = true;
  look_at(part.at);
  return true;
}

bool ScheduleTrunk::give(int64_t number, std::vector<GivenNode> given) {
  if (!given.empty() && fresh(number)) return false;
  Part& part = parts_.at(number);
  for (GivenNode& from : given) {
    std::unique_ptr<Node>& place = part.at == nullptr ? root_ : part.at->branches[part.branch].next;
    if (place != nullptr) return false;
    place = std::make_unique<Node>();
    Node* const node = place.get();
    node->parent = part.at;
    node->branch = part.branch;
    node->depth = part.at == nullptr ? 0 : part.at->depth + 1;
    node->serial = serials_++;
    node->facts = std::move(from.node);
    if (is_task(*node)) {
      if (from.chosen.id != node->facts.chosen) return false;
      for (TriedTask& tried : node->facts.tried)
        node->branches.push_back({.step = std::move(tried), .known = true, .done = true});
      node->facts.tried.clear();
      node->branches.push_back({.step = std::move(from.chosen), .known = true});
    } else {
      node->branches.push_back({.step = {.id = node->facts.chosen}, .known = true});
      node->next_value = node->facts.chosen + 1;
    }
    part = {.at = node, .branch = node->branches.size() - 1};
    look_at(node);
  }
  return true;
}

bool ScheduleTrunk::wish(int64_t number, const TreeWish& wish) {
  Node* node = parts_.at(number).at;
  while (node != nullptr && node->depth > static_cast<int64_t>(wish.node)) node = node->parent;
  if (node == nullptr || node->depth != static_cast<int64_t>(wish.node) || !is_task(*node) || wish.any_of.empty())
    return false;
  std::vector<TaskId>& todo = node->facts.todo;
  if (absl::c_any_of(wish.any_of, [&todo](TaskId id) { return absl::c_linear_search(todo, id); })) return true;
  todo.push_back(wish.any_of.back());
  look_at(node);
  return true;
}

void ScheduleTrunk::finish(int64_t number) {
  const Part part = parts_.at(number);
  parts_.erase(number);
  if (part.at == nullptr) {
    finished_ = true;
  } else {
    complete(part.at, part.branch);
  }
}

void ScheduleTrunk::complete(Node* node, size_t branch) {
  for (;;) {
    node->branches[branch].done = true;
    node->branches[branch].next = nullptr;
    if (node->open > 0 || absl::c_any_of(node->branches, [](const Branch& b) { return !b.done; })) return;
    Node* const parent = node->parent;
    if (parent == nullptr) {
      finished_ = true;
      root_ = nullptr;
      return;
    }
    branch = node->branch;
    node = parent;
  }
}

}  // namespace rankloom::internal

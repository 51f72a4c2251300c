#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "sim/schedule/tree_part.h"

namespace rankloom::internal {

// The choices of a tree of schedules that no single process looks after: those before the floors of all parts that were
// handed out. Each alternative of such a choice is a part of its own, handed out once; a part ends where its process
// has left the next choice to the trunk, too.
// Alternatives of one choice have an order, that of their handing out, and each knows what the steps of those before it
// touch, since these sleep in it. So one is handed out only when the first run of the one before has told.
// Thread-safety: thread-compatible.
class ScheduleTrunk {
 public:
  // `rooted`: the answer to ChoiceKind::kRooted in all runs.
  explicit ScheduleTrunk(int rooted) : rooted_(rooted) {}

  // A number for the part that can be handed out next; -1: there is none now. The first one is the whole tree.
  int64_t take();
  // A part that was taken, as its process is to begin it.
  TreePart part(int64_t number) const;
  // The same part when its process has come as far as `rest`, whose path begins at the part's floor.
  TreePart part(int64_t number, const TreePart& rest) const;
  // Nobody has told yet what the part's first step touches.
  bool fresh(int64_t number) const;

  // --- told by the process that has the part. False: the message does not fit.

  // Before anything else of a fresh part.
  bool opened(int64_t number, TriedTask step);
  bool give(int64_t number, std::vector<GivenNode> given);
  bool wish(int64_t number, const TreeWish& wish);
  // The part is done, and its step is known.
  void finish(int64_t number);

  // Every part is.
  bool finished() const { return finished_; }
  // Alternatives that were not handed out yet.
  int64_t open() const { return open_ + (root_taken_ ? 0 : 1); }

 private:
  struct Node;
  struct Branch {
    TriedTask step;      // id: the choice
    bool known = false;  // what the step touches
    bool done = false;
    std::unique_ptr<Node> next = {};  // null: a part ends here, or the branch is done
  };
  struct Node {
    TreeNode facts;
    Node* parent = nullptr;
    size_t branch = 0;  // of the parent
    int64_t depth = 0;
    int64_t serial = 0;
    std::vector<Branch> branches = {};  // in the order of their handing out
    int next_value = 0;                 // other kinds than kNextTask
    int64_t open = 0;
  };
  struct Part {
    Node* at = nullptr;  // null: the tree's root
    size_t branch = 0;
  };

  static bool is_task(const Node& node) { return node.facts.kind == ChoiceKind::kNextTask; }
  static std::vector<TaskId> untried(const Node& node);
  // After a change: what is open at the node, and whether it can be handed out now.
  void look_at(Node* node);
  void complete(Node* node, size_t branch);

  const int rooted_;
  bool root_taken_ = false;
  bool finished_ = false;
  int64_t open_ = 0;
  int64_t numbers_ = 0;
  int64_t serials_ = 0;
  std::unique_ptr<Node> root_;
  absl::flat_hash_map<int64_t, Part> parts_;  // those that were taken and are not done
  // Nodes with an alternative that can be handed out, by depth: what lies low holds most.
  std::map<std::pair<int64_t, int64_t>, Node*> ready_;
};

}  // namespace rankloom::internal

#pragma once

#include <cstddef>
#include <tuple>
#include <vector>

#include "rankloom/schedule.h"
#include "sim/base/task.h"
#include "sim/schedule/step_record.h"

namespace rankloom::internal {

// A task that has been tried at a choice or need not be, with what its step there touches.
struct TriedTask {
  TaskId id = -1;
  bool one_way = false;  // the step contained no other choice, so `ops` is all that it can touch
  std::vector<StepRecord::Op> ops = {};
};

// A choice on the path of a run, with what a search knows of its alternatives.
struct TreeNode {
  ChoiceKind kind = ChoiceKind::kNextTask;
  int size = 0;               // other kinds than kNextTask: alternatives
  int chosen = 0;             // TaskId, or the alternative
  int step = 0;               // kNextTask: the step that it began; else the one after that in which it was made
  bool chose_within = false;  // kNextTask: a choice of another kind was made in the step
  std::vector<TaskId> candidates = {};
  std::vector<TaskId> todo = {};       // of the candidates: those to be tried, those tried included
  std::vector<TriedTask> tried = {};   // but for the one that runs now
  std::vector<TriedTask> asleep = {};  // the sleep set: tasks whose step here other runs have made
};

// A part of a search over a tree of schedules: those that begin with the first `floor` choices of `path`, but for those
// that were run before. All that is left to do of the part is in its nodes from `floor` on, so that another process can
// go on with it.
struct TreePart {
  std::vector<TreeNode> path = {};  // that the next run follows
  size_t floor = 0;                 // others look after the alternatives of the choices before it
  int new_from = 0;                 // first step of the next run that no run before it has made
  int rooted = 0;                   // the answer to ChoiceKind::kRooted
  bool completions_write = false;   // StepRecord::found_early_change() was told, in whichever part
};

// A choice that a search leaves to others, with the step of the task that goes on there.
struct GivenNode {
  TreeNode node;
  TriedTask chosen;  // kNextTask
};

// A run of a part has shown that one of these tasks has to be tried at a choice before the part's floor. Where none of
// them will be, the last is the one to take.
struct TreeWish {
  size_t node = 0;
  std::vector<TaskId> any_of = {};

  friend bool operator==(const TreeWish&, const TreeWish&) = default;
  friend bool operator<(const TreeWish& a, const TreeWish& b) {
    return std::tie(a.node, a.any_of) < std::tie(b.node, b.any_of);
  }
};

}  // namespace rankloom::internal

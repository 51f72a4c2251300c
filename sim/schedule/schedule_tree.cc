#include "sim/schedule/schedule_tree.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace rankloom::internal {
namespace {

using What = StepRecord::What;

// Whether a step that was tried with op `a` may have another outcome after a step with op `b`.
bool conflict(What a, What b) {
  if (StepRecord::is_access(a) && StepRecord::is_access(b)) return a == What::kWrite || b == What::kWrite || a != b;
  return (a == What::kPass && b == What::kLower) || (a == What::kLower && b == What::kPass) ||
         (a == What::kSettle && b == What::kWrite);
}

// Whether acts of this kind decide if another step may come first.
bool orders(What what) {
  return StepRecord::is_access(what) || what == What::kPass || what == What::kLower || what == What::kSettle;
}

bool contains(const std::vector<TaskId>& ids, TaskId id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

}  // namespace

// Follows the tree's path, then lengthens it.
class ScheduleTree::Policy final : public SchedulePolicy {
 public:
  explicit Policy(ScheduleTree* tree) : tree_(*tree) {}

  bool sees_all() const override { return true; }

  int choose(const ChoicePoint& point) override {
    if (point.kind == ChoiceKind::kRooted) {
      // No node: any rank may be the first to ask, and all runs of a search get the same answer.
      tree_.rooted_asked_ = true;
      return tree_.rooted_;
    }
    const bool next_task = point.kind == ChoiceKind::kNextTask;
    if (next_task) order_.look(point);
    if (at_ < tree_.prefix_) {
      Node& node = tree_.nodes_[at_++];
      const bool fits = node.kind == point.kind && node.step == static_cast<int>(tree_.record_.steps().size()) &&
                        (next_task ? point.ready->contains(node.chosen) : node.size == point.size);
      if (fits) {
        if (next_task) order_.chose(point, node.chosen);
        return node.chosen;
      }
      if (!failed()) {
        fail(absl::StrCat("the program is not deterministic: at choice ", at_ - 1, " of the run, rank ",
                          point.at != nullptr ? point.at->info.rank : -1, " at ",
                          point.at != nullptr ? point.at->site.what : "start",
                          ", it did not come to where an equal run came before"));
      }
      tree_.depth_ = tree_.prefix_ = at_ - 1;
    }
    ++at_;
    Node& node = tree_.push(point.kind);
    node.size = point.size;
    node.step = static_cast<int>(tree_.record_.steps().size());
    if (!next_task) {
      node.chosen = 0;
      return 0;
    }
    node.candidates = order_.candidates();
    if (order_.polls()) tree_.record_.uncovered("polls, beyond the first few");
    const auto awake = [&node](TaskId id) {
      return std::none_of(node.asleep.begin(), node.asleep.end(), [id](const Tried& t) { return t.id == id; });
    };
    TaskId id = tree_.shuffle_ ? tree_.any_of(node.candidates, awake) : order_.next(point, awake);
    if (id < 0) {
      if (tree_.repeats_from_ < 0) tree_.repeats_from_ = node.step;
      id = order_.next(point, [](TaskId) { return true; });
    }
    order_.chose(point, id);
    node.chosen = id;
    if (tree_.reduce_ || tree_.record_.stopped()) {
      node.todo.assign(1, id);
    } else {
      node.todo = node.candidates;
    }
    return id;
  }

 private:
  ScheduleTree& tree_;
  DefaultOrder order_;
  size_t at_ = 0;
};

ScheduleTree::ScheduleTree(TreePart part)
    : reduce_(true),
      shuffle_(false),
      prng_(0),
      rooted_(part.rooted),
      part_(true),
      floor_(part.floor),
      completions_write_(part.completions_write),
      nodes_(std::move(part.path)),
      prefix_(nodes_.size()),
      new_from_(part.new_from) {
  if (part.completions_write) record_.found_early_change();
}

std::unique_ptr<SchedulePolicy> ScheduleTree::policy() {
  depth_ = prefix_;
  repeats_from_ = -1;
  return std::make_unique<Policy>(this);
}

TaskId ScheduleTree::any_of(const std::vector<TaskId>& ids, absl::FunctionRef<bool(TaskId)> allowed) {
  std::vector<TaskId> some;
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(some), allowed);
  return some.empty() ? -1 : some[static_cast<size_t>(prng_.below(some.size()))];
}

ScheduleTree::Node& ScheduleTree::push(ChoiceKind kind) {
  if (depth_ == nodes_.size()) nodes_.emplace_back();
  Node& node = nodes_[depth_++];
  node.candidates.clear();
  node.todo.clear();
  node.tried.clear();
  node.asleep.clear();
  node.kind = kind;
  node.chose_within = false;
  size_t before = depth_ - 1;
  while (before > 0 && nodes_[before - 1].kind != ChoiceKind::kNextTask) --before;
  if (before == 0) return node;
  if (kind != ChoiceKind::kNextTask) {
    nodes_[before - 1].chose_within = true;
  } else if (reduce_ && repeats_from_ < 0) {
    fall_asleep(nodes_[before - 1], &node);
  }
  return node;
}

// Tasks that were tried before, or slept, sleep on until a step comes that theirs conflict with.
void ScheduleTree::fall_asleep(const Node& before, Node* node) const {
  for (const std::vector<Tried>* from : {&before.asleep, &before.tried}) {
    for (const Tried& tried : *from) {
      if (tried.id == before.chosen || !tried.one_way || conflicts_with_step(tried.ops, before.step)) continue;
      node->asleep.push_back(tried);
    }
  }
}

bool ScheduleTree::conflicts_with_step(const std::vector<StepRecord::Op>& ops, int step) const {
  for (int i = ops_begin(step); i < record_.steps()[static_cast<size_t>(step)].ops_end; ++i) {
    const StepRecord::Op& done = record_.ops()[static_cast<size_t>(i)];
    if (done.what == What::kTimePassed) return true;
    if (!orders(done.what)) continue;
    for (const StepRecord::Op& op : ops) {
      if (op.object == done.object && conflict(op.what, done.what)) return true;
    }
  }
  return false;
}

int ScheduleTree::last_step() const {
  int last = record_.stopped() ? record_.stopped_at() : static_cast<int>(record_.steps().size());
  if (repeats_from_ >= 0) last = std::min(last, repeats_from_);
  return last;
}

void ScheduleTree::race(int first, int second, bool known) {
  const auto& steps = record_.steps();
  const size_t at = static_cast<size_t>(node_of_step_[static_cast<size_t>(first)]);
  const Node& node = nodes_[at];
  const int first_task = steps[static_cast<size_t>(first)].task;
  // Of the steps that need not come after `first`, up to `second`: those that nothing else of these must precede.
  std::vector<int> before;
  std::vector<int> initials;
  std::vector<int> after = {first};
  bool held_back = false;
  for (int k = first + 1; k <= second; ++k) {
    if (k != second && comes_before(first, k)) {
      if (!settles_.empty()) after.push_back(k);
      continue;
    }
    if (steps[static_cast<size_t>(k)].task == first_task) continue;
    const auto differs_after = [&](int earlier) { return differs_before(earlier, k); };
    // A call that completes stays behind the looks that it came behind, unless `second` needs it.
    if ((held_back || settles(k)) && k != second && !comes_before(k, second) &&
        std::any_of(after.begin(), after.end(), differs_after)) {
      after.push_back(k);
      held_back = true;
      continue;
    }
    if (std::none_of(before.begin(), before.end(), differs_after)) initials.push_back(k);
    before.push_back(k);
  }
  std::vector<TaskId> able;
  for (const int k : initials) {
    const StepRecord::Step& step = steps[static_cast<size_t>(k)];
    if (born_[static_cast<size_t>(step.task)] >= first || !contains(node.candidates, step.id)) continue;
    for (const std::vector<Tried>* const done : {&node.asleep, &node.tried}) {
      for (const Tried& tried : *done) {
        if (tried.id != step.id) continue;
        if (touched_more(tried, k))
          surplus_.push_back({.first = first, .second = second, .task = step.task, .ops = tried.ops});
        return;
      }
    }
    if (contains(node.todo, step.id)) return;
    able.push_back(step.id);
  }
  if (known) return;
  if (!able.empty()) return want(at, std::move(able));
  // No task that could do it was ready: the step that made one ready may have to come earlier, too.
  for (const TaskId id : node.candidates) {
    if (!contains(node.todo, id)) want(at, {id});
  }
}

void ScheduleTree::want(size_t node, std::vector<TaskId> any_of) {
  if (node >= floor_) {
    nodes_[node].todo.push_back(any_of.back());
    return;
  }
  // The todo of such a node stays as it is: which task of these will be tried is not known here.
  TreeWish wish{.node = node, .any_of = std::move(any_of)};
  if (wished_.insert(wish).second) wishes_.push_back(std::move(wish));
}

bool ScheduleTree::touched_more(const Tried& tried, int step) const {
  return tried.one_way && std::any_of(tried.ops.begin(), tried.ops.end(), [&](const StepRecord::Op& op) {
           const auto end = record_.ops().begin() + record_.steps()[static_cast<size_t>(step)].ops_end;
           return std::none_of(record_.ops().begin() + ops_begin(step), end, [&](const StepRecord::Op& other) {
             return other.object == op.object && other.what == op.what;
           });
         });
}

bool ScheduleTree::comes_before(int a, int b) const {
  const Clock& clock = clocks_[static_cast<size_t>(b)];
  const size_t task = static_cast<size_t>(record_.steps()[static_cast<size_t>(a)].task);
  return task < clock.size() && clock[task] >= a;
}

bool ScheduleTree::differs_before(int a, int b) const {
  if (comes_before(a, b)) return true;
  if (!settles(b)) return false;
  const auto ops_of = [this](int step) {
    const size_t begin = static_cast<size_t>(ops_begin(step));
    return absl::MakeConstSpan(record_.ops())
        .subspan(begin, static_cast<size_t>(record_.steps()[static_cast<size_t>(step)].ops_end) - begin);
  };
  return absl::c_any_of(ops_of(b), [&](const StepRecord::Op& op) {
    return op.what == What::kSettle && absl::c_any_of(ops_of(a), [&op](const StepRecord::Op& other) {
             return other.object == op.object && conflict(op.what, other.what);
           });
  });
}

void ScheduleTree::find_more() {
  for (const Surplus& more : surplus_) {
    const size_t at = static_cast<size_t>(node_of_step_[static_cast<size_t>(more.first)]);
    const Node& node = nodes_[at];
    for (int m = more.first + 1; m < last_step(); ++m) {
      if (record_.steps()[static_cast<size_t>(m)].task == more.task || comes_before(more.first, m) ||
          !conflicts_with_step(more.ops, m)) {
        continue;
      }
      // The steps that lead to it, the last one first.
      std::vector<int> leading = {m};
      for (int k = m - 1; k > more.first; --k) {
        if (!comes_before(more.first, k) &&
            std::any_of(leading.begin(), leading.end(), [&](int later) { return differs_before(k, later); }))
          leading.push_back(k);
      }
      const StepRecord::Step& step = record_.steps()[static_cast<size_t>(leading.back())];
      const auto is = [&](const Tried& t) { return t.id == step.id; };
      if (step.task == more.task || born_[static_cast<size_t>(step.task)] >= more.first ||
          !contains(node.candidates, step.id) || contains(node.todo, step.id) ||
          std::any_of(node.asleep.begin(), node.asleep.end(), is)) {
        continue;
      }
      want(at, {step.id});
    }
  }
}

// The happens-before order of the last run, step by step, and with it the pairs of steps that might have come the
// other way round.
class ScheduleTree::Races {
 public:
  explicit Races(ScheduleTree* tree)
      : tree_(*tree),
        steps_(tree->record_.steps()),
        tasks_(tree->record_.tasks().size()),
        now_(tasks_, Clock(tasks_, -1)) {}

  void find() {
    begin();
    const int last = tree_.last_step();
    for (int j = 0; j < last; ++j) {
      step_ = j;
      clock()[static_cast<size_t>(steps_[static_cast<size_t>(j)].task)] = j;
      bool time_passed = false;
      for_ops([&](const StepRecord::Op& op) {
        time_passed = time_passed || op.what == What::kTimePassed;
        look_at(op);
      });
      // The last: what the step waited for came before all of it.
      for (const int i : settled_) meet(i);
      settled_.clear();
      tree_.clocks_[static_cast<size_t>(j)] = clock();
      for_ops([&](const StepRecord::Op& op) {
        if (op.what == What::kBorn) join(&now_[op.object], clock());
      });
      for (const auto& [first, second] : races_) tree_.race(first, second, /*known=*/second < tree_.new_from_);
      races_.clear();
      if (time_passed) all_before();
    }
    tree_.find_more();
    tree_.knows_surplus_ = true;
  }

 private:
  void begin() {
    tree_.node_of_step_.assign(steps_.size(), -1);
    for (size_t i = 0; i < tree_.depth_; ++i) {
      const Node& node = tree_.nodes_[i];
      if (node.kind == ChoiceKind::kNextTask && node.step < tree_.last_step())
        tree_.node_of_step_[static_cast<size_t>(node.step)] = static_cast<int>(i);
    }
    tree_.born_.assign(tasks_, -1);
    tree_.settles_.clear();
    // A race of steps that earlier runs made, too, may show now what else has to be tried: by steps that come only now.
    std::erase_if(tree_.surplus_, [this](const Surplus& more) { return more.second >= tree_.new_from_; });
    if (tree_.clocks_.size() < steps_.size()) tree_.clocks_.resize(steps_.size());
  }

  // Whether the step, before it passed, has looked at something that other tasks change. The wait could have begun with
  // that look before the condition became true, which no reversal of races tries: the look is hidden behind the pass.
  bool looked_at_changing() {
    for (int o = tree_.ops_begin(step_); tree_.record_.ops()[static_cast<size_t>(o)].what != What::kPass; ++o) {
      const StepRecord::Op& op = tree_.record_.ops()[static_cast<size_t>(o)];
      if (op.what == What::kRead && writer_of(op.object) != steps_[static_cast<size_t>(step_)].task &&
          writer_of(op.object) != kNobody)
        return true;
    }
    return false;
  }
  // The task that writes to the object in this run, or one of several.
  int writer_of(uint64_t object) {
    if (writers_.empty()) {
      int o = 0;
      for (int step = 0; step < tree_.last_step(); ++step) {
        for (; o < steps_[static_cast<size_t>(step)].ops_end; ++o) {
          const StepRecord::Op& op = tree_.record_.ops()[static_cast<size_t>(o)];
          if (op.what != What::kWrite) continue;
          const int task = steps_[static_cast<size_t>(step)].task;
          const auto [writer, first] = writers_.try_emplace(op.object, task);
          if (!first && writer->second != task) writer->second = kSeveral;
        }
      }
      writers_.try_emplace(0, kNobody);
    }
    const auto writer = writers_.find(object);
    return writer != writers_.end() ? writer->second : kNobody;
  }

  // The operations of the step.
  template <typename Look>
  void for_ops(Look look) const {
    for (int o = tree_.ops_begin(step_); o < steps_[static_cast<size_t>(step_)].ops_end; ++o)
      look(tree_.record_.ops()[static_cast<size_t>(o)]);
  }

  // Of the step's task.
  Clock& clock() { return now_[static_cast<size_t>(steps_[static_cast<size_t>(step_)].task)]; }
  static void join(Clock* to, const Clock& from) {
    if (to->size() < from.size()) to->resize(from.size(), -1);
    for (size_t i = 0; i < from.size(); ++i) (*to)[i] = std::max((*to)[i], from[i]);
  }

  // This step comes after step i (-1: none): it needs what that one did.
  bool follow(int i) {
    if (i < 0 || i == step_ || clock()[static_cast<size_t>(steps_[static_cast<size_t>(i)].task)] >= i) return false;
    join(&clock(), tree_.clocks_[static_cast<size_t>(i)]);
    return true;
  }
  // The same, but it might have come before step i.
  void meet(int i) {
    if (follow(i) && (step_ >= tree_.new_from_ || !tree_.knows_surplus_)) races_.emplace_back(i, step_);
  }

  void look_at(const StepRecord::Op& op) {
    switch (op.what) {
      case What::kSignal:
        signals_[op.object].push_back(step_);
        break;
      case What::kAwait:
        if (const auto it = signals_.find(op.object); it != signals_.end()) {
          for (const int i : it->second) follow(i);
        }
        break;
      case What::kRaise: {
        Condition& condition = conditions_[op.object];
        condition.raise = step_;
        condition.lower_before = condition.lower;
        break;
      }
      case What::kLower:
        conditions_[op.object].lower = step_;
        break;
      case What::kPass: {
        const Condition& condition = conditions_[op.object];
        if (condition.raise == step_) break;
        meet(condition.lower_before);
        follow(condition.raise);
        if (looked_at_changing()) tree_.record_.uncovered(kWaitThatLooks);
        break;
      }
      case What::kMiss:
        meet(conditions_[op.object].lower);
        break;
      case What::kBorn:
        tree_.born_[op.object] = step_;
        break;
      case What::kTimePassed:
        break;
      case What::kSettle:
        tree_.settles_.resize(steps_.size());
        tree_.settles_[static_cast<size_t>(step_)] = true;
        touches_[op.object].settles.push_back(step_);
        break;
      case What::kRead:
      case What::kCommute:
      case What::kWrite:
        touch(op);
        break;
    }
  }

  void touch(const StepRecord::Op& op) {
    Touches& touched = touches_[op.object];
    rivals_.clear();
    if (touched.write >= 0) rivals_.push_back(touched.write);
    if (op.what != What::kRead) rivals_.insert(rivals_.end(), touched.reads.begin(), touched.reads.end());
    if (op.what != What::kCommute) rivals_.insert(rivals_.end(), touched.commutes.begin(), touched.commutes.end());
    // The latest first: what comes before it needs no look of its own.
    std::sort(rivals_.begin(), rivals_.end(), std::greater<>());
    for (const int i : rivals_) meet(i);
    if (op.what == What::kWrite) {
      touched.write = step_;
      touched.reads.clear();
      touched.commutes.clear();
      settled_.insert(settled_.end(), touched.settles.rbegin(), touched.settles.rend());
      touched.settles.clear();
      return;
    }
    std::vector<int>& list = op.what == What::kRead ? touched.reads : touched.commutes;
    if (list.empty() || list.back() != step_) list.push_back(step_);
  }

  // Time has passed: all steps so far come before every later one.
  void all_before() {
    Clock all(tasks_, -1);
    for (int i = 0; i <= step_; ++i) all[static_cast<size_t>(steps_[static_cast<size_t>(i)].task)] = i;
    for (Clock& each : now_) join(&each, all);
  }

  // The tasks that touched an object last.
  struct Touches {
    int write = -1;
    std::vector<int> reads;     // since then
    std::vector<int> commutes;  // since then
    std::vector<int> settles;   // since then
  };
  // The last changes of a condition.
  struct Condition {
    int raise = -1;         // the step that made it true last
    int lower = -1;         // the step that made it false last
    int lower_before = -1;  // and the last one before `raise`
  };

  ScheduleTree& tree_;
  const std::vector<StepRecord::Step>& steps_;
  const size_t tasks_;
  int step_ = 0;                                             // that is looked at
  std::vector<Clock> now_;                                   // [task] what comes before its next step
  absl::flat_hash_map<uint64_t, std::vector<int>> signals_;  // the steps that gave it
  absl::flat_hash_map<uint64_t, Touches> touches_;
  absl::flat_hash_map<uint64_t, Condition> conditions_;
  std::vector<int> rivals_;
  std::vector<int> settled_;  // the steps that settled what this one writes
  std::vector<std::pair<int, int>> races_;
  static constexpr int kNobody = -1;
  static constexpr int kSeveral = -2;
  absl::flat_hash_map<uint64_t, int> writers_;  // [object], once one was asked for
};

void ScheduleTree::advance() {
  record_.end_run();
  ++(repeats_from_ >= 0 ? repeated_ : schedules_);
  if (reduce_) Races(this).find();
  for (; depth_ > floor_; --depth_) {
    Node& node = nodes_[depth_ - 1];
    if (node.kind != ChoiceKind::kNextTask) {
      if (node.chosen + 1 >= node.size || node.step > last_step()) continue;
      ++node.chosen;
      prefix_ = depth_;
      new_from_ = std::max(0, node.step - 1);
      return;
    }
    if (node.todo.size() <= node.tried.size() + 1 || node.step >= last_step()) continue;
    node.tried.push_back(tried_of(node));
    node.chose_within = false;
    const auto untried = [&node](TaskId id) {
      const auto is = [id](const Tried& t) { return t.id == id; };
      return std::none_of(node.tried.begin(), node.tried.end(), is) &&
             std::none_of(node.asleep.begin(), node.asleep.end(), is);
    };
    const auto first = std::find_if(node.todo.begin(), node.todo.end(), untried);
    if (first == node.todo.end()) continue;
    node.chosen = shuffle_ ? any_of(node.todo, untried) : *first;
    prefix_ = depth_;
    new_from_ = node.step;
    return;
  }
  end_search();
}

ScheduleTree::Tried ScheduleTree::tried_of(const Node& node) const {
  Tried tried{.id = node.chosen, .one_way = !node.chose_within};
  if (node.kind != ChoiceKind::kNextTask || !reduce_ || !tried.one_way) return tried;
  for (int i = ops_begin(node.step); i < record_.steps()[static_cast<size_t>(node.step)].ops_end; ++i) {
    if (orders(record_.ops()[static_cast<size_t>(i)].what)) tried.ops.push_back(record_.ops()[static_cast<size_t>(i)]);
  }
  return tried;
}

bool ScheduleTree::has_untried(const Node& node) const {
  if (node.kind != ChoiceKind::kNextTask) return node.chosen + 1 < node.size;
  const auto known = [](const std::vector<Tried>& list, TaskId id) {
    return absl::c_any_of(list, [id](const Tried& t) { return t.id == id; });
  };
  return absl::c_any_of(
      node.todo, [&](TaskId id) { return id != node.chosen && !known(node.tried, id) && !known(node.asleep, id); });
}

TreePart ScheduleTree::rest() const {
  return {.path = {nodes_.begin() + static_cast<std::ptrdiff_t>(floor_),
                   nodes_.begin() + static_cast<std::ptrdiff_t>(prefix_)},
          .floor = floor_,
          .new_from = new_from_,
          .rooted = rooted_,
          .completions_write = completions_write()};
}

std::vector<GivenNode> ScheduleTree::give() {
  std::vector<GivenNode> given;
  if (done_) return given;
  // The last node of the path has a new choice, whose step is not known before its first run.
  size_t at = floor_;
  while (at + 1 < prefix_ && !has_untried(nodes_[at])) ++at;
  if (at + 1 >= prefix_) return given;
  for (size_t i = floor_; i <= at; ++i) given.push_back({.node = nodes_[i], .chosen = tried_of(nodes_[i])});
  floor_ = at + 1;
  return given;
}

void ScheduleTree::end_search() {
  done_ = part_ || !rooted_asked_ || rooted_ == 1;
  if (done_) return;
  rooted_ = 1;
  prefix_ = 0;
  new_from_ = 0;
}

int64_t ScheduleTree::open() const {
  if (done_) return 0;
  int64_t open = !part_ && rooted_asked_ && rooted_ == 0 ? 2 : 1;  // the next run, and that of the next search
  for (size_t i = floor_; i < prefix_; ++i) {
    const Node& node = nodes_[i];
    open += node.kind == ChoiceKind::kNextTask
                ? static_cast<int64_t>(node.todo.size()) - static_cast<int64_t>(node.tried.size()) - 1
                : node.size - node.chosen - 1;
  }
  return open;
}

}  // namespace rankloom::internal

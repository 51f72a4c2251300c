#include "sim/schedule/steering.h"

#include <algorithm>

namespace rankloom::internal {
namespace {

bool completes(const ChoicePoint& point, TaskId id) { return point.tasks->task(id).info.kind == TaskKind::kCompletion; }

int count_at(std::vector<int>* counts, int at) {
  const size_t i = static_cast<size_t>(at + 1);
  if (i >= counts->size()) counts->resize(i + 1);
  return (*counts)[i]++;
}

}  // namespace

void DefaultOrder::fall_behind(TaskId id) {
  if (static_cast<size_t>(id) >= behind_.size()) behind_.resize(static_cast<size_t>(id) + 1);
  behind_[static_cast<size_t>(id)] = true;
  any_behind_ = true;
}

void DefaultOrder::look(const ChoicePoint& point) {
  const TaskId at = point.at != nullptr ? point.at->id : -1;
  if (point.yields && at >= 0) {
    if (static_cast<size_t>(at) >= yields_.size()) yields_.resize(static_cast<size_t>(at) + 1);
    ++yields_[static_cast<size_t>(at)];
  }
  if (at >= 0 && (point.yields || (in_a_row_ >= kPatience && point.size > 1))) {
    fall_behind(at);
    in_a_row_ = 0;
  }
  if (any_behind_) {
    int ahead = 0;
    point.ready->for_each([&](TaskId id) { ahead += is_behind(id) ? 0 : 1; });
    if (ahead == 0) {  // all of them yielded: another round, which another one begins
      std::fill(behind_.begin(), behind_.end(), false);
      any_behind_ = false;
      if (point.size > 1 && at >= 0) fall_behind(at);
    }
  }
  candidates_.clear();
  polls_ = false;
  point.ready->for_each([&](TaskId id) {
    if (any_behind_ && is_behind(id) && has_polled(id)) {
      polls_ = true;
    } else {
      candidates_.push_back(id);
    }
  });
}

TaskId DefaultOrder::next(const ChoicePoint& point, absl::FunctionRef<bool(TaskId)> allowed) const {
  const TaskId at = point.at != nullptr ? point.at->id : -1;
  TaskId best = -1;
  int best_rank = 0;
  for (const TaskId id : candidates_) {
    if (!allowed(id)) continue;
    // First the task at the point, then those after it, then those before it, then completions; at last, tasks that
    // fell behind.
    const int rank = any_behind_ && is_behind(id) ? 4 : id == at ? 0 : completes(point, id) ? 3 : id > at ? 1 : 2;
    if (best < 0 || rank < best_rank) {
      best = id;
      best_rank = rank;
    }
  }
  return best;
}

void DefaultOrder::chose(const ChoicePoint& point, TaskId id) {
  in_a_row_ = id == last_ && point.size > 1 ? in_a_row_ + 1 : 0;
  last_ = id;
}

const Schedule::Switch* SteeredPolicy::find(bool value, int at, int nth) const {
  for (const Schedule::Switch& s : switches_) {
    if (s.at == at && s.nth == nth && (s.kind == Schedule::Switch::Kind::kValue) == value) return &s;
  }
  return nullptr;
}

int SteeredPolicy::follow(const ChoicePoint& point) {
  const int chosen = followed_->choose(point);
  if (followed_->failed()) fail(followed_->error());
  return chosen;
}

int SteeredPolicy::choose_task(const ChoicePoint& point, int at, int nth) {
  order_.look(point);
  const TaskId by_order = order_.next(point, [](TaskId) { return true; });
  const auto nth_completion = [&point](TaskId wanted, int index) {
    int seen = 0;
    TaskId found = -1;
    point.ready->for_each([&](TaskId id) {
      if (!completes(point, id)) return;
      if (id == wanted || (wanted < 0 && seen == index)) found = wanted < 0 ? id : seen;
      ++seen;
    });
    return found;
  };
  if (followed_ != nullptr) {
    const TaskId chosen = point.size > 1 || followed_->sees_all() ? follow(point) : point.ready->nth(0);
    if (chosen != by_order && point.ready->contains(chosen)) {
      const bool late = completes(point, chosen);
      departures_->push_back({.kind = late ? Schedule::Switch::Kind::kCompletion : Schedule::Switch::Kind::kTask,
                              .at = at,
                              .nth = nth,
                              .to = late ? nth_completion(chosen, 0) : chosen});
    }
    order_.chose(point, chosen);
    return chosen;
  }
  TaskId chosen = by_order;
  if (const Schedule::Switch* const s = find(/*value=*/false, at, nth); s != nullptr) {
    if (s->kind == Schedule::Switch::Kind::kCompletion) {
      if (const TaskId id = nth_completion(-1, s->to); id >= 0) chosen = id;
    } else if (point.ready->contains(s->to) && !completes(point, s->to)) {
      chosen = s->to;
    }
  }
  order_.chose(point, chosen);
  return chosen;
}

int SteeredPolicy::choose(const ChoicePoint& point) {
  const int at = point.at != nullptr ? point.at->id : Schedule::Switch::kStart;
  if (point.kind == ChoiceKind::kNextTask) return choose_task(point, at, count_at(&tasks_at_, at));
  const int nth = count_at(&values_at_, at);
  if (followed_ != nullptr) {
    const int value = follow(point);
    if (value != 0) departures_->push_back({.kind = Schedule::Switch::Kind::kValue, .at = at, .nth = nth, .to = value});
    return value;
  }
  const Schedule::Switch* const s = find(/*value=*/true, at, nth);
  return s != nullptr && s->to < point.size ? s->to : 0;
}

}  // namespace rankloom::internal

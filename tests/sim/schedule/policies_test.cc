// The character of each random schedule, without a run: the policies alone, over ready tasks that stay.
#include "sim/schedule/policies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace rankloom {

using namespace internal;

namespace {

// Tasks that can always run: a point of this one or that, `choices` times.
class Points final : public TaskTable {
 public:
  explicit Points(const std::vector<TaskKind>& kinds) : ready_(ReadySet::Order::kAscending), tasks_(kinds.size()) {
    for (size_t id = 0; id < kinds.size(); ++id) {
      tasks_[id].id = static_cast<TaskId>(id);
      tasks_[id].info = {.rank = static_cast<int>(id), .kind = kinds[id]};
      ready_.insert(static_cast<TaskId>(id));
    }
  }
  const Task& task(TaskId id) const override { return tasks_[static_cast<size_t>(id)]; }

  // Those chosen, point by point; the task at a point is the last one chosen.
  std::vector<TaskId> chosen_by(const Schedule& schedule, int choices) const {
    const std::unique_ptr<SchedulePolicy> policy = make_policy(schedule, {});
    std::vector<TaskId> chosen;
    for (int i = 0; i < choices; ++i) {
      chosen.push_back(policy->choose({.kind = ChoiceKind::kNextTask,
                                       .size = ready_.size(),
                                       .at = i > 0 ? &task(chosen.back()) : nullptr,
                                       .ready = &ready_,
                                       .yields = false,
                                       .tasks = this}));
    }
    return chosen;
  }

 private:
  ReadySet ready_;
  std::vector<Task> tasks_;
};

// The longest time that one of `tasks` was not chosen.
int longest_wait(const std::vector<TaskId>& chosen, int tasks) {
  std::vector<int> last(static_cast<size_t>(tasks), -1);
  int longest = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    int& before = last[static_cast<size_t>(chosen[i])];
    longest = std::max(longest, static_cast<int>(i) - before - 1);
    before = static_cast<int>(i);
  }
  return longest;
}

// Of four tasks a uniform choice leaves one out for 50 times once in some 10^6 begins, a patience of 60 all the time.
TEST(PoliciesTest, StarveHoldsOneTaskBackForLong) {
  const Points points(std::vector<TaskKind>(4, TaskKind::kRank));
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    EXPECT_GE(longest_wait(points.chosen_by(Schedule::starve(seed), 10'000), 4), 50) << seed;
    EXPECT_LT(longest_wait(points.chosen_by(Schedule::seeded(seed), 1'000), 4), 50) << seed;
  }
}

// Calls that complete are held back as one: while they are, none completes.
TEST(PoliciesTest, StarveHoldsAllCompletionsBackTogether) {
  const Points points({TaskKind::kRank, TaskKind::kCompletion, TaskKind::kCompletion, TaskKind::kCompletion});
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    int without = 0, longest = 0;
    for (const TaskId id : points.chosen_by(Schedule::starve(seed), 10'000))
      longest = std::max(longest, without = id == 0 ? without + 1 : 0);
    EXPECT_GE(longest, 50) << seed;
  }
}

TEST(PoliciesTest, LateCompletionCompletesOneTimeInEight) {
  const Points points({TaskKind::kRank, TaskKind::kCompletion, TaskKind::kRank, TaskKind::kRank});
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const std::vector<TaskId> chosen = points.chosen_by(Schedule::late_completion(seed), 8'000);
    const auto completed = std::count(chosen.begin(), chosen.end(), 1);
    EXPECT_GE(completed, 800) << seed;
    EXPECT_LE(completed, 1'200) << seed;
  }
}

// Changes between tasks, of 200 choices.
int changes(const std::vector<TaskId>& chosen) {
  int count = 0;
  for (size_t i = 1; i < chosen.size(); ++i) count += chosen[i] != chosen[i - 1] ? 1 : 0;
  return count;
}

TEST(PoliciesTest, PctChangesAsOftenAsItsDepthSays) {
  const Points points(std::vector<TaskKind>(6, TaskKind::kRank));
  int most = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(changes(points.chosen_by(Schedule::pct(seed, 1), 200)), 0) << seed;
    const int of_three = changes(points.chosen_by(Schedule::pct(seed, 3), 200));
    EXPECT_LE(of_three, 2) << seed;
    most = std::max(most, of_three);
  }
  EXPECT_EQ(most, 2);
}

}  // namespace
}  // namespace rankloom

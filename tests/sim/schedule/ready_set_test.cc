#include "sim/schedule/ready_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <iterator>
#include <set>

#include "rankloom/random.h"

namespace rankloom {

using namespace internal;

namespace {

TEST(ReadySetTest, QueueHandsOutInTheOrderOfArrival) {
  Prng prng(1);
  for (int round = 0; round < 20; ++round) {
    ReadySet set(ReadySet::Order::kQueue);
    std::deque<TaskId> model;
    TaskId next = 0;
    for (int step = 0; step < 2000; ++step) {
      // Grows for a while, then shrinks, so that the ring wraps at several sizes.
      const bool grow = prng.below(10) < (step / 500 % 2 == 0 ? 7u : 3u);
      if (grow || model.empty()) {
        set.insert(next);
        model.push_back(next++);
      } else {
        ASSERT_EQ(set.oldest(), model.front());
        set.remove(model.front());
        model.pop_front();
      }
      ASSERT_EQ(set.size(), static_cast<int>(model.size()));
      ASSERT_EQ(set.empty(), model.empty());
    }
  }
}

TEST(ReadySetTest, AQueueKeepsItsOrderWhenOneOfItsMembersLeaves) {
  Prng prng(2);
  for (int round = 0; round < 20; ++round) {
    ReadySet set(ReadySet::Order::kQueue);
    std::deque<TaskId> model;
    TaskId next = 0;
    for (int step = 0; step < 1000; ++step) {
      const bool grow = prng.below(10) < (step / 250 % 2 == 0 ? 7u : 3u);
      if (grow || model.empty()) {
        set.insert(next);
        model.push_back(next++);
      } else {
        const auto leaves = model.begin() + static_cast<int>(prng.below(model.size()));
        set.remove(*leaves);
        model.erase(leaves);
      }
      ASSERT_EQ(set.size(), static_cast<int>(model.size()));
      for (size_t i = 0; i < model.size(); ++i) ASSERT_EQ(set.oldest_after(static_cast<int>(i)), model[i]);
    }
  }
}

TEST(ReadySetTest, ATaskThatIsNotInTheQueueCannotLeave) {
  ReadySet set(ReadySet::Order::kQueue);
  set.insert(3);
  set.insert(4);
  EXPECT_DEATH(set.remove(5), "rankloom: fatal: task 5 left the tasks that are ready and was not among them");
}

class AscendingReadySetTest : public testing::TestWithParam<TaskId> {};
// Below one word, at its border, and so far that the tree has several levels.
INSTANTIATE_TEST_SUITE_P(Ids, AscendingReadySetTest, testing::Values(1, 63, 64, 65, 128, 1000, 70'000));

TEST_P(AscendingReadySetTest, AnswersAsASortedSetDoes) {
  const TaskId ids = GetParam();
  Prng prng(static_cast<uint64_t>(ids));
  ReadySet set(ReadySet::Order::kAscending);
  std::set<TaskId> model;
  for (int step = 0; step < 4000; ++step) {
    const TaskId id = static_cast<TaskId>(prng.below(static_cast<uint64_t>(ids)));
    ASSERT_EQ(set.contains(id), model.contains(id));
    if (model.contains(id)) {
      set.remove(id);
      model.erase(id);
    } else {
      set.insert(id);
      model.insert(id);
    }
    ASSERT_EQ(set.size(), static_cast<int>(model.size()));
    if (model.empty()) continue;
    const int i = static_cast<int>(prng.below(model.size()));
    ASSERT_EQ(set.nth(i), *std::next(model.begin(), i));
    const TaskId after = static_cast<TaskId>(prng.below(static_cast<uint64_t>(ids) + 2)) - 1;
    const auto above = model.upper_bound(after);
    ASSERT_EQ(set.first_after(after), above != model.end() ? *above : *model.begin());
  }
}

TEST(ReadySetTest, KeepsWhatItHasWhenItGrows) {
  ReadySet set(ReadySet::Order::kAscending);
  std::vector<TaskId> want;
  for (TaskId id = 3; id < 1'000'000; id = id * 2 + 1) {
    set.insert(id);
    want.push_back(id);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(set.nth(static_cast<int>(i)), want[i]);
  }
}

TEST(ReadySetTest, DoesNotContainWhatLiesOutside) {
  ReadySet set(ReadySet::Order::kAscending);
  EXPECT_FALSE(set.contains(-1));
  EXPECT_FALSE(set.contains(5));
  set.insert(5);
  EXPECT_TRUE(set.contains(5));
  EXPECT_FALSE(set.contains(1'000'000));
}

}  // namespace
}  // namespace rankloom

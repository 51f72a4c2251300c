// ObservedMutex: an exhaustive search knows of state that somebody looked at without a word.
#include "sim/sync/observed_mutex.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/schedule/schedule_tree.h"
#include "sim/schedule/step_record.h"
#include "sim/scheduler/scheduler.h"
#include "tests/sim/scheduler_fixture.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The things that a search has not seen of one run in which each of two ranks calls `look` with a mutex and the
// record.
std::vector<std::string> unseen(EngineKind engine, const std::function<void(ObservedMutex&, StepRecord&)>& look) {
  ScheduleTree tree;
  {
    const std::unique_ptr<Scheduler> scheduler =
        make_scheduler({engine, Schedule::steered(0, {})}, 2, {}, tree.hooks());
    ObservedMutex mu(scheduler.get(), internal::LockLevel::kSync);
    scheduler->run([&](int, Task&) { look(mu, *scheduler->record()); });
  }
  tree.advance();
  return tree.uncovered();
}

class ObservedMutexTest : public testing::TestWithParam<EngineKind> {};

TEST_P(ObservedMutexTest, ALookOfWhichNothingIsToldMakesTheSearchSaySo) {
  EXPECT_THAT(unseen(GetParam(), [](ObservedMutex& mu, StepRecord&) { ObservedMutexLock lock(&mu); }),
              ElementsAre(AllOf(HasSubstr("a part of rankloom that tells of nothing ("),
                                HasSubstr("observed_mutex_test.cc:"))));
}

TEST_P(ObservedMutexTest, WhatIsToldBeforeOrAfterDoesNotCount) {
  EXPECT_THAT(unseen(GetParam(),
                     [](ObservedMutex& mu, StepRecord& record) {
                       record.access(1, Access::kWrite);
                       { ObservedMutexLock lock(&mu); }
                       record.access(1, Access::kWrite);
                     }),
              ElementsAre(HasSubstr("a part of rankloom that tells of nothing (")));
}

TEST_P(ObservedMutexTest, WhoTellsIsSeen) {
  EXPECT_THAT(unseen(GetParam(),
                     [](ObservedMutex& mu, StepRecord& record) {
                       ObservedMutexLock lock(&mu);
                       record.access(1, Access::kRead);
                     }),
              IsEmpty());
}

TEST_P(ObservedMutexTest, WhoSaysThatThereIsNothingToTellIsBelieved) {
  EXPECT_THAT(unseen(GetParam(),
                     [](ObservedMutex& mu, StepRecord&) {
                       ObservedMutexLock lock(&mu);
                       lock.apart();
                     }),
              IsEmpty());
}

TEST_P(ObservedMutexTest, NobodyNeedsToTellAfterAnAbort) {
  EXPECT_THAT(unseen(GetParam(),
                     [](ObservedMutex& mu, StepRecord& record) {
                       record.stop();
                       ObservedMutexLock lock(&mu);
                     }),
              IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Engines, ObservedMutexTest, testing::Values(EngineKind::kFibers, EngineKind::kThreads),
                         [](const auto& instance) {
                           return instance.param == EngineKind::kFibers ? "fibers" : "threads";
                         });

}  // namespace
}  // namespace rankloom

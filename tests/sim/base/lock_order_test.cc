// Locks have levels, and the order in which they are taken is checked here, in debug builds and in sanitizer builds.
#include "sim/base/lock_order.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "sim/sync/observed_mutex.h"
#include "sim/sync/rank_mutex.h"
#include "tests/sim/scheduler_fixture.h"

namespace rankloom {

using namespace internal;

namespace {

using internal::LockLevel;
using internal::OrderedMutex;
using internal::OrderedMutexLock;

TEST(LockOrderTest, NamesLevelsInWords) {
  EXPECT_EQ(lock_level_name(LockLevel::kLiveWorlds), "live worlds");
  EXPECT_EQ(lock_level_name(LockLevel::kWork), "work");
}

TEST(LockOrderTest, LocksFurtherDownMayBeTaken) {
  OrderedMutex first(LockLevel::kRendezvous);
  RankMutex second(nullptr, LockLevel::kWork);
  OrderedMutex third(LockLevel::kAbortCause);
  for (int i = 0; i < 2; ++i) {
    const OrderedMutexLock a(&first);
    const RankMutexLock b(&second);
    const OrderedMutexLock c(&third);
  }
}

TEST(LockOrderTest, OnceFreeALockForbidsNothing) {
  OrderedMutex first(LockLevel::kRendezvous);
  OrderedMutex second(LockLevel::kWork);
  second.lock();
  second.unlock();
  const OrderedMutexLock lock(&first);
}

TEST(LockOrderTest, LocksMayBeFreedInAnyOrder) {
  OrderedMutex first(LockLevel::kRendezvous);
  OrderedMutex second(LockLevel::kWork);
  OrderedMutex third(LockLevel::kAbortCause);
  first.lock();
  second.lock();
  first.unlock();
  { const OrderedMutexLock lock(&third); }
  second.unlock();
  const OrderedMutexLock lock(&first);
}

TEST(LockOrderTest, EachThreadHasItsOwn) {
  OrderedMutex first(LockLevel::kRendezvous);
  OrderedMutex second(LockLevel::kWork);
  const OrderedMutexLock lock(&second);
  std::thread other([&] { const OrderedMutexLock lock(&first); });
  other.join();
}

// Two ranks wait with one lock: neither holds it meanwhile, on fibers nor on threads.
TEST(LockOrderTest, AWaitFreesItsLock) {
  for (const Gear& gear : every_gear()) {
    auto scheduler = make_scheduler(gear, 2);
    RankMutex late(scheduler.get(), LockLevel::kWork);
    RankMutex early(scheduler.get(), LockLevel::kRendezvous);
    RankCondVar changed;
    int came = 0;
    scheduler->run([&](int, Task&) {
      { const RankMutexLock lock(&early); }
      const RankMutexLock lock(&late);
      ++came;
      changed.notify_all();
      EXPECT_TRUE(changed
                      .await(
                          &late, [&] { return came == 2; }, Site{.what = "the other"})
                      .ok());
    });
    EXPECT_EQ(came, 2) << gear.name();
  }
}

// The text with which a thread dies that takes `second` while it holds `first`.
std::string text_of(LockLevel first, LockLevel second) {
  return "rankloom: fatal: wrong order of locks: a thread that holds \"" + std::string(lock_level_name(first)) +
         "\" takes \"" + std::string(lock_level_name(second)) + "\", want them in this order: .*rendezvous, .*work, ";
}

TEST(LockOrderDeathTest, TheWrongOrderEndsTheProcessAndNamesBothLocks) {
  OrderedMutex first(LockLevel::kRendezvous);
  ObservedMutex second(nullptr, LockLevel::kWork);
  EXPECT_DEATH(
      {
        const ObservedMutexLock lock(&second);
        const OrderedMutexLock wrong(&first);
      },
      text_of(LockLevel::kWork, LockLevel::kRendezvous));
}

TEST(LockOrderDeathTest, TwoLocksOfOneLevelAreAWrongOrder) {
  RankMutex one(nullptr, LockLevel::kWork);
  RankMutex other(nullptr, LockLevel::kWork);
  EXPECT_DEATH(
      {
        const RankMutexLock lock(&one);
        const RankMutexLock wrong(&other);
      },
      text_of(LockLevel::kWork, LockLevel::kWork));
}

// On fibers a RankMutex locks nothing, and its order is checked all the same.
TEST(LockOrderDeathTest, FibersAreChecked) {
  EXPECT_DEATH(
      {
        auto scheduler = make_scheduler(fibers(), 1);
        RankMutex late(scheduler.get(), LockLevel::kWork);
        RankMutex early(scheduler.get(), LockLevel::kRendezvous);
        scheduler->run([&](int, Task&) {
          const RankMutexLock lock(&late);
          const RankMutexLock wrong(&early);
        });
      },
      "rank 0.*a thread that holds \"work\" takes \"rendezvous\"");
}

}  // namespace
}  // namespace rankloom

// Stacks of fibers: apart modulo a page, kept between worlds, and an overflow names its rank.
#include "sim/engine/stack_pool.h"

#include <alloca.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <set>
#include <string>
#include <vector>

#include "sim/base/sanitizers.h"
#include "tests/sim/scheduler_fixture.h"

namespace rankloom {

using namespace internal;

namespace {

TEST(StackPoolTest, AStackIsIntactUntilItsLowEndIsWritten) {
  StackPool pool;
  pool.begin(16 * 1024, /*guarded=*/false, 4);
  const StackPool::Stack stack = pool.take();
  EXPECT_TRUE(StackPool::intact(stack));
  char* const bottom = static_cast<char*>(stack.bottom);
  std::memset(bottom + 64, 0x5a, stack.size() - 64);
  EXPECT_TRUE(StackPool::intact(stack));
  for (const int at : {0, 7, 8, 63}) {
    bottom[at] = 1;
    EXPECT_FALSE(StackPool::intact(stack)) << at;
    bottom[at] = 0;
    EXPECT_TRUE(StackPool::intact(stack)) << at;
  }
}

// The number that docs/performance.md and other pages give.
TEST(StackPoolTest, AStackIsOf128KibUnlessOptionsSayOtherwise) { EXPECT_EQ(WorldOptions{}.stack_bytes, 128u << 10); }

TEST(StackPoolTest, StacksDoNotOverlapAndAreColoured) {
  for (const bool guarded : {true, false}) {
    StackPool pool;
    pool.begin(16 * 1024, guarded, 40);
    std::vector<StackPool::Stack> stacks;
    std::set<size_t> colours;
    for (int i = 0; i < 40; ++i) {
      stacks.push_back(pool.take());
      const StackPool::Stack& stack = stacks.back();
      EXPECT_GE(stack.size(), 12u * 1024);
      EXPECT_EQ(reinterpret_cast<size_t>(stack.top) % 16, 0u);
      colours.insert(reinterpret_cast<size_t>(stack.top) % 4096);
      for (int other = 0; other < i; ++other) {
        const StackPool::Stack& before = stacks[static_cast<size_t>(other)];
        EXPECT_TRUE(stack.bottom >= before.top || stack.top <= before.bottom);
      }
    }
    EXPECT_GE(colours.size(), 8u);
  }
}

TEST(StackPoolTest, AStackThatComesBackIsGivenOutAgain) {
  StackPool pool;
  pool.begin(16 * 1024, /*guarded=*/false, 1);
  const StackPool::Stack stack = pool.take();
  pool.give(stack.top);
  const StackPool::Stack again = pool.take();
  EXPECT_EQ(again.top, stack.top);
  EXPECT_EQ(again.bottom, stack.bottom);
}

TEST(StackPoolTest, AGuardIsAsLargeAsAThreadsStackOrItsShareOfTheSpace) {
  for (const auto& [expected, guard] : std::vector<std::pair<int, size_t>>{
           {1, 8 << 20}, {512, 8 << 20}, {1024, 4 << 20}, {StackPool::kMaxGuarded, 512 << 10}}) {
    StackPool pool;
    pool.begin(16 * 1024, /*guarded=*/true, expected);
    const StackPool::Stack first = pool.take();
    EXPECT_EQ(first.guard, guard) << expected;
    const StackPool::Stack second = pool.take();
    EXPECT_EQ(static_cast<char*>(second.bottom) - second.guard, static_cast<char*>(first.bottom) + 16 * 1024);
  }
}

// A world of many ranks after one of few: stacks of both kinds of guards are out, and each comes back as it was.
TEST(StackPoolTest, StacksWithGuardsOfTwoSizesComeBackAsTheyWere) {
  StackPool pool;
  std::vector<StackPool::Stack> stacks;
  for (const int expected : {1, StackPool::kMaxGuarded}) {
    pool.begin(16 * 1024, /*guarded=*/true, expected);
    for (int i = 0; i < 20; ++i) stacks.push_back(pool.take());
  }
  EXPECT_NE(stacks.front().guard, stacks.back().guard);
  for (const StackPool::Stack& stack : stacks) pool.give(stack.top);
  for (size_t i = stacks.size(); i-- > 0;) {
    const StackPool::Stack again = pool.take();
    EXPECT_EQ(again.top, stacks[i].top);
    EXPECT_EQ(again.bottom, stacks[i].bottom);
    EXPECT_EQ(again.guard, stacks[i].guard);
  }
}

// Of helpers there may be more than the system has mappings for (vm.max_map_count: 65,530, of which a guard takes two).
TEST(StackPoolTest, BeyondTheMostGuardsStacksHaveCanaries) {
  const auto take = [](StackPool& pool, size_t count) {
    size_t guarded = 0;
    pool.begin(16 * 1024, /*guarded=*/true, 1);
    for (size_t i = 0; i < count; ++i) {
      const StackPool::Stack stack = pool.take();
      EXPECT_TRUE(StackPool::intact(stack));
      if (stack.guard == 0) static_cast<char*>(stack.bottom)[0] = 1;
      EXPECT_EQ(StackPool::intact(stack), stack.guard > 0);
      guarded += stack.guard > 0 ? 1 : 0;
    }
    return guarded;
  };
  std::set<size_t> guarded;
  for (int round = 0; round < 2; ++round) {  // what a pool gives back counts no longer
    StackPool first;
    StackPool second;
    EXPECT_EQ(take(first, 10'000), 10'000u);
    EXPECT_TRUE(first.may_be_kept());
    guarded.insert(take(second, 30'000));
    // The next world may be another thread's, which has a pool of its own.
    EXPECT_FALSE(second.may_be_kept());
    second.release();
    StackPool third;
    EXPECT_EQ(take(third, 1'000), 1'000u);
  }
  EXPECT_EQ(guarded.size(), 1u);
  EXPECT_LE(*guarded.begin(), StackPool::kMostGuards - 10'000);  // those of fibers of other tests count, too
  EXPECT_GT(*guarded.begin(), StackPool::kMostGuards - 10'000 - StackPool::kMaxGuarded);
}

// Uses some 500 bytes of stack per level, all of them written.
int deep(int levels) {
  volatile char frame[400];
  for (volatile char& byte : frame) byte = static_cast<char>(levels | 1);
  return levels == 0 ? frame[0] : deep(levels - 1) + frame[levels % 400];
}

[[maybe_unused]] void overflow_rank_1(int ranks, int levels) {
  auto scheduler =
      make_scheduler(fibers(Schedule::fifo()), ranks, [](WorldOptions& options) { options.stack_bytes = 32 * 1024; });
  scheduler->run([&](int rank, Task&) {
    if (rank == 1) deep(levels);
    scheduler->yield(Site{.what = "yield"});
  });
}

TEST(OverflowDeathTest, OfAGuardedStackNamesTheRankOnFibers) {
#ifdef RANKLOOM_ASAN
  GTEST_SKIP() << "AddressSanitizer reports it itself";
#else
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  overflow_rank_1(3, 10);  // fits
  EXPECT_DEATH(overflow_rank_1(3, 10'000),
               "rankloom: fatal \\(rank 1\\): overflow of the fiber's stack of [0-9]+ bytes; larger ones: "
               "WorldOptions::stack_bytes");
#endif
}

TEST(OverflowDeathTest, OfAStackOfASlabNamesTheRankOnFibers) {
#ifdef RANKLOOM_ASAN
  GTEST_SKIP() << "AddressSanitizer reports it itself";
#else
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr int kRanks = StackPool::kMaxGuarded + 1;
  overflow_rank_1(kRanks, 10);
  // Into the stack below it, on which nobody goes on after that.
  EXPECT_DEATH(overflow_rank_1(kRanks, 85),
               "rankloom: fatal \\(rank 1\\): overflow of the fiber's stack of [0-9]+ bytes");
#endif
}

// A local of `bytes` of which only the low end is written: what lies between is leapt over. `then` runs in that frame.
[[gnu::noinline]] void leap(size_t bytes, absl::FunctionRef<void()> then) {
  auto* const local = static_cast<volatile char*>(alloca(bytes));
  local[0] = 1;
  then();
}

[[maybe_unused]] void leap_in_rank(int rank_that_leaps, int ranks, size_t bytes, bool then_yield) {
  auto scheduler =
      make_scheduler(fibers(Schedule::fifo()), ranks, [](WorldOptions& options) { options.stack_bytes = 32 * 1024; });
  scheduler->run([&](int rank, Task&) {
    const auto yield = [&] { scheduler->yield(Site{.what = "yield"}); };
    if (rank == rank_that_leaps) leap(bytes, [&] { then_yield ? yield() : void(); });
    yield();
  });
}

[[maybe_unused]] constexpr const char* kOverflowOf1 =
    "rankloom: fatal \\(rank 1\\): overflow of the fiber's stack of [0-9]+ bytes; larger ones: "
    "WorldOptions::stack_bytes";

[[maybe_unused]] void run_many_helpers() {
  constexpr int kHelpers = 40'000;
  auto scheduler = make_scheduler(fibers(Schedule::fifo()), 1);
  int begun = 0;
  scheduler->run([&](int, Task&) {
    for (int i = 0; i < kHelpers; ++i) {
      scheduler->spawn({.rank = 0, .kind = TaskKind::kHelper}, [&] {
        ++begun;
        while (begun < kHelpers) scheduler->yield(Site{.what = "yield"});
      });
    }
  });
  EXPECT_EQ(begun, kHelpers);
}

// In a process of their own, whose guards they use up. The next world's ranks may be on the same thread or on another.
TEST(OverflowDeathTest, AWorldMayHaveSoManyHelpersAndTheRanksOfTheNextHaveGuardsOnFibers) {
#ifdef RANKLOOM_ASAN
  GTEST_SKIP() << "AddressSanitizer reports it itself";
#else
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto leap_after_many = [] {
    run_many_helpers();
    leap_in_rank(1, 3, 200 << 10, /*then_yield=*/false);
  };
  EXPECT_DEATH(leap_after_many(), kOverflowOf1);
#endif
}

TEST(OverflowDeathTest, OfALargeLocalNamesTheRankOnFibers) {
#ifdef RANKLOOM_ASAN
  GTEST_SKIP() << "AddressSanitizer reports it itself";
#else
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  leap_in_rank(1, 3, 8 << 10, /*then_yield=*/true);  // fits
  for (const size_t bytes : {size_t{32} << 10, size_t{200} << 10, size_t{1} << 20, size_t{8} << 20}) {
    EXPECT_DEATH(leap_in_rank(1, 3, bytes, /*then_yield=*/false), kOverflowOf1) << bytes;
  }
#endif
}

// Beyond the guard lies another stack, which nothing keeps from being written: a rank that comes to a call there is
// found.
TEST(OverflowDeathTest, OfALocalThatLeapsOverTheGuardIsFoundAtTheNextCallOnFibers) {
#ifdef RANKLOOM_ASAN
  GTEST_SKIP() << "AddressSanitizer reports it itself";
#else
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(leap_in_rank(1, 3, StackPool::kMostGuard + 32 * 1024, /*then_yield=*/true), kOverflowOf1);
#endif
}

TEST(OverflowDeathTest, OfALargeLocalOnAStackOfASlabIsFoundAtTheNextCallOnFibers) {
#ifdef RANKLOOM_ASAN
  GTEST_SKIP() << "AddressSanitizer reports it itself";
#else
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr int kRanks = StackPool::kMaxGuarded + 1;
  for (const size_t bytes : {size_t{40} << 10, size_t{200} << 10, size_t{1} << 20}) {
    EXPECT_DEATH(leap_in_rank(kRanks - 1, kRanks, bytes, /*then_yield=*/true),
                 "rankloom: fatal \\(rank 8192\\): overflow of the fiber's stack of [0-9]+ bytes")
        << bytes;
  }
#endif
}

// Below the lowest stack of all there is nothing.
TEST(OverflowDeathTest, BelowAllMemoryNamesTheRankOnFibers) {
#ifdef RANKLOOM_ASAN
  GTEST_SKIP() << "AddressSanitizer reports it itself";
#else
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(leap_in_rank(1, 3, size_t{1} << 46, /*then_yield=*/false), kOverflowOf1);
#endif
}

// A null pointer is no overflow.
TEST(OverflowDeathTest, AnotherFaultIsNotTakenForOneOnFibers) {
#ifdef RANKLOOM_ASAN
  GTEST_SKIP() << "AddressSanitizer reports it itself";
#else
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fault = [] {
    auto scheduler = make_scheduler(fibers(Schedule::fifo()), 2);
    scheduler->run([](int rank, Task&) {
      if (rank == 1) *reinterpret_cast<volatile char*>(8) = 1;
    });
  };
  EXPECT_EXIT(fault(), testing::KilledBySignal(SIGSEGV), testing::Not(testing::HasSubstr("overflow")));
#endif
}

// Fibers are kept from world to world, but not what the tasks before left in them, nor stacks of another size.
TEST(KeptFibersTest, WorldsOfAnyStackSizeFollowEachOther) {
  for (const size_t kib : {32, 32, 64, 256, 32}) {
    std::vector<std::string> begun;
    int helpers = 0;
    auto scheduler =
        make_scheduler(fibers(Schedule::fifo()), 5, [kib](WorldOptions& options) { options.stack_bytes = kib * 1024; });
    scheduler->run([&](int rank, Task&) {
      begun.push_back("rank " + std::to_string(rank) + ": errno " + std::to_string(errno) + ", " +
                      std::to_string(std::uncaught_exceptions()) + " exceptions");
      for (int i = 0; i <= rank; ++i) {
        scheduler->spawn({.rank = rank, .kind = TaskKind::kHelper}, [&] {
          scheduler->yield(Site{.what = "yield"});
          ++helpers;
        });
      }
      deep(static_cast<int>(kib / 2));  // a quarter of the stack; nearly half where frames are large (-O0, sanitizers)
      scheduler->yield(Site{.what = "yield"});
      errno = 40 + rank;
    });
    EXPECT_EQ(helpers, 15) << kib;
    for (int rank = 0; rank < 5; ++rank) {
      EXPECT_EQ(begun[static_cast<size_t>(rank)], "rank " + std::to_string(rank) + ": errno 0, 0 exceptions") << kib;
    }
  }
}

TEST(StackPoolDeathTest, SaysWhatCannotBeReserved) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        StackPool pool;
        pool.begin(size_t{1} << 50, /*guarded=*/false, 1);
        pool.take();
      },
      "cannot reserve 1 fiber stacks of 1125899906842624 bytes: .*; use a smaller stack_bytes or fewer ranks");
}

}  // namespace
}  // namespace rankloom

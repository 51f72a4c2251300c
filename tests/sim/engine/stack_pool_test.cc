// Stacks of fibers: apart modulo a page, kept between worlds, and an overflow names its rank.
#include "sim/engine/stack_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

// Uses some 500 bytes of stack per level, all of them written.
int deep(int levels) {
  volatile char frame[400];
  for (volatile char& byte : frame) byte = static_cast<char>(levels | 1);
  return levels == 0 ? frame[0] : deep(levels - 1) + frame[levels % 400];
}

void overflow_rank_1(int ranks, int levels) {
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

}  // namespace
}  // namespace rankloom

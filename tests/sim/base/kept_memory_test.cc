#include "sim/base/kept_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "sim/base/sanitizers.h"

namespace rankloom {

using namespace internal;

namespace {

// Where a sanitizer watches, nothing is kept.
bool keeps() {
#if defined(RANKLOOM_ASAN) || defined(RANKLOOM_TSAN)
  return false;
#else
  return __asan_unpoison_memory_region == nullptr && __tsan_get_current_fiber == nullptr;
#endif
}

class KeptMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!keeps()) GTEST_SKIP() << "a sanitizer watches";
  }
  // Runs `body` on a thread that has kept nothing yet.
  template <typename Body>
  static void anew(Body body) {
    std::thread(body).join();
  }
};

TEST_F(KeptMemoryTest, ABlockThatCameBackIsTheNextOneOfItsSize) {
  anew([] {
    for (const size_t bytes : {size_t{1}, size_t{16}, size_t{17}, size_t{1024}, size_t{1025}, KeptMemory::kLargest}) {
      void* const first = KeptMemory::take(bytes);
      std::memset(first, 1, bytes);
      void* const second = KeptMemory::take(bytes);
      EXPECT_NE(first, second);
      std::memset(second, 2, bytes);
      KeptMemory::give(first, bytes);
      KeptMemory::give(second, bytes);
      EXPECT_EQ(KeptMemory::take(bytes), second);
      EXPECT_EQ(KeptMemory::take(bytes), first);
      KeptMemory::give(first, bytes);
      KeptMemory::give(second, bytes);
    }
  });
}

TEST_F(KeptMemoryTest, ABlockServesEverySizeOfItsListAndNoLargerOne) {
  anew([] {
    void* const block = KeptMemory::take(33);
    KeptMemory::give(block, 33);
    void* const larger = KeptMemory::take(49);
    EXPECT_NE(larger, block);
    void* const smaller = KeptMemory::take(32);
    EXPECT_NE(smaller, block);
    void* const same = KeptMemory::take(48);
    EXPECT_EQ(same, block);
    std::memset(same, 3, 48);
    KeptMemory::give(same, 48);
    KeptMemory::give(smaller, 32);
    KeptMemory::give(larger, 49);
  });
}

TEST_F(KeptMemoryTest, AListHoldsWhatAWorldOfSomeRanksNeedsAndNoMore) {
  static_assert(KeptMemory::kMostKept == 32 * 1024);
  anew([] {
    std::vector<void*> blocks;
    for (int i = 0; i < 33; ++i) blocks.push_back(KeptMemory::take(1024));
    for (void* const block : blocks) KeptMemory::give(block, 1024);
    // The last that came is released; the others are there, the newest first.
    for (size_t i = 32; i > 0; --i) EXPECT_EQ(KeptMemory::take(1024), blocks[i - 1]) << i;
    for (size_t i = 32; i > 0; --i) KeptMemory::give(blocks[i - 1], 1024);
  });
}

TEST_F(KeptMemoryTest, AThreadKeepsWhatItGivesBackWhoeverTookIt) {
  void* block = nullptr;
  anew([&block] { block = KeptMemory::take(200); });
  anew([block] {
    KeptMemory::give(block, 200);
    void* const again = KeptMemory::take(200);
    EXPECT_EQ(again, block);
    KeptMemory::give(again, 200);
  });
}

struct Counted : Kept {
  Counted() { ++alive; }
  virtual ~Counted() { --alive; }
  int64_t fresh = 7;
  static inline int alive = 0;
};
struct Larger final : Counted {
  int64_t more[20] = {};
};

TEST_F(KeptMemoryTest, ObjectsAreMadeAndDestroyedInIt) {
  anew([] {
    Counted* object = new Larger;
    void* const place = object;
    object->fresh = 8;
    delete object;  // as large as the object, not as its base
    EXPECT_EQ(Counted::alive, 0);
    object = new Larger;
    EXPECT_EQ(static_cast<void*>(object), place);
    EXPECT_EQ(object->fresh, 7);
    delete object;
    auto* const many = new Counted[3];
    EXPECT_EQ(Counted::alive, 3);
    delete[] many;
    EXPECT_EQ(Counted::alive, 0);
    const std::shared_ptr<Counted> shared = make_kept<Counted>();
    EXPECT_EQ(shared->fresh, 7);
  });
  EXPECT_EQ(Counted::alive, 0);
}

}  // namespace
}  // namespace rankloom

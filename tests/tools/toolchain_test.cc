// The ground of the sanitizer builds: ThreadSanitizer sees the order that absl::Mutex and oneTBB make. A report here
// means that the packages of tools/build_tsan_deps.sh are not in use, and every other report is in doubt.

#include <gtest/gtest.h>
#include <tbb/parallel_for.h>

#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace rankloom {
namespace {

TEST(ToolchainTest, MutexOrdersTwoThreads) {
  for (int round = 0; round < 20; ++round) {
    absl::Mutex mu;
    std::vector<int> values;
    const auto push_and_await_all = [&] {
      for (int i = 0; i < 500; ++i) {
        absl::MutexLock lock(&mu);
        values.push_back(i);
      }
      absl::MutexLock lock(&mu);
      const auto all_came = [](std::vector<int>* v) { return v->size() == 1000; };
      EXPECT_TRUE(mu.AwaitWithTimeout(absl::Condition(+all_came, &values), absl::Minutes(1)));
    };
    std::thread first(push_and_await_all);
    std::thread second(push_and_await_all);
    first.join();
    second.join();
    EXPECT_EQ(values.size(), 1000);
  }
}

TEST(ToolchainTest, ParallelForEndsBeforeItReturns) {
  std::vector<int> values(100000);
  for (int round = 1; round <= 10; ++round) {
    tbb::parallel_for(0, 100000, [&values](int i) { values[i] += i; });
    for (int i = 0; i < 100000; ++i) ASSERT_EQ(values[i], round * i);
  }
}

}  // namespace
}  // namespace rankloom

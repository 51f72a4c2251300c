#include "collectives/kernels/parallel.h"

#include <algorithm>

#include "sim/base/library_scope.h"
#include "sim/base/sanitizers.h"
#include "tbb/blocked_range.h"
#include "tbb/parallel_for.h"
#include "tbb/task_arena.h"

#if defined(RANKLOOM_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace rankloom::internal {
namespace {

// ThreadSanitizer sees only what is compiled with it, and Debian's oneTBB is not: the order that a parallel loop's
// start and end give is told to it here, or every buffer handed to a worker would be reported as a race.
class ForkJoin {
 public:
#if defined(RANKLOOM_TSAN)
  void before_fork() { __tsan_release(&fork_); }
  void block_begins() { __tsan_acquire(&fork_); }
  void block_ends() { __tsan_release(&join_); }
  void after_join() { __tsan_acquire(&join_); }

 private:
  char fork_ = 0;
  char join_ = 0;
#else
  void before_fork() {}
  void block_begins() {}
  void block_ends() {}
  void after_join() {}
#endif
};

}  // namespace

void parallel_blocks(int64_t n, int64_t grain, absl::FunctionRef<void(int64_t begin, int64_t end)> body) {
  if (n <= 0) return;
  // In a program with a ThreadSanitizer of its own, which does not see how TBB's threads wait for each other: one after
  // another.
  if (n <= grain || LibraryScope::tells() || tbb::this_task_arena::max_concurrency() <= 1) {
    body(0, n);
    return;
  }
  const int64_t blocks = (n + grain - 1) / grain;
  ForkJoin order;
  order.before_fork();
  // Isolated: while this thread waits for the last block it must not pick up a task of the caller's own, which could be
  // a rank that enters a collective.
  tbb::this_task_arena::isolate([&] {
    tbb::parallel_for(tbb::blocked_range<int64_t>(0, blocks), [&](const tbb::blocked_range<int64_t>& range) {
      order.block_begins();
      body(range.begin() * grain, std::min(n, range.end() * grain));
      order.block_ends();
    });
  });
  order.after_join();
}

}  // namespace rankloom::internal

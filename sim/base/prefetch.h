#pragma once

#include <cstddef>
#include <cstdint>

namespace rankloom::internal {

// Memory is fetched ahead of its use here and nowhere else: in worlds of so many fibers under fifo that what a rank
// touches has left the caches by its next turn (Scheduler::prefetches()). Smaller worlds gain nothing. Measured in
// docs/decisions/0008-hot-path.md.
inline constexpr int kPrefetchRanks = 512;

// The memory of a later turn is fetched in three steps, each of which reads what the step before has fetched:
//
//              of a task that will run                  of a work that will be completed
//   kObject    the Task                                 the WorkState
//   kPointers  its fiber, its next flight record,       the Waiter of the task that waits for it
//              the work that it waits for
//   kRest      its stack                                that Task
enum class Fetch : uint8_t { kObject, kPointers, kRest };

// How many turns before its own each step is made.
struct FetchTurns {
  int object;
  int pointers;
  int rest;
};
inline constexpr FetchTurns kTaskTurns = {.object = 6, .pointers = 4, .rest = 2};
inline constexpr FetchTurns kWorkTurns = {.object = 12, .pointers = 8, .rest = 4};

// Before each turn: `fetch(n, step)` makes this step for what has its turn n turns later.
template <typename Step>
void fetch_ahead(const FetchTurns& turns, Step fetch) {
  fetch(turns.object, Fetch::kObject);
  fetch(turns.pointers, Fetch::kPointers);
  fetch(turns.rest, Fetch::kRest);
}

// Bytes from Task::next_write on: a flight record.
inline constexpr ptrdiff_t kNextWriteBytes = 64;
// Bytes around the WaitsFor of what a task waits for: a MemberWork, up to the end of its call's first fields.
inline constexpr ptrdiff_t kBeforeWaitsFor = 192;
inline constexpr ptrdiff_t kAfterWaitsFor = 448;
// Bytes around where a stack stopped: a wait's frames and those of the call around it. Less or more gained less.
inline constexpr ptrdiff_t kBelowFrame = 512;
inline constexpr ptrdiff_t kAboveFrame = 2048;

// Fetches the cache lines of the bytes [begin, end) from `at` on.
inline void prefetch_lines(const void* at, ptrdiff_t begin, ptrdiff_t end) {
  for (ptrdiff_t i = begin; i < end; i += 64) __builtin_prefetch(static_cast<const char*>(at) + i);
}

}  // namespace rankloom::internal

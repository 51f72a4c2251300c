#pragma once

#include <cstdint>

namespace rankloom::internal {

class Scheduler;

// A scope in which the calling thread, which runs no rank of a world of fibers, acts on that world's memory: the run is
// over, or the fibers' thread stands in code of the program's own. Ranks that are fibers lock nothing, so such threads
// act one at a time, and the fibers' thread waits for them at its next point. Nests. Nobody waits longer than
// kPatienceNs of real time: the other may wait for the caller, as in a join. Destructors and callbacks of users
// may run within, and cost such a waiter that time. Nothing where ranks are threads.
class ActsForFibers {
 public:
  static constexpr int64_t kPatienceNs = 100'000'000;

  explicit ActsForFibers(Scheduler& scheduler);
  ~ActsForFibers();
  ActsForFibers(const ActsForFibers&) = delete;
  ActsForFibers& operator=(const ActsForFibers&) = delete;

  // Whether the calling thread is in a scope for the world of that number.
  static bool here(uint64_t world) { return world_ == world; }
  // Waits until no other thread is.
  static void await_others(const Scheduler& scheduler);

 private:
  static inline constinit thread_local uint64_t world_ = 0;  // 0: in none
  Scheduler& scheduler_;
  const bool active_;
  bool entered_ = false;
  uint64_t outer_ = 0;
};

// A change by the fibers' thread, at no scheduling point, of what threads that act for the fibers change, too: waits
// for these. Nothing where ranks are threads.
class ChangeAtNoPoint {
 public:
  // Null: the calling thread runs no fiber of the world.
  explicit ChangeAtNoPoint(Scheduler* scheduler);
  ~ChangeAtNoPoint();
  ChangeAtNoPoint(const ChangeAtNoPoint&) = delete;
  ChangeAtNoPoint& operator=(const ChangeAtNoPoint&) = delete;

 private:
  Scheduler* const scheduler_;  // null: nothing to do
};

// A part of a call that may be long and has no scheduling point, as a reduction: no thread acts for the fibers
// meanwhile. Nothing where ranks are threads.
class LongPart {
 public:
  explicit LongPart(Scheduler& scheduler);
  ~LongPart();
  LongPart(const LongPart&) = delete;
  LongPart& operator=(const LongPart&) = delete;

 private:
  Scheduler* const scheduler_;  // null: ranks are threads
};

}  // namespace rankloom::internal

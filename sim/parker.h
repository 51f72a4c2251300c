#pragma once

#include <atomic>
#include <cstdint>

namespace rankloom {

// Blocks one thread until another unparks it; keeps one permit, so the order of the two does not matter.
// Sources: the protocol of Java's LockSupport; the sleep is a Linux futex.
class Parker {
 public:
  // Takes the permit if there is one.
  bool try_take() {
    return state_.load(std::memory_order_relaxed) == kPermit &&
           state_.exchange(kEmpty, std::memory_order_acquire) == kPermit;
  }

  // Tries for the permit some times, giving the core away in between. Cheaper than a sleep when the answer is near.
  bool spin();

  // Announces a sleep. False: a permit was there and is taken.
  bool prepare();

  // After prepare(): sleeps until unpark() or until the monotonic clock passes `deadline_ns`. False: timed out, and no
  // permit was given.
  bool sleep(int64_t deadline_ns);

  // Gives the permit. True: the thread had announced a sleep, and wake() must follow.
  bool give() { return state_.exchange(kPermit, std::memory_order_acq_rel) == kSleeping; }
  void wake();

  // spin, prepare and sleep in one.
  bool park(int64_t deadline_ns) { return spin() || !prepare() || sleep(deadline_ns); }
  void unpark() {
    if (give()) wake();
  }

 private:
  static constexpr uint32_t kEmpty = 0;
  static constexpr uint32_t kPermit = 1;
  static constexpr uint32_t kSleeping = 2;
  std::atomic<uint32_t> state_{kEmpty};
};

// Nanoseconds of the monotonic clock.
int64_t monotonic_ns();

}  // namespace rankloom

#pragma once

#include <atomic>
#include <cstdint>

namespace rankloom::internal {

// Blocks one thread until another unparks it; keeps one permit, so the order of the two does not matter.
// Sources: the protocol of Java's LockSupport; the sleep is a futex, or sleep_at() where there is none.
class Parker {
 public:
  // The state of the thread when a permit came.
  enum class Was : uint32_t {
    kAwake = 0,
    kPermitted = 1,  // the thread had a permit already
    kAsleep = 2,
    kAsleepCounted = 3,  // the thread slept after prepare(counted = true)
  };

  // Takes the permit if there is one.
  bool try_take() { return state_.load(std::memory_order_relaxed) == kPermit && state_.exchange(kEmpty) == kPermit; }

  // Tries for the permit some times, giving the core away in between. Cheaper than a sleep when the answer is near.
  bool spin();

  // Announces a sleep. False: a permit was there and is taken.
  bool prepare(bool counted = false);

  // After prepare(): sleeps until unpark() or until the monotonic clock passes `deadline_ns`. False: timed out, and no
  // permit was given.
  bool sleep(int64_t deadline_ns);

  // Gives the permit. kAsleep or kAsleepCounted: wake() must follow. The thread may go on at once, so nothing of it may
  // be touched after this, but by wake(), which needs the address only.
  Was give() { return static_cast<Was>(state_.exchange(kPermit)); }
  void wake();

  // Whether the thread has announced a sleep and nobody gave the permit yet. Sequentially consistent with the above.
  bool asleep() const { return state_.load() >= kSleeping; }

  // spin, prepare and sleep in one.
  bool park(int64_t deadline_ns) { return spin() || !prepare() || sleep(deadline_ns); }
  void unpark() {
    if (give() >= Was::kAsleep) wake();
  }

 private:
  static constexpr uint32_t kEmpty = 0;
  static constexpr uint32_t kPermit = 1;
  static constexpr uint32_t kSleeping = 2;
  static constexpr uint32_t kSleepingCounted = 3;
  std::atomic<uint32_t> state_{kEmpty};
};

// Nanoseconds of the monotonic clock.
int64_t monotonic_ns();

}  // namespace rankloom::internal

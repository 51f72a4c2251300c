#include "sim/base/parker.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <limits>

#include "sim/base/system.h"
#ifdef RANKLOOM_LINUX
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace rankloom::internal {
namespace {

// Measured on 2 cores, 4 ranks: below 10 most rounds pay for a futex, above 40 nothing is gained and other ranks lose
// time.
constexpr int kSpins = 20;
// A yield that took so long gave the core to others than threads that wait as well: on a busy machine each costs a time
// slice or several, while a thread that sleeps is put before the others when it wakes.
constexpr int64_t kBusyNs = 200'000;
// After such a yield no thread of the process tries another one for so many times as long: a tenth of the time is the
// most that is lost to finding out whether the machine is busy still.
constexpr int64_t kBusyTimes = 10;
std::atomic<int64_t> busy_until_ns{0};

// The program's errno is none of a wait's.
class KeptErrno {
 public:
  KeptErrno() = default;
  ~KeptErrno() { errno = before_; }
  KeptErrno(const KeptErrno&) = delete;
  KeptErrno& operator=(const KeptErrno&) = delete;

 private:
  const int before_ = errno;
};

}  // namespace

int64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

bool Parker::spin() {
  if (try_take()) return true;  // the clock is not needed
  int64_t before = monotonic_ns();
  if (before < busy_until_ns.load(std::memory_order_relaxed)) return false;
  for (int i = 0; i < kSpins; ++i) {
    if (try_take()) return true;
    sched_yield();
    const int64_t now = monotonic_ns();
    if (now - before > kBusyNs) {
      busy_until_ns.store(now + kBusyTimes * (now - before), std::memory_order_relaxed);
      break;
    }
    before = now;
  }
  return try_take();
}

bool Parker::prepare(bool counted) {
  uint32_t expected = kEmpty;
  if (state_.compare_exchange_strong(expected, counted ? kSleepingCounted : kSleeping)) return true;
  // An exchange, no store: a second permit that comes between the two must be seen, with all that was written before
  // it.
  state_.exchange(kEmpty);
  return false;
}

#ifdef RANKLOOM_LINUX

bool Parker::sleep(int64_t deadline_ns) {
  const KeptErrno kept;
  timespec until{};
  const bool timed = deadline_ns != std::numeric_limits<int64_t>::max();
  if (timed) {
    const int64_t at = std::max<int64_t>(deadline_ns, 0);  // the kernel refuses times before 0
    until.tv_sec = at / 1'000'000'000;
    until.tv_nsec = at % 1'000'000'000;
  }
  for (uint32_t state = state_.load(); state >= kSleeping; state = state_.load()) {
    const long rc = syscall(SYS_futex, &state_, FUTEX_WAIT_BITSET_PRIVATE, state, timed ? &until : nullptr, nullptr,
                            FUTEX_BITSET_MATCH_ANY);
    if (rc == -1 && errno == ETIMEDOUT && state_.compare_exchange_strong(state, kEmpty)) return false;
  }
  state_.exchange(kEmpty);
  return true;
}

void Parker::wake() {
  const KeptErrno kept;
  syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

#else

bool Parker::sleep(int64_t deadline_ns) {
  const KeptErrno kept;
  const int64_t until_ns = std::max<int64_t>(deadline_ns, 0);
  for (uint32_t state = state_.load(); state >= kSleeping; state = state_.load()) {
    const int64_t left_ns = until_ns - monotonic_ns();
    if (left_ns > 0) {
      sleep_at(
          this, [this] { return asleep(); }, left_ns);
    } else if (state_.compare_exchange_strong(state, kEmpty)) {
      return false;
    }
  }
  state_.exchange(kEmpty);
  return true;
}

void Parker::wake() {
  const KeptErrno kept;
  wake_at(this);
}

#endif

}  // namespace rankloom::internal

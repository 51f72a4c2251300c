#pragma once

#include <atomic>
#include <cstdint>

#include "sim/base/forked_run.h"

namespace rankloom::internal {

// Stands between the task of a stream that issues a call and a thread that lets go of it: a call that is let go of
// before it is issued never is, and for a call that is being issued right now the other side waits.
// Thread-safety: all methods.
class IssueGate {
 public:
  // Before the call is passed on to the code that touches its tensors. False: the call was let go of.
  bool enter() {
    entered_.store(true, std::memory_order_relaxed);
    return change(State::kOut, State::kIn);
  }
  // The call was passed on, or its issuer is about to sleep. False: the call was let go of meanwhile.
  bool leave() { return change(State::kIn, State::kOut); }

  // The call that was passed on has ended already. False: it was let go of meanwhile.
  bool leave_for_good() { return change(State::kIn, State::kClosed); }

  enum class Closed : uint8_t { kBefore, kOutside, kInside };
  // Nobody gets in any more. kBefore: as it was already; kInside: the issuer is inside, and the next leave() is false.
  // `waits`: for an issuer that is inside, on another thread.
  Closed close(bool waits) {
    for (WaitTurns turns; !change(State::kOut, State::kClosed);) {
      if (state_.load() == State::kClosed) return Closed::kBefore;
      if (!waits && change(State::kIn, State::kClosed)) return Closed::kInside;
      if (waits) turns.next();
    }
    return Closed::kOutside;
  }
  bool entered() const { return entered_.load(std::memory_order_relaxed); }

 private:
  enum class State : uint8_t { kOut, kIn, kClosed };
  bool change(State from, State to) { return state_.compare_exchange_strong(from, to); }

  std::atomic<State> state_{State::kOut};
  std::atomic<bool> entered_{false};
};

}  // namespace rankloom::internal

#pragma once

#include <array>
#include <memory>

#include "absl/status/status.h"
#include "rankloom/collective_call.h"
#include "rankloom/work.h"
#include "world/flight_recorder.h"
#include "world/open_outputs.h"

namespace rankloom::internal {

// The facts that a place keeps of its last call: the next one there, if it is alike, needs no check, no text and no
// description of its own.
struct CallMemo {
  uint32_t terms = 0;              // of the group, under which the call passed its checks; 0: it may not be made again
  bool again = false;              // the call being built is the last one once more
  bool plain = false;              // the call being built has nothing but what PlainCall has
  bool in_place = false;           // of such a call: its input is its output
  bool on_host = false;            // its tensors are memory of the process
  RankRecorder::Known facts;       // of its flight record
  OpenOutputs::Range writes = {};  // the bytes that it writes; empty: none, or not known
};

// The place where a call is built: in the work that the call becomes. A call on the stack is moved and destroyed, which
// is a fifth of what a small call costs.
struct CallPlace {
  CollectiveCall* call = nullptr;  // null: there is no place
  CallMemo* memo = nullptr;        // of the place; goes with the work
  void* kept = nullptr;            // the group's
  bool* building = nullptr;        // the group's: whether the front is at it, so that no other call may take the place
};

// Gives a group's front places for calls. execute() gets such a call by its address.
class CallPlaces {
 public:
  // A place with the call that it held last, or a new one, marked as being built; or none. `message`: for a send or
  // recv. `line`: of the call, as calls of one line are often alike.
  virtual CallPlace fresh(bool message, int line) = 0;
  // execute() of the call of a place that is the last one there once more.
  virtual absl::Status execute_again(const CallPlace& place, Work* work) = 0;

 protected:
  ~CallPlaces() = default;
};

// The places of one member for calls of one kind: works that it used before and nobody holds any more, as many as it
// had on their way at a time. State is a MemberWork with a place(). Worlds of fibers only: with threads a count of
// holders is old when it is read.
template <typename State>
class KeptWorks {
 public:
  // `make`: a State as a shared_ptr, whose call is a new one. `first`: the number of the place to be looked at first.
  template <typename Make>
  CallPlace fresh(size_t first, Make make) {
    if (Kept& usual = kept_[first % kMost]; !usual.building && usual.state != nullptr && usual.state.use_count() == 1)
        [[likely]]
      return take(usual);
    for (size_t i = 0; i < kMost; ++i) {
      Kept& kept = kept_[(first + i) % kMost];
      if (kept.building) continue;
      if (kept.state == nullptr) {
        kept.state = make();
      } else if (kept.state.use_count() > 1) {
        continue;
      }
      return take(kept);
    }
    return {};
  }

  // The work that has `call` for its own; null: a call from elsewhere.
  std::shared_ptr<State>* holder(const CollectiveCall& call) {
    for (Kept& kept : kept_) {
      if (kept.state != nullptr && &kept.state->call() == &call) return &kept.state;
    }
    return nullptr;
  }

 private:
  struct Kept {
    std::shared_ptr<State> state;  // null: not used yet, or gone with its owners
    bool building = false;         // here, since the work may be gone before the front is through with its call
  };
  static CallPlace take(Kept& kept) {
    kept.building = true;
    return {.call = kept.state->place(), .memo = kept.state->memo(), .kept = &kept.state, .building = &kept.building};
  }
  static constexpr size_t kMost = 4;
  std::array<Kept, kMost> kept_;
};

}  // namespace rankloom::internal

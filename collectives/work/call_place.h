#pragma once

#include "rankloom/collective_call.h"

namespace rankloom::internal {

// The place where a call is built: in the work that the call becomes. A call on the stack is moved and destroyed, which
// is a fifth of what a small call costs.
struct CallPlace {
  CollectiveCall* call = nullptr;  // null: there is no place
  bool* building = nullptr;        // the group's: whether the front is at it, so that no other call may take the place
};

// Gives a group's front places for calls. execute() gets such a call by its address.
class CallPlaces {
 public:
  // A place with a call as a new one is, marked as being built; or none.
  virtual CallPlace fresh() = 0;

 protected:
  ~CallPlaces() = default;
};

}  // namespace rankloom::internal

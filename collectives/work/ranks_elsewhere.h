#pragma once

#include <string>

namespace rankloom::internal {

// The lines of a Timeout on a rank that somebody waits for, each after a newline: its last point and its last call.
struct RankTold {
  std::string lines;
  bool calls = false;  // its last call is among them
};

// The knowledge of this process about ranks that run in others, for texts.
class RanksElsewhere {
 public:
  // Of a rank of the world, as its process has told when a wait was about to end; no lines: nothing is known.
  virtual RankTold told_of(int rank) const = 0;

 protected:
  ~RanksElsewhere() = default;
};

}  // namespace rankloom::internal

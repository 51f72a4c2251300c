#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "collectives/work/work_state.h"

namespace rankloom::internal {

// Calls that a stream has waited for, of those that the rank may not know to be done: the rank comes to know that when
// it learns how far the stream is.
// Thread-safety: thread-compatible; the stream's lock guards it.
class WaitedWorks {
 public:
  // An owner keeps a work from becoming another call's.
  using List = std::vector<std::shared_ptr<WorkState>>;

  // The rank knows that these are done. By a task of their rank, or of one that waits for its stream; without a lock.
  static void learn(const List& works);

  // The stream has waited for the work, or for that of which the work is a part. Returns drop_learned(), at times.
  [[nodiscard]] List add(std::shared_ptr<WorkState> work);
  const List& all() const { return works_; }
  // Takes out those that the rank has learned of, to be let go of without the lock. Not before it has: another task of
  // the rank may ask meanwhile.
  [[nodiscard]] List drop_learned();

 private:
  List works_;
  size_t sweep_at_ = 16;
};

}  // namespace rankloom::internal

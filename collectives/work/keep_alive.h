#pragma once

#include <memory>
#include <utility>

namespace rankloom::internal {

class RankState;

// While this lives, the calling task drops the last handle of a call that is done: of owners that go, the first to go
// ends there.
class OwnersEndHere {
 public:
  OwnersEndHere() { here_ = true; }
  ~OwnersEndHere() { here_ = false; }
  OwnersEndHere(const OwnersEndHere&) = delete;
  OwnersEndHere& operator=(const OwnersEndHere&) = delete;
  // Whether there is one that no owner has used. By the owner that goes, before it lets another task run.
  static bool taken() { return std::exchange(here_, false); }

 private:
  static inline thread_local bool here_ = false;
};

// `owner`, of CallOptions::keep_alive, for a call of `rank`: the destructor of what it owns runs as that rank. The
// rank's tasks run it where they drop the last handle of the call (OwnersEndHere); else a helper of the rank does,
// which may wait, and holds nothing that the task which completes the call holds. Once the world has ended the caller
// does.
std::shared_ptr<const void> owned_by_rank(std::shared_ptr<const void> owner, RankState& rank);

}  // namespace rankloom::internal

#pragma once

#include <memory>

namespace rankloom::internal {

class RankState;

// `owner`, of CallOptions::keep_alive, for a call of `rank`: the destructor of what it owns runs as that rank. The
// rank's tasks run it where they drop the last reference; for other threads, and while works are completed, a helper of
// the rank does, which may wait. Once the world has ended the caller does.
std::shared_ptr<const void> owned_by_rank(std::shared_ptr<const void> owner, RankState& rank);

}  // namespace rankloom::internal

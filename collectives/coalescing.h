#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "collectives/collective_call.h"

namespace rankloom::internal {

class PartWork;

// What a member has called since start_coalescing().
struct Coalescing {
  std::vector<CollectiveCall> calls;
  std::vector<std::shared_ptr<PartWork>> parts;  // their works
  std::vector<std::shared_ptr<const void>> keep_alive;
  std::optional<absl::Duration> timeout;  // the shortest of the calls'
  bool collectives = false;
  bool messages = false;
};

bool can_be_coalesced(OpType op);

// A coalesced call without collectives: it is none either, and takes no number among them.
bool only_messages(const CollectiveCall& call);

}  // namespace rankloom::internal

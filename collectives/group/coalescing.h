#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "collectives/call/collective_call.h"
#include "collectives/work/completion.h"
#include "world/world.h"

namespace rankloom::internal {

class PartWork;

// Closes records of a rank when a work ends.
class CloseRecords final : public Dependant {
 public:
  CloseRecords(RankContext* context, std::vector<int64_t> records) : context_(*context), records_(std::move(records)) {}
  void ended(const absl::Status& status) override;

 private:
  RankContext& context_;
  const std::vector<int64_t> records_;
};

// What a member has called since start_coalescing().
struct Coalescing {
  std::vector<CollectiveCall> calls;
  std::vector<std::shared_ptr<PartWork>> parts;  // their works
  std::vector<std::shared_ptr<const void>> keep_alive;
  std::optional<absl::Duration> timeout;  // the shortest of the calls'
  bool collectives = false;
  bool messages = false;
};

}  // namespace rankloom::internal

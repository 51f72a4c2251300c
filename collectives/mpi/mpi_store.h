#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "rankloom/store.h"

namespace rankloom::internal {

class MpiEngine;

// The most bytes of keys and values in one call or reply between processes: those of a message of MPI, which counts in
// int, but for what goes with them. Tests have less room.
extern int64_t most_store_bytes;

// The store of a world whose ranks are processes: rank 0's process has the keys, and the others ask it.
class MpiStore final : public Store {
 public:
  MpiStore(Scheduler* scheduler, MpiEngine* engine) : Store(scheduler), engine_(*engine) {}

  absl::StatusOr<StoreReply> execute(const StoreCall& call) override;
  std::string_view kind() const override { return "MpiStore"; }

 private:
  MpiEngine& engine_;
};

}  // namespace rankloom::internal

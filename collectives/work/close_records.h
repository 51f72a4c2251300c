#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "collectives/work/work_state.h"
#include "world/world_state.h"

namespace rankloom::internal {

// The one place that closes the flight record of a call that has ended; tools/check_layers.py sees to that. Only the
// first time counts. `started_ns`: when all members had arrived; -1: not known.
inline void close_record(RankState& rank, int64_t record_id, int64_t now_ns, bool ok, int64_t started_ns = -1) {
  rank.recorder().close(record_id, now_ns, ok, started_ns);
}

// Closes flight records of a rank when a work ends, if the world still lives.
class CloseRecords final : public Dependant {
 public:
  // How the records end if the work goes without an end.
  enum class NeverEnded : uint8_t { kStayOpen, kFailed };
  CloseRecords(RankState* context, const WorldRef& world, std::vector<int64_t> records,
               NeverEnded never = NeverEnded::kStayOpen)
      : rank_state_(*context), rank_(context->rank()), world_(world), records_(std::move(records)), never_(never) {}
  ~CloseRecords() override {
    if (!ended_ && never_ == NeverEnded::kFailed) close(/*ok=*/false);
  }
  void ended(const absl::Status& status) override {
    ended_ = true;
    close(status.ok());
  }

 private:
  void close(bool ok) const;

  RankState& rank_state_;  // gone with the world
  const int rank_;
  const WorldRef world_;
  const std::vector<int64_t> records_;
  const NeverEnded never_;
  bool ended_ = false;
};

}  // namespace rankloom::internal

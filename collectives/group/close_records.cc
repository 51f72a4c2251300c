#include "collectives/group/close_records.h"

#include "world/world_state.h"

namespace rankloom::internal {

void CloseRecords::close(bool ok) const {
  const WorldPin alive(world_);
  if (!alive) return;
  const int64_t now = world_.scheduler()->now_ns();
  for (const int64_t record : records_) rank_state_.recorder().close(record, now, ok);
}

}  // namespace rankloom::internal

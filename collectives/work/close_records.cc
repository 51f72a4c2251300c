#include "collectives/work/close_records.h"

namespace rankloom::internal {

void CloseRecords::close(bool ok) const {
  const WorldPin alive(world_);
  if (!alive) return;
  const int64_t now = world_.scheduler()->now_ns();
  for (const int64_t record : records_) close_record(rank_state_, record, now, ok);
}

}  // namespace rankloom::internal

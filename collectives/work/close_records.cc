#include "collectives/work/close_records.h"

namespace rankloom::internal {

void CloseRecords::close(bool ok) const {
  run_for_fibers(world_, rank_, "record", [world = world_, rank = &rank_state_, records = records_, ok] {
    const WorldPin alive(world);
    if (!alive) return;
    const int64_t now = world.scheduler()->now_ns();
    for (const int64_t record : records) close_record(*rank, record, now, ok);
  });
}

}  // namespace rankloom::internal

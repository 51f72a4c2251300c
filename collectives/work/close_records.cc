#include "collectives/work/close_records.h"

namespace rankloom::internal {

void CloseRecords::close(bool ok) const {
  absl::AnyInvocable<void()> close = [world = world_, rank = &rank_state_, records = records_, ok] {
    const int64_t now = world.scheduler()->now_ns();
    for (const int64_t record : records) close_record(*rank, record, now, ok);
  };
  if (given_to_fibers(world_, rank_, "record", &close)) return;
  if (const WorldPin alive(world_); alive) close();
}

}  // namespace rankloom::internal

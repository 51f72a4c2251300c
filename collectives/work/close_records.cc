#include "collectives/work/close_records.h"

namespace rankloom::internal {

void CloseRecords::close(bool ok) const {
  if (world_.foreign()) [[unlikely]] {
    absl::AnyInvocable<void()> close = [world = world_, rank = &rank_state_, records = records_, ok] {
      const int64_t now = world.scheduler()->now_ns();
      for (const int64_t record : records) close_record(*rank, record, now, ok);
    };
    if (given_to_fibers(world_, rank_, "record", &close)) return;
  }
  const WorldPin alive(world_);
  if (!alive) return;
  const int64_t now = world_.scheduler()->now_ns();
  for (const int64_t record : records_) close_record(rank_state_, record, now, ok);
}

}  // namespace rankloom::internal

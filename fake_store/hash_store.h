#pragma once

#include "fake_store/table_store.h"

namespace rankloom {

// A store in memory, for the ranks of one process: what TCPStore is to a job of several.
class HashStore final : public internal::TableStore {
 public:
  // Without a scheduler the store belongs to no world: threads block by real time, and nothing reports them as stuck.
  explicit HashStore(Scheduler* scheduler = nullptr) : TableStore(scheduler) {}

  std::string_view kind() const override { return "HashStore"; }
};

}  // namespace rankloom

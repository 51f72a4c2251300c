#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/mpi/wire.h"
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

// A call of the store, as it travels, and a reply.
std::string written_call(const StoreCall& call);
void write_reply(const absl::StatusOr<StoreReply>& reply, WireWriter* out);
absl::StatusOr<StoreReply> read_reply(WireReader* in);
// Executes such a call. Errors: StoreError if the bytes are none.
absl::StatusOr<StoreReply> execute_written(Store& store, std::string_view bytes, std::optional<absl::Duration> timeout);
// OK, or StoreError: the call is too large to travel.
absl::Status fits(const StoreCall& call);
// watch_key(), of a store that several processes have.
absl::Status refused_watch(const StoreCall& call);

}  // namespace rankloom::internal

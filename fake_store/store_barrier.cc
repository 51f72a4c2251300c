// store_barrier(): an algorithm above the front of stores.

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "fake_store/store_state.h"
#include "fake_store/store_text.h"
#include "rankloom/error.h"
#include "rankloom/store.h"
#include "sim/base/dist_error.h"
#include "sim/base/site_text.h"
#include "sim/base/task.h"
#include "sim/base/text.h"

namespace rankloom {

using namespace internal;

namespace {

// `found`: the rank had come to this round before; `number`: the ranks that have come, 0 from stores of users, which do
// not tell.
StoreReply append_arrival(Store& store, std::string_view key, const StoreBarrier& barrier, CodeSite code) {
  const std::string text = absl::StrCat(barrier.rank, " ");
  const std::string_view value = text;
  return *StoreAccess::submit(store, {.op = StoreCall::Op::kAppend,
                                      .keys = {&key, 1},
                                      .values = {&value, 1},
                                      .code = code,
                                      .way = {.barrier = &barrier}});
}

// "missing ranks 1-2 of 4". `arrived`: the value of the key where ranks arrive, or why it could not be read.
std::string missing_text(const absl::StatusOr<StoreReply>& arrived, int size) {
  if (arrived.ok()) return absl::StrCat("missing ", missing_ranks_text(arrived->value, size), " of ", size);
  return absl::StrCat("it is not known who of ", size, " ranks is missing: ", arrived.status().message());
}

}  // namespace

void store_barrier(Store& store, std::string_view name, int rank, int size, std::optional<absl::Duration> timeout,
                   CodeSite code) {
  // The barrier's own numbers need not be the world's.
  const Task* const task = Task::current();
  const int global_rank = task != nullptr && task->info.rank >= 0 ? task->info.rank : rank;
  const std::string who = absl::StrCat(sv(store.kind()), " store_barrier ", quote(name));
  const ErrorOrigin origin{.rank = global_rank, .group = {}, .op = "store_barrier"};
  if (size < 1 || rank < 0 || rank >= size) {
    throw_dist_error(
        at_line(store_error(who, absl::StrCat("have rank ", rank, " of ", size, ", want 0 <= rank < size")), code),
        origin);
  }
  if (timeout.has_value() && *timeout < absl::ZeroDuration()) {
    throw_dist_error(at_line(negative_timeout(who, *timeout), code), origin);
  }
  // Ranks come in rounds of `size`. A rank comes to a round only after it left the one before, so the one that
  // completes a round may remove what the round before left behind.
  const std::string count_key = absl::StrCat(sv(name), "/count");
  const int64_t arrival = store.add(count_key, 1, code);
  const int64_t round = (arrival - 1) / size;
  const auto round_key = [&](const char* what, int64_t n) { return absl::StrCat(sv(name), "/", what, "/", n); };
  const std::string arrived_key = round_key("arrived", round);
  const std::string go_key = round_key("go", round);
  const StoreBarrier barrier{.name = name, .rank = rank, .size = size};
  const StoreReply arrived_here = append_arrival(store, arrived_key, barrier, code);
  if (arrived_here.found) {
    refuse(origin, ErrorKind::kInvalidArgument, who, ": rank ", rank, " of ", size,
           " has come already, want each rank once: two callers give the same rank, or one calls again after a timeout",
           site_place(Site{.code = code}));
  }
  // The rank whose number completes the list, not the one counted last: of two that come as one rank, the second may
  // have been counted and not have left its number yet.
  const bool completes = arrived_here.number > 0 ? arrived_here.number == size : arrival % size == 0;
  if (completes) {
    if (round > 0) {
      store.delete_key(round_key("arrived", round - 1), code);
      store.delete_key(round_key("go", round - 1), code);
    }
    store.set(go_key, "", code);
    return;
  }
  const std::string_view go = go_key;
  const StoreCall wait{
      .op = StoreCall::Op::kWait, .keys = {&go, 1}, .timeout = timeout, .code = code, .way = {.barrier = &barrier}};
  const absl::Status waited = store.execute(wait).status();
  if (waited.ok()) return;
  const StoreState& state = StoreAccess::state(store);
  if (!state.abort_cause().ok() || error_kind(waited) != ErrorKind::kTimeout) throw_dist_error(waited, origin);
  const std::string_view look_at = arrived_key;
  const absl::StatusOr<StoreReply> arrived =
      store.execute({.op = StoreCall::Op::kGet, .keys = {&look_at, 1}, .timeout = absl::ZeroDuration(), .code = code});
  // The last one came at the deadline, and is about to tell.
  if (arrived.ok() && static_cast<int>(arrived_ranks(arrived->value, size).size()) == size) return;
  // The lines below the headline: which rank waits for which.
  const std::string text = message_of(waited);
  const std::string more = text.substr(std::min(text.find('\n'), text.size()));
  const std::string own_number = global_rank != rank ? absl::StrCat(" as rank ", rank) : "";
  refuse(origin, ErrorKind::kTimeout, "rank ", global_rank, ", ", who, own_number, ": timed out after ",
         absl::FormatDuration(timeout.has_value() ? *timeout : state.timeout()), ": ", missing_text(arrived, size),
         site_place(Site{.code = code}), more);
}

}  // namespace rankloom

#include "sim/base/lock_order.h"

#include <array>
#include <bit>
#include <string>

#include "absl/strings/str_cat.h"
#include "sim/base/dist_error.h"
#include "sim/base/forked_run.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

constexpr std::array<std::string_view, kLockLevels> kNames = {
    "closing",
    "live worlds",
    "watchdog",
    "report",
    "stall texts",
    "made groups",
    "shared",
    "group core",
    "rendezvous",
    "inbox",
    "mailbox",
    "coalesced work",
    "work",
    "stream queue",
    "stream wants",
    "device runtime",
    "device failure",
    "device stream",
    "device code",
    "device pools",
    "stream pool",
    "mpi",
    "sync",
    "store",
    "file poller",
    "faults",
    "world",
    "abort listeners",
    "recorder",
    "open outputs",
    "caught",
    "scheduler",
    "scheduler inbox",
    "tasks",
    "strangers",
    "abort cause",
    "thread pool",
    "step record",
    "test listeners",
    "test failures",
    "test output",
};
static_assert(kLockLevels <= 64 && !kNames.back().empty());

}  // namespace

std::string_view lock_level_name(LockLevel level) { return kNames[static_cast<size_t>(level)]; }

void HeldLocks::wrong_order(uint64_t held, LockLevel level) {
  const auto last = static_cast<LockLevel>(std::bit_width(held) - 1);
  held_ = 0;  // what follows takes locks, too
  std::string order;
  for (const std::string_view name : kNames) absl::StrAppend(&order, order.empty() ? "" : ", ", sv(name));
  fatal(absl::StrCat("wrong order of locks: a thread that holds \"", sv(lock_level_name(last)), "\" takes \"",
                     sv(lock_level_name(level)), "\", want them in this order: ", order));
}

void lock_contended(absl::Mutex* mu) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (!is_forked_thread()) return mu->Lock();
  for (WaitTurns turns; !mu->TryLock();) turns.next();
}

}  // namespace rankloom::internal

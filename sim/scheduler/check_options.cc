#include "sim/scheduler/check_options.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "rankloom/faults.h"
#include "sim/base/dist_error.h"

namespace rankloom::internal {
namespace {

absl::Status check_fault(const Fault& fault) {
  const auto wrong = [&fault](const char* what, const auto& have, const char* want) {
    return invalid_argument("fault ", fault.text(), ": ", what, " is ", have, ", want ", want);
  };
  if (fault_kind_name(fault.kind) == "?") return wrong("kind", static_cast<int>(fault.kind), "a Fault::Kind");
  if (fault.when > Fault::When::kAfter) return wrong("when", static_cast<int>(fault.when), "a Fault::When");
  if (fault.by < absl::ZeroDuration()) return wrong("by", absl::FormatDuration(fault.by), "0 or more");
  if (fault.by == absl::InfiniteDuration()) return wrong("by", "inf", "a delay that ends, or a hang");
  return absl::OkStatus();
}

// Address space of all stacks together: 16 TiB, of which a process has 128.
constexpr uint64_t kMostStackBytes = uint64_t{1} << 44;

}  // namespace

absl::Status check_options(const WorldOptions& options) {
  if (options.world_size < 1) return invalid_argument("world_size is ", options.world_size, ", want at least 1");
  if (options.engine != EngineKind::kThreads && options.engine != EngineKind::kFibers)
    return invalid_argument("engine is ", static_cast<int>(options.engine), ", want kThreads or kFibers");
  const std::pair<const char*, absl::Duration> durations[] = {
      {"timeout", options.timeout},
      {"warn_after", options.warn_after},
      {"stall", options.stall},
      {"stall_is_fatal", options.stall_is_fatal.value_or(absl::ZeroDuration())},
      {"stuck_after", options.stuck_after}};
  for (const auto& [name, duration] : durations) {
    if (duration < absl::ZeroDuration())
      return invalid_argument(name, " is ", absl::FormatDuration(duration), ", want 0 or more");
  }
  if (options.recorded_calls.value_or(0) < 0)
    return invalid_argument("recorded_calls is ", *options.recorded_calls, ", want 0 or more");
  const uint64_t most = kMostStackBytes / static_cast<uint64_t>(options.world_size);
  if (options.stack_bytes > most)
    return invalid_argument("stack_bytes is ", options.stack_bytes, ", want at most 2^44 / world_size = ", most);
  for (const Fault& fault : options.faults.faults()) {
    if (absl::Status wrong = check_fault(fault); !wrong.ok()) return wrong;
  }
  for (const Fault::Kind kind : options.faults.kinds()) {
    if (absl::Status wrong = check_fault({.kind = kind}); !wrong.ok()) return wrong;
  }
  return absl::OkStatus();
}

}  // namespace rankloom::internal

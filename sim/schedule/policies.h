#pragma once

#include <memory>
#include <string_view>

#include "rankloom/schedule.h"
#include "sim/schedule/policy.h"
#include "sim/schedule/run_hooks.h"

namespace rankloom::internal {

// The policy of one run. `schedule` is deterministic.
std::unique_ptr<SchedulePolicy> make_policy(const Schedule& schedule, const RunHooks& hooks);
// Whether `error` is a replay's that could not follow its trace.
bool is_error_of_replay(std::string_view error);

}  // namespace rankloom::internal

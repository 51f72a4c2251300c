#pragma once

#include <memory>

#include "rankloom/schedule.h"
#include "sim/schedule/policy.h"
#include "sim/schedule/run_hooks.h"

namespace rankloom::internal {

// The policy of one run. `schedule` is deterministic.
std::unique_ptr<SchedulePolicy> make_policy(const Schedule& schedule, const RunHooks& hooks);

}  // namespace rankloom::internal

#pragma once

#include <memory>

#include "sim/schedule/policy.h"
#include "sim/schedule/run_hooks.h"
#include "sim/schedule/schedule.h"

namespace rankloom {

// The policy of one run. `schedule` is deterministic.
std::unique_ptr<SchedulePolicy> make_policy(const Schedule& schedule, const RunHooks& hooks);

}  // namespace rankloom

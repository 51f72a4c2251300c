#pragma once

#include <optional>
#include <string>

#include "tests/campaign/run_job.h"

namespace rankloom {

// The first thing that is wrong with how a run ended; nullopt: nothing. A job that fails on purpose must fail where its
// act or a fault that happened lets it go no other way, and with the error of one of these; any other job goes well.
std::optional<std::string> wrong_end(const Plan& plan, const JobRun& run);

}  // namespace rankloom

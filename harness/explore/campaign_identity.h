#pragma once

#include <string>

#include "harness/explore/baseline.h"
#include "harness/explore/campaign_messages.h"
#include "rankloom/explore.h"

namespace rankloom::internal {

// Of this process. Programs are told apart by the build ids of the program and of rankloom's libraries, or, where the
// linker wrote none, by the file's size and time; of a script, whose interpreter is the program, the first run tells.
CampaignIdentity campaign_identity(const ExploreOptions& options, const Baseline& baseline);
// The part that is known without any run.
std::string program_identity();

}  // namespace rankloom::internal

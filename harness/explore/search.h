#pragma once

#include <memory>
#include <string>
#include <vector>

#include "harness/explore/baseline.h"
#include "harness/explore/campaign_links.h"
#include "harness/explore/search_team.h"
#include "rankloom/explore.h"

namespace rankloom::internal {

// As explore(); `run` runs the program in each world. `number`: which run or search this is, from 1, of the process or
// of a test, for RANKLOOM_REPLAY_RUN. `team`: who searches with this process; null: those that options.processes says.
ExploreReport search(const ExploreOptions& options, int number, Program program, RunWorld run, CodeSite code,
                     SearchTeam* team = nullptr);

// The runs of explore(), called at `code`: nothing but the program in each world.
struct PlainRuns {
  CodeSite code;
  WorldRun operator()(const std::shared_ptr<World>& world, Program program, std::vector<std::string>* failures,
                      absl::FunctionRef<void()> look) const;
};

// The part of a process that another one leads: makes the runs that it is told to make, until there are no more. The
// leader is told of options that make no sense, and of a first run that fails.
void search_for(LeaderLink* leader, const ExploreOptions& options, int number, Program program, RunWorld run,
                CodeSite code);

}  // namespace rankloom::internal

#pragma once

#include <string>
#include <string_view>

#include "rankloom/world.h"
#include "world/run_data.h"

namespace rankloom::internal {

// As bytes of a file: RunReport::write_run().
std::string run_file_text(const RunReport& report);

// RANKLOOM_REPORT: writes the run as `NAME.rlrun` into that folder, and says so in `report`. Else nothing.
void write_failed_run(std::string_view name, RunReport* report);

// RANKLOOM_REPORT: writes two runs of one program that differ as `NAME.first.rlrun` and `NAME.second.rlrun` into that
// folder. The line that says so; empty: nothing is asked for.
std::string write_both_runs(std::string_view name, const RunReport& first, const RunReport& second);

}  // namespace rankloom::internal

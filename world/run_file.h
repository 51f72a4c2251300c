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

}  // namespace rankloom::internal

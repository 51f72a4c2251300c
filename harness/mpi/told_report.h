#pragma once

#include <string>
#include <string_view>

#include "rankloom/explore.h"

namespace rankloom::internal {

// A report as bytes for the other processes of a search: all that text() says and that a run can be repeated by. Left
// out: exceptions, and what RunReport::write_run() writes.
std::string encode_report(const ExploreReport& report);

// `world`: of the options of this process, whose functions it takes over. Bytes that are none: a report with an error.
ExploreReport decode_report(std::string_view bytes, const WorldOptions& world);

}  // namespace rankloom::internal

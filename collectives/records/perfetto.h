#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/records/call_record.h"

namespace rankloom {

// Calls of one or several ranks as Chrome's trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing show: a process
// a rank, a lane for its computation and one for each group, and arrows between the members of a call, from the first
// to start to the others. Arguments of a call have the names of Kineto's record_param_comms. Times are microseconds of virtual time.
// Calls that did not end have the event type "B" and no end.
std::string perfetto_json(const std::vector<std::shared_ptr<CallRecord>>& ranks);

// The same, to a file. Errors: InvalidArgument if it cannot be written.
void write_perfetto(const std::vector<std::shared_ptr<CallRecord>>& ranks, std::string_view path);

}  // namespace rankloom

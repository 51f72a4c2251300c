#pragma once

#include <string>
#include <string_view>

#include "collectives/records/call_record.h"

namespace rankloom {

// One rank's calls as PyTorch's execution trace observer writes them: JSON of the schema 1.1.1-chakra.0.0.4, a node named
// record_param_comms a call, below a process and a thread, with a table of the groups before them. Times are microseconds of virtual time.
// Tensors get numbers of their own in every call: a record knows shapes, not memory.
std::string pytorch_trace_json(const CallRecord& record);

// The same, to a file. Errors: InvalidArgument if it cannot be written.
void write_pytorch_trace(const CallRecord& record, std::string_view path);

}  // namespace rankloom

#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rankloom/error.h"

namespace rankloom {

class CallRecord;

namespace traces {

// One rank's calls as a Chakra execution trace (MLCommons), version 0.0.4, which simulators such as ASTRA-sim read: the
// bytes of an .et file. Library rankloom-chakra, which needs protobuf.
//
// A node a call, of type COMM_COLL_NODE, COMM_SEND_NODE or COMM_RECV_NODE, and a COMP_NODE a stretch of compute(). Ids
// are 1 and up, in the order of the program. data_deps: what the program had done and waited for before, and the call
// before it on the same group; every one of them is in the file, and comes earlier. Times are microseconds of virtual
// time, rounded down. Attributes of calls: is_cpu_op (false), comm_type, comm_size (bytes that this rank puts in; what
// it gets, where that is nothing), comm_priority, pg_name, comm_src, comm_dst and comm_tag (ranks of the world), root,
// seq, collective. Attributes of the file: rank, world_size, and a process_group NAME with the ranks of each group, or
// with first rank, stride and size where there are more than 65,536.
//
// lower: collectives other than ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER and ALL_TO_ALL, at which ASTRA-sim throws or
// takes no time, become one of those four for which the busiest member sends as many bytes: broadcast and gather
// ALL_GATHER, reduce and scatter REDUCE_SCATTER, barriers ALL_REDUCE of a byte a member. `collective` still names the
// call. No comm_size is below 1, which ASTRA-sim refuses.
std::string chakra_trace(const CallRecord& record, bool lower = false);

// The same, to PREFIX.RANK.et, a file for each rank. Returns the paths. Errors: InvalidArgument if one cannot be
// written, and for a record that is null; then there is no file.
std::vector<std::string> write_chakra(const std::vector<std::shared_ptr<CallRecord>>& ranks, std::string_view prefix,
                                      bool lower = false, CodeSite code = CodeSite::here());

}  // namespace traces
}  // namespace rankloom

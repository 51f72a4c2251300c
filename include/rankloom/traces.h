#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rankloom/error.h"

namespace rankloom {

class CallRecord;
class World;

namespace traces {

// How the records of calls are written. An aggregate; every field has a default.
struct FlightDumpOptions {
  enum class Format : uint8_t {
    kPickle,  // what PyTorch's analyzer reads: python -m torch.distributed.flight_recorder.fr_trace FOLDER
    kJson,    // the same without lines of code, for other readers
  };
  Format format = Format::kPickle;
  // The prefix of names of operations. The analyzer refuses names that it does not know; those before torch 2.13 know
  // "nccl" and "xccl" only.
  std::string backend = "gloo";
};

// The last calls of a rank (WorldOptions::recorded_calls of them) in PyTorch's flight recorder format, version 2.10: as
// bytes of a pickle, or as JSON. States, times and sizes are there, and for the groups of the rank their members.
// May be asked for at any time, on any thread: calls of other threads meanwhile are in it or not.
// Differences from PyTorch's own dumps: times are the scheduler's, virtual in deterministic runs; a call that failed
// is "scheduled", or "started" if all members had come, is retired and has the time of its end; numbers of
// point-to-point calls begin at a thousand million, since the analyzer takes a send and a collective of one number for
// parts of one call.
std::string flight_records(World& world, int rank, const FlightDumpOptions& options = {},
                           CodeSite code = CodeSite::here());

// Writes those of all ranks, each to a file of its own: `prefix` with the rank after it ("/tmp/fr_" makes /tmp/fr_0),
// and ".json" after that for JSON. In a folder of their own, or the analyzer reads other files, too. A run_world()
// program can have it done when all ranks have ended: rank.world().at_end([&world = rank.world()] {
// dump_flight_records(world, "fr_"); }).
// Errors: InvalidArgument for a file that cannot be written.
void dump_flight_records(World& world, const std::string& prefix, const FlightDumpOptions& options = {},
                         CodeSite code = CodeSite::here());

// Calls of one or several ranks as Chrome's trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing show: a
// process a rank, a lane for its computation and one for each group, and arrows between the members of a call, from the
// first to start to the others. Arguments of a call have the names of Kineto's record_param_comms. Times are
// microseconds of virtual time. Calls that did not end have the event type "B" and no end.
// Errors: InvalidArgument for a record that is null.
std::string perfetto_json(const std::vector<std::shared_ptr<CallRecord>>& ranks, CodeSite code = CodeSite::here());

// The same, to a file. Errors: InvalidArgument if it cannot be written.
void write_perfetto(const std::vector<std::shared_ptr<CallRecord>>& ranks, std::string_view path,
                    CodeSite code = CodeSite::here());

// One rank's calls as PyTorch's execution trace observer writes them: JSON of the schema 1.1.1-chakra.0.0.4, a node
// named record_param_comms a call, below a process and a thread, with a table of the groups before them. Times are
// microseconds of virtual time. Tensors get numbers of their own in every call: a record knows shapes, not memory.
std::string pytorch_trace_json(const CallRecord& record);

// The same, to a file. Errors: InvalidArgument if it cannot be written.
void write_pytorch_trace(const CallRecord& record, std::string_view path, CodeSite code = CodeSite::here());

}  // namespace traces
}  // namespace rankloom

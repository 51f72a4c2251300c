#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "rankloom/collective_call.h"
#include "rankloom/error.h"
#include "rankloom/group.h"

namespace rankloom {

// Well-known links. Bandwidths are the vendors' peaks; real programs see less. Latencies are those that NCCL 2.9 plans
// with for a ring step of its Simple protocol (src/graph/tuning.cc, hwLat): 3.4 us within NVLink, 5.7 us on PCI, 9.6 us
// on a network.
namespace links {

// The connection between the members of a group.
struct Link {
  absl::Duration latency;        // of one message: alpha
  double bytes_per_second = 0;   // of one rank, in one direction: the inverse of beta
  std::string_view name = {};    // for tables
  std::string_view source = {};  // where the figures are from
};

inline constexpr Link kNvlink3 = {absl::Nanoseconds(3400), 300e9, "nvlink3",
                                  "NVIDIA A100 data sheet: 600 GB/s in both directions"};
inline constexpr Link kNvlink4 = {absl::Nanoseconds(3400), 450e9, "nvlink4",
                                  "NVIDIA H100 data sheet: 900 GB/s in both directions"};
inline constexpr Link kNvlink5 = {absl::Nanoseconds(3400), 900e9, "nvlink5",
                                  "NVIDIA B200 data sheet: 1.8 TB/s in both directions"};
inline constexpr Link kPcie4 = {absl::Nanoseconds(5700), 31.5e9, "pcie4",
                                "PCI-SIG: 16 GT/s * 16 lanes * 128/130 bits, in one direction"};
inline constexpr Link kPcie5 = {absl::Nanoseconds(5700), 63e9, "pcie5",
                                "PCI-SIG: 32 GT/s * 16 lanes * 128/130 bits, in one direction"};
inline constexpr Link kInfinibandHdr = {absl::Nanoseconds(9600), 25e9, "infiniband_hdr",
                                        "InfiniBand Trade Association: HDR 4x, 200 Gb/s"};
inline constexpr Link kInfinibandNdr = {absl::Nanoseconds(9600), 50e9, "infiniband_ndr",
                                        "InfiniBand Trade Association: NDR 4x, 400 Gb/s"};
inline constexpr Link kEthernet100 = {absl::Nanoseconds(9600), 12.5e9, "ethernet_100g", "IEEE 802.3: 100 Gb/s"};
}  // namespace links

// How long calls take. A value; without links everything takes no time.
struct CostModel {
  // The cost of a call to its busiest member: messages that wait for each other, and bytes that it sends (or receives,
  // where that is more). Time is steps * latency + bytes / bandwidth, Hockney's model.
  //
  // By operation, among n members; lg is the logarithm of n to base 2, rounded up; bytes are rounded up. Nothing for a
  // group of one. A coalesced call costs what its parts cost. S is the payload: the buffer of all_reduce, reduce,
  // broadcast, send and recv; what all members hold together of gathers (n inputs), scatter and reduce_scatter (n
  // outputs); what this rank gives in all_to_all.
  //
  //   operation                ring: steps, bytes              tree: steps, bytes
  //   all_reduce               2(n-1), 2(n-1)/n S   [1][2]     2 lg n, 2S          [3]
  //   broadcast, reduce        n-1, S               [2]        lg n, S             [3]
  //   all_gather, reduce_scatter  n-1, (n-1)/n S    [1][2]     lg n, (n-1)/n S     [2] recursive doubling, halving
  //   gather, scatter          n-1, (n-1)/n S       [2]        lg n, (n-1)/n S     [2] binomial tree; the root's bytes
  //   all_to_all               n-1, (n-1)/n S       [2]        lg n, lg n * S/2    [4]
  //   send, recv               1, S                            1, S
  //   barrier                  2(n-1), 0                       lg n, 0             [5]
  //
  // [1] P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations. J. Parallel and
  //     Distributed Computing 69(2), 2009.
  // [2] R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in MPICH. Int. J.
  //     High Performance Computing Applications 19(1), 2005; E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn:
  //     Collective communication: theory, practice, and experience. Concurrency and Computation 19(13), 2007. Broadcast
  //     and reduce along a ring are pipelined in small pieces.
  // [3] P. Sanders, J. Speck, J. L. Traeff: Two-tree algorithms for full bandwidth broadcast, reduction and scan.
  //     Parallel Computing 35(12), 2009: pipelined, each member an inner node of one tree and a leaf of the other.
  // [4] J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby: Efficient algorithms for all-to-all communications in
  //     multiport message-passing systems. IEEE Trans. Parallel and Distributed Systems 8(11), 1997.
  // [5] D. Hensgen, R. Finkel, U. Manber: Two algorithms for barrier synchronization. Int. J. Parallel Programming
  //     17(1), 1988.
  struct WireCost {
    int64_t steps = 0;
    int64_t bytes = 0;

    friend constexpr bool operator==(const WireCost&, const WireCost&) = default;
  };

  enum class Choice : uint8_t { kRing, kTree, kFaster };

  // Links by the name of a mesh dimension, as a std::map has them, for a few names: {{"tp", links::kNvlink4}}.
  class LinksByDim {
   public:
    struct Entry {
      std::string first;
      links::Link second;
    };

    LinksByDim();
    LinksByDim(std::initializer_list<Entry> entries);  // the first of a name counts
    LinksByDim(const LinksByDim& other);
    LinksByDim(LinksByDim&& other) noexcept;
    LinksByDim& operator=(LinksByDim other) noexcept;
    ~LinksByDim();

    // The link of `dim`; makes one that says nothing yet.
    links::Link& operator[](std::string_view dim);
    // end() if there is none.
    const Entry* find(std::string_view dim) const;
    size_t size() const;
    bool empty() const { return size() == 0; }
    const Entry* begin() const;
    const Entry* end() const { return begin() + size(); }

   private:
    std::vector<Entry> entries_;  // by name
  };

  std::optional<links::Link> link = {};  // of groups along no dimension of `dims`
  LinksByDim dims = {};
  Choice algorithm = Choice::kRing;

  // Null: it takes no time.
  const links::Link* link_of(std::string_view dim) const;
  absl::Duration time(const links::Link& over, OpType op, int size, int64_t bytes) const;
};

class RankContext;
class World;
namespace internal {
struct CallRecordState;
}  // namespace internal

// The calls of one rank, in order: for tests of what a program calls, and for estimates of bytes, memory and time. A
// fake group writes into the record that FakeOptions::record names; of_rank() makes a record from a real rank's flight
// recorder.
//
//   auto record = std::make_shared<CallRecord>(CostModel{.link = links::kNvlink4});
//   auto pg = make_fake_process_group({.rank = 5, .world_size = 1024, .options = {.record = record}});
//   pg->all_reduce(TensorView::meta({8192, 8192}, DType::kBFloat16)).wait();
//   std::cout << record->table();
//   EXPECT_EQ(record->calls(OpType::kAllReduce), 1);
//
// Calls that are alike (operation, group, shapes, line of code, ...) share their description, so that a call holds 48
// bytes; the first of its kind some 400 more.
// Virtual time: calls of one group run one after the other, those of different groups side by side. A call starts when
// it was issued and its group is free, and takes what the cost model says; waiting for it moves the program to its end.
// compute() moves the program, too. Coalesced calls run one after the other.
// A record knows no congestion, and shapes only: what tensors held, or where in memory they were, is not in it.
// Errors: none; an index of operator[] is below size().
// Thread-safety: thread-compatible; a record belongs to one rank. Calls on its streams may come beside its own.
class CallRecord {
 public:
  explicit CallRecord(CostModel model = {});
  ~CallRecord();
  CallRecord(const CallRecord&) = delete;
  CallRecord& operator=(const CallRecord&) = delete;

  // A call, as a record gives it back. Times are virtual: since the record began, by its cost model.
  struct Call {
    struct Tensor {
      DType dtype = DType::kFloat32;
      Dims sizes;

      int64_t numel() const;
      int64_t bytes() const;
      friend bool operator==(const Tensor&, const Tensor&) = default;
    };

    bool is_compute = false;  // a stretch of compute() instead of a call: it has a name and times only
    std::string name;         // torch.distributed's: "all_reduce"
    OpType op = OpType::kBarrier;
    int group = -1;      // an index of CallRecord::groups()
    int64_t seq = -1;    // as in reports: of collectives, or of sends and recvs
    int64_t batch = -1;  // part of a coalesced call: the index of its first part
    ReduceOp reduce_op;
    int root = -1;
    int peer = -1;
    int tag = 0;
    std::vector<Tensor> inputs;
    std::vector<Tensor> outputs;
    std::vector<int64_t> in_splits;
    std::vector<int64_t> out_splits;
    CodeSite code;
    int64_t payload = 0;  // bytes: S at CostModel::WireCost
    CostModel::WireCost ring;
    CostModel::WireCost tree;
    absl::Duration issued;       // the program came to it
    absl::Duration start;        // its group was free for it
    absl::Duration duration;     // negative: it did not end
    int64_t waited_before = -1;  // the index of what the program did next after it had waited for it; -1: never

    absl::Duration end() const { return start + duration; }
    int64_t input_bytes() const;
    int64_t output_bytes() const;
  };

  // The totals of one operation of one group.
  struct Totals {
    OpType op = OpType::kBarrier;
    int group = -1;
    int64_t calls = 0;
    int64_t payload = 0;  // bytes; each of the following is a sum over the calls, too
    CostModel::WireCost ring;
    CostModel::WireCost tree;
    absl::Duration time;
  };

  struct GroupInfo {
    std::shared_ptr<const Group> group;
    int rank = 0;     // this rank's in it
    std::string dim;  // of a mesh: "tp"; else empty

    const std::string& name() const { return group->name(); }
    // The name of the group in tables and matchers: the mesh dimension if it is along one, else its name.
    const std::string& label() const { return dim.empty() ? group->name() : dim; }
  };

  // The program computes for so long.
  void compute(absl::Duration duration, std::string_view name = "compute");

  // Calls and stretches of compute(), by index.
  size_t size() const;
  Call operator[](size_t index) const;
  // Calls alone: all, those of one operation, and of one group too (its label, name or description).
  int64_t calls() const;
  int64_t calls(OpType op) const;
  int64_t calls(OpType op, std::string_view group) const;
  // One entry for each operation of each group that was called, by group and operation.
  std::vector<Totals> totals() const;
  // "3 x all_gather_into_tensor on tp", a line each.
  std::string text() const;
  // totals(), for people: bytes on the wire and time a group along a mesh dimension or other group.
  std::string table() const;

  const std::vector<GroupInfo>& groups() const;
  int global_rank() const;  // -1: no group yet
  int world_size() const;
  // When the program is through with what it did so far; and when the last call ends.
  absl::Duration now() const;
  absl::Duration end() const;
  // The most bytes that calls held at one time: the buffers of calls that were issued and neither waited for nor
  // dropped.
  int64_t peak_buffer_bytes() const;
  int64_t live_buffer_bytes() const;
  // The memory of the record itself.
  size_t memory_bytes() const;

  // Forgets calls, time and peak; keeps the groups.
  void clear();

  // A rank of a real world so far: what its flight recorder still holds (WorldOptions::recorded_calls), with the times
  // of the run. The flight recorder knows one dtype a call, no reduce ops.
  static std::shared_ptr<CallRecord> of_rank(RankContext& rank);
  // Of each rank, after the run.
  static std::vector<std::shared_ptr<CallRecord>> of_world(World& world);

 private:
  friend struct internal::CallRecordState;
  const internal::Owned<internal::CallRecordState> state_;
};

// Records in the formats of other tools. Chakra's is <rankloom/chakra.h>, a library of its own.
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
// May be asked for at any time, on any thread: calls of other threads meanwhile are in it or not. While ranks that are
// fibers run, by one of them, or where they stand still, as in on_stall.
// Differences from PyTorch's own dumps: times are the scheduler's, virtual in deterministic runs; a call that failed
// is "scheduled", or "started" if all members had come, is retired and has the time of its end; numbers of
// point-to-point calls begin at a thousand million, since the analyzer takes a send and a collective of one number for
// parts of one call.
std::string flight_records(World& world, int rank, const FlightDumpOptions& options = {},
                           CodeSite code = CodeSite::here());

// Writes those of all ranks, each to a file of its own: `prefix` with the rank after it ("/tmp/fr_" makes /tmp/fr_0),
// and ".json" after that for JSON. In a folder of their own, or the analyzer reads other files, too. One rank of a
// run_world() program can have it done when all have ended: if (rank.rank() == 0) rank.world().at_end([&world =
// rank.world()] { traces::dump_flight_records(world, "fr_"); }).
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

// The same calls as the text of a run file, for `rankloom report` and `rankloom show`: a lane for the computation of a
// rank and one for each of its groups, and of each rank the totals() and the most bytes that calls held.
// docs/run-files.md has the format. A real world's run is written by RunReport::write_run().
// Errors: InvalidArgument for a record that is null.
std::string run_text(const std::vector<std::shared_ptr<CallRecord>>& ranks, CodeSite code = CodeSite::here());

// The same, to a file. Errors: InvalidArgument if it cannot be written.
void write_run(const std::vector<std::shared_ptr<CallRecord>>& ranks, std::string_view path,
               CodeSite code = CodeSite::here());

// One rank's calls as PyTorch's execution trace observer writes them: JSON of the schema 1.1.1-chakra.0.0.4, a node
// named record_param_comms a call, below a process and a thread, with a table of the groups before them. Times are
// microseconds of virtual time. Tensors get numbers of their own in every call: a record knows shapes, not memory.
std::string pytorch_trace_json(const CallRecord& record);

// The same, to a file. Errors: InvalidArgument if it cannot be written.
void write_pytorch_trace(const CallRecord& record, std::string_view path, CodeSite code = CodeSite::here());

}  // namespace traces

}  // namespace rankloom

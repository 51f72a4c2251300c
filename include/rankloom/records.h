#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "rankloom/collective_call.h"
#include "rankloom/group.h"
#include "rankloom/work.h"

namespace rankloom {

// How the members of a group pass their data on.
enum class WireAlgorithm : uint8_t {
  kRing,  // each to its neighbour; all_to_all: to each in turn
  kTree,  // in a logarithmic number of steps
};

// What a call costs its busiest member: messages that wait for each other, and bytes that it sends (or receives, where that is
// more). Time is steps * latency + bytes / bandwidth, Hockney's model.
struct WireCost {
  int64_t steps = 0;
  int64_t bytes = 0;

  friend constexpr bool operator==(const WireCost&, const WireCost&) = default;
};

// The cost of an operation over `bytes` (see wire_payload()) among `size` members; lg is the logarithm to base 2, rounded up;
// bytes are rounded up. Nothing for a group of one.
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
// [1] P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations. J. Parallel and Distributed
//     Computing 69(2), 2009.
// [2] R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in MPICH. Int. J. High
//     Performance Computing Applications 19(1), 2005; E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn: Collective
//     communication: theory, practice, and experience. Concurrency and Computation 19(13), 2007. Broadcast and reduce along
//     a ring are pipelined in small pieces.
// [3] P. Sanders, J. Speck, J. L. Traeff: Two-tree algorithms for full bandwidth broadcast, reduction and scan. Parallel
//     Computing 35(12), 2009: pipelined, each member an inner node of one tree and a leaf of the other.
// [4] J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby: Efficient algorithms for all-to-all communications in multiport
//     message-passing systems. IEEE Trans. Parallel and Distributed Systems 8(11), 1997.
// [5] D. Hensgen, R. Finkel, U. Manber: Two algorithms for barrier synchronization. Int. J. Parallel Programming 17(1), 1988.
WireCost wire_cost(WireAlgorithm algorithm, OpType op, int size, int64_t bytes);

// S of the table above, in bytes: the buffer of all_reduce, reduce, broadcast, send and recv; what all members hold together
// of gathers (n inputs), scatter and reduce_scatter (n outputs); what this rank gives in all_to_all. Coalesced: the sum.
int64_t wire_payload(const CollectiveCall& call, int size);

// What joins the members of a group.
struct Link {
  absl::Duration latency;        // of one message: alpha
  double bytes_per_second = 0;   // of one rank, in one direction: the inverse of beta
  std::string_view name = {};    // for tables
  std::string_view source = {};  // where the figures are from
};

// Well-known links. Bandwidths are the vendors' peaks; real programs see less. Latencies are those that NCCL 2.9 plans with for
// a ring step of its Simple protocol (src/graph/tuning.cc, hwLat): 3.4 us within NVLink, 5.7 us on PCI, 9.6 us on a network.
namespace links {
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
  enum class Choice : uint8_t { kRing, kTree, kFaster };

  std::optional<Link> link = {};                       // of groups along no dimension of `dims`
  std::map<std::string, Link, std::less<>> dims = {};  // by the name of a mesh dimension
  Choice algorithm = Choice::kRing;

  // Null: it takes no time.
  const Link* link_of(std::string_view dim) const;
  absl::Duration time(const Link& over, OpType op, int size, int64_t bytes) const;
};

class RankContext;
class World;

// A call, as a record gives it back. Times are virtual: since the record began, by its cost model.
struct RecordedCall {
  struct Tensor {
    DType dtype = DType::kFloat32;
    Dims sizes;

    int64_t numel() const;
    int64_t bytes() const { return numel() * static_cast<int64_t>(dtype_size(dtype)); }
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
  int64_t payload = 0;  // bytes: wire_payload()
  WireCost ring;
  WireCost tree;
  absl::Duration issued;       // the program came to it
  absl::Duration start;        // its group was free for it
  absl::Duration duration;     // negative: it did not end
  int64_t waited_before = -1;  // the index of what the program did next after it had waited for it; -1: never

  absl::Duration end() const { return start + duration; }
  int64_t input_bytes() const;
  int64_t output_bytes() const;
};

// What one operation of one group came to.
struct CallTotals {
  OpType op = OpType::kBarrier;
  int group = -1;
  int64_t calls = 0;
  int64_t payload = 0;  // bytes; each of the following is a sum over the calls, too
  WireCost ring;
  WireCost tree;
  absl::Duration time;
};

// What one rank called, in order: fake groups write here (FakeOptions::record), and of_rank() makes one from a real rank's
// flight recorder. Calls that are alike (operation, group, shapes, line of code, ...) share their description, so that a call
// holds 48 bytes; the first of its kind some 400 more.
//
// Virtual time: calls of one group run one after the other, those of different groups side by side. A call starts when it was
// issued and its group is free, and takes what the cost model says; waiting for it moves the program to its end. compute() moves
// the program, too. Coalesced calls run one after the other.
// Thread-safety: thread-compatible; a record belongs to one rank.
class CallRecord {
 public:
  explicit CallRecord(CostModel model = {});
  ~CallRecord();
  CallRecord(const CallRecord&) = delete;
  CallRecord& operator=(const CallRecord&) = delete;

  struct GroupInfo {
    std::shared_ptr<const Group> group;
    int rank = 0;     // this rank's in it
    std::string dim;  // of a mesh: "tp"; else empty

    const std::string& name() const { return group->name(); }
    // What tables and matchers call it: the mesh dimension if it is along one, else the name.
    const std::string& label() const { return dim.empty() ? group->name() : dim; }
  };

  // The program computes for so long.
  void compute(absl::Duration duration, std::string_view name = "compute");

  // Calls and stretches of compute(), by index.
  size_t size() const { return size_; }
  RecordedCall operator[](size_t index) const;
  // Calls alone: all, those of one operation, and of one group too (its label, name or description).
  int64_t calls() const;
  int64_t calls(OpType op) const;
  int64_t calls(OpType op, std::string_view group) const;
  // One entry for each operation of each group that was called, by group and operation.
  std::vector<CallTotals> totals() const;
  // "3 x all_gather_into_tensor on tp", a line each.
  std::string text() const;
  // totals(), for people: bytes on the wire and time a group along a mesh dimension or other group.
  std::string table() const;

  const std::vector<GroupInfo>& groups() const { return groups_; }
  int global_rank() const;  // -1: no group yet
  int world_size() const;
  // When the program is through with what it did so far; and when the last call ends.
  absl::Duration now() const { return absl::Nanoseconds(now_ns_); }
  absl::Duration end() const { return absl::Nanoseconds(end_ns_); }
  // The most bytes that calls held at one time: the buffers of calls that were issued and neither waited for nor dropped.
  int64_t peak_buffer_bytes() const { return peak_bytes_; }
  int64_t live_buffer_bytes() const;
  // What the record itself takes.
  size_t memory_bytes() const;

  // Forgets calls, time and peak; keeps the groups.
  void clear();

  // A rank of a real world so far: what its flight recorder still holds (WorldOptions::recorded_calls), with the times of the
  // run. The flight recorder knows one dtype a call, no tags, splits or reduce ops.
  static std::shared_ptr<CallRecord> of_rank(RankContext& rank);
  // Of each rank, after the run.
  static std::vector<std::shared_ptr<CallRecord>> of_world(World& world);

  // ---- for groups

  int add_group(const std::shared_ptr<const Group>& group, int rank);
  // The group is that of another member. The record is empty.
  void set_rank(int group, int rank) { groups_[static_cast<size_t>(group)].rank = rank; }
  // `rank` is the member's in the group. The work ends at once; wait() moves the virtual time.
  Work add(const CollectiveCall& call, int group);

 private:
  class RecordedWork;
  struct Owner;

  // What calls that are alike share.
  struct Kind {
    std::vector<int64_t> key;  // all that tells it from others: for_each_word() in the .cc
    int64_t payload = 0;
    int64_t buffer_bytes = 0;
    WireCost ring;
    WireCost tree;
    int64_t duration_ns = 0;  // by the cost model
    int64_t calls = 0;
    int64_t total_ns = 0;
  };
  struct Entry {
    uint32_t kind;
    uint32_t batch;  // 1 + distance to the first part of its coalesced call; 0: no part of one
    int64_t seq;
    int64_t issued_ns;
    int64_t start_ns;
    int64_t duration_ns;
    uint32_t waited_before;  // kNever: not yet
  };
  static constexpr uint32_t kNever = ~uint32_t{0};
  static constexpr size_t kChunk = 4096;  // entries in a block of memory that never moves

  Entry& entry(size_t index) { return chunks_[index / kChunk][index % kChunk]; }
  const Entry& entry(size_t index) const { return chunks_[index / kChunk][index % kChunk]; }
  Entry& append(uint32_t kind, int64_t seq);
  uint32_t kind_of(const CollectiveCall& call, int group);
  uint32_t kind_of_key(std::vector<int64_t> key);
  // Puts the call at the end of its group's line; the entry's index is size() - 1. `alone`: it is no part of another one that
  // has counted its sends and recvs already.
  Entry& issue(const CollectiveCall& call, int group, bool alone);
  void waited(RecordedWork& work);
  void settle(RecordedWork& work);

  const CostModel model_;
  std::vector<GroupInfo> groups_;
  std::vector<int64_t> free_ns_;  // [group] when it is through with its calls
  std::vector<int64_t> p2p_seq_;  // [group] sends and recvs so far; those of a coalesced call count as one
  std::vector<Kind> kinds_;
  absl::flat_hash_map<absl::Span<const int64_t>, uint32_t> kinds_by_key_;  // into Kind::key
  std::array<uint32_t, 64> recent_ = no_kinds();                           // kinds by a rough hash: where to look first
  std::vector<std::string> compute_names_;
  std::vector<std::unique_ptr<Entry[]>> chunks_;
  size_t size_ = 0;
  int64_t now_ns_ = 0;
  int64_t end_ns_ = 0;
  int64_t live_bytes_ = 0;
  int64_t peak_bytes_ = 0;
  std::shared_ptr<RecordedWork> last_work_;  // used again once nobody else has it
  std::shared_ptr<Owner> owner_;             // how works find this record, if it is still there

  static constexpr std::array<uint32_t, 64> no_kinds() {
    std::array<uint32_t, 64> none{};
    none.fill(kNever);
    return none;
  }
};

}  // namespace rankloom

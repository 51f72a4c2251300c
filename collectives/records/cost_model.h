#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "collectives/call/collective_call.h"

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

}  // namespace rankloom

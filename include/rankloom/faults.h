#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rankloom/error.h"

namespace rankloom {

// Something that goes wrong at a certain call. An aggregate; fields that are left out fit every call.
struct Fault {
  enum class Kind : uint8_t {
    kCrash,         // the rank fails; its peers get RankFailed, as they do when a rank throws
    kHang,          // the rank stops for good; its peers wait, until somebody's timeout or a Deadlock report
    kDelay,         // the rank loses `by` of virtual time
    kDrop,          // a send: it is done for the sender, and never arrives
    kDuplicate,     // a send: it arrives twice. Of memory of the host, not of a device
    kCorrupt,       // a bit of the first tensor is flipped: of an input before, of an output after the call; of a
                    // coalesced call, that of the first part that has one. Of memory of the host, not of a device
    kAbort,         // the group is aborted
    kStoreTimeout,  // a store operation ends with Timeout
  };
  enum class When : uint8_t {
    kBefore,  // a crash, hang or store timeout keeps the call from having any effect; after others the call goes on
    kInside,  // the call is on its way, the peers have seen it, and it is not done; of a store: as kBefore. In the free
              // gear the rank that comes last completes a call at once: it is done for the peers then
    kAfter,   // the call is done; for an asynchronous call, when its wait() returns. Outputs that were the rank's own
              // again before, since it had asked is_completed() or destroyed the group, are not corrupted
  };

  Kind kind = Kind::kCrash;
  int rank = -1;              // global; -1: any
  std::string group = {};     // its name; empty: any, or a store
  std::string op = {};        // as DistError::op() has it: "all_reduce", "store get"; "recv" is recv_any, too, and the
                              // end of a coalesced block "coalesced"; empty: any
  int64_t seq = -1;           // sequence number of a collective; -1: any
  int64_t nth = -1;           // the rank's n-th call, from 1, of those that group, op and seq fit; -1: each of them
  When when = When::kBefore;  // of no matter to kDrop and kDuplicate
  absl::Duration by = absl::Milliseconds(100);
  bool maybe = false;  // the schedule chooses whether it happens (internal::ChoiceKind::kFault)

  // "crash@rank=1,op=all_reduce,seq=3,when=inside": what FaultPlan::parse() reads.
  std::string text() const;
  friend bool operator==(const Fault&, const Fault&) = default;
};

// Which faults a run has: those listed, and those drawn from a seed. A value; empty: none.
//
//   rankloom::WorldOptions options{.world_size = 4};
//   options.faults = {{.kind = rankloom::Fault::Kind::kCrash, .rank = 1, .op = "all_reduce", .seq = 3}};
//   options.faults = rankloom::FaultPlan::seeded(7, 0.01);  // or each call with probability 1 %
//
// Faults happen in calls of groups and stores only; a program's own code fails by throwing. Thread-safety: const
// methods.
class FaultPlan {
 public:
  FaultPlan();
  FaultPlan(std::vector<Fault> faults);  // NOLINT: implicit
  FaultPlan(std::initializer_list<Fault> faults);
  FaultPlan(const FaultPlan& other);
  FaultPlan(FaultPlan&& other) noexcept;
  FaultPlan& operator=(FaultPlan other) noexcept;
  ~FaultPlan();

  // Each call of each rank goes wrong with probability `rate`, in a way that suits it and is drawn from `seed`, the
  // rank and the number of the call: the schedule changes nothing. `kinds`: of these only; empty: all. Throws
  // InvalidArgument unless 0 <= rate <= 1.
  static FaultPlan seeded(uint64_t seed, double rate, std::vector<Fault::Kind> kinds = {},
                          CodeSite code = CodeSite::here());

  // This plan, and these faults.
  FaultPlan plus(const std::vector<Fault>& faults) const;

  bool empty() const { return faults_.empty() && rate_ == 0; }
  const std::vector<Fault>& faults() const { return faults_; }
  uint64_t seed() const { return seed_; }
  double rate() const { return rate_; }
  const std::vector<Fault::Kind>& kinds() const { return kinds_; }

  // "crash@rank=1,seq=3;seeded:7:0.01": what parse() reads, and RANKLOOM_FAULTS.
  std::string text() const;
  // Errors: InvalidArgument that names the part that makes no sense.
  static absl::StatusOr<FaultPlan> parse(std::string_view text);

 private:
  std::vector<Fault> faults_;
  uint64_t seed_ = 0;
  double rate_ = 0;
  std::vector<Fault::Kind> kinds_;
};

namespace internal {

inline constexpr int kFaultKindCount = static_cast<int>(Fault::Kind::kStoreTimeout) + 1;
// "crash", "store_timeout": as plans and reports write it.
std::string_view fault_kind_name(Fault::Kind kind);
std::string_view fault_when_name(Fault::When when);

}  // namespace internal

}  // namespace rankloom

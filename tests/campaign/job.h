#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "rankloom/collective_call.h"
#include "rankloom/faults.h"
#include "rankloom/process_group.h"
#include "rankloom/tensor.h"

namespace rankloom {

// A random job, as data: what every rank does, in one order for all. A rank makes those acts in which it has a part,
// one after another, so the job ends under every schedule, and a loop over the acts, the oracle, knows what each rank
// sees.

// Calls that ranks wait for come first, up to kTwoGroups: these have a JobCall. From kThrow on stand those after which
// the job may fail. The others lie between.
enum class ActKind : uint8_t {
  kCollective,  // a call of each member of a group. `c`: of Way::kEvent, how the rank waits for the event
  kCoalesced,   // several calls between start_coalescing() and end_coalescing(). `a` = 1: and messages in a ring;
                // `b` = 1: the works of the parts are dropped before the end
  kMessage,     // member `a` sends to member `b`; they may be the same. `c` = 1: recv() is made before send()
  kAnySource,   // all members but `a` send to that one, which receives from anyone
  kRing,        // each member sends to the `a`-th behind it by batch_isend_irecv()
  kCrossed,     // member `a` sends `c` + 2 messages to member `b`, which takes them in another order: crossing_of()
  kTwoGroups,   // a call in a group and one, parts[0], in group `a`, `b`: each rank makes either first, as its bit of
                // `seed` says; with `c` = 1 a helper makes the second
  kWait,        // rank `rank` waits for its part of act `a`, in the way `b`
  kMonitored,   // monitored_barrier(). `a` = 1: it waits for all ranks
  kNewGroup,    // of the members whose bit of `a` is set, given backwards with `c` = 1, and of all with `b` = 1
  kSplitGroup,  // member i: color i / a, or none for the last one with `b` = 1; key downwards with `c` = 1
  kMesh,        // of two dimensions, the last one of `a` ranks, with names where `b` = 1
  kInitGroup,   // init_process_group() once more: of all ranks, or of those whose bit of `a` is set, backwards: `c` = 1
  kDestroyGroup,  // by all members
  kOptions,       // rank `rank` sets timeout and warn_after, and reads what a group says of itself
  kRefused,       // wrong argument number `a`, by each member; nothing comes of it
  kStoreScript,   // rank `rank` makes operations that are drawn from `seed`, on keys of its own, in a store of kind `a`
  kStoreMeeting,  // all ranks of the world, in the way `a`; of way 0: `b` = 1 by multi_set(), `c` = 1 with wait() first
  kStoreTimeout,  // rank `rank` waits for a key that nobody sets, with `b` = 1 for no time
  kSharedCount,   // all ranks add up in memory, with a Mutex and a CondVar (`a` = 0), with `b` = 1 with a timeout; or a
                  // Watched and a Latch, with `b` = 1 by arrive_and_wait()
  kYield,         // rank `rank`, as are the next
  kSleep,         // `a` microseconds
  kRandom,        // RankContext::rng()
  kHelper,        // a helper runs a script in the store of kind `a`, the rank waits for its Latch
  kNestedWorld,   // another job, drawn from `seed`, within the rank's program, in the gear `a`
  kThrow,
  kAbortWorld,
  kAbortGroup,
  kDropWork,      // of the rank's part of act `a`
  kLeave,         // the rank returns
  kOtherCall,     // the rank makes another call than the other members, who make all_reduce of one float32
  kGroupTimeout,  // the rank waits 1 ms for a call that nobody else makes, in the way `a`; `c`: as `a` of kMonitored
  kCount,
};

// How a call gets the values of its inputs.
enum class Values : uint8_t { kSmall, kBits, kSpecial, kCount };
// The ways of a rank with a call once it is made.
enum class Way : uint8_t {
  kPlain,
  kAtOnce,     // waits
  kStream,     // on a stream, behind a kernel that writes the inputs
  kBlocks,     // a stream waits for it, and a kernel behind that reads the outputs
  kGivesAway,  // keep_alive: the work is dropped, and the owner of the tensors sees the outputs
  kEvent,      // on a stream; a kernel behind its Event on another stream reads the outputs. `c`: how the rank waits
  kCount,
};
// How a rank waits.
enum class WaitWay : uint8_t {
  kWait,
  kTimed,
  kPoll,
  kAll,
  kAny,
  kFuture,
  kResult,
  kThen,
  kHelper,
  kSynchronize,
  kCount,
};

// The collectives that are drawn.
inline constexpr std::array kCollectives = {
    OpType::kBroadcast,
    OpType::kAllReduce,
    OpType::kReduce,
    OpType::kAllGather,
    OpType::kAllGatherIntoTensor,
    OpType::kGather,
    OpType::kScatter,
    OpType::kReduceScatter,
    OpType::kReduceScatterTensor,
    OpType::kAllToAll,
    OpType::kAllToAllSingle,
    OpType::kBarrier,
    OpType::kAllReduceCoalesced,
    OpType::kAllGatherIntoTensorCoalesced,
    OpType::kReduceScatterTensorCoalesced,
};
// Of the other operations each has an act of its own: monitored_barrier, send, recv, coalesced, new_group, split_group.
static_assert(kCollectives.size() + 6 == internal::kOpTypeCount);
// Those of torch.distributed's gloo.
inline constexpr std::array kCollectivesOfGloo = {
    OpType::kBroadcast,           OpType::kAllReduce, OpType::kReduce,         OpType::kAllGather,
    OpType::kAllGatherIntoTensor, OpType::kGather,    OpType::kScatter,        OpType::kReduceScatter,
    OpType::kReduceScatterTensor, OpType::kAllToAll,  OpType::kAllToAllSingle, OpType::kBarrier,
};
bool is_reduction(OpType op);
// Ends the process: a switch that says nothing of a value would let a call go by that nobody has made or looked at.
[[noreturn]] void no_such(std::string_view what, int number);

// How many choices an act has: by its `a`, of kEvent by its `c`.
inline constexpr int kRefusals = 16, kMeetings = 6, kTimeouts = 6, kEventWays = 3;

// One collective, as all members make it; what they give differs.
struct JobCall {
  int op = static_cast<int>(OpType::kBarrier);
  int dtype = 0;
  int reduce = 0;  // ReduceOp::Kind
  int count = 0;   // elements of the smallest part
  int uneven = 0;  // how much sizes grow from member to member
  int root = 0;    // modulo the group's size
  int values = 0;  // Values
  int order = 0;   // ReduceOp::Order::Kind; 8 more: rounds after each step
  int in_place = 0;
  int rows = 1;    // elements of a row of all_to_all_single
  int factor = 0;  // which one premul_sum() has
  int timed = 0;   // CallOptions::timeout, which never comes

  OpType type() const { return static_cast<OpType>(op); }
  DType element() const { return static_cast<DType>(dtype); }
  friend bool operator==(const JobCall&, const JobCall&) = default;
};

struct Act {
  int kind = 0;   // ActKind
  int id = 0;     // names groups, works and keys, and draws values: stays when other acts go
  int group = 0;  // the act that made it; 0: that of all ranks
  int dim = 0;    // of a mesh
  int rank = 0;
  int a = 0;
  int b = 0;
  int c = 0;
  int way = 0;   // Way
  int seed = 0;  // of a message: its tag, by tag_of()
  JobCall call = {};
  std::vector<JobCall> parts = {};  // kCoalesced, kTwoGroups

  ActKind type() const { return static_cast<ActKind>(kind); }
  bool ends_badly() const { return type() >= ActKind::kThrow; }
  friend bool operator==(const Act&, const Act&) = default;
};

struct Job {
  int world_size = 1;
  int seed = 0;  // of schedules and of the ranks' randomness
  int eager_bytes = 0;
  int rooted = 0;      // GroupOptions::Rooted
  int recorded = 8;    // WorldOptions::recorded_calls
  int order = 0;       // GroupOptions::order, as JobCall::order; 0: unset
  int options = 0;     // a bit for each of some WorldOptions: world_options()
  int two_worlds = 0;  // one more at the same time, on another thread
  int fault_rate = 0;  // FaultPlan::seeded(), in thousandths
  std::vector<Fault> faults = {};
  std::vector<Act> acts = {};

  // Whether it may end badly: by an act, or by a fault that is no delay.
  bool may_fail() const;
  // Whether each barrier is of one act: none is that call of kGroupTimeout which nobody else makes, but may meet.
  bool has_whole_barriers() const;
  FaultPlan fault_plan() const;
  friend bool operator==(const Job&, const Job&) = default;
};

// The tag of a message: 0 or 1, which others have as well, or one of its own.
int tag_of(const Act& act);
// The messages of a kCrossed: the tag of each as it is sent, and the order in which they are taken. Those of one tag
// arrive in the order of the sends.
struct Crossing {
  std::vector<int> tags;
  std::vector<int> taken;  // indices of tags
};
Crossing crossing_of(const Act& act);

inline constexpr int kWorldOptions = 32;  // Job::options are below

// Whether there is a reduction of the kind for the dtype.
bool has_kernel(ReduceOp::Kind op, DType dtype);

// The runner that a job is drawn for: some can do less.
enum class Palette : uint8_t { kAll, kGood, kNested, kMpi, kTorch };

// The same job for the same seed on every machine.
Job draw_job(uint64_t seed, Palette palette = Palette::kAll, int world_size = 0);

// A line for the job and one for each act, as kept in the corpus. Only what differs from a default is written;
// acts, operations, dtypes and reductions by name. New values of the enums of this file go to the end of theirs, but
// for ActKind.
std::string to_text(const Job& job);
// Errors: InvalidArgument that names the line.
absl::StatusOr<Job> parse_job(std::string_view text);
std::string_view act_name(ActKind kind);

}  // namespace rankloom

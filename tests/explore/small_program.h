#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "rankloom/faults.h"
#include "rankloom/schedule.h"
#include "tests/explore/searches.h"

namespace rankloom {

using namespace internal;

// One call, or a few that belong together, that a rank makes. The numbers mean what the operation's row says.
enum class SmallOpKind : uint8_t {
  kSet,
  kGet,
  kAdd,
  kCompareSet,
  kWaitKey,
  kWaitKeyFor,
  kCheck,
  kDeleteKey,
  kNumKeys,
  kAppend,
  kMultiGet,
  kMultiSet,
  kQueuePush,
  kQueuePop,
  kQueueTryPop,
  kQueueLen,
  kListKeys,
  kWatchKey,
  kStoreTimeout,
  kStoreBarrier,

  kBroadcast,
  kAllReduce,
  kAllReduceCoalesced,
  kReduce,
  kAllGather,
  kAllGatherIntoTensor,
  kAllGatherIntoTensorCoalesced,
  kGather,
  kScatter,
  kReduceScatter,
  kReduceScatterTensor,
  kReduceScatterTensorCoalesced,
  kAllToAll,
  kAllToAllSingle,
  kBarrier,
  kMonitoredBarrier,
  kSend,
  kRecv,
  kRecvAny,
  kBatchIsendIrecv,
  kStartCoalescing,
  kEndCoalescing,

  kWait,
  kWaitFor,
  kIsCompleted,
  kIsSuccess,
  kException,
  kResult,
  kSource,
  kSynchronize,
  kDrop,
  kThen,
  kGetFuture,
  kFutureDone,
  kFutureValue,
  kFutureThen,
  kWaitAll,
  kWaitAny,
  kPromiseWork,
  kPromiseSetValue,
  kPromiseSetError,
  kEarlyRead,
  kEarlyWrite,

  kInitGroup,
  kNewGroup,
  kNewGroupOfAll,
  kSplitGroup,
  kDeviceMesh,
  kDestroyGroup,
  kAbortGroup,
  kShutdownGroup,
  kSetTimeout,
  kSetWarnAfter,
  kSetReduceOrder,
  kRename,
  kAttributes,

  kLock,
  kTryLock,
  kUnlock,
  kLocked,
  kCondWait,
  kCondWaitUntil,
  kCondWaitFor,
  kNotifyOne,
  kNotifyAll,
  kCountDown,
  kTryWaitLatch,
  kWaitLatch,
  kArriveAndWait,
  kWatchedGet,
  kWatchedSet,
  kWatchedUpdate,

  kLaunch,
  kStreamQuery,
  kStreamSynchronize,
  kStreamStatus,
  kStreamWaitFor,
  kBlockCurrentStream,
  kRecordEvent,
  kQueryEvent,
  kSynchronizeEvent,
  kWaitEvent,

  kSpawnHelper,
  kSetVariable,
  kReadVariable,
  kSleep,
  kNow,
  kYield,
  kRandom,
  kRankLocal,
  kShared,
  kUnshare,
  kNote,
  kOnAbort,
  kThrow,
  kRankFailed,
  kAbortWorld,
  kCount,
};

struct SmallOp {
  SmallOpKind kind = SmallOpKind::kYield;
  bool prefixed = false;    // store operations: through a PrefixStore
  bool keep_alive = false;  // calls of a group: the call owns its tensors
  bool streamed = false;    // calls of a group: on the rank's first stream
  bool timed = false;       // calls of a group: 1 ms of timeout of their own
  int group = 0;            // calls of a group: which of the rank's
  int a = 0;
  int b = 0;
  int c = 0;
  std::vector<SmallOp> body = {};  // of what runs as a task of its own
};

// The acts of each rank, one call after another. Data: can be printed, and cut down.
struct SmallProgram {
  uint64_t seed = 0;  // drawn from it; 0: written by hand
  size_t eager_bytes = 0;
  bool shared_late = false;  // what ranks share is made by the rank that first comes to it
  bool reads_early = false;  // outputs of calls on streams are read after wait(), which does not wait for the stream
  bool points_at_memory = false;  // each use of memory that tasks of a rank share is a scheduling point
  bool owners_tell = false;       // the end of a call's owner (keep_alive) changes the rank's variable
  std::vector<Fault> faults = {};
  std::vector<std::vector<SmallOp>> ranks;
};

// An operation that programs are drawn from.
struct SmallOpRow {
  SmallOpKind kind;
  std::string_view names;  // the public operations that it calls, separated by spaces: "Store::set", "wait_all"
  std::string_view text;   // as printed; $a, $b, $c are the operation's numbers
  int a, b, c;             // how many values of each there are
};
std::span<const SmallOpRow> small_op_rows();
const SmallOpRow& row_of(SmallOpKind kind);

inline absl::Duration ms(int n) { return absl::Milliseconds(n); }

inline constexpr int kSmallProgramSlots = 6;   // works that a rank keeps
inline constexpr int kSmallProgramGroups = 3;  // groups that it keeps

inline bool is_store(SmallOpKind kind) { return kind <= SmallOpKind::kStoreBarrier; }
// A collective, a message or a part of a coalesced call.
inline bool is_call(SmallOpKind kind) { return kind >= SmallOpKind::kBroadcast && kind <= SmallOpKind::kEndCoalescing; }
inline bool is_of_group(SmallOpKind kind) {
  return is_call(kind) || (kind >= SmallOpKind::kInitGroup && kind <= SmallOpKind::kAttributes);
}

// The same program for the same seed, on every machine. Most are so small that all of their schedules can be run.
SmallProgram draw_program(uint64_t seed);

// Whether tasks of one rank, or what they leave behind, use the rank's memory.
bool shares_memory(const SmallProgram& program);

// Whether threads without a schedule can do nothing in it that searches need not know of: no operation lasts for a time
// or looks at memory that a call writes, and those of a rank use its memory at scheduling points.
bool runs_free(const SmallProgram& program);

// As C++, nearly.
std::string to_text(const SmallProgram& program);
// Operations, those in bodies included, and faults.
int size_of(const SmallProgram& program);
// The public operations that occur in it.
std::set<std::string> operations_of(const SmallProgram& program);

// Blocking: the calling thread, which is one of fibers (with_fiber_thread) if many are to be run.
// Sees each world that run_program() has run, with its report, which then has all calls; null: nobody does.
extern std::function<void(World&, const RunReport&)> after_run;
// Told of each operation of an explored run that has changed, without a scheduling point of its own, what other tasks
// can see; null: nobody is.
extern std::function<void(SmallOpKind)> acted_without_a_point;
Outcome run_program(const SmallProgram& program, const Schedule& schedule, const RunHooks& hooks);
Comparison compare_searches(const SmallProgram& program, const SearchLimits& limits);

// The accesses that a flaw on purpose leaves out of the program that was drawn from `seed`.
using LeaveOut = std::function<bool(const StepRecord::Op&, uint64_t seed)>;
// One access in n, drawn by object.
LeaveOut leave_out_one_in(uint64_t n);
// How many programs, drawn from `first` on, it takes until one shows that the reduced searches were not told of what
// `leave_out` says; -1: more than `most`. Programs that have a flaw anyway do not count.
int64_t programs_until_found(const LeaveOut& leave_out, uint64_t first, int64_t most, const SearchLimits& limits);

// The smallest program found for which `fails` holds, as it does for `program`: operations and faults are left out one
// by one, then ranks.
SmallProgram shrink(const SmallProgram& program, const std::function<bool(const SmallProgram&)>& fails);
// The smallest program with the same flaw, as text, with what is wrong. Shrinking takes no longer than `most`.
std::string shrunk_text(const SmallProgram& program, const SearchLimits& limits, Flaw flaw,
                        absl::Duration most = absl::Minutes(1));

}  // namespace rankloom

#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rankloom/collective_call.h"
#include "rankloom/group.h"
#include "rankloom/work.h"

namespace rankloom {

class CallRecord;

// How a fake group answers. An aggregate; every field has a default. A group that is made from this one answers alike
// unless GroupOptions::fake says otherwise.
struct FakeOptions {
  // A set of operations. A value: {OpType::kAllReduce, OpType::kSend}.
  class OpSet {
   public:
    constexpr OpSet() = default;
    constexpr OpSet(std::initializer_list<OpType> ops) {
      for (const OpType op : ops) bits_ |= bit(op);
    }
    constexpr bool has(OpType op) const { return (bits_ & bit(op)) != 0; }
    constexpr bool empty() const { return bits_ == 0; }

   private:
    static constexpr uint32_t bit(OpType op) { return uint32_t{1} << static_cast<unsigned>(op); }
    static_assert(internal::kOpTypeCount <= 32);

    uint32_t bits_ = 0;
  };

  // The values that a fake group writes into the outputs of a call. Tensors on the meta device are never written.
  enum class Outputs : uint8_t {
    kShapesOnly,    // nothing
    kPassThrough,   // what PyTorch's fake group writes: this rank's own input, where an output can hold it
    kUniformRanks,  // what a real group would, if every rank held this rank's data
  };

  // Every operation fails as "FakeProcessGroup collective operation error", with operation, rank, group and shapes:
  // sends and recvs, the end of a coalesced block and the making of groups, too.
  bool error_on_collective = false;
  OpSet allow = {};  // these do not fail under error_on_collective
  OpSet deny = {};   // these fail in any case
  Outputs outputs = Outputs::kShapesOnly;
  // Where calls are kept; null: nowhere. One for each rank: groups of one rank share it.
  std::shared_ptr<CallRecord> record = {};
};

class DeviceMesh;
class RankContext;
namespace internal {
class GroupFront;
}  // namespace internal

// The options of a call, beside its tensors. An aggregate; every field has a default.
struct CallOptions {
  // Of a wait for the call, from where the wait begins: a call that nobody waits for goes on however long it takes.
  // Unset: the group's.
  std::optional<absl::Duration> timeout = {};
  std::optional<absl::Duration> warn_after = {};  // unset: the group's
  // Owners of the tensors, let go of when the call is done and no Work of it is left (it may be dropped at once; that
  // of a coalesced block if each of its calls has an owner, or end_coalescing() is given one): on the thread that drops
  // the last one, or, if none was left, as a helper of the rank. Their destructors may call rankloom; those of several
  // calls may run on several threads at once.
  std::shared_ptr<const void> keep_alive = {};
  std::optional<ReduceOp::Order> order = {};  // unset: the group's
  Stream* stream = nullptr;                   // start after what is queued there, and order what follows
};

class ProcessGroup;

// How a rank gets its group. An aggregate; every field has a default. Members give the same ones.
struct GroupOptions {
  enum class Backend : uint8_t {
    kThreaded,  // real collectives in shared memory
    kFake,      // checks shapes, moves nothing
  };

  std::optional<Backend> backend = {};   // unset: kThreaded, or that of the group which this one is made from
  std::optional<FakeOptions> fake = {};  // of a fake group; unset: those of the group which this one is made from
  // The caller's own group instead. Called once per rank.
  std::function<std::shared_ptr<ProcessGroup>(RankContext&, const std::shared_ptr<const Group>&)> make = {};
  std::string name = {};  // unset: "0" for the first group of all ranks, "0.2" for the second one made from that
  // Unset: "default_pg" for the group of all ranks that init_process_group() makes, "undefined" for others, as c10d has
  // it.
  std::string description = {};
  std::optional<absl::Duration> timeout = {};  // unset: the world's, or that of the group which this one is made from
  std::optional<absl::Duration> warn_after = {};  // the same
  std::optional<ReduceOp::Order> order = {};      // the same; unset for the first: rank order
  // A send of at most so many bytes is copied and done at once; 0: every send waits to be received. Covers what a
  // member of a rooted call gives, too, where `rooted` is unset.
  size_t eager_bytes = 0;

  // When a member is done with a broadcast, scatter, reduce or gather. MPI and NCCL promise no more than kEach, so that
  // a program which takes such a call for a barrier is wrong.
  enum class Rooted : uint8_t {
    kTogether,    // with all others
    kEach,        // as soon as its own part is done: givers at once (a copy travels), receivers once the root has come
    kBySchedule,  // one of the two for the whole run, as the schedule says; together in the free gear
  };
  // Unset: that of the group which this one is made from. For the first: calls of at most eager_bytes kEach, larger
  // ones kBySchedule where outputs are poisoned (seeds, explore()), else kTogether. Calls on devices, on streams and
  // within coalesced ones are done together.
  std::optional<Rooted> rooted = {};
  // init_process_group() only: a group of these global ranks, the caller among them, in this order. Empty: of all
  // ranks.
  std::vector<int> ranks = {};
};

// One member's handle on a group: what a rank makes collective calls and messages with.
//
//   auto pg = init_process_group(rank);
//   std::vector<float> gradients = {1.0f * rank.rank(), 2};
//   Work work = pg->all_reduce(gradients);                  // returns before the others have come
//   work.wait();                                            // gradients is the sum of all ranks' now
//   auto half = pg->new_group({0, 1});                      // null on ranks 2 and up
//
// Public methods build a CollectiveCall, check it, number it, record it and pass it to execute(), the one function that
// a subclass supplies. A group moves bytes within this process: it opens no connection, never retries a call, has no
// thread for timeouts, and knows no devices but those of use_cuda().
// Order: members issue the same calls in the same order. A member that differs is named in a mismatch report, and no
//   data moves.
// Errors, for every method, thrown as DistError before any data moves: InvalidArgument (this member breaks a rule
//   below, or there is no kernel for the dtype), Aborted (the group was shut down or failed before), RankFailed or
//   another first cause (the world was aborted). docs/errors.md lists the texts.
// Blocking: monitored_barrier, and what makes or ends groups. A call is a scheduling point before it takes effect,
// those of a coalesced block together: the block's end is.
// Buffers: must stay, and inputs unchanged, until the call is done.
// Thread-safety: thread-compatible; a handle belongs to its rank. A thread that belongs to no rank acts as its helper.
class ProcessGroup : public std::enable_shared_from_this<ProcessGroup> {
 public:
  // For subclasses that need no world: a user's own group.
  ProcessGroup(int rank, int size, CodeSite code = CodeSite::here());
  virtual ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // --- attributes: virtual, since users override them

  virtual int rank() const;  // in this group: 0 <= rank < size(); a world rank is called global_rank
  virtual int size() const;
  virtual std::string backend_name() const { return "custom"; }
  virtual std::string group_name() const;
  virtual void set_group_name(std::string_view name);
  virtual std::string description() const;
  virtual void set_description(std::string_view description);
  // "threaded group tp: rank 1 of 4".
  virtual std::string text() const;
  // The rank in the world of a rank in this group.
  int global_rank(int rank, CodeSite code = CodeSite::here()) const;
  int global_rank() const;

  // --- collectives. Shapes are in elements; n = size()

  // Every member's `buffer` becomes the root's. Shapes: count and dtype equal on all members.
  Work broadcast(TensorView buffer, int root, const CallOptions& options = {}, CodeSite code = CodeSite::here());

  // Reduces `buffer` in place. Shapes: count and dtype equal on all members.
  // Determinism: applied in rank order 0..n-1 unless options.order says otherwise, so bits do not depend on the
  // order of arrival.
  Work all_reduce(TensorView buffer, ReduceOp op = ReduceOp::kSum, const CallOptions& options = {},
                  CodeSite code = CodeSite::here());
  // Several buffers as one call.
  Work all_reduce_coalesced(std::vector<TensorView> buffers, ReduceOp op = ReduceOp::kSum,
                            const CallOptions& options = {}, CodeSite code = CodeSite::here());

  // As all_reduce, but only the root's `buffer` is written.
  Work reduce(TensorView buffer, int root, ReduceOp op = ReduceOp::kSum, const CallOptions& options = {},
              CodeSite code = CodeSite::here());

  // outputs[i] becomes member i's input. Shapes: n outputs; outputs[i] as large as member i's input, which may differ
  // from member to member (all_gather_v, MPI_Allgatherv).
  Work all_gather(std::vector<TensorView> outputs, ConstTensorView input, const CallOptions& options = {},
                  CodeSite code = CodeSite::here());
  // Puts every member's `input` into `output`, in rank order. Shapes: output.numel() == n * input.numel().
  // In place: iff input is element rank() * input.numel() of output.
  Work all_gather_into_tensor(TensorView output, ConstTensorView input, const CallOptions& options = {},
                              CodeSite code = CodeSite::here());
  Work all_gather_into_tensor_coalesced(std::vector<TensorView> outputs, std::vector<TensorView> inputs,
                                        const CallOptions& options = {}, CodeSite code = CodeSite::here());

  // outputs[i] becomes member i's input, at the root; other members give an empty list.
  Work gather(std::vector<TensorView> outputs, ConstTensorView input, int root, const CallOptions& options = {},
              CodeSite code = CodeSite::here());
  // `output` becomes the root's inputs[rank()]; other members give an empty list.
  Work scatter(TensorView output, std::vector<TensorView> inputs, int root, const CallOptions& options = {},
               CodeSite code = CodeSite::here());

  // `output` becomes the reduction of all members' inputs[rank()]. Shapes: n inputs; inputs[i] as large as member i's
  // output, which may differ.
  Work reduce_scatter(TensorView output, std::vector<TensorView> inputs, ReduceOp op = ReduceOp::kSum,
                      const CallOptions& options = {}, CodeSite code = CodeSite::here());
  // `output` becomes part rank() of the reduction of all inputs. Shapes: input.numel() == n * output.numel().
  // In place: iff output is element rank() * output.numel() of input.
  Work reduce_scatter_tensor(TensorView output, ConstTensorView input, ReduceOp op = ReduceOp::kSum,
                             const CallOptions& options = {}, CodeSite code = CodeSite::here());
  Work reduce_scatter_tensor_coalesced(std::vector<TensorView> outputs, std::vector<TensorView> inputs,
                                       ReduceOp op = ReduceOp::kSum, const CallOptions& options = {},
                                       CodeSite code = CodeSite::here());

  // outputs[i] becomes member i's inputs[rank()]. Shapes: n of each; a pair of members agrees on what passes between
  // them.
  Work all_to_all(std::vector<TensorView> outputs, std::vector<TensorView> inputs, const CallOptions& options = {},
                  CodeSite code = CodeSite::here());
  // The same in one tensor each. Splits count rows (elements of dimension 0) per member; empty: equal parts.
  Work all_to_all_single(TensorView output, ConstTensorView input, std::vector<int64_t> output_splits = {},
                         std::vector<int64_t> input_splits = {}, const CallOptions& options = {},
                         CodeSite code = CodeSite::here());

  // Done when all members have called it. `label` is the caller's word for it, in reports; members agree on it.
  Work barrier(const CallOptions& options = {}, std::string_view label = {}, CodeSite code = CodeSite::here());
  // A barrier that waits, and that either all members pass or none: when the time of one is up, all get its Timeout,
  // which names every member that has not come; those get Aborted when they do. wait_all_ranks: this member does not
  // give up while the time of another one that has come, and said so too, still runs: so late members are told apart
  // from absent ones. The group is of no use after a Timeout, as after any other.
  void monitored_barrier(std::optional<absl::Duration> timeout = {}, bool wait_all_ranks = false,
                         std::string_view label = {}, CodeSite code = CodeSite::here());

  // --- point-to-point. Ranks are those in this group; tags are 0 or more

  // Gives `input` to `destination`, which may be this member and receives it under the same tag. Done when it was
  // received, or at once if it is no larger than GroupOptions::eager_bytes: a copy travels then, and only the receiver
  // is told of an error. Order: what one member sends to another under one tag arrives in the order of the calls.
  // Shapes: count and dtype equal on both sides; where they differ, both get the Mismatch.
  Work send(ConstTensorView input, int destination, int tag = 0, const CallOptions& options = {},
            CodeSite code = CodeSite::here());
  // `output` becomes what `source` sends under `tag`.
  Work recv(TensorView output, int source, int tag = 0, const CallOptions& options = {},
            CodeSite code = CodeSite::here());
  // The same from any member that sends; Work::source() names it. If several have sent, the schedule chooses.
  Work recv_any(TensorView output, int tag = 0, const CallOptions& options = {}, CodeSite code = CodeSite::here());

  // --- several calls as one

  // From here to end_coalescing(), this member's calls are gathered and issued as one: the collectives of all members
  // must be the same ones in the same order, sends and recvs are matched one by one. Each is checked at once; its Work
  // is done when the whole is, and cannot be waited for before end_coalescing(). A timeout that a call gives is one of
  // the whole; stream and warn_after are end_coalescing()'s, and those that a call gives count for nothing. Inputs are
  // read from end_coalescing() on.
  void start_coalescing(CodeSite code = CodeSite::here());
  // The work of all that was gathered.
  Work end_coalescing(const CallOptions& options = {}, CodeSite code = CodeSite::here());

  // --- further groups. Collective: every member of this group makes the same call, and waits in it for the others.
  // Ranks are those in this group. Members that disagree get a Mismatch

  // A group of `ranks`, in ascending order. Null on a rank that is not among them.
  std::shared_ptr<ProcessGroup> new_group(std::vector<int> ranks, const GroupOptions& options = {},
                                          CodeSite code = CodeSite::here());
  // A further group of all members.
  std::shared_ptr<ProcessGroup> new_group(const GroupOptions& options = {}, CodeSite code = CodeSite::here());
  // A group of the members that give the same `color`, in the order of `key` and then of rank(). Null for kNoColor.
  // A fake group has no peers to ask: all its members are taken to give this color.
  std::shared_ptr<ProcessGroup> split_group(int color, int key = 0, const GroupOptions& options = {},
                                            CodeSite code = CodeSite::here());
  static constexpr int kNoColor = -1;

  // --- state, of this member: another rank's is refused with InvalidArgument, but for abort()

  // Of collectives: how many this member has issued.
  int64_t sequence_number(CodeSite code = CodeSite::here()) const;
  // For calls that say nothing else, from now on. A wait that lasts longer than `warn_after` is told of in the report's
  // notes and to WorldOptions::on_warning, and goes on; one that lasts longer than the timeout fails. Both are virtual
  // time in deterministic runs. Neither keeps a stuck job from being reported as a Deadlock at once.
  void set_timeout(absl::Duration timeout, CodeSite code = CodeSite::here());
  absl::Duration timeout(CodeSite code = CodeSite::here()) const;
  void set_warn_after(absl::Duration warn_after, CodeSite code = CodeSite::here());
  absl::Duration warn_after(CodeSite code = CodeSite::here()) const;
  void set_reduce_order(const ReduceOp::Order& order, CodeSite code = CodeSite::here());

  // Ends all members' waits with Aborted. Later calls fail. Scheduling points before and behind. A fake group has no
  // other members: this handle's later calls fail. Nothing by default.
  virtual void abort(std::string_view reason = "abort() was called", CodeSite code = CodeSite::here());
  // No more calls of this member. Waits for those on their way, at most as long as their timeouts say; throws the first
  // error of one. By default it has none.
  virtual void shutdown(CodeSite code = CodeSite::here());

  // Does what `call` says: it was checked, numbered and recorded. Called by the front above, and by groups that wrap
  // this one. Does not block, and returns before the call is done. An error means that the call did not happen.
  virtual absl::StatusOr<Work> execute(CollectiveCall&& call) = 0;
  // This member's handle on a group that was made from this one.
  // Called as execute() is, by the front and by groups that wrap this one. By default CollectiveError: the caller must
  // say how, with GroupOptions::make.
  virtual std::shared_ptr<ProcessGroup> make_member(const std::shared_ptr<const Group>& group,
                                                    const GroupOptions& options);
  // destroy_process_group() was called: lets go of what members share.
  virtual void leave() {}

  const std::shared_ptr<const Group>& group() const;
  // This member's rank; null outside a world.
  RankContext* context() const;

 protected:
  // A group inside a world: `rank` is this member. Here and below `group` is not null.
  ProcessGroup(RankContext& rank, std::shared_ptr<const Group> group, CodeSite code = CodeSite::here());
  // A group without one, of known ranks; `rank` is that in the group.
  ProcessGroup(std::shared_ptr<const Group> group, int rank, CodeSite code = CodeSite::here());

 private:
  friend class internal::GroupFront;

  const internal::Owned<internal::GroupFront> front_;
};

// Prints text().
std::ostream& operator<<(std::ostream& out, const ProcessGroup& group);

// This rank's handle on the group of all ranks. Does not wait for the others. Every call of a rank makes a further
// group, with numbers of its own; its n-th call goes with the n-th of the others, destroy_process_group() between them
// or not. With GroupOptions::ranks only members call, and a member's n-th call for a name and these ranks goes with the
// n-th of the others for the same; without a name the group is called "ranks 0, 2".
std::shared_ptr<ProcessGroup> init_process_group(RankContext& rank, const GroupOptions& options = {},
                                                 CodeSite code = CodeSite::here());

// This member has done with the group and those made from it: shutdown(), of the youngest first. Later calls fail. Does
// nothing for null, which is what a rank has that is no member. Once all members have called it the world forgets the
// group, but for what its records name. Errors: Aborted if it was called for this group before, and those of calls on
// their way.
void destroy_process_group(const std::shared_ptr<ProcessGroup>& group, CodeSite code = CodeSite::here());

// One send or recv of batch_isend_irecv().
struct P2POp {
  enum class Kind : uint8_t { kSend, kRecv };
  Kind kind = Kind::kSend;
  TensorView tensor;
  int peer = -1;  // rank in the group
  ProcessGroup* group = nullptr;
  int tag = 0;
};

// Issues all of them, in order, and returns their works. Each is checked by itself first: if one is wrong
// (InvalidArgument names its place in the list), none is issued. Memory that is shared, or out of the group's reach, is
// found when its operation is issued; those before it are on their way then.
std::vector<Work> batch_isend_irecv(const std::vector<P2POp>& ops, const CallOptions& options = {},
                                    CodeSite code = CodeSite::here());

}  // namespace rankloom

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "collectives/threaded/members_elsewhere.h"
#include "collectives/work/member_work.h"
#include "rankloom/collective_call.h"
#include "sim/base/kept_memory.h"
#include "world/world_state.h"

namespace rankloom::internal {

class Rendezvous;

struct DeviceLaunch;

// One member's call on its way through a rendezvous, and the work that its rank waits for.
class CollectiveWork final : public MemberWork {
 public:
  // `timeout_ns`: the call's; Deadline::kNever: none.
  CollectiveWork(std::shared_ptr<Rendezvous> rendezvous, RankState* context, int group_rank, CollectiveCall&& call,
                 int64_t timeout_ns);
  // A place for a call; begin() makes it a work.
  CollectiveWork(std::shared_ptr<Rendezvous> rendezvous, RankState* context, int group_rank);
  void begin(int64_t timeout_ns);
  ~CollectiveWork() override;

  absl::Status wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) override;
  const char* op() const override;
  std::string_view group() const override;
  const Group* open_group() const override;
  // WaitsFor: the members that have not arrived.
  void append_ranks(std::vector<int>* ranks) const override;
  // WaitsFor: the Mismatch, if those that have arrived differ already.
  absl::Status explain() const override;

 protected:
  Site wait_site(CodeSite code) const override;
  void ending(bool ok) override { close_own_record(scheduler()->now_ns(), ok, started_ns_); }
  bool take_back(const Withdrawal& why, const absl::Status& ended) override;
  void wait_longer(absl::Duration* timeout, CodeSite code, absl::Status* waited) override;
  std::string what(bool numbered) const override;
  std::string waits_in(CodeSite code) const override;
  void await_group_failure() const override;
  // All members have arrived: the wait is for the device that runs the kernel.
  const char* otherwise() const override { return "its kernel"; }
  const RanksElsewhere* elsewhere() const override;

 private:
  friend class Rendezvous;

  // Poisoned runs: outputs hold NaN or 0xEB until the call is done, and inputs that must survive that are copied aside.
  void poison();
  // After the kernel, or before a failure is told: puts back what was copied aside if `failed`. True: it did.
  bool unpoison(bool failed);
  // Whether the rank wrote into an input between the call and its completion.
  bool input_changed() const;
  // The same of an output.
  bool output_written() const;
  // Copies the tensors that the member gives; their memory is the rank's again.
  void set_aside();
  // The i-th tensor that the root of a broadcast gives.
  const TensorView& given(int i) const;
  // Visits the call, or the parts of a coalesced one.
  void each_part(absl::FunctionRef<void(CollectiveCall&)> visit);

  const std::shared_ptr<Rendezvous> rendezvous_;
  const int group_rank_;
  int64_t started_ns_ = -1;  // when all members had arrived, or those that the call needs; -1: not yet
  bool early_ = false;       // done as soon as its own share is: GroupOptions::Rooted::kEach; const once filed
  // Guarded by the rendezvous. This member's data are moved; its work is completed by complete_served(), right after.
  bool served_ = false;
  // Guarded by the rendezvous: of all calls that are the same() as this; 0: none yet.
  uint64_t likeness_id_ = 0;
  // poisoned runs only
  struct Aside;
  std::unique_ptr<Aside> aside_;
};

// Where the members of one group meet for collectives. A call is filed under its sequence number and compared with the
// first of its slot. Once all are there, OpRow::cross and the kernel run, at once or as a step of their own (late
// runs).
//
//   auto state = std::make_shared<CollectiveWork>(rendezvous, context, rank, std::move(call));
//   absl::Status filed = rendezvous->file(state);   // of the last member: the kernel ran, or is posted as a step
//   state->wait(...);                               // every member: until the kernel has run
//
// Checks of one member's call come before (collectives/ops/shape_rules.h); sends and recvs meet in a Mailbox.
// invariant: a slot leaves the window exactly once: when its call has ended, or when the group fails.
// Thread-safety: all methods.
class Rendezvous : public std::enable_shared_from_this<Rendezvous> {
 public:
  // `elsewhere`: null if all members run in this process.
  Rendezvous(WorldState* world, std::shared_ptr<const Group> group,
             std::shared_ptr<MembersElsewhere> elsewhere = nullptr);

  // Files a call; runs it if this member is the last. Never blocks on another member.
  absl::Status file(const std::shared_ptr<CollectiveWork>& state);
  // The same of a member that is done as soon as its own share is: at once if it only gives, which is copied, or else
  // as soon as the root has come. Not for the root of a reduce or gather. The slot stays until all have come, so that
  // calls are compared as ever.
  absl::Status file_early(const std::shared_ptr<CollectiveWork>& state);

  // `rank` makes no call of this number: it unwound out of a stream that held the call. As the end of a call that a
  // rank took back while it unwound.
  void lose(RankState& rank, int64_t seq, const absl::Status& cause);

  // Members elsewhere have made their calls of `seq`, too. `bring` puts them beside those that are here, and the kernel
  // runs; or it has moved the data itself, and returns false. Nothing happens if a member here has taken its call back.
  void met(int64_t seq, absl::FunctionRef<bool(std::vector<const CollectiveCall*>& calls)> bring);
  // The calls of the members here, before met(), which read their inputs. Not called if one was taken back.
  void look(int64_t seq, absl::FunctionRef<void(MemberCalls calls)> reader) const;
  // The collectives on their way, and who has made them, for the members elsewhere.
  struct Arrived {
    int64_t seq;
    std::vector<int> ranks;  // in the group
  };
  std::vector<Arrived> arrived() const;

  // How many calls before `seq` there are that some members have not made.
  int64_t ahead(int64_t seq) const {
    ObservedMutexLock lock(&mu_);
    lock.apart();  // of no matter but to the order under fifo
    return seq - base_;
  }

  // Takes a call back that no kernel has touched, and ends it; waits for a kernel that runs. True: it ended with
  // `ended`. False: as others had it end, before or at the same time, or a device will be through with it later. The
  // call can never be complete then: its rank does not file the number again.
  bool withdraw(CollectiveWork& state, const Withdrawal& why, const absl::Status& ended);

  // Ends all calls on their way and refuses later ones. `taken`: ends those that the caller has taken out, with the
  // cause that it is given, when all are refused already: that of the world's abort, if there is one, else of the
  // group's first failure. Result: whether the caller is the first. In the free gear another may have been faster.
  bool fail(
      const absl::Status& cause, absl::FunctionRef<void(const absl::Status&)> taken = [](const absl::Status&) {});
  // The calls that fail together with the group's collectives: its messages. A rank that has learned of the failure of
  // either finds the other ones failed, too.
  class FailsAlong {
   public:
    // Once, under the lock of the rendezvous: refuses all that comes from now on.
    virtual void set_failed(const absl::Status& cause) = 0;
    // Then, without a lock: ends all that is on its way.
    virtual void spread(const absl::Status& cause) = 0;
    // Until the calls of member `rank` that had begun to end by themselves have ended.
    virtual void await_moves(int rank) const = 0;

    virtual ~FailsAlong() = default;
  };
  // Result: why the group has failed, if it has; `other` is not told then.
  absl::Status fails_along(std::weak_ptr<FailsAlong> other);
  // Free gear: the group has failed. Until all calls of member `rank` have ended, as long as a kernel takes at most:
  // those that end with the failure (spreading_), collectives that a thread carries out (completing_), and messages
  // that one moves (FailsAlong). None of these waits for the caller, who is within no Completion: a thread counts each
  // as ended before its outermost Completion ends, and code of users runs only behind that.
  void await_failed(int rank) const;
  // Why the group has failed; OK: it has not. For callers that a call was refused for that.
  absl::Status failure() const;

  // At the world's end: leaves a note of each call that some members made and others did not.
  void note_left() const;

  // The latest CallWay::wait_until_ns of the members that have arrived: of those that gave a timeout, as long as it is
  // to come, or else of those whose timeout is a default, which keeps no stuck job from being a deadlock.
  Deadline wait_until(int64_t seq, int64_t now_ns) const;
  // Global ranks of the members whose calls that of member `rank` waits for.
  void append_missing(int64_t seq, int rank, std::vector<int>* ranks) const;
  // Why the call can never be complete, if it is known: the Mismatch of those that have arrived so far, or a member
  // that unwound out of it. Else OK.
  absl::Status known_cause(int64_t seq) const;

  // The works of member `rank` that are not done, oldest first.
  std::vector<std::shared_ptr<WorkState>> unfinished(int rank) const;
  // Waits for works that other threads carry out or complete right now. The caller's own works are done.
  void await_completing() const;

  const Group& group() const { return *group_; }
  WorldState& world() const { return world_; }
  const std::shared_ptr<MembersElsewhere>& elsewhere() const { return elsewhere_; }

 private:
  struct Slot : Kept {
    enum class State : uint8_t { kCollecting, kReady, kRunning };
    int64_t seq = 0;
    State state = State::kCollecting;
    bool completing = false;  // counted in completing_
    bool mismatch = false;
    int arrived = 0;
    int early = 0;                                        // of those that arrived: CollectiveWork::early_
    int served = 0;                                       // of those: CollectiveWork::served_
    int first = -1;                                       // a member of those in `calls`, -1: there is none
    std::vector<const CollectiveCall*> calls;             // [rank in group]
    std::vector<std::shared_ptr<CollectiveWork>> states;  // [rank in group]
    std::shared_ptr<DeviceLaunch> launch;                 // kRunning, on a device
  };

  // Why a call cannot be filed: the group has failed, or this rank has filed one with this number.
  absl::Status refused(CollectiveWork& state) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Looks whether the calling task has caught the exception by which it left a call. The group fails once that is known
  // and somebody needs the call.
  void look_at_unwound();
  void look_when_caught(RankState& rank);
  // Whether two calls are the same() as each other.
  bool same(CollectiveWork& first, CollectiveWork& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return (first.likeness_id_ != 0 && first.likeness_id_ == call.likeness_id_) || same_anew(first, call);
  }
  bool same_anew(CollectiveWork& first, CollectiveWork& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The two ways in which `calls` and `states` of a slot change before a kernel has it.
  void enter(Slot& slot, const std::shared_ptr<CollectiveWork>& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void take_back(Slot& slot, size_t rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the root has come and its call agrees with that of member `rank`, of a slot whose root gives.
  bool root_serves(const Slot& slot, size_t rank) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Copies what the root gives to a member.
  static void give(const Slot& slot, const CollectiveWork& to);
  // The members that are done before their slot is, and what follows from a serve() without the lock.
  struct Early;
  // Moves the data of an early member, which is done then. Not if the rank has written to an output: `early` has the
  // member then.
  void serve(Slot* slot, CollectiveWork& state, Early* early) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The same for a member that waits for nobody else now, if it does; put off to a step of its own under a schedule.
  void serve_or_put_off(Slot* slot, size_t rank, Early* early) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // All such members: the root has come.
  void serve_waiting(Slot* slot, Early* early) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void serve_waiting(int64_t seq);
  // Without the lock: completes the works of those that were served; fails the group if a member wrote to its output
  // early; ends the slot if the last one was served.
  void complete_served(Early early);
  // Has a member served as a step of its own, when the schedule says.
  void serve_later(Slot* slot, const CollectiveWork& state);
  // Explored runs: the name of what a member of a slot does by itself.
  uint64_t part_object(const Slot& slot, size_t rank) const { return numbered_object(object_of(slot), rank + 1); }
  // Has run() called as a step of its own, when the schedule says.
  void run_later(Slot* slot, const CollectiveCall& call, int rank);
  Slot* slot_at(int64_t seq) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Slot* const slot = find(seq);
    return slot != nullptr ? slot : new_slot(seq);
  }
  Slot* new_slot(int64_t seq) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Slot* find(int64_t seq) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (seq < base_) return nullptr;
    const size_t i = front_ + static_cast<size_t>(seq - base_);
    return i < window_.size() ? window_[i] : nullptr;
  }
  // The name of a slot's call in explored runs.
  uint64_t object_of(const Slot& slot) const { return numbered_object(object_, static_cast<uint64_t>(slot.seq)); }
  // Tells an explored run of something that arrivals in this group do not commute with.
  void touched_group(Access how) const {
    if (record_ != nullptr) [[unlikely]]
      record_->access(object_, how);
  }
  // Of a call that a member here may not have made.
  bool has_come(const Slot& slot, int rank) const {
    return slot.calls[static_cast<size_t>(rank)] != nullptr ||
           (elsewhere_ != nullptr && !elsewhere_->is_here(rank) && elsewhere_->has_come(slot.seq, rank));
  }
  // Of a slot in which all have arrived: nobody takes a call back any more.
  void begin_run(Slot* slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void take_out(Slot* slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void count_completing(Slot* slot, bool completing);
  // The one place that makes the group fail: takes out all that no kernel has. spread() follows, without the lock. Only
  // the first cause counts.
  struct Failure;
  Failure set_failed(const absl::Status& cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void spread(const Failure& failure);
  void recycle(Slot* slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Compares, runs the kernel and completes the works of a slot in which all have arrived. On a device the kernel ends
  // later.
  void run(Slot* slot);
  // Of all members' tensors, see overlap.h.
  void look_for_freed_memory(const Slot& slot) const;
  // Starts the kernel on a device: end() follows, but for an error.
  absl::Status start_on_device(Slot* slot, int64_t started_ns);
  void end(Slot* slot, const absl::Status& status, int64_t started_ns);
  void end_failed(Slot* slot, const absl::Status& status, int64_t started_ns);
  absl::Status agree(const Slot& slot) const;
  absl::Status describe_difference(const Slot& slot) const;
  absl::Status buffers_untouched(const Slot& slot) const;
  // Completes the work of a member of a slot, whose share is done.
  static void complete(CollectiveWork& state, const absl::Status& status, int64_t now_ns);
  // Tells every member of a slot, which is out of the window, how it ended.
  void finish(Slot* slot, const absl::Status& status, int64_t started_ns = -1);

  WorldState& world_;
  Scheduler& scheduler_;
  StepRecord* const record_;  // explored runs only
  const std::shared_ptr<const Group> group_;
  const int size_;
  const std::shared_ptr<MembersElsewhere> elsewhere_;
  const int here_;  // members of this process
  const bool poison_;
  const bool late_;

  const uint64_t object_;   // explored runs: the name of the group's calls
  RankCounter completing_;  // slots that a kernel of this process has, or whose works are still being completed
  mutable ObservedMutex mu_;
  // window_[front_ + (seq - base_)] is the slot of `seq`; null once it is done. Entries before front_ are dead.
  std::vector<Slot*> window_ ABSL_GUARDED_BY(mu_);
  size_t front_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t base_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t last_likeness_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::unique_ptr<Slot>> slots_ ABSL_GUARDED_BY(mu_);  // all of them
  std::vector<Slot*> free_ ABSL_GUARDED_BY(mu_);
  absl::Status failed_ ABSL_GUARDED_BY(mu_);  // why the group can do no more
  std::weak_ptr<FailsAlong> fails_along_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> spreading_{false};  // the group has failed, and some of its calls are still to end with that
  std::vector<std::pair<int64_t, Unwound>> unwound_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> any_unwound_{false};  // written under mu_
};

}  // namespace rankloom::internal

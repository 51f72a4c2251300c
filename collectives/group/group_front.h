#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/group/coalescing.h"
#include "collectives/ops/group_request.h"
#include "collectives/work/call_place.h"
#include "rankloom/collective_call.h"
#include "rankloom/group.h"
#include "rankloom/process_group.h"
#include "sim/base/kept_memory.h"
#include "sim/scheduler/call_scope.h"
#include "sim/scheduler/scheduler.h"
#include "world/world_state.h"

namespace rankloom::internal {

// The state of one member's handle on a group, and the way of every call: point, check, number, record, execute. A
// ProcessGroup is the face of one; subclasses of the library ask for theirs by of(*this).
// Thread-safety: as ProcessGroup's.
class GroupFront : public Kept {
 public:
  // `context`: null outside a world. `rank`: in the group.
  GroupFront(ProcessGroup* handle, RankState* context, std::shared_ptr<const Group> group, int rank);
  ~GroupFront();
  GroupFront(const GroupFront&) = delete;
  GroupFront& operator=(const GroupFront&) = delete;

  static GroupFront& of(const ProcessGroup& group) { return *group.front_; }

  RankState* rank_state() const { return rank_state_; }
  Scheduler* scheduler() const { return scheduler_; }
  const WorldRef& world_ref() const { return world_; }
  const std::shared_ptr<const Group>& group() const { return group_; }
  int rank() const { return rank_; }
  // A place for the next call; null: the stack. `message`: a send or recv.
  CallPlace fresh_place(bool message, int line) const {
    return places_ != nullptr ? places_->fresh(message, line) : CallPlace();
  }
  // For constructors of groups.
  void set_places(CallPlaces* places) { places_ = places; }
  // The members hear of a call that this one will not make, for `cause`, an exception of its own: once it goes on all
  // the same, and needs them, or when nobody can move.
  using Loses = std::function<void(const CollectiveCall& call, const absl::Status& cause)>;
  void set_loses(Loses loses) { loses_ = std::move(loses); }
  bool can_lose() const { return loses_ != nullptr; }
  void lose(const CollectiveCall& call, const absl::Status& cause) const { loses_(call, cause); }
  // For groups that can stand for any of their members.
  void become(int rank) { rank_ = rank; }

  // The way in of each public method that touches the world: `const CallScope call = front.enter("shutdown", code);`.
  CallScope enter(const char* op, CodeSite code) const {
    return CallScope(world_, [&] { return called(op, code); });
  }
  // For state of this member that no step of a schedule tells of: refuses other ranks of its world.
  void need_own_rank(const char* op, CodeSite code) const;
  // State of this member is read, which any rank may: a search is told where another one does.
  void looked_at() const;
  // The rank of this world, which is there, that calls; this member's outside of ranks, as on threads of the test.
  int calling_rank() const;
  // "rank 2, group 0, all_gather seq 1: ".
  std::string who(const CollectiveCall& call) const;

  // `memo`: of the call's place; null: it has none.
  Work submit(CollectiveCall& call, const CallOptions& options, CodeSite code, CallMemo* memo = nullptr);

  // The same of the call of a place that is the last one there once more: CallMemo::again.
  Work submit_again(const CallPlace& place, const CallOptions& options, CodeSite code);

  // Of the order and the times that calls get which say nothing of them: anew with each change. Never 0.
  uint32_t terms() const { return terms_; }

  // A call's timeout in nanoseconds; Deadline::kNever: none. Calls on streams ask beside the rank's own.
  static int64_t nanoseconds(absl::Duration timeout) {
    return timeout == absl::InfiniteDuration() ? Deadline::kNever : absl::ToInt64Nanoseconds(timeout);
  }

  // A call that waits in a stream for its turn, which destroy_process_group() waits for; shutdown() does not.
  // The answer of the call's stream, as execute() gives one.
  absl::StatusOr<Work> issue_on_stream(CollectiveCall&& call);
  void queued_on_stream(const std::shared_ptr<WorkState>& work);
  // Waits until streams have made this member's calls and these are done, as long as the calls' own timeouts say.
  // Returns the first error.
  absl::Status await_streams(CodeSite code);
  // Closes the outputs of this member's ended calls: their memory is the rank's again. Of a group that is left or
  // aborted. `ending`: whether a call is about to end, and writes no more.
  void close_outputs(absl::FunctionRef<bool(const WorkState&)> ending = [](const WorkState&) { return false; }) const;

  // Calls that make groups: the request of one, the agreement of the members on it, and this member's handle.
  GroupRequest request_of(const char* op, const GroupOptions& options, CodeSite code);
  void agree_on(OpType op, GroupRequest* request, const GroupOptions& options, std::string what, CodeSite code);
  std::shared_ptr<ProcessGroup> make_child(const std::shared_ptr<const Group>& group, const GroupOptions& options,
                                           CodeSite code);
  // The handle that the backend itself makes. Errors: those of make_member(), and InvalidArgument for null.
  std::shared_ptr<ProcessGroup> member_of(const std::shared_ptr<const Group>& group, const GroupOptions& options,
                                          CodeSite code);

 private:
  friend class rankloom::ProcessGroup;
  friend void rankloom::destroy_process_group(const std::shared_ptr<ProcessGroup>& group, CodeSite code);

  // submit() between start_coalescing() and end_coalescing().
  Work gather_call(CollectiveCall& call, const CallOptions& options, CodeSite code);
  // The member leaves, its handle goes, or the world ends: calls since start_coalescing() are never issued.
  void drop_coalescing() noexcept;
  // From here on the end of the world does so, too: the handle may outlive it.
  void drop_at_end();
  CalledHandle called(const char* op, CodeSite code) const;
  [[noreturn]] void fail(const CollectiveCall& call, const absl::Status& status) const;
  // The call's or the group's; refuses negative ones.
  void set_times(CollectiveCall& call, const CallOptions& options) const {
    call.timeout = timeout_;
    call.timeout_is_default = true;
    call.warn_after = warn_after_;
    if (options.timeout.has_value() || options.warn_after.has_value() || timeout_ < absl::ZeroDuration() ||
        warn_after_ < absl::ZeroDuration()) [[unlikely]]
      set_own_times(call, options);
  }
  void set_own_times(CollectiveCall& call, const CallOptions& options) const;
  // `what`: "timeout", "warn_after".
  void check_duration(const char* op, const char* what, absl::Duration duration, CodeSite code) const;
  // Calls so far keep the order and the times that they were made with.
  void new_terms() { terms_ = std::max<uint32_t>(terms_ + 1, 1); }
  // Prepares a call that is not the last one once more, before it is numbered: order, times, check, owners, stream.
  void prepare(CollectiveCall& call, const CallOptions& options, CallMemo* memo);
  void record(CollectiveCall& call, CallMemo* memo = nullptr);
  void record_in_world(CollectiveCall& call, CallMemo* memo);
  int64_t record_anew(const CollectiveCall& call, const FlightNumbers& numbers, CallMemo* memo);
  // Closes the flight record of a call with its work, which does not do so itself; at once, if there is none or it is
  // done.
  void close_record(int64_t record_id, WorkState* work);
  // The next collective's number, which take() makes the last one; give_back(): the call that took a number did not
  // happen. Another task of the rank may have made calls behind that one, which keep theirs.
  int64_t next_number() const { return given_back_.empty() ? seq_ + 1 : given_back_.front(); }
  void take(int64_t number) {
    if (given_back_.empty()) [[likely]] {
      seq_ = number;
    } else {
      given_back_.erase(given_back_.begin());
    }
  }
  void give_back(int64_t number);
  // execute() did not take the call: takes its number (-1: none) and record back, and throws.
  [[noreturn]] void end_refused(OpType op, CodeSite code, int64_t number, int64_t record_id,
                                const absl::Status& status);
  // The member has left the group, before the call or while that stood at its scheduling point.
  [[noreturn]] void refuse_shut_down(const CollectiveCall& call, CallMemo* memo) const;
  // The call breaks a rule of its operation.
  [[noreturn]] void refuse_arguments(const CollectiveCall& call, const absl::Status& checked) const;
  // The member has done with the group and those made from it.
  void end(CodeSite code);

  ProcessGroup& handle_;
  RankState* const rank_state_;  // null outside a world, and gone with it
  const int own_rank_;           // that of the state, which the handle may outlive; -1 outside a world
  Scheduler* const scheduler_;
  const WorldRef world_;
  const std::shared_ptr<const Group> group_;
  int rank_;  // const, but for become()
  const int size_;
  CallPlaces* places_ = nullptr;
  Loses loses_;
  int64_t seq_ = 0;                                    // of collectives: the highest that was taken
  std::vector<int64_t> given_back_;                    // numbers below, which nobody has; ascending
  int64_t p2p_seq_ = 0;                                // of sends and recvs
  int64_t op_id_ = 0;                                  // of all calls
  int child_count_ = 0;                                // groups made from this one that were given no name
  int request_count_ = 0;                              // calls that make groups
  std::vector<std::weak_ptr<ProcessGroup>> children_;  // those that went are swept out now and then
  size_t sweep_children_at_ = 8;
  std::vector<std::weak_ptr<WorkState>> on_streams_;  // those that are done are swept out now and then
  size_t sweep_streams_at_ = 16;
  bool shut_down_ = false;
  bool ending_ = false;                     // end() is running
  bool left_ = false;                       // end() has run
  bool destroyed_ = false;                  // destroy_process_group() was called for this group itself
  std::unique_ptr<Coalescing> coalescing_;  // between start_coalescing() and end_coalescing()
  int64_t at_end_ = 0;                      // the world's hook that drops coalescing_; 0: none
  absl::Duration timeout_ = absl::InfiniteDuration();
  absl::Duration warn_after_ = absl::InfiniteDuration();
  ReduceOp::Order order_;
  uint32_t terms_ = 1;
  std::string name_;
  std::string description_;
};

// The maker of groups in a world whose ranks are not all in this process, in place of threaded ones.
class GroupBackend {
 public:
  virtual std::shared_ptr<ProcessGroup> make_member(RankState& rank, const std::shared_ptr<const Group>& group,
                                                    const GroupOptions& options) = 0;

 protected:
  ~GroupBackend() = default;
};

// The option whose value came of a bad cast: "GroupOptions::rooted has the unknown value 99". Empty: none.
std::string unknown_value(const GroupOptions& options);

// A member as `options` ask for it. Defined above all rooms, as init_process_group() is: collectives/backends.cc.
std::shared_ptr<ProcessGroup> make_group_member(RankState& rank, const std::shared_ptr<const Group>& group,
                                                const GroupOptions& options, CodeSite code);

}  // namespace rankloom::internal

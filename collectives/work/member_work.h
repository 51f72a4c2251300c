#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/work/call_place.h"
#include "collectives/work/close_records.h"
#include "collectives/work/keep_alive.h"
#include "collectives/work/withdrawal.h"
#include "collectives/work/work_state.h"
#include "rankloom/collective_call.h"
#include "world/world_state.h"

namespace rankloom::internal {

class CoalescedWork;
class RanksElsewhere;

// The work of a member's call that meets calls of other members: a wait for it is one for them. The base says what
// becomes of a call whose wait ends early, or whose last handle goes before it is done: it is taken back, and a failure
// is the group's.
class MemberWork : public WorkState, public WaitsFor {
 public:
  absl::Status wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) override;
  absl::Status time_out(absl::Duration timeout, CodeSite code) override;
  std::vector<TensorView> result() override { return {call_.outputs.begin(), call_.outputs.end()}; }
  void dropped() noexcept override;
  bool acts_when_dropped() const override { return true; }
  int64_t seq() const override { return call_.seq; }
  absl::Duration warn_after() const override { return call_.warn_after; }
  // The global ranks that could end a wait, for its own texts, where no lock is held: those of append_ranks(), unless
  // more can be found out.
  virtual std::vector<int> awaited_ranks() const;

  const CollectiveCall& call() const { return call_; }
  // Whether the last handle on a call that keeps its tensors alive went before the call was done.
  bool goes_on_alone() const { return keeps_alive_ && dropped_seq_.load(std::memory_order_relaxed) == seq(); }
  // For a call that is built here.
  CollectiveCall* place() { return &call_; }
  CallMemo* memo() { return &memo_; }

 protected:
  // `timeout_ns`: the call's; Deadline::kNever: none.
  MemberWork(RankState* context, CollectiveCall&& call, int64_t timeout_ns);
  // A place: begin() follows when the call has been built there.
  explicit MemberWork(RankState* context);
  // The call was built in place(). Again, when nobody holds the work that it was before.
  void begin(int64_t timeout_ns) {
    if (begun_) renew();
    begun_ = true;
    owns_record(call_.way.record_id);
    if (memo_.again) return;  // alike in all that follows
    timeout_ns_ = timeout_ns;
    warns_ = call_.warn_after != absl::InfiniteDuration();
    keeps_alive_ = owns_tensors(call_);
    holds_owners(call_.keep_alive != nullptr);
  }

  void release_owners() noexcept override {
    const OwnersEndHere here;
    call_.keep_alive.reset();
  }
  // The call's flight record, which ends with it.
  void close_own_record(int64_t now_ns, bool ok, int64_t started_ns = -1) {
    close_record(*rank_state_, own_record(), now_ns, ok, started_ns);
  }
  void ending(bool ok) override { close_own_record(scheduler()->now_ns(), ok); }
  void overdue(absl::Duration timeout, CodeSite code) override;
  CodeSite call_code() const override { return call_.code; }

  // wait(). `site_of` is wait_site(code), without a virtual call.
  template <typename SiteOf>
  absl::Status wait_as(absl::Duration timeout, bool timeout_is_default, CodeSite code, SiteOf site_of) {
    if (!timeout_is_default || warns_ || object() != 0 || world_ref().foreign()) [[unlikely]]
      return wait_otherwise(timeout, timeout_is_default, code);
    absl::Status waited = wait_simply(site_of(), timeout_ns_, call_.timeout_is_default);
    if (waited.ok()) [[likely]]
      return waited;
    return ended_early(std::move(waited), call_.timeout, code);
  }

  // Takes the call back and ends the work, with `ended` if it is one call; waits for a thread that has its tensors now.
  // Nobody writes into the rank's memory afterwards. False: it was done before, or a device will be through with it
  // later.
  virtual bool take_back(const Withdrawal& why, const absl::Status& ended) = 0;
  // Of a call whose time depends on that of others (CallWay::wait_until_ns), after a wait for `timeout` that ended with
  // `waited`: goes on waiting, and adds to both.
  virtual void wait_longer(absl::Duration* /*timeout*/, CodeSite /*code*/, absl::Status* /*waited*/) {}

  // For texts: "recv from rank 0, tag 3"; `numbered`: "recv seq 1 from rank 0, tag 3".
  virtual std::string what(bool numbered) const = 0;
  // The same of a wait.
  virtual std::string waits_in(CodeSite /*code*/) const { return what(/*numbered=*/false); }
  // "rank 1, group 0, WHAT".
  std::string who(std::string_view what) const;
  // The consequence for texts, if its rank drops the call.
  virtual const char* lost() const { return "the call can never be complete"; }
  // Facts on ranks of other processes; null: all run in this one.
  virtual const RanksElsewhere* elsewhere() const { return nullptr; }
  // Further facts for a Timeout: lines, each after a newline. By threads that hold no lock.
  virtual std::string facts() const { return ""; }
  // The awaited party for texts, if no rank is known.
  virtual const char* otherwise() const { return "any rank"; }

  RankState* const rank_state_;
  CollectiveCall call_;
  CallMemo memo_;             // of a place
  bool keeps_alive_ = false;  // the tensors live as long as the call, which goes on without handles; const once filed

 private:
  friend class CoalescedWork;  // of its parts

  absl::Status wait_otherwise(absl::Duration timeout, bool timeout_is_default, CodeSite code);
  // The rest of a wait that ended with an error.
  absl::Status ended_early(absl::Status waited, absl::Duration timeout, CodeSite code);

  std::atomic<int64_t> dropped_seq_{-1};  // of the last call that goes on, or went on, without handles
  bool begun_ = false;
  bool warns_ = false;  // a wait may be overdue()
  int64_t timeout_ns_ = Deadline::kNever;
};

}  // namespace rankloom::internal

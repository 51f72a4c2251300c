#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "collectives/threaded/mailbox.h"
#include "collectives/threaded/rendezvous.h"
#include "collectives/work/work_state.h"

namespace rankloom::internal {

// The work of what lies between start_coalescing() and end_coalescing(): the collectives as one call, which meets those of the
// other members, and each send and recv as a message of its own. Done when all are.
class CoalescedWork final : public WorkState, public WaitsFor, public std::enable_shared_from_this<CoalescedWork> {
 public:
  CoalescedWork(RankState* context, std::shared_ptr<Rendezvous> rendezvous, std::shared_ptr<Mailbox> mailbox,
                const CollectiveCall& call);
  ~CoalescedWork() override;

  // Once, before any part is filed. `collectives` is null if there are none.
  void watch(std::shared_ptr<CallState> collectives, std::vector<std::shared_ptr<Message>> messages);
  // A part could not be filed, nor will those after it. `filed`: the collectives were.
  void give_up(const absl::Status& status, bool filed);

  absl::Status wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) override;
  std::vector<TensorView> result() override;
  void dropped() noexcept override;
  const char* op() const override { return "coalesced"; }
  std::string_view group() const override;
  int64_t seq() const override { return seq_; }
  // WaitsFor: whoever a part waits for.
  void append_ranks(std::vector<int>* ranks) const override;
  absl::Status explain() const override;
  absl::Duration warn_after() const override { return warn_after_; }

 protected:
  Site wait_site(CodeSite code) const override;
  void overdue(absl::Duration timeout, CodeSite code) override;
  void ending(bool ok) override;
  CodeSite call_code() const override { return code_; }

 private:
  void part_done(const absl::Status& status);
  // Takes back all parts that are not done; false: all were done before.
  bool withdraw(const Withdrawal& why);
  std::string who() const;
  // `who` must outlive the result.
  MemberWait member_wait(std::string_view who, absl::Duration timeout, CodeSite code) const;

  RankState* const context_;
  const std::shared_ptr<Rendezvous> rendezvous_;
  const std::shared_ptr<Mailbox> mailbox_;
  const int64_t seq_;
  const absl::Duration timeout_;
  const bool timeout_is_default_;
  const absl::Duration warn_after_;
  const bool keeps_alive_;
  const CodeSite code_;
  // const after watch()
  std::shared_ptr<CallState> collectives_;
  std::vector<std::shared_ptr<Message>> messages_;

  std::atomic<size_t> left_{0};  // parts that are not done
  mutable ObservedMutex mu_;
  absl::Status first_ ABSL_GUARDED_BY(mu_);  // the first error of a part
};

}  // namespace rankloom::internal

#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "collectives/work/member_work.h"
#include "rankloom/group.h"
#include "sim/sync/observed_mutex.h"

namespace rankloom::internal {

// The work of what lies between start_coalescing() and end_coalescing(): the collectives as one call, which meets those
// of the other members, and each send and recv as a message of its own. Done when all these parts are.
class CoalescedWork : public MemberWork, public std::enable_shared_from_this<CoalescedWork> {
 public:
  // Takes the owners of the tensors from `call`, whose parts follow.
  CoalescedWork(RankState* context, std::shared_ptr<const Group> group, CollectiveCall& call, int64_t timeout_ns);
  ~CoalescedWork() override;

  // Once, before any part is filed; at least one. `collectives` is null if there are none.
  void watch(std::shared_ptr<MemberWork> collectives, std::vector<std::shared_ptr<MemberWork>> messages);
  // Whether the whole is over once those parts are of which `ended` says so.
  bool ends_with(absl::FunctionRef<bool(const WorkState&)> ended) const;
  // A part could not be filed, nor will those after it. `filed`: the collectives were.
  void give_up(const absl::Status& status, bool filed);

  std::vector<TensorView> result() override;
  const char* op() const override { return "coalesced"; }
  std::string_view group() const override { return group_->name(); }
  const Group* open_group() const override { return group_.get(); }
  // WaitsFor: the ranks that a part waits for.
  void append_ranks(std::vector<int>* ranks) const override;
  void look_at_parts() const;
  std::vector<int> awaited_ranks() const override;
  absl::Status explain() const override;

 protected:
  Site wait_site(CodeSite code) const override;
  void ending(bool ok) override;
  // All parts that are not done.
  bool take_back(const Withdrawal& why, const absl::Status& ended) override;
  std::string what(bool numbered) const override;
  const RanksElsewhere* elsewhere() const override;
  void await_group_failure() const override;
  const std::vector<std::shared_ptr<MemberWork>>& messages() const { return messages_; }
  int source_of_message(size_t i) const override { return i < messages_.size() ? messages_[i]->source() : -1; }

 private:
  void part_done(const absl::Status& status);

  const std::shared_ptr<const Group> group_;
  // const after watch()
  std::shared_ptr<MemberWork> collectives_;
  std::vector<std::shared_ptr<MemberWork>> messages_;

  std::atomic<size_t> left_{0};  // parts that are not done
  mutable ObservedMutex mu_;
  absl::Status first_ ABSL_GUARDED_BY(mu_);  // the first error of a part
};

}  // namespace rankloom::internal

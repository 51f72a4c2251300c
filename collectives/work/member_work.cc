#include "collectives/work/member_work.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/work/wait_text.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/prefetch.h"
#include "sim/base/text.h"

namespace rankloom::internal {

// Of a work that a task waits for, all is fetched ahead that lies before its WaitsFor.
static_assert(sizeof(WorkState) <= kBeforeWaitsFor);

MemberWork::MemberWork(RankState* context)
    : WorkState(&context->world().scheduler(), context->rank()), rank_state_(context) {}

MemberWork::MemberWork(RankState* context, CollectiveCall&& call, int64_t timeout_ns)
    : WorkState(&context->world().scheduler(), context->rank()), rank_state_(context), call_(std::move(call)) {
  begin(timeout_ns);
}

std::string MemberWork::who(std::string_view what) const {
  return absl::StrCat("rank ", rank(), ", group ", sv(group()), ", ", sv(what));
}

std::vector<int> MemberWork::awaited_ranks() const {
  std::vector<int> ranks;
  append_ranks(&ranks);
  return ranks;
}

absl::Status MemberWork::wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) {
  return wait_as(timeout, timeout_is_default, code, [&] { return wait_site(code); });
}

absl::Status MemberWork::wait_otherwise(absl::Duration timeout, bool timeout_is_default, CodeSite code) {
  if (settled("wait", code)) [[unlikely]]
    return status();
  const CallScope call(world_ref(), [&] { return called("wait", code); });  // until the call is taken back
  if (timeout_is_default) {
    timeout = call_.timeout;
    timeout_is_default = call_.timeout_is_default;
  }
  absl::Status waited = WorkState::wait(timeout, timeout_is_default, code);
  if (waited.ok()) return waited;
  return ended_early(std::move(waited), timeout, code);
}

absl::Status MemberWork::time_out(absl::Duration timeout, CodeSite code) {
  const CallScope call(world_ref(), [&] { return called("wait", code); });
  if (is_over()) return status();
  return ended_early(make_error(ErrorKind::kTimeout, ""), timeout, code);
}

// Not inlined: a waiting rank's stack is no larger for what few waits need.
[[gnu::noinline]] absl::Status MemberWork::ended_early(absl::Status waited, absl::Duration timeout, CodeSite code) {
  if (call_.way.wait_until_ns > 0) wait_longer(&timeout, code, &waited);
  if (waited = ended_as(std::move(waited)); waited.ok() || is_completed()) return waited;
  if (error_kind(waited) == ErrorKind::kTimeout) {
    waited = timeout_error({.who = who(waits_in(code)),
                            .world = rank_state_->world(),
                            .awaited = awaited_ranks(),
                            .site = wait_site(code),
                            .timeout = timeout,
                            .otherwise = otherwise(),
                            .elsewhere = elsewhere(),
                            .facts = facts()});
  }
  if (take_back(Withdrawal::of_wait(waited, rank_state_->rank()), waited)) {
    point_of_caller(wait_site(code));
    return waited;
  }
  return ended_as(std::move(waited));
}

void MemberWork::overdue(absl::Duration timeout, CodeSite code) {
  warn_of({.who = who(waits_in(code)),
           .world = rank_state_->world(),
           .awaited = awaited_ranks(),
           .site = wait_site(code),
           .timeout = timeout,
           .otherwise = otherwise()},
          call_.warn_after);
}

void MemberWork::dropped() noexcept {
  if (keeps_alive_) return dropped_seq_.store(seq(), std::memory_order_relaxed);
  const Withdrawal why = withdrawal_of_drop(*rank_state_, who(what(/*numbered=*/false)), what(/*numbered=*/true),
                                            lost(), wait_site(call_.code));
  const bool aborted = why.why == Withdrawal::Why::kAbort;
  if (!take_back(why, aborted ? why.cause : make_error(ErrorKind::kAborted, "the work was dropped"))) return;
  if (why.why == Withdrawal::Why::kFailure)
    rank_state_->world().note(WorldState::NoteKind::kLeftover, message_of(why.cause));
}

}  // namespace rankloom::internal

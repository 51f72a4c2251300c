#include "collectives/streams/stream_call.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/group/group_front.h"
#include "collectives/ops/op_table.h"
#include "collectives/work/completion.h"
#include "collectives/work/keep_alive.h"
#include "rankloom/error.h"
#include "sim/base/blame.h"
#include "sim/base/dist_error.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {

namespace {

// Ends the rank's side of a call as the call ends.
struct EndsOuter final : Dependant {
  EndsOuter(std::shared_ptr<CallOnStream> outer, std::function<void(const absl::Status&)> fail)
      : outer(std::move(outer)), fail(std::move(fail)) {}
  void ended(const absl::Status& status) override {
    if (!status.ok() && fail) fail(status);
    outer->end(status);
  }
  const std::shared_ptr<CallOnStream> outer;
  const std::function<void(const absl::Status&)> fail;
};

}  // namespace

CallOnStream::CallOnStream(RankState& rank, std::string group, const CollectiveCall& call,
                           std::shared_ptr<const void> hold, std::shared_ptr<WantedStream> stream)
    : StreamWork(&rank.world().scheduler(), rank.rank(), op_row(call.op).name, std::move(group), call.seq,
                 std::vector<TensorView>(call.outputs.begin(), call.outputs.end())),
      rank_(rank),
      hold_(std::move(hold)),
      stream_(std::move(stream)),
      owner_(call.keep_alive) {
  holds_owners(owner_ != nullptr);
}

void CallOnStream::release_owners() noexcept {
  const OwnersEndHere here;
  owner_.reset();
}

HeldWork::HeldWork(Work work, const std::shared_ptr<WantedStream>& by) : state_(WorkState::shared(work)) {
  if (state_ != nullptr) whole_ = state_->whole();
  call_ = dynamic_cast<CallOnStream*>(whole_ != nullptr ? whole_.get() : state_.get());
  if (call_ != nullptr) {
    call_->stream_waits();
    stream_ = call_->stream()->want(by);
  } else {
    work_ = std::move(work);
  }
}

void HeldWork::give_up() noexcept {
  if (!held_.exchange(false)) return;
  work_ = Work();
  if (call_ != nullptr) call_->stream_waits_no_more();
  stream_ = nullptr;
}

absl::Status CallOnStream::wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) {
  if (timeout_is_default) return StreamWork::wait(timeout, timeout_is_default, code);
  if (settled("wait", code)) [[unlikely]]
    return status();
  const CallScope call(world_ref(), [&] { return called("wait", code); });  // until the call is taken back
  absl::Status waited = StreamWork::wait(timeout, timeout_is_default, code);
  if (is_over() || error_kind(waited) != ErrorKind::kTimeout) return waited;
  const std::shared_ptr<HeldByStream> held = held_.lock();
  return held != nullptr ? held->time_out(timeout, code) : waited;
}

void CallOnStream::dropped() noexcept {
  dropped_.store(true);
  if (waits_.load() == 0) give_up_if_unwinding();
  let_stream_go();
  owner_.reset();  // the call itself has another
}

void CallOnStream::stream_waits_no_more() noexcept {
  if (waits_.fetch_sub(1) == 1 && dropped_.load() && !is_over()) give_up_if_unwinding();
}

void CallOnStream::give_up_if_unwinding() noexcept {
  const WorldPin alive(world_ref());
  if (!alive || !rank_.unwinding()) return;
  if (const std::shared_ptr<HeldByStream> held = held_.lock(); held != nullptr) held->give_up();
}

void CallOnStream::end(const absl::Status& status) {
  complete(status);
  let_stream_go();
}

void CallOnStream::let_stream_go() {
  if (holds_.exchange(false)) Completion::drop(std::move(hold_));
}

StreamCall::StreamCall(RankState& rank, ProcessGroup& group, CollectiveCall&& call, std::string stream, Fail fail)
    : rank_(rank),
      world_(&rank.world().scheduler()),
      group_(&group),
      held_(group.weak_from_this().lock()),
      stream_(std::move(stream)),
      fail_(std::move(fail)),
      keeps_alive_(owns_tensors(call)),
      call_(std::move(call)),
      text_([this] {
        const Site site{.what = op_row(call_.op).name, .code = call_.code, .seq = call_.seq};
        return absl::StrCat(site_text(site), site_place(site));
      }()) {
  call_.way.gate = &gate_;
}

std::shared_ptr<StreamCall> StreamCall::make(RankState& rank, ProcessGroup& group, CollectiveCall&& call,
                                             std::string name, std::shared_ptr<const void> hold,
                                             std::shared_ptr<WantedStream> stream, Fail fail) {
  const std::shared_ptr<StreamCall> made(
      new StreamCall(rank, group, std::move(call), std::move(name), std::move(fail)));
  made->outer_ = std::make_shared<CallOnStream>(rank, std::string(group.group()->name()), made->call_, std::move(hold),
                                                std::move(stream));
  made->outer_->held_as(made);
  return made;
}

absl::Status StreamCall::run(const absl::Status& cause) {
  if (!cause.ok()) {
    if (gate_.close(/*waits=*/false) != IssueGate::Closed::kOutside) return cause;
    fail_group_if_numbered(cause);
    end(cause);
    return cause;
  }
  if (!gate_.enter()) return outer_->status();
  const CodeSite code = call_.code;
  const absl::Duration timeout = call_.timeout;
  const bool timeout_is_default = call_.timeout_is_default;
  std::shared_ptr<WorkState> inner;
  absl::Status ended = caught(outer_->op(), code, [&]() -> absl::Status {
    absl::StatusOr<Work> issued = group_->execute(std::move(call_));
    if (!issued.ok()) return issued.status();
    inner = WorkState::shared(*issued);
    inner_ = *std::move(issued);
    return absl::OkStatus();
  });
  bool mine = false;
  if (inner == nullptr) {
    if (!gate_.leave_for_good()) return ended;  // another thread closed the gate, and looks at the handle
    mine = true;
    // Other errors are told to the group where they arise.
    if (error_kind(ended) == ErrorKind::kInvalidArgument) fail_group_if_numbered(ended);
  } else if (gate_.leave()) {
    ended = caught(outer_->op(), code, [&] { return inner->wait(timeout, timeout_is_default, code); });
    if (!ended.ok()) inner->learned_of_failure();
    if (gate_.close(/*waits=*/false) != IssueGate::Closed::kOutside) return ended;  // the handle is taken
    mine = true;
  }
  const Work last = std::move(inner_);
  // A rank that sees the call done may use its outputs again: not only once the last handle has gone.
  if (inner != nullptr && inner->is_over()) inner->learned_at_no_point();
  if (mine) end(ended);
  return ended;
}

void StreamCall::give_up() noexcept {
  if (keeps_alive_) return;
  const WorldPin alive(world_);
  if (!alive) return;
  const IssueGate::Closed closed = close_gate();
  if (closed == IssueGate::Closed::kBefore) return;
  if (closed == IssueGate::Closed::kOutside && WorkState::of(inner_) != nullptr) {
    const std::shared_ptr<WorkState> inner = WorkState::shared(inner_);
    inner_ = Work();
    end(inner->is_over() ? inner->ended_as() : make_error(ErrorKind::kAborted, "the work was dropped"));
    return;
  }
  miss();
  end(make_error(ErrorKind::kAborted, "the work was dropped"));
}

absl::Status StreamCall::time_out(absl::Duration timeout, CodeSite code) {
  const IssueGate::Closed closed = close_gate();
  if (closed == IssueGate::Closed::kBefore) return outer_->await(absl::InfiniteDuration(), false, code);
  if (closed == IssueGate::Closed::kOutside && WorkState::of(inner_) != nullptr) {
    const Work last = std::move(inner_);
    const std::shared_ptr<WorkState> inner = WorkState::shared(last);
    // The stream goes on once the inner work has ended, and the outer one ends no later.
    inner->when_done(std::make_unique<EndsOuter>(outer_, fail_));
    absl::Status ended = caught(outer_->op(), code, [&] { return inner->time_out(timeout, code); });
    if (inner->is_over()) inner->learned_at_no_point();
    if (!outer_->is_over()) end(ended);
    return outer_->status();
  }
  const absl::Status ended =
      make_error(ErrorKind::kTimeout, "rank ", rank_.rank(), ", group ", sv(group_->group()->name()), ", ", text_,
                 ": timed out after ", absl::FormatDuration(timeout), " in ", stream_,
                 gate_.entered() ? ", which was about to make the call" : ", which had not come to the call",
                 site_place(Site{.code = code}));
  end(ended);
  if (!rank_.world().scheduler().aborted()) group_->abort(message_of(ended), /*code=*/{});
  return ended;
}

void StreamCall::fail_group_if_numbered(const absl::Status& why) {
  if (outer_->seq() < 0 || rank_.world().scheduler().aborted()) return;
  group_->abort(message_of(why), /*code=*/{});
}

void StreamCall::miss() {
  WorldState& world = rank_.world();
  if (world.scheduler().aborted()) return;
  std::string why = absl::StrCat(stream_, " was dropped with ", text_,
                                 " in it, want synchronize() of the stream before, or keep_alive");
  if (rank_.unwinding() && !gate_.entered()) {
    // The rank may end by the exception, and the others hear of that.
    if (const GroupFront& front = GroupFront::of(*group_); front.can_lose()) {
      const absl::Status cause =
          make_error(ErrorKind::kRankFailed, "group ", sv(group_->group()->name()), ": rank ", rank_.rank(),
                     " dropped ", stream_, " with ", text_,
                     " in it while an exception unwound, want synchronize() of the stream before, keep_alive, or the "
                     "rank to end");
      return front.lose(call_, blamed_on(rank_.rank(), cause));
    }
    rank_.when_caught([group = held_, why = std::move(why)] {
      if (group != nullptr) group->abort(why, /*code=*/{});
    });
    return;
  }
  group_->abort(why, /*code=*/{});
  world.note(WorldState::NoteKind::kLeftover,
             absl::StrCat("rank ", rank_.rank(), ", group ", sv(group_->group()->name()), ": ", why));
}

}  // namespace rankloom::internal

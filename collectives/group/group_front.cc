#include "collectives/group/group_front.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/ops/op_table.h"
#include "collectives/work/close_records.h"
#include "collectives/work/keep_alive.h"
#include "collectives/work/work_state.h"
#include "rankloom/error.h"
#include "rankloom/stream.h"
#include "sim/base/dist_error.h"
#include "sim/base/library_scope.h"
#include "sim/base/ranks_text.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "sim/scheduler/deadlock_report.h"
#include "world/group_access.h"

namespace rankloom::internal {

GroupFront::GroupFront(ProcessGroup* handle, RankState* context, std::shared_ptr<const Group> group, int rank)
    : handle_(*handle),
      rank_state_(context),
      own_rank_(context != nullptr ? context->rank() : -1),
      scheduler_(context != nullptr ? &context->world().scheduler() : nullptr),
      world_(scheduler_),
      group_(std::move(group)),
      rank_(rank),
      size_(group_->size()),
      name_(group_->name()) {
  if (context == nullptr) return;
  timeout_ = context->world().options().timeout;
  warn_after_ = context->world().options().warn_after;
}

GroupFront::~GroupFront() {
  // The world has its own groups until all members have left, this one by another handle perhaps.
  const bool leaves =
      rank_state_ != nullptr && !left_ && !(GroupAccess::of_world(*group_) && !GroupAccess::any_left(*group_));
  if (!leaves && at_end_ == 0) [[likely]]
    return;
  const WorldPin alive(world_);
  if (!alive) return;
  absl::AnyInvocable<void()> leave = [rank = rank_state_, hook = at_end_, group = leaves ? group_ : nullptr] {
    if (hook != 0) rank->world().forget_at_end(hook);
    if (group != nullptr) rank->recorder().left(group);
  };
  run_for_fibers(world_, own_rank_, "group", std::move(leave));
}

void GroupFront::check_duration(const char* op, const char* what, absl::Duration duration, CodeSite code) const {
  if (duration >= absl::ZeroDuration()) return;
  refuse({.rank = handle_.global_rank(), .group = name_, .op = op}, ErrorKind::kInvalidArgument, "rank ",
         handle_.global_rank(), ", group ", handle_.group_name(), ", ", op, ": ", what, " is ",
         absl::FormatDuration(duration), ", want 0 or more", site_place(Site{.code = code}));
}

std::string GroupFront::who(const CollectiveCall& call) const {
  return absl::StrCat("rank ", handle_.global_rank(), ", group ",
                      group_->name().empty() ? handle_.group_name() : group_->name(), ", ", op_row(call.op).name,
                      call.seq >= 0 ? absl::StrCat(" seq ", call.seq) : "", ": ");
}

CalledHandle GroupFront::called(const char* op, CodeSite code) const {
  return {
      .rank = handle_.global_rank(), .handle = absl::StrCat("group ", handle_.group_name()), .op = op, .code = code};
}

void GroupFront::fail(const CollectiveCall& call, const absl::Status& status) const {
  const bool argument = error_kind(status) == ErrorKind::kInvalidArgument;
  if (!argument) retrieved_error(world_, handle_.global_rank(), status);  // the group may have failed before
  throw_dist_error(
      argument ? make_error(ErrorKind::kInvalidArgument, located(message_of(status), call.code)) : status,
      {.rank = handle_.global_rank(), .group = group_->name(), .op = op_row(call.op).name, .seq = call.seq});
}

void GroupFront::set_own_times(CollectiveCall& call, const CallOptions& options) const {
  call.timeout = options.timeout.value_or(timeout_);
  call.timeout_is_default = !options.timeout.has_value();
  call.warn_after = options.warn_after.value_or(warn_after_);
  const bool wrong = call.timeout < absl::ZeroDuration();
  if (!wrong && call.warn_after >= absl::ZeroDuration()) [[likely]]
    return;
  fail(call, invalid_argument(who(call), wrong ? "timeout is " : "warn_after is ",
                              absl::FormatDuration(wrong ? call.timeout : call.warn_after), ", want 0 or more"));
}

void GroupFront::need_own_rank(const char* op, CodeSite code) const {
  const Task* const task = Task::current();
  const int own = own_rank_;
  uses_memory_of(world_, own);
  if (scheduler_ == nullptr || task == nullptr || !world_.has(task) || world_.ended()) return;
  const int by = task->info.rank;
  if (by == own) return;
  refuse({.rank = by, .group = name_, .op = op}, ErrorKind::kInvalidArgument, "rank ", own, ", group ", name_, ", ", op,
         ": the handle of rank ", own, " was used by rank ", by, ", want the rank's own handle",
         site_place(Site{.code = code}));
}

void GroupFront::looked_at() const { uses_memory_of(world_, own_rank_); }

void GroupFront::close_outputs(absl::FunctionRef<bool(const WorkState&)> ending) const {
  // The list is memory of this handle's rank, which another one may abort the group by.
  uses_memory_of(world_, own_rank_);
  const Group* const mine = handle_.group().get();
  rank_state_->open_outputs().remove_if([&](const OpenCall& call) {
    if (call.open_group() != mine) return false;
    const auto& state = static_cast<const WorkState&>(call);
    return state.is_over() || ending(state);
  });
}

int GroupFront::calling_rank() const {
  const Task* const task = Task::current();
  return task != nullptr && task->scheduler == scheduler_ ? task->info.rank : own_rank_;
}

Work GroupFront::submit(CollectiveCall& call, const CallOptions& options, CodeSite code, CallMemo* memo) {
  const OpRow& row = op_row(call.op);
  const CallScope scope = enter(row.name, code);
  call.code = code;
  const bool numbered = row.is_collective() && (call.op != OpType::kCoalesced || !only_messages(call));
  if (scheduler_ != nullptr && rank_state_ != nullptr) {
    const int own = rank_state_->rank();
    uses_memory_of(world_, own);
    // Before a block of coalesced calls takes the call for one of its own.
    if (const Task* const task = Task::current(); task->scheduler == scheduler_ && task->info.rank != own)
        [[unlikely]] {
      if (memo != nullptr) *memo = {};
      call.seq = numbered ? seq_ + 1 : -1;
      fail(call, invalid_argument(who(call), "the handle of rank ", own, " was used by rank ", task->info.rank,
                                  ", want the rank's own handle"));
    }
  }
  call.seq = numbered ? next_number() : -1;
  if (shut_down_ || coalescing_ != nullptr) [[unlikely]] {
    if (shut_down_) refuse_shut_down(call, memo);
    if (memo != nullptr) *memo = {};  // the call does not stay
    return gather_call(call, options, code);
  }
  if (scheduler_ != nullptr) {
    const Site site{.what = row.name, .code = code, .group = group_->name(), .seq = call.seq, .detail = call.label};
    scheduler_->point_before_call(site);
    if (scheduler_->aborted()) [[unlikely]]
      fail(call, scheduler_->abort_cause());
    // Another task of the rank, a callback, may have made a call meanwhile, or have left the group.
    if (numbered) call.seq = next_number();
    if (shut_down_) [[unlikely]]
      refuse_shut_down(call, memo);
  }
  if (memo == nullptr || !memo->again || memo->terms != terms_) prepare(call, options, memo);
  const int64_t number = call.seq;
  if (numbered) {
    take(number);
  } else if (call.op != OpType::kCoalesced) {
    call.way.message_seq = ++p2p_seq_;
  }
  record(call, memo);
  const int64_t record_id = call.way.record_id;
  absl::StatusOr<Work> work =
      call.stream == nullptr ? handle_.execute(std::move(call)) : issue_on_stream(std::move(call));
  if (!work.ok()) [[unlikely]]
    end_refused(row.op, code, number, record_id, work.status());
  if (record_id >= 0) {
    WorkState* const state = WorkState::of(*work);
    if (state == nullptr || state->own_record() != record_id) [[unlikely]]
      close_record(record_id, state);
  }
  return *std::move(work);
}

[[gnu::noinline]] absl::StatusOr<Work> GroupFront::issue_on_stream(CollectiveCall&& call) {
  Stream* const stream = call.stream;
  try {
    return stream->issue(handle_, std::move(call));
  } catch (const DistError& error) {  // one of another rank, or of a world that has ended
    return error.status();
  }
}

void GroupFront::queued_on_stream(const std::shared_ptr<WorkState>& work) {
  if (on_streams_.size() >= sweep_streams_at_) {
    std::erase_if(on_streams_, [](const std::weak_ptr<WorkState>& weak) {
      const std::shared_ptr<WorkState> kept = weak.lock();
      return kept == nullptr || kept->is_over();
    });
    sweep_streams_at_ = std::max<size_t>(16, 2 * on_streams_.size());
  }
  on_streams_.push_back(work);
}

absl::Status GroupFront::await_streams(CodeSite code) {
  absl::Status first;
  for (const std::weak_ptr<WorkState>& weak : std::exchange(on_streams_, {})) {
    const std::shared_ptr<WorkState> work = weak.lock();
    if (work == nullptr || work->is_over()) continue;
    const absl::Status ended = work->await(absl::InfiniteDuration(), /*timeout_is_default=*/true, code);
    if (first.ok()) first = ended;
  }
  retrieved_error(world_, handle_.global_rank(), first);
  return first;
}

[[gnu::always_inline]] inline void GroupFront::record_in_world(CollectiveCall& call, CallMemo* memo) {
  const bool message = call.seq < 0;
  const FlightNumbers numbers = {.seq = message ? p2p_seq_ : call.seq,
                                 .other_seq = message ? seq_ : p2p_seq_,
                                 .op_id = ++op_id_,
                                 .created_ns = scheduler_->now_ns()};
  int64_t id = -1;
  if (memo != nullptr && memo->again) [[likely]]
    id = rank_state_->recorder().open_again(memo->facts, call.code, numbers);
  if (id < 0) id = record_anew(call, numbers, memo);
  call.way.record_id = id;
  if (scheduler_->prefetches()) Task::current()->next_write = rank_state_->recorder().next_place();
}

void GroupFront::record(CollectiveCall& call, CallMemo* memo) {
  if (rank_state_ != nullptr && scheduler_ != nullptr) record_in_world(call, memo);  // else outside a world
}

// submit() without what the call before has settled.
Work GroupFront::submit_again(const CallPlace& place, const CallOptions& options, CodeSite code) {
  CollectiveCall& call = *place.call;
  const Task* const task = Task::current();
  if (!world_.has(task) || task->info.rank != rank_state_->rank() || shut_down_ || coalescing_ != nullptr) [[unlikely]]
    return submit(call, options, code, place.memo);
  const LibraryScope library;
  const OpRow& row = op_row(call.op);
  const bool numbered = row.is_collective();
  call.code = code;
  call.seq = numbered ? next_number() : -1;
  const Site site{.what = row.name, .code = code, .group = group_->name(), .seq = call.seq};
  scheduler_->point_before_call(site);
  if (scheduler_->aborted()) [[unlikely]]
    fail(call, scheduler_->abort_cause());
  if (shut_down_) [[unlikely]]
    refuse_shut_down(call, place.memo);
  if (place.memo->terms != terms_) [[unlikely]]
    prepare(call, options, place.memo);
  const int64_t number = numbered ? next_number() : -1;
  if (numbered) {
    call.seq = number;
    take(number);
  } else {
    call.way.message_seq = ++p2p_seq_;
  }
  record_in_world(call, place.memo);
  const int64_t record_id = call.way.record_id;
  Work work;
  if (absl::Status executed = places_->execute_again(place, &work); !executed.ok()) [[unlikely]]
    end_refused(row.op, code, number, record_id, executed);
  return work;
}

void GroupFront::prepare(CollectiveCall& call, const CallOptions& options, CallMemo* memo) {
  call.order = options.order.value_or(order_);
  set_times(call, options);
  if (absl::Status checked = op_row(call.op).check(call, rank_, size_); !checked.ok()) [[unlikely]] {
    refuse_arguments(call, checked);
  }
  if (options.keep_alive != nullptr) {
    call.keep_alive = rank_state_ != nullptr ? owned_by_rank(options.keep_alive, *rank_state_) : options.keep_alive;
  }
  call.stream = options.stream;
  if (memo == nullptr) return;
  memo->again = false;
  memo->terms = memo->plain ? terms_ : 0;
}

void GroupFront::refuse_arguments(const CollectiveCall& call, const absl::Status& checked) const {
  constexpr int kMostListed = 1 << 20;  // a fake group has up to 2^31 - 1 members
  std::string text = absl::StrCat(who(call), checked.message());
  // A rank of the world where one of the group is wanted.
  if ((call.root >= size_ || call.peer >= size_) && size_ <= kMostListed) {
    std::vector<int> ranks;
    bool same = true;
    for (int rank = 0; rank < size_; ++rank) {
      ranks.push_back(group_->global_rank(rank));
      same = same && ranks.back() == rank;
    }
    std::sort(ranks.begin(), ranks.end());
    if (!same) absl::StrAppend(&text, ", a rank in the group, which holds ranks ", rank_ranges(ranks), " of the world");
  }
  fail(call, make_error(error_kind(checked), text));
}

// Not inlined, as what follows.
[[gnu::noinline]] void GroupFront::close_record(int64_t record_id, WorkState* work) {
  if (work == nullptr || work->is_over()) {
    internal::close_record(*rank_state_, record_id, scheduler_->now_ns(), work == nullptr || work->ended_well());
  } else {
    // A work that goes without an end never will have one: the call has failed.
    work->when_done(std::make_unique<CloseRecords>(rank_state_, world_, std::vector<int64_t>{record_id},
                                                   CloseRecords::NeverEnded::kFailed),
                    /*apart=*/true);
  }
}

// Not inlined: the call that it makes would take hundreds of bytes of each waiting rank's stack.
[[gnu::noinline]] void GroupFront::end_refused(OpType op, CodeSite code, int64_t number, int64_t record_id,
                                               const absl::Status& status) {
  CollectiveCall failed;  // the call itself was moved away
  failed.op = op;
  failed.code = code;
  failed.seq = number;
  // The call did not happen: the next one takes its number.
  if (number >= 0 && error_kind(status) == ErrorKind::kInvalidArgument) give_back(number);
  if (record_id >= 0) internal::close_record(*rank_state_, record_id, scheduler_->now_ns(), /*ok=*/false);
  fail(failed, status);
}

void GroupFront::give_back(int64_t number) {
  given_back_.insert(std::upper_bound(given_back_.begin(), given_back_.end(), number), number);
  for (; !given_back_.empty() && given_back_.back() == seq_; --seq_) given_back_.pop_back();
}

[[gnu::noinline]] void GroupFront::refuse_shut_down(const CollectiveCall& call, CallMemo* memo) const {
  if (memo != nullptr) *memo = {};  // the call does not stay
  fail(call, make_error(ErrorKind::kAborted, who(call), "the group was shut down, want no call after shutdown()",
                        site_place(Site{.code = call.code})));
}

[[gnu::noinline]] int64_t GroupFront::record_anew(const CollectiveCall& call, const FlightNumbers& numbers,
                                                  CallMemo* memo) {
  // For searches, which compare these; the records may have lost the call by then.
  if (numbers.op_id == 1 && rank_state_->world().keeps_all_groups()) rank_state_->calls_group(group_->name());
  const int64_t timeout_ns = nanoseconds(call.timeout);
  const OpRow& row = op_row(call.op);
  const auto fill = [&](FlightFacts& entry) {
    entry.group = group_.get();
    entry.op = row.name;
    entry.recorder_name = row.recorder_name;
    entry.is_p2p = call.seq < 0;
    entry.code = call.code;
    entry.root = call.root;
    entry.peer = call.peer;
    entry.tag = call.tag;
    entry.timeout_ns = timeout_ns == Deadline::kNever ? -1 : timeout_ns;
    entry.inputs = static_cast<uint32_t>(call.inputs.size());
    entry.outputs = static_cast<uint32_t>(call.outputs.size());
    entry.dtype = 0;
    for (const TensorList* list : {&call.inputs, &call.outputs}) {
      for (const TensorView& tensor : *list) {
        if (entry.shapes.size() == 0) entry.dtype = static_cast<uint8_t>(tensor.dtype());
        entry.shapes.add(tensor.sizes().data(), tensor.sizes().size());
      }
    }
    if (call.in_splits.empty() && call.out_splits.empty()) return;
    for (const std::vector<int64_t>* splits : {&call.in_splits.get(), &call.out_splits.get()}) {
      entry.shapes.add(splits->data(), splits->size());
    }
  };
  return rank_state_->recorder().open(numbers, fill, memo != nullptr ? &memo->facts : nullptr);
}

}  // namespace rankloom::internal

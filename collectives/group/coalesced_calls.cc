// The front between start_coalescing() and end_coalescing(): calls are checked and recorded one by one, and issued as
// one.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/group/group_front.h"
#include "collectives/ops/op_table.h"
#include "collectives/work/close_records.h"
#include "collectives/work/stream_work.h"
#include "collectives/work/work_state.h"
#include "rankloom/error.h"
#include "rankloom/process_group.h"
#include "rankloom/world.h"
#include "sim/base/dist_error.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

void ProcessGroup::start_coalescing(CodeSite code) {
  CallScope::check(front_->world_, [&] { return front_->called("start_coalescing", code); });
  CallScope::check_thread(front_->world_, [&] { return front_->called("start_coalescing", code); });
  front_->need_own_rank("start_coalescing", code);
  if (front_->coalescing_ != nullptr) {
    refuse({.rank = global_rank(), .group = front_->name_, .op = "start_coalescing"}, ErrorKind::kInvalidArgument,
           "rank ", global_rank(), ", group ", group_name(), ", start_coalescing: it was called before",
           site_place(Site{.code = front_->coalescing_->begun}), ", want end_coalescing() between",
           site_place(Site{.code = code}));
  }
  front_->coalescing_ = std::make_unique<internal::Coalescing>();
  front_->coalescing_->begun = code;
  front_->drop_at_end();
}

Work ProcessGroup::end_coalescing(const CallOptions& options, CodeSite code) {
  CallScope::check(front_->world_, [&] { return front_->called("end_coalescing", code); });
  CallScope::check_thread(front_->world_, [&] { return front_->called("end_coalescing", code); });
  front_->need_own_rank("end_coalescing", code);
  if (front_->coalescing_ == nullptr) {
    refuse({.rank = global_rank(), .group = front_->name_, .op = "end_coalescing"}, ErrorKind::kInvalidArgument,
           "rank ", global_rank(), ", group ", group_name(), ", end_coalescing: want start_coalescing() before it",
           site_place(Site{.code = code}));
  }
  const std::unique_ptr<internal::Coalescing> gathered = std::exchange(front_->coalescing_, nullptr);
  if (gathered->calls.empty()) return Work();
  CallOptions all = options;
  if (!all.timeout.has_value()) all.timeout = gathered->timeout;
  // A wait for a part, as a shutdown's for a message, takes no longer and no shorter than one for the whole.
  for (CollectiveCall& part : gathered->calls) {
    part.timeout = all.timeout.value_or(front_->timeout_);
    part.timeout_is_default = !all.timeout.has_value();
  }
  CollectiveCall call;
  call.op = OpType::kCoalesced;
  call.parts = std::move(gathered->calls);
  // An owner that is given for the whole stands for all parts.
  call.owned_in_part = gathered->owned_in_part && options.keep_alive == nullptr;
  if (!gathered->keep_alive.empty()) {
    if (options.keep_alive != nullptr) gathered->keep_alive.push_back(options.keep_alive);
    all.keep_alive = std::make_shared<std::vector<std::shared_ptr<const void>>>(std::move(gathered->keep_alive));
  }
  std::vector<int64_t> records;  // those of sends and recvs may be closed before
  for (const CollectiveCall& part : call.parts) records.push_back(part.way.record_id);
  const std::vector<std::shared_ptr<internal::PartWork>> parts = std::move(gathered->parts);
  const auto end_now = [&](const absl::Status& status) {
    if (front_->rank_state_ != nullptr)
      internal::CloseRecords(front_->rank_state_, front_->world_, records).ended(status);
    for (const std::shared_ptr<internal::PartWork>& part : parts) part->complete(status);
  };
  Work whole;
  try {
    whole = front_->submit(call, all, code);
  } catch (...) {
    const std::string who = absl::StrCat("rank ", global_rank(), ", group ", front_->name_, ", coalesced");
    end_now(internal::caught(who, code, []() -> absl::Status { throw; }));
    throw;
  }
  WorkState* const state = WorkState::of(whole);
  if (state == nullptr) {
    end_now(absl::OkStatus());
    return whole;
  }
  for (const std::shared_ptr<internal::PartWork>& part : parts) part->issued(whole);
  if (front_->rank_state_ != nullptr)
    state->when_done(std::make_unique<internal::CloseRecords>(front_->rank_state_, front_->world_, std::move(records)));
  for (const std::shared_ptr<internal::PartWork>& part : parts)
    state->when_done(internal::tell(std::weak_ptr(part), &WorkState::complete_with_another));
  return whole;
}

namespace internal {

Work GroupFront::gather_call(CollectiveCall& call, const CallOptions& options, CodeSite code) {
  Coalescing& gathered = *coalescing_;
  call.code = code;
  const OpRow& row = op_row(call.op);
  call.order = options.order.value_or(order_);
  set_times(call, options);
  absl::Status checked = row.check(call, rank_, size_);
  if (checked.ok() && !can_be_coalesced(call.op)) {
    checked = invalid_argument("it cannot be coalesced, want end_coalescing() first");
  }
  if (!checked.ok()) refuse_arguments(call, checked);
  if (options.timeout.has_value())
    gathered.timeout = std::min(gathered.timeout.value_or(absl::InfiniteDuration()), *options.timeout);
  if (options.keep_alive != nullptr) {
    gathered.keep_alive.push_back(options.keep_alive);
  } else if (!call.inputs.empty() || !call.outputs.empty()) {
    gathered.owned_in_part = true;
  }
  if (row.is_collective()) {
    gathered.collectives = true;
    call.seq = next_number();
  } else {
    if (gathered.messages++ == 0) ++p2p_seq_;
    call.way.message_seq = p2p_seq_;
  }
  if (rank_state_ != nullptr) record(call);
  auto part = std::make_shared<PartWork>(scheduler_, rank_state_ != nullptr ? rank_state_->rank() : -1, group_->name(),
                                         call, row.is_collective() ? -1 : gathered.messages - 1);
  gathered.parts.push_back(part);
  gathered.calls.push_back(std::move(call));
  return WorkState::handle(std::move(part));
}

void GroupFront::drop_at_end() {
  if (rank_state_ == nullptr || at_end_ != 0) return;
  const WorldPin alive(world_);
  if (!alive) return;
  at_end_ = rank_state_->world().at_end(int64_t{group_->id()} * rank_state_->world().size() + rank_state_->rank(),
                                        [weak = handle_.weak_from_this()] {
                                          if (const std::shared_ptr<ProcessGroup> group = weak.lock(); group != nullptr)
                                            of(*group).drop_coalescing();
                                        });
}

void GroupFront::drop_coalescing() noexcept {
  const std::unique_ptr<Coalescing> gathered = std::move(coalescing_);
  if (gathered == nullptr || gathered->calls.empty()) return;
  std::vector<int64_t> records;
  std::vector<std::string> ops;
  for (const CollectiveCall& call : gathered->calls) {
    records.push_back(call.way.record_id);
    ops.push_back(op_row(call.op).name);
  }
  const absl::Status status =
      invalid_argument("rank ", handle_.global_rank(), ", group ", handle_.group_name(),
                       ": start_coalescing() without end_coalescing(): never issued: ", absl::StrJoin(ops, ", "),
                       site_place(Site{.code = gathered->calls.back().code}));
  absl::AnyInvocable<void()> end = [rank = rank_state_, world = world_, records = std::move(records), status,
                                    parts = std::move(gathered->parts)]() mutable {
    if (const WorldPin alive(world); alive && rank != nullptr) {
      CloseRecords(rank, world, std::move(records)).ended(status);
      // The program of a rank that fails between the two is not to blame.
      if (!rank->unwinding() && !rank->world().ended_text(rank->rank()).starts_with("failed"))
        rank->world().note(WorldState::NoteKind::kLeftover, message_of(status));
    }
    for (const std::shared_ptr<PartWork>& part : parts) {
      try {
        part->complete(status);
      } catch (...) {  // of a callback, after the world's end: no rank is left that could fail
      }
    }
  };
  run_for_fibers(world_, own_rank_, "drop", std::move(end));
}

}  // namespace internal
}  // namespace rankloom

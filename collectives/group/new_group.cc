// The front of calls that make groups, and of those that leave them.

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collectives/group/group_front.h"
#include "collectives/ops/group_request.h"
#include "collectives/ops/op_table.h"
#include "rankloom/error.h"
#include "rankloom/process_group.h"
#include "rankloom/world.h"
#include "sim/base/dist_error.h"
#include "sim/base/exception_text.h"
#include "sim/base/printable.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

static_assert(ProcessGroup::kNoColor == GroupRequest::kNoColor);

// The text that members agree on beside the ranks: "WHAT, NAME, description DESCRIPTION", of which there may be none.
// Names that could be taken for two, or for a description, are in quotes: others are to have other labels.
std::string label_of(std::string what, const GroupOptions& options) {
  const auto add = [&what](std::string_view before, const std::string& text) {
    const bool plain = !absl::StrContains(text, ", ") && !absl::StartsWith(text, "description ") && text[0] != '"';
    absl::StrAppend(&what, what.empty() ? "" : ", ", sv(before), plain ? printable(text) : json_string(text));
  };
  if (!options.name.empty()) add("", options.name);
  if (!options.description.empty()) add("description ", options.description);
  return what;
}

// Whether the member has what it asked for: the groups that it is in, or none.
bool is_answered(const GroupRequest& request, int rank) {
  switch (request.kind) {
    case GroupRequest::Kind::kRanks:
      return !request.made.empty() ||
             std::find(request.ranks.begin(), request.ranks.end(), rank) == request.ranks.end();
    case GroupRequest::Kind::kSplit:
      return !request.made.empty() || request.color == GroupRequest::kNoColor;
    case GroupRequest::Kind::kMesh:
      return request.made.size() == request.shape.size();
  }
  return false;
}

}  // namespace

std::shared_ptr<ProcessGroup> ProcessGroup::make_member(const std::shared_ptr<const Group>& group,
                                                        const GroupOptions&) {
  refuse({.rank = global_rank(), .group = front_->name_, .op = "new_group"}, ErrorKind::kCollectiveError, "rank ",
         global_rank(), ", group ", group_name(), ": backend ", backend_name(), " makes no group ", group->name(),
         ", want GroupOptions::make");
}

std::shared_ptr<ProcessGroup> ProcessGroup::new_group(std::vector<int> ranks, const GroupOptions& options,
                                                      CodeSite code) {
  const CallScope scope = front_->enter("new_group", code);
  GroupRequest request = front_->request_of("new_group", options, code);
  std::sort(ranks.begin(), ranks.end());
  request.ranks = std::move(ranks);
  front_->agree_on(OpType::kNewGroup, &request, options, /*what=*/{}, code);
  return request.made.empty() ? nullptr : front_->make_child(request.made[0], options, code);
}

std::shared_ptr<ProcessGroup> ProcessGroup::new_group(const GroupOptions& options, CodeSite code) {
  std::vector<int> all(static_cast<size_t>(front_->size_));
  std::iota(all.begin(), all.end(), 0);
  return new_group(std::move(all), options, code);
}

std::shared_ptr<ProcessGroup> ProcessGroup::split_group(int color, int key, const GroupOptions& options,
                                                        CodeSite code) {
  const CallScope scope = front_->enter("split_group", code);
  GroupRequest request = front_->request_of("split_group", options, code);
  request.kind = GroupRequest::Kind::kSplit;
  request.color = color;
  request.key = key;
  front_->agree_on(OpType::kSplitGroup, &request, options, /*what=*/{}, code);
  return request.made.empty() ? nullptr : front_->make_child(request.made[0], options, code);
}

void destroy_process_group(const std::shared_ptr<ProcessGroup>& group, CodeSite code) {
  if (group == nullptr) return;  // a rank that is no member of it
  internal::GroupFront& front = internal::GroupFront::of(*group);
  if (front.world_ref().ended()) return;  // so has the group
  front.need_own_rank("destroy_process_group", code);
  const CallScope scope = front.enter("destroy_process_group", code);
  if (std::exchange(front.destroyed_, true)) {
    refuse({.rank = group->global_rank(), .group = front.name_, .op = "destroy_process_group"}, ErrorKind::kAborted,
           "rank ", group->global_rank(), ", group ", group->group_name(),
           ", destroy_process_group: the group was destroyed before, want one that was "
           "initialised",
           site_place(Site{.code = code}));
  }
  front.end(code);
}

namespace internal {

GroupRequest GroupFront::request_of(const char* op, const GroupOptions& options, CodeSite code) {
  need_own_rank(op, code);  // before the handle counts the request
  GroupRequest request;
  request.world = rank_state_ != nullptr ? &rank_state_->world() : nullptr;
  request.parent = group_.get();
  request.number = ++request_count_;
  request.name = options.name.empty() ? absl::StrCat(group_->name(), ".", ++child_count_) : options.name;
  request.description = options.description.empty() ? "undefined" : options.description;
  return request;
}

void GroupFront::agree_on(OpType op, GroupRequest* request, const GroupOptions& options, std::string what,
                          CodeSite code) {
  const char* const made_by = what.empty() ? op_row(op).name : "init_device_mesh";
  CollectiveCall call;
  call.op = op;
  call.way.request = request;
  call.label = label_of(std::move(what), options);
  // Of the new group, but refused before there is one.
  if (!options.ranks.empty()) {
    fail(call, invalid_argument(who(call),
                                "GroupOptions::ranks are set, which init_process_group() reads, want the ranks "
                                "as an argument"));
  }
  if (options.timeout.has_value()) check_duration(made_by, "timeout", *options.timeout, code);
  if (options.warn_after.has_value()) check_duration(made_by, "warn_after", *options.warn_after, code);
  submit(call, {}, code).wait(code);
  if (!is_answered(*request, rank_)) {
    refuse({.rank = handle_.global_rank(), .group = name_, .op = made_by}, ErrorKind::kCollectiveError, "rank ",
           handle_.global_rank(), ", group ", handle_.group_name(), ", ", made_by, ": backend ", handle_.backend_name(),
           " completed the call and made no group, want execute() to pass calls that make groups on, or to refuse them",
           site_place(Site{.code = code}));
  }
}

std::shared_ptr<ProcessGroup> GroupFront::member_of(const std::shared_ptr<const Group>& group,
                                                    const GroupOptions& options, CodeSite code) {
  const int rank = handle_.global_rank();
  const ErrorOrigin origin{.rank = rank, .group = name_, .op = "new_group"};
  std::shared_ptr<ProcessGroup> member;
  try {
    member = handle_.make_member(group, options);
  } catch (const DistError& error) {  // which knows no line of the caller
    const std::string text = message_of(error.status());
    if (names_place(text)) throw;
    throw_dist_error(make_error(error.kind(), located(text, code)), origin);
  }
  if (member == nullptr) {
    refuse(origin, ErrorKind::kInvalidArgument, "rank ", rank, ", group ", handle_.group_name(), ": backend ",
           handle_.backend_name(), "'s make_member() gave null for group ", group->name(), ", want a group",
           site_place(Site{.code = code}));
  }
  return member;
}

std::string unknown_value(const GroupOptions& options) {
  const auto unknown = [](std::string_view name, auto value) {
    return absl::StrCat(sv(name), " has the unknown value ", static_cast<int>(value));
  };
  if (options.backend > GroupOptions::Backend::kFake) return unknown("GroupOptions::backend", *options.backend);
  if (options.rooted > GroupOptions::Rooted::kBySchedule) return unknown("GroupOptions::rooted", *options.rooted);
  if (options.order.has_value() && options.order->kind > ReduceOp::Order::Kind::kSeeded)
    return unknown("GroupOptions::order", options.order->kind);
  if (options.fake.has_value() && options.fake->outputs > FakeOptions::Outputs::kUniformRanks)
    return unknown("FakeOptions::outputs", options.fake->outputs);
  return "";
}

std::shared_ptr<ProcessGroup> GroupFront::make_child(const std::shared_ptr<const Group>& group,
                                                     const GroupOptions& options, CodeSite code) {
  if (const std::string wrong = unknown_value(options); !wrong.empty()) {
    refuse({.rank = handle_.global_rank(), .group = name_, .op = "new_group"}, ErrorKind::kInvalidArgument, "rank ",
           handle_.global_rank(), ", group ", group->name(), ": ", wrong, site_place(Site{.code = code}));
  }
  std::shared_ptr<ProcessGroup> child;
  if ((options.make || options.backend.has_value()) && rank_state_ != nullptr) {
    child = make_group_member(*rank_state_, group, options, code);
  } else {
    child = member_of(group, options, code);
  }
  child->set_description(options.description.empty() ? "undefined" : options.description);
  child->set_timeout(options.timeout.value_or(timeout_), code);
  child->set_warn_after(options.warn_after.value_or(warn_after_), code);
  child->set_reduce_order(options.order.value_or(order_));
  if (children_.size() >= sweep_children_at_) {
    std::erase_if(children_, [](const std::weak_ptr<ProcessGroup>& weak) {
      const std::shared_ptr<ProcessGroup> group = weak.lock();
      return group == nullptr || of(*group).left_;
    });
    sweep_children_at_ = std::max<size_t>(8, 2 * children_.size());
  }
  children_.push_back(child);
  return child;
}

void GroupFront::end(CodeSite code) {
  // A group may be its own descendant: GroupOptions::make gives what it likes to.
  if (std::exchange(ending_, true)) return;
  const absl::Cleanup ended = [this] { ending_ = false; };
  std::exception_ptr first;
  const auto attempt = [&first](absl::FunctionRef<void()> step) {
    try {
      step();
    } catch (...) {
      if (first == nullptr) first = handled_exception();
    }
  };
  // Groups that were made last, first: they may be in use still.
  while (!children_.empty()) {  // to which a callback may add meanwhile
    const std::shared_ptr<ProcessGroup> group = children_.back().lock();
    children_.pop_back();
    if (group != nullptr) attempt([&] { of(*group).end(code); });
  }
  drop_coalescing();
  // Calls on streams may end, or be made, before they are looked for.
  if (!on_streams_.empty())
    point_of_caller(Site{.what = "destroy_process_group", .code = code, .group = group_->name()});
  attempt([&] {
    throw_if_error(await_streams(code),
                   {.rank = handle_.global_rank(), .group = group_->name(), .op = "destroy_process_group"});
  });
  attempt([&] { handle_.shutdown(code); });
  shut_down_ = true;  // whatever a subclass makes of it
  if (!std::exchange(left_, true)) {
    attempt([&] { handle_.leave(); });
    if (rank_state_ != nullptr) {
      // In this order: the group goes with the last member.
      rank_state_->recorder().left(group_);
      rank_state_->world().leave_group(*group_, rank_state_->rank());
    }
  }
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace internal
}  // namespace rankloom

#include "collectives/fake/fake_group.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/fake/fake_outputs.h"
#include "collectives/group/group_front.h"
#include "collectives/ops/group_request.h"
#include "collectives/ops/op_table.h"
#include "collectives/records/call_record_state.h"
#include "rankloom/error.h"
#include "rankloom/records.h"
#include "sim/base/dist_error.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "world/world_state.h"

namespace rankloom::internal {
namespace {

CallRecordState* record_of(const FakeOptions& options) {
  return options.record != nullptr ? &CallRecordState::of(*options.record) : nullptr;
}

std::string shapes_text(const TensorList& tensors) {
  return absl::StrCat(
      "[", absl::StrJoin(tensors, ", ", [](std::string* out, const TensorView& tensor) { out->append(tensor.text()); }),
      "]");
}

// "inputs [float32[3]], outputs []".
std::string tensors_text(const CollectiveCall& call) {
  return absl::StrCat("inputs ", shapes_text(call.inputs), ", outputs ", shapes_text(call.outputs));
}

// "all_reduce", "send to 2".
std::string op_text(const CollectiveCall& call) {
  const std::string name = op_row(call.op).name;
  if (call.op == OpType::kSend) return absl::StrCat(name, " to ", call.peer);
  if (call.op != OpType::kRecv) return name;
  return call.peer == CollectiveCall::kAnySource ? name + " from any" : absl::StrCat(name, " from ", call.peer);
}

[[noreturn]] void invalid(int rank, std::string_view op, CodeSite code, const std::string& text) {
  refuse({.rank = rank, .group = {}, .op = op}, ErrorKind::kInvalidArgument, sv(op), ": ", text,
         site_place(Site{.code = code}));
}

// A coalesced call is refused if it is itself, or one of its parts.
bool refuses(const FakeOptions& options, const CollectiveCall& call) {
  if (call.op == OpType::kCoalesced) {
    for (const CollectiveCall& part : call.parts) {
      if (refuses(options, part)) return true;
    }
  }
  return options.deny.has(call.op) || (options.error_on_collective && !options.allow.has(call.op));
}

[[gnu::cold, gnu::noinline]] absl::Status refusal(const CollectiveCall& call, int global_rank,
                                                  const std::string& group) {
  std::string calls = absl::StrCat(", ", tensors_text(call));
  if (call.op == OpType::kCoalesced) {
    calls.clear();
    for (const CollectiveCall& part : call.parts)
      absl::StrAppend(&calls, calls.empty() ? ", " : "; ", op_text(part), ", ", tensors_text(part));
  }
  return make_error(ErrorKind::kCollectiveError, "FakeProcessGroup collective operation error: ", op_text(call),
                    ", rank ", global_rank, ", group ", group, calls);
}

}  // namespace

FakeGroup::FakeGroup(RankContext& rank, std::shared_ptr<const Group> group, FakeOptions options)
    : FakeProcessGroup(rank, std::move(group)),
      options_(std::move(options)),
      checks_calls_(options_.error_on_collective || !options_.deny.empty()),
      record_(record_of(options_)),
      record_group_(record_ != nullptr ? record_->add_group(this->group(), ProcessGroup::rank()) : -1) {}

FakeGroup::FakeGroup(std::shared_ptr<const Group> group, int rank, FakeOptions options)
    : FakeProcessGroup(std::move(group), rank),
      options_(std::move(options)),
      checks_calls_(options_.error_on_collective || !options_.deny.empty()),
      record_(record_of(options_)),
      record_group_(record_ != nullptr ? record_->add_group(this->group(), rank) : -1) {}

std::shared_ptr<ProcessGroup> FakeGroup::make_member(const std::shared_ptr<const Group>& group,
                                                     const GroupOptions& options) {
  FakeOptions fake = options.fake.value_or(options_);
  if (context() != nullptr) return std::make_shared<FakeGroup>(*context(), group, std::move(fake));
  return std::make_shared<FakeGroup>(group, group->group_rank(global_rank()), std::move(fake));
}

absl::Status FakeGroup::checked(const CollectiveCall& call) {
  if (!failed_.ok()) {
    return make_error(ErrorKind::kAborted, GroupFront::of(*this).who(call),
                      "the group failed before: ", failed_.message());
  }
  return refuses(options_, call) ? refusal(call, global_rank(), group_name()) : absl::OkStatus();
}

void FakeGroup::abort(std::string_view reason, CodeSite code) {
  const GroupFront& front = GroupFront::of(*this);
  front.need_own_rank("abort", code);
  const absl::Status failure = make_error(
      ErrorKind::kAborted,
      located(absl::StrCat("rank ", global_rank(), " aborted group ", group()->name(), ": ", sv(reason)), code));
  absl::AnyInvocable<void()> fail = [self = weak_from_this().lock(), this, failure] {
    if (!failed_.ok()) return;  // for the first reason
    failed_ = failure;
    checks_calls_ = true;
  };
  run_for_fibers(front.world_ref(), global_rank(), "abort", std::move(fail));
}

absl::StatusOr<Work> FakeGroup::execute(CollectiveCall&& call) {
  if (checks_calls_) [[unlikely]] {
    if (absl::Status good = checked(call); !good.ok()) return good;
  }
  if (options_.outputs != FakeOptions::Outputs::kShapesOnly) {
    if (absl::Status written = write_fake_outputs(options_.outputs, call, ProcessGroup::rank(), group()->size());
        !written.ok()) {
      return written;
    }
  }
  if (call.way.request != nullptr) {
    call.way.request->seq = call.seq;
    make_groups_alone(call.way.request, ProcessGroup::rank());
  }
  if (record_ != nullptr && call.way.request == nullptr) {
    return record_->used().add(call, record_group_);
  }
  return Work();
}

void FakeGroup::set_rank(int rank, CodeSite code) {
  const int size = group()->size();
  if (rank < 0 || rank >= size)
    invalid(global_rank(), "set_rank", code, absl::StrCat("rank is ", rank, ", want 0 <= rank < size = ", size));
  if (context() != nullptr) {
    invalid(global_rank(), "set_rank", code,
            absl::StrCat("group ", group_name(), " is that of rank ", context()->rank(),
                         " of a world, want make_fake_process_group()"));
  }
  if (record_ != nullptr) {
    if (record_->size > 0 || record_->groups.size() > 1) {
      invalid(global_rank(), "set_rank", code,
              absl::StrCat("the record is that of rank ", global_rank(),
                           ": it has calls or further groups, want another one"));
    }
    record_->set_rank(record_group_, rank);
  }
  GroupFront::of(*this).become(rank);
}

std::shared_ptr<ProcessGroup> make_fake_member(RankContext& rank, const std::shared_ptr<const Group>& group,
                                               const FakeOptions& options) {
  return std::make_shared<FakeGroup>(rank, group, options);
}

}  // namespace rankloom::internal

namespace rankloom {

using namespace internal;

std::shared_ptr<FakeProcessGroup> make_fake_process_group(const FakeProcessGroup::Member& options, CodeSite code) {
  static constexpr std::string_view kName = "make_fake_process_group";
  static constexpr int64_t kMost = std::numeric_limits<int>::max();
  if (options.world_size < 1 || options.world_size > kMost) {
    invalid(-1, kName, code,
            absl::StrCat("world_size is ", options.world_size, ", want 1 <= world_size <= 2^31 - 1 = ", kMost));
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    invalid(-1, kName, code,
            absl::StrCat("rank is ", options.rank, ", want 0 <= rank < world_size = ", options.world_size));
  }
  return std::make_shared<FakeGroup>(std::make_shared<const Group>(0, "0", static_cast<int>(options.world_size)),
                                     static_cast<int>(options.rank), options.options);
}

}  // namespace rankloom

#include "collectives/mpi/mpi_process_group.h"

#include <algorithm>
#include <climits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/mpi/mpi_work.h"
#include "collectives/ops/op_table.h"
#include "collectives/threaded/overlap.h"
#include "rankloom/error.h"
#include "sim/base/blame.h"
#include "sim/base/dist_error.h"
#include "sim/base/kept_memory.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

// Tensors that a group over MPI does not take, beside what the rules of the operation say.
absl::Status refused(const CollectiveCall& call, int size) {
  const auto too_many = [](const char* what, int64_t elements) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, " have ", elements, " elements, want at most 2^31 - 1 in one call over MPI, which counts in int"));
  };
  int64_t elements = 0;
  for (const TensorList* list : {&call.inputs, &call.outputs}) {
    int64_t of_list = 0;
    for (const TensorView& tensor : *list) {
      if (tensor.device().kind != Device::Kind::kCpu) {
        return absl::InvalidArgumentError(absl::StrCat(
            "a tensor is ", tensor.text(), ", want memory of this process; tensors without data need a fake group"));
      }
      of_list += tensor.numel();
    }
    elements = std::max(elements, of_list);
  }
  if (elements > INT_MAX) return too_many("the tensors", elements);
  // The member takes its part of each of the others, though its own parts for these may be small.
  if (call.op == OpType::kReduceScatter) {
    if (const int64_t taken = call.outputs[0].numel() * size; taken > INT_MAX)
      return too_many("the parts of all members", taken);
  }
  for (const CollectiveCall& part : call.parts) {
    if (absl::Status s = refused(part, size); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace

MpiProcessGroup::MpiProcessGroup(RankState* context, std::shared_ptr<MpiGroupCore> core, const GroupOptions& options)
    : ProcessGroup(*context, core->group()), core_(std::move(core)), eager_bytes_(options.eager_bytes) {}

absl::StatusOr<Work> MpiProcessGroup::execute(CollectiveCall&& call) {
  if (absl::Status s = refused(call, core_->size()); !s.ok()) return invalid_argument(front().who(call), s.message());
  if (call.op == OpType::kCoalesced) return execute_parts(std::move(call));
  RankState* const rank = front().rank_state();
  const int64_t timeout_ns = GroupFront::nanoseconds(call.timeout);
  const std::string who = front().who(call);
  const auto begin = [&](auto work, auto file) -> absl::StatusOr<Work> {
    Work handle = WorkState::handle(work);
    absl::Status begun = open_beside(*rank, *work, ProcessGroup::rank(), [&] { return who; });
    if (begun.ok()) begun = core_->engine().locked([&] { return file(work); });
    if (begun.ok()) return handle;
    work->complete(begun);  // so that dropping the handle means nothing
    return begun;
  };
  if (op_row(call.op).is_collective()) {
    return begin(std::make_shared<MpiCollective>(core_, rank, std::move(call), timeout_ns),
                 [this](const auto& work) { return core_->file(work); });
  }
  return begin(std::make_shared<MpiMessage>(core_, rank, std::move(call), timeout_ns),
               [this](const auto& message) { return core_->post(message, eager_bytes_); });
}

absl::StatusOr<Work> MpiProcessGroup::execute_parts(CollectiveCall&& call) {
  RankState* const rank = front().rank_state();
  absl::StatusOr<PartRanges> ranges = separate_parts(call, ProcessGroup::rank(), front().who(call));
  if (!ranges.ok()) return ranges.status();
  const std::string who = front().who(call);
  std::vector<CollectiveCall>& parts = call.parts.mutable_get();
  const auto first_message = std::stable_partition(
      parts.begin(), parts.end(), [](const CollectiveCall& part) { return op_row(part.op).is_collective(); });
  const int64_t timeout_ns = GroupFront::nanoseconds(call.timeout);
  std::vector<std::shared_ptr<MpiMessage>> messages;
  for (auto part = first_message; part != parts.end(); ++part) {
    messages.push_back(std::make_shared<MpiMessage>(core_, rank, std::move(*part), timeout_ns));
  }
  parts.erase(first_message, parts.end());
  auto whole = std::make_shared<MpiCoalesced>(core_, rank, call, timeout_ns);
  Work work = WorkState::handle(whole);
  if (absl::Status opened = open_parts(*rank, *whole, *std::move(ranges), who); !opened.ok()) return opened;
  std::shared_ptr<MpiCollective> collectives;
  if (!call.parts.empty()) collectives = std::make_shared<MpiCollective>(core_, rank, std::move(call), timeout_ns);
  whole->watch(collectives, {messages.begin(), messages.end()});
  bool filed = false;
  const absl::Status begun = core_->engine().locked([&] {
    absl::Status status = collectives != nullptr ? core_->file(collectives) : absl::OkStatus();
    filed = status.ok();
    for (const std::shared_ptr<MpiMessage>& message : messages) {
      if (status.ok()) status = core_->post(message, eager_bytes_);
    }
    return status;
  });
  if (begun.ok()) return work;
  whole->give_up(begun, filed);
  return begun;
}

std::shared_ptr<ProcessGroup> MpiProcessGroup::make_member(const std::shared_ptr<const Group>& group,
                                                           const GroupOptions& options) {
  return MpiBackend::make(core_->engine(), *front().rank_state(), group, options);
}

void MpiProcessGroup::abort(std::string_view reason, CodeSite code) {
  const WorldPin alive(front().world_ref());
  if (!alive) return;  // all that was on its way has ended with the world
  const int by = front().calling_rank();
  const absl::Status cause =
      make_error(ErrorKind::kAborted,
                 located(absl::StrCat("rank ", by, " aborted group ", group()->name(), ": ", sv(reason)), code));
  // Another member may have made the group fail a moment ago, and another thread be about to end its calls.
  const std::vector<std::shared_ptr<WorkState>> ending = core_->engine().locked([&] {
    core_->fail(blamed_as(cause, blamed_on(by, cause)), /*told=*/false);
    std::vector<std::shared_ptr<WorkState>> works;
    core_->engine().append_untold(*group(), &works);
    return works;
  });
  const auto ends = [&ending](const WorkState& state) {
    return state.is_over() ||
           std::any_of(ending.begin(), ending.end(), [&state](const auto& work) { return work.get() == &state; });
  };
  front().close_outputs([&ends](const WorkState& state) {
    const auto* const whole = dynamic_cast<const CoalescedWork*>(&state);
    return whole != nullptr ? whole->ends_with(ends) : ends(state);
  });
}

void MpiProcessGroup::shutdown(CodeSite code) {
  if (front().world_ref().ended()) return ProcessGroup::shutdown(code);
  front().need_own_rank("shutdown", code);
  const CallScope call = front().enter("shutdown", code);
  const std::vector<std::shared_ptr<WorkState>> works = core_->engine().locked([&] { return core_->unfinished(); });
  absl::Status first;
  std::string op;
  for (const std::shared_ptr<WorkState>& work : works) {
    const CodeSite site = code.line != 0 ? code : static_cast<const MemberWork&>(*work).call().code;
    const absl::Status ended = work->wait(absl::InfiniteDuration(), /*timeout_is_default=*/true, site);
    if (!first.ok() || ended.ok()) continue;
    first = ended;
    op = work->op();
  }
  front().close_outputs();
  ProcessGroup::shutdown(code);
  throw_if_error(first, {.rank = global_rank(), .group = group()->name(), .op = op});
}

std::shared_ptr<ProcessGroup> MpiBackend::make(MpiEngine& engine, RankState& rank,
                                               const std::shared_ptr<const Group>& group, const GroupOptions& options) {
  const std::shared_ptr<MpiMember> member = engine.member_of(group, options, [&](std::string key) {
    return std::make_shared<MpiGroupCore>(&engine, group, std::move(key), group->group_rank(rank.rank()));
  });
  return std::make_shared<MpiProcessGroup>(&rank, std::static_pointer_cast<MpiGroupCore>(member), options);
}

}  // namespace rankloom::internal

#include "rankloom/process_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/group/group_front.h"
#include "collectives/group/new_call.h"
#include "rankloom/error.h"
#include "rankloom/stream.h"
#include "rankloom/world.h"
#include "sim/base/dist_error.h"
#include "sim/base/printable.h"
#include "sim/base/require.h"
#include "sim/base/site_text.h"

namespace rankloom {

using namespace internal;

namespace {

const std::shared_ptr<const Group>& given(const std::shared_ptr<const Group>& group, int rank, CodeSite code) {
  require(group, {.rank = rank, .group = {}, .op = "ProcessGroup"}, code, "ProcessGroup: group");
  return group;
}

// The rank in `group` of the rank of the world that makes a handle.
int member(const std::shared_ptr<const Group>& group, int rank, CodeSite code) {
  const int place = given(group, rank, code)->group_rank(rank);
  if (place < 0) {
    refuse({.rank = rank, .group = group->name(), .op = "ProcessGroup"}, ErrorKind::kInvalidArgument,
           "ProcessGroup: rank ", rank, " is no member of group ", group->name(), ", want one of its ranks",
           site_place(Site{.code = code}));
  }
  return place;
}

[[noreturn]] void refuse_place(std::string_view group, int size, int rank, CodeSite code) {
  refuse({.rank = rank, .group = group, .op = "ProcessGroup"}, ErrorKind::kInvalidArgument, "a group of size ", size,
         " with rank ", rank, ", want size >= 1 and 0 <= rank < size", site_place(Site{.code = code}));
}

// `rank`, a rank in `group`.
int place_in(const std::shared_ptr<const Group>& group, int rank, CodeSite code) {
  const int size = given(group, -1, code)->size();
  if (rank < 0 || rank >= size) refuse_place(group->name(), size, rank, code);
  return rank;
}

}  // namespace

ProcessGroup::ProcessGroup(int rank, int size, CodeSite code)
    : ProcessGroup(std::make_shared<const Group>(0, "", std::max(size, 1)), size < 1 ? 0 : rank, code) {
  if (size < 1) refuse_place("", size, rank, code);
}

ProcessGroup::ProcessGroup(RankContext& rank, std::shared_ptr<const Group> group, CodeSite code)
    : front_(new GroupFront(this, &state_of(rank), group, member(group, rank.rank(), code))) {}

ProcessGroup::ProcessGroup(std::shared_ptr<const Group> group, int rank, CodeSite code)
    : front_(new GroupFront(this, nullptr, group, place_in(group, rank, code))) {}

ProcessGroup::~ProcessGroup() {
  if (front_->coalescing_ != nullptr) [[unlikely]]
    front_->drop_coalescing();
}

int ProcessGroup::rank() const { return front_->rank_; }
int ProcessGroup::size() const { return front_->size_; }
std::string ProcessGroup::group_name() const {
  front_->looked_at();
  return front_->name_;
}
void ProcessGroup::set_group_name(std::string_view name) {
  front_->need_own_rank("set_group_name", {});
  front_->name_ = name;
}
std::string ProcessGroup::description() const {
  front_->looked_at();
  return front_->description_;
}
void ProcessGroup::set_description(std::string_view description) {
  front_->need_own_rank("set_description", {});
  front_->description_ = description;
}
int ProcessGroup::global_rank() const { return global_rank(front_->rank_); }
int64_t ProcessGroup::sequence_number(CodeSite code) const {
  front_->need_own_rank("sequence_number", code);
  return front_->seq_;
}
absl::Duration ProcessGroup::timeout(CodeSite code) const {
  front_->need_own_rank("timeout", code);
  return front_->timeout_;
}
absl::Duration ProcessGroup::warn_after(CodeSite code) const {
  front_->need_own_rank("warn_after", code);
  return front_->warn_after_;
}
void ProcessGroup::set_reduce_order(const ReduceOp::Order& order, CodeSite code) {
  front_->need_own_rank("set_reduce_order", code);
  if (order.kind > ReduceOp::Order::Kind::kSeeded) {
    refuse({.rank = global_rank(), .group = group_name(), .op = "set_reduce_order"}, ErrorKind::kInvalidArgument,
           "rank ", global_rank(), ", group ", group_name(),
           ", set_reduce_order: order of reduction has the unknown kind ", static_cast<int>(order.kind),
           site_place(Site{.code = code}));
  }
  front_->new_terms();
  front_->order_ = order;
}
const std::shared_ptr<const Group>& ProcessGroup::group() const { return front_->group_; }
RankContext* ProcessGroup::context() const { return front_->rank_state_; }

std::string ProcessGroup::text() const {
  return absl::StrCat(backend_name(), " group ", group_name(), ": rank ", rank(), " of ", size());
}

std::ostream& operator<<(std::ostream& out, const ProcessGroup& group) { return out << group.text(); }

int ProcessGroup::global_rank(int rank, CodeSite code) const {
  if (rank < 0 || rank >= front_->size_) {
    refuse({.rank = -1, .group = front_->name_, .op = "global_rank"}, ErrorKind::kInvalidArgument, "group ",
           front_->name_, ", global_rank: rank is ", rank, ", want 0 <= rank < size = ", front_->size_,
           site_place(Site{.code = code}));
  }
  return front_->group_->global_rank(rank);
}

void ProcessGroup::set_timeout(absl::Duration timeout, CodeSite code) {
  front_->need_own_rank("set_timeout", code);
  front_->check_duration("set_timeout", "timeout", timeout, code);
  front_->new_terms();
  front_->timeout_ = timeout;
}

void ProcessGroup::set_warn_after(absl::Duration warn_after, CodeSite code) {
  front_->need_own_rank("set_warn_after", code);
  front_->check_duration("set_warn_after", "warn_after", warn_after, code);
  front_->new_terms();
  front_->warn_after_ = warn_after;
}

void ProcessGroup::abort(std::string_view, CodeSite) {}

void ProcessGroup::shutdown(CodeSite code) {
  front_->need_own_rank("shutdown", code);
  front_->shut_down_ = true;
}

Work ProcessGroup::broadcast(TensorView buffer, int root, const CallOptions& options, CodeSite code) {
  return internal::submit(*front_, {.op = OpType::kBroadcast, .output = &buffer, .root = root}, options, code);
}

Work ProcessGroup::all_reduce(TensorView buffer, ReduceOp op, const CallOptions& options, CodeSite code) {
  return internal::submit(*front_, {.op = OpType::kAllReduce, .input = &buffer, .output = &buffer, .reduce_op = op},
                          options, code);
}

Work ProcessGroup::all_reduce_coalesced(std::vector<TensorView> buffers, ReduceOp op, const CallOptions& options,
                                        CodeSite code) {
  std::vector<TensorView> inputs = buffers;
  NewCall call(*front_, OpType::kAllReduceCoalesced, std::move(inputs), std::move(buffers));
  call->reduce_op = op;
  return call.submit(options, code);
}

Work ProcessGroup::reduce(TensorView buffer, int root, ReduceOp op, const CallOptions& options, CodeSite code) {
  return internal::submit(*front_,
                          {.op = OpType::kReduce, .input = &buffer, .output = &buffer, .reduce_op = op, .root = root},
                          options, code);
}

Work ProcessGroup::all_gather(std::vector<TensorView> outputs, ConstTensorView input, const CallOptions& options,
                              CodeSite code) {
  NewCall call(*front_, OpType::kAllGather, input.view(), std::move(outputs));
  return call.submit(options, code);
}

Work ProcessGroup::all_gather_into_tensor(TensorView output, ConstTensorView input, const CallOptions& options,
                                          CodeSite code) {
  return internal::submit(*front_, {.op = OpType::kAllGatherIntoTensor, .input = &input.view(), .output = &output},
                          options, code);
}

Work ProcessGroup::all_gather_into_tensor_coalesced(std::vector<TensorView> outputs, std::vector<TensorView> inputs,
                                                    const CallOptions& options, CodeSite code) {
  NewCall call(*front_, OpType::kAllGatherIntoTensorCoalesced, std::move(inputs), std::move(outputs));
  return call.submit(options, code);
}

Work ProcessGroup::gather(std::vector<TensorView> outputs, ConstTensorView input, int root, const CallOptions& options,
                          CodeSite code) {
  NewCall call(*front_, OpType::kGather, input.view(), std::move(outputs));
  call->root = root;
  return call.submit(options, code);
}

Work ProcessGroup::scatter(TensorView output, std::vector<TensorView> inputs, int root, const CallOptions& options,
                           CodeSite code) {
  NewCall call(*front_, OpType::kScatter, std::move(inputs), std::move(output));
  call->root = root;
  return call.submit(options, code);
}

Work ProcessGroup::reduce_scatter(TensorView output, std::vector<TensorView> inputs, ReduceOp op,
                                  const CallOptions& options, CodeSite code) {
  NewCall call(*front_, OpType::kReduceScatter, std::move(inputs), std::move(output));
  call->reduce_op = op;
  return call.submit(options, code);
}

Work ProcessGroup::reduce_scatter_tensor(TensorView output, ConstTensorView input, ReduceOp op,
                                         const CallOptions& options, CodeSite code) {
  return internal::submit(
      *front_, {.op = OpType::kReduceScatterTensor, .input = &input.view(), .output = &output, .reduce_op = op},
      options, code);
}

Work ProcessGroup::reduce_scatter_tensor_coalesced(std::vector<TensorView> outputs, std::vector<TensorView> inputs,
                                                   ReduceOp op, const CallOptions& options, CodeSite code) {
  NewCall call(*front_, OpType::kReduceScatterTensorCoalesced, std::move(inputs), std::move(outputs));
  call->reduce_op = op;
  return call.submit(options, code);
}

Work ProcessGroup::all_to_all(std::vector<TensorView> outputs, std::vector<TensorView> inputs,
                              const CallOptions& options, CodeSite code) {
  NewCall call(*front_, OpType::kAllToAll, std::move(inputs), std::move(outputs));
  return call.submit(options, code);
}

Work ProcessGroup::all_to_all_single(TensorView output, ConstTensorView input, std::vector<int64_t> output_splits,
                                     std::vector<int64_t> input_splits, const CallOptions& options, CodeSite code) {
  NewCall call(*front_, OpType::kAllToAllSingle, input.view(), std::move(output));
  call->out_splits = std::move(output_splits);
  call->in_splits = std::move(input_splits);
  return call.submit(options, code);
}

Work ProcessGroup::barrier(const CallOptions& options, std::string_view label, CodeSite code) {
  if (label.empty()) [[likely]]
    return internal::submit(*front_, {.op = OpType::kBarrier}, options, code);
  NewCall call(*front_, OpType::kBarrier);
  call->label = printable(std::string(label));
  return call.submit(options, code);
}

void ProcessGroup::monitored_barrier(std::optional<absl::Duration> timeout, bool wait_all_ranks, std::string_view label,
                                     CodeSite code) {
  const CallScope scope = front_->enter("monitored_barrier", code);
  NewCall call(*front_, OpType::kMonitoredBarrier);
  if (!label.empty()) call->label = printable(std::string(label));
  if (wait_all_ranks && front_->scheduler_ != nullptr) {
    const absl::Duration own = timeout.value_or(front_->timeout_);
    call->way.wait_until_ns = Deadline::after(front_->scheduler_->now_ns(), own, /*weak=*/false).at_ns;
  }
  call.submit({.timeout = timeout}, code).wait(code);
}

}  // namespace rankloom

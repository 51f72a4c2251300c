#include "rankloom/process_group.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/group/coalescing.h"
#include "collectives/ops/op_table.h"
#include "collectives/work/keep_alive.h"
#include "rankloom/error.h"
#include "rankloom/stream.h"
#include "rankloom/world.h"
#include "sim/base/printable.h"
#include "sim/base/text.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom {

ProcessGroup::ProcessGroup(int rank, int size)
    : group_(std::make_shared<const Group>(0, "", size)), rank_(rank), size_(size), timeout_(absl::InfiniteDuration()) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw_dist_error(make_error(ErrorKind::kInvalidArgument, absl::StrCat("a group of size ", size, " with rank ", rank,
                                                                          ", want size >= 1 and 0 <= rank < size")),
                     {.rank = rank, .group = {}, .op = "ProcessGroup"});
  }
}

ProcessGroup::ProcessGroup(RankContext* context, std::shared_ptr<const Group> group)
    : context_(context),
      scheduler_(&context->world().scheduler()),
      world_(scheduler_),
      group_(std::move(group)),
      rank_(group_->group_rank(context->rank())),
      size_(group_->size()),
      timeout_(context->world().options().timeout),
      warn_after_(context->world().options().warn_after),
      name_(group_->name()) {}

ProcessGroup::ProcessGroup(std::shared_ptr<const Group> group, int rank)
    : group_(std::move(group)),
      rank_(rank),
      size_(group_->size()),
      timeout_(absl::InfiniteDuration()),
      name_(group_->name()) {}

ProcessGroup::~ProcessGroup() {
  if (coalescing_ != nullptr) [[unlikely]]
    drop_coalescing();
  // The world has its own groups until all members have left, this one by another handle perhaps.
  if (context_ == nullptr || left_ || (group_->of_world() && !group_->any_left())) [[likely]]
    return;
  if (const WorldPin alive(world_); alive) context_->recorder().left(group_);
}

std::string ProcessGroup::text() const {
  return absl::StrCat(backend_name(), " group ", group_name(), ": rank ", rank(), " of ", size());
}

std::ostream& operator<<(std::ostream& out, const ProcessGroup& group) { return out << group.text(); }

int ProcessGroup::global_rank(int rank) const {
  if (rank < 0 || rank >= size_) {
    throw_dist_error(
        make_error(ErrorKind::kInvalidArgument, absl::StrCat("group ", group_name(), ", global_rank: rank is ", rank,
                                                             ", want 0 <= rank < size = ", size_)),
        {.rank = -1, .group = name_, .op = "global_rank"});
  }
  return group_->global_rank(rank);
}

void ProcessGroup::check_duration(const char* op, const char* what, absl::Duration duration) const {
  if (duration >= absl::ZeroDuration()) return;
  throw_dist_error(make_error(ErrorKind::kInvalidArgument,
                              absl::StrCat("rank ", global_rank(), ", group ", group_name(), ", ", op, ": ", what,
                                           " is ", absl::FormatDuration(duration), ", want 0 or more")),
                   {.rank = global_rank(), .group = name_, .op = op});
}

void ProcessGroup::set_timeout(absl::Duration timeout) {
  check_duration("set_timeout", "timeout", timeout);
  timeout_ = timeout;
}

void ProcessGroup::set_warn_after(absl::Duration warn_after) {
  check_duration("set_warn_after", "warn_after", warn_after);
  warn_after_ = warn_after;
}

void ProcessGroup::abort(std::string_view) {}
void ProcessGroup::shutdown(CodeSite) { shut_down_ = true; }

std::string ProcessGroup::who(const CollectiveCall& call) const {
  return absl::StrCat("rank ", global_rank(), ", group ", group_->name().empty() ? group_name() : group_->name(), ", ",
                      op_row(call.op).name, call.seq >= 0 ? absl::StrCat(" seq ", call.seq) : "", ": ");
}

CalledHandle ProcessGroup::called(const char* op) const {
  return {.rank = global_rank(), .handle = absl::StrCat("group ", group_name()), .op = op};
}

void ProcessGroup::fail(const CollectiveCall& call, const absl::Status& status) const {
  throw_dist_error(status,
                   {.rank = global_rank(), .group = group_->name(), .op = op_row(call.op).name, .seq = call.seq});
}

void ProcessGroup::set_times(CollectiveCall& call, const CallOptions& options) const {
  call.timeout = options.timeout.value_or(timeout_);
  call.timeout_is_default = !options.timeout.has_value();
  call.warn_after = options.warn_after.value_or(warn_after_);
  const bool wrong = call.timeout < absl::ZeroDuration();
  if (!wrong && call.warn_after >= absl::ZeroDuration()) [[likely]]
    return;
  fail(call,
       make_error(ErrorKind::kInvalidArgument,
                  absl::StrCat(who(call), wrong ? "timeout is " : "warn_after is ",
                               absl::FormatDuration(wrong ? call.timeout : call.warn_after), ", want 0 or more")));
}

Work ProcessGroup::submit(CollectiveCall& call, const CallOptions& options, CodeSite code) {
  const OpRow& row = op_row(call.op);
  const CallScope scope = enter(row.name);
  call.code = code;
  const bool numbered = row.is_collective() && (call.op != OpType::kCoalesced || !internal::only_messages(call));
  call.seq = numbered ? seq_ + 1 : -1;
  if (shut_down_ || coalescing_ != nullptr) [[unlikely]] {
    if (!shut_down_) return gather_call(call, options, code);
    fail(call, make_error(ErrorKind::kAborted, who(call) + "the group was shut down, want no call after shutdown()"));
  }
  if (scheduler_ != nullptr) {
    if (const Task* task = Task::current(); task->scheduler == scheduler_ && task->info.rank != context_->rank())
        [[unlikely]] {
      fail(call, make_error(ErrorKind::kInvalidArgument,
                            absl::StrCat(who(call), "the handle of rank ", context_->rank(), " was used by rank ",
                                         task->info.rank, ", want the rank's own handle")));
    }
    scheduler_->point(
        Site{.what = row.name, .code = code, .group = group_->name(), .seq = call.seq, .detail = call.label});
    if (scheduler_->aborted()) [[unlikely]]
      fail(call, scheduler_->abort_cause());
  }
  call.order = options.order.value_or(order_);
  set_times(call, options);
  if (absl::Status checked = row.check(call, rank_, size_); !checked.ok()) [[unlikely]] {
    fail(call, make_error(error_kind(checked), absl::StrCat(who(call), checked.message())));
  }
  if (options.keep_alive != nullptr) {
    call.keep_alive = context_ != nullptr ? internal::owned_by_rank(options.keep_alive, *context_) : options.keep_alive;
  }
  call.stream = options.stream;
  if (numbered) {
    seq_ = call.seq;
  } else if (call.op != OpType::kCoalesced) {
    ++p2p_seq_;
  }
  record(call);
  const int64_t record_id = call.record_id;
  absl::StatusOr<Work> work =
      call.stream == nullptr ? execute(std::move(call)) : call.stream->issue(*this, std::move(call));
  if (!work.ok()) [[unlikely]]
    refuse(row.op, numbered, record_id, work.status());
  return *std::move(work);
}

// Not inlined: the call that it makes would take hundreds of bytes of each waiting rank's stack.
[[gnu::noinline]] void ProcessGroup::refuse(OpType op, bool numbered, int64_t record_id, const absl::Status& status) {
  CollectiveCall failed;  // the call itself was moved away
  failed.op = op;
  failed.seq = numbered ? seq_ : -1;
  // It did not happen: the next one takes its number.
  if (numbered && error_kind(status) == ErrorKind::kInvalidArgument) --seq_;
  if (record_id >= 0) context_->recorder().close(record_id, scheduler_->now_ns(), false);
  fail(failed, status);
}

void ProcessGroup::record(CollectiveCall& call) {
  if (context_ == nullptr || scheduler_ == nullptr) return;  // outside a world
  const int64_t now = scheduler_->now_ns();
  call.record_id = context_->recorder().open([&](FlightEntry& entry) {
    entry.group = group_.get();
    entry.op = op_row(call.op).name;
    entry.recorder_name = op_row(call.op).recorder_name;
    entry.is_p2p = call.seq < 0;
    entry.seq = entry.is_p2p ? p2p_seq_ : call.seq;
    entry.other_seq = entry.is_p2p ? seq_ : p2p_seq_;
    entry.op_id = ++op_id_;
    entry.created_ns = now;
    entry.code = call.code;
    entry.root = call.root;
    entry.peer = call.peer;
    entry.timeout_ns = call.timeout == absl::InfiniteDuration() ? -1 : absl::ToInt64Nanoseconds(call.timeout);
    entry.inputs = static_cast<uint16_t>(call.inputs.size());
    entry.outputs = static_cast<uint16_t>(call.outputs.size());
    for (const TensorList* list : {&call.inputs, &call.outputs}) {
      for (const TensorView& tensor : *list) {
        entry.dtype = static_cast<uint8_t>(tensor.dtype());
        entry.shapes.add(tensor.sizes().data(), tensor.sizes().size());
      }
    }
  });
  if (scheduler_->prefetches()) Task::current()->ahead = context_->recorder().next_place();
}

namespace {

CollectiveCall make_call(OpType op, TensorList inputs, TensorList outputs) {
  CollectiveCall call;
  call.op = op;
  call.inputs = std::move(inputs);
  call.outputs = std::move(outputs);
  return call;
}

}  // namespace

Work ProcessGroup::broadcast(TensorView buffer, int root, const CallOptions& options, CodeSite code) {
  CollectiveCall call = make_call(OpType::kBroadcast, {}, std::move(buffer));
  call.root = root;
  return submit(call, options, code);
}

Work ProcessGroup::all_reduce(TensorView buffer, ReduceOp op, const CallOptions& options, CodeSite code) {
  CollectiveCall call;
  call.op = OpType::kAllReduce;
  call.inputs.set(buffer);
  call.outputs.set(std::move(buffer));
  call.reduce_op = op;
  return submit(call, options, code);
}

Work ProcessGroup::all_reduce_coalesced(std::vector<TensorView> buffers, ReduceOp op, const CallOptions& options,
                                        CodeSite code) {
  TensorList inputs(buffers);
  CollectiveCall call = make_call(OpType::kAllReduceCoalesced, std::move(inputs), std::move(buffers));
  call.reduce_op = op;
  return submit(call, options, code);
}

Work ProcessGroup::reduce(TensorView buffer, int root, ReduceOp op, const CallOptions& options, CodeSite code) {
  CollectiveCall call = make_call(OpType::kReduce, buffer, buffer);
  call.root = root;
  call.reduce_op = op;
  return submit(call, options, code);
}

Work ProcessGroup::all_gather(std::vector<TensorView> outputs, ConstTensorView input, const CallOptions& options,
                              CodeSite code) {
  CollectiveCall call = make_call(OpType::kAllGather, input.view(), std::move(outputs));
  return submit(call, options, code);
}

Work ProcessGroup::all_gather_into_tensor(TensorView output, ConstTensorView input, const CallOptions& options,
                                          CodeSite code) {
  CollectiveCall call = make_call(OpType::kAllGatherIntoTensor, input.view(), std::move(output));
  return submit(call, options, code);
}

Work ProcessGroup::all_gather_into_tensor_coalesced(std::vector<TensorView> outputs, std::vector<TensorView> inputs,
                                                    const CallOptions& options, CodeSite code) {
  CollectiveCall call = make_call(OpType::kAllGatherIntoTensorCoalesced, std::move(inputs), std::move(outputs));
  return submit(call, options, code);
}

Work ProcessGroup::gather(std::vector<TensorView> outputs, ConstTensorView input, int root, const CallOptions& options,
                          CodeSite code) {
  CollectiveCall call = make_call(OpType::kGather, input.view(), std::move(outputs));
  call.root = root;
  return submit(call, options, code);
}

Work ProcessGroup::scatter(TensorView output, std::vector<TensorView> inputs, int root, const CallOptions& options,
                           CodeSite code) {
  CollectiveCall call = make_call(OpType::kScatter, std::move(inputs), std::move(output));
  call.root = root;
  return submit(call, options, code);
}

Work ProcessGroup::reduce_scatter(TensorView output, std::vector<TensorView> inputs, ReduceOp op,
                                  const CallOptions& options, CodeSite code) {
  CollectiveCall call = make_call(OpType::kReduceScatter, std::move(inputs), std::move(output));
  call.reduce_op = op;
  return submit(call, options, code);
}

Work ProcessGroup::reduce_scatter_tensor(TensorView output, ConstTensorView input, ReduceOp op,
                                         const CallOptions& options, CodeSite code) {
  CollectiveCall call = make_call(OpType::kReduceScatterTensor, input.view(), std::move(output));
  call.reduce_op = op;
  return submit(call, options, code);
}

Work ProcessGroup::reduce_scatter_tensor_coalesced(std::vector<TensorView> outputs, std::vector<TensorView> inputs,
                                                   ReduceOp op, const CallOptions& options, CodeSite code) {
  CollectiveCall call = make_call(OpType::kReduceScatterTensorCoalesced, std::move(inputs), std::move(outputs));
  call.reduce_op = op;
  return submit(call, options, code);
}

Work ProcessGroup::all_to_all(std::vector<TensorView> outputs, std::vector<TensorView> inputs,
                              const CallOptions& options, CodeSite code) {
  CollectiveCall call = make_call(OpType::kAllToAll, std::move(inputs), std::move(outputs));
  return submit(call, options, code);
}

Work ProcessGroup::all_to_all_single(TensorView output, ConstTensorView input, std::vector<int64_t> output_splits,
                                     std::vector<int64_t> input_splits, const CallOptions& options, CodeSite code) {
  CollectiveCall call = make_call(OpType::kAllToAllSingle, input.view(), std::move(output));
  call.out_splits = std::move(output_splits);
  call.in_splits = std::move(input_splits);
  return submit(call, options, code);
}

Work ProcessGroup::barrier(const CallOptions& options, std::string_view label, CodeSite code) {
  CollectiveCall call = make_call(OpType::kBarrier, {}, {});
  if (!label.empty()) call.label = printable(std::string(label));
  return submit(call, options, code);
}

void ProcessGroup::monitored_barrier(std::optional<absl::Duration> timeout, bool wait_all_ranks, std::string_view label,
                                     CodeSite code) {
  const CallScope scope = enter("monitored_barrier");
  CollectiveCall call = make_call(OpType::kMonitoredBarrier, {}, {});
  if (!label.empty()) call.label = printable(std::string(label));
  if (const absl::Duration own = timeout.value_or(timeout_);
      wait_all_ranks && scheduler_ != nullptr && own < absl::InfiniteDuration()) {
    call.wait_until_ns = scheduler_->now_ns() + absl::ToInt64Nanoseconds(own);
  }
  submit(call, {.timeout = timeout}, code).wait(code);
}

}  // namespace rankloom

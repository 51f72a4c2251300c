#include "tests/campaign/call_of.h"

#include "absl/strings/str_cat.h"

namespace rankloom {

CallOf::CallOf(const JobCall& call, int act, int part, const std::vector<int>& ranks, int member, uint64_t state,
               std::shared_ptr<Tensors> tensors, std::shared_ptr<Arrivals> arrivals)
    : tensors_(std::move(tensors)),
      call_(call),
      act_(act),
      size_(static_cast<int>(ranks.size())),
      member_(member),
      arrivals_(std::move(arrivals)),
      barrier_{act, part, ranks.at(0)},
      values_(inputs_of(call, act, part, ranks, member, state)) {
  const CallShape shape = shape_of(call, size_, member);
  const DType dtype = call.element();
  const auto add = [&](int64_t numel) {
    if (call.type() != OpType::kAllToAllSingle) return tensors_->add(dtype, numel);
    return tensors_->add(dtype, numel, {numel / call.rows, call.rows});
  };
  // The member's own of a list, or of equal parts of one tensor.
  const auto own = [member](const std::vector<TensorView>& whole, int64_t numel) {
    return whole.size() > 1 || whole[0].numel() == numel ? whole[whole.size() > 1 ? static_cast<size_t>(member) : 0]
                                                         : whole[0].slice(member * numel, numel);
  };
  const Within within = within_of(call, shape);
  keeps_inputs_ = !shape.same && within == Within::kNothing;
  if (shape.same) {
    for (const int64_t numel : shape.inputs) inputs_.push_back(add(numel));
    outputs_ = inputs_;
    return;
  }
  if (within == Within::kInputs) {
    for (const int64_t numel : shape.inputs) inputs_.push_back(add(numel));
    outputs_.push_back(own(inputs_, shape.outputs[0]));
    return;
  }
  for (const int64_t numel : shape.outputs) outputs_.push_back(add(numel));
  if (within == Within::kOutputs) {
    inputs_.push_back(own(outputs_, shape.inputs[0]));
    return;
  }
  for (const int64_t numel : shape.inputs) inputs_.push_back(add(numel));
}

void CallOf::fill() {
  if (call_.type() == OpType::kBarrier && arrivals_ != nullptr) arrivals_->comes(barrier_);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (keeps_inputs_) {
      tensors_->give(inputs_[i], values_[i]);
    } else {
      Tensors::write(inputs_[i], values_[i]);
    }
  }
}

Work CallOf::make(ProcessGroup& pg, const CallOptions& given) {
  CallOptions options = given;
  if (call_.order != 0) options.order = order_of(call_, act_);
  if (call_.timed != 0) options.timeout = absl::Hours(1);
  const ReduceOp op = reduce_of(call_);
  const int root = call_.root % size_;
  switch (call_.type()) {
    case OpType::kBroadcast:
      return pg.broadcast(outputs_[0], root, options);
    case OpType::kAllReduce:
      return pg.all_reduce(outputs_[0], op, options);
    case OpType::kAllReduceCoalesced:
      return pg.all_reduce_coalesced(outputs_, op, options);
    case OpType::kReduce:
      return pg.reduce(outputs_[0], root, op, options);
    case OpType::kAllGather:
      return pg.all_gather(outputs_, inputs_[0], options);
    case OpType::kAllGatherIntoTensor:
      return pg.all_gather_into_tensor(outputs_[0], inputs_[0], options);
    case OpType::kAllGatherIntoTensorCoalesced:
      return pg.all_gather_into_tensor_coalesced(outputs_, inputs_, options);
    case OpType::kGather:
      return pg.gather(outputs_, inputs_[0], root, options);
    case OpType::kScatter:
      return pg.scatter(outputs_[0], inputs_, root, options);
    case OpType::kReduceScatter:
      return pg.reduce_scatter(outputs_[0], inputs_, op, options);
    case OpType::kReduceScatterTensor:
      return pg.reduce_scatter_tensor(outputs_[0], inputs_[0], op, options);
    case OpType::kReduceScatterTensorCoalesced:
      return pg.reduce_scatter_tensor_coalesced(outputs_, inputs_, op, options);
    case OpType::kAllToAll:
      return pg.all_to_all(outputs_, inputs_, options);
    case OpType::kAllToAllSingle: {
      std::vector<int64_t> out, in;
      for (int i = 0; call_.uneven != 0 && i < size_; ++i) {
        out.push_back(between(call_, i, member_));
        in.push_back(between(call_, member_, i));
      }
      return pg.all_to_all_single(outputs_[0], inputs_[0], out, in, options);
    }
    case OpType::kBarrier:
      if (arrivals_ != nullptr) {
        tensors_->also([arrivals = arrivals_, at = barrier_, n = size_] { return arrivals->missing(at, n); });
      }
      return pg.barrier(options, absl::StrCat("barrier ", act_));
    default:
      no_such("collective", call_.op);
  }
}

void CallOf::read(std::string* text) const {
  for (const TensorView& output : outputs_) Tensors::read(output, text);
}

}  // namespace rankloom

#include "examples/transformer/step.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace rankloom::example {
namespace {

void want(bool condition, const std::string& text) {
  if (!condition) throw std::invalid_argument(text);
}

void want_multiple(int64_t value, int64_t of, const std::string& text) {
  want(of > 0 && value % of == 0, text + ": " + std::to_string(value) + " is no multiple of " + std::to_string(of));
}

// One rank's step. Its tensors are shapes alone.
class Step {
 public:
  Step(const TransformerSizes& sizes, const Layout& layout, const DeviceMesh& mesh, CallRecord& record)
      : sizes_(sizes),
        layout_(layout),
        record_(record),
        world_(*mesh.base()),
        pp_(*mesh.get_group("pp")),
        dp_(*mesh.get_group("dp")),
        tp_(*mesh.get_group("tp")),
        // Of this rank: a share of the matrices, and all norms.
        layer_parameters_(sizes.layer_parameters() / layout.tp + 2 * sizes.hidden),
        embedding_parameters_(sizes.vocabulary * sizes.hidden / layout.tp),
        head_parameters_(embedding_parameters_ + sizes.hidden) {
    if (first()) parameters_.push_back(embedding_parameters_);
    parameters_.insert(parameters_.end(), static_cast<size_t>(sizes.layers / layout.pp), layer_parameters_);
    if (last()) parameters_.push_back(head_parameters_);
  }

  void run() {
    const int micro_batches = layout_.micro_batches;
    const int ahead = std::min(micro_batches, pp_.size() - 1 - pp_.rank());
    for (int i = 0; i < ahead; ++i) forward(i);
    for (int i = ahead; i < micro_batches; ++i) {
      forward(i);
      backward(i - ahead);
    }
    for (int i = micro_batches - ahead; i < micro_batches; ++i) backward(i);
    for (Work& work : reduced_) work.wait();
    world_.all_reduce(TensorView::meta({1}, DType::kFloat32)).wait();  // the norm of all gradients
    if (last()) dp_.all_reduce(TensorView::meta({1}, DType::kFloat32), ReduceOp::kAvg).wait();  // the loss
  }

 private:
  bool first() const { return pp_.rank() == 0; }
  bool last() const { return pp_.rank() == pp_.size() - 1; }

  TensorView sequence() const { return TensorView::meta({layout_.sequence, sizes_.hidden}, DType::kBFloat16); }
  TensorView part_of_sequence() const {
    return TensorView::meta({layout_.sequence / layout_.tp, sizes_.hidden}, DType::kBFloat16);
  }

  void gather_sequence() { tp_.all_gather_into_tensor(sequence(), part_of_sequence()).wait(); }
  void scatter_sequence() { tp_.reduce_scatter_tensor(part_of_sequence(), sequence()).wait(); }

  void compute(int64_t parameters, int times, const char* name) {
    const double flops = 2.0 * static_cast<double>(parameters) * static_cast<double>(layout_.sequence) * times;
    record_.compute(absl::Seconds(flops / kFlops), name);
  }

  int64_t shard(size_t unit) const { return (parameters_[unit] + dp_.size() - 1) / dp_.size(); }

  // The parameters of unit `unit` arrive while those before it are in use.
  void gather_parameters(size_t unit) {
    if (unit >= parameters_.size() || unit < gathered_.size()) return;
    gathered_.push_back(dp_.all_gather_into_tensor(TensorView::meta({shard(unit) * dp_.size()}, DType::kBFloat16),
                                                   TensorView::meta({shard(unit)}, DType::kBFloat16)));
  }
  void use_parameters(size_t unit) {
    gather_parameters(unit);
    gather_parameters(unit + 1);
    gathered_[unit].wait();
  }
  // At most two buffers of gradients are on their way.
  void reduce_gradients(size_t unit) {
    if (reduced_.size() >= 2) reduced_[reduced_.size() - 2].wait();
    reduced_.push_back(dp_.reduce_scatter_tensor(TensorView::meta({shard(unit)}, DType::kFloat32),
                                                 TensorView::meta({shard(unit) * dp_.size()}, DType::kFloat32),
                                                 ReduceOp::kAvg));
  }

  void forward(int micro_batch) {
    size_t unit = 0;
    if (first()) {
      use_parameters(unit++);
      scatter_sequence();  // every rank looked up its part of the vocabulary
    } else {
      pp_.recv(part_of_sequence(), pp_.rank() - 1, micro_batch).wait();
    }
    for (; unit < parameters_.size() - (last() ? 1 : 0); ++unit) {
      use_parameters(unit);
      gather_sequence();
      compute(attention(), 1, "attention forward");
      scatter_sequence();
      gather_sequence();
      compute(layer_parameters_ - attention(), 1, "mlp forward");
      scatter_sequence();
    }
    if (!last()) {
      pp_.send(part_of_sequence(), pp_.rank() + 1, micro_batch).wait();
      return;
    }
    use_parameters(unit);
    gather_sequence();
    compute(head_parameters_, 1, "head forward");
    const TensorView tokens = TensorView::meta({layout_.sequence}, DType::kFloat32);
    tp_.all_reduce(tokens, ReduceOp::kMax).wait();  // of a softmax over parts of the vocabulary
    tp_.all_reduce(tokens).wait();                  // its sum
    tp_.all_reduce(tokens).wait();                  // the logit of the right token
  }

  void backward(int micro_batch) {
    const bool reduces = micro_batch == layout_.micro_batches - 1;
    size_t unit = parameters_.size();
    if (last()) {
      compute(head_parameters_, 2, "head backward");
      scatter_sequence();
      --unit;
      if (reduces) reduce_gradients(unit);
    } else {
      pp_.recv(part_of_sequence(), pp_.rank() + 1, micro_batch).wait();
    }
    while (unit > (first() ? 1 : 0)) {
      gather_sequence();
      compute(layer_parameters_ - attention(), 2, "mlp backward");
      scatter_sequence();
      gather_sequence();
      compute(attention(), 2, "attention backward");
      scatter_sequence();
      --unit;
      if (reduces) reduce_gradients(unit);
    }
    if (first()) {
      gather_sequence();
      if (reduces) reduce_gradients(0);
    } else {
      pp_.send(part_of_sequence(), pp_.rank() - 1, micro_batch).wait();
    }
  }

  // Parameters of the attention of a layer on this rank.
  int64_t attention() const {
    const int64_t kv = sizes_.hidden / sizes_.heads * sizes_.kv_heads;
    return (2 * sizes_.hidden * sizes_.hidden + 2 * sizes_.hidden * kv) / layout_.tp + sizes_.hidden;
  }

  const TransformerSizes& sizes_;
  const Layout& layout_;
  CallRecord& record_;
  ProcessGroup& world_;
  ProcessGroup& pp_;
  ProcessGroup& dp_;
  ProcessGroup& tp_;
  const int64_t layer_parameters_;
  const int64_t embedding_parameters_;
  const int64_t head_parameters_;
  std::vector<int64_t> parameters_;  // of the units that FSDP gathers, in the order of the forward pass
  std::vector<Work> gathered_;
  std::vector<Work> reduced_;
};

}  // namespace

int64_t TransformerSizes::layer_parameters() const {
  const int64_t kv = hidden / heads * kv_heads;
  return 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * ffn;
}

CostModel links_of_a_cluster() {
  return {.link = links::kInfinibandNdr,
          .dims = {{"tp", links::kNvlink4}, {"dp", links::kInfinibandNdr}, {"pp", links::kInfinibandNdr}},
          .algorithm = CostModel::Choice::kFaster};
}

std::shared_ptr<CallRecord> trace_step(const TransformerSizes& sizes, const Layout& layout, int rank,
                                       const CostModel& model) {
  want(layout.micro_batches > 0, "there must be at least one micro-batch");
  want_multiple(sizes.layers, layout.pp, "layers over pipeline stages");
  want_multiple(sizes.heads, layout.tp, "heads over tensor-parallel ranks");
  want_multiple(sizes.kv_heads, layout.tp, "key and value heads over tensor-parallel ranks");
  want_multiple(sizes.hidden, sizes.heads, "hidden size over heads");
  want_multiple(sizes.vocabulary, layout.tp, "vocabulary over tensor-parallel ranks");
  want_multiple(layout.sequence, layout.tp, "sequence over tensor-parallel ranks");
  auto record = std::make_shared<CallRecord>(model);
  const auto pg =
      make_fake_process_group({.rank = rank, .world_size = layout.world_size(), .options = {.record = record}});
  const DeviceMesh mesh = init_device_mesh(pg, {layout.pp, layout.dp, layout.tp}, {"pp", "dp", "tp"});
  Step(sizes, layout, mesh, *record).run();
  return record;
}

}  // namespace rankloom::example

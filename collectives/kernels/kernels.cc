#include "collectives/kernels/kernels.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "absl/container/inlined_vector.h"
#include "collectives/kernels/copy.h"
#include "collectives/kernels/parallel.h"
#include "collectives/kernels/reduce.h"
#include "sim/prng.h"

namespace rankloom {
namespace {

using internal::CopyBatch;
using internal::ReduceJob;

// Kernels run on fibers whose stacks are small: 64 pointers lie there, more on the heap.
using Inputs = absl::InlinedVector<const void*, 64>;
using Outputs = absl::InlinedVector<void*, 64>;

int64_t size_of(MemberCalls calls) { return static_cast<int64_t>(calls.size()); }
const CollectiveCall& member(MemberCalls calls, int64_t rank) { return *calls[static_cast<size_t>(rank)]; }
const CollectiveCall& root_of(MemberCalls calls) { return member(calls, calls[0]->root); }

char* at(const TensorView& tensor, int64_t element) {
  return static_cast<char*>(tensor.data()) + element * static_cast<int64_t>(dtype_size(tensor.dtype()));
}

// The order in which one call's inputs are added up.
class InputOrder {
 public:
  InputOrder(const ReduceOrder& order, int64_t ranks) : kind_(order.kind), ranks_(ranks) {
    if (kind_ != ReduceOrder::Kind::kSeeded) return;
    permutation_.resize(static_cast<size_t>(ranks));
    std::iota(permutation_.begin(), permutation_.end(), 0);
    Prng prng(order.seed);
    for (size_t i = permutation_.size(); i > 1; --i) std::swap(permutation_[i - 1], permutation_[prng.below(i)]);
  }

  // Whether elements of different chunks have different orders. There is one chunk for each rank.
  bool is_by_chunk() const { return kind_ == ReduceOrder::Kind::kRing; }

  // The inputs of chunk `chunk` in order, given from(rank).
  template <class From>
  Inputs list(int64_t chunk, From from) const {
    Inputs inputs;
    inputs.reserve(static_cast<size_t>(ranks_));
    switch (kind_) {
      case ReduceOrder::Kind::kRank:
      case ReduceOrder::Kind::kTree:
        for (int64_t r = 0; r < ranks_; ++r) inputs.push_back(from(r));
        break;
      case ReduceOrder::Kind::kReversed:
        for (int64_t r = ranks_; r-- > 0;) inputs.push_back(from(r));
        break;
      case ReduceOrder::Kind::kRing:
        for (int64_t i = 1; i <= ranks_; ++i) inputs.push_back(from((chunk + i) % ranks_));
        break;
      case ReduceOrder::Kind::kSeeded:
        for (const int64_t r : permutation_) inputs.push_back(from(r));
        break;
    }
    return inputs;
  }

 private:
  const ReduceOrder::Kind kind_;
  const int64_t ranks_;
  absl::InlinedVector<int64_t, 1> permutation_;
};

ReduceJob job_of(const CollectiveCall& call, DType dtype) {
  ReduceJob job;
  job.dtype = dtype;
  job.kind = call.reduce_op.kind();
  job.tree = call.order.kind == ReduceOrder::Kind::kTree;
  job.round_each = !call.order.accumulate_in_float;
  job.factor = call.reduce_op.factor();
  return job;
}

void set_inputs(ReduceJob& job, const Inputs& inputs) {
  job.inputs = inputs.data();
  job.count = static_cast<int64_t>(inputs.size());
}

void set_outputs(ReduceJob& job, const Outputs& outputs) {
  job.outputs = outputs.data();
  job.output_count = static_cast<int64_t>(outputs.size());
}

// Fewer bytes than this, read and written, are done by one core.
constexpr int64_t kParallelBytes = 1 << 20;
constexpr int64_t kGrainBytes = 256 << 10;

// Elements per block for parallel_blocks, if `buffers` of them are read or written; `numel` and more: do not split.
int64_t grain_of(int64_t numel, DType dtype, int64_t buffers) {
  const int64_t bytes_each = static_cast<int64_t>(dtype_size(dtype)) * buffers;
  if (numel * bytes_each < kParallelBytes) return numel;
  // A multiple of 1024, so that blocks begin where cache lines do if buffers do.
  return std::max<int64_t>(1, kGrainBytes / bytes_each / 1024) * 1024;
}

// Reduces tensor `i` of all members' inputs into the outputs.
void reduce_tensors(MemberCalls calls, const InputOrder& order, int i, const Outputs& outputs) {
  const TensorView& like = calls[0]->inputs[i];
  const int64_t numel = like.numel();
  if (numel == 0 || outputs.empty()) return;
  ReduceJob job = job_of(*calls[0], like.dtype());
  set_outputs(job, outputs);
  const auto input_of = [calls, i](int64_t r) { return member(calls, r).inputs[i].data(); };
  const int64_t grain = grain_of(numel, like.dtype(), size_of(calls) + job.output_count);
  if (order.is_by_chunk()) {
    const int64_t chunk_size = (numel + size_of(calls) - 1) / size_of(calls);
    internal::parallel_blocks(numel, grain, [&](int64_t begin, int64_t end) {
      ReduceJob part = job;
      while (begin < end) {
        const int64_t chunk = begin / chunk_size;
        const int64_t stop = std::min(end, (chunk + 1) * chunk_size);
        const Inputs inputs = order.list(chunk, input_of);
        set_inputs(part, inputs);
        internal::reduce_range(part, begin, stop);
        begin = stop;
      }
    });
    return;
  }
  const Inputs inputs = order.list(0, input_of);
  set_inputs(job, inputs);
  if (numel <= grain) {
    internal::reduce_range(job, 0, numel);
  } else {
    internal::parallel_blocks(numel, grain,
                              [&job](int64_t begin, int64_t end) { internal::reduce_range(job, begin, end); });
  }
}

// Reduces chunk r of all members' inputs into output r, for each r: size_of_chunk(r) elements; input_of(rank, r) and
// output_of(r) are where they begin.
template <class SizeOfChunk, class InputOf, class OutputOf>
void reduce_chunks(MemberCalls calls, const InputOrder& order, DType dtype, SizeOfChunk size_of_chunk, InputOf input_of,
                   OutputOf output_of) {
  const int64_t ranks = size_of(calls);
  absl::InlinedVector<int64_t, 64> ends;  // of the chunks, laid end to end
  int64_t all = 0;
  for (int64_t r = 0; r < ranks; ++r) ends.push_back(all += size_of_chunk(r));
  if (all == 0) return;
  const ReduceJob job = job_of(*calls[0], dtype);
  // An input is read once over all chunks, and one output is written for it.
  internal::parallel_blocks(all, grain_of(all, dtype, ranks + 1), [&](int64_t begin, int64_t end) {
    ReduceJob part = job;
    while (begin < end) {
      // The chunk that holds `begin`; empty ones end before it.
      const int64_t r = std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin();
      const int64_t start = r == 0 ? 0 : ends[static_cast<size_t>(r - 1)];
      const int64_t stop = std::min(end, ends[static_cast<size_t>(r)]);
      const Inputs inputs = order.list(r, [&input_of, r](int64_t rank) { return input_of(rank, r); });
      set_inputs(part, inputs);
      void* const output = output_of(r);
      part.outputs = &output;
      part.output_count = 1;
      internal::reduce_range(part, begin - start, stop - start);
      begin = stop;
    }
  });
}

// Copies every member's input to all members: to(receiver, sender) is where the sender's goes.
template <class To>
void gather_everywhere(MemberCalls calls, int i, To to) {
  const int64_t ranks = size_of(calls);
  int64_t all = 0;  // bytes of all inputs: they may differ in size
  for (const CollectiveCall* call : calls) all += static_cast<int64_t>(call->inputs[i].bytes());
  if (all == 0) return;
  CopyBatch batch(ranks * all);
  if (batch.at_once()) {
    struct Source {
      const void* data;
      size_t bytes;
    };
    absl::InlinedVector<Source, 64> sources;
    sources.reserve(calls.size());
    for (const CollectiveCall* call : calls) sources.push_back({call->inputs[i].data(), call->inputs[i].bytes()});
    for (int64_t receiver = 0; receiver < ranks; ++receiver) {
      for (int64_t sender = 0; sender < ranks; ++sender) {
        const Source& source = sources[static_cast<size_t>(sender)];
        if (source.bytes != 0) batch.add(to(receiver, sender), source.data, source.bytes);
      }
    }
    return;
  }
  for (int64_t sender = 0; sender < ranks; ++sender) {
    const TensorView& from = member(calls, sender).inputs[i];
    if (from.bytes() == 0) continue;
    for (int64_t receiver = 0; receiver < ranks; ++receiver) batch.add(to(receiver, sender), from.data(), from.bytes());
  }
  batch.run();
}

int64_t bytes_of_row(const TensorView& tensor) {
  auto bytes = static_cast<int64_t>(dtype_size(tensor.dtype()));
  for (size_t i = 1; i < tensor.sizes().size(); ++i) bytes *= tensor.sizes()[i];
  return bytes;
}

}  // namespace

void run_broadcast(MemberCalls calls) {
  const TensorView& source = root_of(calls).outputs[0];
  CopyBatch batch(size_of(calls) * static_cast<int64_t>(source.bytes()));
  for (const CollectiveCall* call : calls) batch.add(call->outputs[0].data(), source.data(), source.bytes());
  batch.run();
}

void run_all_reduce(MemberCalls calls) {
  const InputOrder order(calls[0]->order, size_of(calls));
  for (int i = 0; i < calls[0]->outputs.size(); ++i) {
    Outputs outputs;
    outputs.reserve(calls.size());
    for (const CollectiveCall* call : calls) outputs.push_back(call->outputs[i].data());
    reduce_tensors(calls, order, i, outputs);
  }
}

void run_reduce(MemberCalls calls) {
  const InputOrder order(calls[0]->order, size_of(calls));
  reduce_tensors(calls, order, 0, {root_of(calls).outputs[0].data()});
}

void run_all_gather(MemberCalls calls) {
  gather_everywhere(calls, 0, [calls](int64_t receiver, int64_t sender) {
    return member(calls, receiver).outputs[static_cast<int>(sender)].data();
  });
}

void run_all_gather_into_tensor(MemberCalls calls) {
  for (int i = 0; i < calls[0]->inputs.size(); ++i) {
    const int64_t numel = calls[0]->inputs[i].numel();
    gather_everywhere(calls, i, [calls, i, numel](int64_t receiver, int64_t sender) {
      return at(member(calls, receiver).outputs[i], sender * numel);
    });
  }
}

void run_gather(MemberCalls calls) {
  const TensorList& outputs = root_of(calls).outputs;
  const size_t bytes = calls[0]->inputs[0].bytes();
  CopyBatch batch(size_of(calls) * static_cast<int64_t>(bytes));
  for (int r = 0; r < outputs.size(); ++r) batch.add(outputs[r].data(), member(calls, r).inputs[0].data(), bytes);
  batch.run();
}

void run_scatter(MemberCalls calls) {
  const TensorList& inputs = root_of(calls).inputs;
  const size_t bytes = calls[0]->outputs[0].bytes();
  CopyBatch batch(size_of(calls) * static_cast<int64_t>(bytes));
  for (int r = 0; r < inputs.size(); ++r) batch.add(member(calls, r).outputs[0].data(), inputs[r].data(), bytes);
  batch.run();
}

void run_reduce_scatter(MemberCalls calls) {
  const InputOrder order(calls[0]->order, size_of(calls));
  reduce_chunks(
      calls, order, calls[0]->outputs[0].dtype(),
      [calls](int64_t chunk) { return member(calls, chunk).outputs[0].numel(); },
      [calls](int64_t rank, int64_t chunk) { return member(calls, rank).inputs[static_cast<int>(chunk)].data(); },
      [calls](int64_t chunk) { return member(calls, chunk).outputs[0].data(); });
}

void run_reduce_scatter_tensor(MemberCalls calls) {
  const InputOrder order(calls[0]->order, size_of(calls));
  for (int i = 0; i < calls[0]->outputs.size(); ++i) {
    const TensorView& like = calls[0]->outputs[i];
    const int64_t numel = like.numel();
    reduce_chunks(
        calls, order, like.dtype(), [numel](int64_t /*chunk*/) { return numel; },
        [calls, i, numel](int64_t rank, int64_t chunk) { return at(member(calls, rank).inputs[i], chunk * numel); },
        [calls, i](int64_t chunk) { return member(calls, chunk).outputs[i].data(); });
  }
}

void run_all_to_all(MemberCalls calls) {
  int64_t total = 0;
  for (const CollectiveCall* call : calls) {
    for (const TensorView& output : call->outputs) total += static_cast<int64_t>(output.bytes());
  }
  CopyBatch batch(total);
  for (int receiver = 0; receiver < static_cast<int>(calls.size()); ++receiver) {
    const TensorList& outputs = member(calls, receiver).outputs;
    for (int sender = 0; sender < outputs.size(); ++sender) {
      batch.add(outputs[sender].data(), member(calls, sender).inputs[receiver].data(), outputs[sender].bytes());
    }
  }
  batch.run();
}

void run_all_to_all_single(MemberCalls calls) {
  const int64_t ranks = size_of(calls);
  int64_t total = 0;
  for (const CollectiveCall* call : calls) total += static_cast<int64_t>(call->outputs[0].bytes());
  if (total == 0) return;
  CopyBatch batch(total);
  // How far each sender's input is used up by the receivers so far.
  absl::InlinedVector<int64_t, 64> sent(calls.size(), 0);
  for (int64_t receiver = 0; receiver < ranks; ++receiver) {
    const CollectiveCall& call = member(calls, receiver);
    char* to = at(call.outputs[0], 0);
    const int64_t row = bytes_of_row(call.outputs[0]);
    const int64_t equal_part = static_cast<int64_t>(call.outputs[0].bytes()) / ranks;
    for (int64_t sender = 0; sender < ranks; ++sender) {
      const auto s = static_cast<size_t>(sender);
      const int64_t bytes = call.out_splits.empty() ? equal_part : call.out_splits[s] * row;
      if (bytes != 0) batch.add(to, at(member(calls, sender).inputs[0], 0) + sent[s], static_cast<size_t>(bytes));
      sent[s] += bytes;
      to += bytes;
    }
  }
  batch.run();
}

void run_nothing(MemberCalls calls) { static_cast<void>(calls); }

bool reduction_supported(ReduceOp op, DType dtype) {
  const bool is_bool = dtype == DType::kBool;
  if (!is_floating(dtype) && !is_complex(dtype) && !is_integral(dtype) && !is_bool) return false;
  switch (op.kind()) {
    case ReduceOp::Kind::kSum:
    case ReduceOp::Kind::kProduct:
      return true;
    case ReduceOp::Kind::kAvg:
      return is_floating(dtype) || is_complex(dtype);
    case ReduceOp::Kind::kMin:
    case ReduceOp::Kind::kMax:
      return !is_complex(dtype);
    case ReduceOp::Kind::kBand:
    case ReduceOp::Kind::kBor:
    case ReduceOp::Kind::kBxor:
      return is_integral(dtype) || is_bool;
    case ReduceOp::Kind::kPremulSum:
      return is_floating(dtype);
  }
  return false;
}

}  // namespace rankloom

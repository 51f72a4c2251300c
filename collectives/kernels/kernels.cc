#include "collectives/kernels/kernels.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/container/fixed_array.h"
#include "absl/container/inlined_vector.h"
#include "collectives/kernels/copy.h"
#include "collectives/kernels/parallel.h"
#include "collectives/kernels/plan.h"
#include "collectives/kernels/reduce.h"
#include "rankloom/random.h"

namespace rankloom::internal {
namespace {

// Kernels run on fibers whose stacks are small: 64 pointers lie there, more on the heap. Not initialised, since filling
// these is a good part of a reduction of one element.
using Pointers = absl::FixedArray<void*, 64>;

int64_t size_of(MemberCalls calls) { return static_cast<int64_t>(calls.size()); }
const CollectiveCall& member(MemberCalls calls, int64_t rank) { return *calls[static_cast<size_t>(rank)]; }
const CollectiveCall& root_of(MemberCalls calls) { return member(calls, calls[0]->root); }

char* at(const TensorView& tensor, int64_t element) {
  return static_cast<char*>(tensor.data()) + element * static_cast<int64_t>(dtype_size(tensor.dtype()));
}

// Brings the inputs of chunk `chunk`, given by rank, into the order in which they are added up. A ring has one chunk of
// the elements for each rank, and each begins elsewhere; to the other orders all chunks are the same.
void arrange(const ReduceOp::Order& order, int64_t chunk, Pointers& inputs) {
  switch (order.kind) {
    case ReduceOp::Order::Kind::kRank:
    case ReduceOp::Order::Kind::kTree:
      return;
    case ReduceOp::Order::Kind::kReversed:
      std::reverse(inputs.begin(), inputs.end());
      return;
    case ReduceOp::Order::Kind::kRing: {
      const int64_t first = (chunk + 1) % static_cast<int64_t>(inputs.size());
      std::rotate(inputs.begin(), inputs.begin() + first, inputs.end());
      return;
    }
    case ReduceOp::Order::Kind::kSeeded: {
      Prng prng(order.seed);
      for (size_t i = inputs.size(); i > 1; --i) std::swap(inputs[i - 1], inputs[prng.below(i)]);
      return;
    }
  }
}

ReduceJob job_of(const CollectiveCall& call, DType dtype, absl::Span<void* const> inputs,
                 absl::Span<void* const> outputs) {
  return {.dtype = dtype,
          .kind = call.reduce_op.kind(),
          .tree = call.order.kind == ReduceOp::Order::Kind::kTree,
          .round_each = !call.order.accumulate_in_float,
          .factor = call.reduce_op.factor(),
          .inputs = inputs.data(),
          .count = static_cast<int64_t>(inputs.size()),
          .outputs = outputs.data(),
          .output_count = static_cast<int64_t>(outputs.size())};
}

// Fewer bytes than this, read and written, are done by one core.
constexpr int64_t kParallelBytes = 1 << 20;
constexpr int64_t kGrainBytes = 256 << 10;

// Elements per block for parallel_blocks, if `buffers` of them are read or written; `numel` itself: do not split.
int64_t grain_of(int64_t numel, DType dtype, int64_t buffers) {
  const int64_t bytes_each = static_cast<int64_t>(dtype_size(dtype)) * buffers;
  if (numel * bytes_each < kParallelBytes) return numel;
  // A multiple of 1024, so that blocks begin where cache lines do if buffers do.
  return std::max<int64_t>(1, kGrainBytes / bytes_each / 1024) * 1024;
}

// A ring's chunks: of so many elements, but for the last ones.
int64_t ring_chunk(int64_t numel, int64_t ranks) { return (numel + ranks - 1) / ranks; }

// The work of reduce_buffers(), as jobs of a plan.
void plan_buffers(const CollectiveCall& call, ReduceJob job, int64_t numel, Pointers& inputs, KernelPlan& plan) {
  if (call.order.kind != ReduceOp::Order::Kind::kRing) {
    Pointers ordered(inputs.begin(), inputs.end());  // the inputs may be the outputs
    arrange(call.order, 0, ordered);
    job.inputs = ordered.data();
    plan.add_reduce(job, 0, numel);
    return;
  }
  const int64_t chunk_size = ring_chunk(numel, job.count);
  for (int64_t chunk = 0; chunk * chunk_size < numel; ++chunk) {
    Pointers ordered(inputs.begin(), inputs.end());
    arrange(call.order, chunk, ordered);
    job.inputs = ordered.data();
    plan.add_reduce(job, chunk * chunk_size, std::min(numel, (chunk + 1) * chunk_size));
  }
}

// Reduces `numel` elements of the inputs, which are by rank, into the outputs. Orders the inputs.
void reduce_buffers(const CollectiveCall& call, DType dtype, int64_t numel, Pointers& inputs,
                    absl::Span<void* const> outputs, KernelPlan* plan) {
  ReduceJob job = job_of(call, dtype, inputs, outputs);
  if (plan != nullptr) [[unlikely]]
    return plan_buffers(call, job, numel, inputs, *plan);
  const int64_t grain = grain_of(numel, dtype, job.count + job.output_count);
  if (call.order.kind != ReduceOp::Order::Kind::kRing) {
    arrange(call.order, 0, inputs);
    if (numel <= grain) return reduce_range(job, 0, numel);
    parallel_blocks(numel, grain, [&job](int64_t begin, int64_t end) { reduce_range(job, begin, end); });
    return;
  }
  const int64_t chunk_size = ring_chunk(numel, job.count);
  parallel_blocks(numel, grain, [&](int64_t begin, int64_t end) {
    ReduceJob part = job;
    while (begin < end) {
      const int64_t chunk = begin / chunk_size;
      const int64_t stop = std::min(end, (chunk + 1) * chunk_size);
      Pointers ordered(inputs.begin(), inputs.end());
      arrange(call.order, chunk, ordered);
      part.inputs = ordered.data();
      reduce_range(part, begin, stop);
      begin = stop;
    }
  });
}

// Reduces chunk r of all members' inputs into output r, for each r: size_of_chunk(r) elements; input_of(rank, r) and
// output_of(r) are where they begin.
template <class SizeOfChunk, class InputOf, class OutputOf>
void reduce_chunks(MemberCalls calls, DType dtype, KernelPlan* plan, SizeOfChunk size_of_chunk, InputOf input_of,
                   OutputOf output_of) {
  const int64_t ranks = size_of(calls);
  // The reduction of chunk r.
  const auto job = [&](int64_t r, Pointers& inputs, void* const& output) {
    for (int64_t rank = 0; rank < ranks; ++rank) inputs[static_cast<size_t>(rank)] = input_of(rank, r);
    arrange(calls[0]->order, r, inputs);
    return job_of(*calls[0], dtype, inputs, {&output, 1});
  };
  if (plan != nullptr) [[unlikely]] {
    Pointers inputs(calls.size());
    for (int64_t r = 0; r < ranks; ++r) {
      if (size_of_chunk(r) == 0) continue;
      void* const output = output_of(r);
      plan->add_reduce(job(r, inputs, output), 0, size_of_chunk(r));
    }
    return;
  }
  absl::FixedArray<int64_t, 64> ends(calls.size());  // of the chunks, laid end to end
  int64_t all = 0;
  for (int64_t r = 0; r < ranks; ++r) ends[static_cast<size_t>(r)] = all += size_of_chunk(r);
  if (all == 0) return;
  // An input is read once over all chunks, and one output is written for it.
  parallel_blocks(all, grain_of(all, dtype, ranks + 1), [&](int64_t begin, int64_t end) {
    Pointers inputs(calls.size());
    while (begin < end) {
      // The chunk that holds `begin`; empty ones end before it.
      const int64_t r = std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin();
      const int64_t start = r == 0 ? 0 : ends[static_cast<size_t>(r - 1)];
      const int64_t stop = std::min(end, ends[static_cast<size_t>(r)]);
      void* const output = output_of(r);
      reduce_range(job(r, inputs, output), begin - start, stop - start);
      begin = stop;
    }
  });
}

// reduce_chunks() for inputs and outputs that are one tensor each, chunks of `numel` elements that are small, and
// orders that do not depend on the chunk: reduces blocks of many chunks, and deals out the results.
void reduce_small_chunks(MemberCalls calls, int i, int64_t numel) {
  const DType dtype = calls[0]->outputs[i].dtype();
  const size_t bytes = calls[0]->outputs[i].bytes();
  const int64_t ranks = size_of(calls);
  // Chunks in a block: its results stay in the L1 cache.
  const int64_t chunks = static_cast<int64_t>(std::max<size_t>(1, (8 << 10) / std::max<size_t>(1, bytes)));
  const int64_t grain = grain_of(ranks * numel, dtype, ranks + 1);
  parallel_blocks(ranks, std::max<int64_t>(1, grain / numel), [&](int64_t begin, int64_t end) {
    const auto results =
        std::make_unique_for_overwrite<char[]>(static_cast<size_t>(std::min(chunks, end - begin)) * bytes);
    void* const output = results.get();
    Pointers inputs(calls.size());
    for (int64_t chunk = begin; chunk < end; chunk += chunks) {
      const int64_t stop = std::min(end, chunk + chunks);
      std::transform(calls.begin(), calls.end(), inputs.begin(),
                     [&](const CollectiveCall* call) { return at(call->inputs[i], chunk * numel); });
      arrange(calls[0]->order, 0, inputs);
      reduce_range(job_of(*calls[0], dtype, inputs, {&output, 1}), 0, (stop - chunk) * numel);
      for (int64_t r = chunk; r < stop; ++r)
        copy_few(member(calls, r).outputs[i].data(), results.get() + static_cast<size_t>(r - chunk) * bytes, bytes);
    }
  });
}

// Copies every member's input to all members: to(receiver, sender) is where the sender's goes. Inputs may differ in
// size.
template <class To>
void gather_everywhere(MemberCalls calls, int i, KernelPlan* plan, To to) {
  const int64_t ranks = size_of(calls);
  int64_t all = 0;
  for (const CollectiveCall* call : calls) all += static_cast<int64_t>(call->inputs[i].bytes());
  if (all == 0) return;
  CopyBatch batch(ranks * all, plan);
  if (!batch.at_once()) {
    for (int64_t sender = 0; sender < ranks; ++sender) {
      const TensorView& from = member(calls, sender).inputs[i];
      if (from.bytes() == 0) continue;
      for (int64_t receiver = 0; receiver < ranks; ++receiver) {
        batch.add(to(receiver, sender), from.data(), from.bytes());
      }
    }
    batch.run();
    return;
  }
  struct Source {
    const void* data;
    size_t bytes;
  };
  absl::FixedArray<Source, 64> sources(calls.size());
  std::transform(calls.begin(), calls.end(), sources.begin(), [i](const CollectiveCall* call) {
    return Source{call->inputs[i].data(), call->inputs[i].bytes()};
  });
  for (int64_t receiver = 0; receiver < ranks; ++receiver) {
    for (int64_t sender = 0; sender < ranks; ++sender) {
      const Source& source = sources[static_cast<size_t>(sender)];
      if (source.bytes != 0) batch.add(to(receiver, sender), source.data, source.bytes);
    }
  }
}

// gather_everywhere() for outputs that are one tensor each and inputs that are small: the first member's output is put
// together, and the others get copies of it.
void gather_small(MemberCalls calls, int i) {
  const TensorView& first = calls[0]->outputs[i];
  const size_t bytes = calls[0]->inputs[i].bytes();
  char* to = at(first, 0);
  for (const CollectiveCall* call : calls) {
    if (to != call->inputs[i].data()) copy_few(to, call->inputs[i].data(), bytes);
    to += bytes;
  }
  CopyBatch batch((size_of(calls) - 1) * static_cast<int64_t>(first.bytes()));
  for (const CollectiveCall* call : calls.subspan(1)) batch.add(call->outputs[i].data(), first.data(), first.bytes());
  batch.run();
}

// An exchange of many small parts goes in square tiles, on all cores: what a tile reads and writes stays in the caches,
// and its pages in the first level of the TLB.
struct Tile {
  int64_t first_receiver;
  int64_t receiver_end;
  int64_t first_sender;
  int64_t sender_end;
};
constexpr int64_t kTile = 32;

// Calls exchange(tile, scratch) for all tiles. `bytes`: of all parts together. The scratch memory is a core's own, and
// of the heap: kernels run on fibers whose stacks are small.
template <class Exchange>
void for_tiles(int64_t ranks, int64_t bytes, size_t scratch_bytes, Exchange exchange) {
  const int64_t across = (ranks + kTile - 1) / kTile;
  const int64_t tile_bytes = std::max<int64_t>(1, bytes / (across * across));
  parallel_blocks(across * across, std::max<int64_t>(1, kGrainBytes / tile_bytes), [&](int64_t begin, int64_t end) {
    const auto scratch = std::make_unique_for_overwrite<char[]>(scratch_bytes);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t receiver = i / across * kTile;
      const int64_t sender = i % across * kTile;
      exchange(Tile{.first_receiver = receiver,
                    .receiver_end = std::min(ranks, receiver + kTile),
                    .first_sender = sender,
                    .sender_end = std::min(ranks, sender + kTile)},
               scratch.get());
    }
  });
}

// Exchanges parts of kBytes, which lie in one tensor of each member. A tile is read into a table first: buffers often
// begin at the same place of a page, so that a column of them would share a few cache lines.
template <size_t kBytes>
void exchange_tiny_parts(MemberCalls calls, int64_t total) {
  for_tiles(size_of(calls), total, kTile * kTile * kBytes, [calls](const Tile& tile, char* table) {
    const size_t row = static_cast<size_t>(tile.receiver_end - tile.first_receiver) * kBytes;
    for (int64_t s = tile.first_sender; s < tile.sender_end; ++s) {
      std::memcpy(table + static_cast<size_t>(s - tile.first_sender) * row,
                  at(member(calls, s).inputs[0], 0) + static_cast<size_t>(tile.first_receiver) * kBytes, row);
    }
    for (int64_t r = tile.first_receiver; r < tile.receiver_end; ++r) {
      const char* from = table + static_cast<size_t>(r - tile.first_receiver) * kBytes;
      char* to = at(member(calls, r).outputs[0], 0) + static_cast<size_t>(tile.first_sender) * kBytes;
      for (int64_t s = tile.first_sender; s < tile.sender_end; ++s, from += row, to += kBytes)
        std::memcpy(to, from, kBytes);
    }
  });
}

// Calls exchange(receiver, sender) for all pairs.
template <class Exchange>
void for_pairs_in_tiles(int64_t ranks, int64_t bytes, Exchange exchange) {
  for_tiles(ranks, bytes, 0, [&](const Tile& tile, char* /*scratch*/) {
    for (int64_t r = tile.first_receiver; r < tile.receiver_end; ++r) {
      for (int64_t s = tile.first_sender; s < tile.sender_end; ++s) exchange(r, s);
    }
  });
}

// Whether the parts of an exchange, `total` bytes in all and the largest of `largest`, are small, and so many that
// tiles pay.
bool many_small_parts(int64_t total, int64_t largest, const KernelPlan* plan) {
  return plan == nullptr && total >= kParallelBytes && largest < kSmallBytes;
}

// The coalesced forms do one tensor after the other.
void end_tensor(const TensorList& tensors, KernelPlan* plan) {
  if (plan != nullptr && tensors.size() > 1) plan->end_stage();
}

int64_t bytes_of_row(const TensorView& tensor) {
  if (tensor.bytes() == 0) return 0;  // other sizes may be any
  auto bytes = static_cast<int64_t>(dtype_size(tensor.dtype()));
  for (size_t i = 1; i < tensor.sizes().size(); ++i) bytes *= tensor.sizes()[i];
  return bytes;
}

}  // namespace

void run_broadcast(MemberCalls calls, KernelPlan* plan) {
  const TensorView& source = root_of(calls).outputs[0];
  CopyBatch batch(size_of(calls) * static_cast<int64_t>(source.bytes()), plan);
  for (const CollectiveCall* call : calls) batch.add(call->outputs[0].data(), source.data(), source.bytes());
  batch.run();
}

void run_all_reduce(MemberCalls calls, KernelPlan* plan) {
  for (int i = 0; i < calls[0]->outputs.size(); ++i) {
    const TensorView& like = calls[0]->outputs[i];
    if (like.numel() == 0) continue;
    Pointers inputs(calls.size());
    bool in_place = true;
    auto next = inputs.begin();
    for (const CollectiveCall* call : calls) {
      *next = call->inputs[i].data();
      in_place = in_place && *next == call->outputs[i].data();
      ++next;
    }
    if (in_place) {
      reduce_buffers(*calls[0], like.dtype(), like.numel(), inputs, inputs, plan);
    } else {  // inputs were kept aside, and these are the copies
      Pointers outputs(calls.size());
      std::transform(calls.begin(), calls.end(), outputs.begin(),
                     [i](const CollectiveCall* call) { return call->outputs[i].data(); });
      reduce_buffers(*calls[0], like.dtype(), like.numel(), inputs, outputs, plan);
    }
    end_tensor(calls[0]->outputs, plan);
  }
}

void run_reduce(MemberCalls calls, KernelPlan* plan) {
  const TensorView& output = root_of(calls).outputs[0];
  if (output.numel() == 0) return;
  Pointers inputs(calls.size());
  std::transform(calls.begin(), calls.end(), inputs.begin(),
                 [](const CollectiveCall* call) { return call->inputs[0].data(); });
  void* const data = output.data();
  reduce_buffers(*calls[0], output.dtype(), output.numel(), inputs, {&data, 1}, plan);
}

void run_all_gather(MemberCalls calls, KernelPlan* plan) {
  gather_everywhere(calls, 0, plan, [calls](int64_t receiver, int64_t sender) {
    return member(calls, receiver).outputs[static_cast<int>(sender)].data();
  });
}

void run_all_gather_into_tensor(MemberCalls calls, KernelPlan* plan) {
  for (int i = 0; i < calls[0]->inputs.size(); ++i) {
    const int64_t numel = calls[0]->inputs[i].numel();
    if (plan == nullptr && numel > 0 && calls[0]->inputs[i].bytes() < kSmallBytes) {
      gather_small(calls, i);
      continue;
    }
    gather_everywhere(calls, i, plan, [calls, i, numel](int64_t receiver, int64_t sender) {
      return at(member(calls, receiver).outputs[i], sender * numel);
    });
    end_tensor(calls[0]->inputs, plan);
  }
}

void run_gather(MemberCalls calls, KernelPlan* plan) {
  const TensorList& outputs = root_of(calls).outputs;
  const size_t bytes = calls[0]->inputs[0].bytes();
  CopyBatch batch(size_of(calls) * static_cast<int64_t>(bytes), plan);
  for (int r = 0; r < outputs.size(); ++r) batch.add(outputs[r].data(), member(calls, r).inputs[0].data(), bytes);
  batch.run();
}

void run_scatter(MemberCalls calls, KernelPlan* plan) {
  const TensorList& inputs = root_of(calls).inputs;
  const size_t bytes = calls[0]->outputs[0].bytes();
  CopyBatch batch(size_of(calls) * static_cast<int64_t>(bytes), plan);
  for (int r = 0; r < inputs.size(); ++r) batch.add(member(calls, r).outputs[0].data(), inputs[r].data(), bytes);
  batch.run();
}

void run_reduce_scatter(MemberCalls calls, KernelPlan* plan) {
  reduce_chunks(
      calls, calls[0]->outputs[0].dtype(), plan,
      [calls](int64_t chunk) { return member(calls, chunk).outputs[0].numel(); },
      [calls](int64_t rank, int64_t chunk) { return member(calls, rank).inputs[static_cast<int>(chunk)].data(); },
      [calls](int64_t chunk) { return member(calls, chunk).outputs[0].data(); });
}

void run_reduce_scatter_tensor(MemberCalls calls, KernelPlan* plan) {
  for (int i = 0; i < calls[0]->outputs.size(); ++i) {
    const TensorView& like = calls[0]->outputs[i];
    const int64_t numel = like.numel();
    if (plan == nullptr && numel > 0 && like.bytes() < kSmallBytes &&
        calls[0]->order.kind != ReduceOp::Order::Kind::kRing) {
      reduce_small_chunks(calls, i, numel);
      continue;
    }
    reduce_chunks(
        calls, like.dtype(), plan, [numel](int64_t /*chunk*/) { return numel; },
        [calls, i, numel](int64_t rank, int64_t chunk) { return at(member(calls, rank).inputs[i], chunk * numel); },
        [calls, i](int64_t chunk) { return member(calls, chunk).outputs[i].data(); });
    end_tensor(calls[0]->outputs, plan);
  }
}

void run_all_to_all(MemberCalls calls, KernelPlan* plan) {
  int64_t total = 0;
  int64_t largest = 0;
  for (const CollectiveCall* call : calls) {
    for (const TensorView& output : call->outputs) {
      total += static_cast<int64_t>(output.bytes());
      largest = std::max(largest, static_cast<int64_t>(output.bytes()));
    }
  }
  if (many_small_parts(total, largest, plan)) {
    for_pairs_in_tiles(size_of(calls), total, [calls](int64_t receiver, int64_t sender) {
      const TensorView& to = member(calls, receiver).outputs[static_cast<int>(sender)];
      const void* const from = member(calls, sender).inputs[static_cast<int>(receiver)].data();
      if (to.data() != from && to.bytes() != 0) copy_few(to.data(), from, to.bytes());
    });
    return;
  }
  CopyBatch batch(total, plan);
  for (int receiver = 0; receiver < static_cast<int>(calls.size()); ++receiver) {
    const TensorList& outputs = member(calls, receiver).outputs;
    for (int sender = 0; sender < outputs.size(); ++sender) {
      batch.add(outputs[sender].data(), member(calls, sender).inputs[receiver].data(), outputs[sender].bytes());
    }
  }
  batch.run();
}

void run_all_to_all_single(MemberCalls calls, KernelPlan* plan) {
  const int64_t ranks = size_of(calls);
  int64_t total = 0;
  for (const CollectiveCall* call : calls) total += static_cast<int64_t>(call->outputs[0].bytes());
  if (total == 0) return;
  const bool equal_parts = std::all_of(calls.begin(), calls.end(), [](const CollectiveCall* call) {
    return call->in_splits.empty() && call->out_splits.empty();
  });
  const auto bytes = static_cast<size_t>(total / (ranks * ranks));
  if (equal_parts && many_small_parts(total, static_cast<int64_t>(bytes), plan)) {
    if (bytes == 1) return exchange_tiny_parts<1>(calls, total);
    if (bytes == 2) return exchange_tiny_parts<2>(calls, total);
    if (bytes == 4) return exchange_tiny_parts<4>(calls, total);
    if (bytes == 8) return exchange_tiny_parts<8>(calls, total);
    for_pairs_in_tiles(ranks, total, [calls, bytes](int64_t receiver, int64_t sender) {
      char* const to = at(member(calls, receiver).outputs[0], 0) + static_cast<size_t>(sender) * bytes;
      const char* const from = at(member(calls, sender).inputs[0], 0) + static_cast<size_t>(receiver) * bytes;
      if (to != from) copy_few(to, from, bytes);
    });
    return;
  }
  CopyBatch batch(total, plan);
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

void run_nothing(MemberCalls /*calls*/, KernelPlan* /*plan*/) {}

void reduce_gathered(const CollectiveCall& call, DType dtype, int64_t numel, absl::Span<void* const> inputs,
                     void* output) {
  if (numel == 0) return;
  Pointers ordered(inputs.begin(), inputs.end());
  reduce_buffers(call, dtype, numel, ordered, {&output, 1}, nullptr);
}

void reduce_gathered_chunk(const CollectiveCall& call, DType dtype, int64_t chunk, int64_t numel,
                           absl::Span<void* const> inputs, void* output) {
  if (numel == 0) return;
  Pointers ordered(inputs.begin(), inputs.end());
  arrange(call.order, chunk, ordered);
  const ReduceJob job = job_of(call, dtype, ordered, {&output, 1});
  parallel_blocks(numel, grain_of(numel, dtype, job.count + 1),
                  [&job](int64_t begin, int64_t end) { reduce_range(job, begin, end); });
}

int64_t gathered_chunk(int64_t numel, int64_t ranks) { return ring_chunk(numel, ranks); }

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

}  // namespace rankloom::internal

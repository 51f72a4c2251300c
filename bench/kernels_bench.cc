// The kernels alone, on one thread's call and without ranks: what a collective costs once its members have met.
// docs/decisions/0005-kernels.md holds the figures and what was decided by them.

#include <cstdint>
#include <cstring>
#include <vector>

#include "benchmark/benchmark.h"
#include "collectives/kernels/kernels.h"
#include "collectives/kernels/parallel.h"

namespace rankloom {

using namespace internal;

namespace {

// Buffers of all members and their calls. Buffers begin at changing offsets of a page, as malloc's do.
class Members {
 public:
  Members(OpType op, int ranks, int64_t input_numel, int64_t output_numel, DType dtype, ReduceOp reduce_op = {}) {
    const size_t element = dtype_size(dtype);
    const bool in_place = op == OpType::kAllReduce || op == OpType::kBroadcast;
    for (int r = 0; r < ranks; ++r) {
      CollectiveCall call;
      call.op = op;
      call.reduce_op = reduce_op;
      call.root = 0;
      TensorView output(buffer(static_cast<size_t>(output_numel) * element), dtype, {output_numel});
      call.inputs =
          in_place ? output : TensorView(buffer(static_cast<size_t>(input_numel) * element), dtype, {input_numel});
      call.outputs = std::move(output);
      calls_.push_back(std::move(call));
    }
    for (const CollectiveCall& call : calls_) by_rank_.push_back(&call);
  }

  MemberCalls calls() const { return by_rank_; }

 private:
  void* buffer(size_t bytes) {
    const size_t offset = (buffers_.size() * 16 * 5) % 4096;
    buffers_.emplace_back(bytes + offset + 4096);
    std::memset(buffers_.back().data(), 0, buffers_.back().size());
    return buffers_.back().data() + offset;
  }

  std::vector<std::vector<char>> buffers_;
  std::vector<CollectiveCall> calls_;
  std::vector<const CollectiveCall*> by_rank_;
};

void all_reduce(benchmark::State& state, DType dtype, ReduceOp reduce_op) {
  const auto ranks = static_cast<int>(state.range(0));
  const int64_t numel = state.range(1);
  const Members members(OpType::kAllReduce, ranks, numel, numel, dtype, reduce_op);
  for (auto _ : state) {
    run_all_reduce(members.calls());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * 2 * ranks * numel * static_cast<int64_t>(dtype_size(dtype)));
}
BENCHMARK_CAPTURE(all_reduce, float32_sum, DType::kFloat32, ReduceOp::kSum)
    ->Args({1, 1})
    ->Args({4, 1})
    ->Args({16, 1})
    ->Args({64, 1})
    ->Args({1024, 1})
    ->Args({4, 7})
    ->Args({4, 1024})
    ->Args({16, 1024})
    ->Args({64, 1024})
    ->Args({1024, 1024})
    ->Args({4, 16384})
    ->Args({4, 65536})
    ->Args({4, 262144})
    ->Args({4, 1048576})
    ->Args({4, 8388608})
    ->MeasureProcessCPUTime()
    ->UseRealTime();
BENCHMARK_CAPTURE(all_reduce, float32_max, DType::kFloat32, ReduceOp::kMax)->Args({4, 1024})->Args({64, 1024});
BENCHMARK_CAPTURE(all_reduce, float32_avg, DType::kFloat32, ReduceOp::kAvg)->Args({4, 1024})->Args({64, 1024});
BENCHMARK_CAPTURE(all_reduce, float64_sum, DType::kFloat64, ReduceOp::kSum)->Args({4, 1024})->Args({64, 1024});
BENCHMARK_CAPTURE(all_reduce, float16_sum, DType::kFloat16, ReduceOp::kSum)->Args({4, 1024})->Args({64, 1024});
BENCHMARK_CAPTURE(all_reduce, bfloat16_sum, DType::kBFloat16, ReduceOp::kSum)->Args({4, 1024})->Args({64, 1024});
BENCHMARK_CAPTURE(all_reduce, int64_sum, DType::kInt64, ReduceOp::kSum)->Args({4, 1024})->Args({64, 1024});
BENCHMARK_CAPTURE(all_reduce, uint8_product, DType::kUInt8, ReduceOp::kProduct)->Args({4, 1024})->Args({64, 1024});

// The limit of the memory: every byte of all ranks is read once and written once, on all cores, as memcpy does it.
void copy_floor(benchmark::State& state) {
  const int64_t bytes = state.range(0) * state.range(1) * 4;
  const std::vector<char> from(static_cast<size_t>(bytes), 1);
  std::vector<char> to(static_cast<size_t>(bytes), 2);
  for (auto _ : state) {
    internal::parallel_blocks(bytes, 1 << 20, [&](int64_t begin, int64_t end) {
      std::memcpy(to.data() + begin, from.data() + begin, static_cast<size_t>(end - begin));
    });
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * 2 * bytes);
}
BENCHMARK(copy_floor)
    ->Args({4, 262144})
    ->Args({4, 1048576})
    ->Args({4, 8388608})
    ->MeasureProcessCPUTime()
    ->UseRealTime();

void all_gather_into_tensor(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  const int64_t numel = state.range(1);
  const Members members(OpType::kAllGatherIntoTensor, ranks, numel, ranks * numel, DType::kFloat32);
  for (auto _ : state) {
    run_all_gather_into_tensor(members.calls());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * ranks * (ranks + 1) * numel * 4);
}
BENCHMARK(all_gather_into_tensor)
    ->Args({4, 1})
    ->Args({64, 1})
    ->Args({4, 1024})
    ->Args({64, 1024})
    ->Args({4, 1048576})
    ->MeasureProcessCPUTime()
    ->UseRealTime();

void broadcast(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  const int64_t numel = state.range(1);
  const Members members(OpType::kBroadcast, ranks, numel, numel, DType::kFloat32);
  for (auto _ : state) {
    run_broadcast(members.calls());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * ranks * numel * 4);
}
BENCHMARK(broadcast)
    ->Args({4, 1})
    ->Args({64, 1})
    ->Args({64, 1024})
    ->Args({4, 1048576})
    ->Args({4, 8388608})
    ->MeasureProcessCPUTime()
    ->UseRealTime();

void reduce_scatter_tensor(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  const int64_t numel = state.range(1);
  const Members members(OpType::kReduceScatterTensor, ranks, ranks * numel, numel, DType::kFloat32);
  for (auto _ : state) {
    run_reduce_scatter_tensor(members.calls());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * ranks * (ranks + 1) * numel * 4);
}
BENCHMARK(reduce_scatter_tensor)
    ->Args({4, 1})
    ->Args({4, 1024})
    ->Args({64, 16})
    ->Args({4, 1048576})
    ->MeasureProcessCPUTime()
    ->UseRealTime();

// The work of a front for every call: a view of a vector, moved into a call.
void build_call(benchmark::State& state) {
  std::vector<float> values(1024);
  for (auto _ : state) {
    TensorView view(values);
    benchmark::DoNotOptimize(view);
    CollectiveCall call;
    call.op = OpType::kAllReduce;
    call.inputs = view;
    call.outputs = std::move(view);
    benchmark::DoNotOptimize(call);
  }
}
BENCHMARK(build_call);

void copy_view(benchmark::State& state) {
  std::vector<float> values(1024);
  const TensorView view(values);
  for (auto _ : state) {
    TensorView copy(view);
    benchmark::DoNotOptimize(copy);
  }
}
BENCHMARK(copy_view);

void move_view(benchmark::State& state) {
  std::vector<float> values(1024);
  TensorView view(values);
  TensorView other;
  for (auto _ : state) {
    other = std::move(view);
    benchmark::DoNotOptimize(other);
    view = std::move(other);
    benchmark::DoNotOptimize(view);
  }
}
BENCHMARK(move_view);

}  // namespace
}  // namespace rankloom

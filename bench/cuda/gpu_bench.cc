// The cost of CUDA calls, against what the same device does by itself in the same run:
//   all_reduce of 8 ranks x 64 MiB float32   2 * bytes / speed of a device-to-device copy, 1.0 is the roofline
//   small calls                              8 ranks x 1 element, on a stream and waited for
//   block_current_stream                     time of the call on the host
// Prints a line each, and the list as JSON with --json FILE. Exits with 77 if there is no device.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "rankloom/cuda.h"
#include "sim/base/parker.h"

namespace rankloom {

using namespace internal;

namespace {

struct Result {
  std::string name;
  double ns;
  double floor_ns;  // 0: none
};

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Nanoseconds that the device needs to copy `bytes`, which reads and writes them once.
double copy_ns(size_t bytes) {
  void* from = nullptr;
  void* to = nullptr;
  check(cudaMalloc(&from, bytes), "cudaMalloc");
  check(cudaMalloc(&to, bytes), "cudaMalloc");
  check(cudaMemset(from, 1, bytes), "cudaMemset");
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<double> times;
  for (int i = 0; i < 23; ++i) {
    check(cudaEventRecord(begin), "cudaEventRecord");
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice), "cudaMemcpyAsync");
    check(cudaEventRecord(end), "cudaEventRecord");
    check(cudaEventSynchronize(end), "cudaEventSynchronize");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    if (i >= 3) times.push_back(ms * 1e6);
  }
  check(cudaFree(from), "cudaFree");
  check(cudaFree(to), "cudaFree");
  return median(times);
}

// One operation is one call of every rank, from the first rank's call to the end of its wait.
double all_reduce_ns(int ranks, int64_t count, int rounds, bool on_stream) {
  double result = 0;
  run_world({.world_size = ranks}, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    CudaStream stream(rank);
    const CudaTensor x(rank, {count}, DType::kFloat32);
    const CallOptions options = {.stream = on_stream ? &stream : nullptr};
    std::vector<double> times;
    for (int i = 0; i < rounds; ++i) {
      pg->barrier().wait();
      const int64_t begin = monotonic_ns();
      Work work = pg->all_reduce(x, ReduceOp::kMax, options);
      if (on_stream) {
        stream.synchronize();
      } else {
        work.wait();
      }
      if (i >= 3) times.push_back(static_cast<double>(monotonic_ns() - begin));
    }
    if (rank.rank() == 0) result = median(times);
  }).throw_if_failed();
  return result;
}

// Of `calls` all_reduces put on streams one behind the other, so that the host's part is hidden by the device's.
double pipelined_all_reduce_ns(int ranks, int64_t count, int calls) {
  double result = 0;
  run_world({.world_size = ranks}, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    CudaStream stream(rank);
    const CudaTensor x(rank, {count}, DType::kFloat32);
    const CallOptions options = {.stream = &stream};
    for (int warm = 0; warm < 2; ++warm) {
      pg->barrier().wait();
      const int64_t begin = monotonic_ns();
      for (int i = 0; i < calls; ++i) (void)pg->all_reduce(x, ReduceOp::kMax, options);
      stream.synchronize();
      if (rank.rank() == 0) result = static_cast<double>(monotonic_ns() - begin) / calls;
    }
  }).throw_if_failed();
  return result;
}

double block_ns() {
  double result = 0;
  run_world({.world_size = 1}, [&](RankContext& rank) {
    CudaStream stream(rank);
    std::vector<double> times;
    for (int i = 0; i < 300; ++i) {
      Promise promise(&rank.world().scheduler(), rank.rank());
      Work work = promise.work();
      const int64_t begin = monotonic_ns();
      work.block_current_stream(stream);
      times.push_back(static_cast<double>(monotonic_ns() - begin));
      promise.set_value();
      stream.synchronize();
    }
    result = median(times);
  }).throw_if_failed();
  return result;
}

int run(int argc, char** argv) {
  if (const std::string missing = cuda_missing(); !missing.empty()) {
    std::fprintf(stderr, "gpu-bench: no GPU: %s\n", missing.c_str());
    return 77;
  }
  std::vector<Result> results;
  constexpr int kRanks = 8;
  constexpr int64_t kCount = (64 << 20) / static_cast<int64_t>(sizeof(float));
  const double floor = copy_ns(size_t{kRanks} * 64 << 20);
  results.push_back({"all_reduce/8 x 64 MiB, waited for", all_reduce_ns(kRanks, kCount, 23, false), floor});
  results.push_back(
      {"all_reduce/8 x 64 MiB, one behind the other", pipelined_all_reduce_ns(kRanks, kCount, 20), floor});
  results.push_back({"all_reduce/8 x 1, waited for", all_reduce_ns(kRanks, 1, 203, false), 0});
  results.push_back({"all_reduce/8 x 1, on a stream", all_reduce_ns(kRanks, 1, 203, true), 0});
  results.push_back({"block_current_stream", block_ns(), 0});
  std::string json = "{\"benchmarks\": [";
  const char* separator = "\n";
  for (const Result& result : results) {
    char line[256];
    if (result.floor_ns > 0) {
      std::printf("%-48s %12.1f us   %5.1f %% of the roofline\n", result.name.c_str(), result.ns / 1e3,
                  100 * result.floor_ns / result.ns);
      std::snprintf(line, sizeof(line),
                    "%s  {\"name\": \"%s\", \"ns_per_op\": %.1f, \"floor_ns\": %.1f, \"ratio\": %.3f}", separator,
                    result.name.c_str(), result.ns, result.floor_ns, result.ns / result.floor_ns);
    } else {
      std::printf("%-48s %12.1f us\n", result.name.c_str(), result.ns / 1e3);
      std::snprintf(line, sizeof(line), "%s  {\"name\": \"%s\", \"ns_per_op\": %.1f}", separator, result.name.c_str(),
                    result.ns);
    }
    json += line;
    separator = ",\n";
  }
  json += "\n]}\n";
  if (argc == 3 && std::strcmp(argv[1], "--json") == 0) {
    std::ofstream file(argv[2]);
    file << json;
    file.close();
    if (!file.good()) {
      std::fprintf(stderr, "cannot write %s\n", argv[2]);
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace rankloom

int main(int argc, char** argv) { return rankloom::run(argc, argv); }

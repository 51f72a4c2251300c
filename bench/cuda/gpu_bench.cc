// The cost of CUDA calls, against what the same device does by itself in the same run:
//   all_reduce of 8 ranks x 64 MiB float32   2 * bytes / speed of a device-to-device copy, 1.0 is the roofline
//   small calls                              8 ranks x 1 element, on a stream and waited for, and their launches
//   1 to 64 ranks                            a small call, and 16 MiB of each rank, one call behind the other
//   block_current_stream                     time of the call on the host
// Prints a line each, and the list as JSON with --json FILE: ns_per_op, and where there is one floor_ns with their
// ratio, launches of a call, and whether a goal was met. Exits with 77 if there is no device.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "collectives/cuda/launch_count.h"
#include "rankloom/cuda.h"
#include "sim/base/parker.h"

namespace rankloom {

using namespace internal;

namespace {

struct Result {
  std::string name;
  double ns = 0;
  double floor_ns = 0;   // 0: none
  double launches = -1;  // of one call; -1: not counted
  double most_ns = 0;    // the goals; 0: none
  double most_launches = 0;

  bool has_goal() const { return most_ns > 0 || most_launches > 0; }
  bool met() const {
    return (most_ns == 0 || ns <= most_ns) && (most_launches == 0 || (launches >= 0 && launches <= most_launches));
  }
};

// The goals: this part of the roofline for large calls, and these for small ones.
constexpr double kRooflinePart = 0.7;
constexpr double kSmallLaunches = 3;
constexpr double kBlockNs = 10'000;

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
Result all_reduces(std::string name, int ranks, int64_t count, int rounds, bool on_stream) {
  Result result{.name = std::move(name)};
  const int64_t launches_before = cuda::launches_made();
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
    if (rank.rank() == 0) result.ns = median(times);
  }).throw_if_failed();
  result.launches = static_cast<double>(cuda::launches_made() - launches_before) / rounds;
  return result;
}

// Of `calls` all_reduces put on streams one behind the other, so that the host's part is hidden by the device's.
Result pipelined_all_reduces(std::string name, int ranks, int64_t count, int calls) {
  Result result{.name = std::move(name)};
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
      if (rank.rank() == 0) result.ns = static_cast<double>(monotonic_ns() - begin) / calls;
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

std::string fixed(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

void print(const Result& result) {
  std::string line = result.name;
  line.resize(std::max<size_t>(line.size(), 52), ' ');
  line += fixed("%12.1f us", result.ns / 1e3);
  if (result.floor_ns > 0) line += fixed("   %5.1f %% of the roofline", 100 * result.floor_ns / result.ns);
  if (result.launches >= 0) line += fixed("   %.2f launches", result.launches);
  if (result.has_goal()) line += result.met() ? "   goal met" : "   GOAL MISSED";
  std::puts(line.c_str());
}

// Printed one by one: the lines so far are there if one does not end.
std::vector<Result> measure() {
  std::vector<Result> results;
  const auto told = [&results](Result result) {
    print(result);
    std::fflush(stdout);
    results.push_back(std::move(result));
  };
  constexpr int kRanks = 8;
  constexpr size_t kLarge = 64 << 20;
  const auto elements = [](size_t bytes) { return static_cast<int64_t>(bytes / sizeof(float)); };
  const auto large = [&told](Result result, double floor, double most = 0) {
    result.floor_ns = floor;
    result.most_ns = most;
    told(std::move(result));
  };
  const auto small = [&told](Result result) {
    result.most_launches = kSmallLaunches;
    told(std::move(result));
  };
  const double floor = copy_ns(kRanks * kLarge);
  large(all_reduces("all_reduce/8 x 64 MiB, waited for", kRanks, elements(kLarge), 23, false), floor);
  large(pipelined_all_reduces("all_reduce/8 x 64 MiB, one behind the other", kRanks, elements(kLarge), 20), floor,
        floor / kRooflinePart);
  small(all_reduces("all_reduce/8 x 1, waited for", kRanks, 1, 203, false));
  small(all_reduces("all_reduce/8 x 1, on a stream", kRanks, 1, 203, true));
  told({.name = "block_current_stream", .ns = block_ns(), .most_ns = kBlockNs});
  constexpr size_t kMiddle = 16 << 20;
  for (int ranks = 1; ranks <= 64; ranks *= 2) {
    const std::string of = "all_reduce/" + std::to_string(ranks) + " x ";
    told(all_reduces(of + "1, by ranks, waited for", ranks, 1, 103, false));
    large(pipelined_all_reduces(of + "16 MiB, by ranks, one behind the other", ranks, elements(kMiddle), 20),
          copy_ns(static_cast<size_t>(ranks) * kMiddle));
  }
  return results;
}

std::string json_of(const Result& result) {
  std::string json = "{\"name\": \"" + result.name + "\", \"ns_per_op\": " + fixed("%.1f", result.ns);
  if (result.floor_ns > 0) {
    json += ", \"floor_ns\": " + fixed("%.1f", result.floor_ns);
    json += ", \"ratio\": " + fixed("%.3f", result.ns / result.floor_ns);
  }
  if (result.launches >= 0) json += ", \"launches\": " + fixed("%.2f", result.launches);
  if (result.has_goal()) json += std::string(", \"goal_met\": ") + (result.met() ? "true" : "false");
  return json + "}";
}

int run(int argc, char** argv) {
  if (const std::string missing = cuda_missing(); !missing.empty()) {
    std::fprintf(stderr, "gpu-bench: no GPU: %s\n", missing.c_str());
    return 77;
  }
  const std::vector<Result> results = measure();
  std::string json = "{\"benchmarks\": [";
  const char* separator = "\n  ";
  for (const Result& result : results) {
    json += separator + json_of(result);
    separator = ",\n  ";
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

// The benchmarks of all folders in one program.
//   rankloom_bench [--filter RE] [--json FILE] [--benchmark_... as Google Benchmark has them]
// The JSON file holds a list `benchmarks` of {name, ns_per_op, ...}: what else a benchmark counts, such as floor_ns and
// ratio.

#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "benchmark/benchmark.h"

namespace {

// Shows runs as Google Benchmark does and keeps them for the JSON file.
class KeepingReporter final : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    benchmark::ConsoleReporter::ReportRuns(runs);
    kept_.insert(kept_.end(), runs.begin(), runs.end());
  }

  bool write(const std::string& path) const {
    std::ofstream file(path);
    file << "{\"benchmarks\": [";
    const char* separator = "\n";
    for (const Run& run : kept_) {
      const auto counter = [&run](const char* name) {
        const auto it = run.counters.find(name);
        return it == run.counters.end() ? 0.0 : it->second.value;
      };
      const double ns = counter("ns_per_op") > 0
                            ? counter("ns_per_op")
                            : run.GetAdjustedRealTime() * 1e9 / benchmark::GetTimeUnitMultiplier(run.time_unit);
      file << separator << "  {\"name\": \"" << run.run_name.function_name << "\", \"ns_per_op\": " << ns;
      for (const auto& [key, value] : run.counters) {
        if (key != "ns_per_op") file << ", \"" << key << "\": " << value.value;
      }
      file << "}";
      separator = ",\n";
    }
    file << "\n]}\n";
    file.close();
    return file.good();
  }

 private:
  std::vector<Run> kept_;
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> args = {argv[0]};
  std::string json;
  for (int i = 1; i < argc; ++i) {
    std::string_view arg = argv[i];
    std::string value;
    const auto takes = [&](std::string_view flag) {
      if (!arg.starts_with(flag)) return false;
      if (arg.size() > flag.size() && arg[flag.size()] == '=') {
        value = arg.substr(flag.size() + 1);
        return true;
      }
      if (arg.size() > flag.size() || i + 1 == argc) return false;
      value = argv[++i];
      return true;
    };
    if (takes("--filter")) {
      args.push_back("--benchmark_filter=" + value);
    } else if (takes("--json")) {
      json = value;
    } else {
      args.emplace_back(arg);
    }
  }
  std::vector<char*> pointers;
  for (std::string& arg : args) pointers.push_back(arg.data());
  int count = static_cast<int>(pointers.size());
  benchmark::Initialize(&count, pointers.data());
  if (benchmark::ReportUnrecognizedArguments(count, pointers.data())) return 2;
  KeepingReporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  benchmark::Shutdown();
  if (!json.empty() && !reporter.write(json)) {
    std::fprintf(stderr, "cannot write %s\n", json.c_str());
    return 1;
  }
  return 0;
}

// The benchmarks of all folders in one program.
//   rankloom_bench [--filter RE] [--json FILE] [--benchmark_... as Google Benchmark has them]

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "benchmark/benchmark.h"

int main(int argc, char** argv) {
  std::vector<std::string> args = {argv[0]};
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
      args.push_back("--benchmark_out=" + value);
      args.push_back("--benchmark_out_format=json");
    } else {
      args.emplace_back(arg);
    }
  }
  std::vector<char*> pointers;
  for (std::string& arg : args) pointers.push_back(arg.data());
  int count = static_cast<int>(pointers.size());
  benchmark::Initialize(&count, pointers.data());
  if (benchmark::ReportUnrecognizedArguments(count, pointers.data())) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

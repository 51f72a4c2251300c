#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rankloom::bridge {

// The arguments of explore().
struct Asked {
  int number = 1;  // which run or search of the process this is
  int ranks = 4;
  std::optional<double> timeout;  // in seconds, of waits that name none
  std::string faults;             // a plan, as FaultPlan::parse() reads it
  std::vector<std::string> strategies;
  int64_t runs = 1000;
  std::optional<double> seconds;
  uint64_t first_seed = 1;
  int min_ranks = 0;
  int shrink_runs = 2000;
  uint64_t max_steps = 200'000;
  bool vary_faults = true;
  bool swap_random = false;
  bool leaks = true;
  bool groups = true;
  bool store_keys = true;
  bool store_values = false;
};

// A search of the core's. `ranks.run(job)` runs the ranks of one run, as threads of Python, and returns two lists: what
// failed beside them, and what no search over schedules can see of them. Then `ranks.end(kept)`: unless the run may be
// the last one, whose results are asked for, nothing of its job may be left. `progress(strategy, runs, seconds)`: or
// None. Throws what those throw, and ValueError for options that do not fit.
pybind11::dict explore(const Asked& asked, const pybind11::object& ranks, const pybind11::object& progress);

// Notes a result of the calling rank. Throws RuntimeError on a thread that is no rank.
void observe(std::string_view name, std::string_view text, std::string_view bytes);

}  // namespace rankloom::bridge

#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "collectives/mpi/mpi_world.h"
#include "gtest/gtest.h"
#include "rankloom/schedule.h"
#include "rankloom/world.h"

// In the place of tests/world/every_world.h, so that the tests of groups in one process run in a world of MPI processes
// as they are. Every process runs all tests, as its rank of each world; a test's own expectations after a run see what
// this rank has left. Worlds of more ranks than there are processes are left out: a test of which none has run is
// skipped, and main() holds the program to a number of worlds that have run.

namespace rankloom {

struct WorldMode {
  const char* name;
};

// Of all tests so far; the same in all processes.
inline int worlds_run = 0;
// How many ranks, at least, a process of these worlds has, where they have so many: 1: ranks are processes. Else they
// are fibers of some, and a world that needs more ranks has more of them in each process.
inline int ranks_per_process = 1;

class EveryWorldTest : public testing::TestWithParam<WorldMode> {
 protected:
  using Program = absl::FunctionRef<void(RankContext&)>;

  bool deterministic() const { return ranks_per_process > 1; }
  bool seeded() const { return false; }
  const char* backend() const { return "mpi"; }

  WorldOptions options(int world_size) const { return {.world_size = world_size}; }

  RunReport run(int world_size, Program program) { return run(options(world_size), program); }
  RunReport run(WorldOptions world, Program program) {
    const RunReport report = run_here(std::move(world), program);
    EXPECT_TRUE(report.ok()) << report.text();
    return report;
  }
  RunReport run_to_failure(int world_size, Program program) { return run_to_failure(options(world_size), program); }
  RunReport run_to_failure(WorldOptions world, Program program) {
    const RunReport report = run_here(std::move(world), program);
    if (!report.outcomes.empty()) {
      EXPECT_FALSE(report.ok());
    }
    return report;
  }

  void TearDown() override {
    if (ran_ > 0 || fewest_ == 0) return;
    GTEST_SKIP() << "its worlds have " << fewest_ << " ranks or more, and the job has " << internal::processes_of_job()
                 << " processes";
  }

 private:
  RunReport run_here(WorldOptions world, Program program) {
    const int ranks = world.world_size;
    const int processes = internal::processes_of_job();
    if (ranks_per_process > 1 && ranks > 1) {
      ++ran_;
      ++worlds_run;
      const int each = std::max(ranks_per_process, (ranks + processes - 1) / processes);
      return internal::run_on_first((ranks + each - 1) / each, std::move(world), each, program);
    }
    if (ranks > processes) {
      fewest_ = fewest_ == 0 ? ranks : std::min(fewest_, ranks);
      return {};
    }
    ++ran_;
    ++worlds_run;
    return internal::run_on_first(ranks, std::move(world), program);
  }

  int ran_ = 0;     // worlds of this test
  int fewest_ = 0;  // ranks of those that were left out
};

inline auto every_threads_world() { return testing::Values(WorldMode{"mpi"}); }
inline auto every_world() { return testing::Values(WorldMode{"mpi"}); }
inline std::string world_name(const testing::TestParamInfo<WorldMode>& info) { return info.param.name; }

}  // namespace rankloom

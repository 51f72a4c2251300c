#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "rankloom/cuda.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

// Why no device can be used, with CUDA's own words; empty: one can.
inline std::string no_gpu() {
  static const std::string missing = cuda_missing();
  return missing.empty() ? "" : "no GPU: " + missing;
}

// CUDA's calls need more of a stack than a small fiber has.
inline WorldOptions with_cuda_stacks(WorldOptions world) {
  world.stack_bytes = std::max<size_t>(world.stack_bytes, 512 << 10);
  return world;
}

// Skips where no device can be used.
class CudaTest : public EveryWorldTest {
 protected:
  void SetUp() override {
    if (const std::string missing = no_gpu(); !missing.empty()) GTEST_SKIP() << missing;
  }

  RunReport run(int world_size, Program program) {
    return EveryWorldTest::run(with_cuda_stacks(options(world_size)), program);
  }
  RunReport run_to_failure(int world_size, Program program) {
    return EveryWorldTest::run_to_failure(with_cuda_stacks(options(world_size)), program);
  }
};

}  // namespace rankloom

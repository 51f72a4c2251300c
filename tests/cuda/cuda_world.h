#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "rankloom/cuda.h"
#include "tests/world/every_world.h"

namespace rankloom {

// Skips where no device can be used, with CUDA's own words.
class CudaTest : public EveryWorldTest {
 protected:
  void SetUp() override {
    static const std::string missing = cuda_missing();
    if (!missing.empty()) GTEST_SKIP() << "no GPU: " << missing;
  }

  // CUDA's calls need more of a stack than a small fiber has.
  RunReport run(int world_size, Program program) {
    WorldOptions world = options(world_size);
    world.stack_bytes = std::max<size_t>(world.stack_bytes, 512 << 10);
    return EveryWorldTest::run(world, program);
  }
  RunReport run_to_failure(int world_size, Program program) {
    WorldOptions world = options(world_size);
    world.stack_bytes = std::max<size_t>(world.stack_bytes, 512 << 10);
    return EveryWorldTest::run_to_failure(world, program);
  }
};

}  // namespace rankloom

// Where nothing can be tested, gpu-test says so and exits with 77, which test runners take for "skipped".

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "rankloom/cuda.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  if (testing::GTEST_FLAG(list_tests)) return result;
  const std::string missing = rankloom::cuda_missing();
  if (missing.empty()) return result;
  std::fprintf(stderr, "gpu-test: no GPU, nothing was tested: %s\n", missing.c_str());
  return result == 0 ? 77 : result;
}

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "hwy/targets.h"
#include "tests/collectives/kernels/kernel_cases.h"

namespace rankloom {

using namespace internal;

namespace {

// Lets kernels use the targets of the mask only, until the end of its scope.
class OnlyTargets {
 public:
  explicit OnlyTargets(int64_t mask) {
    hwy::SetSupportedTargetsForTest(mask);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  ~OnlyTargets() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  OnlyTargets(const OnlyTargets&) = delete;
  OnlyTargets& operator=(const OnlyTargets&) = delete;
};

// Each target that this machine has, alone.
std::vector<int64_t> targets_of_this_machine() {
  std::vector<int64_t> targets;
  for (int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) targets.push_back(rest & -rest);
  return targets;
}

std::vector<uint8_t> reduced(DType dtype, ReduceOp op, const ReduceOp::Order& order, int64_t numel) {
  std::vector<Buffer> buffers = filled_buffers(5, dtype, numel, static_cast<uint64_t>(numel));
  run_kernel(run_all_reduce, all_reduce_calls(buffers, op, order));
  return buffers[0].copy();
}

TEST(KernelTargetsTest, EveryTargetGivesTheBitsOfTheBaseline) {
  const std::vector<int64_t> targets = targets_of_this_machine();
  const int64_t baseline = targets.back();  // the highest bit: no SIMD
  int compared = 0;
  for (const DType dtype : kDTypesWithArithmetic) {
    for (const ReduceOp& op : kAllReduceOps) {
      if (!reduction_supported(op, dtype)) continue;
      for (const ReduceOp::Order& order : kAllOrders) {
        for (const int64_t numel : {1, 2, 7, 16, 65, 1000, 4099}) {
          std::vector<uint8_t> expected;
          {
            const OnlyTargets only(baseline);
            expected = reduced(dtype, op, order, numel);
          }
          for (const int64_t target : targets) {
            const OnlyTargets only(target);
            EXPECT_TRUE(reduced(dtype, op, order, numel) == expected)
                << hwy::TargetName(target) << " differs from " << hwy::TargetName(baseline) << ": " << dtype_name(dtype)
                << " " << op.name() << ", order " << static_cast<int>(order.kind) << ", " << numel << " elements";
            ++compared;
          }
        }
      }
    }
  }
  RecordProperty("compared", compared);
}

TEST(KernelTargetsTest, ThisMachineHasMoreThanTheBaseline) {
#if !defined(__x86_64__) && !defined(__aarch64__)
  GTEST_SKIP() << "nothing is known of this machine";
#endif
  EXPECT_GT(targets_of_this_machine().size(), 1u) << "the comparison above compared nothing";
}

// float16 has code of its own for targets with and without F16C, so all of its values go through both.
TEST(KernelTargetsTest, EveryHalfConvertsAlikeOnEveryTarget) {
  std::vector<uint16_t> all(0x10000);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    // times 1/3: every exponent is rounded, subnormals included
    std::vector<std::vector<uint16_t>> results;
    for (const int64_t target : targets_of_this_machine()) {
      const OnlyTargets only(target);
      std::vector<uint16_t> values = all;
      const TensorView view(values.data(), dtype, {static_cast<int64_t>(values.size())});
      std::vector<CollectiveCall> calls(1);
      calls[0].reduce_op = ReduceOp::premul_sum(1.0 / 3);
      calls[0].inputs = view;
      calls[0].outputs = view;
      run_kernel(run_all_reduce, calls);
      results.push_back(values);
      EXPECT_TRUE(values == results[0]) << hwy::TargetName(target) << " " << dtype_name(dtype);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      const uint16_t got = results[0][i];
      const float factor = 1.0f / 3;
      const bool half = dtype == DType::kFloat16;
      const float value =
          half ? static_cast<float>(Half::from_bits(all[i])) : static_cast<float>(BFloat16::from_bits(all[i]));
      if (value != value) {
        EXPECT_EQ(got, half ? 0x7e00 : 0x7fc0);
      } else {
        EXPECT_EQ(got, half ? Half(value * factor).bits : BFloat16(value * factor).bits) << i;
      }
    }
  }
}

}  // namespace
}  // namespace rankloom

// Linked with the cases of kernels_test.cc: kernels make plans, and these run as a device would run them.

#include "collectives/cuda/plan_tables.h"
#include "tests/collectives/kernels/kernel_cases.h"

namespace rankloom {

using namespace internal;

namespace {

[[maybe_unused]] const bool runs_plans = [] {
  plan_runner = [](KernelPlan& plan) { cuda::run_tables(cuda::make_tables(plan)); };
  return true;
}();

}  // namespace
}  // namespace rankloom

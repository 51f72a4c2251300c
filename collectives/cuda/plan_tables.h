#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/cuda/batch.h"
#include "collectives/kernels/plan.h"

namespace rankloom::internal::cuda {

// One launch.
struct Batch {
  bool copies = false;  // else reductions of this signature
  Signature signature;
  uint32_t entries = 0;
  int64_t tiles = 0;
  size_t offset = 0;  // of its table in Tables::bytes, a multiple of 16
  size_t bytes = 0;
};

// The launches of a plan, in order: for each stage one for each signature of its reductions, and one for its copies.
struct Tables {
  std::vector<Batch> batches;
  std::vector<unsigned char> bytes;
};

Tables make_tables(KernelPlan& plan);

// Runs the launches on the host as a device would, thread by thread. For tests.
void run_tables(const Tables& tables);

}  // namespace rankloom::internal::cuda

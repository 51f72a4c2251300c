#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/campaign/mpi_reduction.h"
#include "tests/campaign/oracle.h"

namespace rankloom {

inline constexpr size_t kDifferences = static_cast<size_t>(Difference::kCount);

// Calls that MPI has made alone, and how many had other bits than the oracle. Numbers only, so that those of several
// processes can be added up.
struct Repeated {
  // By OpType; further down monitored_barrier and messages.
  static constexpr size_t kRows = static_cast<size_t>(OpType::kMonitoredBarrier) + 5;
  struct Row {
    int64_t calls = 0;
    int64_t left_out = 0;  // MPI has no type for them
    int64_t results = 0;   // of all members, where there are bytes
    int64_t exact = 0;     // of these, the ones of which no bit may differ
    int64_t written = 0;   // that differ in written ways
    int64_t wrong = 0;
  };
  std::array<Row, kRows> rows = {};
  static constexpr int kReductions = internal::kReduceOpCount;
  int64_t kinds[kDifferences][kReductions][internal::kDTypeCount] = {};  // results that differ so

  Row sum() const;
  // A table by operation, and the written differences.
  std::string text() const;
};

// Makes the collectives and messages of a job once more, in its groups, by MPI alone, and compares what this process
// sees with the oracle. Prints what is wrong. All processes call it with the same job.
void repeat_by_mpi(const Plan& plan, const Given& given, uint64_t seed, Repeated* repeated);

}  // namespace rankloom

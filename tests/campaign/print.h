#pragma once

#include <optional>
#include <string>

#include "tests/campaign/oracle.h"
#include "tests/campaign/run_job.h"

namespace rankloom {

// A job as a program in C++ that ends with 1 unless every rank sees what the oracle says, or `expected`. `gear`: of a
// run without arguments; unset: the schedule that explores.
std::string to_cpp(const Job& job, const std::optional<Gear>& gear = {});
std::string to_cpp(const Job& job, const JobLog& expected, const std::optional<Gear>& gear = {});

}  // namespace rankloom

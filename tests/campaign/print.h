#pragma once

#include <string>

#include "tests/campaign/oracle.h"

namespace rankloom {

// A job as a program in C++ that ends with 1 unless every rank sees what the oracle says, or `expected`.
std::string to_cpp(const Job& job);
std::string to_cpp(const Job& job, const JobLog& expected);

}  // namespace rankloom

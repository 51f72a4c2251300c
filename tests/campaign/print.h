#pragma once

#include <string>

#include "tests/campaign/oracle.h"

namespace rankloom {

// As to_cpp() of job.h, but the ranks must see what `expected` says.
std::string to_cpp(const Job& job, const JobLog& expected);

}  // namespace rankloom

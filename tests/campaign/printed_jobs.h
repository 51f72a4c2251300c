#pragma once

#include <set>
#include <string>
#include <vector>

#include "tests/campaign/job.h"

namespace rankloom {

// A job that print_jobs has printed, as a function of printed_jobs_test.
struct PrintedJob {
  const char* text;  // as to_text() has it
  int (*program)(int argc, char** argv);
};
extern const std::vector<PrintedJob> kPrintedJobs;
// Of which one sight was printed wrong: the last one of rank 0, and one of an owner.
extern const std::vector<PrintedJob> kWronglyPrintedJobs;

// The acts, ways, waits, operations and the like in which a rank of the job has a part: "act mesh", "op all_reduce".
// Of a job that may fail only what it may fail by.
std::set<std::string> parts_of(const Job& job);
// All that there are.
std::set<std::string> all_parts();

}  // namespace rankloom

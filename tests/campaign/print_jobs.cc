// Prints jobs as C++, each in a namespace of one source for printed_jobs_test: of those that are drawn those which
// together have all parts, or so many from a seed on.
//   print_jobs [SEED JOBS] > printed_jobs.cc

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tests/campaign/print.h"
#include "tests/campaign/printed_jobs.h"

namespace {

using namespace rankloom;

constexpr uint64_t kSeeds = 4'000;
constexpr int kMostElements = 20;  // what a call gives stands in the program

bool is_short(const Job& job) {
  const auto is_long = [](const JobCall& call) { return call.count > kMostElements; };
  return std::none_of(job.acts.begin(), job.acts.end(), [&](const Act& act) {
    return is_long(act.call) || std::any_of(act.parts.begin(), act.parts.end(), is_long);
  });
}

// One after another the job with the most parts that those before it lack, for the acts that it has.
std::vector<Job> chosen_jobs() {
  struct Candidate {
    Job job;
    std::set<std::string> parts;
  };
  std::vector<Candidate> candidates;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Job job = draw_job(seed);
    if (is_short(job)) candidates.push_back({job, parts_of(job)});
  }
  std::set<std::string> missing = all_parts();
  std::vector<Job> chosen;
  while (!missing.empty()) {
    const Candidate* best = nullptr;
    double most = 0;
    for (const Candidate& candidate : candidates) {
      const auto found = std::count_if(candidate.parts.begin(), candidate.parts.end(),
                                       [&](const std::string& part) { return missing.count(part) != 0; });
      const double gain = static_cast<double>(found) / static_cast<double>(8 + candidate.job.acts.size());
      if (gain > most) {
        most = gain;
        best = &candidate;
      }
    }
    if (best == nullptr) break;  // the test says what is missing
    for (const std::string& part : best->parts) missing.erase(part);
    chosen.push_back(best->job);
  }
  return chosen;
}

std::vector<Job> jobs_from(uint64_t seed, int jobs) {
  std::vector<Job> drawn;
  for (; jobs > 0; ++seed) {
    const Job job = draw_job(seed);
    if (!is_short(job)) continue;
    drawn.push_back(job);
    --jobs;
  }
  return drawn;
}

// Of which a sight is wrong.
std::pair<Job, JobLog> wrong_job(bool late) {
  const Job job = parse_job(absl::StrCat("job world_size=2 seed=7\ncollective id=1 way=", late ? 4 : 1,
                                         "\n  call op=all_reduce dtype=int32 count=1\n"))
                      .value();
  JobLog expected = oracle(Plan(job));
  std::string& saw = late ? expected[0].late.at(1) : expected[0].seen.back().saw;
  saw.back() = static_cast<char>(saw.back() ^ 1);
  return {job, expected};
}

class Program {
 public:
  Program() { text_ = "#include \"tests/campaign/printed.h\"\n#include \"tests/campaign/printed_jobs.h\"\n"; }

  void add(const std::string& name, std::string program, std::vector<std::string>* table) {
    program = absl::StrReplaceAll(program,
                                  {{"#include \"tests/campaign/printed.h\"\n", ""}, {"\nint main(", "\nint program("}});
    absl::StrAppend(&text_, "\nnamespace ", name, " {\n", program, "}  // namespace ", name, "\n");
    table->push_back(absl::StrCat("{", name, "::kJob, ", name, "::program}"));
  }
  void add_table(const std::string& name, const std::vector<std::string>& table) {
    absl::StrAppend(&text_, "\nconst std::vector<rankloom::PrintedJob> rankloom::", name, " = {\n    ",
                    absl::StrJoin(table, ",\n    "), "};\n");
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

int main(int argc, char** argv) {
  Program program;
  std::vector<std::string> table, wrong;
  for (const Job& job : argc == 3 ? jobs_from(std::strtoull(argv[1], nullptr, 10), std::atoi(argv[2])) : chosen_jobs())
    program.add(absl::StrCat("job_", job.seed), to_cpp(job), &table);
  for (const bool late : {false, true}) {
    const auto [job, expected] = wrong_job(late);
    program.add(late ? "wrong_late" : "wrong_sight", to_cpp(job, expected), &wrong);
  }
  program.add_table("kPrintedJobs", table);
  program.add_table("kWronglyPrintedJobs", wrong);
  return std::fputs(program.text().c_str(), stdout) < 0 ? 1 : 0;
}

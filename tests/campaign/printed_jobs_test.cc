// Programs that to_cpp() prints do what the campaign does (run_job.h): the same choices, the same sights.

#include "tests/campaign/printed_jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "sim/base/sanitizers.h"
#include "tests/campaign/compare.h"
#include "tests/campaign/print.h"
#include "tests/campaign/printed.h"

namespace rankloom {

namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// `schedule`: empty: the job's own.
int run_program(const PrintedJob& job, const std::string& schedule, const std::string& engine) {
  const std::string own = exploring(parse_job(job.text).value()).text();
  std::string arguments[] = {"job", schedule.empty() ? own : schedule, engine};
  char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
  return job.program(3, argv);
}

bool runs_fibers() {
#ifdef RANKLOOM_TSAN
  return false;
#else
  return true;
#endif
}

// A schedule, and an engine.
using ProgramGear = std::pair<const char*, const char*>;

class PrintedJobsTest : public testing::TestWithParam<ProgramGear> {};
INSTANTIATE_TEST_SUITE_P(Gears, PrintedJobsTest,
                         testing::Values(ProgramGear("", "fibers"), ProgramGear("", "threads"),
                                         ProgramGear("fifo", "fibers"), ProgramGear("free", "threads")));

TEST_P(PrintedJobsTest, GoWell) {
  const auto [schedule, engine] = GetParam();
  if (!runs_fibers() && std::string(engine) == "fibers") GTEST_SKIP() << "ThreadSanitizer cannot follow fibers";
  for (const PrintedJob& job : kPrintedJobs) {
    ASSERT_EQ(run_program(job, schedule, engine), EXIT_SUCCESS) << job.text;
  }
}

class PrintedChoicesTest : public testing::TestWithParam<ProgramGear> {
 protected:
  ~PrintedChoicesTest() override { printed::on_run = nullptr; }
};
INSTANTIATE_TEST_SUITE_P(Gears, PrintedChoicesTest,
                         testing::Values(ProgramGear("", "fibers"), ProgramGear("", "threads"),
                                         ProgramGear("fifo", "fibers")));

// False after a fault that changes what ranks see: what they give then depends on it, and printed values do not.
bool is_as_planned(const Plan& plan, const JobRun& run) {
  const JobLog expected = oracle(plan);
  for (size_t rank = 0; rank < expected.size(); ++rank) {
    const std::vector<Sight>& want = expected[rank].seen;
    const std::vector<Sight>& have = run.log[rank].seen;
    if (have.size() > want.size() || !std::equal(have.begin(), have.end(), want.begin())) return false;
  }
  return true;
}

// One seed, one run: of the campaign's code and of the printed one.
TEST_P(PrintedChoicesTest, AreTheCampaignsAndSoAreSights) {
  const auto [schedule, engine] = GetParam();
  if (!runs_fibers() && std::string(engine) == "fibers") GTEST_SKIP() << "ThreadSanitizer cannot follow fibers";
  int runs = 0;
  printed::on_run = [&](const Plan& plan, const Gear& gear, const JobRun& run) {
    ++runs;
    const JobRun campaign = run_job(plan, gear);
    EXPECT_EQ(internal::first_difference(campaign.report.trace, run.report.trace), "equal") << to_text(plan.job());
    EXPECT_EQ(campaign.report.steps, run.report.steps) << to_text(plan.job());
    if (!is_as_planned(plan, campaign)) {
      EXPECT_THAT(campaign.report.faults, Not(IsEmpty())) << to_text(plan.job());
      return;
    }
    for (size_t rank = 0; rank < run.log.size(); ++rank) {
      EXPECT_EQ(campaign.log[rank].seen, run.log[rank].seen) << "rank " << rank << "\n" << to_text(plan.job());
      EXPECT_EQ(campaign.log[rank].late, run.log[rank].late) << "rank " << rank << "\n" << to_text(plan.job());
    }
  };
  for (const PrintedJob& job : kPrintedJobs) EXPECT_EQ(run_program(job, schedule, engine), EXIT_SUCCESS);
  EXPECT_GE(runs, static_cast<int>(kPrintedJobs.size()));
}

TEST(PrintTest, PrintsCallsWithWhatTheyGiveAndMustSee) {
  const auto job = parse_job(
      "job world_size=2 seed=7\n"
      "split_group id=1 a=2\n"
      "collective id=2 group=1 way=1\n  call op=all_reduce dtype=int32 count=1\n"
      "message id=3 b=1\n  call dtype=uint8 count=2\n");
  ASSERT_TRUE(job.ok());
  const std::string text = to_cpp(*job);
  EXPECT_THAT(text, HasSubstr("  g1 = g0->split_group(/*color=*/0, /*key=*/0, options);\n"));
  EXPECT_THAT(text, ContainsRegex("  const TensorView t2_in0 = t2->add\\(DType::kInt32, 1\\);\n"
                                  "  write\\(t2_in0, \"[0-9a-f]{8}\"\\);\n"
                                  "  w2.push_back\\(g1->all_reduce\\(t2_in0, ReduceOp::kSum\\)\\);\n"));
  EXPECT_THAT(text, HasSubstr("  w3.push_back(g0->send(t3_in, 1, 5));\n"));
  EXPECT_THAT(text, ContainsRegex("  give\\(\\*t3, t3_in, \"[0-9a-f]{4}\"\\);\n"));
  EXPECT_THAT(text, HasSubstr("    for (Work& work : w3) must_be_done(work);\n"
                              "    const std::string first = bytes_of({t3_out});\n"));
  EXPECT_THAT(
      text,
      ContainsRegex("log.see\\(3, \\*t3, alike\\(bytes_of\\(\\{t3_out\\}\\), \\{first\\}\\), \"[0-9a-f]{4}\"\\);\n"));
  EXPECT_THAT(text, HasSubstr("choose_gear(argc, argv, \"" + exploring(*job).text() + "\", \"\", &world);"));
}

// Of which choices and sights say little.
TEST(PrintTest, PrintsTheOptionsOfWorldsAndGroups) {
  const auto job = parse_job("job world_size=2 eager_bytes=4 rooted=2 recorded=0 order=11 options=31 fault_rate=13\n");
  ASSERT_TRUE(job.ok());
  const std::string text = to_cpp(*job);
  for (const char* const option :
       {".eager_bytes = 4", ".rooted = GroupOptions::Rooted::kBySchedule", ".kind = ReduceOp::Order::Kind::kTree",
        ".accumulate_in_float = false", "world.recorded_calls = 0;", "world.late_completion = true;",
        "world.poison = true;", "world.fresh_threads = true;", "world.keep_run = true;",
        "world.timeout = absl::Hours(1);", "world.faults = FaultPlan::parse(\"seeded:0:0.013\").value();"}) {
    EXPECT_THAT(text, HasSubstr(option));
  }
}

TEST(PrintedPartsTest, AreAllThereAre) {
  std::set<std::string> found, missing;
  for (const PrintedJob& job : kPrintedJobs) found.merge(parts_of(parse_job(job.text).value()));
  const std::set<std::string> all = all_parts();
  std::set_difference(all.begin(), all.end(), found.begin(), found.end(), std::inserter(missing, missing.end()));
  EXPECT_THAT(missing, IsEmpty());
}

TEST(WronglyPrintedJobTest, EndsWithOneAndSaysWhatIsWrong) {
  ASSERT_EQ(kWronglyPrintedJobs.size(), 2u);
  for (const PrintedJob& job : kWronglyPrintedJobs) {
    testing::internal::CaptureStdout();
    const int code = run_program(job, "", "threads");
    const std::string text = testing::internal::GetCapturedStdout();
    EXPECT_EQ(code, EXIT_FAILURE);
    EXPECT_THAT(text, ContainsRegex("rank 0, act 1: have [0-9a-f]{8}, want [0-9a-f]{8}"));
    EXPECT_THAT(text, HasSubstr("the oracle says act 1"));
  }
}

}  // namespace

}  // namespace rankloom

// The exhaustive search loses nothing: random small programs, each run under all schedules, under the reduced ones, in
// parts, too, under seeds of every strategy, and by threads without a schedule. BRUTE_FORCE_PROGRAMS says how many are
// drawn from today's seed; brute_force_campaign runs more. Several test programs of CI share the cases
// (GTEST_TOTAL_SHARDS).

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/base/fnv.h"
#include "sim/base/sanitizers.h"
#include "sim/schedule/step_record.h"
#include "tests/explore/small_program.h"

namespace rankloom {

using namespace internal;

namespace {

// Most programs have few schedules; those that have more are run only so far, the fixed ones further.
const SearchLimits kTodaysLimits = {.unreduced = 300, .reduced = 500, .parts = 1, .seeds = 5, .free = 10};
const SearchLimits kFixedLimits = {.unreduced = 1'500, .reduced = 1'500, .parts = 2, .seeds = 10, .free = 20};

#if defined(RANKLOOM_ASAN) || defined(RANKLOOM_TSAN)
constexpr int kTodaysPrograms = 200;
constexpr int kFixedPrograms = 20;
#else
constexpr int kTodaysPrograms = 5'000;
constexpr int kFixedPrograms = 400;
#endif
constexpr int kParts = 20;  // of either, each a case

int todays_programs() {
  const char* const text = std::getenv("BRUTE_FORCE_PROGRAMS");
  return text != nullptr ? std::atoi(text) : kTodaysPrograms;
}

// A crash prints the program that is being run.
char running[16'384] = "none";

void print_running(int signal) {
  if (write(STDERR_FILENO, running, std::strlen(running)) >= 0) raise(signal);
}

class BruteForceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    struct sigaction action = {};
    action.sa_handler = print_running;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGALRM}) sigaction(signal, &action, nullptr);
  }
};

// The parameter: which part of the programs.
class BruteForceProgramsTest : public BruteForceTest, public testing::WithParamInterface<int> {
 protected:
  // Of `programs` seeds from `first` on the case's part.
  static void expect_equal_outcomes(uint64_t first, int programs, const SearchLimits& limits) {
    const int count = programs / kParts;
    first += static_cast<uint64_t>(count * GetParam());
    int flawed = 0, unreduced = 0, reduced = 0;
    int64_t runs = 0;
    for (uint64_t seed = first; seed < first + static_cast<uint64_t>(count); ++seed) {
      const SmallProgram program = draw_program(seed);
      std::snprintf(running, sizeof(running), "ended in %s", to_text(program).c_str());
      alarm(60);
      const Comparison result = compare_searches(program, limits);
      unreduced += result.unreduced_finished;
      reduced += result.reduced_finished;
      runs += result.runs;
      // The first few are enough to read.
      if (result.flaw != Flaw::kNone && ++flawed <= 3)
        ADD_FAILURE() << shrunk_text(program, limits, result.flaw, absl::Seconds(5));
      alarm(0);
    }
    EXPECT_EQ(flawed, 0) << "of " << count << " programs";
    std::printf(
        "%d programs from seed %lu: %ld runs; the unreduced search came to its end in %d, the reduced one in %d\n",
        count, first, runs, unreduced, reduced);
    // Most programs are compared with all of their schedules.
    if (count < 50) return;             // of a few programs that says nothing
    EXPECT_GE(unreduced, count / 5);    // of 250 there are 109, 8 more or less
    EXPECT_GE(reduced, count * 2 / 3);  // 221, 5 more or less
  }
};

TEST_P(BruteForceProgramsTest, FixedOnesHaveTheSameOutcomes) { expect_equal_outcomes(1, kFixedPrograms, kFixedLimits); }

TEST_P(BruteForceProgramsTest, TodaysHaveTheSameOutcomes) {
  const absl::CivilDay today = absl::ToCivilDay(absl::Now(), absl::UTCTimeZone());
  const uint64_t date = static_cast<uint64_t>(today.year() * 10'000 + today.month() * 100 + today.day());
  expect_equal_outcomes(date * 1'000'000, todays_programs(), kTodaysLimits);
}

INSTANTIATE_TEST_SUITE_P(Parts, BruteForceProgramsTest, testing::Range(0, kParts));

// Programs in which threads without a schedule once did what no search knew of: they were told of a group's failure
// while some of its calls were still to fail, or an operation looked before its scheduling point; the last two: a watch
// was called by whoever changed any key, and two ranks that dropped their messages at once both failed the group.
TEST_F(BruteForceTest, ThreadsWithoutAScheduleDoNothingElse) {
  for (const uint64_t seed : {93, 131, 955, 15'821, 16'122, 58'543, 36'347}) {
    SmallProgram program = draw_program(seed);
    program.points_at_memory = true;
    ASSERT_TRUE(runs_free(program)) << to_text(program);
    const Comparison result =
        compare_searches(program, {.unreduced = 0, .reduced = 100'000, .shuffles = 0, .seeds = 1, .free = 300});
    EXPECT_TRUE(result.reduced_finished);
    EXPECT_EQ(result.flaw, Flaw::kNone) << to_text(program) << result.text;
  }
}

const SearchLimits kCheapLimits = {.unreduced = 300, .reduced = 300, .seeds = 2};

// The comparison can fail: it finds each kind of access that the search must be told of. From the others it only
// learns which orders cannot be.
TEST_F(BruteForceTest, FindsAnAccessThatIsLeftOut) {
  using What = StepRecord::What;
  const std::pair<What, const char*> kinds[] = {
      {What::kRead, "reads"},
      {What::kCommute, "arrivals that commute"},
      {What::kWrite, "writes"},
      {What::kLower, "conditions that become false"},
      {What::kMiss, "waits for a condition"},
      {What::kSettle, "completions that a rank does not know of"},
  };
  for (const auto& [what, name] : kinds) {
    const int64_t found =
        programs_until_found([what = what](const StepRecord::Op& op, uint64_t) { return op.what == what; }, 1, 1'000,
                             {.unreduced = 200, .reduced = 200, .seeds = 2});
    std::printf("without %s: program %ld shows it\n", name, found);
    EXPECT_GT(found, 0) << name;
  }
}

// One in ten thousand: brute_force_campaign --leave-out 10000 --until-found, which takes longer.
TEST_F(BruteForceTest, FindsOneAccessInFiftyThatIsLeftOut) {
  const int64_t found =
      programs_until_found(leave_out_one_in(50), 1, 3'000, {.unreduced = 200, .reduced = 200, .seeds = 2});
  std::printf("without one access in fifty: program %ld shows it\n", found);
  EXPECT_GT(found, 0);
}

TEST_F(BruteForceTest, DrawsEveryOperation) {
  std::set<std::string> missing;
  for (const SmallOpRow& row : small_op_rows()) {
    for (const std::string& name : operations_of({.ranks = {{{.kind = row.kind}}}})) missing.insert(name);
  }
  for (uint64_t seed = 1; seed <= 2'000; ++seed) {
    for (const std::string& name : operations_of(draw_program(seed))) missing.erase(name);
  }
  EXPECT_THAT(missing, testing::IsEmpty());
}

// Acts that other tasks can see happen at scheduling points: without one of its own an operation would be one step with
// the one before, and nobody would come between.
TEST_F(BruteForceTest, EveryOperationThatActsHasAPointOfItsOwn) {
  const std::set<SmallOpKind> as_well_earlier = {
      SmallOpKind::kStartCoalescing,  // leaves a hook for the end of the run: their order decides nothing
      SmallOpKind::kInitGroup,        // the same group, whoever comes first; only its number says who did
      SmallOpKind::kDestroyGroup,     // the group's numbers are free for the next one
      SmallOpKind::kOnAbort,          // acts at an abort; before it, only its number says who came first
  };
  std::map<std::string, std::string> without;  // and a program that shows it
  for (uint64_t seed = 1; seed <= 2'000; ++seed) {
    const SmallProgram program = draw_program(seed);
    acted_without_a_point = [&](SmallOpKind kind) {
      if (as_well_earlier.contains(kind)) return;
      without.try_emplace(std::string(row_of(kind).names), to_text(program));
    };
    StepRecord record;
    run_program(program, Schedule::fifo(), {.record = &record});
  }
  acted_without_a_point = nullptr;
  for (const auto& [names, program] : without) ADD_FAILURE() << names << " in\n" << program;
}

// With every compiler: seeds stand in tests and notes. A generator that draws others wants a new number here, and a
// look at the seeds of left_out_test.
TEST_F(BruteForceTest, DrawsTheSameProgramsEverywhere) {
  uint64_t hash = kFnvBasis;
  for (uint64_t seed = 1; seed <= 5'000; ++seed) {
    for (const char c : to_text(draw_program(seed))) hash = fnv_step(hash, static_cast<unsigned char>(c));
  }
  EXPECT_EQ(hash, 0x30c50718c90b2aeaU);
}

TEST_F(BruteForceTest, ShrinksToWhatMatters) {
  SmallProgram program;
  for (uint64_t seed = 1;; ++seed) {
    program = draw_program(seed);
    if (size_of(program) > 6 && operations_of(program).contains("Store::add")) break;
  }
  const SmallProgram shrunk =
      shrink(program, [](const SmallProgram& smaller) { return operations_of(smaller).contains("Store::add"); });
  EXPECT_EQ(size_of(shrunk), 1);
  EXPECT_THAT(to_text(shrunk), testing::HasSubstr("store.add("));
}

}  // namespace
}  // namespace rankloom

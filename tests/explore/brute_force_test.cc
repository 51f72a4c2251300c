// The exhaustive search loses nothing: random small programs, each run under all schedules, under the reduced ones and under
// seeds of every strategy. BRUTE_FORCE_PROGRAMS says how many; brute_force_campaign runs more.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/prng.h"
#include "sim/sanitizers.h"
#include "sim/step_record.h"
#include "tests/explore/small_program.h"

namespace rankloom {
namespace {

const SearchLimits kLimits = {.unreduced = 1'500, .reduced = 1'500, .seeds = 10};

#if defined(RANKLOOM_ASAN) || defined(RANKLOOM_TSAN)
constexpr int kPrograms = 30;
#else
constexpr int kPrograms = 400;
#endif

int programs() {
  const char* const text = std::getenv("BRUTE_FORCE_PROGRAMS");
  return text != nullptr ? std::atoi(text) : kPrograms;
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

  static void expect_equal_outcomes(uint64_t first, int count) {
    int flawed = 0, unreduced = 0, reduced = 0;
    int64_t runs = 0;
    for (uint64_t seed = first; seed < first + static_cast<uint64_t>(count); ++seed) {
      const SmallProgram program = draw_program(seed);
      std::snprintf(running, sizeof(running), "ended in %s", to_text(program).c_str());
      alarm(60);
      const Comparison result = compare_searches(program, kLimits);
      unreduced += result.unreduced_finished;
      reduced += result.reduced_finished;
      runs += result.runs;
      // The first few are enough to read.
      if (result.flaw != Flaw::kNone && ++flawed <= 3) ADD_FAILURE() << shrunk_text(program, kLimits, result.flaw);
      alarm(0);
    }
    EXPECT_EQ(flawed, 0) << "of " << count << " programs";
    std::printf(
        "%d programs from seed %lu: %ld runs; the unreduced search came to its end in %d, the reduced one in %d\n",
        count, first, runs, unreduced, reduced);
    // Most programs are compared with all of their schedules.
    EXPECT_GE(unreduced, count / 2);
    EXPECT_GE(reduced, count * 9 / 10);
  }
};

TEST_F(BruteForceTest, FindsTheOutcomesOfFixedPrograms) { expect_equal_outcomes(1, programs() / 2); }

TEST_F(BruteForceTest, FindsTheOutcomesOfTodaysPrograms) {
  const absl::CivilDay today = absl::ToCivilDay(absl::Now(), absl::UTCTimeZone());
  const uint64_t date = static_cast<uint64_t>(today.year() * 10'000 + today.month() * 100 + today.day());
  expect_equal_outcomes(date * 1'000'000, programs() / 2);
}

// How many programs it takes until one shows that the reduced search was not told of what `leave_out` says; -1: more than
// `most`. Programs that have a flaw anyway do not count.
int programs_until_found(const std::function<bool(const StepRecord::Op&, uint64_t seed)>& leave_out, int most) {
  for (int i = 1; i <= most; ++i) {
    const SmallProgram program = draw_program(static_cast<uint64_t>(i));
    SearchLimits flawed = kLimits;
    flawed.leave_out = [&](const StepRecord::Op& op) { return leave_out(op, program.seed); };
    if (compare_searches(program, flawed).flaw == Flaw::kNone) continue;
    if (compare_searches(program, kLimits).flaw == Flaw::kNone) return i;
  }
  return -1;
}

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
  };
  for (const auto& [what, name] : kinds) {
    const int found =
        programs_until_found([what = what](const StepRecord::Op& op, uint64_t) { return op.what == what; }, 1'000);
    std::printf("without %s: program %d shows it\n", name, found);
    EXPECT_GT(found, 0) << name;
  }
}

TEST_F(BruteForceTest, FindsOneAccessInTwentyThatIsLeftOut) {
  const int found = programs_until_found(
      [](const StepRecord::Op& op, uint64_t seed) {
        uint64_t state = seed ^ op.object ^ (static_cast<uint64_t>(op.what) << 56);
        return Prng::splitmix64(state) % 20 == 0;
      },
      1'000);
  std::printf("without one access in twenty: program %d shows it\n", found);
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

TEST_F(BruteForceTest, DrawsTheSameProgramAgain) {
  for (uint64_t seed = 1; seed <= 100; ++seed) EXPECT_EQ(to_text(draw_program(seed)), to_text(draw_program(seed)));
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

// Random jobs in every gear against the oracle: those of today's seed, which is printed, and those of the corpus, which
// failed once. `./dev campaign` runs more. CAMPAIGN_PROGRAMS, CAMPAIGN_SEED: how many, and from which seed on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sim/base/sanitizers.h"
#include "tests/campaign/compare.h"
#include "tests/campaign/rank_words.h"
#include "tests/campaign/todays_seed.h"
#include "tests/temp_dir.h"

namespace rankloom {

namespace {

using testing::HasSubstr;

#if defined(RANKLOOM_ASAN) || defined(RANKLOOM_TSAN)
constexpr uint64_t kPrograms = 1'000;
#else
constexpr uint64_t kPrograms = 20'000;
#endif
constexpr int kParts = 4;  // each a case, so that cores share them
// Where a machine is too slow for all, the log says how many there were time for.
constexpr std::chrono::seconds kMost{20};
constexpr int kLongest = 120;  // seconds of one job, which takes some milliseconds

uint64_t number(const char* variable, uint64_t usual) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : usual;
}

bool runs_fibers() {
#ifdef RANKLOOM_TSAN
  return false;
#else
  return true;
#endif
}

// A job that stands still ends the process, which says which one it was.
class Watchdog {
 public:
  Watchdog() { signal(SIGALRM, end); }
  ~Watchdog() {
    alarm(0);
    signal(SIGALRM, SIG_DFL);
  }
  static void begins(uint64_t seed, const Job& job) {
    alarm(0);
    std::snprintf(text_, sizeof(text_), "CAMPAIGN_SEED=%lu stands still\n%s", seed, to_text(job).c_str());
    alarm(kLongest);
  }

 private:
  static void end(int /*signal*/) {
    if (write(STDERR_FILENO, text_, std::strlen(text_)) < 0) std::_Exit(3);
    std::abort();
  }
  inline static char text_[4096];
};

class TodaysJobsTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Parts, TodaysJobsTest, testing::Range(0, kParts));

TEST_P(TodaysJobsTest, SeeWhatTheOracleSays) {
  if (!runs_fibers()) GTEST_SKIP() << "ThreadSanitizer cannot follow fibers; JobsOnThreadsTest has threads";
  const uint64_t programs = (number("CAMPAIGN_PROGRAMS", kPrograms) + kParts - 1) / kParts;
  const uint64_t first = number("CAMPAIGN_SEED", todays_seed()) + programs * static_cast<uint64_t>(GetParam());
  const auto end = std::chrono::steady_clock::now() + kMost;
  uint64_t done = 0, runs = 0;
  const Watchdog watchdog;
  for (; done < programs && std::chrono::steady_clock::now() < end; ++done) {
    const Job job = draw_job(first + done);
    Watchdog::begins(first + done, job);
    const Comparison result = compare_gears(job, Effort::kQuick);
    runs += static_cast<uint64_t>(result.runs);
    ASSERT_FALSE(result.wrong.has_value())
        << "CAMPAIGN_SEED=" << first + done << ": " << *result.wrong << "\n"
        << to_text(job) << "\n./dev campaign --seed " << first + done << " --programs 1 shrinks it";
  }
  std::printf("noted: random jobs of today, seeds %lu to %lu: %lu jobs, %lu runs\n", first, first + done - 1, done,
              runs);
  EXPECT_GE(done, std::min<uint64_t>(programs, 50));
}

std::optional<std::string> wrong_on_threads(const Job& job, const Schedule& schedule) {
  const Plan plan(job);
  return wrong_with(plan, oracle(plan), run_job(plan, {EngineKind::kThreads, schedule}));
}

// ThreadSanitizer sees these.
TEST(JobsOnThreadsTest, SeeWhatTheOracleSays) {
  const uint64_t first = number("CAMPAIGN_SEED", todays_seed() + 900'000);
  const Watchdog watchdog;
  for (uint64_t seed = first; seed < first + 300; ++seed) {
    const Job job = draw_job(seed);
    Watchdog::begins(seed, job);
    const auto wrong = wrong_on_threads(job, job.seed % 4 == 0 ? exploring(job) : Schedule::free());
    ASSERT_FALSE(wrong.has_value()) << "CAMPAIGN_SEED=" << seed << ": " << *wrong << "\n" << to_text(job);
  }
}

TEST(CorpusTest, JobsThatFailedOnceGoWell) {
  int jobs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(CAMPAIGN_CORPUS)) {
    const std::string path = entry.path().string();
    const absl::StatusOr<Job> job = parse_job(read_file(path));
    ASSERT_TRUE(job.ok()) << path << ": " << job.status();
    ++jobs;
    for (const int more : {0, 1, 2}) {
      Job again = *job;
      again.seed += more;
      std::vector<Schedule> schedules = all_exploring(static_cast<uint64_t>(again.seed));
      if (!runs_fibers()) schedules.push_back(Schedule::free());
      for (const Schedule& schedule : schedules) {
        const std::optional<std::string> wrong =
            runs_fibers() ? compare_gears(again, Effort::kFull, schedule).wrong : wrong_on_threads(again, schedule);
        ASSERT_FALSE(wrong.has_value()) << path << ", schedule " << schedule.text() << ": " << *wrong;
      }
    }
  }
  EXPECT_GE(jobs, 12);
}

// A drawn job without faults that has at least `acts` acts.
Job good_job(size_t acts) {
  for (uint64_t seed = 1;; ++seed) {
    const Job job = draw_job(seed, Palette::kGood, /*world_size=*/3);
    if (job.acts.size() >= acts) return job;
  }
}

JobRun on_fifo(const Plan& plan) { return run_job(plan, {EngineKind::kFibers, Schedule::fifo()}); }

TEST(JobTextTest, IsReadBackAsTheSameJob) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    const Job drawn = draw_job(seed);
    const std::string text = to_text(drawn);
    const absl::StatusOr<Job> job = parse_job(text);
    ASSERT_TRUE(job.ok()) << job.status() << "\n" << text;
    ASSERT_EQ(*job, drawn) << text;  // fields that a text has not, too
  }
}

TEST(JobTextTest, NamesTheLineThatIsWrong) {
  const auto refusal = [](const std::string& text) { return std::string(parse_job(text).status().message()); };
  EXPECT_EQ(refusal("job world_size=2\nall_reduce id=1\n"), "line 2 of a job: no act is called all_reduce");
  EXPECT_EQ(refusal("job world_size=2 ranks=3\n"), "line 1 of a job: ranks=3: no field is called so");
  EXPECT_EQ(refusal("job\n\n  call op=all_reduce\n"), "line 3 of a job: a call before the first act");
  EXPECT_EQ(refusal("job world_size=0\n"), "line 2 of a job: a world without ranks");
  EXPECT_EQ(refusal("job\nbarrier\n"), "line 2 of a job: no act is called barrier");
  EXPECT_EQ(refusal("job\ncollective id=1\n  call op=nonsense\n"),
            "line 3 of a job: op=nonsense: not a value that the field can have");
  EXPECT_EQ(refusal("job\ncollective id=1\n  call count=-1\n"), "line 3 of a job: count=-1: want 0 to 16777216");
  EXPECT_EQ(refusal("job\ncollective id=1\n  call op=send\n"), "line 3 of a job: op=send: no collective");
  EXPECT_EQ(refusal("job\ntwo_groups id=1\n"), "line 3 of a job: act 1: want one part");
  EXPECT_EQ(refusal("job\nrefused id=1 a=99\n"), "line 2 of a job: a=99: want 0 to 15");
  EXPECT_EQ(refusal("job\nyield id=1\nyield id=1\n"), "line 3 of a job: two acts have the id 1");
  EXPECT_EQ(refusal("job fault_rate=5000\n"), "line 2 of a job: fault_rate=5000: want 0 to 1000");
  EXPECT_EQ(refusal("\n# nothing\n"), "a file without a job");
}

// A library that did wrong would be found: the run of a job, with one thing changed.
TEST(OracleTest, FindsAByteThatIsWrong) {
  const Job job = good_job(12);
  const Plan plan(job);
  const JobLog expected = oracle(plan);
  JobRun run = on_fifo(plan);
  ASSERT_EQ(wrong_with(plan, expected, run), std::nullopt);
  int flips = 0;
  for (RankLog& log : run.log) {
    for (Sight& sight : log.seen) {
      if (sight.saw.empty()) continue;
      ++flips;
      sight.saw.back() = static_cast<char>(sight.saw.back() ^ 1);
      EXPECT_THAT(wrong_with(plan, expected, run).value_or("nothing"), HasSubstr("the oracle says act"));
      sight.saw.back() = static_cast<char>(sight.saw.back() ^ 1);
    }
  }
  EXPECT_GT(flips, 5);
}

TEST(OracleTest, FindsWhatARankDidNotSee) {
  const Job job = good_job(12);
  const Plan plan(job);
  const JobLog expected = oracle(plan);
  JobRun run = on_fifo(plan);
  run.log[1].seen.pop_back();
  EXPECT_THAT(wrong_with(plan, expected, run).value_or("nothing"), HasSubstr("rank 1 did not come to act"));
  run = on_fifo(plan);
  run.log[2].seen.push_back({7, "more"});
  EXPECT_THAT(wrong_with(plan, expected, run).value_or("nothing"), HasSubstr("rank 2 saw more than the oracle: act 7"));
  run = on_fifo(plan);
  run.report.notes.push_back("something is left over");
  EXPECT_EQ(wrong_with(plan, expected, run), "a note: something is left over");
}

TEST(OracleTest, FindsWhatWasWrittenOrSleptTooLate) {
  const Job job = good_job(12);
  const Plan plan(job);
  JobRun run = on_fifo(plan);
  EXPECT_EQ(run.late, "");
  run.late = "rank 1 slept 3us too long; ";
  EXPECT_EQ(wrong_with(plan, oracle(plan), run), "rank 1 slept 3us too long; ");
}

TEST(RankWordsTest, KnowASleepOrTimeoutThatIsTooShort) {
  EXPECT_EQ(slept_text(absl::Microseconds(5), 5), kSlept);
  EXPECT_EQ(slept_text(absl::Microseconds(4), 5), "slept for 4us only");
  run_world({.world_size = 1, .engine = EngineKind::kFibers}, [](RankContext& rank) {
    const auto times_out = [] { throw DistError(make_error(ErrorKind::kTimeout, "soon"), {}); };
    EXPECT_EQ(timeout(rank, 0, times_out), kTimedOut);
    EXPECT_EQ(timeout(rank, 5, times_out), "timed out too early");
    EXPECT_EQ(timeout(rank, 5, [] {}), "went well");
  }).throw_if_failed();
}

// Values depend on what the rank saw before, so that a wrong order shows.
TEST(OracleTest, ALaterSightDependsOnAnEarlierOne) {
  const auto job = parse_job(
      "job world_size=2\n"
      "collective id=1 way=1\n  call op=all_reduce dtype=int64 count=2\n"
      "collective id=2 way=1\n  call op=all_reduce dtype=int64 count=2\n");
  Job without = *job;
  without.acts.erase(without.acts.begin());
  const JobLog both = oracle(Plan(*job));
  const JobLog second = oracle(Plan(without));
  EXPECT_NE(both[0].seen[1].saw, second[0].seen[0].saw);
}

TEST(ShrinkTest, LeavesOnlyWhatIsNeeded) {
  // The "failure": an uneven reduce_scatter on a group that was split off.
  const auto fails = [](const Job& job) {
    const Plan plan(job);
    for (size_t i = 0; i < job.acts.size(); ++i) {
      const Act& act = job.acts[i];
      if (plan.where(i) != nullptr && act.type() == ActKind::kCollective && act.group != 0 && act.call.uneven != 0) {
        return true;
      }
    }
    return false;
  };
  Job job;
  for (uint64_t seed = 1; !fails(job); ++seed) job = draw_job(seed);
  const Job small = shrink(job, fails);
  EXPECT_TRUE(fails(small));
  EXPECT_EQ(small.acts.size(), 2u) << to_text(small);
  EXPECT_EQ(small.world_size, 1) << to_text(small);
}

TEST(DrawTest, DrawsEveryKindOfActAndCall) {
  std::set<int> kinds, ops, dtypes, ways, waits, reduce_ops;
  for (uint64_t seed = 1; seed <= 2'000; ++seed) {
    for (const Act& act : draw_job(seed).acts) {
      kinds.insert(act.kind);
      if (act.type() == ActKind::kWait) waits.insert(act.b);
      if (act.type() != ActKind::kCollective) continue;
      ops.insert(act.call.op);
      dtypes.insert(act.call.dtype);
      reduce_ops.insert(act.call.reduce);
      ways.insert(act.way);
    }
  }
  EXPECT_EQ(kinds.size(), static_cast<size_t>(ActKind::kCount));
  EXPECT_EQ(ops.size(), kCollectives.size());
  EXPECT_EQ(dtypes.size(), static_cast<size_t>(internal::kDTypeCount));
  EXPECT_EQ(reduce_ops.size(), static_cast<size_t>(internal::kReduceOpCount));
  EXPECT_EQ(ways.size(), static_cast<size_t>(Way::kCount));
  EXPECT_EQ(waits.size(), static_cast<size_t>(WaitWay::kCount));
}

TEST(DrawTest, DrawsFaultsOfEveryKindAloneAndBesideActsThatFail) {
  std::set<Fault::Kind> alone;
  int beside = 0, seeded = 0, delays = 0, of_any_rank = 0, maybe = 0;
  for (uint64_t seed = 1; seed <= 4'000; ++seed) {
    const Job job = draw_job(seed);
    const bool bad = std::any_of(job.acts.begin(), job.acts.end(), [](const Act& act) { return act.ends_badly(); });
    seeded += job.fault_rate > 0;
    for (const Fault& fault : job.faults) {
      of_any_rank += fault.rank < 0;
      maybe += fault.maybe;
      delays += fault.kind == Fault::Kind::kDelay;
      if (bad) {
        ++beside;
      } else {
        alone.insert(fault.kind);
      }
    }
  }
  EXPECT_EQ(alone.size(), static_cast<size_t>(internal::kFaultKindCount));
  EXPECT_GT(std::min({beside, seeded, delays, of_any_rank, maybe}), 50);
}

TEST(CrossingTest, MessagesOfOneTagAreTakenInTheOrderOfTheSends) {
  int crossed = 0;
  for (int seed = 1; seed <= 200; ++seed) {
    const Crossing crossing = crossing_of({.c = seed % 3, .seed = seed});
    ASSERT_EQ(crossing.tags.size(), static_cast<size_t>(seed % 3 + 2));
    std::vector<int> last = {-1, -1};
    for (const int i : crossing.taken) {
      int& before = last[static_cast<size_t>(crossing.tags[static_cast<size_t>(i)])];
      ASSERT_GT(i, before);
      before = i;
    }
    EXPECT_EQ(std::set<int>(crossing.taken.begin(), crossing.taken.end()).size(), crossing.tags.size());
    crossed += !std::is_sorted(crossing.taken.begin(), crossing.taken.end());
  }
  EXPECT_GT(crossed, 50);
}

// A job that must fail by an act or a fault, and one that may not.
struct EndCase {
  const char* job;
  const char* said_when_well;  // a run of it of which the report says that all went well
};
class EndTest : public testing::TestWithParam<EndCase> {};
INSTANTIATE_TEST_SUITE_P(
    Jobs, EndTest,
    testing::Values(
        EndCase{"job world_size=2\nthrow id=1 rank=1\n", "went well in spite of throw"},
        EndCase{"job world_size=2\nabort_world id=1 rank=1\n", "went well in spite of abort_world"},
        EndCase{"job world_size=2\nother_call id=1 rank=1\n", "went well in spite of other_call"},
        EndCase{"job world_size=2\ngroup_timeout id=1 rank=1 a=5\n", "went well in spite of group_timeout"},
        EndCase{"job world_size=2\nfault crash@rank=1,nth=1\nmonitored_barrier id=1\n", "went well in spite of crash"},
        EndCase{"job world_size=2\nfault hang@rank=1,nth=1\nmonitored_barrier id=1\n", "went well in spite of hang"},
        EndCase{"job world_size=2\nfault drop@rank=0,op=send,nth=1\nmessage id=1 b=1\n  call dtype=int32 count=1\n",
                "went well in spite of drop"}));

std::exception_ptr error_of(ErrorKind kind, const char* text) {
  return std::make_exception_ptr(DistError(make_error(kind, text), {}));
}

TEST_P(EndTest, AJobThatMustFailDoes) {
  const auto job = parse_job(GetParam().job);
  ASSERT_TRUE(job.ok()) << job.status();
  const Plan plan(*job);
  const JobLog expected = oracle(plan);
  JobRun run = on_fifo(plan);
  EXPECT_FALSE(run.report.ok());
  EXPECT_EQ(wrong_with(plan, expected, run), std::nullopt);
  // By an error of another kind.
  JobRun other = run;
  other.report.first_failed = 0;
  other.report.outcomes[0].state = RunReport::Outcome::State::kFailed;
  other.report.outcomes[0].exception = error_of(ErrorKind::kCollectiveError, "a backend failed in some way");
  EXPECT_THAT(wrong_with(plan, expected, other).value_or("nothing"), HasSubstr("failed by CollectiveError, want "));
  // Nobody noticed.
  run.report.first_failed = -1;
  run.report.cause = absl::OkStatus();
  for (RunReport::Outcome& outcome : run.report.outcomes) {
    outcome = {};
    outcome.state = RunReport::Outcome::State::kReturned;
  }
  EXPECT_EQ(wrong_with(plan, expected, run), GetParam().said_when_well);
}

// The rank that fails first is the one of the act, or of the fault.
TEST(FirstRankTest, IsTheOneThatThrewOrCrashed) {
  for (const char* const text : {"job world_size=3\nthrow id=1 rank=1\nmonitored_barrier id=2\n",
                                 "job world_size=3\nfault crash@rank=1,nth=1\nmonitored_barrier id=1\n"}) {
    const Job job = parse_job(text).value();
    const Plan plan(job);
    JobRun run = on_fifo(plan);
    ASSERT_EQ(run.report.first_failed, 1) << text;
    EXPECT_EQ(wrong_with(plan, oracle(plan), run), std::nullopt);
    std::swap(run.report.outcomes[1], run.report.outcomes[2]);
    run.report.first_failed = 2;
    EXPECT_THAT(wrong_with(plan, oracle(plan), run).value_or("nothing"),
                HasSubstr("rank 2 failed first, want rank 1: "));
  }
}

TEST(FaultsThatHappenedTest, WerePlanned) {
  const Job job = parse_job("job world_size=2\nfault delay@rank=1,nth=1,by=5us\nmonitored_barrier id=1\n").value();
  const Plan plan(job);
  JobRun run = on_fifo(plan);
  EXPECT_EQ(wrong_with(plan, oracle(plan), run), std::nullopt);
  run.report.faults.at(0).rank = 0;
  EXPECT_THAT(wrong_with(plan, oracle(plan), run).value_or("nothing"),
              HasSubstr("a fault that nobody planned: delay@"));
}

int bits_that_differ(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return -1;
  int bits = 0;
  for (size_t i = 0; i < a.size(); ++i) bits += __builtin_popcount(static_cast<uint8_t>(a[i] ^ b[i]));
  return bits;
}

TEST(FaultsThatHappenedTest, ACorruptionIsOfOneBit) {
  for (const bool before : {true, false}) {
    const Job job =
        parse_job(absl::StrCat("job world_size=3\nfault corrupt@rank=0,nth=1,when=", before ? "before" : "after",
                               "\ncollective id=1 way=1\n  call op=broadcast dtype=int32 count=5\n"))
            .value();
    const Plan plan(job);
    const JobLog expected = oracle(plan);
    const JobRun run = on_fifo(plan);
    EXPECT_EQ(wrong_with(plan, expected, run), std::nullopt);
    for (size_t rank = 0; rank < 3; ++rank) {
      const int bits = bits_that_differ(expected[rank].seen.at(0).saw, run.log[rank].seen.at(0).saw);
      EXPECT_EQ(bits, before || rank == 0 ? 1 : 0) << "rank " << rank << ", before: " << before;
    }
  }
}

Gear gear_of(const Job& job) { return {runs_fibers() ? EngineKind::kFibers : EngineKind::kThreads, exploring(job)}; }

// The one thing by which a job may fail, or change what ranks see; empty: none, or several.
std::string only_cause(const Job& job) {
  std::set<std::string> causes;
  for (const Act& act : job.acts) {
    if (act.ends_badly()) causes.emplace(act_name(act.type()));
  }
  for (const Fault& fault : job.faults) causes.emplace(internal::fault_kind_name(fault.kind));
  return causes.size() == 1 && job.fault_rate == 0 ? *causes.begin() : "";
}

// An effect need not come, as where a work is done before it is dropped; but one that never comes is lost.
TEST(EffectTest, WhatMayHaveOneDoesNowAndThen) {
  constexpr int kTried = 160;
  std::map<std::string, int> tried, effects;
  for (uint64_t seed = 1; seed <= 40'000; ++seed) {
    const Job job = draw_job(seed);
    const std::string cause = only_cause(job);
    if (cause.empty() || tried[cause] == kTried) continue;
    ++tried[cause];
    const Plan plan(job);
    const JobLog expected = oracle(plan);
    const JobRun run = run_job(plan, gear_of(job));
    bool saw_others = false;
    for (size_t rank = 0; run.report.ok() && rank < run.log.size(); ++rank)
      saw_others |= run.log[rank].seen != expected[rank].seen;
    effects[cause] += !run.report.ok() || saw_others;
  }
  // At least a third of those that have one today; all, where an effect always comes.
  for (const auto& [cause, want] : std::map<std::string, int>{
           {"throw", 160},
           {"abort_world", 160},
           {"abort_group", 50},
           {"drop_work", 4},
           {"leave", 60},
           {"other_call", 60},
           {"group_timeout", 50},
           {"crash", 20},
           {"hang", 25},
           {"drop", 15},
           {"duplicate", 1},
           {"corrupt", 15},
           {"abort", 19},
           {"store_timeout", 4},
       }) {
    EXPECT_EQ(tried[cause], kTried) << cause;
    EXPECT_GE(effects[cause], want) << cause;
  }
}

TEST(TensorsTest, TellOfHarm) {
  Tensors tensors;
  const TensorView in = tensors.add(DType::kUInt8, 3), out = tensors.add(DType::kUInt8, 3);
  tensors.give(in, {1, 2, 3});
  Tensors::write(out, {4, 5, 6});
  EXPECT_EQ(tensors.harm(), "");
  static_cast<uint8_t*>(in.data())[1] = 9;
  EXPECT_EQ(tensors.harm(), " and an input was changed");
  static_cast<uint8_t*>(in.data())[1] = 2;
  static_cast<uint8_t*>(out.data())[3] = 0;
  EXPECT_EQ(tensors.harm(), " and bytes beside a tensor were written");
  EXPECT_TRUE(tensors.rests());
  tensors.retire();
  EXPECT_TRUE(tensors.rests());
  static_cast<uint8_t*>(out.data())[0] = 4;
  EXPECT_FALSE(tensors.rests());
}

TEST(ArrivalsTest, MissThoseThatHaveNotCome) {
  Arrivals arrivals;
  arrivals.comes({.act = 1, .part = 0, .first = 2});
  arrivals.comes({.act = 1, .part = 1, .first = 2});
  EXPECT_EQ(arrivals.missing({.act = 1, .part = 0, .first = 2}, 1), "");
  EXPECT_EQ(arrivals.missing({.act = 1, .part = 0, .first = 2}, 3), " and a barrier let it go when 1 of 3 had come");
}

TEST(OrderTest, ASightThatWasAnotherOneBeforeIsWrong) {
  EXPECT_EQ(alike("abc", {"abc", "abc"}), "abc");
  EXPECT_EQ(alike("abc", {"abc", "abd"}), "abc and other outputs when it had waited");
}

TEST(GoodEndTest, AJobThatMayNotFailDoesNot) {
  const Job job = good_job(12);
  const Plan plan(job);
  JobRun run = on_fifo(plan);
  run.report.cause = make_error(ErrorKind::kDeadlock, "no rank can move any more");
  run.report.outcomes[1].state = RunReport::Outcome::State::kStopped;
  run.report.outcomes[1].exception = error_of(ErrorKind::kDeadlock, "no rank can move any more");
  EXPECT_THAT(wrong_with(plan, oracle(plan), run).value_or("nothing"),
              HasSubstr("failed by Deadlock, want no failure: "));
  run.report.outcomes[1].state = RunReport::Outcome::State::kRunning;
  EXPECT_EQ(wrong_with(plan, oracle(plan), run), "rank 1: has not ended");
}

}  // namespace

}  // namespace rankloom

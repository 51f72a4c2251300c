// explore() by several processes: the same schedules as by one, whoever dies; one report.

#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "harness/explore/forked_workers.h"
#include "harness/explore/search.h"
#include "rankloom/explore.h"
#include "rankloom/process_group.h"
#include "rankloom/random.h"
#include "sim/base/parker.h"
#include "sim/base/sanitizers.h"
#include "tests/explore/counted_programs.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;

WorldOptions fibers(int ranks) {
  return {.world_size = ranks, .engine = EngineKind::kFibers, .stall = absl::InfiniteDuration()};
}

// Memory that the processes of a search share.
template <typename T>
class Shared {
 public:
  Shared() {
    void* const memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    value_ = new (memory) T();
  }
  ~Shared() { munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  T* value_;
};

// Lines that the processes of a search append to one file: each is written at once.
class Lines {
 public:
  Lines() : file_(std::tmpfile()) { EXPECT_NE(file_, nullptr); }
  ~Lines() { std::fclose(file_); }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  void add(const std::string& line) const {
    const std::string text = line + "\n";
    EXPECT_EQ(write(fileno(file_), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  std::vector<std::string> all() const {
    std::string text;
    char buffer[4096];
    lseek(fileno(file_), 0, SEEK_SET);
    for (ssize_t got = 0; (got = read(fileno(file_), buffer, sizeof(buffer))) > 0;)
      text.append(buffer, static_cast<size_t>(got));
    return absl::StrSplit(text, '\n', absl::SkipEmpty());
  }

 private:
  std::FILE* const file_;
};

// Ends the process by SIGKILL after a while, wherever it is then.
void die_within(int64_t ns) {
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer;
  ASSERT_EQ(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
  const itimerspec after{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = ns}};
  ASSERT_EQ(timer_settime(timer, 0, &after, nullptr), 0);
}

struct Counted {
  CountedProgram program;
  int64_t schedules;
};

void PrintTo(const Counted& counted, std::ostream* out) { *out << counted.program.name; }

struct Searched {
  ExploreReport report;
  std::vector<std::string> outcomes;  // of each run, as often as it was made
};

// All schedules of the program. `deaths`: processes that are killed, each some time after its first run.
Searched search_counted(const CountedProgram& program, int processes, int deaths = 0) {
  const ExploreOptions options{.world = fibers(program.tasks),
                               .strategies = {Strategy::exhaustive()},
                               .max_runs = 1'000'000,
                               .processes = processes,
                               .checks = {.results = false, .store_keys = false}};
  const Lines lines;
  const Shared<std::atomic<int>> left;
  *left = deaths;
  const pid_t here = getpid();
  pid_t doomed = 0;
  int64_t slowest_ns = 500'000;  // of the runs before there are others
  const auto run = [&](const std::shared_ptr<World>& world, internal::Program body, std::vector<std::string>*,
                       absl::FunctionRef<void()> look) {
    if (getpid() != here && doomed != getpid() && left->fetch_sub(1) > 0) {
      doomed = getpid();
      Prng prng(static_cast<uint64_t>(getpid()));
      // A run in which four processes die is blamed on the program: on a slow machine, too, a few runs come first.
      die_within(2 * slowest_ns + static_cast<int64_t>(prng.below(40'000'000)));
    }
    const int64_t begun_ns = monotonic_ns();
    program.clear(world->store());
    std::vector<std::string> seen(static_cast<size_t>(program.tasks));
    RunReport report = world->run([&](RankContext& rank) {
      body(rank);
      seen[static_cast<size_t>(rank.rank())] = program.run(rank.store(), rank.rank());
    });
    look();
    lines.add(absl::StrJoin(seen, " "));
    if (getpid() == here) slowest_ns = std::max(slowest_ns, monotonic_ns() - begun_ns);
    return report;
  };
  ExploreReport report = internal::search(
      options, 1, [](RankContext&) {}, run, CodeSite::here());
  return {.report = std::move(report), .outcomes = lines.all()};
}

std::set<std::string> as_set(const std::vector<std::string>& lines) { return {lines.begin(), lines.end()}; }

class CountedOnFibersTest : public testing::TestWithParam<Counted> {};

TEST_P(CountedOnFibersTest, RunsTheSameSchedulesByOneTwoAndFour) {
  const Searched alone = search_counted(GetParam().program, 1);
  ASSERT_TRUE(alone.report.verified) << alone.report.text();
  ASSERT_EQ(alone.report.shares[0].schedules, GetParam().schedules);
  for (const int processes : {2, 4}) {
    const Searched together = search_counted(GetParam().program, processes);
    EXPECT_TRUE(together.report.verified) << together.report.text();
    EXPECT_EQ(together.report.shares[0].schedules, GetParam().schedules);
    EXPECT_EQ(together.report.shares[0].open, 0);
    EXPECT_EQ(as_set(together.outcomes), as_set(alone.outcomes));
    // Each run that was made is counted, and no other.
    EXPECT_EQ(static_cast<int64_t>(together.outcomes.size()), together.report.runs);
    EXPECT_THAT(together.report.process_notes, IsEmpty());
    EXPECT_THAT(together.report.summary(),
                testing::StartsWith(absl::StrCat("verified: all ", GetParam().schedules, " schedule")));
  }
}

TEST_P(CountedOnFibersTest, RunsTheSameSchedulesWithProcessesKilledAtRandom) {
  const Searched alone = search_counted(GetParam().program, 1);
  for (const int processes : {2, 4}) {
    const Searched together = search_counted(GetParam().program, processes, /*deaths=*/6);
    EXPECT_TRUE(together.report.verified) << together.report.text();
    EXPECT_EQ(together.report.shares[0].schedules, GetParam().schedules) << together.report.text();
    EXPECT_EQ(as_set(together.outcomes), as_set(alone.outcomes));
    // Runs that a process made last, and nobody heard of, were made again.
    EXPECT_GE(static_cast<int64_t>(together.outcomes.size()), together.report.runs);
    for (const std::string& note : together.report.process_notes)
      EXPECT_THAT(note,
                  MatchesRegex("process [1-4] ended with signal 9 \\(Killed\\)(; its work was given to others)?"));
  }
}

INSTANTIATE_TEST_SUITE_P(Known, CountedOnFibersTest,
                         testing::Values(Counted{readers(2), 4}, Counted{readers(10), 1'024}, Counted{lastzero(8), 704},
                                         Counted{indexer(11), 1}, Counted{indexer(13), 64}, Counted{increments(6), 720},
                                         Counted{increments_of_two(4), 576}));

TEST(ProcessesOnFibersTest, KilledOnesAreTold) {
  const Searched killed = search_counted(lastzero(12), 2, /*deaths=*/2);
  EXPECT_TRUE(killed.report.verified) << killed.report.text();
  EXPECT_EQ(killed.report.shares[0].schedules, 15 * 1'024);
  ASSERT_THAT(killed.report.process_notes, testing::SizeIs(testing::Ge(1))) << "the search was over before";
  EXPECT_THAT(killed.report.text(), HasSubstr("ended with signal 9 (Killed)"));
  EXPECT_THAT(killed.report.summary(), AllOf(HasSubstr("verified: all 15360 schedules that can differ"),
                                             HasSubstr("; process "), HasSubstr("ended with signal 9 (Killed)")));
}

// --- failures

void fails_if_backwards(RankContext& rank) {
  for (int i = 0; i < 3; ++i) rank.yield();
  rank.store().append("order", absl::StrCat(rank.rank()));
  if (rank.rank() == 0 && rank.store().get("order") == "210") throw std::runtime_error("backwards");
}

TEST(ProcessesOnFibersTest, ReportTheSameDrawnFailureHoweverMany) {
  const auto search = [](int processes) {
    return explore({.world = fibers(3),
                    .strategies = {Strategy::random(), Strategy::pct()},
                    .max_runs = 5'000,
                    .processes = processes},
                   fails_if_backwards);
  };
  const ExploreReport alone = search(1);
  ASSERT_TRUE(alone.failure.has_value()) << alone.text();
  for (const int processes : {2, 4}) {
    const ExploreReport together = search(processes);
    ASSERT_TRUE(together.failure.has_value()) << together.text();
    EXPECT_EQ(together.failure->strategy, alone.failure->strategy);
    EXPECT_EQ(together.failure->run, alone.failure->run);
    EXPECT_EQ(together.failure->found.text(), alone.failure->found.text());
    EXPECT_EQ(together.failure->headline, alone.failure->headline);
    EXPECT_EQ(together.failure->world.schedule.text(), alone.failure->world.schedule.text());
    EXPECT_EQ(together.failure->story, alone.failure->story);
  }
}

TEST(ProcessesOnFibersTest, ShrinkWhatTheExhaustiveSearchFinds) {
  const ExploreReport report =
      explore({.world = fibers(3), .strategies = {Strategy::exhaustive()}, .processes = 2}, [](RankContext& rank) {
        rank.store().append("order", absl::StrCat(rank.rank()));
        if (rank.rank() == 0 && rank.store().get("order") == "210") throw std::runtime_error("backwards");
      });
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_FALSE(report.verified);
  EXPECT_THAT(report.failure->headline, HasSubstr("backwards"));
  EXPECT_THAT(report.failure->rerun, HasSubstr("RANKLOOM_SCHEDULE='steered:1:"));
  EXPECT_LE(report.failure->size(), 3);
  EXPECT_GT(report.failure->shrink_runs, 0);
  // Alone, on one machine, it happens again.
  const RunReport again = run_world(report.failure->world, [](RankContext& rank) {
    rank.store().append("order", absl::StrCat(rank.rank()));
    if (rank.rank() == 0 && rank.store().get("order") == "210") throw std::runtime_error("backwards");
  });
  EXPECT_THAT(again.text(), HasSubstr("backwards"));
}

constexpr int kLeave = 77;

// Ends the process in one order of three, unless it is `but`.
void crash_if_backwards(RankContext& rank, pid_t but, int how) {
  rank.store().append("order", absl::StrCat(rank.rank()));
  if (rank.rank() != 0 || rank.store().get("order") != "210" || getpid() == but) return;
  if (how == kLeave) _exit(kLeave);
  if (how < 0) std::raise(-how);
  std::exit(how);
}

struct End {
  int how;  // a signal, negative, or what exit() is called with
  const char* text;
};

class EndsInARunOnFibersTest : public testing::TestWithParam<End> {};

TEST_P(EndsInARunOnFibersTest, ExhaustiveSearchNamesTheRun) {
  const pid_t here = getpid();
  int how = GetParam().how;
  const auto program = [&](RankContext& rank) { crash_if_backwards(rank, here, how); };
  const ExploreReport report =
      explore({.world = fibers(3), .strategies = {Strategy::exhaustive()}, .processes = 2}, program);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_FALSE(report.verified);
  EXPECT_EQ(report.failure->headline, absl::StrCat("the process that made this run ended with ", GetParam().text,
                                                   "; what it printed stands above"));
  EXPECT_EQ(report.failure->strategy, "exhaustive");
  EXPECT_EQ(report.failure->run, report.shares[0].runs + 1);
  EXPECT_THAT(report.failure->rerun, HasSubstr("RANKLOOM_SCHEDULE='steered:1:"));
  EXPECT_GT(report.failure->world.schedule.switches().size(), 0u);
  // The same run, by itself, comes to where it ended its process.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    how = kLeave;
    run_world(report.failure->world, program);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kLeave) << status;
}

TEST_P(EndsInARunOnFibersTest, DrawnRunsNameTheirSeed) {
  const pid_t here = getpid();
  const auto search = [&](int processes) {
    return explore({.world = fibers(3), .strategies = {Strategy::random()}, .max_runs = 3'000, .processes = processes},
                   [&](RankContext& rank) { crash_if_backwards(rank, here, GetParam().how); });
  };
  const ExploreReport report = search(2);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.failure->headline, HasSubstr(absl::StrCat("ended with ", GetParam().text, ";")));
  EXPECT_EQ(report.failure->found.text(), search(4).failure->found.text());
}

INSTANTIATE_TEST_SUITE_P(Ends, EndsInARunOnFibersTest,
                         testing::Values(End{-SIGKILL, "signal 9 (Killed)"}, End{-SIGABRT, "signal 6 (Aborted)"},
                                         End{3, "a call of exit()"}, End{0, "a call of exit()"}),
                         [](const auto& info) { return absl::StrCat("n", info.index); });

TEST(ProcessesOnFibersTest, ARunThatFailsInOneProcessOnlyIsAFailure) {
  const pid_t here = getpid();
  const ExploreReport report =
      explore({.world = fibers(2), .strategies = {Strategy::random()}, .max_runs = 500, .processes = 2},
              [&](RankContext& rank) {
                rank.yield();
                if (getpid() != here && rank.rank() == 1) throw std::runtime_error("elsewhere");
              });
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_EQ(report.failure->run, 1);
  EXPECT_THAT(report.failure->headline, HasSubstr("elsewhere"));
  EXPECT_THAT(
      report.text(),
      HasSubstr(
          "the same run went well when it was made again by another process: it depends on more than the schedule"));
}

// Of an exhaustive search: what went wrong there, and the run's own choices, though another process makes others.
TEST(ProcessesOnFibersTest, AnExploredRunThatFailsInOneProcessOnlyIsAFailure) {
  const pid_t here = getpid();
  const ExploreReport report =
      explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}, .processes = 2}, [&](RankContext& rank) {
        rank.yield();
        if (getpid() != here && rank.rank() == 0) throw std::runtime_error("elsewhere");
        rank.store().add("n", 1);
        rank.yield();
      });
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_THAT(report.failure->headline, HasSubstr("elsewhere"));
  EXPECT_THAT(report.failure->found.text(), testing::StartsWith("steered:"));
  EXPECT_THAT(report.failure->rerun, HasSubstr("RANKLOOM_SCHEDULE=steered:"));
  EXPECT_THAT(report.text(), HasSubstr("the same run went another way when it was made again by another process: it "
                                       "depends on more than the schedule"));
}

// --- budgets

TEST(ProcessesOnFibersTest, KeepToTheBudget) {
  // 17 million schedules: no machine is through with them in a test.
  const auto program = [](RankContext& rank) {
    for (int i = 0; i < 6; ++i) rank.store().append("log", absl::StrCat(rank.rank()));
  };
  const ExploreOptions options{.world = fibers(3), .max_runs = 400, .processes = 3, .checks = {.store_values = false}};
  const ExploreReport report = explore(options, program);
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_FALSE(report.verified);
  EXPECT_EQ(report.runs, 400);
  EXPECT_EQ(report.shares[0].runs, 199) << "half of what the first two runs have left";
  EXPECT_FALSE(report.shares[0].finished);
  EXPECT_GT(report.shares[0].open, 0);
  EXPECT_EQ(report.shares[1].runs + report.shares[2].runs + report.shares[3].runs + report.shares[4].runs, 199);
  EXPECT_THAT(report.summary(), HasSubstr("not exhaustive: "));

  std::vector<ExploreOptions::Progress> told;
  ExploreOptions timed = options;
  timed.max_runs = int64_t{1} << 40;
  timed.max_time = absl::Seconds(3);  // a worker of a busy machine may get no turn for some tenths of one
  timed.progress = [&told](const ExploreOptions::Progress& progress) { told.push_back(progress); };
  const ExploreReport late = explore(timed, program);
  EXPECT_TRUE(late.ok()) << late.text();
  EXPECT_FALSE(late.verified);
  EXPECT_GE(late.elapsed, absl::Seconds(3));
  EXPECT_GT(late.runs, 2);
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.back().runs, late.runs);
  EXPECT_GT(late.shares[1].runs, 0) << "half of the time is theirs";
}

TEST(ProcessesOnFibersTest, OneRunIsEnoughForThem) {
  const ExploreReport report = explore({.world = fibers(2), .max_runs = 1, .processes = 4}, [](RankContext& rank) {
    rank.store().append("log", absl::StrCat(rank.rank()));
  });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_EQ(report.runs, 1);
  EXPECT_FALSE(report.verified);
}

TEST(ProcessesOnFibersTest, SearchOnThreads) {
  WorldOptions threads = fibers(3);
  threads.engine = EngineKind::kThreads;
  const ExploreReport report = explore({.world = threads,
                                        .strategies = {Strategy::exhaustive(), Strategy::random()},
                                        .processes = 2,
                                        .checks = {.results = true}},
                                       [](RankContext& rank) { rank.store().add("n", 1); });
  EXPECT_TRUE(report.verified) << report.text();
  EXPECT_EQ(report.shares[0].schedules, 6);
}

TEST(ProcessesOnFibersTest, SearchRootedCallsBothWays) {
  const auto program = [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1.0F + static_cast<float>(rank.rank())};
    pg->broadcast(x, 0).wait();
    rank.store().append("log", absl::StrCat(rank.rank()));
  };
  const auto search = [&](int processes) {
    return explore({.world = fibers(3), .strategies = {Strategy::exhaustive()}, .processes = processes}, program);
  };
  const ExploreReport alone = search(1);
  ASSERT_TRUE(alone.verified) << alone.text();
  const ExploreReport together = search(3);
  EXPECT_TRUE(together.verified) << together.text();
  EXPECT_EQ(together.shares[0].schedules, alone.shares[0].schedules);
}

TEST(ProcessesOnFibersTest, SayWhatNoSearchSees) {
  const ExploreReport report =
      explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}, .processes = 2}, [](RankContext&) {});
  EXPECT_FALSE(report.verified);
  EXPECT_THAT(report.summary(), HasSubstr("whatever the ranks share: they use nothing of rankloom's"));
}

// --- what programs do beside

TEST(ProcessesOnFibersTest, WhatTheProgramPrintsComesOnce) {
  std::fflush(stdout);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    std::printf("before\n");  // a pipe: it stays in the buffer
    const ExploreReport report = explore({.world = fibers(2),
                                          .strategies = {Strategy::exhaustive(), Strategy::random()},
                                          .max_runs = 300,
                                          .processes = 3},
                                         [](RankContext& rank) {
                                           rank.store().append("log", "x");
                                           rank.store().append("log", "y");
                                           if (rank.rank() == 0) std::printf("a run\n");
                                         });
    std::printf("%ld runs\n", report.runs);
    std::fflush(stdout);
    _exit(report.verified ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof(buffer))) > 0;)
    text.append(buffer, static_cast<size_t>(got));
  close(ends[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << text;
  std::map<std::string, int64_t> lines;
  for (const auto& line : absl::StrSplit(text, '\n', absl::SkipEmpty())) ++lines[std::string(line)];
  EXPECT_EQ(lines["before"], 1) << text;
  EXPECT_EQ(lines[absl::StrCat(lines["a run"], " runs")], 1) << text;
}

// The output of a child process, on stdout and stderr, until it ends with exit code 0.
std::string output_of(const std::function<void()>& child_does) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  EXPECT_GE(child, 0);
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    child_does();
    std::fflush(stdout);
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof(buffer))) > 0;)
    text.append(buffer, static_cast<size_t>(got));
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << text;
  return text;
}

// Ranks 2, 1, 0 append in this order in one class of six.
bool is_backwards(RankContext& rank) {
  rank.store().append("order", absl::StrCat(rank.rank()));
  return rank.rank() == 0 && rank.store().get("order") == "210";
}

TEST(ProcessesOnFibersTest, BuffersOfCppStreamsAreWrittenOnce) {
  const std::string text = output_of([] {
    std::ios::sync_with_stdio(false);
    std::cout << "before\n";
    const ExploreReport report =
        explore({.world = fibers(2), .strategies = {Strategy::random()}, .max_runs = 300, .processes = 3},
                [](RankContext& rank) {
                  rank.store().append("log", "x");
                  if (rank.rank() == 0) std::cout << "a run\n";
                });
    std::cout << report.runs << " runs\n";
    std::cout.flush();
  });
  std::map<std::string, int64_t> lines;
  for (const auto& line : absl::StrSplit(text, '\n', absl::SkipEmpty())) ++lines[std::string(line)];
  EXPECT_EQ(lines["before"], 1) << text;
  EXPECT_EQ(lines["a run"], 300) << text;
  EXPECT_EQ(lines["300 runs"], 1) << text;
}

// A child of a run's that ends by exit() is not the worker.
TEST(ProcessesOnFibersTest, AProcessThatARunForksMayExit) {
  const pid_t here = getpid();
  std::vector<EngineKind> engines = {EngineKind::kFibers, EngineKind::kThreads};
#ifdef RANKLOOM_ASAN
  engines.pop_back();  // a leak check at exit() misses what the stacks of threads held that a fork leaves behind
#endif
  for (const EngineKind engine : engines) {
    WorldOptions world = fibers(3);
    world.engine = engine;
    const ExploreReport report =
        explore({.world = world, .strategies = {Strategy::exhaustive()}, .processes = 2}, [&](RankContext& rank) {
          if (!is_backwards(rank) || getpid() == here) return;
          const pid_t child = fork();
          if (child == 0) std::exit(5);
          int status = 0;
          waitpid(child, &status, 0);
          // On a fiber the code is lost.
          const int wanted = engine == EngineKind::kFibers ? EXIT_FAILURE : 5;
          if (!WIFEXITED(status) || WEXITSTATUS(status) != wanted)
            throw std::runtime_error(absl::StrCat("status ", status));
        });
    EXPECT_TRUE(report.verified) << report.text();
    EXPECT_THAT(report.process_notes, IsEmpty());
  }
}

TEST(ProcessesOnFibersTest, AProcessThatARunForksDoesNotSearch) {
  const std::string text = output_of([] {
    const pid_t here = getpid();
    const ExploreReport report =
        explore({.world = fibers(3), .strategies = {Strategy::exhaustive()}, .processes = 2}, [&](RankContext& rank) {
          if (is_backwards(rank) && getpid() != here) (void)(fork() + 1);
        });
    std::printf("verified %d, %ld schedules\n", report.verified, report.shares[0].schedules);
  });
  EXPECT_THAT(text, HasSubstr("verified 1, 12 schedules\n"));
  EXPECT_THAT(text,
              HasSubstr("rankloom: a process that a run forked has come back from the run, and is ended: want it to "
                        "end by itself, by _exit()\n"));
}

// A process that is stopped, or computes without end, keeps the search from its end for ten seconds.
TEST(ProcessesOnFibersTest, ARunWithoutEndIsAnError) {
  const pid_t here = getpid();
  const ExploreReport report = explore(
      {.world = fibers(3), .strategies = {Strategy::exhaustive()}, .max_time = absl::Milliseconds(500), .processes = 2},
      [&](RankContext& rank) {
        if (is_backwards(rank) && getpid() != here) std::raise(SIGSTOP);
      });
  EXPECT_FALSE(report.ok());
  EXPECT_FALSE(report.verified);
  EXPECT_THAT(report.text(), MatchesRegex("explore: a run has not ended 10s after max_time was over: that of process "
                                          "[12]; WorldOptions::stall_is_fatal ends a run .*"));
}

// The watchdog of a worker knows the worker's threads.
TEST(ProcessesOnFibersTest, ARunThatHangsIsNamedWhereStallsAreFatal) {
  const std::string text = output_of([] {
    const pid_t here = getpid();
    WorldOptions world = fibers(3);
    world.stall_is_fatal = absl::Seconds(2);
    const ExploreReport report =
        explore({.world = world, .strategies = {Strategy::exhaustive()}, .processes = 2}, [&](RankContext& rank) {
          if (!is_backwards(rank) || getpid() == here) return;
          for (;;) {
            asm volatile("");
          }
        });
    std::printf("%s\n", report.text().c_str());
  });
  EXPECT_THAT(text, HasSubstr("the process that made this run ended with exit code 1; what it printed stands above"));
  EXPECT_THAT(text, HasSubstr("RANKLOOM_SCHEDULE='steered:1:0@0>1,1@0>2,2@1>1'"));
  EXPECT_THAT(text, HasSubstr("nobody can free it: the process ends"));
  EXPECT_THAT(text, testing::Not(HasSubstr("not known: No such process")));
}

TEST(ProcessesOnFibersTest, AProcessThatClosesAllFilesIsOneThatEnds) {
  const pid_t here = getpid();
  const ExploreReport report =
      explore({.world = fibers(3), .strategies = {Strategy::exhaustive()}, .processes = 2}, [&](RankContext& rank) {
        if (!is_backwards(rank) || getpid() == here) return;
        for (int file = 3; file < 256; ++file) close(file);
      });
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_EQ(report.failure->headline,
            "the process that made this run ended with exit code 0; what it printed stands above");
}

// The leader can tell it nothing any more and ends it, which nobody else did.
TEST(ProcessesOnFibersTest, AProcessThatClosesItsConnectionAndLivesOnIsNamedAsThat) {
  const pid_t here = getpid();
  const ExploreReport report =
      explore({.world = fibers(3), .strategies = {Strategy::exhaustive()}, .processes = 2}, [&](RankContext& rank) {
        if (!is_backwards(rank) || getpid() == here) return;
        for (int file = 3; file < 256; ++file) close(file);
        for (;;) pause();
      });
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_EQ(report.failure->headline,
            "the process that made this run ended with a closed connection; what it printed stands above");
  EXPECT_THAT(report.process_notes, AllOf(testing::Not(IsEmpty()),
                                          testing::Each(MatchesRegex("process [12] ended with a closed connection; its "
                                                                     "work was given to others"))));
}

// Otherwise a second process would go on in this test.
TEST(ProcessesOnFibersTest, AnExceptionOfAWorkerEndsItsProcess) {
  const std::string text = output_of([] {
    const pid_t here = getpid();
    const auto run = [here](const std::shared_ptr<World>& world, internal::Program body, std::vector<std::string>*,
                            absl::FunctionRef<void()> look) {
      RunReport report = world->run(body);
      look();
      if (getpid() != here) throw std::runtime_error("no run can be made");
      return report;
    };
    const ExploreReport report = internal::search(
        {.world = fibers(2), .strategies = {Strategy::random()}, .max_runs = 100, .processes = 2}, 1,
        [](RankContext& rank) { rank.store().add("n", 1); }, run, CodeSite::here());
    std::printf("%s\nthe end\n", report.text().c_str());
  });
  EXPECT_THAT(text, HasSubstr("rankloom: an exception ends a process of explore(): no run can be made\n"));
  EXPECT_THAT(text, HasSubstr("the process that made this run ended with exit code 1; what it printed stands above\n"));
  EXPECT_EQ(text.find("the end\n"), text.rfind("the end\n")) << text;
}

TEST(ProcessesOnFibersTest, AProgramThatReapsAllChildrenIsNoHindrance) {
  (void)output_of([] {
    std::signal(SIGCHLD, SIG_IGN);
    const pid_t here = getpid();
    const ExploreReport report =
        explore({.world = fibers(3), .strategies = {Strategy::exhaustive()}, .processes = 2}, [&](RankContext& rank) {
          if (is_backwards(rank) && getpid() != here) std::abort();
        });
    _exit(report.failure.has_value() && absl::StrContains(report.failure->headline, "ended with an unknown code") ? 0
                                                                                                                  : 1);
  });
}

TEST(ProcessesOnFibersTest, MoreProcessesThanSchedules) {
  const ExploreReport report =
      explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}, .processes = 40},
              [](RankContext& rank) { rank.store().append("log", absl::StrCat(rank.rank())); });
  EXPECT_TRUE(report.verified) << report.text();
  EXPECT_EQ(report.shares[0].schedules, 2);
  EXPECT_THAT(report.process_notes, IsEmpty());
}

TEST(ProcessesOnFibersTest, TellsHowManyTheMachineHasRoomFor) {
  (void)output_of([] {
    const rlimit files{.rlim_cur = 40, .rlim_max = 40};
    setrlimit(RLIMIT_NOFILE, &files);
    const ExploreReport report =
        explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}, .processes = 64},
                [](RankContext& rank) { rank.store().append("log", absl::StrCat(rank.rank())); });
    const bool told =
        report.process_notes.size() == 1 &&
        testing::Matches(MatchesRegex("only [0-9]+ of 64 processes could be started: Too many open files"))(
            report.process_notes[0]);
    _exit(report.verified && told ? 0 : 1);
  });
}

TEST(ProcessesOnFibersTest, SearchesAloneWhereTheMachineHasRoomForNone) {
  (void)output_of([] {
    const rlimit files{.rlim_cur = 3, .rlim_max = 3};
    setrlimit(RLIMIT_NOFILE, &files);
    const ExploreReport report =
        explore({.world = fibers(2), .strategies = {Strategy::exhaustive()}, .processes = 2},
                [](RankContext& rank) { rank.store().append("log", absl::StrCat(rank.rank())); });
    const bool told =
        report.process_notes ==
        std::vector<std::string>{"none of 2 processes could be started: Too many open files; this one searched alone"};
    _exit(report.verified && told ? 0 : 1);
  });
}

TEST(ProcessesOnFibersTest, AnExceptionOfProgressEndsThemAll) {
  const Shared<std::atomic<int64_t>> made;
  ExploreOptions options{.world = fibers(2),
                         .strategies = {Strategy::random()},
                         .max_runs = int64_t{1} << 40,
                         .max_time = absl::Hours(1),
                         .processes = 2};
  options.progress = [](const ExploreOptions::Progress&) { throw std::runtime_error("no more"); };
  EXPECT_THAT([&] { (void)explore(options, [&](RankContext&) { made->fetch_add(1); }); },
              testing::ThrowsMessage<std::runtime_error>("no more"));
  const int64_t then = *made;
  poll(nullptr, 0, 20);
  EXPECT_EQ(*made, then) << "somebody makes runs";
}

TEST(ProcessesOnFibersTest, EndWithTheProcessThatLeadsThem) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Shared<std::atomic<int>> running;
  const pid_t leader = fork();
  ASSERT_GE(leader, 0);
  if (leader == 0) {
    close(ends[0]);
    explore({.world = fibers(3),
             .strategies = {Strategy::random()},
             .max_runs = int64_t{1} << 40,
             .max_time = absl::Hours(1),
             .processes = 2},
            [&](RankContext& rank) {
              rank.store().append("log", "x");
              running->fetch_add(1);
            });
    _exit(0);
  }
  close(ends[1]);
  while (*running < 1'000) poll(nullptr, 0, 1);
  kill(leader, SIGKILL);
  ASSERT_EQ(waitpid(leader, nullptr, 0), leader);
  // The workers held the other end of the pipe.
  char byte;
  EXPECT_EQ(read(ends[0], &byte, 1), 0);
  close(ends[0]);
}

// A worker does not come to look whether its leader is there.
TEST(ProcessesOnFibersTest, EndWithTheProcessThatLeadsThemInARunWithoutEnd) {
  for (const EngineKind engine : {EngineKind::kFibers, EngineKind::kThreads}) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const Shared<std::atomic<bool>> runs;
    const pid_t leader = fork();
    ASSERT_GE(leader, 0);
    if (leader == 0) {
      close(ends[0]);
      setpgid(0, 0);
      const pid_t here = getpid();
      WorldOptions world = fibers(2);
      world.engine = engine;
      explore({.world = world, .strategies = {Strategy::random()}, .max_time = absl::Hours(1), .processes = 2},
              [&](RankContext& rank) {
                rank.store().append("log", "x");
                if (getpid() == here) return;
                *runs = true;
                for (;;) pause();
              });
      _exit(0);
    }
    close(ends[1]);
    while (!*runs) poll(nullptr, 0, 1);
    kill(leader, SIGKILL);
    ASSERT_EQ(waitpid(leader, nullptr, 0), leader);
    pollfd end{.fd = ends[0], .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&end, 1, 10'000), 1) << "a worker goes on";
    if (end.revents == 0) kill(-leader, SIGKILL);
    close(ends[0]);
  }
}

// A process that somebody ended is no failure of the program at once.
TEST(ForkedWorkersTest, SignalsOfOthersAreTold) {
  for (const int sent : {SIGKILL, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGABRT}) {
    ForkedWorkers workers([sent](LeaderLink*) {
      std::signal(sent, SIG_DFL);
      std::raise(sent);
    });
    ASSERT_EQ(workers.start(1), 1);
    std::optional<WorkerLinks::Event> event;
    while (!event.has_value()) event = workers.receive(100'000'000);
    EXPECT_EQ(event->by_others, sent != SIGABRT) << event->ended;
  }
}

}  // namespace
}  // namespace rankloom

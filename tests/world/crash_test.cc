// A rank that crashes: the process ends as it does without us, after it was told where and how to see it again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "rankloom/error.h"
#include "rankloom/world.h"
#include "sim/base/dist_error.h"
#include "sim/base/sanitizers.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;
using testing::KilledBySignal;
using testing::Not;

[[gnu::noinline]] void write_to_low_address() { *reinterpret_cast<volatile char*>(8) = 1; }

[[gnu::noinline]] void train(RankContext& rank, int signal) {
  rank.store().set("a", "b", CodeSite{"some/where/train.cc", 12});
  if (signal == SIGSEGV) {
    write_to_low_address();
  } else {
    raise(signal);
  }
  [[maybe_unused]] volatile int after = signal;  // no tail call
}

void throw_text() { throw std::runtime_error("not caught"); }

// Compiled with optimization, a program like this has no frame of its own.
void crash_in_a_lambda(const WorldOptions& options) {
  (void)run_world(options, [](RankContext&) { std::abort(); });
}

void crash_on_rank_1(const WorldOptions& options, int signal) {
  (void)run_world(options, [signal](RankContext& rank) {
    if (rank.rank() == 1) train(rank, signal);
    rank.store().wait({"never"});
  });
}

constexpr char kStack[] =
    "  its last point: store set \\[train.cc:12\\]\n"
    "  its stack:\n"
    "(    #[0-9]+ .*\n)*"
    "    #[0-9]+ rankloom::(\\(anonymous namespace\\)|crash_test)::train\\(\\)\n";

class CrashDeathTest : public testing::TestWithParam<WorldMode> {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};
INSTANTIATE_TEST_SUITE_P(Gears, CrashDeathTest, every_world(), world_name);

#if defined(RANKLOOM_ASAN) || defined(RANKLOOM_TSAN)

TEST_P(CrashDeathTest, IsTheSanitizersToTellAndThenTheRankIsNamedOnce) {
  EXPECT_DEATH(crash_on_rank_1(GetParam().options(3), SIGSEGV),
               AllOf(ContainsRegex("Sanitizer(.*\n)+"
                                   "rankloom: fatal \\(rank 1\\): ended by the sanitizer, for what it reports above\n"
                                   "  its last point: store set \\[train.cc:12\\]\n"),
                     Not(ContainsRegex("fatal \\((.*\n)+.*fatal \\(")), Not(HasSubstr("SIGSEGV at address"))));
}

#else

TEST_P(CrashDeathTest, NamesTheRankItsLastPointItsStackAndTheRun) {
  const WorldOptions options = GetParam().options(3);
  const bool repeats = options.engine == EngineKind::kFibers || options.schedule.deterministic();
  EXPECT_EXIT(
      crash_on_rank_1(options, SIGSEGV), KilledBySignal(SIGSEGV),
      AllOf(ContainsRegex("^rankloom: fatal \\(rank 1\\): SIGSEGV at address 0x8\n"), ContainsRegex(kStack),
            HasSubstr("write_to_low_address()"),
            ContainsRegex(repeats ? "\n  run it again: RANKLOOM_ENGINE=[a-z]+ RANKLOOM_[A-Z]+=[^ ]+ .*crash_test"
                                  : "\n    #[0-9]+ [^\n]+\n$")));
}

TEST_P(CrashDeathTest, AProgramWithoutAFrameOfItsOwnIsNoEmptyStack) {
  EXPECT_EXIT(crash_in_a_lambda(GetParam().options(1)), KilledBySignal(SIGABRT),
              ContainsRegex("  its stack:\n(    #[0-9]+ .*\n)*"
                            "    #[0-9]+ (the rank's program, inlined|.*crash_in_a_lambda.*)\n"));
}

TEST_P(CrashDeathTest, OtherSignalsAreToldAlike) {
  for (const auto& [signal, name] :
       {std::pair(SIGBUS, "SIGBUS"), {SIGFPE, "SIGFPE"}, {SIGILL, "SIGILL"}, {SIGABRT, "SIGABRT"}}) {
    EXPECT_EXIT(
        crash_on_rank_1(GetParam().options(3), signal), KilledBySignal(signal),
        AllOf(ContainsRegex(std::string("^rankloom: fatal \\(rank 1\\): ") + name + "\n"), ContainsRegex(kStack)));
  }
}

TEST_P(CrashDeathTest, ALongNameIsCutOffAtTheEndOfItsLine) {
  const auto crash = [this] {
    (void)run_world(GetParam().options(1), [](RankContext& rank) {
      const std::string file(600, 'n');
      rank.store().set("a", "b", CodeSite{file.c_str(), 12});
      write_to_low_address();
    });
  };
  const std::string begin = "  its last point: store set [";
  EXPECT_EXIT(crash(), KilledBySignal(SIGSEGV),
              HasSubstr("\n" + begin + std::string(498 - begin.size(), 'n') + "\n  its stack:\n"));
}

TEST_P(CrashDeathTest, AnExceptionOutOfANoexceptFunctionNamesTheRank) {
  const auto crash = [this] {
    (void)run_world(GetParam().options(2), [](RankContext& rank) {
      const auto fails = [&rank]() noexcept {
        if (rank.rank() == 1) throw_text();
      };
      fails();
      rank.store().wait({"never"});
    });
  };
  EXPECT_EXIT(crash(), KilledBySignal(SIGABRT),
              AllOf(HasSubstr("not caught"), ContainsRegex("\nrankloom: fatal \\(rank 1\\): SIGABRT\n")));
}

TEST_P(CrashDeathTest, WhatRankloomItselfEndsIsToldOnce) {
  const auto crash = [this] {
    (void)run_world(GetParam().options(2), [](RankContext& rank) {
      if (rank.rank() == 1) fatal("that is not possible");
      rank.store().wait({"never"});
    });
  };
  EXPECT_EXIT(crash(), KilledBySignal(SIGABRT), EndsWith("rankloom: fatal (rank 1): that is not possible\n"));
}

TEST_P(CrashDeathTest, OfSeveralRanksTheFirstIsTold) {
  const auto crash = [this] { (void)run_world(GetParam().options(4), [](RankContext&) { write_to_low_address(); }); };
  EXPECT_EXIT(crash(), KilledBySignal(SIGSEGV),
              AllOf(ContainsRegex("^rankloom: fatal \\(rank [0-3]\\): SIGSEGV at address 0x8\n"),
                    Not(ContainsRegex("fatal(.*\n)+.*fatal"))));
}

TEST_P(CrashDeathTest, OfAHelperNamesItsRank) {
  const auto crash = [this] {
    (void)run_world(GetParam().options(2), [](RankContext& rank) {
      if (rank.rank() == 1) rank.world().spawn_helper([] { write_to_low_address(); });
      rank.store().wait({"never"});
    });
  };
  EXPECT_EXIT(crash(), KilledBySignal(SIGSEGV),
              ContainsRegex("^rankloom: fatal \\(a helper of rank 1\\): SIGSEGV at address 0x8\n"
                            "  it has come to no point yet\n"));
}

TEST_P(CrashDeathTest, OfACallOfNothingNamesTheCaller) {
  const auto crash = [this] {
    (void)run_world(GetParam().options(2), [](RankContext& rank) {
      void (*volatile nothing)() = nullptr;
      if (rank.rank() == 1) nothing();
      rank.store().wait({"never"});
    });
  };
  EXPECT_EXIT(crash(), KilledBySignal(SIGSEGV),
              ContainsRegex("  its stack:\n    #0 0x0\n    #1 rankloom::.*OfACallOfNothingNamesTheCaller"));
}

[[gnu::noinline]] int recurse(int depth) {  // NOLINT(misc-no-recursion)
  volatile char frame[1000] = {};
  frame[static_cast<size_t>(depth) % sizeof frame] = 1;
  return depth == 0 ? 0 : recurse(depth - 1) + frame[0];
}

TEST_P(CrashDeathTest, AnOverflowOfTheStackHasItsStack) {
  const auto crash = [this] {
    (void)run_world(GetParam().options(2), [](RankContext& rank) {
      if (rank.rank() == 1 && recurse(1 << 30) < 0) return;
      rank.store().wait({"never"});
    });
  };
  const bool fibers = GetParam().options(2).engine == EngineKind::kFibers;
  EXPECT_EXIT(crash(), KilledBySignal(fibers ? SIGABRT : SIGSEGV),
              ContainsRegex(
                  fibers ? "^rankloom: fatal \\(rank 1\\): overflow of the fiber's stack of 131072 bytes; larger ones: "
                           "WorldOptions::stack_bytes\n  it has come to no point yet\n  its stack:\n"
                           "    #0 .*recurse\\(\\)\n    #1 .*recurse\\(\\)\n"
                         : "^rankloom: fatal \\(rank 1\\): SIGSEGV at address 0x[0-9a-f]+\n"
                           "  it has come to no point yet\n  its stack:\n"
                           "    #0 .*recurse\\(\\)\n    #1 .*recurse\\(\\)\n"));
}

// A thread of the pool that ran fibers before is one like others.
TEST(ExitDeathTest, AThreadThatRanFibersBeforeKeepsItsCode) {
  const auto ends = [] {
    run_world({.world_size = 1, .engine = EngineKind::kFibers}, [](RankContext&) {});
    (void)run_world({.world_size = 1, .engine = EngineKind::kThreads}, [](RankContext&) { std::exit(3); });
    _exit(0);
  };
  EXPECT_EXIT(ends(), testing::ExitedWithCode(3), "^$");
}

TEST(ExitDeathTest, ARankThatIsLeftByPthreadExitIsNamed) {
  const auto ends = [] {
    (void)run_world({.world_size = 2, .engine = EngineKind::kThreads}, [](RankContext& rank) {
      if (rank.rank() == 1) pthread_exit(nullptr);
    });
  };
  EXPECT_DEATH(ends(),
               HasSubstr("rankloom: fatal (rank 1): left by pthread_exit(), by the cancellation of its thread or "
                         "by an exception of another language, want it to return or to throw\n"));
}

TEST_P(CrashDeathTest, ARankThatCallsExitEndsTheProcess) {
  const auto ends = [this] {
    (void)run_world(GetParam().options(2), [](RankContext& rank) {
      if (rank.rank() == 1) std::exit(3);
      rank.store().wait({"never"});
    });
    _exit(0);
  };
  const bool fibers = GetParam().options(2).engine == EngineKind::kFibers;
  EXPECT_EXIT(ends(), testing::ExitedWithCode(fibers ? 1 : 3),
              fibers ? "^rankloom: rank 1 called exit\\(\\) on a fiber: the process ends with code 1, want it called "
                       "after the run, or the ranks to be threads\n$"
                     : "");
}

TEST_P(CrashDeathTest, OnAThreadThatRunsNoRankNothingIsTold) {
  const auto crash = [this] {
    (void)run_world(GetParam().options(2), [](RankContext& rank) {
      if (rank.rank() == 1) std::thread(&write_to_low_address).join();
    });
  };
  EXPECT_EXIT(crash(), KilledBySignal(SIGSEGV), Not(HasSubstr("rankloom")));
}

// In a new process: no world has run.
template <typename Handler>
void set_handler(int signal, int flags, Handler handler) {
  struct sigaction own {};
  own.sa_handler = handler;
  own.sa_flags = flags;
  sigaddset(&own.sa_mask, SIGUSR1);
  sigaction(signal, &own, nullptr);
}

TEST_P(CrashDeathTest, AHandlerThatWasThereBeforeIsTheOneToTell) {
  for (const int signal : {SIGSEGV, SIGFPE}) {
    const auto crash = [this, signal] {
      set_handler(signal, 0, [](int) {
        sigset_t blocked;
        pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
        [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, "own handler\n", 12);
        _exit(sigismember(&blocked, SIGUSR1) == 1 ? 7 : 8);
      });
      crash_on_rank_1(GetParam().options(3), signal);
    };
    EXPECT_EXIT(crash(), testing::ExitedWithCode(7), testing::StartsWith("own handler\n"));
  }
}

TEST_P(CrashDeathTest, AHandlerForOneSignalOnlyHasOneTurn) {
  const auto crash = [this] {
    set_handler(SIGSEGV, static_cast<int>(SA_RESETHAND), [](int) {});  // the instruction faults again
    crash_on_rank_1(GetParam().options(3), SIGSEGV);
  };
  EXPECT_EXIT(crash(), KilledBySignal(SIGSEGV), ContainsRegex("^rankloom: fatal \\(rank 1\\): SIGSEGV"));
}

TEST_P(CrashDeathTest, ASignalThatIsIgnoredStaysSo) {
  const auto run = [this] {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGFPE, &ignore, nullptr);
    const RunReport report = run_world(GetParam().options(2), [](RankContext&) { raise(SIGFPE); });
    _exit(report.ok() ? 9 : 8);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(9), Not(HasSubstr("rankloom")));
}

#endif

}  // namespace
}  // namespace rankloom

#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gtest/gtest.h"
#include "rankloom/error.h"
#include "rankloom/explore.h"
#include "rankloom/matchers.h"
#include "rankloom/rankloom.h"
#include "rankloom/schedule.h"
#include "rankloom/world.h"

namespace rankloom {

// While it lives, what the ranks of `world` write to std::cout, std::cerr and std::clog is kept per rank, in the order
// in which the rank wrote it. Other output goes where it went before. printf and file descriptors are not seen:
// they have no rank. Make and destroy it while no thread writes to these streams.
//
//   RankOutput output(&world);
//   world.run(program);
//   RankOutput::print(output.texts(), std::cout);
class RankOutput {
 public:
  // `world`: not null.
  explicit RankOutput(World* world, CodeSite code = CodeSite::here());
  ~RankOutput();
  RankOutput(const RankOutput&) = delete;
  RankOutput& operator=(const RankOutput&) = delete;

  // By rank. After the run.
  std::vector<std::string> texts() const;

  // Every line under its rank, "rank 0 | ..."; ranks that wrote the same share theirs. Empty outputs are left out.
  static void print(const std::vector<std::string>& texts, std::ostream& out);

 private:
  class Router;

  const std::unique_ptr<Router> router_;
};

namespace internal {
class RankFailures;
}  // namespace internal

// SCOPED_TRACE for ranks: while it lives, failures of this rank and of its helpers end with its line and text.
// GoogleTest keeps one stack of traces per thread; ranks that are fibers share it, so that a SCOPED_TRACE which lives
// across a scheduling point (a collective, a wait, a store call) shows up at another rank's failures. This one is right
// everywhere. Does nothing in a world that no MultiThreadedTestCase runs.
//
//   for (int step = 0; step < 10; ++step) {
//     const RankTrace trace(rank, absl::StrCat("step ", step));
//     EXPECT_EQ(train(rank), step);
//   }
class RankTrace {
 public:
  RankTrace(RankContext& rank, const std::string& text, CodeSite code = CodeSite::here());
  ~RankTrace();
  RankTrace(const RankTrace&) = delete;
  RankTrace& operator=(const RankTrace&) = delete;

 private:
  const std::shared_ptr<internal::RankFailures> failures_;
  const int rank_;
};

// The engines, for INSTANTIATE_TEST_SUITE_P; only the one that RANKLOOM_ENGINE asks for, if it does.
testing::internal::ParamGenerator<EngineKind> every_engine();

// Names tests "threads" and "fibers".
std::string engine_name(const testing::TestParamInfo<EngineKind>& info);

// How GoogleTest prints them.
std::ostream& operator<<(std::ostream& out, EngineKind engine);

// A GoogleTest fixture whose tests run a world of ranks, as threads and as fibers:
//
//   class GreetingTest : public MultiThreadedTestCase {};
//   INSTANTIATE_TEST_SUITE_P(Engines, GreetingTest, every_engine(), engine_name);
//
//   TEST_P(GreetingTest, ReachesEveryRank) {
//     run_ranks(/*world_size=*/3, [](RankContext& rank) {
//       if (rank.rank() == 0) rank.store().set("greeting", "hello");
//       EXPECT_EQ(rank.store().get("greeting"), "hello");
//     });
//   }
//
// Assertions on ranks: EXPECT_* is recorded and the rank goes on; ASSERT_* unwinds the rank and aborts the world, so
// that no peer hangs; GTEST_SKIP skips the test once. All are reported after the ranks have ended, on the test's own
// thread, under the ranks that failed ("ranks 0-2: ..."), with the command that runs it again. One GoogleTest case per
// test, one XML. The environment (rankloom/options.h) wins over what a test says about engine and schedule, and each
// run that fails under a deterministic schedule leaves its trace in testing::TempDir() or RANKLOOM_TRACE_DIR.
// Thread-safety: the methods are for the test's own thread, except the set-up and tear-down of ranks.
class MultiThreadedTestCase : public testing::TestWithParam<EngineKind> {
 public:
  using RankBody = absl::FunctionRef<void(RankContext&)>;
  ~MultiThreadedTestCase() override;

 protected:
  MultiThreadedTestCase();

  // Ranks of a world whose size the test does not say.
  virtual int world_size() const { return 4; }
  // The engine of all worlds of the test: its parameter. Of a suite that is not parameterised (TEST_F): threads, unless
  // it says another one here.
  virtual EngineKind engine() const;
  // The options that run_ranks() starts from when it is given a size or nothing.
  virtual WorldOptions options() const;

  // On each rank, before and after the body. The body is left out if the set-up fails; the tear-down runs always, in an
  // aborted world if its rank has failed.
  virtual void set_up_rank(RankContext& rank);
  virtual void tear_down_rank(RankContext& rank);

  // Runs `body` once per rank. A rank that throws, a deadlock, an abort fail the test; so does a failed assertion.
  // With options: they are taken as they are, but for the engine, which is the test's, and an unset schedule within
  // seeds().
  RunReport run_ranks(RankBody body, CodeSite code = CodeSite::here());
  RunReport run_ranks(int world_size, RankBody body, CodeSite code = CodeSite::here());
  RunReport run_ranks(WorldOptions options, RankBody body, CodeSite code = CodeSite::here());

  // The same for a world that must fail: the test fails if all ranks return. Failed assertions still count.
  RunReport run_ranks_to_failure(RankBody body, CodeSite code = CodeSite::here());
  RunReport run_ranks_to_failure(int world_size, RankBody body, CodeSite code = CodeSite::here());
  RunReport run_ranks_to_failure(WorldOptions options, RankBody body, CodeSite code = CodeSite::here());

  // Calls `body`, which calls run_ranks(), under Schedule::seeded(first), seeded(first + 1), ... n times, and stops at
  // the first schedule under which something fails; each failure then names its seed. An environment that names a
  // schedule itself is obeyed: one call, under that.
  void seeds(int n, absl::FunctionRef<void()> body, uint64_t first = 1, CodeSite code = CodeSite::here());

  // From now on the ranks' std::cout, std::cerr and std::clog are kept, and printed under their ranks if the run fails.
  // See RankOutput.
  void capture_output(bool capture);
  // The output of a rank in the last run; empty without capture_output(true).
  const std::string& rank_output(int rank) const;

 private:
  enum class Expected : uint8_t { kSuccess, kFailure };
  struct State;

  RunReport run(int world_size, RankBody body, Expected expected, CodeSite code);
  RunReport run(WorldOptions options, RankBody body, Expected expected, CodeSite code);

  const std::unique_ptr<State> state_;
};

// Whether `body` is deterministic: runs it twice in new worlds under the same schedule and compares what happened: the
// choices, the ranks' recorded calls, how they ended, what is in the store, which assertions failed. On a difference,
// names the first one of each kind, with rank and site. Clocks, thread ids, addresses and statics that leak into what
// ranks do show up here; data that no rank acts on and no store holds does not.
//   EXPECT_TRUE(runs_alike({.world_size = 4, .engine = GetParam(), .schedule = Schedule::seeded(7)}, body));
// An unset schedule means seeded, with options.seed or 1. The environment counts, as in MultiThreadedTestCase: both
// runs are one for RANKLOOM_REPLAY_RUN. A world that fails alike twice is alike; failed assertions of ranks fail the
// test beside that.
testing::AssertionResult runs_alike(WorldOptions options, absl::FunctionRef<void(RankContext&)> body,
                                    CodeSite code = CodeSite::here());

// explore() as an assertion: the test fails, here, with the report of the smallest run that fails, whose trace is saved
// beside. A function, since within a macro's argument all calls of a lambda stand on one line. Returns whether no run
// failed.
//   expect_no_failure_in_schedules({.world = {.world_size = 2, .engine = EngineKind::kFibers}}, [](RankContext& rank) {
//     ...
//   });
// Failed assertions of ranks are failures of their run: none of them reaches GoogleTest but through this one. A run
// that a rank skips counts as good.
// A search that finds nothing says how much it has looked at, ExploreReport::summary(), in a line on stdout and in the
// test's property "explored": "[ rankloom ] verified: all 12 schedules that can differ, in 13 runs". The line is left
// out where ExploreOptions::progress is set, and under --gtest_brief=1.
bool expect_no_failure_in_schedules(const ExploreOptions& options, absl::FunctionRef<void(RankContext&)> body,
                                    CodeSite code = CodeSite::here());

// The same search with its report, for tests that expect a failure to be found: failed assertions of ranks count as
// failures.
ExploreReport explore_assertions(const ExploreOptions& options, absl::FunctionRef<void(RankContext&)> body,
                                 CodeSite code = CodeSite::here());

}  // namespace rankloom

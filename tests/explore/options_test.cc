// Numbers in options that make no sense are refused by name, before anything runs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rankloom/explore.h"
#include "rankloom/fake.h"
#include "rankloom/matchers.h"
#include "rankloom/rankloom.h"
#include "rankloom/records.h"

namespace rankloom {
namespace {

struct Wrong {
  std::string text;  // the error's end
  std::function<void()> use;
};

void PrintTo(const Wrong& wrong, std::ostream* out) { *out << wrong.text; }

// One rank of three asks for a group, and may.
std::function<void()> group(const GroupOptions& options) {
  return [options] {
    std::exception_ptr thrown;
    run_world({.world_size = 3}, [&](RankContext& rank) {
      if (rank.rank() != 1) return;
      try {
        init_process_group(rank, options);
      } catch (...) {
        thrown = std::current_exception();
      }
      EXPECT_EQ(init_process_group(rank)->group()->id(), 0) << "the call that was refused took a number";
    });
    if (thrown != nullptr) std::rethrow_exception(thrown);
  };
}

std::function<void()> world(const WorldOptions& options) {
  return [options] { const World made(options); };
}

std::function<void()> with_faults(const FaultPlan& faults) {
  return [faults] {
    WorldOptions options{.world_size = 1};
    options.faults = faults;
    const World made(options);
  };
}

std::function<void()> search(const ExploreOptions& options) {
  return [options] {
    int runs = 0;
    const ExploreReport report = explore(options, [&runs](RankContext&) { ++runs; });
    EXPECT_EQ(runs, 0);
    if (!report.error.ok()) throw DistError(report.error, {.rank = -1, .group = {}, .op = "explore"});
  };
}

const std::vector<Wrong>& wrong_numbers() {
  static const auto* const all = new std::vector<Wrong>{
      {"world_size is 0, want at least 1", world({.world_size = 0})},
      {"timeout is -1s, want 0 or more", world({.world_size = 1, .timeout = absl::Seconds(-1)})},
      {"warn_after is -1s, want 0 or more", world({.world_size = 1, .warn_after = absl::Seconds(-1)})},
      {"recorded_calls is -1, want 0 or more", world({.world_size = 1, .recorded_calls = -1})},
      {"stall is -1ns, want 0 or more", world({.world_size = 1, .stall = absl::Nanoseconds(-1)})},
      {"stall_is_fatal is -1s, want 0 or more", world({.world_size = 1, .stall_is_fatal = absl::Seconds(-1)})},
      {"stuck_after is -inf, want 0 or more", world({.world_size = 1, .stuck_after = -absl::InfiniteDuration()})},
      {"fault delay@by=-1s: by is -1s, want 0 or more",
       [] {
         WorldOptions options{.world_size = 1};
         options.faults = {{.kind = Fault::Kind::kDelay, .by = absl::Seconds(-1)}};
         const World made(options);
       }},
      {"fault delay@by=inf: by is inf, want a delay that ends, or a hang",
       with_faults({{.kind = Fault::Kind::kDelay, .by = absl::InfiniteDuration()}})},
      {"fault ?: kind is 99, want a Fault::Kind", with_faults({{.kind = static_cast<Fault::Kind>(99)}})},
      {"fault crash@when=?: when is 9, want a Fault::When", with_faults({{.when = static_cast<Fault::When>(9)}})},
      {"fault ?: kind is 99, want a Fault::Kind",
       with_faults(FaultPlan::seeded(7, 0.5, {static_cast<Fault::Kind>(99)}))},
      {"engine is 9, want kThreads or kFibers", world({.world_size = 1, .engine = static_cast<EngineKind>(9)})},
      {"stack_bytes is 18446744073709551615, want at most 2^44 / world_size = 17592186044416",
       world({.world_size = 1, .engine = EngineKind::kFibers, .stack_bytes = SIZE_MAX})},
      {"stack_bytes is 9223372036854775807, want at most 2^44 / world_size = 4398046511104",
       world({.world_size = 4, .stack_bytes = SIZE_MAX / 2})},
      {"stack_bytes is 131072, want at most 2^44 / world_size = 8796",
       world({.world_size = 2'000'000'000, .engine = EngineKind::kFibers})},
      {"Schedule::pct: depth is 0, want 1 to 1000000", [] { Schedule::pct(7, 0); }},
      {"Schedule::pct: depth is -3, want 1 to 1000000", [] { Schedule::pct(7, -3); }},
      {"Schedule::pct: depth is 2147483647, want 1 to 1000000", [] { Schedule::pct(7, INT_MAX); }},
      {"flight_records: format is 9, want kPickle or kJson",
       [] {
         World made({.world_size = 1});
         (void)traces::flight_records(made, 0, {.format = static_cast<traces::FlightDumpOptions::Format>(9)});
       }},
      {"init_mixed_mesh: dimension a has backend 9, want kThreaded or kFake",
       [] {
         run_world({.world_size = 1}, [](RankContext& rank) {
           (void)init_mixed_mesh(rank, {{.name = "a", .size = 1, .backend = static_cast<GroupOptions::Backend>(9)}});
         }).throw_if_failed();
       }},
      {"FaultPlan::seeded: rate is -0.5, want 0 to 1", [] { FaultPlan::seeded(7, -0.5); }},
      {"FaultPlan::seeded: rate is 1.5, want 0 to 1", [] { FaultPlan::seeded(7, 1.5); }},
      {"FaultPlan::seeded: rate is nan, want 0 to 1", [] { FaultPlan::seeded(7, std::nan("")); }},
      {"rank 1, init_process_group: timeout is -1s, want 0 or more", group({.timeout = absl::Seconds(-1)})},
      {"rank 1, init_process_group: warn_after is -1s, want 0 or more", group({.warn_after = absl::Seconds(-1)})},
      {"rank 1, init_process_group: ranks holds -2, want 0 <= rank < world_size = 3", group({.ranks = {1, -2}})},
      {"rank 1, init_process_group: ranks holds 3, want 0 <= rank < world_size = 3", group({.ranks = {3, 1}})},
      {"rank 1, init_process_group: ranks holds 1 twice, want each rank once", group({.ranks = {1, 0, 1}})},
      {"rank 1, init_process_group: ranks holds ranks 0, 2, want the calling rank among them",
       group({.ranks = {2, 0}})},
      {"explore: max_runs is 0, want 1 or more", search({.max_runs = 0})},
      {"explore: max_time is -1s, want 0 or more", search({.max_time = absl::Seconds(-1)})},
      {"explore: min_ranks is -1, want 0 or more", search({.min_ranks = -1})},
      {"explore: min_ranks is 5, want at most world_size = 4", search({.min_ranks = 5})},
      {"explore: max_shrink_runs is -1, want 0 or more", search({.max_shrink_runs = -1})},
      {"explore: processes is 0, want 1 or more", search({.processes = 0})},
      {"explore: processes is -3, want 1 or more", search({.processes = -3})},
      {"explore: processes is 10000, want at most 1000", search({.processes = 10'000})},
      {"explore: Schedule::pct: depth is 0, want 1 to 1000000", search({.strategies = {Strategy::pct(0)}})},
      {"explore: kind of a strategy is 99, want a Strategy::Kind",
       search({.strategies = {{static_cast<Strategy::Kind>(99)}}})},
      {"explore: world_size is 0, want at least 1", search({.world = {.world_size = 0}})},
      {"explore: world_size is -1, want at least 1", search({.world = {.world_size = -1}, .min_ranks = 0})},
      {"explore: timeout is -1s, want 0 or more", search({.world = {.world_size = 1, .timeout = absl::Seconds(-1)}})},
  };
  return *all;
}

class OptionsTest : public testing::TestWithParam<Wrong> {};
INSTANTIATE_TEST_SUITE_P(Numbers, OptionsTest, testing::ValuesIn(wrong_numbers()),
                         [](const auto& info) { return std::to_string(info.index); });

TEST_P(OptionsTest, AreRefusedByName) {
  EXPECT_THAT(GetParam().use, ThrowsDistError(ErrorKind::kInvalidArgument,
                                              testing::HasSubstr(absl::StrCat(GetParam().text, " [options_test.cc:"))));
}

// docs/testing.md names it: a rank on fibers has 128 KiB, and no more than a page less for locals.
TEST(OptionsThatAreNotSet, AStackOfAFiberHas128KiB) {
  EXPECT_EQ(WorldOptions().stack_bytes, size_t{131072});
  const RunReport report = run_world({.world_size = 2, .engine = EngineKind::kFibers}, [](RankContext& rank) {
    volatile char local[100 * 1024];
    local[0] = 1;
    local[sizeof local - 1] = 2;
    rank.yield();
    EXPECT_EQ(local[0] + local[sizeof local - 1], 3);
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

TEST(OptionsAtTheirLimits, OneRunIsOneRun) {
  int runs = 0;
  const ExploreReport report = explore({.world = {.world_size = 1, .engine = EngineKind::kFibers}, .max_runs = 1},
                                       [&runs](RankContext&) { ++runs; });
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(report.runs, 1);
}

// A run of the deepest one is as quick as any, and its text is read again.
TEST(OptionsAtTheirLimits, TheDeepestPctRuns) {
  const Schedule deepest = Schedule::pct(7, 1'000'000);
  const RunReport report =
      run_world({.world_size = 3, .engine = EngineKind::kFibers, .schedule = deepest}, [](RankContext& rank) {
        for (int i = 0; i < 300; ++i) rank.yield();
      });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_EQ(Schedule::parse(deepest.text())->depth(), 1'000'000);
  EXPECT_FALSE(Schedule::parse("pct:7:1000001").ok());
}

TEST(OptionsAtTheirLimits, FaultsThatCannotBeAreNotRead) {
  for (const char* text : {"delay@by=inf", "delay@by=-1s"}) {
    EXPECT_THAT(std::string(FaultPlan::parse(text).status().message()),
                testing::StartsWith(absl::StrCat("fault \"", text, "\": cannot read \"by=")));
  }
}

TEST(OptionsAtTheirLimits, AreTaken) {
  World world({.world_size = 1,
               .timeout = absl::ZeroDuration(),
               .warn_after = absl::ZeroDuration(),
               .recorded_calls = 0,
               .stall = absl::InfiniteDuration(),
               .stuck_after = absl::InfiniteDuration()});
  EXPECT_TRUE(world.run([](RankContext& rank) { init_process_group(rank, {.ranks = {0}}); }).ok());
  EXPECT_EQ(Schedule::pct(7, 1).depth(), 1);
  EXPECT_EQ(FaultPlan::seeded(7, 1).rate(), 1);
  EXPECT_TRUE(FaultPlan::seeded(7, 0).empty());
}

}  // namespace
}  // namespace rankloom

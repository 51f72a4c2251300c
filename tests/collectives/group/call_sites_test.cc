// A refusal names the line that asked: setters, meshes, worlds and their options, streams and tensors, in a
// world and in fake groups outside of one. Calls of groups stand in bad_arguments_test.cc, null pointers in
// null_arguments_test.cc.

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/fake.h"
#include "rankloom/records.h"
#include "rankloom/testing.h"
#include "tests/error_of.h"
#include "tests/world/every_world.h"

namespace rankloom {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

constexpr char kPlace[] = " \\[call_sites_test.cc:[0-9]+\\]";
const absl::Duration kNegative = absl::Seconds(-1);

struct Misuse {
  const char* text;  // a regular expression, without the place
  void (*use)(RankContext& rank, ProcessGroup& pg);
};

// On rank 1 of 2.
const Misuse kInAWorld[] = {
    {"rank 1, group 0, set_timeout: timeout is -1s, want 0 or more",
     [](RankContext&, ProcessGroup& pg) { pg.set_timeout(kNegative); }},
    {"rank 1, group 0, set_warn_after: warn_after is -1s, want 0 or more",
     [](RankContext&, ProcessGroup& pg) { pg.set_warn_after(kNegative); }},
    {"group 0, global_rank: rank is 5, want 0 <= rank < size = 2",
     [](RankContext&, ProcessGroup& pg) { pg.global_rank(5); }},
    {"rank 1, group 0, start_coalescing: it was called before \\[call_sites_test.cc:[0-9]+\\], want "
     "end_coalescing\\(\\) between",
     [](RankContext&, ProcessGroup& pg) {
       pg.start_coalescing();
       try {
         pg.start_coalescing();
       } catch (...) {
         (void)pg.end_coalescing();
         throw;
       }
     }},
    {"rank 1, group 0, end_coalescing: want start_coalescing\\(\\) before it",
     [](RankContext&, ProcessGroup& pg) { (void)pg.end_coalescing(); }},
    {"rank 1, group 0, new_group: warn_after is -1s, want 0 or more",
     [](RankContext&, ProcessGroup& pg) { pg.new_group({.warn_after = kNegative}); }},
    {"rank 1, init_process_group: timeout is -1s, want 0 or more",
     [](RankContext& rank, ProcessGroup&) { init_process_group(rank, {.timeout = kNegative}); }},
    {"rank 1, init_process_group: ranks holds 7, want 0 <= rank < world_size = 2",
     [](RankContext& rank, ProcessGroup&) {
       init_process_group(rank, {.ranks = {1, 7}});
     }},
    {"rank 1, group mine: GroupOptions::make gave null, want a group",
     [](RankContext& rank, ProcessGroup&) {
       const auto none = [](RankContext&, const std::shared_ptr<const Group>&) { return nullptr; };
       init_process_group(rank, {.make = none, .name = "mine", .ranks = {1}});
     }},
    {"rank 1, mesh \\[3\\]: it has 3 ranks, want the group's 2",
     [](RankContext& rank, ProcessGroup&) { init_device_mesh(rank, {3}); }},
    {"rank 1, init_mixed_mesh: its real dimensions have 3 ranks, want the world's 2",
     [](RankContext& rank, ProcessGroup&) { init_mixed_mesh(rank, {{.name = "tp", .size = 3}}); }},
    {"set_rank: group 0 is that of rank 1 of a world, want make_fake_process_group\\(\\)",
     [](RankContext& rank, ProcessGroup&) {
       auto fake = std::dynamic_pointer_cast<FakeProcessGroup>(
           init_process_group(rank, {.backend = GroupOptions::Backend::kFake, .name = "0", .ranks = {1}}));
       fake->set_rank(0);
     }},
    {"wait: timeout is -1s, want 0 or more", [](RankContext&, ProcessGroup&) { Work().wait(kNegative); }},
    {"wait_any: the list is empty, want at least one work", [](RankContext&, ProcessGroup&) { wait_any({}); }},
    {"rank 1, stream comm: block_current_stream: timeout is -1s, want at least 0",
     [](RankContext& rank, ProcessGroup&) {
       SimStream stream(rank, "comm");
       stream.wait_for(Work(), kNegative);
     }},
    {"rank 1, latch: count is -1, want at least 0", [](RankContext&, ProcessGroup&) { const Latch latch(-1); }},
    {"World::context: rank is 9, want 0 <= rank < world_size = 2",
     [](RankContext& rank, ProcessGroup&) { rank.world().context(9); }},
    {"World::rank_failed: rank is 9, want 0 <= rank < world_size = 2",
     [](RankContext& rank, ProcessGroup&) { rank.world().rank_failed(9, nullptr); }},
    {"attach: (this thread is rank 1 already, want a thread without a rank|"
     "the ranks are fibers of one thread, want engine threads)",
     [](RankContext& rank, ProcessGroup&) { rank.world().attach(0); }},
    {"detach: this thread of rank 1 did not attach, want attach\\(\\) before detach\\(\\)",
     [](RankContext& rank, ProcessGroup&) { rank.world().detach(); }},
    {"run: this world has run before, want another world for another run",
     [](RankContext& rank, ProcessGroup&) { (void)rank.world().run([](RankContext&) {}); }},
    {"rank 1, WorldLocal \"x\": it is an object of another type in this world, want another name",
     [](RankContext& rank, ProcessGroup&) {
       WorldLocal<int>("x").get(rank.world());
       WorldLocal<float>("x").get(rank.world());
     }},
    {"flight_records: rank is 9, want 0 <= rank < world_size = 2",
     [](RankContext& rank, ProcessGroup&) { traces::flight_records(rank.world(), 9); }},
    {"dump_flight_records: file \"no/such/folder/fr_0\": cannot be written: No such file or directory",
     [](RankContext& rank, ProcessGroup&) { traces::dump_flight_records(rank.world(), "no/such/folder/fr_"); }},
};

class CallSitesTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, CallSitesTest, every_world(), world_name);

TEST_P(CallSitesTest, WhatIsRefusedSaysWhichLineAskedForIt) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) {
      for (const Misuse& misuse : kInAWorld) {
        EXPECT_THAT([&] { misuse.use(rank, *pg); },
                    ThrowsDistError(ErrorKind::kInvalidArgument,
                                    MatchesRegex(absl::StrCat("InvalidArgument: ", misuse.text, kPlace))));
      }
    }
    pg->barrier().wait();
  });
}

TEST_P(CallSitesTest, SoDoStores) {
  run(1, [](RankContext& rank) {
    EXPECT_EQ(error_of([&] { rank.store().set_timeout(kNegative); }, ErrorKind::kStoreError),
              "StoreError: rank 0, HashStore set_timeout: negative timeout: have -1s, want 0 or more" + here());
    EXPECT_EQ(error_of([&] { rank.store().queue_pop("q", /*block=*/false); }, ErrorKind::kStoreError),
              "StoreError: rank 0, HashStore queue_pop key \"q\": the queue is empty: have 0 values, want 1" + here());
    EXPECT_EQ(error_of([&] { store_barrier(rank.store(), "b", 3, 2); }, ErrorKind::kStoreError),
              "StoreError: HashStore store_barrier \"b\": have rank 3 of 2, want 0 <= rank < size" + here());
  });
}

// The line of an operator is that of its brackets.
TEST_P(CallSitesTest, OfAMeshAreTheCallersOwn) {
  run(4, [](RankContext& rank) {
    const DeviceMesh mesh = init_device_mesh(rank, {2, 2}, {"dp", "tp"});
    const std::string who = absl::StrCat("InvalidArgument: rank ", rank.rank(), ", mesh [2, 2] (dp, tp): ");
    const std::string none = who + "it has no dimension pp, want one of dp, tp";
    EXPECT_EQ(error_of([&] { mesh["pp"]; }), none + here());
    EXPECT_EQ(error_of([&] { mesh[std::string("pp")]; }), none + here());
    EXPECT_EQ(error_of([&] { mesh.slice({"dp", "pp"}); }), none + here());
    EXPECT_EQ(error_of([&] { mesh.size("pp"); }), none + here());
    EXPECT_EQ(error_of([&] { mesh.get_local_rank("pp"); }), none + here());
    EXPECT_EQ(error_of([&] { mesh.get_group("pp"); }), none + here());
    const std::string outside = who + "dimension is 2, want 0 <= dimension < 2";
    EXPECT_EQ(error_of([&] { mesh.size(2); }), outside + here());
    EXPECT_EQ(error_of([&] { mesh.get_local_rank(2); }), outside + here());
    EXPECT_EQ(error_of([&] { mesh.get_group(2); }), outside + here());
    EXPECT_EQ(error_of([&] { mesh.get_group(); }),
              who + "it has 2 dimensions, want get_group(dimension) or get_group(name)" + here());
    EXPECT_EQ(error_of([&] { mesh.slice({}); }), who + "slice: there are no names, want at least one" + here());
    EXPECT_EQ(error_of([&] {
                mesh.slice({"tp", "dp"});
              }),
              who + "slice: the names are tp, dp, want each once and in the order of the mesh" + here());
    EXPECT_EQ(mesh["tp"].size(), 2);
  });
}

TEST(CallSites, OfFakeGroupsOutsideAWorld) {
  auto pg = make_fake_process_group({.rank = 1, .world_size = 4});
  std::vector<float> x(3);
  std::vector<float> all(5);
  EXPECT_EQ(
      error_of([&] { (void)pg->all_gather_into_tensor(all, x); }, ErrorKind::kInvalidArgument),
      "InvalidArgument: rank 1, group 0, all_gather_into_tensor seq 1: output has 5 elements, want size * input = "
      "4 * 3 = 12" +
          here());
  EXPECT_THAT(error_of([&] { (void)pg->broadcast(x, 4); }, ErrorKind::kInvalidArgument), HasSubstr(here()));
  EXPECT_EQ(error_of([&] { pg->set_timeout(kNegative); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: rank 1, group 0, set_timeout: timeout is -1s, want 0 or more" + here());
  EXPECT_EQ(error_of([&] { pg->set_rank(4); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: set_rank: rank is 4, want 0 <= rank < size = 4" + here());
  EXPECT_EQ(error_of([&] { (void)make_fake_process_group({.rank = 4, .world_size = 4}); }),
            "InvalidArgument: make_fake_process_group: rank is 4, want 0 <= rank < world_size = 4" + here());
  EXPECT_EQ(error_of([&] { (void)init_device_mesh(pg, {3}); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: rank 1, mesh [3]: it has 3 ranks, want the group's 4" + here());
  const DeviceMesh mesh = init_device_mesh(pg, {2, 2}, {"dp", "tp"});
  EXPECT_EQ(error_of([&] { (void)mesh.get_group("pp"); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: rank 1, mesh [2, 2] (dp, tp): it has no dimension pp, want one of dp, tp" + here());
}

TEST(CallSites, OfOptionsAreThoseOfTheCallThatTakesThem) {
  const auto nothing = [](RankContext&) {};
  EXPECT_EQ(error_of([&] { (void)run_world({.world_size = -1}, nothing); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: world_size is -1, want at least 1" + here());
  EXPECT_EQ(error_of([&] { const World world({.recorded_calls = -2}); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: recorded_calls is -2, want 0 or more" + here());
  EXPECT_EQ(std::string(explore({.max_runs = 0}, nothing).error.message()),
            "explore: max_runs is 0, want 1 or more" + here());
  EXPECT_EQ(std::string(explore({.world = {.world_size = 0}}, nothing).error.message()),
            "explore: world_size is 0, want at least 1" + here());
  EXPECT_EQ(std::string(explore_assertions({.processes = 0}, nothing).error.message()),
            "explore: processes is 0, want 1 or more" + here());
  EXPECT_EQ(error_of([&] { (void)runs_alike({.world_size = 0}, nothing); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: world_size is 0, want at least 1" + here());
}

TEST(CallSites, OfValues) {
  std::vector<float> x(6);
  EXPECT_THAT(error_of([&] { (void)TensorView(x).slice(2, 9); }, ErrorKind::kInvalidArgument), HasSubstr(here()));
  EXPECT_EQ(error_of([] { (void)Schedule::pct(1, 0); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: Schedule::pct: depth is 0, want 1 to 1000000" + here());
  EXPECT_EQ(error_of([] { (void)FaultPlan::seeded(1, 2); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: FaultPlan::seeded: rate is 2, want 0 to 1" + here());
  struct TooSmall final : ProcessGroup {
    TooSmall() : ProcessGroup(2, 2) {}
    absl::StatusOr<Work> execute(CollectiveCall&&) override { return Work(); }
  };
  EXPECT_THAT(
      error_of([] { const TooSmall group; }, ErrorKind::kInvalidArgument),
      MatchesRegex(absl::StrCat("InvalidArgument: a group of size 2 with rank 2, want size >= 1 and 0 <= rank < "
                                "size",
                                kPlace)));
}

// The culprit of a world's end is named, with its line: see world_test.cc for threads of other origin. Here for groups.
TEST_P(CallSitesTest, OfAnAbortOfAGroup) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) pg->abort("the loss is no number", CodeSite{"dir/job.cc", 31});
    pg->barrier().wait();
  });
  EXPECT_THAT(report.text(),
              testing::StartsWith("rank 1 failed: Aborted: rank 1 aborted group 0: the loss is no number [job.cc:31]\n"
                                  "rank 0 stopped for it"));
}

class CallSitesOfFixturesTest : public MultiThreadedTestCase {};
INSTANTIATE_TEST_SUITE_P(Engines, CallSitesOfFixturesTest, every_engine(), engine_name);

TEST_P(CallSitesOfFixturesTest, AreThoseOfRunRanks) {
  EXPECT_EQ(error_of([&] { run_ranks(WorldOptions{.world_size = 0}, [](RankContext&) {}); }),
            "InvalidArgument: world_size is 0, want at least 1" + here());
}

}  // namespace
}  // namespace rankloom

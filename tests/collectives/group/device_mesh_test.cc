#include "rankloom/device_mesh.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/matchers.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class DeviceMeshTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, DeviceMeshTest, every_world(), world_name);

std::vector<int32_t> ranks_in(ProcessGroup& pg, int global_rank) {
  std::vector<int32_t> mine = {global_rank};
  std::vector<int32_t> all(static_cast<size_t>(pg.size()));
  pg.all_gather_into_tensor(all, mine).wait();
  return all;
}

// Names of which the same text could be made have other groups.
TEST_P(DeviceMeshTest, MembersAgreeOnNamesWithCommas) {
  const RunReport report = run_to_failure(4, [](RankContext& rank) {
    const std::vector<std::string> here = {"a, b", "c"}, there = {"a", "b, c"};
    (void)init_device_mesh(rank, {2, 2}, rank.rank() == 0 ? here : there);
  });
  if (report.outcomes.empty()) return;  // too few processes
  EXPECT_THAT(report.text(), AllOf(HasSubstr("Mismatch: "), HasSubstr("| [2, 2] (\"a, b\", c) | 0 "),
                                   HasSubstr("| [2, 2] (a, \"b, c\") | 1-3 ")));
}

// The table of a mismatch between a mesh and another group names both.
TEST_P(DeviceMeshTest, AGroupIsNoMesh) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) (void)pg->new_group({0, 1});
    if (rank.rank() == 1) (void)init_device_mesh(pg, {2});
  });
  if (report.outcomes.empty()) return;  // too few processes
  EXPECT_THAT(report.text(), AllOf(HasSubstr("members issued different calls\n"), HasSubstr("| those of a mesh | 1 ")));
}

TEST_P(DeviceMeshTest, ABadTimeoutIsThatOfTheMesh) {
  const RunReport report = run_to_failure(1, [](RankContext& rank) {
    (void)init_device_mesh(init_process_group(rank), {1}, {}, {.timeout = -absl::Seconds(1)});
  });
  if (report.outcomes.empty()) return;  // a process of another rank
  EXPECT_THAT(report.text(), HasSubstr("init_device_mesh: timeout is -1s, want"));
}

TEST_P(DeviceMeshTest, MakesAGroupAlongEachDimension) {
  run(6, [](RankContext& rank) {
    const int r = rank.rank();
    const DeviceMesh mesh = init_device_mesh(rank, {2, 3}, {"dp", "tp"});
    EXPECT_EQ(mesh.text(), "mesh [2, 3] (dp, tp)");
    EXPECT_EQ(mesh.ndim(), 2);
    EXPECT_EQ(mesh.size(), 6);
    EXPECT_EQ(mesh.size("tp"), 3);
    EXPECT_THAT(mesh.get_coordinate(), ElementsAre(r / 3, r % 3));
    EXPECT_EQ(mesh.get_local_rank("dp"), r / 3);
    EXPECT_EQ(mesh.get_local_rank(1), r % 3);
    EXPECT_EQ(ranks_in(*mesh.get_group("tp"), r), (std::vector<int32_t>{r / 3 * 3, r / 3 * 3 + 1, r / 3 * 3 + 2}));
    EXPECT_EQ(ranks_in(*mesh.get_group(0), r), (std::vector<int32_t>{r % 3, r % 3 + 3}));
    EXPECT_EQ(mesh.get_group("tp")->group_name(), absl::StrCat("0.1.tp[", r / 3, "]"));
    EXPECT_EQ(mesh.get_group("dp")->description(), "mesh_dp");
    EXPECT_EQ(mesh.get_group("dp")->rank(), r / 3);
  });
}

TEST_P(DeviceMeshTest, GivesSubMeshesThatShareItsGroups) {
  run(8, [](RankContext& rank) {
    const int r = rank.rank();
    const DeviceMesh mesh = init_device_mesh(rank, {2, 2, 2}, {"pp", "dp", "tp"});
    const DeviceMesh tp = mesh["tp"];
    EXPECT_EQ(tp.ndim(), 1);
    EXPECT_EQ(tp.get_group(), mesh.get_group("tp"));
    EXPECT_THAT(tp.get_coordinate(), ElementsAre(r % 2));
    const DeviceMesh part = mesh.slice({"pp", "tp"});
    EXPECT_EQ(part.text(), "mesh [2, 2] (pp, tp)");
    EXPECT_THAT(part.get_coordinate(), ElementsAre(r / 4, r % 2));
    EXPECT_EQ(part.get_group("pp"), mesh.get_group("pp"));
    EXPECT_EQ(ranks_in(*part.get_group("pp"), r), (std::vector<int32_t>{r % 4, r % 4 + 4}));
    // Both dimensions in flight at once.
    std::vector<int64_t> x = {r};
    std::vector<int64_t> y = {10 * r};
    std::vector<Work> works = {mesh.get_group("dp")->all_reduce(x), mesh.get_group("tp")->all_reduce(y)};
    wait_all(works);
    const int dp = r / 4 * 4 + r % 2;
    EXPECT_THAT(x, ElementsAre(dp + dp + 2));
    EXPECT_THAT(y, ElementsAre(10 * (r / 2 * 2) * 2 + 10));
  });
}

TEST_P(DeviceMeshTest, CoversASubgroup) {
  run(5, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto some = pg->new_group({0, 1, 3, 4});
    if (some == nullptr) return;
    const DeviceMesh mesh = init_device_mesh(some, {2, 2});
    EXPECT_EQ(mesh.base(), some);
    const int r = some->rank();
    EXPECT_THAT(mesh.get_coordinate(), ElementsAre(r / 2, r % 2));
    const std::vector<int32_t> globals = {0, 1, 3, 4};
    EXPECT_EQ(ranks_in(*mesh.get_group(0), rank.rank()),
              (std::vector<int32_t>{globals[static_cast<size_t>(r % 2)], globals[static_cast<size_t>(r % 2 + 2)]}));
    EXPECT_EQ(mesh.get_group(1)->group_name(), absl::StrCat("0.1.1.dim1[", r / 2, "]"));
  });
}

TEST_P(DeviceMeshTest, WorksInAFakeWorld) {
  run(2, [](RankContext& rank) {
    const DeviceMesh mesh = init_device_mesh(rank, {1, 2}, {"dp", "tp"}, {.backend = GroupOptions::Backend::kFake});
    EXPECT_EQ(mesh.get_group("tp")->backend_name(), "fake");
    EXPECT_EQ(mesh.get_group("tp")->size(), 2);
    EXPECT_EQ(mesh.get_group("tp")->rank(), rank.rank());
    EXPECT_EQ(mesh.get_group("dp")->size(), 1);
  });
}

TEST_P(DeviceMeshTest, IsDestroyedWithItsBase) {
  run(4, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const DeviceMesh mesh = init_device_mesh(pg, {2, 2});
    destroy_process_group(pg);
    EXPECT_THAT([&] { (void)mesh.get_group(0)->barrier(); },
                ThrowsDistError(ErrorKind::kAborted, HasSubstr("barrier seq 1: the group was shut down")));
  });
}

TEST_P(DeviceMeshTest, TellsOfMembersThatDisagree) {
  const RunReport report = run_to_failure(4, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    init_device_mesh(pg, rank.rank() == 3 ? std::vector<int>{4, 1} : std::vector<int>{2, 2}, {"dp", "tp"});
  });
  EXPECT_THAT(report.text(), StartsWith("ranks 0-3 failed: Mismatch: group 0, seq 1: members issued different calls of "
                                        "init_device_mesh\n"
                                        "  field | value           | ranks | call site\n"
                                        "  mesh  | [2, 2] (dp, tp) | 0-2   | device_mesh_test.cc:"));
  EXPECT_THAT(report.text(), HasSubstr("\n        | [4, 1] (dp, tp) | 3     | device_mesh_test.cc:"));
  EXPECT_THAT(report.text(), HasSubstr("\nlast calls of rank 3:\n  init_device_mesh seq 1 (scheduled) [group 0, "));
  EXPECT_THAT(report.text(), testing::Not(HasSubstr("new_group")));
}

TEST_P(DeviceMeshTest, RefusesWrongArguments) {
  run(4, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const auto refuses = [&](auto call, const std::string& text) {
      EXPECT_THAT(call, ThrowsDistError(
                            ErrorKind::kInvalidArgument,
                            testing::StartsWith(absl::StrCat("InvalidArgument: rank ", rank.rank(), ", mesh ", text))));
    };
    const auto making = [&](std::vector<int> shape, std::vector<std::string> names) {
      return [&pg, shape = std::move(shape), names = std::move(names)] { init_device_mesh(pg, shape, names); };
    };
    refuses(making({}, {}), "[]: it has no dimensions, want at least one");
    refuses(making({2, 0}, {}), "[2, 0]: dimension 1 has size 0, want at least 1");
    refuses(making({-4}, {}), "[-4]: dimension 0 has size -4, want at least 1");
    refuses(making({2, 3}, {}), "[2, 3]: it has 2 * 3 = 6 ranks, want the group's 4");
    refuses(making({3}, {}), "[3]: it has 3 ranks, want the group's 4");
    refuses(making({1 << 30, 1 << 30, 1 << 30}, {}),
            "[1073741824, 1073741824, 1073741824]: it has 1073741824 * 1073741824 * 1073741824 >= 2^31 ranks, want "
            "the group's 4");
    refuses(making({2, 2}, {"dp"}), "[2, 2] (dp): it has 1 name, want none or one for each of 2 dimensions");
    refuses(making({2, 2}, {"dp", ""}), "[2, 2] (dp, ): the name of dimension 1 is empty");
    refuses(making({2, 2}, {"dp", "dp"}), "[2, 2] (dp, dp): the name dp is given twice, want each once");
    refuses([&] { init_device_mesh(rank, {2, 3}); }, "[2, 3]: it has 2 * 3 = 6 ranks, want the group's 4");
    const DeviceMesh mesh = init_device_mesh(pg, {2, 2}, {"dp", "tp"});
    const std::string name = "[2, 2] (dp, tp): ";
    refuses([&] { (void)mesh.get_group(2); }, name + "dimension is 2, want 0 <= dimension < 2");
    refuses([&] { (void)mesh.size(-1); }, name + "dimension is -1, want 0 <= dimension < 2");
    refuses([&] { (void)mesh.get_local_rank(2); }, name + "dimension is 2, want 0 <= dimension < 2");
    refuses([&] { (void)mesh.get_group("pp"); }, name + "it has no dimension pp, want one of dp, tp");
    refuses([&] { (void)mesh["pp"]; }, name + "it has no dimension pp, want one of dp, tp");
    refuses([&] { (void)mesh.get_group(); },
            name + "it has 2 dimensions, want get_group(dimension) or get_group(name)");
    refuses([&] { (void)mesh.slice({}); }, name + "slice: there are no names, want at least one");
    refuses(
        [&] {
          (void)mesh.slice({"tp", "dp"});
        },
        name + "slice: the names are tp, dp, want each once and in the order of the mesh");
    refuses(
        [&] {
          (void)mesh.slice({"dp", "dp"});
        },
        name + "slice: the names are dp, dp, want each once and in the order of the mesh");
    refuses([&] { (void)init_device_mesh(pg, {4}).get_group("dp"); },
            "[4]: its dimensions have no names, one was asked for as dp");
  });
}

TEST_P(DeviceMeshTest, NamesThatDifferAreAMismatch) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    (void)init_device_mesh(init_process_group(rank), {2}, {"dp"}, {.name = rank.rank() == 0 ? "a" : "b"});
  });
  EXPECT_THAT(report.text(), AllOf(HasSubstr("[2] (dp), a"), HasSubstr("[2] (dp), b")));
}

TEST_P(DeviceMeshTest, AMeshThatWasMovedFromIsWhole) {
  run(4, [](RankContext& rank) {
    DeviceMesh mesh = init_device_mesh(init_process_group(rank), {2, 2});
    const DeviceMesh moved = std::move(mesh);
    EXPECT_EQ(mesh.shape(), moved.shape());  // NOLINT(bugprone-use-after-move): that is what is tried
    EXPECT_EQ(mesh.get_group(1), moved.get_group(1));
  });
}

TEST_P(DeviceMeshTest, TheWorldsGroupBelowItHasTheOptions) {
  run(2, [](RankContext& rank) {
    const DeviceMesh mesh = init_device_mesh(rank, {2}, {"dp"}, {.timeout = absl::Seconds(7)});
    EXPECT_EQ(mesh.base()->timeout(), absl::Seconds(7));
  });
}

}  // namespace
}  // namespace rankloom

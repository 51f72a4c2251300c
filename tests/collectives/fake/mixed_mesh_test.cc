// Meshes that are real in some dimensions and fake in others.

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/device_mesh.h"
#include "rankloom/matchers.h"
#include "rankloom/records.h"
#include "rankloom/world.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kFake = GroupOptions::Backend::kFake;

class MixedMeshTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, MixedMeshTest, every_world(), world_name);

TEST_P(MixedMeshTest, IsRealInOneDimensionAndFakeInOthers) {
  run(4, [](RankContext& rank) {
    const auto record = std::make_shared<CallRecord>();
    const DeviceMesh mesh =
        init_mixed_mesh(rank,
                        {{.name = "pp", .size = 8, .backend = kFake, .coordinate = 3},
                         {.name = "tp", .size = 4},
                         {.name = "dp", .size = 1024, .backend = kFake, .coordinate = 1000}},
                        {.fake = {.outputs = FakeOptions::Outputs::kUniformRanks, .record = record}});
    EXPECT_EQ(mesh.size(), 32768);
    EXPECT_THAT(mesh.get_coordinate(), ElementsAre(3, rank.rank(), 1000));
    EXPECT_EQ(mesh.base()->rank(), (3 * 4 + rank.rank()) * 1024 + 1000);
    EXPECT_EQ(mesh.get_group("tp")->backend_name(), "threaded");
    EXPECT_EQ(mesh.get_group("dp")->backend_name(), "fake");
    EXPECT_EQ(mesh.get_group("dp")->rank(), 1000);
    EXPECT_EQ(mesh.get_group("pp")->global_rank(), mesh.base()->rank());
    EXPECT_EQ(mesh.get_group("tp")->global_rank(), rank.rank());
    // Data moves along tp, and is scaled along dp.
    std::vector<float> x = {static_cast<float>(1 + rank.rank())};
    mesh.get_group("tp")->all_reduce(x).wait();
    EXPECT_THAT(x, ElementsAre(10));
    mesh.get_group("dp")->all_reduce(x).wait();
    EXPECT_THAT(x, ElementsAre(10240));
    mesh.get_group("pp")->send(x, 4).wait();
    EXPECT_THAT(*record, CallsExactly({{1, OpType::kAllReduce, "dp"}, {1, OpType::kSend, "pp"}}));
    EXPECT_THAT(*CallRecord::of_rank(rank), CallsExactly({{1, OpType::kAllReduce, "tp"}}));
  });
}

TEST_P(MixedMeshTest, ARealDimensionHasItsOptions) {
  run(2, [](RankContext& rank) {
    const DeviceMesh mesh = init_mixed_mesh(
        rank, {{.name = "tp", .size = 2}, {.name = "dp", .size = 8, .backend = kFake}},
        {.real = {.timeout = absl::Seconds(7)}, .fake = {.outputs = FakeOptions::Outputs::kUniformRanks}});
    EXPECT_EQ(mesh.get_group("tp")->timeout(), absl::Seconds(7));
  });
}

TEST_P(MixedMeshTest, TakesSeveralRealDimensions) {
  run(6, [](RankContext& rank) {
    const DeviceMesh mesh = init_mixed_mesh(
        rank, {{.name = "dp", .size = 2}, {.name = "ep", .size = 16, .backend = kFake}, {.name = "tp", .size = 3}});
    EXPECT_THAT(mesh.get_coordinate(), ElementsAre(rank.rank() / 3, 0, rank.rank() % 3));
    std::vector<int32_t> x = {rank.rank()};
    std::vector<int32_t> y(2), z(3);
    mesh.get_group("dp")->all_gather_into_tensor(y, x).wait();
    mesh.get_group("tp")->all_gather_into_tensor(z, x).wait();
    EXPECT_THAT(y, ElementsAre(rank.rank() % 3, rank.rank() % 3 + 3));
    const int first = rank.rank() / 3 * 3;
    EXPECT_THAT(z, ElementsAre(first, first + 1, first + 2));
    EXPECT_EQ(mesh["ep"].get_group()->size(), 16);
  });
}

TEST_P(MixedMeshTest, MayBeAllFakeForOneRank) {
  run(1, [](RankContext& rank) {
    const DeviceMesh mesh = init_mixed_mesh(rank, {{.name = "dp", .size = 1 << 20, .backend = kFake, .coordinate = 7}});
    EXPECT_EQ(mesh.get_group()->rank(), 7);
  });
}

TEST_P(MixedMeshTest, RefusesSizesThatDoNotMultiply) {
  run(4, [](RankContext& rank) {
    const auto wrong = [&rank](const std::vector<DeviceMesh::MixedDim>& dims, const std::string& text) {
      EXPECT_THAT([&] { (void)init_mixed_mesh(rank, dims); },
                  ThrowsDistError(ErrorKind::kInvalidArgument, HasSubstr("init_mixed_mesh: " + text)));
    };
    wrong({{.name = "tp", .size = 3}, {.name = "dp", .size = 4, .backend = kFake}},
          "its real dimensions have 3 ranks, want the world's 4");
    wrong({{.name = "a", .size = 2}, {.name = "b", .size = 4}},
          "its real dimensions have 2 * 4 = 8 ranks, want the world's 4");
    wrong({{.name = "tp", .size = 4}, {.name = "dp", .size = 4, .backend = kFake, .coordinate = 4}},
          "dimension dp has coordinate 4, want 0 <= coordinate < size = 4");
    wrong({{.name = "tp", .size = 4}, {.name = "dp", .size = 4, .backend = kFake, .coordinate = -1}},
          "dimension dp has coordinate -1, want 0 <= coordinate < size = 4");
    wrong({{.name = "tp", .size = 4}, {.name = "dp", .size = 0, .backend = kFake}},
          "dimension dp has size 0, want at least 1");
    wrong({{.name = "tp", .size = 4}, {.name = "dp", .size = 1 << 30, .backend = kFake}},
          "the mesh has more than 2^31 - 1 ranks");
  });
}

}  // namespace
}  // namespace rankloom

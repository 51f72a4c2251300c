// Fake groups: what they check, refuse and answer. The first part are the cases of PyTorch's own tests of its fake
// group.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/device_mesh.h"
#include "rankloom/fake.h"
#include "rankloom/matchers.h"
#include "rankloom/stream.h"
#include "rankloom/world.h"
#include "tests/collectives/fake/random_calls.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::Ge;
using testing::HasSubstr;
using testing::SizeIs;

using Ones = std::vector<float>;
constexpr float kOne = 1;

TensorView square(Ones& values) { return {values.data(), {3, 3}}; }

// ---- PyTorch's cases

class FakeCollectivesTest : public testing::Test {
 protected:
  Ones x_ = Ones(9, kOne);
};

TEST_F(FakeCollectivesTest, AllReduce) {
  auto pg = make_fake_process_group({.rank = 1, .world_size = 2});
  Work work = pg->all_reduce(square(x_));
  EXPECT_TRUE(work.is_success());
  work.wait();
  EXPECT_THAT(x_, Each(kOne));
}

TEST_F(FakeCollectivesTest, AllGather) {
  auto pg = make_fake_process_group({.rank = 1, .world_size = 2});
  Ones a(9), b(9);
  pg->all_gather({square(a), square(b)}, square(x_)).wait();
}

TEST_F(FakeCollectivesTest, ReduceScatter) {
  auto pg = make_fake_process_group({.rank = 1, .world_size = 2});
  Ones zeros(9), out(9);
  pg->reduce_scatter(square(out), {square(zeros), square(x_)}).wait();
}

TEST_F(FakeCollectivesTest, BroadcastAsTheRootAndFromAnother) {
  auto pg = make_fake_process_group({.rank = 0, .world_size = 2});
  pg->broadcast(square(x_), 0).wait();
  pg->broadcast(square(x_), 1).wait();
  EXPECT_THAT(x_, Each(kOne));
}

TEST_F(FakeCollectivesTest, ScatterAsTheRootAndFromAnotherWithoutAList) {
  auto pg = make_fake_process_group({.rank = 0, .world_size = 2});
  Ones zeros(9), out(9, kOne);
  pg->scatter(square(out), {square(zeros), square(x_)}, 0).wait();
  pg->scatter(square(out), {}, 1).wait();
  // A list where no list belongs, and none where one does.
  EXPECT_THAT(
      [&] {
        (void)pg->scatter(square(out), {square(zeros), square(x_)}, 1);
      },
      ThrowsDistError(ErrorKind::kInvalidArgument,
                      HasSubstr("rank 0, group 0, scatter seq 3: inputs has 2 tensors, want none: only the root, "
                                "1, scatters")));
  EXPECT_THAT([&] { (void)pg->scatter(square(out), {}, 0); },
              ThrowsDistError(ErrorKind::kInvalidArgument, HasSubstr("inputs has 0 tensors, want size = 2")));
}

TEST_F(FakeCollectivesTest, AllToAll) {
  auto pg = make_fake_process_group({.rank = 0, .world_size = 2});
  Ones a(9), b(9), c(9);
  pg->all_to_all({square(a), square(b)}, {square(x_), square(c)}).wait();
}

TEST_F(FakeCollectivesTest, RefusesSplitsThatAreNotAllRows) {
  // torch 2.13 refuses this, too: 3 rows are not 1 + 1.
  auto pg = make_fake_process_group({.rank = 0, .world_size = 2});
  Ones out(9, kOne);
  EXPECT_THAT(
      [&] {
        (void)pg->all_to_all_single(square(out), square(x_), {1, 1}, {1, 1});
      },
      ThrowsDistError(
          ErrorKind::kInvalidArgument,
          HasSubstr("rank 0, group 0, all_to_all_single seq 1: input_splits add up to 1 + 1, want dimension "
                    "0 of input = 3 [fake_group_test.cc:")));
  // Splits may come from what other members sent, which a fake group does not know: the own part is not compared.
  pg->all_to_all_single(square(out), square(x_), {1, 2}, {2, 1}).wait();
}

TEST_F(FakeCollectivesTest, ARootThatIsNoneOfAHugeGroupIsRefusedAtOnce) {
  auto pg = make_fake_process_group({.rank = 0, .world_size = 2'000'000'000});
  EXPECT_THAT([&] { (void)pg->broadcast(square(x_), 2'000'000'000); },
              ThrowsDistError(ErrorKind::kInvalidArgument,
                              HasSubstr("root is 2000000000, want 0 <= root < size = 2000000000 [")));
}

TEST_F(FakeCollectivesTest, SendsAndReceives) {
  auto pg = make_fake_process_group({.rank = 0, .world_size = 2});
  pg->send(square(x_), 1).wait();
  pg->recv(square(x_), 1).wait();
  pg->recv_any(square(x_)).wait();
  pg->send(square(x_), 0).wait();
  pg->recv(square(x_), 0).wait();
  EXPECT_THAT(
      [&] { (void)pg->send(square(x_), 2); },
      ThrowsDistError(ErrorKind::kInvalidArgument, HasSubstr("destination is 2, want 0 <= destination < size = 2")));
}

TEST_F(FakeCollectivesTest, TakesMetaTensors) {
  auto pg = make_fake_process_group(
      {.rank = 5, .world_size = 1000000, .options = {.outputs = FakeOptions::Outputs::kUniformRanks}});
  pg->all_gather_into_tensor(TensorView::meta({1000000, 4096}, DType::kBFloat16),
                             TensorView::meta({1, 4096}, DType::kBFloat16))
      .wait();
  EXPECT_THAT(
      [&] {
        (void)pg->all_reduce(TensorView::meta({1 << 20, 1 << 10}, DType::kFloat8E5M2));
      },
      ThrowsDistError(ErrorKind::kInvalidArgument, HasSubstr("reduce op sum has no kernel for float8_e5m2")));
}

// ---- error_on_collective

std::string refused(const std::string& text) {
  return "CollectiveError: FakeProcessGroup collective operation error: " + text;
}

TEST(ErrorOnCollectiveTest, FailsEveryOperationWithItsName) {
  auto before = make_fake_process_group({.rank = 0, .world_size = 2});
  Ones x(9, kOne);
  before->all_reduce(square(x)).wait();
  destroy_process_group(before);

  auto pg = make_fake_process_group({.rank = 0, .world_size = 2, .options = {.error_on_collective = true}});
  const auto fails = [](auto call, const std::string& text) {
    EXPECT_THAT(call, ThrowsDistError(ErrorKind::kCollectiveError, refused(text)));
  };
  const std::string view = "float32[3, 3]";
  const TensorView t = square(x);
  Ones a(9), b(9), c(18);
  const TensorView big(c.data(), {6, 3});
  fails([&] { (void)pg->all_reduce(t); },
        absl::StrCat("all_reduce, rank 0, group 0, inputs [", view, "], outputs [", view, "]"));
  fails(
      [&] {
        (void)pg->all_gather({square(a), square(b)}, t);
      },
      absl::StrCat("all_gather, rank 0, group 0, inputs [", view, "], outputs [", view, ", ", view, "]"));
  fails([&] { (void)pg->broadcast(t, 0); },
        absl::StrCat("broadcast, rank 0, group 0, inputs [], outputs [", view, "]"));
  fails([&] { (void)pg->barrier(); }, "barrier, rank 0, group 0, inputs [], outputs []");
  const auto also = [](auto call, const std::string& start) {
    EXPECT_THAT(call, ThrowsDistError(ErrorKind::kCollectiveError, testing::StartsWith(refused(start + ", rank 0"))));
  };
  also([&] { (void)pg->all_reduce_coalesced({t}); }, "all_reduce_coalesced");
  also([&] { (void)pg->reduce(t, 1); }, "reduce");
  also([&] { (void)pg->all_gather_into_tensor(big, t); }, "all_gather_into_tensor");
  also([&] { (void)pg->all_gather_into_tensor_coalesced({big}, {t}); }, "all_gather_into_tensor_coalesced");
  also([&] { (void)pg->gather({}, t, 1); }, "gather");
  also([&] { (void)pg->scatter(t, {}, 1); }, "scatter");
  also([&] { (void)pg->reduce_scatter(t, {square(a), square(b)}); }, "reduce_scatter");
  also([&] { (void)pg->reduce_scatter_tensor(t, big); }, "reduce_scatter_tensor");
  also([&] { (void)pg->reduce_scatter_tensor_coalesced({t}, {big}); }, "reduce_scatter_tensor_coalesced");
  Ones d(9);
  also([&] { (void)pg->all_to_all({square(a), square(b)}, {t, square(d)}); }, "all_to_all");
  also([&] { (void)pg->all_to_all_single(square(a), t, {1, 2}, {1, 2}); }, "all_to_all_single");
  also([&] { pg->monitored_barrier(); }, "monitored_barrier");
  also([&] { (void)pg->send(t, 1); }, "send to 1");
  also([&] { (void)pg->recv(t, 1); }, "recv from 1");
  also([&] { (void)pg->recv_any(t); }, "recv from any");
  also([&] { (void)pg->new_group({0}); }, "new_group");
  also([&] { (void)pg->split_group(0); }, "split_group");
  pg->start_coalescing();
  (void)pg->all_reduce(t);
  also([&] { (void)pg->end_coalescing(); }, "coalesced");
}

TEST(ErrorOnCollectiveTest, SparesWhatIsAllowed) {
  auto pg = make_fake_process_group(
      {.world_size = 2,
       .options = {.error_on_collective = true, .allow = {OpType::kBarrier, OpType::kNewGroup, OpType::kCoalesced}}});
  pg->barrier().wait();
  Ones x(2);
  EXPECT_THAT([&] { (void)pg->all_reduce(x); }, ThrowsDistError(ErrorKind::kCollectiveError));
  // The groups that are made from it answer alike.
  auto child = pg->new_group({0, 1});
  child->barrier().wait();
  EXPECT_THAT([&] { (void)child->all_reduce(x); },
              ThrowsDistError(ErrorKind::kCollectiveError, HasSubstr("all_reduce, rank 0, group 0.1,")));
  auto other = pg->new_group({.fake = FakeOptions{}});
  other->all_reduce(x).wait();
  // A coalesced call is refused for one of its parts.
  pg->start_coalescing();
  (void)pg->barrier();
  pg->end_coalescing().wait();
  pg->start_coalescing();
  (void)pg->barrier();
  (void)pg->send(x, 1);
  EXPECT_THAT([&] { (void)pg->end_coalescing(); },
              ThrowsDistError(ErrorKind::kCollectiveError, HasSubstr("coalesced, rank 0, group 0, barrier, ")));
}

TEST(ErrorOnCollectiveTest, FailsWhatIsDenied) {
  auto pg = make_fake_process_group({.world_size = 2, .options = {.deny = {OpType::kAllReduce, OpType::kSend}}});
  Ones x(2), y(4);
  pg->barrier().wait();
  pg->all_gather_into_tensor(y, x).wait();
  EXPECT_THAT([&] { (void)pg->all_reduce(x); }, ThrowsDistError(ErrorKind::kCollectiveError));
  EXPECT_THAT([&] { (void)pg->send(x, 1); }, ThrowsDistError(ErrorKind::kCollectiveError));
  pg->recv(x, 1).wait();
  // Denied goes before allowed.
  auto both =
      make_fake_process_group({.world_size = 2, .options = {.allow = {OpType::kSend}, .deny = {OpType::kSend}}});
  EXPECT_THAT([&] { (void)both->send(x, 1); }, ThrowsDistError(ErrorKind::kCollectiveError));
}

// ---- making and ending

static_assert(!std::is_constructible_v<FakeProcessGroup, int, int>);
static_assert(!std::is_constructible_v<FakeProcessGroup, std::shared_ptr<const Group>, int, FakeOptions>);
static_assert(!std::is_default_constructible_v<FakeProcessGroup>);

TEST(FakeWorldTest, IsOfAnySize) {
  auto pg = make_fake_process_group({.rank = 5, .world_size = 1000000});
  EXPECT_EQ(pg->text(), "fake group 0: rank 5 of 1000000");
  auto largest = make_fake_process_group({.rank = 2147483646, .world_size = 2147483647});
  EXPECT_EQ(largest->size(), 2147483647);
  EXPECT_EQ(largest->global_rank(), 2147483646);
}

TEST(FakeWorldTest, RefusesRanksOutsideAndSizesThatAreNone) {
  const auto wrong = [](int64_t rank, int64_t world_size, const std::string& text) {
    EXPECT_THAT([&] { (void)make_fake_process_group({.rank = rank, .world_size = world_size}); },
                ThrowsDistError(
                    ErrorKind::kInvalidArgument,
                    testing::StartsWith("InvalidArgument: make_fake_process_group: " + text + " [fake_group_test.cc:")))
        << rank << " of " << world_size;
  };
  wrong(0, 0, "world_size is 0, want 1 <= world_size <= 2^31 - 1 = 2147483647");
  wrong(0, -4, "world_size is -4, want 1 <= world_size <= 2^31 - 1 = 2147483647");
  wrong(0, int64_t{1} << 31, "world_size is 2147483648, want 1 <= world_size <= 2^31 - 1 = 2147483647");
  wrong(4, 4, "rank is 4, want 0 <= rank < world_size = 4");
  wrong(-1, 4, "rank is -1, want 0 <= rank < world_size = 4");
}

TEST(FakeWorldTest, StartsAnewAfterDestroying) {
  Ones x(2);
  for (int round = 0; round < 3; ++round) {
    auto pg = make_fake_process_group({.rank = round, .world_size = 3});
    EXPECT_EQ(pg->sequence_number(), 0);
    pg->all_reduce(x).wait();
    EXPECT_EQ(pg->sequence_number(), 1);
    destroy_process_group(pg);
    EXPECT_THAT(
        [&] { (void)pg->all_reduce(x); },
        ThrowsDistError(ErrorKind::kAborted, HasSubstr("the group was shut down, want no call after shutdown()")));
    EXPECT_THAT([&] { destroy_process_group(pg); },
                ThrowsDistError(
                    ErrorKind::kAborted,
                    testing::StartsWith(absl::StrCat("Aborted: rank ", round,
                                                     ", group 0, destroy_process_group: the group was destroyed "
                                                     "before, want one that was initialised [fake_group_test.cc:"))));
  }
}

TEST(FakeWorldTest, FailsCallsAfterAnAbort) {
  auto pg = make_fake_process_group({.rank = 1, .world_size = 4});
  auto child = pg->new_group();
  pg->barrier().wait();
  pg->abort("the test says so");
  pg->abort("and again");
  Ones x(9, kOne);
  EXPECT_THAT([&] { (void)pg->all_reduce(x); },
              ThrowsDistError(
                  ErrorKind::kAborted,
                  AllOf(HasSubstr("rank 1, group 0, all_reduce seq 3: the group failed before: rank 1 aborted group "
                                  "0: the test says so ["),
                        testing::Not(HasSubstr("again")))));
  EXPECT_THAT([&] { (void)pg->send(x, 0); },
              ThrowsDistError(ErrorKind::kAborted, HasSubstr("rank 1, group 0, send: the group failed before")));
  EXPECT_THAT([&] { (void)pg->new_group(); },
              ThrowsDistError(ErrorKind::kAborted, HasSubstr("new_group seq 4: the group failed before")));
  child->all_reduce(x).wait();  // a group of its own
}

TEST(FakeWorldTest, StandsForAnyOfItsRanks) {
  auto pg = make_fake_process_group({.rank = 0, .world_size = 4});
  Ones x(2), a(2), b(2), c(2), d(2);
  const std::vector<TensorView> list = {a, b, c, d};
  pg->gather(list, x, 0).wait();
  auto of_rank_0 = pg->new_group({0, 1});
  pg->set_rank(3);
  EXPECT_EQ(pg->rank(), 3);
  EXPECT_EQ(pg->global_rank(), 3);
  EXPECT_THAT([&] { (void)pg->gather(list, x, 0); },
              ThrowsDistError(ErrorKind::kInvalidArgument, HasSubstr("rank 3, group 0, gather seq 3: outputs has 4")));
  pg->gather({}, x, 0).wait();
  EXPECT_EQ(pg->new_group({0, 1}), nullptr);
  EXPECT_EQ(of_rank_0->rank(), 0);
  EXPECT_THAT([&] { pg->set_rank(4); }, ThrowsDistError(ErrorKind::kInvalidArgument,
                                                        HasSubstr("set_rank: rank is 4, want 0 <= rank < size = 4")));
}

TEST(FakeWorldTest, MakesMeshesFromOwnCoordinates) {
  // A list of ranks of any of these groups would take gigabytes.
  auto pg = make_fake_process_group({.rank = 1'034'567'890, .world_size = int64_t{1 << 10} * (1 << 20)});
  const DeviceMesh mesh = init_device_mesh(pg, {1 << 10, 1 << 20}, {"dp", "tp"});
  EXPECT_EQ(mesh.get_group("tp")->size(), 1 << 20);
  EXPECT_EQ(mesh.get_group("dp")->size(), 1 << 10);
  const int tp = 1'034'567'890 % (1 << 20);
  const int dp = 1'034'567'890 / (1 << 20);
  EXPECT_THAT(mesh.get_coordinate(), ElementsAre(dp, tp));
  EXPECT_EQ(mesh.get_group("tp")->rank(), tp);
  EXPECT_EQ(mesh.get_group("dp")->rank(), dp);
  EXPECT_EQ(mesh.get_group("tp")->global_rank(3), dp * (1 << 20) + 3);
  EXPECT_EQ(mesh.get_group("dp")->global_rank(3), tp + 3 * (1 << 20));
  EXPECT_EQ(mesh.get_group("dp")->global_rank(), 1'034'567'890);
  EXPECT_EQ(mesh.get_group("tp")->group()->group_rank(dp * (1 << 20) - 1), -1);
  EXPECT_EQ(mesh.get_group("tp")->group()->group_rank(dp * (1 << 20) - 2), -1);
  EXPECT_EQ(mesh.get_group("tp")->group()->group_rank((dp + 1) * (1 << 20)), -1);
  EXPECT_EQ(mesh.get_group("dp")->group()->group_rank(tp + 1), -1);
  // Groups of groups.
  const DeviceMesh part = init_device_mesh(mesh.get_group("dp"), {2, 1 << 9}, {"replicate", "shard"});
  EXPECT_EQ(part.get_group("replicate")->global_rank(1) - part.get_group("replicate")->global_rank(0),
            (1 << 9) * (1 << 20));
  EXPECT_EQ(pg->split_group(0)->size(), 1 << 30);
  EXPECT_THAT(
      [&] {
        (void)init_device_mesh(pg, {1 << 10, 1 << 10});
      },
      ThrowsDistError(ErrorKind::kInvalidArgument,
                      HasSubstr("mesh [1024, 1024]: it has 1024 * 1024 = 1048576 ranks, want the group's 1073741824")));
}

// ---- inside a world

class FakeInWorldTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, FakeInWorldTest, every_world(), world_name);

TEST_P(FakeInWorldTest, TakesItsRankFromTheWorld) {
  run(3, [](RankContext& rank) {
    for (int round = 0; round < 2; ++round) {
      auto pg = init_process_group(rank, {.backend = GroupOptions::Backend::kFake,
                                          .fake = FakeOptions{.outputs = FakeOptions::Outputs::kUniformRanks}});
      EXPECT_EQ(pg->backend_name(), "fake");
      EXPECT_EQ(pg->rank(), rank.rank());
      std::vector<int32_t> x = {rank.rank()};
      pg->all_reduce(x).wait();
      EXPECT_THAT(x, ElementsAre(3 * rank.rank()));
      EXPECT_THAT([&] { std::static_pointer_cast<FakeProcessGroup>(pg)->set_rank(0); },
                  ThrowsDistError(ErrorKind::kInvalidArgument,
                                  HasSubstr(absl::StrCat("group ", round, " is that of rank ", rank.rank()))));
      destroy_process_group(pg);
    }
  });
}

// The same calls to both groups: the fake one refuses what the real one does, in the same words.
TEST_P(FakeInWorldTest, AnAbortIsThatOfOneMember) {
  std::array<std::shared_ptr<ProcessGroup>, 2> handles;
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank, {.backend = GroupOptions::Backend::kFake});
    handles.at(static_cast<size_t>(rank.rank())) = pg;
    if (rank.rank() == 1) rank.store().set("made", "");
    rank.store().wait({"made"});
    std::vector<float> x = {1};
    if (rank.rank() == 0) {
      EXPECT_THAT([&] { handles[1]->abort(); },
                  ThrowsDistError(ErrorKind::kInvalidArgument,
                                  HasSubstr("rank 1, group 0, abort: the handle of rank 1 was used by rank 0")));
      pg->abort("no more");
      EXPECT_THAT([&] { (void)pg->all_reduce(x); },
                  ThrowsDistError(ErrorKind::kAborted, HasSubstr("rank 0 aborted group 0: no more")));
    }
    if (rank.rank() == 0) rank.store().set("aborted", "");
    rank.store().wait({"aborted"});
    if (rank.rank() == 1) pg->all_reduce(x).wait();
  });
}

TEST_P(FakeInWorldTest, JudgesCallsAsTheThreadedGroupDoes) {
  static constexpr int kPlans = 400;
  std::array<int, kFaultCount> refused_by_fault{};
  int taken = 0;
  for (const int size : {1, 2, 3, 5}) {
    run(size, [&](RankContext& rank) {
      for (int i = 0; i < kPlans / 4; ++i) {
        const CallPlan plan = random_plan(static_cast<uint64_t>(i * 8 + size), size, /*faulty=*/true);
        // The answer to each member.
        std::vector<std::string> fake(static_cast<size_t>(size));
        std::vector<Work> works;
        bool all_taken = true;
        for (int member = 0; member < size; ++member) {
          auto pg = make_fake_process_group({.rank = member, .world_size = size});
          std::string& text = fake[static_cast<size_t>(member)];
          text = PlannedCall(plan, member, size).verdict(*pg, works);
          all_taken &= text.empty();
        }
        const std::string& mine = fake[static_cast<size_t>(rank.rank())];
        auto pg = init_process_group(rank, {.name = "0"});
        works.clear();
        if (!mine.empty()) {
          EXPECT_EQ(PlannedCall(plan, rank.rank(), size).verdict(*pg, works), mine) << plan.text();
        } else if (all_taken) {
          PlannedCall call(plan, rank.rank(), size);
          try {
            call.issue(*pg).wait();
          } catch (const DistError& error) {
            // Each call is right by itself: that they differ is what only peers can tell.
            EXPECT_NE(plan.fault, CallFault::kNone) << error.what();
            EXPECT_EQ(error.kind(), ErrorKind::kMismatch) << plan.text() << ": " << error.what();
          }
        }
        if (rank.rank() == 0) {
          taken += all_taken ? 1 : 0;
          refused_by_fault[static_cast<size_t>(plan.fault)] += all_taken ? 0 : 1;
        }
      }
    });
  }
  EXPECT_EQ(refused_by_fault[0], 0);
  for (int fault = 1; fault < kFaultCount; ++fault) EXPECT_GT(refused_by_fault[static_cast<size_t>(fault)], 0) << fault;
  EXPECT_GT(taken, kPlans / 8);
}

// A stream's thread makes calls beside the rank: none is lost.
TEST(FakeStreamTest, CallsOnAStreamAndBesideItAreRecorded) {
  constexpr int kCalls = 500;
  const auto record = std::make_shared<CallRecord>();
  run_world({.world_size = 1, .engine = EngineKind::kThreads}, [&](RankContext& rank) {
    auto pg =
        init_process_group(rank, {.backend = GroupOptions::Backend::kFake, .fake = FakeOptions{.record = record}});
    SimStream stream(rank);
    std::vector<float> x(2), y(3);
    for (int i = 0; i < kCalls; ++i) {
      Work queued = pg->all_reduce(x, ReduceOp::kSum, {.stream = &stream});
      pg->broadcast(y, 0).wait();
      record->compute(absl::Microseconds(1));
    }
    stream.synchronize();
  }).throw_if_failed();
  EXPECT_EQ(record->calls(), 2 * kCalls);
  EXPECT_EQ(record->calls(OpType::kAllReduce), kCalls);
  EXPECT_EQ(record->size(), 3u * kCalls);
}

}  // namespace
}  // namespace rankloom

// A world keeps nothing of groups that all members have left but what its records name.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rankloom/matchers.h"
#include "rankloom/rankloom.h"
#include "tests/world/every_world.h"
#include "world/world_state.h"

namespace {
std::atomic<int64_t> live_bytes{0};
}  // namespace

// mallinfo2() knows one arena only, and threads have their own.
void* operator new(size_t size) {
  void* const memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  live_bytes.fetch_add(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  return memory;
}
void* operator new(size_t size, const std::nothrow_t&) noexcept { return operator new(size); }  // of std::stable_sort()
void operator delete(void* memory) noexcept {
  live_bytes.fetch_sub(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace rankloom {

using namespace internal;

namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

class KeptMemoryTest : public EveryWorldTest {
 protected:
  // Runs `round` that often on two ranks; expects that what lives afterwards does not grow with it.
  void expect_bounded(std::function<void(RankContext&, ProcessGroup&, int)> round) {
    const int rounds = GetParam().engine == EngineKind::kFibers ? 20'000 : 2'000;  // threads take their time
    constexpr int kWarm = 300;                                                     // until the records are full
    WorldOptions world_options = options(2);
    world_options.trace_limit = 0;
    World world(world_options);
    std::atomic<int64_t> before{0};
    std::atomic<int64_t> after{0};
    const RunReport report = world.run([&](RankContext& rank) {
      auto pg = init_process_group(rank);
      for (int i = 0; i < rounds; ++i) {
        if (i % 16 == 0) pg->barrier().wait();  // fake groups hold nobody up
        if (i == kWarm) {
          pg->barrier().wait();
          if (rank.rank() == 0) before = live_bytes.load();
          pg->barrier().wait();
        }
        round(rank, *pg, i);
      }
      pg->barrier().wait();
      if (rank.rank() == 0) after = live_bytes.load();
      pg->barrier().wait();
    });
    ASSERT_TRUE(report.ok()) << report.text();
    const int64_t grown = after - before;
    EXPECT_LT(grown, 64 * 1024) << static_cast<double>(grown) / (rounds - kWarm) << " bytes a round";
    EXPECT_THAT(world.groups(), SizeIs(1));
    EXPECT_EQ(world.groups()[0], state_of(world).world_group());
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, KeptMemoryTest, every_world(), world_name);

TEST_P(KeptMemoryTest, NewGroupsThatAreDestroyedLeaveNothing) {
  expect_bounded([](RankContext& rank, ProcessGroup& pg, int i) {
    auto group = pg.new_group();
    std::vector<int32_t> x = {rank.rank() + i};
    group->all_reduce(x).wait();
    EXPECT_EQ(x[0], 2 * i + 1);
    destroy_process_group(group);
  });
}

TEST_P(KeptMemoryTest, GroupsWithMessagesAndChildrenLeaveNothing) {
  expect_bounded([](RankContext& rank, ProcessGroup& pg, int i) {
    auto group = pg.split_group(0, -rank.rank(), {.name = "split"});
    auto child = group->new_group();
    std::vector<int32_t> x = {i};
    (rank.rank() == 0 ? child->send(x, 0) : child->recv(x, 1)).wait();
    destroy_process_group(group);
    if (i % 2 == 0) destroy_process_group(child);  // for the second time: its parent did so
  });
}

TEST_P(KeptMemoryTest, GroupsOfAllRanksLeaveNothing) {
  expect_bounded([](RankContext& rank, ProcessGroup&, int) {
    auto group = init_process_group(rank);
    group->barrier().wait();
    destroy_process_group(group);
  });
}

TEST_P(KeptMemoryTest, FakeGroupsLeaveNothing) {
  expect_bounded([](RankContext& rank, ProcessGroup&, int i) {
    auto group = init_process_group(rank, {.backend = GroupOptions::Backend::kFake});
    std::vector<float> x = {1};
    auto some = group->new_group({0, 1}, {.name = "some"});
    some->all_reduce(x).wait();
    auto half = group->split_group(i % 3 == 0 ? 0 : rank.rank(), 0);
    half->all_reduce(x).wait();
    auto one = group->new_group({1});
    EXPECT_EQ(one == nullptr, rank.rank() == 0);
    destroy_process_group(one);
    destroy_process_group(group);
  });
}

// A rank that has left calls other groups until its records are full of those.
class LeftGroupTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, LeftGroupTest, every_world(), world_name);

TEST_P(LeftGroupTest, IsNamedAsLongAsARecordNamesIt) {
  WorldOptions world_options = options(2);
  world_options.recorded_calls = 4;
  World world(world_options);
  std::weak_ptr<const Group> left;
  const RunReport report = world.run([&](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto group = pg->new_group(GroupOptions{.name = "gone", .description = "for a while"});
    group->barrier().wait();
    destroy_process_group(group);
    if (rank.rank() == 0) left = group->group();
    group.reset();
    for (int i = 0; i < 4; ++i) {
      pg->barrier().wait();
      const std::vector<std::string> calls = state_of(rank).recorder().last_calls(4);
      const std::string dump =
          traces::flight_records(rank.world(), rank.rank(), {.format = traces::FlightDumpOptions::Format::kJson});
      if (i < 3) {
        EXPECT_THAT(calls, Contains(HasSubstr("barrier seq 1 (completed) [group gone, kept_memory_test.cc:")));
        EXPECT_THAT(dump,
                    AllOf(HasSubstr("\"gone\": {\"name\": \"gone\", \"desc\": \"for a while\", \"ranks\": \"[0, 1]\"}"),
                          HasSubstr("\"process_group\": [\"gone\", \"for a while\"]")));
      } else {
        EXPECT_THAT(calls, Not(Contains(HasSubstr("gone"))));
        EXPECT_THAT(dump, Not(HasSubstr("gone")));
      }
    }
    pg->barrier().wait();
    EXPECT_TRUE(left.expired());
    EXPECT_THAT(rank.world().groups(), SizeIs(1));
    // Numbers are not given twice.
    auto next = pg->new_group();
    EXPECT_EQ(next->group()->id(), 2);
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

// The message holds its group's mailbox, and the mailbox the message.
TEST_P(LeftGroupTest, TakesAMessageAlongThatNobodyReceived) {
  std::weak_ptr<const Group> left;
  const RunReport report = run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto group = pg->new_group(GroupOptions{.name = "letters", .eager_bytes = 64});
    std::vector<int32_t> x = {7};
    if (rank.rank() == 1) group->send(x, 0, 3).wait();
    destroy_process_group(group);
    if (rank.rank() == 1) left = group->group();
  });
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("rank 1, group letters, send to rank 0, tag 3: was never received")));
  EXPECT_TRUE(left.expired());
}

TEST_P(LeftGroupTest, StaysUntilItsLastMemberHasLeft) {
  WorldOptions world_options = options(3);
  World world(world_options);
  const RunReport report = world.run([&](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto group = pg->new_group({1, 2});
    if (rank.rank() == 1) {
      destroy_process_group(group);
      rank.store().set("1 left", "");
      EXPECT_THAT([&] { (void)group->barrier(); },
                  ThrowsDistError(ErrorKind::kAborted, HasSubstr("rank 1, group 0.1, barrier seq 1: the group was shut "
                                                                 "down, want no call after shutdown()")));
    }
    if (rank.rank() == 2) {
      rank.store().wait({"1 left"});
      EXPECT_THAT(rank.world().groups(), SizeIs(2));
      destroy_process_group(group);
      EXPECT_THAT(rank.world().groups(), SizeIs(1));
    }
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

TEST_P(LeftGroupTest, StaysIfItsHandlesWereDroppedOnly) {
  World world(options(2));
  const RunReport report = world.run([](RankContext& rank) {
    auto pg = init_process_group(rank);
    (void)pg->new_group(GroupOptions{.name = "idle"});
  });
  EXPECT_TRUE(report.ok()) << report.text();
  ASSERT_THAT(world.groups(), SizeIs(2));
  EXPECT_EQ(world.groups()[1]->name(), "idle");
}

TEST_P(LeftGroupTest, IsLeftEvenIfItsCallsFail) {
  World world(options(2));
  const RunReport report = world.run([](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto group = pg->new_group();
    std::vector<float> x = {1};
    if (rank.rank() == 0) {
      Work work = group->all_reduce(x, ReduceOp::kSum, {.timeout = absl::Milliseconds(5)});
      EXPECT_THAT([&] { destroy_process_group(group); },
                  ThrowsDistError(ErrorKind::kTimeout, HasSubstr("rank 0, group 0.1, all_reduce seq 1: ")));
    } else {
      destroy_process_group(group);
    }
    pg->barrier().wait();
    EXPECT_THAT(rank.world().groups(), SizeIs(1));
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

// A rank with two handles on one group leaves it once, and its records outlive both.
TEST_P(LeftGroupTest, IsLeftOnceByARankThatWrapsIt) {
  class Wrapper final : public ProcessGroup {
   public:
    Wrapper(RankContext* rank, std::shared_ptr<ProcessGroup> inner)
        : ProcessGroup(*rank, inner->group()), inner_(std::move(inner)) {}
    std::string backend_name() const override { return "wrapper"; }
    absl::StatusOr<Work> execute(CollectiveCall&& call) override { return inner_->execute(std::move(call)); }
    void leave() override { inner_->leave(); }

   private:
    const std::shared_ptr<ProcessGroup> inner_;
  };
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto inner = pg->new_group();
    auto wrapper = std::make_shared<Wrapper>(&rank, inner);
    wrapper->barrier().wait();
    if (rank.rank() == 0) destroy_process_group(wrapper);
    // The other handle may still be used.
    std::vector<float> x = {static_cast<float>(rank.rank())};
    (rank.rank() == 0 ? inner->send(x, 1) : inner->recv(x, 0)).wait();
    if (rank.rank() == 0) destroy_process_group(inner);
    pg->barrier().wait();
    EXPECT_THAT(rank.world().groups(), SizeIs(2));
    pg->barrier().wait();
    if (rank.rank() == 1) {
      destroy_process_group(wrapper);
      EXPECT_THAT(rank.world().groups(), SizeIs(1));
    }
    wrapper.reset();
    inner.reset();
    EXPECT_THAT(state_of(rank).recorder().last_calls(4), Contains(HasSubstr("seq 1 (completed) [group 0.1, ")));
  });
}

// A handle of the program's own with a Group that no world has: its records must not name memory that is gone.
TEST_P(LeftGroupTest, OfAUsersOwnIsNamedAfterItsHandleWent) {
  class Own final : public ProcessGroup {
   public:
    Own(RankContext* rank, std::shared_ptr<const Group> group) : ProcessGroup(*rank, std::move(group)) {}
    std::string backend_name() const override { return "own"; }
    absl::StatusOr<Work> execute(CollectiveCall&&) override { return Work(); }
  };
  run(2, [](RankContext& rank) {
    {
      Own own(&rank, std::make_shared<const Group>(0, absl::StrCat("own of ", rank.rank()), 2));
      own.barrier().wait();
    }
    EXPECT_THAT(state_of(rank).recorder().last_calls(1),
                ElementsAre(HasSubstr(absl::StrCat("barrier seq 1 (completed) [group own of ", rank.rank(), ", "))));
  });
}

}  // namespace
}  // namespace rankloom

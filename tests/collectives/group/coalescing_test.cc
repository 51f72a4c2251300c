#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/error.h"
#include "rankloom/fake.h"
#include "rankloom/matchers.h"
#include "rankloom/process_group.h"
#include "rankloom/stream.h"
#include "rankloom/sync.h"
#include "rankloom/world.h"
#include "tests/error_of.h"
#include "tests/world/every_world.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class CoalescingTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, CoalescingTest, every_world(), world_name);

TEST_P(CoalescingTest, IssuesCollectivesAsOne) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> a = {rank.rank(), 1};
    std::vector<int64_t> b = {rank.rank() == 1 ? 7 : 0};
    std::vector<int32_t> all(3);
    const std::vector<int32_t> mine = {10 * rank.rank()};
    pg->start_coalescing();
    Work reduced = pg->all_reduce(a);
    Work sent = pg->broadcast(b, 1);
    Work gathered = pg->all_gather_into_tensor(all, mine);
    EXPECT_FALSE(reduced.is_completed());
    Work work = pg->end_coalescing();
    EXPECT_EQ(pg->sequence_number(), 1);
    work.wait();
    EXPECT_THAT(a, ElementsAre(3, 3));
    EXPECT_THAT(b, ElementsAre(7));
    EXPECT_THAT(all, ElementsAre(0, 10, 20));
    EXPECT_TRUE(reduced.is_success());
    EXPECT_TRUE(gathered.is_success());
    sent.wait();
    EXPECT_EQ(work.result().size(), 3U);
    EXPECT_EQ(sent.result()[0].data(), b.data());
  });
}

TEST_P(CoalescingTest, TheResultOfABlockHasWhatItsMessagesWrote) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> x = {rank.rank()};
    pg->start_coalescing();
    rank.rank() == 1 ? (void)pg->send(x, 0) : (void)pg->recv(x, 1);
    Work work = pg->end_coalescing();
    const std::vector<TensorView> written = work.result();
    if (rank.rank() == 1) return;
    ASSERT_EQ(written.size(), 1U);
    EXPECT_EQ(written[0].data(), x.data());
  });
}

// Parts run beside each other on a device: what one writes is no other's.
TEST_P(CoalescingTest, RefusesPartsThatWriteToOneBuffer) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> x = {rank.rank() + 1, 7};
    pg->start_coalescing();
    (void)pg->all_reduce(x);
    (void)pg->all_reduce(std::span(x).subspan(1), ReduceOp::kProduct);
    EXPECT_THAT([&] { pg->end_coalescing().wait(); },
                ThrowsDistError(ErrorKind::kInvalidArgument,
                                AllOf(HasSubstr("coalesced seq 1: the output of all_reduce [coalescing_test.cc:"),
                                      HasSubstr("] overlaps that of all_reduce [coalescing_test.cc:"),
                                      HasSubstr("], a call of the same coalesced call, want outputs of their own"))));
    EXPECT_THAT(x, ElementsAre(rank.rank() + 1, 7));
    // The refused call took no number.
    pg->all_reduce(x).wait();
    EXPECT_THAT(x, ElementsAre(3, 14));
    EXPECT_EQ(pg->sequence_number(), 1);
  });
}

TEST_P(CoalescingTest, MatchesSendsAndRecvsOneByOne) {
  run(4, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const int me = rank.rank();
    // Everybody with everybody: not one of them could be waited for in this order.
    std::vector<std::array<int32_t, 1>> mine(4);
    std::vector<std::array<int32_t, 1>> got(4);
    pg->start_coalescing();
    for (int peer = 0; peer < 4; ++peer) {
      if (peer == me) continue;
      mine[static_cast<size_t>(peer)] = {10 * me + peer};
      (void)pg->send(mine[static_cast<size_t>(peer)], peer);
    }
    for (int peer = 0; peer < 4; ++peer) {
      if (peer != me) (void)pg->recv(got[static_cast<size_t>(peer)], peer);
    }
    pg->end_coalescing().wait();
    for (int peer = 0; peer < 4; ++peer) {
      if (peer != me) {
        EXPECT_EQ(got[static_cast<size_t>(peer)][0], 10 * peer + me);
      }
    }
    EXPECT_EQ(pg->sequence_number(), 0);
    pg->barrier().wait();
  });
}

TEST_P(CoalescingTest, MatchesASendInItWithARecvOutsideOfIt) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> x = {rank.rank(), rank.rank() + 5};
    std::vector<int32_t> sum = {rank.rank()};
    if (rank.rank() == 0) {
      pg->start_coalescing();
      (void)pg->send(x, 1);
      (void)pg->all_reduce(sum);
      (void)pg->send(x, 2);
      pg->end_coalescing().wait();
    } else {
      pg->start_coalescing();
      (void)pg->all_reduce(sum);
      Work work = pg->end_coalescing();
      pg->recv(x, 0).wait();
      work.wait();
      EXPECT_THAT(x, ElementsAre(0, 5));
    }
    EXPECT_THAT(sum, ElementsAre(3));
  });
}

TEST_P(CoalescingTest, IsNothingWithoutCalls) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) {
      pg->start_coalescing();
      EXPECT_TRUE(pg->end_coalescing().is_success());
    }
    EXPECT_EQ(pg->sequence_number(), 0);
    pg->barrier().wait();
  });
}

TEST_P(CoalescingTest, TellsOfDifferentCalls) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> x = {1, 2};
    std::vector<int32_t> y = {1, 2, 3};
    std::vector<int32_t> z = {1, 2};
    pg->start_coalescing();
    Work first = pg->all_reduce(x);
    Work second = pg->all_reduce(rank.rank() == 0 ? z : y);
    Work work = pg->end_coalescing();
    EXPECT_THAT([&] { second.wait(); }, ThrowsDistError(ErrorKind::kMismatch));
    EXPECT_THAT(x, ElementsAre(1, 2));
    work.wait();
  });
  EXPECT_THAT(report.text(), StartsWith("ranks 0-1 failed: Mismatch: group 0, seq 1: members issued different calls\n"
                                        "  field        | value | ranks | call site\n"
                                        "  call 1 shape | [2]   | 0     | coalescing_test.cc:"));
}

TEST_P(CoalescingTest, TellsOfDifferentNumbersOfCalls) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> x = {1, 2};
    std::vector<int32_t> y = {1, 2};
    pg->start_coalescing();
    (void)pg->all_reduce(x);
    if (rank.rank() == 0) (void)pg->broadcast(y, 0);
    pg->end_coalescing().wait();
  });
  EXPECT_THAT(report.text(), HasSubstr("\n  calls | all_reduce, broadcast | 0     | coalescing_test.cc:"));
}

TEST_P(CoalescingTest, NamesWhomItWaitsFor) {
  const RunReport report = run_to_failure(4, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> x = {1, 2};
    if (rank.rank() == 3) return;
    pg->start_coalescing();
    if (rank.rank() != 2) (void)pg->all_reduce(x);
    if (rank.rank() == 2) (void)pg->recv(x, 3);
    pg->end_coalescing().wait();
  });
  EXPECT_THAT(
      report.text(),
      AllOf(
          HasSubstr("ranks 0-1 wait in coalesced seq 1 for rank 2 and rank 3 (returned) [group 0, coalescing_test.cc:"),
          HasSubstr("rank 2 waits in coalesced for rank 3 (returned) [group 0, coalescing_test.cc:")));
}

TEST_P(CoalescingTest, TellsOfCallsThatWereNeverIssued) {
  const RunReport report = run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> x = {1, 2};
    pg->start_coalescing();
    if (rank.rank() == 1) return pg->end_coalescing().wait();  // nothing was called, and nothing is missing
    Work reduced = pg->all_reduce(x);
    Work sent = pg->send(x, 1);
    destroy_process_group(pg);
    for (Work* work : {&reduced, &sent}) {
      EXPECT_THAT([&] { work->wait(); },
                  ThrowsDistError(ErrorKind::kInvalidArgument,
                                  testing::StartsWith("InvalidArgument: rank 0, group 0: start_coalescing() without "
                                                      "end_coalescing(): never issued: all_reduce, send "
                                                      "[coalescing_test.cc:")));
    }
  });
  EXPECT_THAT(report.notes, testing::ElementsAre(testing::ContainsRegex(
                                "^rank 0, group 0: start_coalescing\\(\\) without end_coalescing\\(\\): never issued: "
                                "all_reduce, send \\[coalescing_test.cc:[0-9]+\\]$")));
}

TEST_P(CoalescingTest, RefusesWaitAnyBeforeItsEnd) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> x = {rank.rank(), 2};
    pg->start_coalescing();
    std::vector<Work> works = {pg->all_reduce(x)};
    EXPECT_THAT([&] { wait_any(works); },
                ThrowsDistError(ErrorKind::kInvalidArgument,
                                HasSubstr(absl::StrCat("rank ", rank.rank(),
                                                       ", group 0, all_reduce: wait() before "
                                                       "end_coalescing(): the call was not issued yet"))));
    pg->end_coalescing().wait();
    EXPECT_EQ(wait_any(works), 0U);
    EXPECT_THAT(x, ElementsAre(1, 4));
  });
}

// A user's own group throws: the parts end with the whole.
TEST_P(CoalescingTest, PartsEndWithAGroupThatThrows) {
  class Thrower final : public ProcessGroup {
   public:
    explicit Thrower(RankContext& rank, const std::shared_ptr<const Group>& group) : ProcessGroup(rank, group) {}
    absl::StatusOr<Work> execute(CollectiveCall&&) override { throw std::runtime_error("link down"); }
  };
  run_world(options(1), [](RankContext& rank) {
    const auto pg = init_process_group(rank, {.make = [](RankContext& of, const std::shared_ptr<const Group>& group) {
                                         return std::make_shared<Thrower>(of, group);
                                       }});
    std::vector<int32_t> x = {1};
    pg->start_coalescing();
    Work part = pg->all_reduce(x);
    std::string told;
    Latch called(1);
    part.then([&](const absl::Status& end) {
      told = std::string(end.message());
      called.count_down();
    });
    SimStream stream(rank);
    part.block_current_stream(stream);
    EXPECT_THROW((void)pg->end_coalescing(), std::runtime_error);
    EXPECT_THAT(error_of([&] { part.wait(); }), HasSubstr("coalesced threw: link down"));
    EXPECT_THAT(error_of([&] { stream.synchronize(); }), HasSubstr("coalesced threw: link down"));
    called.wait();
    EXPECT_THAT(told, HasSubstr("coalesced threw: link down"));
  }).throw_if_failed();
}

// A user's own group outlives the world, and the callback that it then runs throws.
TEST_P(CoalescingTest, ACallbackThatThrowsAfterTheWorldsEndIsNobodys) {
  std::shared_ptr<ProcessGroup> kept;
  int called = 0;
  std::vector<int32_t> x = {1, 2};
  run_world(options(1), [&](RankContext& rank) {
    kept = init_process_group(rank);
    kept->start_coalescing();
    kept->all_reduce(x).then([&called](const absl::Status&) {
      ++called;
      throw std::runtime_error("planned");
    });
  });
  kept = nullptr;
  EXPECT_EQ(called, 1);
}

TEST_P(CoalescingTest, TellsOfCallsWhoseHandleWent) {
  const RunReport report = run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> x = {1, 2};
    if (rank.rank() == 0) return;
    pg->start_coalescing();
    (void)pg->broadcast(x, 0);
  });
  EXPECT_THAT(report.notes,
              testing::ElementsAre(
                  HasSubstr("rank 1, group 0: start_coalescing() without end_coalescing(): never issued: broadcast")));
}

// The handle outlives the run, so that nobody drops what it gathered before the report is made.
TEST_P(CoalescingTest, TellsOfCallsWhoseHandleOutlivesTheRun) {
  std::vector<std::shared_ptr<ProcessGroup>> kept(3);
  std::vector<int32_t> x = {1, 2};
  std::vector<int64_t> y = {3};
  std::vector<Work> works(2);
  const RunReport report = run(3, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    kept[static_cast<size_t>(rank.rank())] = pg;
    pg->start_coalescing();
    if (rank.rank() == 0) return;  // nothing was called
    if (rank.rank() == 1) {
      works[0] = pg->broadcast(x, 1);
      return;
    }
    (void)pg->end_coalescing();  // of no calls
    pg->start_coalescing();
    works[1] = pg->send(y, 0);
    (void)pg->barrier();
  });
  EXPECT_THAT(report.notes,
              testing::UnorderedElementsAre(
                  testing::ContainsRegex("^rank 1, group 0: start_coalescing\\(\\) without end_coalescing\\(\\): never "
                                         "issued: broadcast \\[coalescing_test.cc:[0-9]+\\]$"),
                  testing::ContainsRegex("^rank 2, group 0: start_coalescing\\(\\) without end_coalescing\\(\\): never "
                                         "issued: send, barrier \\[coalescing_test.cc:[0-9]+\\]$")));
  for (Work& work : works) {
    EXPECT_THAT([&] { work.wait(); },
                ThrowsDistError(ErrorKind::kInvalidArgument, HasSubstr("without end_coalescing(): never issued: ")));
  }
  for (const std::shared_ptr<ProcessGroup>& pg : kept) {
    EXPECT_THAT([&] { (void)pg->end_coalescing(); },
                ThrowsDistError(ErrorKind::kAborted, HasSubstr("the world has ended")));
  }
}

TEST_P(CoalescingTest, ARankThatFailsIsNotToldOfWhatItGathered) {
  std::shared_ptr<ProcessGroup> kept;
  const RunReport report = run_to_failure(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) return;
    kept = pg;
    std::vector<int32_t> x = {1, 2};
    pg->start_coalescing();
    (void)pg->all_reduce(x);
    throw std::runtime_error("planned");
  });
  EXPECT_THAT(report.notes, testing::IsEmpty());
}

TEST_P(CoalescingTest, TimesOutAsAWhole) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> x = {1, 2};
    std::vector<int32_t> y = {3, 4};
    if (rank.rank() != 0) return rank.store().wait({"late"});
    pg->start_coalescing();
    Work first = pg->all_reduce(x, ReduceOp::kSum, {.timeout = absl::Milliseconds(3)});
    Work second = pg->recv(y, 2, 0, {.timeout = absl::Milliseconds(5)});
    Work work = pg->end_coalescing();
    EXPECT_THAT([&] { work.wait(); },
                ThrowsDistError(ErrorKind::kTimeout,
                                HasSubstr("rank 0, group 0, coalesced seq 1: timed out after 3ms waiting for "
                                          "ranks 1-2 [group 0, coalescing_test.cc:")));
    EXPECT_THAT([&] { second.wait(); }, ThrowsDistError(ErrorKind::kTimeout));
    EXPECT_THAT(x, ElementsAre(1, 2));
    EXPECT_THAT(y, ElementsAre(3, 4));
    EXPECT_THAT([&] { pg->recv(y, 1).wait(); },
                ThrowsDistError(ErrorKind::kAborted,
                                HasSubstr("the group failed before: rank 0, group 0, coalesced seq 1: timed out")));
    EXPECT_THAT([&] { pg->barrier().wait(); }, ThrowsDistError(ErrorKind::kAborted));
    pg->start_coalescing();
    Work refused = pg->recv(y, 1);
    EXPECT_THAT(
        [&] { (void)pg->end_coalescing(); },
        ThrowsDistError(ErrorKind::kAborted,
                        ContainsRegex("recv from rank 1 \\[coalescing_test.cc:[0-9]+\\]: the group failed before")));
    EXPECT_THAT([&] { refused.wait(); }, ThrowsDistError(ErrorKind::kAborted));
    rank.store().set("late", "");
  });
}

TEST_P(CoalescingTest, NamesADroppedWork) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> x = {1, 2};
    const std::vector<int32_t> y = {3, 4};
    if (rank.rank() == 0) {
      pg->start_coalescing();
      (void)pg->all_reduce(x);
      (void)pg->send(y, 1);
      { Work dropped = pg->end_coalescing(); }
      rank.store().set("dropped", "");
    } else {
      rank.store().wait({"dropped"});
      pg->recv(x, 0).wait();
    }
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 0 failed: group 0, coalesced seq 1: the work was dropped unfinished, want "
                                       "wait() or keep_alive [group 0, coalescing_test.cc:"));
}

// The tensors of one call may go with the last handle.
TEST_P(CoalescingTest, NamesADroppedWorkThatOwnsSomeOfItsTensors) {
  std::weak_ptr<std::vector<int32_t>> held;
  const RunReport report = run_to_failure(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto x = std::make_shared<std::vector<int32_t>>(2, 1);
    std::vector<int32_t> y = {1};
    if (rank.rank() == 0) {
      held = x;
      pg->start_coalescing();
      (void)pg->all_reduce(*x, ReduceOp::kSum, {.keep_alive = x});
      x.reset();
      (void)pg->all_reduce(y);
      { Work dropped = pg->end_coalescing(); }
      rank.store().set("dropped", "");
    } else {
      rank.store().wait({"dropped"});
      pg->recv(y, 0).wait();
    }
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 0 failed: group 0, coalesced seq 1: the work was dropped unfinished, want "
                                       "wait() or keep_alive [group 0, coalescing_test.cc:"));
  EXPECT_TRUE(held.expired());
}

// An owner that is given at the end is that of all calls.
TEST_P(CoalescingTest, LeavesADroppedWorkAloneThatIsGivenAnOwnerAtItsEnd) {
  std::weak_ptr<std::vector<int32_t>> held[2];
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto x = std::make_shared<std::vector<int32_t>>(2, rank.rank() + 1);
    auto y = std::make_shared<std::vector<int32_t>>(1, rank.rank() + 5);
    held[rank.rank()] = y;
    pg->start_coalescing();
    (void)pg->all_reduce(*x, ReduceOp::kSum, {.keep_alive = x});
    (void)pg->all_reduce(*y);
    { Work dropped = pg->end_coalescing({.keep_alive = y}); }
    pg->barrier().wait();
    EXPECT_THAT(*x, ElementsAre(3, 3));
    EXPECT_THAT(*y, ElementsAre(11));
  });
  EXPECT_TRUE(held[0].expired());
  EXPECT_TRUE(held[1].expired());
}

TEST_P(CoalescingTest, LeavesADroppedWorkAloneThatOwnsItsTensors) {
  std::weak_ptr<std::vector<int32_t>> held[2];
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto x = std::make_shared<std::vector<int32_t>>(2, rank.rank() + 1);
    auto y = std::make_shared<std::vector<int32_t>>(2, rank.rank() + 1);
    held[rank.rank()] = y;
    std::shared_ptr<void> owner(y.get(), [y](void*) {});
    const std::weak_ptr<void> on_its_way = owner;
    pg->start_coalescing();
    (void)pg->all_reduce(*x, ReduceOp::kSum, {.keep_alive = x});
    const auto owned = [&] { return CallOptions{.keep_alive = std::move(owner)}; };
    (void)(rank.rank() == 0 ? pg->send(*y, 1, 0, owned()) : pg->recv(*y, 0, 0, owned()));
    { Work dropped = pg->end_coalescing(); }
    if (rank.rank() == 0) y.reset();
    pg->barrier().wait();
    EXPECT_THAT(*x, ElementsAre(3, 3));
    if (rank.rank() == 1) {
      // Over MPI a message may come after a later collective.
      while (!on_its_way.expired()) rank.sleep_for(absl::Milliseconds(1));
      EXPECT_THAT(*y, ElementsAre(1, 1));
    }
  });
  EXPECT_TRUE(held[0].expired());
  EXPECT_TRUE(held[1].expired());
}

TEST_P(CoalescingTest, TellsTheCallbackOfADroppedWorkThatOwnsItsTensors) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto x = std::make_shared<std::vector<int64_t>>(1, rank.rank() + 1);
    const std::string told = absl::StrCat("told ", rank.rank());
    {
      pg->start_coalescing();
      (void)pg->all_reduce(*x, ReduceOp::kSum, {.keep_alive = x});
      Work whole = pg->end_coalescing();
      whole.then([&rank, told, x](const absl::Status& end) {
        rank.store().set(told, absl::StrCat(end.ok() ? "sum " : end.ToString(), (*x)[0]));
      });
    }
    EXPECT_EQ(rank.store().get(told), "sum 6");
  });
}

TEST_P(CoalescingTest, TellsTheCallbackOfAPartWhoseHandleIsGone) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {rank.rank() + 1};
    std::vector<int64_t> y = {10 * rank.rank()};
    std::vector<int64_t> z = {rank.rank() + 4};
    const auto tells = [&rank](Work part, const std::string& what, const std::vector<int64_t>& sum) {
      part.then([&rank, what, &sum](const absl::Status& end) {
        rank.store().set(absl::StrCat(what, rank.rank()), absl::StrCat(end.ok() ? "sum " : end.ToString(), sum[0]));
      });
    };
    const auto told = [&rank](const std::string& what) { return rank.store().get(absl::StrCat(what, rank.rank())); };
    pg->start_coalescing();
    tells(pg->all_reduce(x), "before the call ", x);
    Work second = pg->all_reduce(y);
    Work third = pg->all_reduce(z);
    Work whole = pg->end_coalescing();
    tells(std::move(second), "after the call ", y);
    whole.wait();
    EXPECT_EQ(told("before the call "), "sum 6");
    EXPECT_EQ(told("after the call "), "sum 30");
    tells(std::move(third), "after the end ", z);
    EXPECT_EQ(told("after the end "), "sum 15");
  });
}

TEST_P(CoalescingTest, APartHoldsTheWholeAndItsCallbackDoesNot) {
  for (const bool before : {true, false}) {
    const RunReport report = run_to_failure(2, [before](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<int32_t> x = {1, 2};
      if (rank.rank() == 0) {
        pg->start_coalescing();
        Work part = pg->all_reduce(x);
        part.then([&rank](const absl::Status& end) { rank.store().set("told", end.ToString()); });
        if (before) part = Work();
        Work whole = pg->end_coalescing();
        whole = Work();
        part = Work();
        EXPECT_THAT(rank.store().get("told"),
                    StartsWith("ABORTED: rank 0, group 0, coalesced seq 1: the work was dropped unfinished"));
      } else {
        rank.store().wait({"told"});
        pg->recv(x, 0).wait();
      }
    });
    EXPECT_THAT(report.text(),
                HasSubstr("rank 0 failed: group 0, coalesced seq 1: the work was dropped unfinished, want "
                          "wait() or keep_alive [group 0, coalescing_test.cc:"));
  }
}

TEST_P(CoalescingTest, LetsGoOfTheTensorsOfADroppedWorkThatIsNeverDone) {
  std::weak_ptr<const void> owned;
  const RunReport report = run_to_failure(2, [&owned](RankContext& rank) {
    if (rank.rank() == 1) throw std::runtime_error("enough");
    auto pg = init_process_group(rank);
    auto x = std::make_shared<std::vector<int64_t>>(1, 7);
    owned = x;
    pg->start_coalescing();
    (void)pg->recv(*x, 1, 9, {.keep_alive = x});
    (void)pg->all_reduce(*x, ReduceOp::kSum, {.keep_alive = x});
    (void)pg->end_coalescing();
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 1 failed: enough"));
  EXPECT_TRUE(owned.expired());
}

// The first part may fail the group before the second is issued: that is the end of the whole, as where parts are done
// later, and no refusal of a call that was right.
TEST_P(CoalescingTest, APartThatFailsTheGroupAtOnceFailsTheWhole) {
  for (const bool late : {false, true}) {
    for (const size_t eager_bytes : {0, 8}) {
      WorldOptions world = options(2);
      if (deterministic() && std::string_view(backend()) == "threaded") world.late_completion = late;
      const RunReport report = run(world, [eager_bytes](RankContext& rank) {
        auto pg = init_process_group(rank, {.eager_bytes = eager_bytes});
        std::vector<float> x(static_cast<size_t>(rank.rank()) + 1), y(3), z(3);
        pg->start_coalescing();
        (void)pg->send(x, 1 - rank.rank());
        (void)pg->recv(y, 1 - rank.rank());
        (void)pg->recv(z, 1 - rank.rank());
        Work whole = pg->end_coalescing();
        EXPECT_THAT([&] { whole.wait(); },
                    ThrowsDistError(ErrorKind::kMismatch, HasSubstr("sender and receiver issued different calls")));
      });
      EXPECT_THAT(report.notes, testing::IsEmpty());
    }
  }
}

TEST_P(CoalescingTest, RefusesMisuse) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(2);
    const std::string who = "InvalidArgument: rank " + std::to_string(rank.rank()) + ", group 0, ";
    EXPECT_THAT([&] { (void)pg->end_coalescing(); },
                ThrowsDistError(ErrorKind::kInvalidArgument,
                                testing::StartsWith(
                                    who + "end_coalescing: want start_coalescing() before it [coalescing_test.cc:")));
    pg->start_coalescing(CodeSite{"some/train.cc", 12});
    EXPECT_THAT(
        [&] {
          pg->start_coalescing(CodeSite{"some/train.cc", 14});
        },
        ThrowsDistError(ErrorKind::kInvalidArgument,
                        testing::StrEq(who + "start_coalescing: it was called before [train.cc:12], want "
                                             "end_coalescing() between [train.cc:14]")));
    EXPECT_THAT(
        [&] { (void)pg->broadcast(x, 2); },
        ThrowsDistError(
            ErrorKind::kInvalidArgument,
            testing::StartsWith(who + "broadcast seq 1: root is 2, want 0 <= root < size = 2 [coalescing_test.cc:")));
    Work part = pg->all_reduce(x);
    EXPECT_THAT(
        [&] { part.wait(); },
        ThrowsDistError(
            ErrorKind::kInvalidArgument,
            testing::StartsWith(
                who + "all_reduce: wait() before end_coalescing(): the call was not issued yet [coalescing_test.cc:")));
    EXPECT_THAT([&] { pg->end_coalescing({.timeout = absl::Seconds(1)}).wait(absl::Seconds(-1)); },
                ThrowsDistError(
                    ErrorKind::kInvalidArgument,
                    testing::StartsWith("InvalidArgument: wait: timeout is -1s, want 0 or more [coalescing_test.cc:")));
    part.wait();
    pg->start_coalescing();
    (void)pg->all_reduce(TensorView::meta({2}, DType::kFloat32));
    EXPECT_THAT(
        [&] { (void)pg->end_coalescing(); },
        ThrowsDistError(
            ErrorKind::kInvalidArgument,
            testing::StartsWith(who + "coalesced seq 2: a tensor is float32[2] on meta, want memory of this process; "
                                      "tensors without data need a fake group [coalescing_test.cc:")));
  });
}

// Also where a fault by plan stands before the block's work; of a block on a stream nobody keeps it.
TEST_P(CoalescingTest, ARecvOfAWrappedBlockKnowsItsSource) {
  for (const bool on_stream : {false, true}) {
    WorldOptions options = this->options(2);
    if (!on_stream)
      options.faults = {{.kind = Fault::Kind::kDelay, .rank = 0, .op = "coalesced", .when = Fault::When::kAfter}};
    run(options, [on_stream](RankContext& rank) {
      auto pg = init_process_group(rank);
      SimStream stream(rank);
      std::vector<int32_t> x = {7 + rank.rank()}, got(1);
      pg->start_coalescing();
      Work work = rank.rank() == 0 ? pg->recv_any(got) : pg->send(x, 0);
      Work whole = on_stream ? pg->end_coalescing({.stream = &stream}) : pg->end_coalescing();
      if (on_stream) stream.synchronize();
      whole.wait();
      EXPECT_EQ(work.source(), rank.rank() == 0 && !on_stream ? 1 : -1);
    });
  }
}

TEST_P(CoalescingTest, ARecvOfABlockKnowsItsSource) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> x = {rank.rank()}, any(1), named(1), sum = {1};
    pg->start_coalescing();
    Work reduced = pg->all_reduce(sum);
    std::vector<Work> works;
    if (rank.rank() == 0) {
      works.push_back(pg->recv_any(any, /*tag=*/4));
      works.push_back(pg->recv(named, 2, /*tag=*/5));
    } else {
      works.push_back(pg->send(x, 0, rank.rank() == 1 ? 4 : 5));
    }
    EXPECT_EQ(works[0].source(), -1);
    pg->end_coalescing().wait();
    EXPECT_EQ(reduced.source(), -1);
    EXPECT_EQ(works[0].source(), rank.rank() == 0 ? 1 : -1);
    if (rank.rank() != 0) return;
    EXPECT_EQ(works[1].source(), 2);
    EXPECT_EQ(any[0], 1);
    EXPECT_EQ(named[0], 2);
  });
}

// A block is done a moment before the messages in it say so.
TEST_P(CoalescingTest, ARecvOfABlockKnowsItsSourceAtOnce) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> x = {1};
    int unknown = 0;
    for (int i = 0; i < 2000; ++i) {
      pg->start_coalescing();
      Work part = rank.rank() == 0 ? pg->recv_any(x) : pg->send(x, 0);
      Work whole = pg->end_coalescing();
      while (!whole.is_completed()) rank.yield();
      unknown += rank.rank() == 0 && part.source() != 1;
    }
    EXPECT_EQ(unknown, 0);
  });
}

// The shortest timeout of a call, wherever it stands in the block; but the end's own goes before all.
TEST_P(CoalescingTest, TheTimeoutIsTheShortestOrTheEnds) {
  for (const bool of_end : {false, true}) {
    run(2, [&](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<int32_t> x = {1, 2};
      std::vector<int32_t> y = {3, 4};
      if (rank.rank() != 0) return rank.store().wait({"late"});
      pg->start_coalescing();
      (void)pg->all_reduce(x, ReduceOp::kSum, {.timeout = absl::Milliseconds(5)});
      (void)pg->recv(y, 1, 0, {.timeout = absl::Milliseconds(3)});
      Work work = of_end ? pg->end_coalescing({.timeout = absl::Milliseconds(9)}) : pg->end_coalescing();
      EXPECT_THAT([&] { work.wait(); },
                  ThrowsDistError(ErrorKind::kTimeout, HasSubstr(of_end ? "timed out after 9ms waiting for rank 1"
                                                                        : "timed out after 3ms waiting for rank 1")));
      rank.store().set("late", "");
    });
  }
}

TEST_P(CoalescingTest, RecordsPartsAndTheWhole) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> x = {1, 2};
    std::vector<int32_t> z = {3};
    pg->start_coalescing();
    (void)pg->all_reduce(x);
    (void)pg->broadcast(z, 0);
    pg->end_coalescing().wait();
    pg->start_coalescing();
    std::vector<int32_t> y(2);
    (void)(rank.rank() == 0 ? pg->send(x, 1) : pg->recv(y, 0));
    (void)(rank.rank() == 0 ? pg->recv(y, 1) : pg->send(x, 0));
    pg->end_coalescing().wait();
    std::vector<std::string> lines;
    for (const FlightEntry& entry : state_of(rank).recorder().entries()) {
      lines.push_back(std::string(entry.op) + (entry.is_p2p ? " p2p " : " ") + std::to_string(entry.seq));
      EXPECT_EQ(entry.state, FlightEntry::State::kCompleted) << lines.back();
    }
    const std::string first = rank.rank() == 0 ? "send p2p 1" : "recv p2p 1";
    const std::string second = rank.rank() == 0 ? "recv p2p 1" : "send p2p 1";
    EXPECT_THAT(lines, ElementsAre("all_reduce 1", "broadcast 1", "coalesced 1", first, second, "coalesced p2p 1"));
  });
}

}  // namespace
}  // namespace rankloom

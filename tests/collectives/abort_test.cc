// What becomes of works that nobody waits in when the world is aborted, or when their rank unwinds.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "harness/matchers.h"
#include "rankloom/rankloom.h"
#include "tests/world/every_world.h"

namespace rankloom {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class AbortTest : public testing::TestWithParam<Schedule::Kind> {
 protected:
  static Schedule schedule() { return GetParam() == Schedule::Kind::kFree ? Schedule::free() : Schedule::seeded(3); }
};
INSTANTIATE_TEST_SUITE_P(Gears, AbortTest, testing::Values(Schedule::Kind::kFree, Schedule::Kind::kSeeded),
                         [](const auto& info) { return info.param == Schedule::Kind::kFree ? "free" : "seeded"; });

TEST_P(AbortTest, CompletesTheWorkThatOnlyACallbackWaitsFor) {
  absl::Status told;
  const RunReport report = run_world({.world_size = 2, .schedule = schedule()}, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) {
      rank.store().wait({"issued"});
      throw std::runtime_error("rank 1 gives up");
    }
    auto x = std::make_shared<std::vector<float>>(4, 1.0F);
    Work work = pg->all_reduce(*x, ReduceOp::kSum, {.keep_alive = x});
    work.then([&told](const absl::Status& status) { told = status; });
    rank.store().set("issued", "1");
  });
  EXPECT_FALSE(report.ok());
  EXPECT_THAT(std::string(told.message()), HasSubstr("rank 1 failed: rank 1 gives up"));
}

// A rank drops its work by an exception: the call can never be complete, whether or not the rank goes on.
class UnwoundWorkTest : public EveryWorldTest {
 protected:
  struct Mine : std::runtime_error {
    Mine() : std::runtime_error("mine") {}
  };

  // Issues an all_reduce, calls `then`, and leaves both by an exception of its own.
  template <typename Then>
  static void drop_all_reduce(ProcessGroup& pg, Then then) {
    std::vector<float> x = {1};
    const Work work = pg.all_reduce(x);
    then();
    throw Mine();
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, UnwoundWorkTest, every_world(), world_name);

constexpr const char* kNeverComplete =
    "group 0: rank 0 dropped its all_reduce seq 1 while an exception unwound, so the call can never be complete, want "
    "wait() or keep_alive, or the rank to end [group 0, abort_test.cc:";

TEST_P(UnwoundWorkTest, IsToldToThoseWhoCameBeforeAndAfter) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {static_cast<float>(rank.rank())};
    switch (rank.rank()) {
      case 0:
        EXPECT_THROW(drop_all_reduce(*pg,
                                     [&] {
                                       rank.store().set("0 came", "");
                                       rank.store().wait({"1 came"});
                                     }),
                     Mine);
        return rank.store().set("0 gone", "");
      case 1: {
        rank.store().wait({"0 came"});
        Work work = pg->all_reduce(x);
        rank.store().set("1 came", "");
        return work.wait();
      }
      default:
        rank.store().wait({"0 gone"});
        pg->all_reduce(x).wait();
    }
  });
  EXPECT_THAT(report.text(), HasSubstr(kNeverComplete));
  EXPECT_THAT(report.notes, Contains(HasSubstr(kNeverComplete)));
}

TEST_P(UnwoundWorkTest, IsToldToWhoComesWhenNobodyElseHad) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {static_cast<float>(rank.rank())};
    if (rank.rank() == 0) {
      EXPECT_THROW(drop_all_reduce(*pg, [] {}), Mine);
      return rank.store().set("0 gone", "");
    }
    rank.store().wait({"0 gone"});
    pg->all_reduce(x).wait();
  });
  EXPECT_THAT(report.text(), AllOf(HasSubstr("rank 1 failed: "), HasSubstr(kNeverComplete)));
}

TEST_P(UnwoundWorkTest, FailsTheNextCallOfARankThatGoesOn) {
  const RunReport report = run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {static_cast<float>(rank.rank())};
    if (rank.rank() == 2) return;
    if (rank.rank() == 0) {
      EXPECT_THROW(drop_all_reduce(*pg, [&] { rank.store().wait({"1 came"}); }), Mine);
      EXPECT_THAT([&] { pg->all_reduce(x).wait(); },
                  ThrowsDistError(ErrorKind::kAborted,
                                  AllOf(HasSubstr("rank 0, group 0, all_reduce seq 2: the group failed before: "),
                                        HasSubstr(kNeverComplete))));
      return;
    }
    Work work = pg->all_reduce(x);
    rank.store().set("1 came", "");
    EXPECT_THAT([&] { work.wait(); }, ThrowsDistError(ErrorKind::kRankFailed, HasSubstr(kNeverComplete)));
    EXPECT_EQ(x[0], 1);
  });
  EXPECT_THAT(report.notes, Contains(HasSubstr(kNeverComplete)));
}

TEST_P(UnwoundWorkTest, IsTheCauseOfADeadlockOfARankThatGoesOn) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {static_cast<float>(rank.rank())};
    if (rank.rank() == 2) return;
    if (rank.rank() == 0) {
      EXPECT_THROW(drop_all_reduce(*pg, [&] { rank.store().wait({"1 came"}); }), Mine);
      return rank.store().wait({"1 is through"});
    }
    Work work = pg->all_reduce(x);
    rank.store().set("1 came", "");
    work.wait();
    rank.store().set("1 is through", "");
  });
  EXPECT_THAT(report.text(), AllOf(HasSubstr(kNeverComplete), HasSubstr("rank 0 waits in store wait"),
                                   HasSubstr("rank 1 waits in all_reduce seq 1 for rank 0")));
}

TEST_P(UnwoundWorkTest, IsNoCauseOfItsOwnWhenTheRankEnds) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {static_cast<float>(rank.rank())};
    if (rank.rank() == 2) return;
    if (rank.rank() == 0) drop_all_reduce(*pg, [&] { rank.store().wait({"1 came"}); });
    Work work = pg->all_reduce(x);
    rank.store().set("1 came", "");
    work.wait();
  });
  EXPECT_THAT(report.text(), AllOf(HasSubstr("rank 0 failed: mine"), Not(HasSubstr("while an exception unwound"))));
  EXPECT_THAT(report.notes, IsEmpty());
}

TEST_P(UnwoundWorkTest, HarmsNobodyWhoDoesNotCall) {
  const RunReport report = run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto other = init_process_group(rank);
    std::vector<float> x = {static_cast<float>(rank.rank() + 1)};
    if (rank.rank() == 0) {
      EXPECT_THROW(drop_all_reduce(*pg, [] {}), Mine);
    }
    other->all_reduce(x).wait();
    EXPECT_EQ(x[0], 3);
  });
  EXPECT_THAT(report.notes, Contains(HasSubstr(kNeverComplete)));
}

TEST_P(UnwoundWorkTest, ComparesLaterCallsWithThoseThatAreStillThere) {
  const RunReport report = run_to_failure(4, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {static_cast<float>(rank.rank())};
    std::vector<double> y = {static_cast<double>(rank.rank())};
    switch (rank.rank()) {
      case 0:  // the first, and the only one with its dtype
        try {
          Work work = pg->all_reduce(y);
          rank.store().set("0 came", "");
          rank.store().wait({"1 came"});
          throw Mine();
        } catch (const Mine&) {
        }
        rank.store().set("0 gone", "");
        return rank.store().wait({"never"});
      case 1: {
        rank.store().wait({"0 came"});
        Work work = pg->all_reduce(x);
        rank.store().set("1 came", "");
        return work.wait();
      }
      default:
        rank.store().wait({"0 gone"});
        pg->all_reduce(x).wait();
    }
  });
  EXPECT_THAT(report.text(), AllOf(HasSubstr(kNeverComplete), Not(HasSubstr("different calls"))));
}

TEST_P(UnwoundWorkTest, LetsNoLaterMessageTakeItsPlace) {
  const RunReport report = run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {static_cast<float>(rank.rank())};
    const auto never = HasSubstr(
        "group 0: rank 0 dropped its send seq 1 to rank 1, tag 7 while an exception unwound, so the message can never "
        "arrive, want wait() or keep_alive, or the rank to end [group 0, abort_test.cc:");
    if (rank.rank() == 0) {
      try {
        const Work work = pg->send(x, 1, 7);
        throw Mine();
      } catch (const Mine&) {
      }
      x[0] = 17;
      EXPECT_THAT([&] { pg->send(x, 1, 7).wait(); }, ThrowsDistError(ErrorKind::kAborted, never));
      rank.store().set("0 sent", "");
    } else {
      rank.store().wait({"0 sent"});
      EXPECT_THAT([&] { pg->recv(x, 0, 7).wait(); }, ThrowsDistError(ErrorKind::kAborted, never));
      EXPECT_EQ(x[0], 1);
    }
  });
}

TEST_P(UnwoundWorkTest, FailsWhoWaitsForItsMessage) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {static_cast<float>(rank.rank())};
    if (rank.rank() == 0) {
      try {
        const Work work = pg->recv(x, 1, 3);
        throw Mine();
      } catch (const Mine&) {
      }
      return rank.store().set("0 gone", "");
    }
    rank.store().wait({"0 gone"});
    pg->send(x, 0, 3).wait();
  });
  EXPECT_THAT(report.text(),
              AllOf(HasSubstr("rank 1 failed: "),
                    HasSubstr("group 0: rank 0 dropped its recv seq 1 from rank 1, tag 3 while an exception unwound")));
}

TEST_P(UnwoundWorkTest, IsToldOfCoalescedCallsToo) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {static_cast<float>(rank.rank())};
    std::vector<float> y = {static_cast<float>(rank.rank() + 5)};
    const auto issue = [&] {
      pg->start_coalescing();
      (void)pg->all_reduce(x);
      (void)pg->all_reduce(y);
      return pg->end_coalescing();
    };
    if (rank.rank() == 0) {
      try {
        const Work work = issue();
        throw Mine();
      } catch (const Mine&) {
      }
      return rank.store().set("0 gone", "");
    }
    rank.store().wait({"0 gone"});
    issue().wait();
  });
  EXPECT_THAT(report.text(),
              AllOf(HasSubstr("rank 1 failed: "),
                    HasSubstr("group 0: rank 0 dropped its coalesced seq 1 while an exception unwound, so the call can "
                              "never be complete")));
}

TEST_P(UnwoundWorkTest, OfAHelperIsToldWhenTheHelperHasCaughtIt) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) {
      rank.world().spawn_helper([pg, &rank] {
        EXPECT_THROW(drop_all_reduce(*pg, [] {}), Mine);
        rank.store().set("0 gone", "");
      });
      return;
    }
    std::vector<float> x = {static_cast<float>(rank.rank())};
    rank.store().wait({"0 gone"});
    pg->all_reduce(x).wait();
  });
  EXPECT_THAT(report.text(), AllOf(HasSubstr("rank 1 failed: "), HasSubstr(kNeverComplete)));
}

TEST(Whereabouts, AreAppendedToADeadlock) {
  WorldOptions options{.world_size = 2};
  options.whereabouts = [] { return std::string("stack of rank 0: here"); };
  const RunReport report = run_world(std::move(options), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) pg->barrier().wait();
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 0 waits in barrier seq 1"));
  EXPECT_THAT(report.text(), HasSubstr("stack of rank 0: here"));
}

}  // namespace
}  // namespace rankloom

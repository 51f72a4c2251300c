// The end of works that nobody waits in when the world is aborted, or when their rank unwinds, and of handles that
// outlive their world.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "collectives/work/work_state.h"
#include "rankloom/matchers.h"
#include "rankloom/rankloom.h"
#include "rankloom/store.h"
#include "sim/scheduler/call_scope.h"
#include "sim/scheduler/scheduler.h"
#include "tests/error_of.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

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
  EXPECT_THAT(report.text(), AllOf(StartsWith("rank 0 failed: group 0"), HasSubstr(kNeverComplete),
                                   HasSubstr("\nrank 1 stopped for it")));
}

TEST_P(UnwoundWorkTest, FailsTheNextCallOfARankThatGoesOn) {
  const RunReport report = run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {static_cast<float>(rank.rank())};
    if (rank.rank() == 2) return;
    if (rank.rank() == 0) {
      EXPECT_THROW(drop_all_reduce(*pg, [&] { rank.store().wait({"1 came"}); }), Mine);
      EXPECT_THAT([&] { pg->all_reduce(x).wait(); },
                  ThrowsDistError(ErrorKind::kRankFailed, HasSubstr(kNeverComplete)));
      EXPECT_THAT(
          [&] { pg->all_reduce(x).wait(); },
          ThrowsDistError(ErrorKind::kAborted,
                          AllOf(ContainsRegex("rank 0, group 0, all_reduce seq 3 \\[abort_test.cc:[0-9]+\\]: the group "
                                              "failed before: "),
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

TEST_P(UnwoundWorkTest, HarmsNoMessagesOfOthers) {
  const RunReport report = run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {static_cast<float>(rank.rank())};
    if (rank.rank() == 0) {
      EXPECT_THROW(drop_all_reduce(*pg, [] {}), Mine);
      EXPECT_THROW(pg->recv(x, 1, 5).wait(absl::Seconds(-1)), DistError);
      return rank.store().set("0 gone", "");
    }
    for (int tag = 4; tag < 8; ++tag) {
      if (rank.rank() == 1) pg->send(x, 2, tag).wait();
      if (rank.rank() == 2) pg->recv(x, 1, tag).wait();
      if (tag == 5) rank.store().wait({"0 gone"});
    }
    EXPECT_EQ(x[0], 1);
  });
  EXPECT_THAT(report.notes, Contains(HasSubstr(kNeverComplete)));
  EXPECT_THAT(report.notes, Contains(HasSubstr("rank 0 dropped its recv seq 1 from rank 1, tag 5 while")));
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
              AllOf(StartsWith("rank 0 failed: group 0"),
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
              AllOf(StartsWith("rank 0 failed: group 0"),
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
  EXPECT_THAT(report.text(), AllOf(StartsWith("rank 0 failed: group 0"), HasSubstr(kNeverComplete),
                                   HasSubstr("\nrank 1 stopped for it")));
}

// A failure that ends one call of a group for good ends all that are on their way: with the cause, and at once.
class FailedGroupTest : public EveryWorldTest {
 protected:
  // All kinds of calls that a member can have on its way, none of which the others will answer.
  struct Outstanding {
    explicit Outstanding(ProcessGroup& pg)
        : reduced(pg.all_reduce(a)), received(pg.recv(b, 1, 7)), coalesced(coalesce(pg)), last(pg.all_reduce(d)) {}

    Work coalesce(ProcessGroup& pg) {
      pg.start_coalescing();
      (void)pg.all_reduce(c);
      (void)pg.recv(e, 1, 8);
      return pg.end_coalescing();
    }
    // Each ends with this error, and no time passes.
    void expect_end(RankContext& rank, ErrorKind kind, const testing::Matcher<std::string>& text) {
      const absl::Duration before = rank.now();
      for (Work* const work : {&reduced, &received, &coalesced, &last}) {
        EXPECT_THAT([&] { work->wait(); }, ThrowsDistError(kind, text)) << WorkState::of(*work)->op();
      }
      if (rank.world().scheduler().deterministic()) {
        EXPECT_EQ(rank.now(), before);
      }
    }

    std::vector<float> a = {1}, b = {2}, c = {3}, d = {4}, e = {5};
    Work reduced, received, coalesced, last;
  };
};
INSTANTIATE_TEST_SUITE_P(Worlds, FailedGroupTest, every_world(), world_name);

TEST_P(FailedGroupTest, EndsAllCallsAfterATimeout) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) return rank.store().wait({"done"});
    std::vector<float> x = {1};
    Work first = pg->all_reduce(x);
    Outstanding others(*pg);
    const auto text = HasSubstr("rank 0, group 0, all_reduce seq 1: timed out after 5ms waiting for rank 1");
    EXPECT_THAT([&] { first.wait(absl::Milliseconds(5)); }, ThrowsDistError(ErrorKind::kTimeout, text));
    others.expect_end(rank, ErrorKind::kTimeout, text);
    EXPECT_THAT(
        [&] { pg->barrier().wait(); },
        ThrowsDistError(ErrorKind::kAborted, HasSubstr("the group failed before: rank 0, group 0, all_reduce")));
    EXPECT_THAT(
        [&] { pg->send(x, 1).wait(); },
        ThrowsDistError(ErrorKind::kAborted, HasSubstr("the group failed before: rank 0, group 0, all_reduce")));
    rank.store().set("done", "");
  });
}

TEST_P(FailedGroupTest, EndsAllCallsAfterATimeoutOfAMessage) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) return rank.store().wait({"done"});
    std::vector<float> x = {1};
    Work first = pg->recv(x, 1);
    Outstanding others(*pg);
    const auto text = HasSubstr("rank 0, group 0, recv from rank 1: timed out after 5ms waiting for rank 1");
    EXPECT_THAT([&] { first.wait(absl::Milliseconds(5)); }, ThrowsDistError(ErrorKind::kTimeout, text));
    others.expect_end(rank, ErrorKind::kTimeout, text);
    rank.store().set("done", "");
  });
}

TEST_P(FailedGroupTest, EndsAllCallsAfterADrop) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) return rank.store().wait({"done"});
    std::vector<float> x = {1};
    Work first = pg->all_reduce(x);
    Outstanding others(*pg);
    first = Work();
    others.expect_end(rank, ErrorKind::kRankFailed,
                      HasSubstr("rank 0, group 0, all_reduce seq 1: the work was dropped unfinished"));
    rank.store().set("done", "");
  });
}

TEST_P(FailedGroupTest, EndsAllCallsAfterAMismatch) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const auto text = HasSubstr("group 0, seq 1: members issued different calls");
    if (rank.rank() == 1) {
      std::vector<double> x = {2};
      rank.store().wait({"all issued"});
      EXPECT_THAT([&] { pg->all_reduce(x).wait(); }, ThrowsDistError(ErrorKind::kMismatch, text));
      return;
    }
    std::vector<float> x = {1};
    Work first = pg->all_reduce(x);
    Outstanding others(*pg);
    rank.store().set("all issued", "");
    EXPECT_THAT([&] { first.wait(); }, ThrowsDistError(ErrorKind::kMismatch, text));
    others.expect_end(rank, ErrorKind::kMismatch, text);
  });
}

TEST_P(FailedGroupTest, EndsAllCallsAfterAnInputWasChanged) {
  if (!seeded()) GTEST_SKIP() << "inputs are watched in seeded runs";
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank, {.rooted = GroupOptions::Rooted::kTogether});
    const auto text = HasSubstr("rank 0, group 0, broadcast seq 1: an input was changed or freed between the call ");
    std::vector<float> x = {static_cast<float>(rank.rank())};
    if (rank.rank() == 1) {
      rank.store().wait({"all issued"});
      EXPECT_THAT([&] { pg->broadcast(x, 0).wait(); }, ThrowsDistError(ErrorKind::kInvalidArgument, text));
      return;
    }
    Work first = pg->broadcast(x, 0);
    Outstanding others(*pg);
    x[0] = 9;
    rank.store().set("all issued", "");
    EXPECT_THAT([&] { first.wait(); }, ThrowsDistError(ErrorKind::kInvalidArgument, text));
    others.expect_end(rank, ErrorKind::kInvalidArgument, text);
  });
}

TEST_P(FailedGroupTest, EndsWorksThatOnlyACallbackWaitsFor) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) return rank.store().wait({"done"});
    std::vector<float> x = {1};
    std::vector<float> y = {2};
    Work first = pg->all_reduce(x);
    Work second = pg->all_reduce(y);
    second.then([&rank](const absl::Status& status) {
      rank.store().set("told", std::string(status.message().data(), status.message().size()));
    });
    EXPECT_THROW(first.wait(absl::Milliseconds(5)), DistError);
    EXPECT_THAT(rank.store().get("told"), HasSubstr("rank 0, group 0, all_reduce seq 1: timed out after 5ms"));
    rank.store().set("done", "");
  });
}

// As where a schedule decides, where a failure is one step: whoever is told of it finds all calls ended.
TEST_P(FailedGroupTest, ACallbackFindsTheOtherCallsEnded) {
  std::vector<int> open(200, -1);
  for (int& left : open) {
    run(2, [&left](RankContext& rank) {
      auto pg = init_process_group(rank);
      if (rank.rank() == 1) return rank.store().wait({"done"});
      auto calls = std::make_shared<Outstanding>(*pg);
      calls->reduced.then([&rank, &left, calls](const absl::Status&) {
        left = 0;
        for (Work* const work : {&calls->received, &calls->coalesced, &calls->last})
          left += work->is_completed() ? 0 : 1;
        rank.store().set("told", "");
      });
      pg->abort("planned");
      rank.store().wait({"told"});
      rank.store().set("done", "");
    });
  }
  EXPECT_THAT(open, testing::Each(0));
}

TEST_P(FailedGroupTest, ARankThatCleansUpAfterADeadlockIsNotTheCause) {
  for (int round = 0; round < 100; ++round) {
    const RunReport report = run_to_failure(3, [](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<float> x = {1};
      if (rank.rank() == 0) pg->all_reduce(x).wait();
      if (rank.rank() != 1) return;
      try {
        pg->recv(x, 0, 1).wait();
      } catch (const DistError&) {
        pg->abort("cleanup");
        throw;
      }
    });
    EXPECT_THAT(report.text(), AllOf(HasSubstr("Deadlock"), Not(HasSubstr("cleanup"))));
  }
}

// A call that a thread of another rank carries out when the group fails ends as if the call had come before or after.
TEST_P(FailedGroupTest, ACallThatIsCarriedOutHasEndedBehindAnAbort) {
  std::vector<float> x(1 << 18, 1.0F);
  std::vector<float> y(1 << 18, 2.0F);
  std::vector<int> open;
  for (int round = 0; round < 100; ++round) {
    std::atomic<bool> comes{false};
    run(2, [&](RankContext& rank) {
      auto pg = init_process_group(rank);
      Work work;
      if (rank.rank() == 1) comes = true;
      (void)error_of([&] { work = pg->all_reduce(rank.rank() == 0 ? x : y, ReduceOp::kMax); });
      if (rank.rank() == 0) {
        // Without a schedule: while rank 1 carries the call out, in some of the rounds.
        while (!deterministic() && !comes) std::this_thread::yield();
        for (std::atomic<int> turns{0}; turns < 50 * round;) ++turns;
        pg->abort("planned");
        open.push_back(work.is_completed() ? 0 : 1);
      }
      (void)error_of([&] { work.wait(); });
    });
  }
  EXPECT_THAT(open, testing::Each(0));
}

// A member that waits for a message from a rank whose rank leaves by an exception has nobody to tell it but the group.
TEST_P(FailedGroupTest, EndsAMessageWhosePartnerUnwound) {
  if (!seeded()) GTEST_SKIP() << "elsewhere a message moves as soon as both sides are there";
  int ended = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    WorldOptions world = options(3);
    world.schedule = Schedule::seeded(seed);
    run(world, [&ended](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<float> x = {static_cast<float>(rank.rank())};
      if (rank.rank() == 2) return rank.store().wait({"done"});
      if (rank.rank() == 1) {
        rank.store().wait({"0 came"});
        try {
          const Work work = pg->send(x, 0, 3);
          throw std::runtime_error("mine");
        } catch (const std::runtime_error&) {
        }
        rank.store().set("1 gone", "");
        return;
      }
      Work message = pg->recv(x, 1, 3);
      rank.store().set("0 came", "");
      rank.store().wait({"1 gone"});
      try {
        message.wait();  // the message was there before the drop
        EXPECT_EQ(x[0], 1);
      } catch (const DistError& error) {
        ++ended;
        EXPECT_EQ(error.kind(), ErrorKind::kRankFailed);
        EXPECT_THAT(error.what(),
                    HasSubstr("rank 1 dropped its send seq 1 to rank 0, tag 3 while an exception unwound"));
        EXPECT_EQ(x[0], 0);
      }
      rank.store().set("done", "");
    });
  }
  EXPECT_GT(ended, 0);
}

// An object that a WorldLocal forgets goes while no lock of the world's is held: others may come first.
TEST_P(FailedGroupTest, AWorkThatAWorldLocalForgetsIsDroppedAsOthers) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    static const WorldLocal<std::optional<Work>> kept("kept");
    static const WorldLocal<int> other("other");
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    if (rank.rank() == 0) {
      *kept.get(rank.world()) = pg->all_reduce(x);
      kept.forget(rank.world());
      rank.store().set("forgotten", "");
    } else {
      for (int i = 0; i < 3; ++i) {
        other.get(rank.world());
        other.forget(rank.world());
      }
      rank.store().wait({"forgotten"});
    }
    pg->barrier().wait();
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 0 failed: group 0, all_reduce seq 1: the work was dropped unfinished"));
}

// The thread of fibers has no locks against others: who is none of theirs is refused, as elsewhere.
TEST(FibersAbortTest, AThreadOfNoRankIsRefused) {
  run_world({.world_size = 2, .engine = EngineKind::kFibers}, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::string error;
    std::thread([&] { error = error_of([&] { pg->abort("enough"); }); }).join();
    EXPECT_THAT(error, HasSubstr("the ranks are fibers of one thread; want engine threads"));
    std::vector<float> x = {1};
    pg->all_reduce(x).wait();
  }).throw_if_failed();
}

// A rank that joins a thread of its own runs beside the baton: what it was at last may be gone.
TEST(EndlessTest, ARankThatJoinsItsThreadIsToldByItsLastPoint) {
  WorldOptions options{.world_size = 2, .engine = EngineKind::kThreads, .schedule = Schedule::seeded(1)};
  options.max_steps = 2000;
  const RunReport report = run_world(options, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    if (rank.rank() == 1) {
      for (;;) rank.yield();
    }
    rank.store().set(std::string(200, 'k'), "v");
    std::thread([&] { (void)error_of([&] { pg->all_reduce(x).wait(); }); }).join();
  });
  EXPECT_THAT(report.text(), HasSubstr("the run did not end within 2000 scheduling points"));
  EXPECT_THAT(report.text(), Not(HasSubstr("kkk")));
}

// The owners that a call holds are let go of after all works of its completion are done: a destructor may drop works
// that end with the call.
class CompletionTest : public EveryWorldTest {
 protected:
  // Of works that holders held when these went: whether each was done. Each holder goes on a helper of its own, which
  // may be a thread.
  class Ends {
   public:
    void add(bool done) {
      const std::lock_guard<std::mutex> lock(mu_);
      done_.push_back(done);
    }
    const std::vector<bool>& done() const { return done_; }

   private:
    std::mutex mu_;
    std::vector<bool> done_;
  };

  struct Holder {
    explicit Holder(Ends* ends) : ends(*ends) {}
    ~Holder() { ends.add(held.is_completed()); }
    Work held;
    Ends& ends;
  };
};
INSTANTIATE_TEST_SUITE_P(Worlds, CompletionTest, every_world(), world_name);

TEST_P(CompletionTest, LetsGoOfWorksThatEndTogether) {
  Ends ends;
  run(2, [&ends](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) return rank.store().wait({"done"});
    auto first = std::make_shared<Holder>(&ends);
    auto second = std::make_shared<Holder>(&ends);
    std::vector<float> x = {1}, y = {2}, z = {3}, u = {4};
    // The first call owns the only handle on the second, the message that on the last.
    (void)pg->all_reduce(x, ReduceOp::kSum, {.keep_alive = first});
    first->held = pg->all_reduce(y);
    (void)pg->recv(z, 1, 0, {.keep_alive = second});
    second->held = pg->recv(u, 1, 1);
    first.reset();
    second.reset();
    pg->abort("enough");
    rank.store().set("done", "");
  });
  EXPECT_THAT(ends.done(), testing::ElementsAre(true, true));
}

TEST_P(CompletionTest, LetsGoOfWorksThatEndByAMismatch) {
  Ends ends;
  run(2, [&ends](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1}, y = {2};
    if (rank.rank() == 1) {
      rank.store().wait({"issued"});
      EXPECT_THAT([&] { pg->barrier().wait(); },
                  ThrowsDistError(ErrorKind::kMismatch, HasSubstr("members issued different calls")));
      return rank.store().set("done", "");
    }
    auto holder = std::make_shared<Holder>(&ends);
    (void)pg->all_reduce(x, ReduceOp::kSum, {.keep_alive = holder});
    holder->held = pg->all_reduce(y);
    holder.reset();
    rank.store().set("issued", "");
    rank.store().wait({"done"});
  });
  EXPECT_THAT(ends.done(), testing::ElementsAre(true));
}

// The part that was waited for goes while the thread that completes the whole is at it.
TEST_P(CompletionTest, ThePartsOfACoalescedCallEndWithTheWhole) {
  for (int round = 0; round < 200; ++round) {
    run(2, [](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<float> x = {float(rank.rank())};
      pg->start_coalescing();
      Work part = pg->all_reduce(x);
      Work whole = pg->end_coalescing();
      std::vector<Work> works = {whole, part};
      EXPECT_EQ(wait_any(works), 0U);
      whole.wait();
      part.wait();
    });
  }
}

TEST_P(CompletionTest, LetsPartsGoAsSoonAsTheyAreDone) {
  const int rounds = deterministic() ? 20 : 3000;
  run(2, [rounds](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {0}, y = {0};
    for (int i = 0; i < rounds; ++i) {
      x[0] = static_cast<float>(rank.rank() + 1);
      y[0] = static_cast<float>(10 * rank.rank());
      pg->start_coalescing();
      Work first = pg->all_reduce(x);
      Work second = pg->all_reduce(y);
      (void)pg->end_coalescing();
      while (!first.is_completed()) rank.yield();
      first = Work();
      while (!second.is_completed()) {
        if (rank.world().scheduler().deterministic()) rank.yield();
      }
      second = Work();
      ASSERT_EQ(x[0], 3);
      ASSERT_EQ(y[0], 10);
    }
  });
}

// An exception of a callback is its rank's failure, as a helper's.
class CallbackTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, CallbackTest, every_world(), world_name);

TEST_P(CallbackTest, ThatThrowsFailsItsRank) {
  for (const bool standard : {true, false}) {
    const RunReport report = run_to_failure(3, [standard](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<float> x = {static_cast<float>(rank.rank())};
      Work work = pg->all_reduce(x);
      if (rank.rank() == 1) {
        work.then([standard](const absl::Status&) {
          if (standard) throw std::runtime_error("boom");
          throw 5;
        });
      }
      rank.store().add("issued", 1);
      work.wait();
      if (rank.rank() != 1) rank.store().wait({"never"});
    });
    // Rank 0 or 2 may have been the last to come: the callback of rank 1 runs later all the same, or at once on rank 1.
    EXPECT_THAT(report.text(), HasSubstr(standard ? "rank 1 failed: boom"
                                                  : "rank 1 failed: an exception that is no std::exception (int)"));
  }
}

TEST_P(CallbackTest, OfAPromiseThatThrowsFailsItsRank) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    if (rank.rank() == 0) {
      Promise promise(&rank.world().scheduler(), 1);
      promise.work().then([](const absl::Status&) { throw std::runtime_error("promised"); });
      promise.set_value();
    }
    rank.store().wait({"never"});
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 1 failed: promised"));
}

TEST_P(CallbackTest, ThatThrowsLeavesTheOthersTheirTurn) {
  bool ran = false;
  const RunReport report = run_to_failure(1, [&ran](RankContext& rank) {
    Promise promise(&rank.world().scheduler(), 0);
    promise.work().then([](const absl::Status&) { throw std::runtime_error("first"); });
    promise.work().then([&ran](const absl::Status& status) { ran = status.ok(); });
    promise.set_value();
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 0 failed: first"));
  EXPECT_TRUE(ran);
}

TEST_P(CallbackTest, ThatWaitsWhileAnotherRankFailsJustEnds) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) {
      Promise promise(&rank.world().scheduler(), 0);
      promise.work().then([pg, &rank](const absl::Status&) {
        rank.store().set("in callback", "");
        pg->barrier().wait();
      });
      promise.set_value();
      return;
    }
    rank.store().wait({"in callback"});
    throw std::runtime_error("rank 1 dies");
  });
  EXPECT_THAT(report.text(), AllOf(HasSubstr("rank 1 failed: rank 1 dies"), Not(HasSubstr("rank 0 failed"))));
}

TEST_P(CallbackTest, ThatWaitsForNobodyIsADeadlock) {
  const RunReport report = run_to_failure(1, [](RankContext& rank) {
    Promise promise(&rank.world().scheduler(), 0);
    promise.work().then([&rank](const absl::Status&) { rank.store().get("never"); });
    promise.set_value();
  });
  EXPECT_THAT(report.text(), HasSubstr("waits in store get key \"never\""));
}

TEST_P(CallbackTest, OnADoneWorkThrowsToItsCaller) {
  run(1, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    Work work = pg->barrier();
    work.wait();
    EXPECT_THROW(work.then([](const absl::Status&) { throw std::runtime_error("mine"); }), std::runtime_error);
  });
}

TEST(PromiseWithoutAWorld, ThrowsWhatItsCallbackThrowsAfterAllHaveRun) {
  Promise promise;
  int ran = 0;
  for (int i = 0; i < 3; ++i) {
    promise.work().then([&](const absl::Status&) {
      ++ran;
      throw std::runtime_error("mine");
    });
  }
  EXPECT_THROW(promise.set_value(), std::runtime_error);
  EXPECT_EQ(ran, 3);
  EXPECT_TRUE(promise.work().is_success());
}

// Nobody else would tell of an exception of the program's own then.
TEST_P(AbortTest, ACallbackThatThrowsAtTheEndOfTheWorldIsANote) {
  const RunReport report = run_world({.world_size = 2, .schedule = schedule()}, [&](RankContext& rank) {
    if (rank.rank() != 0) return;
    auto pg = init_process_group(rank);
    auto x = std::make_shared<std::vector<float>>(1, 1.0F);
    pg->recv(*x, 1, 0, {.keep_alive = x}).then([pg](const absl::Status& status) {
      EXPECT_THAT(status.message(), HasSubstr("the world has ended"));
      throw std::runtime_error("no message");
    });
    auto y = std::make_shared<std::vector<float>>(1, 1.0F);
    pg->recv(*y, 1, 1, {.keep_alive = y}).then([](const absl::Status& status) { throw DistError(status, {}); });
    auto z = std::make_shared<std::vector<float>>(1, 1.0F);
    pg->recv(*z, 1, 2, {.keep_alive = z}).then([](const absl::Status&) { throw 42; });
  });
  EXPECT_THAT(report.notes,
              Contains("a helper or callback of rank 0 threw: an exception that is no std::exception (int)"));
  EXPECT_THAT(report.notes, Contains("a helper or callback of rank 0 threw: no message (std::runtime_error)"));
}

TEST(Hooks, ThatThrowAreNotes) {
  WorldOptions options{.world_size = 2};
  options.whereabouts = []() -> std::string { throw std::runtime_error("no debugger"); };
  World world(std::move(options));
  world.on_abort([](const absl::Status&) { throw 5; });
  world.at_end([] { throw std::runtime_error("too late"); });
  const RunReport report = world.run([](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) pg->barrier().wait();
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 0 waits in barrier seq 1"));
  EXPECT_THAT(report.notes, testing::UnorderedElementsAre(
                                "whereabouts threw: no debugger (std::runtime_error)",
                                "a listener of on_abort() threw: an exception that is no std::exception (int)",
                                "a hook of at_end() threw: too late (std::runtime_error)"));
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

class WhereaboutsTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, WhereaboutsTest, every_world(), world_name);

TEST_P(WhereaboutsTest, AreAskedForByADeadlockOnly) {
  WorldOptions options = this->options(2);
  std::atomic<int> asked = 0;
  options.whereabouts = [&asked] { return "asked " + std::to_string(++asked); };
  const RunReport report = run_to_failure(std::move(options), [&](RankContext& rank) {
    if (rank.rank() == 1) return;
    EXPECT_THAT(error_of([&] { rank.store().wait({"k"}, absl::Milliseconds(2)); }), HasSubstr("rank 0 waits in store"));
    rank.world().describe();
    EXPECT_EQ(asked, 0);
    rank.store().wait({"never"});
  });
  EXPECT_THAT(report.text(), HasSubstr("\nasked 1"));
  EXPECT_EQ(asked, 1);
}

// No lock is held, so that the hook may ask the world.
TEST_P(WhereaboutsTest, MayAskWhatTheWorldIsLike) {
  WorldOptions options = this->options(2);
  World* asked = nullptr;
  options.whereabouts = [&asked] { return asked->describe() + "\nkeys: " + std::to_string(asked->store().num_keys()); };
  World world(std::move(options));
  asked = &world;
  const RunReport report = world.run([](RankContext& rank) {
    if (rank.rank() == 0) rank.store().wait({"never"});
  });
  EXPECT_THAT(report.text(), StartsWith("Deadlock: no rank can move\n  rank 0 waits in store wait key \"never\""));
  EXPECT_THAT(report.text(), ContainsRegex("\nworld of 2 ranks, [^\n]*\n  rank 0 waits in store wait key \"never\""));
  EXPECT_THAT(report.text(), ContainsRegex("\nkeys: 0"));
}

// --- groups that are made after an abort

class AfterAbortTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, AfterAbortTest, every_world(), world_name);

// A rank whose unwinding aborts the group has not told its failure yet when the others hear of the abort.
TEST_P(AfterAbortTest, TheExceptionThatUnwindsIsTheFailure) {
  for (const bool rethrows : {true, false}) {
    const RunReport report = run_to_failure(3, [rethrows](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<float> x = {1.0F + static_cast<float>(rank.rank())};
      if (rank.rank() != 1) return pg->all_reduce(x).wait();
      std::exception_ptr failure;
      try {
        struct AbortsAtItsEnd {
          ~AbortsAtItsEnd() { pg.abort("the guard went"); }
          ProcessGroup& pg;
        } const guard{*pg};
        throw std::runtime_error("no input is left");
      } catch (...) {
        failure = std::current_exception();
      }
      try {
        rank.sleep_for(absl::Hours(1));  // until the others have failed
      } catch (const DistError&) {
      }
      if (rethrows) std::rethrow_exception(failure);
    });
    const std::string abort = "rank 1 aborted group 0: the guard went [abort_test.cc:";
    if (rethrows) {
      EXPECT_THAT(report.text(), StartsWith("rank 1 failed: no input is left"));
      EXPECT_THAT(report.text(), HasSubstr("\nranks 0, 2 stopped for it"));
    } else {
      EXPECT_THAT(report.text(), StartsWith("Aborted: " + abort));
      EXPECT_EQ(report.outcomes[1].state, RunReport::Outcome::State::kReturned);
    }
    EXPECT_THAT(report.outcomes[2].text, HasSubstr(abort));
  }
}

TEST_P(AfterAbortTest, AGroupIsToldAtItsFirstCall) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto before = init_process_group(rank);
    if (rank.rank() == 1) {
      EXPECT_THAT([&] { rank.store().wait({"never"}); }, ThrowsDistError(ErrorKind::kAborted, HasSubstr("planned")));
      return;
    }
    rank.world().abort("planned");
    const auto first_call_of_a_new_group_throws = [&](absl::FunctionRef<void(ProcessGroup&)> call) {
      auto pg = init_process_group(rank);
      EXPECT_THAT([&] { call(*pg); }, ThrowsDistError(ErrorKind::kAborted, HasSubstr("planned")));
    };
    std::vector<float> x(2);
    first_call_of_a_new_group_throws([&](ProcessGroup& pg) { (void)pg.all_reduce(x); });
    first_call_of_a_new_group_throws([&](ProcessGroup& pg) { (void)pg.send(x, 1); });
    first_call_of_a_new_group_throws([&](ProcessGroup& pg) { (void)pg.recv_any(x); });
    first_call_of_a_new_group_throws([&](ProcessGroup& pg) { pg.monitored_barrier(); });
    first_call_of_a_new_group_throws([&](ProcessGroup& pg) { (void)pg.new_group(); });
    first_call_of_a_new_group_throws([&](ProcessGroup& pg) {
      pg.start_coalescing();
      (void)pg.all_reduce(x);
      (void)pg.end_coalescing();
    });
    // As a group does that wraps another one.
    auto pg = init_process_group(rank);
    for (const OpType op : {OpType::kBarrier, OpType::kSend}) {
      CollectiveCall call;
      call.op = op;
      call.seq = op == OpType::kBarrier ? 1 : -1;
      if (op == OpType::kSend) call.inputs = TensorList(TensorView(x));
      call.peer = op == OpType::kSend ? 1 : -1;
      const absl::StatusOr<Work> work = pg->execute(std::move(call));
      EXPECT_EQ(error_kind(work.status()), ErrorKind::kAborted);
      EXPECT_THAT(std::string(work.status().message()),
                  StartsWith("rank 0 aborted the world: planned [abort_test.cc:"));
    }
  });
  EXPECT_THAT(report.text(), HasSubstr("planned"));
}

// --- handles that outlive their world

class OutlivesTest : public EveryWorldTest {
 protected:
  static constexpr const char* kEnded = "Aborted: the world has ended";

  // The report of a world that is gone when this returns. Calls may own their tensors: what is dropped unfinished is no
  // error.
  RunReport run_and_end(int ranks, Program program) {
    World world(options(ranks));
    return world.run(program);
  }
  static CallOptions kept(const std::shared_ptr<std::vector<float>>& tensor) { return {.keep_alive = tensor}; }
};
INSTANTIATE_TEST_SUITE_P(Worlds, OutlivesTest, every_world(), world_name);

TEST_P(OutlivesTest, AFinishedWorkKeepsItsStatusAndResult) {
  std::vector<std::vector<float>> x = {{1}, {2}};
  std::vector<Work> works(2);
  std::vector<std::optional<Future>> futures(2);
  run_and_end(2, [&](RankContext& rank) {
    const auto r = static_cast<size_t>(rank.rank());
    works[r] = init_process_group(rank)->all_reduce(x[r]);
    futures[r] = works[r].get_future();
    works[r].wait();
  }).throw_if_failed();
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_TRUE(works[r].is_completed());
    EXPECT_TRUE(works[r].is_success());
    works[r].wait();
    works[r].wait(absl::Seconds(1));
    ASSERT_EQ(works[r].result().size(), 1U);
    EXPECT_EQ(works[r].result()[0].data(), x[r].data());
    EXPECT_TRUE(futures[r]->done());
    EXPECT_EQ(futures[r]->value().size(), 1U);
    absl::Status told = absl::UnknownError("not told");
    works[r].then([&told](const absl::Status& status) { told = status; });
    EXPECT_TRUE(told.ok()) << told;
    EXPECT_EQ(works[r].exception(), nullptr);
    const Work copy = works[r];
  }
  EXPECT_EQ(wait_any(works), 0U);
  wait_all(works);
  EXPECT_THAT(x[0], ElementsAre(3));
}

TEST_P(OutlivesTest, AFailedWorkKeepsItsError) {
  std::vector<float> x = {1};
  Work work;
  const RunReport report = run_and_end(2, [&](RankContext& rank) {
    if (rank.rank() == 1) {
      rank.store().wait({"issued"});
      throw std::runtime_error("rank 1 gives up");
    }
    work = init_process_group(rank)->recv(x, 1);
    rank.store().set("issued", "");
    work.wait();
  });
  EXPECT_FALSE(report.ok());
  EXPECT_THAT(error_of([&] { work.wait(); }), HasSubstr("rank 1 failed: rank 1 gives up"));
}

TEST_P(OutlivesTest, WhatIsUnfinishedEndsWithTheWorldAndIsInTheReport) {
  auto x = std::make_shared<std::vector<float>>(1, 1.0F);
  auto y = std::make_shared<std::vector<float>>(1, 2.0F);
  auto z = std::make_shared<std::vector<float>>(1, 4.0F);
  std::vector<Work> works(3);
  absl::Status told;
  const RunReport report = run_and_end(4, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) works[0] = pg->all_reduce(*x, ReduceOp::kSum, kept(x));
    if (rank.rank() == 3) works[1] = pg->all_reduce(*y, ReduceOp::kSum, kept(y));
    if (rank.rank() != 2) return;
    works[2] = pg->recv(*z, 1, 7, kept(z));
    works[2].then([&told](const absl::Status& status) { told = status; });
  });
  EXPECT_TRUE(report.ok()) << report.text();
  ASSERT_EQ(report.notes.size(), 2U) << report.text();
  EXPECT_THAT(report.notes[0],
              StartsWith("ranks 0, 3, group 0, all_reduce seq 1: ranks 1-2 never came [abort_test.cc:"));
  EXPECT_THAT(report.notes[1], StartsWith("rank 2, group 0, recv from rank 1, tag 7: was never sent"));
  for (Work& work : works) {
    EXPECT_TRUE(work.is_completed());
    EXPECT_FALSE(work.is_success());
    EXPECT_EQ(error_of([&] { work.wait(); }, ErrorKind::kAborted), kEnded);
    EXPECT_EQ(error_of([&] { (void)work.result(); }, ErrorKind::kAborted), kEnded);
    EXPECT_EQ(work.source(), -1);
  }
  EXPECT_EQ(told, world_ended());
  EXPECT_THAT(*x, ElementsAre(1));  // not poisoned any more
  EXPECT_THAT(*z, ElementsAre(4));
}

TEST_P(OutlivesTest, ACallbackThatThrowsWhenItIsToldOfTheEnd) {
  auto x = std::make_shared<std::vector<float>>(1, 1.0F);
  std::string error;
  const RunReport report = run_and_end(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) return;
    pg->recv(*x, 1, 0, kept(x)).then([&error, pg](const absl::Status&) {
      error = error_of([&] { (void)pg->barrier({}, "", CodeSite{"dir/job.cc", 31}); }, ErrorKind::kAborted);
      pg->barrier().wait();
    });
  });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_EQ(error, "Aborted: rank 0, group 0, barrier: the world has ended [job.cc:31]");
}

// The world that ends runs no more tasks: the callback goes while the message is completed, and a work with it.
TEST_P(OutlivesTest, ACallbackThatHoldsAPromiseGoesWithTheWorld) {
  const RunReport report = run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) return;
    auto x = std::make_shared<std::vector<float>>(1, 1.0F);
    Work work = pg->send(*x, 0, 0, kept(x));
    work.then([promise = Promise(&rank.world().scheduler(), 1)](const absl::Status&) mutable { promise.set_value(); });
  });
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("rank 1, group 0, send to rank 0: was never received")));
}

// At the end of the world the calls that are left end one after another: whoever is told of one, or goes with one,
// finds others that still count as on their way, and must not wait for them.
TEST_P(OutlivesTest, AHookThatComesBeforeTheGroupsFindsCallsEnded) {
  std::vector<float> x = {1};
  Work work;
  std::string error;
  {
    World world(options(2));
    world.at_end([&] { error = error_of([&] { work.wait(); }, ErrorKind::kAborted); });
    const RunReport report = world.run([&](RankContext& rank) {
      auto pg = init_process_group(rank);
      if (rank.rank() == 0) work = pg->recv(x, 1);
    });
    EXPECT_TRUE(report.ok()) << report.text();
  }
  EXPECT_EQ(error, kEnded);
}

TEST_P(OutlivesTest, ACallbackThatIsToldOfTheEndMayLookAtAnotherCall) {
  std::vector<float> x = {1};
  std::vector<float> y = {2};
  Work first;
  Work second;
  int told = 0;
  run_and_end(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() != 0) return;
    first = pg->recv(x, 1);
    second = pg->recv(y, 1);
    first.then([&](const absl::Status&) { told = second.is_completed() ? 1 : 2; });
  });
  EXPECT_EQ(told, 1);
  EXPECT_EQ(error_of([&] { second.wait(); }, ErrorKind::kAborted), kEnded);
}

TEST_P(OutlivesTest, ACallbackThatIsToldOfTheEndWaitsForNoKey) {
  std::vector<float> x = {1};
  Work kept;
  std::string error;
  std::string queue;
  std::string present;
  run_and_end(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() != 0) return;
    rank.store().set("set", "value");
    kept = pg->recv(x, 1);
    kept.then([&, &world = rank.world()](const absl::Status&) {
      present = world.store().get("set");
      error = error_of([&] { (void)world.store().get("never"); }, ErrorKind::kAborted);
      queue = error_of([&] { (void)world.store().queue_pop("never"); }, ErrorKind::kAborted);
    });
  });
  EXPECT_EQ(present, "value");
  EXPECT_THAT(error, StartsWith("Aborted: HashStore get key \"never\": the world has ended [abort_test.cc:"));
  EXPECT_THAT(queue, StartsWith("Aborted: HashStore queue_pop key \"never\": the world has ended [abort_test.cc:"));
}

// A thread of no rank may end such a wait, and has the time of a stall for it.
TEST_P(OutlivesTest, AHookOfTheEndWaitsForOtherThreadsOnly) {
  Latch never(1, "never");
  Latch soon(1, "soon");
  Mutex mu("queue");
  CondVar filled("filled");
  std::string latch = "none";
  std::string condition;
  bool filled_in_time = true;
  std::atomic<bool> waits{false};
  {
    WorldOptions options = this->options(2);
    options.stall = absl::Milliseconds(500);
    World world(options);
    world.at_end([&] {
      waits = true;
      soon.wait();
      latch = error_of([&] { never.wait(); }, ErrorKind::kAborted);
      MutexLock lock(&mu);
      filled_in_time = filled.wait_for(&mu, absl::Milliseconds(1), [] { return false; });
      condition = error_of([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { filled.wait(&mu, [] { return false; }); },
                           ErrorKind::kAborted);
    });
    std::thread other([&] {
      while (!waits) std::this_thread::yield();
      soon.count_down();
    });
    (void)world.run([](RankContext&) {});
    other.join();
  }
  EXPECT_THAT(latch, AllOf(HasSubstr("Aborted: the world has ended: no rank is left that could end latch wait"),
                           HasSubstr("and nobody else has in 500ms")));
  EXPECT_FALSE(filled_in_time);
  EXPECT_THAT(condition, HasSubstr("no rank is left that could end condition wait"));
}

// Destructors of objects that the program left with the world come after all hooks, and wait no longer than they.
TEST_P(OutlivesTest, ADestructorOfWhatGoesWithTheWorldWaitsForOtherThreadsOnly) {
  struct Late {
    explicit Late(std::vector<std::string>* errors = nullptr) : errors(errors) {}
    Late(const Late&) = delete;
    Late& operator=(const Late&) = delete;
    ~Late() {
      if (errors == nullptr) return;
      Latch never(1, "never");
      errors->push_back(error_of([&] { never.wait(); }, ErrorKind::kAborted));
      HashStore store;
      errors->push_back(error_of([&] { (void)store.get("never"); }, ErrorKind::kAborted));
      const Promise promise;
      errors->push_back(error_of([&] { promise.work().wait(); }, ErrorKind::kAborted));
    }
    std::vector<std::string>* errors;
  };
  static const WorldLocal<Late> kLate("late");
  std::vector<std::string> errors;
  {
    WorldOptions options = this->options(2);
    options.stall = absl::Milliseconds(30);
    World world(options);
    world.at_end([held = std::make_shared<Late>(&errors)] {});
    world.on_abort([held = std::make_shared<Late>(&errors)](const absl::Status&) {});
    (void)world.run([&errors, watch = std::make_shared<Late>(&errors)](RankContext& rank) {
      if (rank.rank() != 0) return;
      kLate.get(rank.world())->errors = &errors;
      rank.store().watch_key("k", [watch](auto, auto) {});
    });
  }
  ASSERT_EQ(errors.size(), 4 * 3U);
  for (size_t i = 0; i < errors.size(); i += 3) {
    EXPECT_THAT(errors[i], HasSubstr("no rank is left that could end latch wait"));
    EXPECT_THAT(errors[i + 1], HasSubstr("no rank is left that could end store get"));
    EXPECT_THAT(errors[i + 2], HasSubstr("no rank is left that could end"));
  }
}

// Each callback completes the next promise. A fiber's stack holds some hundred of such callbacks.
TEST_P(OutlivesTest, ALongChainOfCallbacksNeedsNoStack) {
  constexpr int kLinks = 30'000;
  int reached = 0;
  run(1, [&](RankContext&) {
    std::vector<Promise> chain(kLinks);
    for (size_t i = 0; i + 1 < chain.size(); ++i)
      chain[i].work().then([&reached, next = chain[i + 1]](const absl::Status&) mutable {
        ++reached;
        next.set_value();
      });
    chain[0].set_value();
    chain.back().work().wait();
  });
  EXPECT_EQ(reached, kLinks - 1);
}

// Callbacks that lie deep within others are put off, but not behind a wait for them.
TEST_P(OutlivesTest, CallbacksMayWaitForWhatOthersBehindThemDo) {
  constexpr int kLinks = 500;
  std::atomic<int> waited = 0;
  run(1, [&](RankContext& rank) {
    const auto gate = std::make_shared<Latch>(1);
    std::vector<Promise> chain(kLinks);
    for (size_t i = 0; i + 1 < chain.size(); ++i)
      chain[i].work().then([&waited, gate, next = chain[i + 1]](const absl::Status&) mutable {
        next.set_value();
        gate->wait();
        ++waited;
      });
    chain.back().work().then([&rank](const absl::Status&) { rank.store().set("end", ""); });
    Promise first;
    first.work().then([&](const absl::Status&) {
      rank.world().spawn_helper([first = chain[0]]() mutable { first.set_value(); });
      (void)rank.store().get("end");
      gate->count_down();
    });
    first.set_value();
  });
  EXPECT_EQ(waited, kLinks - 1);
}

// No task is made any more: the thread that completes the work runs its callbacks, one after another.
TEST_P(OutlivesTest, CallbacksOfAPromiseThatIsKeptAfterTheRun) {
  constexpr int kLinks = 3'000;
  std::vector<Promise> chain;
  int reached = 0;
  {
    World world(options(1));
    (void)world.run([&](RankContext& rank) {
      for (int i = 0; i < kLinks; ++i) chain.emplace_back(&rank.world().scheduler(), 0);
      for (size_t i = 0; i + 1 < chain.size(); ++i)
        chain[i].work().then([&reached, next = chain[i + 1]](const absl::Status&) mutable {
          const Promise goes_at_once;
          ++reached;
          next.set_value();
        });
    });
    chain[0].set_value();
  }
  EXPECT_EQ(reached, kLinks - 1);
}

TEST_P(OutlivesTest, WhatACallbackHeldMayWaitForAnotherCall) {
  struct Late {
    std::string* error = nullptr;
    Work work;
    ~Late() {
      *error = error_of([&] { work.wait(); }, ErrorKind::kAborted);
    }
  };
  std::vector<float> x = {1};
  std::vector<float> y = {2};
  std::string error;
  Work kept;
  run_and_end(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() != 0) return;
    auto late = std::make_shared<Late>();
    late->error = &error;
    late->work = pg->recv(x, 1);
    kept = pg->recv(y, 1);
    kept.then([late = std::move(late)](const absl::Status&) {});
  });
  EXPECT_EQ(error, kEnded);
}

TEST_P(OutlivesTest, ACallbackThatIsToldOfTheEndMayAbort) {
  std::vector<float> x = {1};
  Work kept;
  bool aborted = false;
  const RunReport report = run_and_end(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() != 0) return;
    kept = pg->all_reduce(x);
    kept.then([pg, &aborted](const absl::Status&) {
      pg->abort("told of the end");
      aborted = true;
    });
  });
  EXPECT_TRUE(aborted);
  EXPECT_TRUE(report.ok()) << report.text();
}

TEST_P(OutlivesTest, AHandleThatACallbackHeldGoes) {
  std::vector<float> x = {1};
  std::vector<float> y = {2};
  Work kept;
  const RunReport report = run_and_end(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() != 0) return;
    kept = pg->recv(x, 1);
    kept.then([other = pg->recv(y, 1)](const absl::Status&) {});
  });
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("recv from rank 1: was never sent, nor was the one after it")));
}

TEST_P(OutlivesTest, UnmatchedCallsThatAreAlikeShareANote) {
  auto x = std::make_shared<std::vector<float>>(1, 1.0F);
  const RunReport report = run_and_end(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) return;
    for (int i = 0; i < 3; ++i) (void)pg->all_reduce(*x, ReduceOp::kSum, kept(x));
    (void)pg->barrier({.keep_alive = x});
    for (int i = 0; i < 2; ++i) (void)pg->broadcast(*x, 0, kept(x));
    (void)pg->all_reduce(*x, ReduceOp::kSum, kept(x));
  });
  ASSERT_EQ(report.notes.size(), 4U) << report.text();
  EXPECT_THAT(report.notes[3], HasSubstr("all_reduce seq 7: rank 0 never came ["));
  EXPECT_THAT(report.notes[2], HasSubstr("broadcast seq 5: rank 0 never came, nor to the one after it ["));
  EXPECT_THAT(
      report.notes[0],
      StartsWith("rank 1, group 0, all_reduce seq 1: rank 0 never came, nor to the 2 after it [abort_test.cc:"));
  EXPECT_THAT(report.notes[1], StartsWith("rank 1, group 0, barrier seq 4: rank 0 never came [abort_test.cc:"));
}

TEST_P(OutlivesTest, CallsOnAGroupAnswerThatTheWorldHasEnded) {
  std::shared_ptr<ProcessGroup> pg;
  std::shared_ptr<ProcessGroup> fake;
  run_and_end(2, [&](RankContext& rank) {
    auto mine = init_process_group(rank);
    auto other = init_process_group(rank, {.backend = GroupOptions::Backend::kFake});
    mine->barrier().wait();
    if (rank.rank() != 1) return;
    pg = mine;
    fake = other;
  }).throw_if_failed();
  EXPECT_EQ(pg->text(), "threaded group 0: rank 1 of 2");
  EXPECT_EQ(pg->global_rank(0), 0);
  std::vector<float> x = {1};
  EXPECT_EQ(error_of([&] { (void)pg->all_reduce(x); }, ErrorKind::kAborted),
            "Aborted: rank 1, group 0, all_reduce: the world has ended" + here());
  EXPECT_EQ(error_of([&] { (void)pg->send(x, 0); }, ErrorKind::kAborted),
            "Aborted: rank 1, group 0, send: the world has ended" + here());
  EXPECT_EQ(error_of([&] { pg->monitored_barrier(absl::Seconds(1), true); }, ErrorKind::kAborted),
            "Aborted: rank 1, group 0, monitored_barrier: the world has ended" + here());
  EXPECT_EQ(error_of([&] { (void)pg->new_group(); }, ErrorKind::kAborted),
            "Aborted: rank 1, group 0, new_group: the world has ended" + here());
  EXPECT_EQ(error_of([&] { (void)pg->split_group(0); }, ErrorKind::kAborted),
            "Aborted: rank 1, group 0, split_group: the world has ended" + here());
  EXPECT_EQ(error_of([&] { (void)init_device_mesh(pg, {2}); }, ErrorKind::kAborted),
            "Aborted: rank 1, group 0, init_device_mesh: the world has ended" + here());
  EXPECT_EQ(error_of([&] { (void)fake->all_reduce(x); }, ErrorKind::kAborted),
            "Aborted: rank 1, group 1, all_reduce: the world has ended" + here());
  pg->abort("nobody is left");
  EXPECT_EQ(error_of([&] { pg->start_coalescing(); }, ErrorKind::kAborted),
            "Aborted: rank 1, group 0, start_coalescing: the world has ended" + here());
  EXPECT_EQ(error_of([&] { (void)pg->end_coalescing(); }, ErrorKind::kAborted),
            "Aborted: rank 1, group 0, end_coalescing: the world has ended" + here());
  // Nothing is left to wait for, or to let go of.
  pg->shutdown();
  destroy_process_group(pg);
  destroy_process_group(fake);
  // Nor for a rank of a later world, whose scheduler may lie where that of the first did.
  const RunReport later = run_world(options(2), [&](RankContext& rank) {
    if (rank.rank() == 0) pg->shutdown();
  });
  EXPECT_TRUE(later.ok()) << later.text();
}

TEST_P(OutlivesTest, TheFirstCallsOnAGroupComeAfterTheEndOfAStuckWorld) {
  std::shared_ptr<ProcessGroup> pg;
  const RunReport report = run_and_end(2, [&](RankContext& rank) {
    auto mine = init_process_group(rank);
    if (rank.rank() == 1) pg = mine;
    rank.store().get("never");
  });
  EXPECT_FALSE(report.ok());
  std::vector<float> x = {1};
  EXPECT_THAT(error_of([&] { (void)pg->barrier(); }, ErrorKind::kAborted),
              StartsWith("Aborted: rank 1, group 0, barrier: the world has ended [abort_test.cc:"));
  EXPECT_THAT(error_of([&] { (void)pg->all_reduce(x); }, ErrorKind::kAborted),
              StartsWith("Aborted: rank 1, group 0, all_reduce: the world has ended [abort_test.cc:"));
  EXPECT_THAT(error_of([&] { (void)pg->recv(x, 0); }, ErrorKind::kAborted),
              StartsWith("Aborted: rank 1, group 0, recv: the world has ended [abort_test.cc:"));
}

TEST_P(OutlivesTest, BeforeTheWorldsMemoryGoesTheAnswerIsTheSame) {
  std::shared_ptr<ProcessGroup> pg;
  Work work;
  auto x = std::make_shared<std::vector<float>>(1, 1.0F);
  World world(options(2));
  const RunReport report = world.run([&](RankContext& rank) {
    auto mine = init_process_group(rank);
    if (rank.rank() == 1) return;
    pg = mine;
    work = mine->recv(*x, 1, 0, kept(x));
  });
  EXPECT_TRUE(work.is_completed());
  EXPECT_EQ(error_of([&] { work.wait(); }, ErrorKind::kAborted), kEnded);
  EXPECT_EQ(error_of([&] { (void)pg->barrier(); }, ErrorKind::kAborted),
            "Aborted: rank 0, group 0, barrier: the world has ended" + here());
  world.store().set("the store", "stays");
  EXPECT_EQ(world.store().get("the store"), "stays");
}

TEST_P(OutlivesTest, APromiseThatNobodyKept) {
  std::optional<Promise> promise;
  std::optional<Promise> late;
  std::vector<Work> works(2);
  run_and_end(1, [&](RankContext& rank) {
    promise.emplace(&rank.world().scheduler(), rank.rank());
    late.emplace(&rank.world().scheduler(), rank.rank());
    works = {promise->work(), late->work()};
  }).throw_if_failed();
  absl::Status told = absl::UnknownError("not told");
  late->set_value();
  late->future().then([&told](const absl::Status& status) { told = status; });
  EXPECT_TRUE(told.ok()) << told;
  EXPECT_EQ(wait_any(works), 0U);
  EXPECT_EQ(error_of([&] { works[0].wait(); }, ErrorKind::kAborted), kEnded);
  works[1].wait();
  promise->set_value();  // too late
  EXPECT_EQ(error_of([&] { promise->work().wait(); }, ErrorKind::kAborted), kEnded);
}

TEST_P(OutlivesTest, StreamsAndEvents) {
  std::optional<SimStream> stream;
  Stream::Event event;
  Work work;
  std::vector<float> x = {3};
  run_and_end(1, [&](RankContext& rank) {
    stream.emplace(rank, "comm");
    work = init_process_group(rank)->all_reduce(x, ReduceOp::kSum, {.stream = &*stream});
    event = stream->record();
    stream->synchronize();
  }).throw_if_failed();
  EXPECT_EQ(stream->name(), "comm");
  EXPECT_TRUE(stream->status().ok());
  EXPECT_TRUE(event.query());
  event.synchronize();
  work.wait();
  EXPECT_EQ(error_of([&] { stream->launch([] {}); }, ErrorKind::kAborted),
            "Aborted: rank 0, stream comm, stream launch: the world has ended" + here());
  EXPECT_EQ(error_of([&] { stream->synchronize(); }, ErrorKind::kAborted),
            "Aborted: rank 0, stream comm, synchronize: the world has ended" + here());
  EXPECT_EQ(error_of([&] { (void)stream->query(); }, ErrorKind::kAborted),
            "Aborted: rank 0, stream comm, query: the world has ended" + here());
  EXPECT_EQ(error_of([&] { (void)stream->record(); }, ErrorKind::kAborted),
            "Aborted: rank 0, stream comm, event record: the world has ended" + here());
}

TEST_P(OutlivesTest, AStoreOfItsWorld) {
  std::shared_ptr<Store> store;
  std::unique_ptr<PrefixStore> prefixed;
  run_and_end(1, [&](RankContext& rank) {
    store = std::make_shared<HashStore>(&rank.world().scheduler());
    prefixed = std::make_unique<PrefixStore>("a", store);
    prefixed->set("k", "1");
  }).throw_if_failed();
  EXPECT_EQ(error_of([&] { (void)store->get("k"); }, ErrorKind::kAborted),
            "Aborted: HashStore, store get: the world has ended" + here());
  EXPECT_EQ(error_of([&] { prefixed->set("k", "2"); }, ErrorKind::kAborted),
            "Aborted: PrefixStore, store set: the world has ended" + here());
  const PrefixStore later("b", store);
}

// The next world's scheduler may lie where the last one's lay.
TEST_P(OutlivesTest, HandlesAreNotTakenForThoseOfALaterWorld) {
  std::shared_ptr<ProcessGroup> old;
  std::vector<float> x = {1};
  for (int round = 0; round < 20; ++round) {
    std::shared_ptr<ProcessGroup> next;
    run_and_end(1, [&](RankContext& rank) {
      if (old != nullptr) {
        EXPECT_EQ(error_of([&] { (void)old->all_reduce(x); }, ErrorKind::kAborted),
                  "Aborted: rank 0, group 0, all_reduce: the world has ended" + here());
      }
      next = init_process_group(rank);
      next->barrier().wait();
    }).throw_if_failed();
    old = next;
  }
}

// Threads of no world keep promises, also where ranks are fibers: the first one counts.
TEST_P(OutlivesTest, PromisesThatSeveralThreadsKeep) {
  run(2, [](RankContext& rank) {
    for (int round = 0; round < 20; ++round) {
      Promise promise(&rank.world().scheduler(), rank.rank());
      std::vector<float> x = {1};
      std::vector<std::thread> threads;
      {
        const World::OutsideWaker waker = rank.world().outside_waker();
        for (int i = 0; i < 3; ++i) {
          threads.emplace_back([promise, &x]() mutable { promise.set_value({x}); });
        }
        threads.emplace_back([promise]() mutable { promise.set_error(absl::AbortedError("one of four")); });
        const std::string error = error_of([&] { EXPECT_EQ(promise.work().result().size(), 1U); });
        EXPECT_THAT(error, testing::AnyOf("no error", "Aborted: one of four"));
      }
      for (std::thread& thread : threads) thread.join();
    }
  });
}

// A rank that waits for threads of its own, in a way of its own, while they wait for the group.
class ThreadsOfARankTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, ThreadsOfARankTest, every_threads_world(), world_name);

TEST_P(ThreadsOfARankTest, WaitForOneWorkTogether) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    for (int round = 0; round < 10; ++round) {
      std::vector<float> x = {static_cast<float>(rank.rank() + round)};
      Work work = pg->all_reduce(x);
      std::vector<std::thread> threads;
      for (int i = 0; i < 4; ++i) {
        threads.emplace_back([work]() mutable {
          for (int k = 0; k < 5; ++k) {
            Work copy = work;
            copy.wait();
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      EXPECT_THAT(x, ElementsAre(static_cast<float>(2 * round + 1)));
    }
  });
}

// Of one failure, callbacks come before owners that go, whose destructors may wait for a callback.
TEST_P(AbortTest, AnOwnersDestructorMayWaitForACallback) {
  struct Owner {
    explicit Owner(std::shared_ptr<Latch> told) : told(std::move(told)) {}
    ~Owner() {
      error = error_of([this] { told->wait(); });
    }
    const std::shared_ptr<Latch> told;
    std::string error;
  };
  std::string told_of;
  const RunReport report = run_world({.world_size = 2, .schedule = schedule()}, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) return rank.store().wait({"done"});
    std::vector<float> x(1, 1), y(1, 1);
    const auto told = std::make_shared<Latch>(1);
    (void)pg->all_reduce(x, ReduceOp::kSum, {.keep_alive = std::make_shared<Owner>(told)});
    Work work = pg->all_reduce(y);
    work.then([told, &told_of](const absl::Status& status) {
      told_of = std::string(status.message());
      told->count_down();
    });
    pg->abort("no more");
    told->wait();
    rank.store().set("done", "");
  });
  EXPECT_THAT(told_of, HasSubstr("rank 0 aborted group 0: no more"));
  EXPECT_THAT(report.text(), Not(HasSubstr("Deadlock")));
}

class ThreadOutlivesTest : public OutlivesTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, ThreadOutlivesTest, every_threads_world(), world_name);

// A thread of the rank's own is in a wait that nobody can end when all ranks have returned.
TEST_P(ThreadOutlivesTest, AThreadInAWaitIsToldOfTheEnd) {
  std::thread thread;
  std::string error;
  auto x = std::make_shared<std::vector<float>>(1, 1.0F);
  run_and_end(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) return;
    thread = std::thread([pg, x, &error] { error = error_of([&] { pg->recv(*x, 1, 0, kept(x)).wait(); }); });
    rank.store().set("begun", "");
  });
  thread.join();
  // By how far it had come.
  EXPECT_THAT(error, testing::AnyOf(HasSubstr("the world has ended"), StartsWith("Deadlock: no rank can")));
}

// A world that is stuck asks its hook where ranks are; one that waits there would hang.
TEST(WhereaboutsDeathTest, AHookMustNotWait) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [] {
    World* asked = nullptr;
    WorldOptions options{.world_size = 1, .engine = EngineKind::kFibers};
    options.whereabouts = [&asked] { return asked->store().get("late"); };
    World world(std::move(options));
    asked = &world;
    (void)world.run([](RankContext& rank) { rank.store().wait({"never"}); });
  };
  EXPECT_DEATH(run(),
               "a hook of the world \\(whereabouts, on_abort\\) waits in store get key \"late\": hooks must not wait");
}

}  // namespace
}  // namespace rankloom

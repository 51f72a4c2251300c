// Faults by plan: what the rank and its peers see, and that a search makes them small.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/error.h"
#include "rankloom/explore.h"
#include "rankloom/process_group.h"
#include "rankloom/stream.h"
#include "rankloom/sync.h"
#include "rankloom/world.h"
#include "sim/base/text.h"
#include "tests/error_of.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using Kind = Fault::Kind;
using When = Fault::When;

class FaultTest : public EveryWorldTest {
 protected:
  RunReport run(int ranks, FaultPlan faults, Program program) {
    WorldOptions world = options(ranks);
    world.faults = std::move(faults);
    return run_world(std::move(world), program);
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, FaultTest, every_world(), world_name);

void reduce_twice(RankContext& rank) {
  auto pg = init_process_group(rank);
  std::vector<float> x = {1.0f + static_cast<float>(rank.rank())};
  pg->all_reduce(x).wait();
  pg->all_reduce(x).wait();
}

// A search varies the seed by one from run to run.
TEST(FaultOnFibersTest, SeedsInARowDrawDifferently) {
  std::set<absl::Duration> drawn;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    WorldOptions world{.world_size = 1, .engine = EngineKind::kFibers};
    world.faults = FaultPlan::seeded(seed, 1, {Kind::kDelay});
    const RunReport report = run_world(std::move(world), [](RankContext& rank) {
      for (int i = 0; i < 8; ++i) rank.store().set("key", "value");
    });
    EXPECT_EQ(report.faults.size(), 8) << seed;
    for (const Fault& fault : report.faults) drawn.insert(fault.by);
  }
  EXPECT_GT(drawn.size(), 350);  // of 512 numbers to 1000 some are alike
}

TEST_P(FaultTest, ACrashIsTheHeadlineAndPeersSeeAFailedRank) {
  for (const When when : {When::kBefore, When::kInside, When::kAfter}) {
    std::vector<std::string> seen(3);
    const RunReport report =
        run(3, {{.kind = Kind::kCrash, .rank = 1, .seq = 2, .when = when}}, [&](RankContext& rank) {
          try {
            auto pg = init_process_group(rank);
            std::vector<float> x = {1};
            for (int i = 0; i < 3; ++i) pg->all_reduce(x).wait();
          } catch (const DistError& error) {
            seen[static_cast<size_t>(rank.rank())] = error.what();
            throw;
          }
        });
    const char* const names[] = {"before", "inside", "after"};
    const std::string text = absl::StrCat("rank 1 failed: group 0, all_reduce seq 2: the rank crashed (injected, ",
                                          names[static_cast<size_t>(when)], " the call)");
    EXPECT_EQ(report.first_failed, 1);
    EXPECT_THAT(report.text(), HasSubstr(text));
    EXPECT_EQ(seen[1], "") << "a crash cannot be caught";
    EXPECT_THAT(seen[0], AllOf(HasSubstr("RankFailed"), HasSubstr(text)));
    EXPECT_THAT(seen[2], HasSubstr(text));
    ASSERT_EQ(report.faults.size(), 1u);
    EXPECT_EQ(report.faults[0].rank, 1);
    EXPECT_EQ(report.faults[0].nth, 2);
  }
}

TEST_P(FaultTest, AHangIsADeadlockThatNamesIt) {
  const RunReport report = run(2, {{.kind = Kind::kHang, .rank = 0, .op = "all_reduce", .seq = 2}}, reduce_twice);
  EXPECT_THAT(report.text(),
              AllOf(HasSubstr("Deadlock: no rank can move"), HasSubstr("rank 0 waits in a hang (injected) seq 2"),
                    HasSubstr("rank 1 waits in all_reduce seq 2 for rank 0")));
}

// Rank 1 would take rank 2's message, and then the one that rank 0 has sent under another tag.
TEST_P(FaultTest, NoPeerOfARankThatHangsIsToldOfAMismatch) {
  const auto job = [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1}, y = {2};
    if (rank.rank() == 0) pg->send(x, 1, /*tag=*/15).wait();
    if (rank.rank() == 1) {
      pg->recv_any(y, /*tag=*/8).wait();
      pg->recv(x, 0, /*tag=*/15).wait();
    }
    if (rank.rank() == 2) pg->send(y, 1, /*tag=*/8).wait();
  };
  EXPECT_TRUE(run(3, {}, job).ok());
  const RunReport report = run(3, {{.kind = Kind::kHang, .rank = 2, .op = "send"}}, job);
  EXPECT_EQ(error_kind(report.cause), ErrorKind::kDeadlock) << report.text();
  EXPECT_THAT(report.text(),
              AllOf(HasSubstr("Deadlock: no rank can move"), HasSubstr("rank 2 waits in a hang (injected) send"),
                    HasSubstr("rank 1 waits in recv_any"), Not(HasSubstr("Mismatch"))));
}

TEST_P(FaultTest, ADelayCostsVirtualTimeAndCanMeetATimeout) {
  if (!deterministic()) GTEST_SKIP() << "would take minutes of real time";
  const Fault slow{.kind = Kind::kDelay, .rank = 1, .by = absl::Minutes(2)};
  absl::Duration took;
  EXPECT_TRUE(run(2, {slow}, [&took](RankContext& rank) {
                reduce_twice(rank);
                if (rank.rank() == 1) took = rank.now();
              }).ok());
  EXPECT_EQ(took, absl::Minutes(4)) << "each call of a slow rank is slow";
  const RunReport report = run(2, {slow}, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    pg->all_reduce(x).wait(absl::Minutes(1));
  });
  EXPECT_THAT(report.text(),
              HasSubstr("Timeout: rank 0, group 0, all_reduce seq 1: timed out after 1m waiting for rank 1"));
}

void pass_on(RankContext& rank) {
  auto pg = init_process_group(rank);
  std::vector<float> x = {3};
  if (rank.rank() == 0) {
    pg->send(x, 1).wait();
  } else {
    std::vector<float> y = {0};
    pg->recv(y, 0).wait();
    if (y[0] != 3) throw std::runtime_error(absl::StrCat("received ", y[0]));
  }
  if (x[0] != 3) throw std::runtime_error("the sender's own numbers changed");
}

TEST_P(FaultTest, ADroppedSendNeverArrives) {
  const RunReport report = run(2, {{.kind = Kind::kDrop, .op = "send"}}, pass_on);
  EXPECT_THAT(report.text(),
              AllOf(HasSubstr("Deadlock"), HasSubstr("rank 1 waits in recv seq 1 for rank 0 (returned)")));
}

TEST_P(FaultTest, ADuplicatedSendArrivesTwice) {
  const RunReport report = run(2, {{.kind = Kind::kDuplicate}}, pass_on);
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("rank 0, group 0, send to rank 1: was never received")));
}

TEST_P(FaultTest, ACorruptSendReachesOnlyTheReceiver) {
  const RunReport report = run(2, {{.kind = Kind::kCorrupt, .op = "send"}}, pass_on);
  EXPECT_EQ(report.first_failed, 1);
  EXPECT_THAT(report.text(), HasSubstr("received "));
}

TEST_P(FaultTest, CorruptOutputsAreThoseOfOneRank) {
  std::vector<float> sums(3);
  const RunReport report = run(3, {{.kind = Kind::kCorrupt, .rank = 2, .when = When::kAfter}}, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    pg->all_reduce(x).wait();
    sums[static_cast<size_t>(rank.rank())] = x[0];
  });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_EQ(sums[0], 3);
  EXPECT_EQ(sums[1], 3);
  EXPECT_NE(sums[2], 3);
}

// Once the rank has learned in another way that the call is done, the outputs are its own: the bit that flips then
// would be one of whatever stands there now.
TEST_P(FaultTest, OutputsThatAreTheRanksAgainAreNotCorrupted) {
  for (const bool polls : {true, false}) {
    const RunReport report = run(2, {{.kind = Kind::kCorrupt, .rank = 1, .op = "all_reduce", .when = When::kAfter}},
                                 [polls](RankContext& rank) {
                                   auto pg = init_process_group(rank);
                                   std::vector<float> x = {1};
                                   Work work = pg->all_reduce(x);
                                   if (polls) {
                                     while (!work.is_completed()) rank.yield();
                                   } else {
                                     destroy_process_group(pg);
                                   }
                                   EXPECT_EQ(x[0], 2);
                                   x[0] = 7;
                                   work.wait();
                                   EXPECT_EQ(x[0], 7);
                                 });
    EXPECT_TRUE(report.ok()) << report.text();
    EXPECT_TRUE(report.faults.empty());
  }
}

// A stream that waits for a call with a fault has the last handle on it: the scheduler tells the name of the call after
// the call has gone. AddressSanitizer sees a name in memory that is gone.
TEST_P(FaultTest, AStreamWaitsForACallWithAFault) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    WorldOptions options = this->options(2);
    if (deterministic()) options.schedule = Schedule::seeded(seed);
    options.faults = {{.kind = Kind::kDelay, .rank = 0, .op = "barrier", .seq = 1, .when = When::kAfter}};
    const RunReport report = run_world(std::move(options), [](RankContext& rank) {
      auto pg = init_process_group(rank);
      SimStream stream(rank, "s");
      pg->barrier().block_current_stream(stream);
      stream.synchronize();
      pg->barrier().wait();
    });
    EXPECT_TRUE(report.ok()) << report.text();
  }
}

TEST_P(FaultTest, ACorruptCoalescedCallIsThatOfItsFirstPartWithATensor) {
  for (const When when : {When::kBefore, When::kInside, When::kAfter}) {
    std::vector<std::vector<float>> got(2);
    const RunReport report =
        run(2, {{.kind = Kind::kCorrupt, .rank = 0, .op = "coalesced", .when = when}}, [&](RankContext& rank) {
          auto pg = init_process_group(rank);
          std::vector<float> none;
          const std::vector<float> sent = {10.0F + static_cast<float>(rank.rank())};
          std::vector<float>& received = got[static_cast<size_t>(rank.rank())] = {0};
          pg->start_coalescing();
          (void)pg->send(none, 1 - rank.rank(), 1);
          (void)pg->recv(none, 1 - rank.rank(), 1);
          (void)pg->send(sent, 1 - rank.rank());
          (void)pg->recv(received, 1 - rank.rank());
          pg->end_coalescing().wait();
          EXPECT_EQ(sent[0], 10.0F + static_cast<float>(rank.rank())) << "the caller's own numbers stay";
        });
    EXPECT_TRUE(report.ok()) << report.text();
    EXPECT_EQ(report.faults.size(), 1u);
    EXPECT_EQ(got[0][0] != 11, when == When::kAfter);
    EXPECT_EQ(got[1][0] != 10, when != When::kAfter);
  }
}

TEST_P(FaultTest, WhatHasNoSuchTensorIsNotCorruptedAndTheReportSaysSo) {
  const FaultPlan faults = {{.kind = Kind::kCorrupt, .op = "recv"},
                            {.kind = Kind::kCorrupt, .op = "send", .when = When::kAfter}};
  const RunReport report = run(2, faults, pass_on);
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_TRUE(report.faults.empty());
  EXPECT_THAT(
      report.notes,
      ElementsAre("the fault corrupt@op=recv did not happen: its calls cannot go wrong like that, want a call of a "
                  "group that reads memory of the host",
                  "the fault corrupt@op=send,when=after did not happen: its calls cannot go wrong like that, want "
                  "a call of a group that writes to memory of the host"));
}

// A call that only writes is corrupted after it.
TEST_P(FaultTest, ADrawnCorruptionHitsARecv) {
  const RunReport report = run(2, FaultPlan::seeded(1, 1, {Kind::kCorrupt}), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    rank.rank() == 0 ? pg->send(x, 1).wait() : pg->recv(x, 0).wait();
  });
  std::vector<int> ranks;
  for (const Fault& fault : report.faults) ranks.push_back(fault.rank);
  EXPECT_THAT(ranks, testing::UnorderedElementsAre(0, 1));
}

TEST_P(FaultTest, NoByteOfAnEmptyTensorIsCorrupted) {
  const FaultPlan faults = {{.kind = Kind::kCorrupt, .op = "all_reduce"},
                            {.kind = Kind::kCorrupt, .op = "all_reduce", .when = When::kAfter}};
  const RunReport report = run(2, faults, [](RankContext& rank) {
    std::vector<float> x = {1, 2};
    init_process_group(rank)->all_reduce(std::span(x).first(0)).wait();
    EXPECT_THAT(x, ElementsAre(1, 2));
  });
  EXPECT_TRUE(report.faults.empty());
  EXPECT_EQ(report.notes.size(), 2U);
}

TEST_P(FaultTest, AFaultBehindACrashDidNotHappen) {
  const FaultPlan faults = {
      {.kind = Kind::kCrash, .rank = 1, .op = "all_reduce"},
      {.kind = Kind::kDelay, .rank = 1, .op = "all_reduce", .when = When::kInside, .by = absl::Milliseconds(1)}};
  const RunReport report = run(2, faults, reduce_twice);
  ASSERT_EQ(report.faults.size(), 1U);
  EXPECT_EQ(report.faults[0].kind, Kind::kCrash);
}

TEST_P(FaultTest, ThereIsNoCallNumberZero) {
  EXPECT_THAT(
      run(2, {{.kind = Kind::kCrash, .op = "all_reduce", .nth = 0}}, reduce_twice).notes,
      ElementsAre("the fault crash@op=all_reduce,nth=0 did not happen: it fits no rank's call number 0, of 1 to "
                  "2"));
}

TEST_P(FaultTest, AFaultThatFitsNoCallIsNamedWithTheCallsThereWere) {
  const FaultPlan faults = {{.kind = Kind::kCrash, .op = "all_redcue"},
                            {.kind = Kind::kCrash, .op = "all_reduce", .nth = 3},
                            {.kind = Kind::kDrop, .op = "all_reduce"},
                            {.kind = Kind::kCrash, .rank = 1, .op = "barrier", .maybe = true},
                            {.kind = Kind::kDelay, .op = "all_reduce", .maybe = true}};
  const RunReport report = run(2, faults, reduce_twice);
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_THAT(
      report.notes,
      ElementsAre(
          "the fault crash@op=all_redcue did not happen: it fits no call; there were all_reduce",
          "the fault crash@op=all_reduce,nth=3 did not happen: it fits no rank's call number 3, of 1 to 2",
          "the fault drop@op=all_reduce did not happen: its calls cannot go wrong like that, want a send",
          "the fault crash@rank=1,op=barrier,maybe=true did not happen: it fits no call; there were all_reduce"));
  EXPECT_THAT(report.text(), HasSubstr("note: the fault crash@op=all_redcue did not happen"));
}

TEST_P(FaultTest, TheRootOfABroadcastSendsACorruptBit) {
  std::vector<float> got(2);
  const RunReport report = run(2, {{.kind = Kind::kCorrupt, .rank = 0, .op = "broadcast"}}, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {rank.rank() == 0 ? 3.0F : 0.0F};
    pg->broadcast(x, 0).wait();
    got[static_cast<size_t>(rank.rank())] = x[0];
  });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_NE(got[1], 3);
  EXPECT_EQ(report.faults.size(), 1u);
}

TEST_P(FaultTest, AFaultBehindACallThatIsDoneAtOnceStrikes) {
  const FaultPlan crash = {{.kind = Kind::kCrash, .rank = 0, .when = When::kAfter}};
  const RunReport crashed = run(1, crash, [](RankContext& rank) {
    auto pg = init_process_group(rank, {.backend = GroupOptions::Backend::kFake});
    std::vector<float> x = {1};
    pg->all_reduce(x).wait();
    ADD_FAILURE() << "survived";
  });
  EXPECT_THAT(crashed.text(),
              HasSubstr("rank 0 failed: group 0, all_reduce seq 1: the rank crashed (injected, after the "
                        "call)"));
  float seen = 0;
  const FaultPlan corrupt = {{.kind = Kind::kCorrupt, .rank = 0, .when = When::kAfter}};
  const RunReport corrupted = run(1, corrupt, [&seen](RankContext& rank) {
    auto pg = init_process_group(rank, {.backend = GroupOptions::Backend::kFake});
    std::vector<float> x = {1};
    pg->all_reduce(x).wait();
    seen = x[0];
  });
  EXPECT_TRUE(corrupted.ok()) << corrupted.text();
  EXPECT_NE(seen, 1);
}

TEST_P(FaultTest, AFaultBehindACallThatNobodyWaitsForDidNotHappen) {
  const FaultPlan faults = {{.kind = Kind::kCrash, .rank = 0, .op = "all_reduce", .seq = 1, .when = When::kAfter}};
  const RunReport report = run(2, faults, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const auto x = std::make_shared<std::vector<float>>(1, 1.0F);
    (void)pg->all_reduce(*x, ReduceOp::kSum, {.keep_alive = x});
    pg->barrier().wait();
  });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_TRUE(report.faults.empty());
  EXPECT_THAT(report.notes,
              ElementsAre("the fault crash@rank=0,op=all_reduce,seq=1,when=after did not happen: its call "
                          "failed, nobody waited for it, or only after the rank had learned that it was done"));
}

TEST_P(FaultTest, ARecvOfAnySenderIsNamedAsInItsErrors) {
  for (const char* const op : {"recv_any", "recv"}) {
    const RunReport report = run(2, {{.kind = Kind::kCrash, .op = op}}, [](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<float> x = {1};
      rank.rank() == 0 ? pg->send(x, 1).wait() : pg->recv_any(x).wait();
    });
    EXPECT_THAT(report.text(),
                HasSubstr("rank 1 failed: group 0, recv_any: the rank crashed (injected, before the call)"));
  }
}

// A stream still knows the work, whose handle has gone.
TEST_P(FaultTest, ACallWithAFaultBehindItFreesItsOutputWithItsHandle) {
  const FaultPlan faults = {{.kind = Kind::kCorrupt, .rank = 1, .seq = 1, .when = When::kAfter}};
  const RunReport report = run(2, faults, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    SimStream stream(rank);
    Work first = pg->all_reduce(x);
    first.block_current_stream(stream);
    std::atomic<bool> passed{false};
    stream.launch([&passed] { passed = true; });
    while (!passed) rank.sleep_for(absl::Milliseconds(1));
    first = Work();
    pg->all_reduce(x).wait();
    EXPECT_EQ(x[0], 4);
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

// Nobody has the work, which goes on for its owner, but for the callback that is left with it.
TEST_P(FaultTest, ACallbackOfACallWithAFaultBehindItRuns) {
  std::atomic<int> told{0};
  const FaultPlan faults = {{.kind = Kind::kCorrupt, .seq = 1, .when = When::kAfter}};
  const RunReport report = run(2, faults, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto x = std::make_shared<std::vector<float>>(1, 1.0F);
    const auto done = std::make_shared<Latch>(1);
    pg->all_reduce(*x, ReduceOp::kSum, {.keep_alive = x}).then([done, &told](const absl::Status& status) {
      told += status.ok() ? 1 : 0;
      done->count_down();
    });
    done->wait();
  });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_EQ(told, 2);
}

TEST_P(FaultTest, APartOfACoalescedCallWithAFaultBehindItFreesItsOutput) {
  const FaultPlan faults = {
      {.kind = Kind::kDelay, .op = "coalesced", .when = When::kAfter, .by = absl::Milliseconds(1)}};
  const RunReport report = run(2, faults, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    pg->start_coalescing();
    Work part = pg->all_reduce(x);
    Work whole = pg->end_coalescing();
    part.wait();
    pg->all_reduce(x).wait();
    EXPECT_EQ(x[0], 4);
    whole.wait();
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

// Nothing strikes where no run is: the injector went with the world.
TEST_P(FaultTest, AWaitAfterTheEndOfTheWorldIsNotStruck) {
  for (const Kind kind : {Kind::kDelay, Kind::kCorrupt, Kind::kCrash, Kind::kHang, Kind::kAbort}) {
    std::vector<float> x = {1};
    Work kept;
    const RunReport report = run(1, {{.kind = kind, .when = When::kAfter, .by = absl::Seconds(1)}},
                                 [&](RankContext& rank) { kept = init_process_group(rank)->all_reduce(x); });
    kept.wait();
    EXPECT_THAT(x, ElementsAre(1)) << report.text();
    kept.wait(absl::Seconds(1));
  }
}

// A thread of no rank that waits is a helper of the work's rank, for what strikes there, too.
TEST_P(FaultTest, AThreadOfARankThatWaitsIsStruckAsItsRank) {
  if (GetParam().engine != EngineKind::kThreads) GTEST_SKIP() << "fibers share one thread";
  for (const Kind kind : {Kind::kDelay, Kind::kCrash}) {
    std::string error;
    const RunReport report =
        run(1, {{.kind = kind, .when = When::kAfter, .by = absl::Milliseconds(1)}}, [&](RankContext& rank) {
          std::vector<float> x = {1};
          Work work = init_process_group(rank)->all_reduce(x);
          std::thread([&] { error = error_of([&] { work.wait(); }); }).join();
        });
    if (kind == Kind::kDelay) {
      EXPECT_EQ(error, "no error");
      EXPECT_TRUE(report.ok()) << report.text();
    } else {
      EXPECT_THAT(error, HasSubstr("the rank crashed (injected, after the call)"));
      EXPECT_THAT(report.text(), HasSubstr("the rank crashed (injected, after the call)"));
    }
  }
}

// A corrupt input is a copy, which makes no owner of the call's outputs: the dropped call is taken back.
TEST_P(FaultTest, ACorruptInputKeepsNoOutputsOfADroppedCall) {
  const FaultPlan faults = {{.kind = Kind::kCorrupt, .rank = 0, .op = "all_gather_into_tensor"}};
  const RunReport report = run(2, faults, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> in = {1.0F + static_cast<float>(rank.rank())};
    if (rank.rank() == 0) {
      {
        std::vector<float> out(2);
        (void)pg->all_gather_into_tensor(out, in);
      }
      rank.store().set("gone", "1");
    } else {
      rank.store().wait({"gone"});
      std::vector<float> out(2);
      pg->all_gather_into_tensor(out, in).wait();
    }
  });
  EXPECT_THAT(report.text(),
              HasSubstr("rank 0 failed: group 0, all_gather_into_tensor seq 1: the work was dropped unfinished"));
}

TEST_P(FaultTest, AnAbortEndsTheGroupForAll) {
  for (const When when : {When::kBefore, When::kInside, When::kAfter}) {
    const RunReport report = run(2, {{.kind = Kind::kAbort, .rank = 1, .seq = 1, .when = when}}, reduce_twice);
    EXPECT_THAT(report.text(), HasSubstr("rank 1 aborted group 0: injected, "));
  }
}

TEST_P(FaultTest, TwoWaitsForOneCallAreStruckOnce) {
  const RunReport report = run(2, {{.kind = Kind::kCorrupt, .rank = 0, .when = When::kAfter}}, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    Work work = pg->all_reduce(x);
    Latch ended(1);
    rank.world().spawn_helper([&, copy = work]() mutable {
      copy.wait();
      ended.count_down();
    });
    work.wait();
    ended.wait();
    EXPECT_EQ(x[0] != 2, rank.rank() == 0);  // a bit that is flipped twice is none
  });
  EXPECT_THAT(report.faults, testing::SizeIs(1)) << report.text();
}

TEST_P(FaultTest, AnAbortEndsAFakeGroup) {
  for (const When when : {When::kBefore, When::kInside, When::kAfter}) {
    const RunReport report =
        run(2, {{.kind = Kind::kAbort, .rank = 1, .seq = 1, .when = when}}, [&](RankContext& rank) {
          auto pg = init_process_group(rank, {.backend = GroupOptions::Backend::kFake});
          std::vector<float> x = {1};
          pg->all_reduce(x).wait();
          pg->all_reduce(x).wait();
        });
    EXPECT_EQ(report.first_failed, 1) << report.text();
    EXPECT_THAT(
        report.text(),
        AllOf(HasSubstr(when == When::kBefore ? "all_reduce seq 1: the group failed before"
                                              : "all_reduce seq 2: the group failed before"),
              HasSubstr(absl::StrCat("rank 1 aborted group 0: injected, ", sv(fault_when_name(when)), " the call"))));
  }
}

TEST_P(FaultTest, AStoreOperationTimesOut) {
  const RunReport report =
      run(2, {{.kind = Kind::kStoreTimeout, .rank = 0, .op = "store get", .nth = 2}}, [](RankContext& rank) {
        rank.store().set("k", "v");
        rank.store().get("k");
        rank.store().get("k");
      });
  EXPECT_EQ(report.first_failed, 0);
  EXPECT_THAT(report.text(), HasSubstr("Timeout: rank 0, store get: timed out (injected, before the call)"));
}

TEST_P(FaultTest, AStoreOperationMayTimeOutWhenItIsDone) {
  const FaultPlan faults = {{.kind = Kind::kStoreTimeout, .op = "store set", .when = When::kAfter},
                            {.kind = Kind::kStoreTimeout, .op = "store append", .when = When::kInside}};
  const RunReport report = run(1, faults, [](RankContext& rank) {
    Store& store = rank.store();
    EXPECT_THAT(error_of([&] { store.set("k", "v"); }, ErrorKind::kTimeout), HasSubstr("(injected, after the call)"));
    EXPECT_EQ(store.get("k"), "v");
    EXPECT_THAT(error_of([&] { store.append("k", "w"); }, ErrorKind::kTimeout),
                HasSubstr("(injected, inside the call)"));
    EXPECT_EQ(store.get("k"), "v");  // as before the call
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

TEST_P(FaultTest, ADuplicateHappensOnceWheneverItIsToHappen) {
  for (const When when : {When::kBefore, When::kInside, When::kAfter}) {
    FaultPlan plan{{.kind = Kind::kDuplicate, .rank = 0, .op = "send", .nth = 1, .when = when}};
    for (int again = 0; again < 2; ++again) {
      const RunReport report = run(2, plan, [](RankContext& rank) {
        auto pg = init_process_group(rank);
        std::vector<float> x = {1};
        if (rank.rank() == 0) return pg->send(x, 1).wait();
        pg->recv(x, 0).wait();
        pg->recv(x, 0).wait();
      });
      EXPECT_TRUE(report.ok()) << report.text();
      ASSERT_EQ(report.faults.size(), 1U);
      plan = report.faults;
    }
  }
}

TEST_P(FaultTest, ADuplicatedSendHasTheDataAndTagOfTheFirst) {
  const RunReport report = run(2, {{.kind = Kind::kDuplicate}}, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {3}, first(1), second(1);
    if (rank.rank() == 0) {
      pg->send(x, 1, /*tag=*/5).wait();
      x[0] = 9;
    } else {
      pg->recv(first, 0, /*tag=*/5).wait();
      pg->recv(second, 0, /*tag=*/5).wait();
      EXPECT_THAT(first, ElementsAre(3));
      EXPECT_THAT(second, ElementsAre(3));
    }
  });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_THAT(report.notes, testing::IsEmpty());
}

TEST_P(FaultTest, DrawnFaultsAreThoseOfTheSeed) {
  // Bits of the own buffer flip, and all goes on.
  const auto drawn = [this](uint64_t seed, uint64_t schedule) {
    WorldOptions world = options(4);
    if (deterministic()) world.schedule = Schedule::seeded(schedule);
    world.faults = FaultPlan::seeded(seed, 0.05, {Kind::kCorrupt});
    const RunReport report = run_world(std::move(world), [](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<float> x = {1};
      for (int i = 0; i < 20; ++i) pg->all_reduce(x).wait();
    });
    EXPECT_TRUE(report.ok()) << report.text();
    return report.faults;
  };
  const auto sorted_texts = [](const std::vector<Fault>& faults) {
    std::vector<std::string> texts;
    for (const Fault& fault : faults) texts.push_back(fault.text());
    std::sort(texts.begin(), texts.end());
    return texts;
  };
  const std::vector<std::string> first = sorted_texts(drawn(1, 1));
  EXPECT_FALSE(first.empty());
  EXPECT_EQ(first, sorted_texts(drawn(1, 2))) << "the schedule changes nothing";
  EXPECT_NE(first, sorted_texts(drawn(2, 1)));
}

TEST(FaultPlanTest, ReadsWhatItWrites) {
  const FaultPlan plan =
      FaultPlan::seeded(7, 0.25, {Kind::kDrop, Kind::kStoreTimeout})
          .plus({{.kind = Kind::kCrash, .rank = 1, .op = "all_reduce", .seq = 3, .when = When::kInside},
                 {.kind = Kind::kDelay, .group = "tp", .nth = 2, .by = absl::Seconds(90), .maybe = true}});
  const std::string text = plan.text();
  EXPECT_EQ(text,
            "crash@rank=1,op=all_reduce,seq=3,when=inside;delay@group=tp,nth=2,by=1m30s,maybe=true;"
            "seeded:7:0.25:drop:store_timeout");
  const absl::StatusOr<FaultPlan> parsed = FaultPlan::parse(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->text(), text);
  EXPECT_EQ(parsed->faults(), plan.faults());
  EXPECT_THAT(std::string(FaultPlan::parse("crash@rank=one").status().message()),
              HasSubstr("cannot read \"rank=one\""));
  EXPECT_THAT(std::string(FaultPlan::parse("fire").status().message()), HasSubstr("unknown kind \"fire\""));
  EXPECT_THAT(std::string(FaultPlan::parse("seeded:1:2").status().message()), HasSubstr("0 <= RATE <= 1"));
}

// The text of a plan after it was read and written, or why it cannot be read.
std::string read_and_written(std::string_view text) {
  const absl::StatusOr<FaultPlan> plan = FaultPlan::parse(text);
  return plan.ok() ? plan->text() : std::string(plan.status().message());
}

TEST(FaultPlanTest, NamesMayHaveWhatEndsThem) {
  const FaultPlan plan = {{.kind = Kind::kCrash, .rank = 1, .group = "a,rank=0;drop", .op = "100%2c"}};
  EXPECT_EQ(plan.text(), "crash@rank=1,group=a%2crank=0%3bdrop,op=100%252c");
  EXPECT_EQ(FaultPlan::parse(plan.text())->faults(), plan.faults());
  const FaultPlan with_nul = {{.kind = Kind::kCrash, .group = std::string("a\0b", 3)}};
  EXPECT_EQ(with_nul.text(), "crash@group=a%00b") << "a variable of the environment ends at a NUL";
  EXPECT_EQ(FaultPlan::parse(with_nul.text())->faults(), with_nul.faults());
  const absl::StatusOr<FaultPlan> by_hand = FaultPlan::parse("hang@group=100%,op=5%x");
  ASSERT_TRUE(by_hand.ok()) << by_hand.status();
  EXPECT_EQ(by_hand->faults()[0].group, "100%");
  EXPECT_EQ(by_hand->faults()[0].op, "5%x");
}

TEST(FaultPlanTest, EveryDigitOfARateIsWritten) {
  for (const double rate : {0.123456789, 1e-300, 1.0 / 3, 0.1, 0.25}) {
    const FaultPlan plan = FaultPlan::seeded(1, rate);
    EXPECT_EQ(FaultPlan::parse(plan.text())->rate(), rate) << plan.text();
  }
  EXPECT_EQ(FaultPlan::seeded(1, 0.1).text(), "seeded:1:0.1");
  EXPECT_EQ(read_and_written(FaultPlan::seeded(7, 1).text()), "seeded:7:1");
}

TEST(FaultPlanTest, WhatIsNotAskedForComesBackToo) {
  EXPECT_EQ(read_and_written("crash@by=5s"), "crash@by=5s");
  EXPECT_EQ(read_and_written("crash@by=100ms,rank=-1"), "crash");
  EXPECT_EQ(read_and_written("seeded:7:0:crash"), "");
  EXPECT_EQ(FaultPlan::parse("seeded:7:0:crash")->seed(), 0u);
}

TEST(FaultPlanTest, RefusesWhatItCouldNotMean) {
  EXPECT_THAT(read_and_written("crash@rank=-5"), HasSubstr("fault \"crash@rank=-5\": cannot read \"rank=-5\""));
  EXPECT_THAT(read_and_written("crash@seq=-2"), HasSubstr("cannot read \"seq=-2\""));
  EXPECT_THAT(read_and_written("crash@nth=-2"), HasSubstr("cannot read \"nth=-2\""));
  EXPECT_EQ(read_and_written("seeded:1:0.5:crash;seeded:2:0.25"),
            "faults \"seeded:2:0.25\": drawn from a seed for the second time, want one seed");
  for (const char* text : {"seeded", "seeded:7", "seeded:1:0.5:fire"}) {
    EXPECT_EQ(read_and_written(text),
              absl::StrCat("faults \"", text, "\", want seeded:SEED:RATE[:KIND...] with 0 <= RATE <= 1"));
  }
  std::string many;
  for (int i = 0; i < 10'001; ++i) many += "drop;";
  EXPECT_EQ(read_and_written(many), "faults: more than 10000");
}

WorldOptions fibers(int ranks) { return {.world_size = ranks, .engine = EngineKind::kFibers}; }

TEST(ExploreFaultsOnFibersTest, DrawnFaultsThatDoNotVaryAreThoseOfThePlan) {
  std::set<float> sums;
  const auto draw = [&sums](bool vary) {
    WorldOptions world = fibers(2);
    world.faults = FaultPlan::seeded(1, 0.2, {Kind::kCorrupt});
    sums.clear();
    explore({.world = world, .strategies = {Strategy::random()}, .max_runs = 60, .vary_faults = vary},
            [&](RankContext& rank) {
              std::vector<float> x = {1.0f + static_cast<float>(rank.rank())};
              init_process_group(rank)->all_reduce(x).wait();
              sums.insert(x[0]);
            });
    return sums.size();
  };
  EXPECT_GT(draw(true), 3U);
  EXPECT_LE(draw(false), 2U);
  WorldOptions world = fibers(2);
  world.faults = FaultPlan::seeded(1, 1e-9);
  const auto verified = [&world](bool vary) {
    return explore({.world = world, .strategies = {Strategy::exhaustive()}, .vary_faults = vary},
                   [](RankContext& rank) { rank.store().add("n", 1); })
        .verified;
  };
  EXPECT_TRUE(verified(false));
  EXPECT_FALSE(verified(true));
}

TEST(ExploreFaultsOnFibersTest, ListedFaultsAreThereBesideDrawnOnes) {
  WorldOptions world = fibers(1);
  world.faults = FaultPlan::seeded(1, 1e-9).plus({{.kind = Kind::kDelay, .op = "store set", .by = absl::Seconds(1)}});
  std::set<absl::Duration> ends;
  explore({.world = world, .strategies = {Strategy::random()}, .max_runs = 20}, [&](RankContext& rank) {
    rank.store().set("k", "v");
    ends.insert(rank.now());
  });
  EXPECT_THAT(ends, ElementsAre(absl::Seconds(1)));
}

TEST(ExploreFaultsOnFibersTest, DrawnFaultsShrinkToTheOneThatMatters) {
  // Right with any delay, but not with a dropped send.
  WorldOptions world = fibers(3);
  world.faults = FaultPlan::seeded(1, 0.15, {Kind::kDelay, Kind::kDrop});
  const ExploreReport report = explore({.world = world, .strategies = {Strategy::random()}}, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    for (int i = 0; i < 4; ++i) {
      pg->all_reduce(x).wait();
      if (rank.rank() == 0) pg->send(x, 1).wait();
      if (rank.rank() == 1) pg->recv(x, 0).wait();
    }
  });
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  ASSERT_EQ(report.failure->world.faults.faults().size(), 1u) << report.text();
  EXPECT_EQ(report.failure->world.faults.faults()[0].kind, Kind::kDrop);
  EXPECT_EQ(report.failure->world.schedule.switches().size(), 0u);
  EXPECT_THAT(report.failure->rerun, HasSubstr("RANKLOOM_FAULTS=drop@rank=0,nth="));
}

TEST(ExploreFaultsOnFibersTest, AFaultThatFitsNoCallIsTold) {
  ExploreOptions options{.world = {.world_size = 2, .engine = EngineKind::kFibers}};
  options.world.faults = {{.kind = Kind::kCrash, .op = "barrier"}};
  const ExploreReport report = explore(options, reduce_twice);
  EXPECT_TRUE(report.ok()) << report.text();
  const std::string missed =
      "in the first run the fault crash@op=barrier did not happen: it fits no call; there were all_reduce";
  EXPECT_THAT(report.summary(), testing::EndsWith("; " + missed));
  EXPECT_THAT(report.text(), HasSubstr("\n  " + missed));
}

TEST(ExploreFaultsOnFibersTest, TheSearchChoosesWhetherAFaultHappens) {
  WorldOptions world = fibers(2);
  world.faults = {{.kind = Kind::kCorrupt, .rank = 0, .op = "all_reduce", .when = When::kAfter, .maybe = true}};
  const auto sums = [](RankContext& rank) {
    auto pg = init_process_group(rank);
    for (int i = 0; i < 3; ++i) {
      std::vector<float> x = {1};
      pg->all_reduce(x).wait();
      if (i == 2) observe(rank, "sum", x[0]);
    }
  };
  const ExploreReport all =
      explore({.world = world, .strategies = {Strategy::exhaustive()}, .checks = {.results = false}}, sums);
  EXPECT_TRUE(all.verified) << all.text();
  EXPECT_EQ(all.shares[0].schedules, 8);
  const ExploreReport found = explore({.world = world, .strategies = {Strategy::exhaustive()}}, sums);
  ASSERT_TRUE(found.failure.has_value()) << found.text();
  // The fault, and that it strikes: without the choice it strikes in the run that this one is compared with, too.
  EXPECT_EQ(found.failure->size(), 2) << found.text();
  EXPECT_THAT(found.failure->rerun, HasSubstr("maybe=true"));
}

TEST(ExploreFaultsOnFibersTest, WhatTheFaultsOfARunChangeIsNoDifferenceBetweenSchedules) {
  WorldOptions world = fibers(2);
  world.faults = FaultPlan::seeded(1, 0.2, {Kind::kCorrupt});
  std::set<float> sums;
  const ExploreReport report =
      explore({.world = world, .strategies = {Strategy::random()}, .max_runs = 60}, [&](RankContext& rank) {
        std::vector<float> x = {1.0f + static_cast<float>(rank.rank())};
        init_process_group(rank)->all_reduce(x).wait();
        sums.insert(x[0]);
        observe(rank, "sum", x[0]);
      });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_GT(sums.size(), 3u);
}

TEST(ExploreFaultsOnFibersTest, ADifferenceUnderDrawnFaultsIsRepeatedByItsCommand) {
  // In the order in which they come, ranks whose set() failed leave a note.
  const auto notes_of_failed = [](RankContext& rank) {
    const auto insist = [&](const auto& act) {
      for (;;) {
        try {
          return act();
        } catch (const DistError& error) {
          if (error.kind() != ErrorKind::kTimeout) throw;
        }
      }
    };
    insist([&] { return rank.store().append("log", ""); });
    try {
      rank.store().set(absl::StrCat("k", rank.rank()), "1");
    } catch (const DistError&) {
      insist([&] { return rank.store().append("log", absl::StrCat(rank.rank())); });
    }
    init_process_group(rank)->barrier().wait();
    observe(rank, "log", insist([&] { return rank.store().get("log"); }));
  };
  WorldOptions world = fibers(3);
  world.faults = FaultPlan::seeded(6, 0.3, {Kind::kStoreTimeout});
  const ExploreReport report = explore({.world = world, .strategies = {Strategy::random()}}, notes_of_failed);
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  const ExploreReport::Failure& failure = *report.failure;
  EXPECT_THAT(failure.headline, StartsWith("results differ between schedules: rank 0's \"log\" is"));
  EXPECT_EQ(failure.world.faults.faults().size(), 2u) << report.text();
  EXPECT_EQ(failure.world.schedule.switches().size(), 1u) << report.text();

  setenv("RANKLOOM_FAULTS", failure.world.faults.text().c_str(), 1);
  setenv("RANKLOOM_SCHEDULE", failure.world.schedule.text().c_str(), 1);
  const ExploreReport again = explore({.world = world, .strategies = {Strategy::random()}}, notes_of_failed);
  unsetenv("RANKLOOM_FAULTS");
  unsetenv("RANKLOOM_SCHEDULE");
  ASSERT_TRUE(again.failure.has_value()) << again.text();
  EXPECT_EQ(again.failure->headline, failure.headline);
}

TEST(ExploreFaultsOnFibersTest, TheCommandOfAFailureThatNeedsNoFaultHasNone) {
  WorldOptions world = fibers(2);
  world.faults = FaultPlan::seeded(1, 0.2, {Kind::kDelay});
  const ExploreReport report = explore({.world = world, .strategies = {Strategy::random()}}, [](RankContext& rank) {
    rank.store().append("log", absl::StrCat(rank.rank()));
    init_process_group(rank)->barrier().wait();
    observe(rank, "log", rank.store().get("log"));
  });
  ASSERT_TRUE(report.failure.has_value()) << report.text();
  EXPECT_TRUE(report.failure->world.faults.empty()) << report.text();
  EXPECT_THAT(report.failure->rerun,
              HasSubstr("RANKLOOM_FAULTS= RANKLOOM_ENGINE=fibers RANKLOOM_SCHEDULE='steered:1:"));
}

TEST(ExploreFaultsOnFibersTest, ARunThatGoesWellWhereTheDefaultOrderFailsWithItsFaultsIsAFailure) {
  // A failed set() of rank 0 fails rank 1 if that looks later, as it does in default order.
  const auto look = [](RankContext& rank) {
    try {
      if (rank.rank() == 0) rank.store().set("k", "1");
    } catch (const DistError&) {
      rank.store().add("failed", 1);
    }
    if (rank.rank() == 0) return;
    bool failed = false;
    try {
      failed = rank.store().check({"failed"});
    } catch (const DistError&) {  // the injected one
    }
    if (failed) throw std::runtime_error("rank 0 has failed");
  };
  WorldOptions world = fibers(2);
  world.faults = FaultPlan::seeded(1, 0.1, {Kind::kStoreTimeout});
  std::set<std::string> headlines;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const ExploreReport report =
        explore({.world = world, .strategies = {Strategy::random()}, .first_seed = seed, .max_shrink_runs = 0}, look);
    if (report.failure.has_value()) headlines.insert(report.failure->headline);
  }
  EXPECT_THAT(headlines, Contains(AllOf(StartsWith("with the same faults the run under steered:"),
                                        HasSubstr(" fails: "), HasSubstr("rank 0 has failed"))));
}

}  // namespace
}  // namespace rankloom

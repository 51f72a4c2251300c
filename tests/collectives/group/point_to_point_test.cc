#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/error.h"
#include "rankloom/matchers.h"
#include "rankloom/process_group.h"
#include "rankloom/world.h"
#include "tests/world/every_world.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

class PointToPointTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, PointToPointTest, every_world(), world_name);

TEST_P(PointToPointTest, MovesWhatIsSent) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> mine = {10 * rank.rank(), 10 * rank.rank() + 1};
    std::vector<int32_t> got(2, -1);
    // A chain, so that sends come first on some ranks and recvs on others.
    if (rank.rank() > 0) pg->recv(got, rank.rank() - 1).wait();
    if (rank.rank() < 2) pg->send(mine, rank.rank() + 1).wait();
    if (rank.rank() > 0) {
      EXPECT_THAT(got, ElementsAre(10 * (rank.rank() - 1), 10 * (rank.rank() - 1) + 1));
    }
    EXPECT_THAT(mine, ElementsAre(10 * rank.rank(), 10 * rank.rank() + 1));
  });
}

TEST_P(PointToPointTest, RunsARingOfAsynchronousSends) {
  run(4, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const int next = (rank.rank() + 1) % 4;
    const int previous = (rank.rank() + 3) % 4;
    std::vector<double> mine(1000, rank.rank());
    std::vector<double> got(1000, -1);
    for (int round = 0; round < 4; ++round) {
      Work sent = pg->send(mine, next);
      pg->recv(got, previous).wait();
      sent.wait();
      mine.swap(got);
    }
    EXPECT_EQ(mine, std::vector<double>(1000, rank.rank()));
  });
}

TEST_P(PointToPointTest, MovesMessagesToOneself) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const int me = rank.rank();
    std::vector<int32_t> first = {10 * me + 1};
    std::vector<int32_t> second = {10 * me + 2};
    std::vector<int32_t> got(2, -1);
    std::vector<int32_t> got_any(1, -1);
    // In either order of send and recv, of several tags, and from any source.
    Work sent = pg->send(first, me, 1);
    Work received = pg->recv_any(got_any, 2);
    pg->recv(std::span(got).first(1), me, 1).wait();
    pg->send(second, me, 2).wait();
    received.wait();
    sent.wait();
    EXPECT_EQ(received.source(), me);
    EXPECT_EQ(got[0], 10 * me + 1);
    EXPECT_EQ(got_any[0], 10 * me + 2);
    // Beside messages to and from others, in one batch.
    std::vector<int32_t> other(1, -1);
    std::vector<Work> batch = batch_isend_irecv({{P2POp::Kind::kSend, first, me, pg.get()},
                                                 {P2POp::Kind::kSend, second, 1 - me, pg.get()},
                                                 {P2POp::Kind::kRecv, std::span(got).last(1), me, pg.get()},
                                                 {P2POp::Kind::kRecv, other, 1 - me, pg.get()}});
    wait_all(batch);
    EXPECT_EQ(got[1], 10 * me + 1);
    EXPECT_EQ(other[0], 10 * (1 - me) + 2);
  });
}

TEST_P(PointToPointTest, NamesASendToOneselfThatNobodyCanReceive) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(2);
    if (rank.rank() == 0) pg->send(x, 0, 3, {}, CodeSite{"job/self.cc", 7}).wait(CodeSite{"job/self.cc", 8});
  });
  EXPECT_THAT(report.text(), AllOf(StartsWith("Deadlock: no rank can move\n"
                                              "  rank 0 waits in send seq 1 tag 3 for rank 0 [group 0, self.cc:8]\n"),
                                   HasSubstr("cycle: rank 0 -> rank 0\n")));
}

TEST_P(PointToPointTest, KeepsTheOrderOfOneTag) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<std::array<int64_t, 1>> values(20);
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i) {
      values[static_cast<size_t>(i)] = {rank.rank() == 0 ? 100 + i : -1};
      works.push_back(rank.rank() == 0 ? pg->send(values[static_cast<size_t>(i)], 1)
                                       : pg->recv(values[static_cast<size_t>(i)], 0));
    }
    wait_all(works);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(values[static_cast<size_t>(i)][0], 100 + i);
  });
}

TEST_P(PointToPointTest, MatchesByTag) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::array<int32_t, 1> a = {1};
    std::array<int32_t, 1> b = {2};
    if (rank.rank() == 0) {
      Work first = pg->send(a, 1, /*tag=*/5);
      Work second = pg->send(b, 1, /*tag=*/6);
      first.wait();
      second.wait();
    } else {
      pg->recv(a, 0, /*tag=*/6).wait();
      pg->recv(b, 0, /*tag=*/5).wait();
      EXPECT_EQ(a[0], 2);
      EXPECT_EQ(b[0], 1);
    }
  });
}

TEST_P(PointToPointTest, MovesAnEmptyTensor) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> nothing;
    // A send without bytes waits for its receiver, as any other.
    if (rank.rank() == 0) {
      Work sent = pg->send(nothing, 1);
      EXPECT_FALSE(sent.is_completed());
      rank.store().set("looked", "");
      sent.wait();
    } else {
      rank.store().wait({"looked"});
      Work got = pg->recv(nothing, 0);
      got.wait();
      EXPECT_EQ(got.source(), 0);
    }
  });
}

TEST_P(PointToPointTest, UsesRanksOfTheGroupAndManyTags) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    // More tags than a mailbox keeps channels for.
    for (int tag = 0; tag < 1000; ++tag) {
      std::array<int32_t, 1> value = {rank.rank() == 0 ? tag : -1};
      rank.rank() == 0 ? pg->send(value, 1, tag).wait() : pg->recv(value, 0, tag).wait();
      EXPECT_EQ(value[0], tag);
    }
  });
}

TEST_P(PointToPointTest, CompletesASendWhenItIsReceived) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::array<int32_t, 1> value = {rank.rank() + 7};
    if (rank.rank() == 0) {
      Work sent = pg->send(value, 1);
      rank.store().wait({"looked"}, absl::InfiniteDuration());
      sent.wait();
      EXPECT_TRUE(sent.is_success());
    } else {
      // Nobody receives yet.
      rank.store().set("looked", "");
      pg->recv(value, 0).wait();
      EXPECT_EQ(value[0], 7);
    }
  });
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::array<int32_t, 1> value = {rank.rank()};
    if (rank.rank() == 0) {
      Work sent = pg->send(value, 1);
      EXPECT_FALSE(sent.is_completed());
      rank.store().set("looked", "");
      sent.wait();
    } else {
      rank.store().wait({"looked"});
      pg->recv(value, 0).wait();
    }
  });
}

// Whether or not the receive was posted before, and however late calls complete.
TEST_P(PointToPointTest, CopiesAnEagerSendAtOnce) {
  const int seeds = seeded() ? 30 : 1;
  for (int seed = 1; seed <= seeds; ++seed) {
    for (const bool recv_first : {false, true}) {
      WorldOptions world = options(2);
      if (seeded()) world.schedule = Schedule::seeded(static_cast<uint64_t>(seed));
      const RunReport report = run(world, [recv_first](RankContext& rank) {
        auto pg = init_process_group(rank, {.eager_bytes = 64});
        std::vector<int32_t> value = {7, 8};
        if (rank.rank() == 0) {
          if (recv_first) rank.store().wait({"posted"});
          Work sent = pg->send(value, 1);
          EXPECT_TRUE(sent.is_success());
          value = {99, 98};
          sent.wait();
          value = {97, 96};
          (void)pg->send(value, 1);  // dropped, but done
          value = {95, 94};
          rank.store().set("sent", "");
          return;
        }
        value = {0, 0};
        std::vector<int32_t> second = {0, 0};
        if (!recv_first) rank.store().wait({"sent"});
        Work first_recv = pg->recv(value, 0);
        Work second_recv = pg->recv(second, 0);
        rank.store().set("posted", "");
        first_recv.wait();
        second_recv.wait();
        EXPECT_THAT(value, ElementsAre(7, 8));
        EXPECT_THAT(second, ElementsAre(97, 96));
      });
      EXPECT_TRUE(report.notes.empty()) << report.text();
    }
  }
}

TEST_P(PointToPointTest, TellsOnlyTheReceiverOfAnEagerSendsError) {
  const int seeds = seeded() ? 10 : 1;
  for (int seed = 1; seed <= seeds; ++seed) {
    WorldOptions world = options(2);
    if (seeded()) world.schedule = Schedule::seeded(static_cast<uint64_t>(seed));
    run(world, [](RankContext& rank) {
      auto pg = init_process_group(rank, {.eager_bytes = 64});
      if (rank.rank() == 0) {
        std::vector<int32_t> value = {7, 8};
        rank.store().wait({"posted"});
        Work sent = pg->send(value, 1);
        EXPECT_TRUE(sent.is_success());
        sent.wait();
        return;
      }
      std::vector<int32_t> value = {0, 0, 0};
      Work recv = pg->recv(value, 0);
      rank.store().set("posted", "");
      EXPECT_THAT([&] { recv.wait(); },
                  ThrowsDistError(ErrorKind::kMismatch, HasSubstr("sender and receiver issued different calls")));
      EXPECT_THAT(value, ElementsAre(0, 0, 0));
    });
  }
}

TEST_P(PointToPointTest, CompletesAnEagerSendAtOnce) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank, {.eager_bytes = 8});
    if (rank.rank() == 0) {
      std::vector<int32_t> value = {1, 2};
      Work sent = pg->send(value, 1);
      EXPECT_TRUE(sent.is_success());
      value = {3, 4};  // a copy travels
      std::vector<int32_t> three = {5, 6, 7};
      Work too_large = pg->send(three, 1);
      EXPECT_FALSE(too_large.is_completed());
      rank.store().set("sent", "");
      too_large.wait();
    } else {
      rank.store().wait({"sent"});
      std::vector<int32_t> value(2);
      std::vector<int32_t> three(3);
      pg->recv(value, 0).wait();
      pg->recv(three, 0).wait();
      EXPECT_THAT(value, ElementsAre(1, 2));
      EXPECT_THAT(three, ElementsAre(5, 6, 7));
    }
  });
}

TEST_P(PointToPointTest, ReceivesFromAnyoneAndTellsWho) {
  run(5, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::array<int32_t, 1> value = {100 + rank.rank()};
    if (rank.rank() != 2) {
      pg->send(value, 2, /*tag=*/3).wait();
      return;
    }
    std::set<int> sources;
    for (int i = 0; i < 4; ++i) {
      Work work = pg->recv_any(value, /*tag=*/3);
      work.wait();
      EXPECT_EQ(value[0], 100 + work.source());
      sources.insert(work.source());
    }
    EXPECT_EQ(sources, (std::set<int>{0, 1, 3, 4}));
  });
}

// Those that wait, and those that come later.
TEST_P(PointToPointTest, ReceivesFromAnyoneInTheOrderOfEachSource) {
  for (const bool sent_first : {true, false}) {
    run(3, [sent_first](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::array<int32_t, 6> values = {};
      if (rank.rank() > 0) {
        std::vector<Work> sent;
        for (int i = 0; i < 3; ++i) {
          values[static_cast<size_t>(i)] = 10 * rank.rank() + i;
          sent.push_back(pg->send(std::span(values).subspan(static_cast<size_t>(i), 1), 0, /*tag=*/4));
        }
        rank.store().set("sent " + std::to_string(rank.rank()), "");
        return wait_all(sent);
      }
      if (sent_first) rank.store().wait({"sent 1", "sent 2"});
      std::vector<Work> works;
      for (size_t i = 0; i < values.size(); ++i)
        works.push_back(pg->recv_any(std::span(values).subspan(i, 1), /*tag=*/4));
      wait_all(works);
      std::map<int, std::vector<int32_t>> by_source;
      for (size_t i = 0; i < values.size(); ++i) by_source[works[i].source()].push_back(values[i]);
      EXPECT_EQ(by_source, (std::map<int, std::vector<int32_t>>{{1, {10, 11, 12}}, {2, {20, 21, 22}}}));
    });
  }
}

TEST_P(PointToPointTest, TellsTheSourceOfARecvOnceItIsDone) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::array<int32_t, 1> value = {0};
    if (rank.rank() == 1) {
      Work work = pg->recv(value, 0);
      EXPECT_EQ(work.source(), -1);
      rank.store().set("posted", "");
      work.wait();
      EXPECT_EQ(work.source(), 0);
    } else {
      rank.store().wait({"posted"});
      Work work = pg->send(value, 1);
      work.wait();
      EXPECT_EQ(work.source(), -1);
    }
    EXPECT_EQ(Work().source(), -1);
  });
}

TEST_P(PointToPointTest, GivesASendToTheRecvThatWasPostedFirst) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::array<int32_t, 1> a = {1};
    std::array<int32_t, 1> b = {2};
    if (rank.rank() == 1) {
      Work any = pg->recv_any(a);
      Work named = pg->recv(b, 0);
      rank.store().set("posted", "");
      any.wait();
      named.wait();
      EXPECT_EQ(a[0], 1);
      EXPECT_EQ(b[0], 2);
    } else {
      rank.store().wait({"posted"});
      pg->send(a, 1).wait();
      pg->send(b, 1).wait();
    }
  });
}

TEST_P(PointToPointTest, GivesASendToANamedRecvThatWasPostedBeforeAnAnySource) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::array<int32_t, 1> a = {1};
    std::array<int32_t, 1> b = {2};
    if (rank.rank() == 1) {
      a = b = {0};
      Work named = pg->recv(b, 0);
      Work any = pg->recv_any(a);
      rank.store().set("posted", "");
      named.wait();
      any.wait();
      EXPECT_EQ(b[0], 1);
      EXPECT_EQ(a[0], 2);
    } else {
      rank.store().wait({"posted"});
      pg->send(a, 1).wait();
      pg->send(b, 1).wait();
    }
  });
}

// The source that the first of two recv_any takes when both sends are there.
int first_source(const WorldOptions& options, Trace* trace = nullptr) {
  int source = -1;
  const RunReport report = run_world(options, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::array<int32_t, 1> value = {rank.rank()};
    if (rank.rank() > 0) {
      Work sent = pg->send(value, 0);
      rank.store().add("sent", 1);
      if (rank.rank() == 1) rank.store().set("one", "");
      if (rank.rank() == 2) rank.store().set("two", "");
      sent.wait();
      return;
    }
    rank.store().wait({"one", "two"});
    Work first = pg->recv_any(value);
    first.wait();
    source = first.source();
    pg->recv_any(value).wait();
  });
  EXPECT_TRUE(report.ok()) << report.text();
  if (trace != nullptr) *trace = report.trace;
  return source;
}

TEST_P(PointToPointTest, LetsTheScheduleChooseAmongSources) {
  WorldOptions world = options(3);
  if (!seeded()) {
    EXPECT_EQ(first_source(world), 1);
    return;
  }
  std::set<int> seen;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    world.schedule = Schedule::seeded(seed);
    Trace trace;
    const int source = first_source(world, &trace);
    EXPECT_EQ(first_source(world), source) << "seed " << seed;
    world.schedule = Schedule::replay(trace);
    EXPECT_EQ(first_source(world), source) << "replay of seed " << seed;
    seen.insert(source);
  }
  EXPECT_EQ(seen, (std::set<int>{1, 2}));
}

TEST_P(PointToPointTest, PoisonsWhatIsNotYetReceived) {
  WorldOptions world = options(2);
  world.poison = true;
  run(world, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::array<float, 2> value = {1, 2};
    if (rank.rank() == 1) {
      Work work = pg->recv(value, 0);
      EXPECT_NE(value[0], value[0]);  // NaN
      rank.store().set("posted", "");
      work.wait();
      EXPECT_THAT(value, ElementsAre(1, 2));
    } else {
      rank.store().wait({"posted"});
      pg->send(value, 1).wait();
    }
  });
}

TEST_P(PointToPointTest, NamesAnInputThatChangesOnItsWay) {
  WorldOptions world = options(2);
  world.poison = true;
  const RunReport report = run_to_failure(world, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::array<float, 2> value = {1, 2};
    if (rank.rank() == 0) {
      Work work = pg->send(value, 1);
      value[1] = 3;
      rank.store().set("changed", "");
      work.wait();
    } else {
      rank.store().wait({"changed"});
      EXPECT_THAT([&] { pg->recv(value, 0).wait(); }, ThrowsDistError(ErrorKind::kInvalidArgument));
      EXPECT_THAT(value, ElementsAre(1, 2));  // put back
    }
  });
  EXPECT_THAT(report.text(),
              ContainsRegex("rank 0, group 0, send to rank 1: an input was changed or freed between the call "
                            "\\[point_to_point_test.cc:[0-9]+\\] and its completion, when rank 0 was at .*"
                            "\\[point_to_point_test.cc:[0-9]+\\], want it unchanged until wait\\(\\)"));
}

// ---- disagreement

TEST_P(PointToPointTest, TellsBothSidesOfADifferentSize) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> mine(static_cast<size_t>(rank.rank()) + 2, static_cast<float>(rank.rank()));
    if (rank.rank() == 1) {
      EXPECT_THAT([&] { pg->send(mine, 2, 4).wait(); }, ThrowsDistError(ErrorKind::kMismatch));
    }
    if (rank.rank() == 2) {
      EXPECT_THAT([&] { pg->recv(mine, 1, 4).wait(); }, ThrowsDistError(ErrorKind::kMismatch));
      EXPECT_THAT(mine, ElementsAre(2, 2, 2, 2));
      pg->barrier().wait();
    }
  });
  EXPECT_THAT(report.text(), ContainsRegex("rank 2 failed: Aborted: rank 2, group 0, barrier seq 1 "
                                           "\\[point_to_point_test.cc:[0-9]+\\]: the group failed before: group 0, "
                                           "send from rank 1 to rank 2, tag 4, seq 1: sender and receiver issued "
                                           "different calls\n"
                                           "  field . value . ranks . call site\n"
                                           "  shape . .3.   . 1     . point_to_point_test.cc:"));
}

TEST_P(PointToPointTest, TellsBothSidesOfADifferentType) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> f(2);
    std::vector<int32_t> i(2);
    if (rank.rank() == 0) pg->send(f, 1).wait();
    if (rank.rank() == 1) pg->recv_any(i).wait();
  });
  EXPECT_THAT(report.text(),
              AllOf(StartsWith("ranks 0-1 failed: Mismatch: group 0, send from rank 0 to rank 1, tag 0, seq 1: sender "
                               "and receiver issued different calls\n"
                               "  field | value   | ranks | call site\n"
                               "  dtype | float32 | 0     | point_to_point_test.cc:"),
                    HasSubstr("\nlast calls of rank 1:\n  recv seq 1 (scheduled) [group 0, point_to_point_test.cc:")));
}

// Each tag has its partner. Only the order is wrong.
TEST_P(PointToPointTest, ACircleOfMessagesWithOtherTagsIsADeadlock) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> a(1), b(1), c(1);
    if (rank.rank() == 0) {
      pg->recv(a, 1, 1).wait();
      pg->send(c, 1, 3).wait();
      pg->recv(b, 1, 2).wait();
    } else {
      Work early = pg->send(b, 0, 2);
      pg->recv(c, 0, 3).wait();
      pg->send(a, 0, 1).wait();
      early.wait();
    }
  });
  EXPECT_THAT(report.text(), AllOf(StartsWith("Deadlock"), HasSubstr("rank 0 waits in recv seq 1 tag 1 for rank 1"),
                                   HasSubstr("rank 1 waits in recv seq 2 tag 3 for rank 0")));
}

TEST_P(PointToPointTest, TellsOfADifferentTagWhenNobodyCanMove) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> f(2);
    if (rank.rank() == 0) pg->send(f, 1, 7).wait();
    if (rank.rank() == 1) pg->recv(f, 0, 8).wait();
  });
  EXPECT_THAT(
      report.text(),
      AllOf(StartsWith("Mismatch: group 0, send from rank 0 to rank 1, tag 7, seq 1: sender and receiver issued "
                       "different calls\n"
                       "  field | value | ranks | call site\n"
                       "  tag   | 7     | 0     | point_to_point_test.cc:"),
            HasSubstr(
                "\nno rank can move\n  rank 0 waits in send seq 1 tag 7 for rank 1 [group 0, point_to_point_test.cc:"),
            HasSubstr("\n  rank 1 waits in recv seq 1 tag 8 for rank 0 [group 0, point_to_point_test.cc:")));
}

// Rank 2 has left without the message that rank 0 would take before the one of the other tag.
TEST_P(PointToPointTest, ASenderIsNotToBlameWhereAnotherOneHasLeft) {
  if (!deterministic()) GTEST_SKIP() << "rank 2 may be on its way out when the others stand still";
  const auto program = [](bool leaves) {
    return [leaves](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<float> f(2);
      if (rank.rank() == 0) {
        pg->recv_any(f, 8).wait();
        pg->recv(f, 1, 7).wait();
      }
      if (rank.rank() == 1) pg->send(f, 0, 7).wait();
      if (rank.rank() == 2 && !leaves) pg->send(f, 0, 8).wait();
    };
  };
  run(3, program(false));
  const RunReport report = run_to_failure(3, program(true));
  if (report.outcomes.empty()) return;  // too few processes
  EXPECT_THAT(report.text(), AllOf(StartsWith("Deadlock: no rank can move\n"),
                                   HasSubstr("rank 0 waits in recv_any seq 1 tag 8 for rank 1 and rank 2 (returned)"),
                                   Not(HasSubstr("Mismatch"))));
}

// ---- waits that never end

TEST_P(PointToPointTest, NamesACycleOfSends) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> mine(2);
    std::vector<float> got(2);
    pg->send(mine, 1 - rank.rank()).wait();
    pg->recv(got, 1 - rank.rank()).wait();
  });
  EXPECT_THAT(report.text(), AllOf(StartsWith("Deadlock: no rank can move\n"),
                                   HasSubstr("rank 0 waits in send seq 1 for rank 1 [group 0, point_to_point_test.cc:"),
                                   HasSubstr("rank 1 waits in send seq 1 for rank 0 [group 0, point_to_point_test.cc:"),
                                   HasSubstr("cycle: rank 0 -> rank 1 -> rank 0\n")));
}

TEST_P(PointToPointTest, NamesASendToTheWrongRank) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {rank.rank()};
    if (rank.rank() == 0) pg->send(x, 2, 0, {}, CodeSite{"job/ring.cc", 7}).wait(CodeSite{"job/ring.cc", 8});
    if (rank.rank() == 1) pg->recv(x, 0, 0, {}, CodeSite{"job/ring.cc", 9}).wait(CodeSite{"job/ring.cc", 10});
  });
  EXPECT_THAT(report.text(),
              StartsWith("Deadlock: no rank can move\n"
                         "  rank 0 waits in send seq 1 for rank 2 (returned) [group 0, ring.cc:8]\n"
                         "  rank 1 waits in recv seq 1 for rank 0 [group 0, ring.cc:10]\n"
                         "  rank 1 waits for a send from rank 0 (tag 0), which has sent instead: send seq 1 to rank 2 "
                         "[ring.cc:7] (not received)\n"));
}

TEST_P(PointToPointTest, NamesASendToTheWrongRankOfASubgroup) {
  const RunReport report = run_to_failure(4, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto sub = pg->new_group({1, 2, 3});
    std::vector<int64_t> x = {rank.rank()};
    if (rank.rank() == 1) sub->send(x, 2).wait();
    if (rank.rank() == 2) sub->recv(x, 0).wait();
  });
  EXPECT_THAT(report.text(),
              HasSubstr("  rank 2 waits for a send from rank 1 (tag 0), which has sent instead: send seq 1 "
                        "to rank 3 [point_to_point_test.cc:"));
}

TEST_P(PointToPointTest, NamesEagerSendsUnderOtherTags) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank, {.eager_bytes = 64});
    std::vector<int64_t> x = {rank.rank()};
    if (rank.rank() == 0) {
      for (int tag = 1; tag < 6; ++tag) pg->send(x, 1, tag, {}, CodeSite{"job/ring.cc", 7}).wait();
    } else {
      pg->recv(x, 0, 8, {}, CodeSite{"job/ring.cc", 9}).wait(CodeSite{"job/ring.cc", 10});
    }
  });
  EXPECT_THAT(report.text(),
              StartsWith("Deadlock: no rank can move\n"
                         "  rank 1 waits in recv seq 1 tag 8 for rank 0 (returned) [group 0, ring.cc:10]\n"
                         "  rank 1 waits for a send from rank 0 (tag 8), which has sent instead: send seq 1 to rank 1, "
                         "tag 1 [ring.cc:7], send seq 2 to rank 1, tag 2 [ring.cc:7], send seq 3 to rank 1, tag 3 "
                         "[ring.cc:7] and 2 more (not received)\n"));
}

TEST_P(PointToPointTest, NamesTheRankThatReturned) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> got(2);
    if (rank.rank() == 0) pg->recv(got, 2).wait();
    if (rank.rank() == 1) pg->recv_any(got).wait();
  });
  EXPECT_THAT(
      report.text(),
      AllOf(HasSubstr("rank 0 waits in recv seq 1 for rank 2 (returned) [group 0, point_to_point_test.cc:"),
            HasSubstr(
                "rank 1 waits in recv_any seq 1 for rank 0 and rank 2 (returned) [group 0, point_to_point_test.cc:")));
}

TEST_P(PointToPointTest, TimesOutAndFailsTheGroup) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> got(2, 5);
    if (rank.rank() == 0) {
      EXPECT_THAT(
          [&] { pg->recv(got, 1, 9).wait(absl::Milliseconds(5)); },
          ThrowsDistError(ErrorKind::kTimeout, HasSubstr("rank 0, group 0, recv from rank 1, tag 9: timed out after "
                                                         "5ms waiting for rank 1 [group 0, point_to_point_test.cc:")));
      EXPECT_THAT(got, ElementsAre(5, 5));
      rank.store().set("late", "");
    } else if (rank.rank() == 1) {
      rank.store().wait({"late", "seen"});
      pg->send(got, 0, 9).wait();  // fails the job: not before rank 2 has seen why
    } else {
      EXPECT_THAT(
          [&] { pg->recv(got, 0).wait(); },
          ThrowsDistError(ErrorKind::kTimeout, HasSubstr("rank 0, group 0, recv from rank 1, tag 9: timed out")));
      rank.store().set("seen", "");
    }
  });
  EXPECT_THAT(report.text(), StartsWith("rank 0 failed: Timeout: rank 0, group 0, recv from rank 1, "
                                        "tag 9: timed out after 5ms waiting for rank 1"));
  EXPECT_THAT(report.text(), HasSubstr("\nrank 1 stopped for it"));
}

TEST_P(PointToPointTest, TimesOutInARecvFromAnyone) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> got(2);
    if (rank.rank() != 0) return rank.store().wait({"late"});
    EXPECT_THAT(
        [&] { pg->recv_any(got, 0, {.timeout = absl::Milliseconds(2)}).wait(); },
        ThrowsDistError(ErrorKind::kTimeout, HasSubstr("recv_any: timed out after 2ms waiting for ranks 1-2 [")));
    rank.store().set("late", "");
  });
}

TEST_P(PointToPointTest, EndsWaitsWhenTheGroupIsAborted) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> got(2);
    if (rank.rank() == 0) {
      Work work = pg->recv(got, 1);
      rank.store().set("waits", "");
      EXPECT_THAT([&] { work.wait(); },
                  ThrowsDistError(ErrorKind::kAborted, HasSubstr("rank 1 aborted group 0: enough")));
    } else {
      rank.store().wait({"waits"});
      pg->abort("enough");
      EXPECT_THAT(
          [&] { pg->send(got, 0).wait(); },
          ThrowsDistError(
              ErrorKind::kAborted,
              ContainsRegex("rank 1, group 0, send to rank 0 \\[point_to_point_test.cc:[0-9]+\\]: the group failed "
                            "before: rank 1 aborted group 0: enough")));
    }
  });
}

TEST_P(PointToPointTest, StopsWhenAPeerFails) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> got(2);
    if (rank.rank() == 1) throw std::runtime_error("boom");
    EXPECT_THAT([&] { pg->recv(got, 1).wait(); },
                ThrowsDistError(ErrorKind::kRankFailed, HasSubstr("rank 1 failed: boom")));
  });
  EXPECT_THAT(report.text(), StartsWith("rank 1 failed: boom"));
}

// ---- works that nobody waits for

TEST_P(PointToPointTest, NamesADroppedWorkAndWritesNowhere) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> value(2, rank.rank());
    if (rank.rank() == 0) {
      auto gone = std::make_unique<std::vector<int32_t>>(2);
      { Work dropped = pg->recv(*gone, 1, 3); }
      gone.reset();
      rank.store().set("dropped", "");
    } else {
      rank.store().wait({"dropped"});
      pg->send(value, 0, 3).wait();
    }
  });
  EXPECT_THAT(report.text(), AllOf(HasSubstr("\nrank 1 stopped for it"),
                                   HasSubstr("rank 0 failed: group 0, recv from rank 1, tag 3: the work was dropped "
                                             "unfinished, want wait() or keep_alive "
                                             "[group 0, point_to_point_test.cc:")));
}

TEST_P(PointToPointTest, LeavesADroppedWorkAloneThatOwnsItsTensor) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto value = std::make_shared<std::vector<int32_t>>(2, rank.rank());
    if (rank.rank() == 0) {
      { Work dropped = pg->recv(*value, 1, 0, {.keep_alive = value}); }
      rank.store().set("dropped", "");
      rank.store().wait({"received"});
      EXPECT_THAT(*value, ElementsAre(1, 1));
    } else {
      rank.store().wait({"dropped"});
      pg->send(*value, 0).wait();
      rank.store().set("received", "");
    }
  });
}

TEST_P(PointToPointTest, NotesWhatWasNeverMatched) {
  const RunReport report = run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank, {.eager_bytes = 64});
    auto value = std::make_shared<std::vector<int32_t>>(2, rank.rank());
    if (rank.rank() == 0) {
      for (int i = 0; i < 3; ++i) pg->send(*value, 1, 4).wait();
      pg->send(*value, 2).wait();
    }
    if (rank.rank() == 1) {
      { Work dropped = pg->recv_any(*value, 8, {.keep_alive = value}); }
      { Work dropped = pg->recv(*value, 2, 0, {.keep_alive = value}); }
    }
    if (rank.rank() == 2) pg->recv(*value, 0).wait();
  });
  EXPECT_THAT(report.notes,
              testing::UnorderedElementsAre(
                  StartsWith("rank 0, group 0, send to rank 1, tag 4: was never received, nor were the 2 after it "
                             "[group 0, point_to_point_test.cc:"),
                  StartsWith("rank 1, group 0, recv_any, tag 8: was never sent [group 0, point_to_point_test.cc:"),
                  StartsWith("rank 1, group 0, recv from rank 2: was never sent [group 0, point_to_point_test.cc:")));
}

// ---- batches

TEST_P(PointToPointTest, IssuesABatch) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const int next = (rank.rank() + 1) % 3;
    const int previous = (rank.rank() + 2) % 3;
    std::vector<int32_t> mine = {rank.rank(), 10 * rank.rank()};
    std::vector<int32_t> left(2);
    std::vector<int32_t> right(2);
    using Kind = P2POp::Kind;
    std::vector<Work> works =
        batch_isend_irecv({{.kind = Kind::kSend, .tensor = mine, .peer = next, .group = pg.get(), .tag = 1},
                           {.kind = Kind::kSend, .tensor = mine, .peer = previous, .group = pg.get(), .tag = 2},
                           {.kind = Kind::kRecv, .tensor = left, .peer = previous, .group = pg.get(), .tag = 1},
                           {.kind = Kind::kRecv, .tensor = right, .peer = next, .group = pg.get(), .tag = 2}});
    EXPECT_EQ(works.size(), 4U);
    wait_all(works);
    EXPECT_THAT(left, ElementsAre(previous, 10 * previous));
    EXPECT_THAT(right, ElementsAre(next, 10 * next));
  });
  EXPECT_THAT(batch_isend_irecv({}), IsEmpty());
}

TEST_P(PointToPointTest, IssuesNothingOfABatchWithAMistake) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> x(2);
    const P2POp good = {.kind = P2POp::Kind::kSend, .tensor = x, .peer = 1 - rank.rank(), .group = pg.get(), .tag = 0};
    const auto fails = [&](const P2POp& bad, const std::string& text) {
      EXPECT_THAT(
          [&] {
            batch_isend_irecv({good, bad});
          },
          ThrowsDistError(ErrorKind::kInvalidArgument, HasSubstr(text)));
    };
    P2POp bad = good;
    bad.peer = 2;
    fails(bad, "batch_isend_irecv: operation 1, send: destination is 2, want 0 <= destination < size = 2");
    bad = good;
    bad.kind = P2POp::Kind::kRecv;
    bad.peer = CollectiveCall::kAnySource;
    fails(bad, "batch_isend_irecv: operation 1, recv: source is -1, want 0 <= source < size = 2");
    bad = good;
    bad.group = nullptr;
    fails(bad, "batch_isend_irecv: operation 1, send: group is null");
    bad = good;
    bad.kind = static_cast<P2POp::Kind>(9);
    fails(bad, "batch_isend_irecv: operation 1, recv: kind is 9, want kSend or kRecv");
    bad = good;
    auto fake = init_process_group(rank, {.backend = GroupOptions::Backend::kFake});
    fake->set_group_name("other");
    bad.group = fake.get();
    fails(bad, "batch_isend_irecv: operation 1, send: group is other, want that of the first, 0");
    EXPECT_THAT([&] { batch_isend_irecv({{.kind = P2POp::Kind::kRecv, .tensor = x, .peer = 0, .group = nullptr}}); },
                ThrowsDistError(ErrorKind::kInvalidArgument, HasSubstr("operation 0, recv: group is null")));
    // Nothing was issued: a send would be dropped unfinished, and fail the group.
    pg->barrier().wait();
  });
}

// ---- arguments

TEST_P(PointToPointTest, RefusesArgumentsOutOfRange) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(4);
    const int me = rank.rank();
    const std::string who = absl::StrCat("InvalidArgument: rank ", me, ", group 0, ");
    const auto refuses = [](auto call, const std::string& text) {
      EXPECT_THAT(call, ThrowsDistError(ErrorKind::kInvalidArgument, StartsWith(text + " [point_to_point_test.cc:")));
    };
    refuses([&] { pg->send(x, 3).wait(); }, who + "send: destination is 3, want 0 <= destination < size = 3");
    refuses([&] { pg->send(x, -1).wait(); }, who + "send: destination is -1, want 0 <= destination < size = 3");
    refuses([&] { pg->send(x, (me + 1) % 3, -1).wait(); }, who + "send: tag is -1, want 0 or more");
    refuses([&] { pg->recv(x, 3).wait(); }, who + "recv: source is 3, want 0 <= source < size = 3, or recv_any()");
    refuses([&] { pg->recv(x, -1).wait(); }, who + "recv: source is -1, want 0 <= source < size = 3, or recv_any()");
    refuses([&] { pg->recv(x, CollectiveCall::kAnySource).wait(); },
            who + "recv: source is -1, want 0 <= source < size = 3, or recv_any()");
    refuses([&] { pg->recv(x, (me + 1) % 3, -2).wait(); }, who + "recv: tag is -2, want 0 or more");
    refuses([&] { pg->recv_any(x, -7).wait(); }, who + "recv: tag is -7, want 0 or more");
    const TensorView strided(x.data(), DType::kFloat32, {2}, {2});
    refuses([&] { pg->send(strided, (me + 1) % 3).wait(); },
            who + "send: input is not contiguous: shape [2] has strides [2], want [1]");
    refuses([&] { pg->recv(TensorView(nullptr, DType::kFloat32, {3}), (me + 1) % 3).wait(); },
            who + "recv: output has a null pointer, want the address of 3 elements of float32");
    refuses([&] { pg->recv(TensorView::meta({3}, DType::kFloat32), (me + 1) % 3).wait(); },
            who +
                "recv: a tensor is float32[3] on meta, want memory of this process; tensors without data need a fake "
                "group");
    refuses([&] { pg->recv(x, (me + 1) % 3).wait(absl::Seconds(-1)); },
            "InvalidArgument: wait: timeout is -1s, want 0 or more");
  });
}

// ---- the record

TEST_P(PointToPointTest, RecordsPeersAndNumbers) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::array<int32_t, 1> value = {0};
    if (rank.rank() == 0) {
      pg->send(value, 2).wait();
      pg->send(value, 1).wait();
    }
    if (rank.rank() == 1) pg->recv(value, 0).wait();
    if (rank.rank() == 2) pg->recv_any(value).wait();
    pg->barrier().wait();
    const FlightEntries entries = state_of(rank).recorder().entries();
    const FlightEntry& first = entries[0];
    EXPECT_TRUE(first.is_p2p);
    EXPECT_EQ(first.seq, 1);
    EXPECT_EQ(first.peer, rank.rank() == 0 ? 2 : 0);
    EXPECT_EQ(first.state, FlightEntry::State::kCompleted);
    if (rank.rank() == 0) {
      EXPECT_EQ(entries[1].seq, 2);
    }
    EXPECT_FALSE(entries[entries.size() - 1].is_p2p);
    EXPECT_EQ(entries[entries.size() - 1].seq, 1);
  });
}

// Channels that are empty are thrown away; those with a send that waits are not.
TEST_P(PointToPointTest, KeepsSendsUnderManyTags) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> x(600, -1);
    std::vector<Work> works;
    if (rank.rank() == 1) rank.store().wait({"sent"});
    for (int tag = 0; tag < 600; ++tag) {
      if (rank.rank() == 0) x[static_cast<size_t>(tag)] = tag;
      const TensorView one(&x[static_cast<size_t>(tag)], {1});
      works.push_back(rank.rank() == 0 ? pg->send(one, 1, tag) : pg->recv(one, 0, tag));
    }
    if (rank.rank() == 0) rank.store().set("sent", "");
    wait_all(works);
    for (int tag = 0; tag < 600; ++tag) ASSERT_EQ(x[static_cast<size_t>(tag)], tag);
  });
}

}  // namespace
}  // namespace rankloom

// Streams that block on a collective: the simulated kind, in every world.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rankloom/matchers.h"
#include "rankloom/rankloom.h"
#include "sim/base/sanitizers.h"
#include "tests/collectives/streams/stream_kinds.h"
#include "tests/error_of.h"
#include "tests/world/every_world.h"
#include "tests/world/forked_child.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;

class SimStreams final : public LaunchingStreamKind {
 public:
  explicit SimStreams(const WorldMode& /*mode*/) {}
  std::unique_ptr<Stream> make(RankContext& rank, std::string_view name) override {
    return std::make_unique<SimStream>(rank, name);
  }
  void launch(Stream& stream, std::function<void()> function) override {
    static_cast<SimStream&>(stream).launch(std::move(function));
  }
};
INSTANTIATE_TEST_SUITE_P(Sim, BlockedStreamTest, BlockedStreamTest::every_world_of<SimStreams>(), StreamWorldName());
INSTANTIATE_TEST_SUITE_P(Sim, CallOnStreamTest, CallOnStreamTest::every_world_of<SimStreams>(), StreamWorldName());
INSTANTIATE_TEST_SUITE_P(Sim, LeftStreamTest, LeftStreamTest::every_world_of<SimStreams>(), StreamWorldName());
INSTANTIATE_TEST_SUITE_P(Sim, LaunchingStreamTest, LaunchingStreamTest::every_world_of<SimStreams>(),
                         StreamWorldName());

class StreamTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, StreamTest, every_world(), world_name);

TEST_P(StreamTest, KernelsRunAsTheirRank) {
  run(3, [](RankContext& rank) {
    SimStream stream(rank);
    int seen = -1;
    stream.launch([&] { seen = RankContext::current()->rank(); });
    stream.synchronize();
    EXPECT_EQ(seen, rank.rank());
  });
}

// A call in a stream was made, and counts, before the group's end.
TEST_P(StreamTest, TheEndOfAGroupWaitsForCallsThatAreQueued) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    SimStream stream(rank);
    std::vector<float> x = {1.0f * rank.rank()};
    std::vector<float> y = {10.0f * rank.rank()};
    stream.launch([&] {
      for (int i = 0; i < 5; ++i) rank.yield();
      x[0] += 1;
    });
    Work work = pg->all_reduce(x, ReduceOp::kSum, {.stream = &stream});
    pg->all_reduce(y).wait();
    destroy_process_group(pg);
    EXPECT_TRUE(work.is_success());
    EXPECT_EQ(x[0], 1 + 2 + 3);
    EXPECT_EQ(y[0], 30);
    stream.synchronize();
  });
}

// The same of one that waits for others: it comes to its end, or says why not.
TEST_P(StreamTest, TheEndOfAGroupTellsOfACallInAStreamThatFails) {
  run(1, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    SimStream stream(rank);
    std::vector<float> x = {1};
    stream.launch([&] {
      for (int i = 0; i < 5; ++i) rank.yield();
      pg->abort("enough");
    });
    Work work = pg->all_reduce(x, ReduceOp::kSum, {.stream = &stream});
    EXPECT_THAT(error_of([&] { destroy_process_group(pg); }), HasSubstr("rank 0 aborted group 0: enough"));
    EXPECT_FALSE(work.is_success());
  });
}

// An exception leaves kernels out, and with them the calls behind them: a call that goes well has the kernel's data.
TEST_P(StreamTest, NobodyGetsWhatAKernelThatWasLeftOutShouldHaveComputed) {
  for (int round = 0; round < 1000; ++round) {
    (void)run_to_failure(2, [round](RankContext& rank) {
      auto pg = init_process_group(rank);
      const auto memory = std::make_shared<std::vector<float>>(1, -100.0f);  // outlives the rank's frame
      Work work;                                                             // goes after the stream
      SimStream stream(rank);
      for (int i = 0; i < 8; ++i) stream.launch([] {});
      stream.launch([memory] { (*memory)[0] = 1; });
      work = pg->all_reduce(*memory, ReduceOp::kSum, {.stream = &stream});
      if (rank.rank() == 1) throw std::runtime_error("planned");
      stream.synchronize();
      work.wait();
      EXPECT_EQ((*memory)[0], 2) << "round " << round;
      pg->barrier().wait();
    });
  }
}

TEST_P(StreamTest, AKernelThatThrowsMarksTheStreamFailed) {
  run(1, [](RankContext& rank) {
    SimStream stream(rank, "compute");
    bool after = false;
    stream.launch([] { throw std::runtime_error("out of range"); }, "gemm", CodeSite{"some/train.cc", 12});
    stream.launch([&] { after = true; });
    EXPECT_EQ(error_of([&] { stream.synchronize(); }),
              "CollectiveError: rank 0, stream compute: gemm threw: out of range (std::runtime_error) [train.cc:12]");
    EXPECT_TRUE(after);
  });
}

TEST_P(StreamTest, TheFirstFailureStays) {
  run(1, [](RankContext& rank) {
    SimStream stream(rank, "compute");
    stream.launch([] { throw std::runtime_error("one"); }, "a");
    stream.launch([] { throw std::runtime_error("two"); }, "b");
    EXPECT_THAT(error_of([&] { stream.synchronize(); }), testing::HasSubstr("a threw: one"));
    EXPECT_THAT(std::string(stream.status().message()),
                testing::AllOf(testing::HasSubstr("one"), testing::Not(testing::HasSubstr("two"))));
  });
}

TEST_P(StreamTest, AKernelMayThrowAnything) {
  run(1, [](RankContext& rank) {
    SimStream stream(rank, "compute");
    stream.launch([] { throw 5; }, "gemm", CodeSite{"some/train.cc", 12});
    EXPECT_EQ(error_of([&] { stream.synchronize(); }),
              "CollectiveError: rank 0, stream compute: gemm threw: an exception that is no std::exception (int) "
              "[train.cc:12]");
  });
}

// A group of the user's own whose execute() throws.
TEST_P(StreamTest, ACallThatThrowsMarksTheStreamFailed) {
  class Thrower final : public ProcessGroup {
   public:
    Thrower(RankContext* rank, std::shared_ptr<const Group> group) : ProcessGroup(*rank, std::move(group)) {}
    std::string backend_name() const override { return "thrower"; }
    absl::StatusOr<Work> execute(CollectiveCall&& call) override {
      if (call.op == OpType::kBarrier) throw 5;
      throw std::runtime_error("no such thing");
    }
  };
  run(1, [](RankContext& rank) {
    GroupOptions options;
    options.make = [](RankContext& me, const std::shared_ptr<const Group>& group) {
      return std::make_shared<Thrower>(&me, group);
    };
    auto pg = init_process_group(rank, options);
    SimStream first(rank, "first");
    SimStream second(rank, "second");
    std::vector<float> x = {1};
    Work reduced = pg->all_reduce(x, ReduceOp::kSum, {.stream = &first}, CodeSite{"some/train.cc", 12});
    Work barrier = pg->barrier({.stream = &second}, "", CodeSite{"some/train.cc", 13});
    EXPECT_EQ(error_of([&] { first.synchronize(); }),
              "CollectiveError: all_reduce threw: no such thing (std::runtime_error) [train.cc:12]");
    EXPECT_EQ(error_of([&] { second.synchronize(); }),
              "CollectiveError: barrier threw: an exception that is no std::exception (int) [train.cc:13]");
    EXPECT_FALSE(reduced.is_success());
  });
}

TEST_P(StreamTest, AnAbortReleasesTheStream) {
  std::shared_ptr<FutureWork> never;
  bool ran = false;
  const RunReport report = run_to_failure(2, [&](RankContext& rank) {
    if (rank.rank() == 1) {
      rank.store().wait({"blocked"});
      throw std::runtime_error("rank 1 gives up");
    }
    SimStream stream(rank);
    never = std::make_shared<FutureWork>(rank);
    WorkState::handle(never).block_current_stream(stream);
    stream.launch([&] { ran = true; });
    rank.store().set("blocked", "1");
    stream.synchronize();
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 1 failed: rank 1 gives up"));
  EXPECT_FALSE(ran);
  never.reset();
}

TEST_P(StreamTest, ADeadlockNamesTheStreamsWait) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) return;
    SimStream stream(rank, "comm");
    std::vector<float> x = {1};
    pg->all_reduce(x).block_current_stream(stream);
    stream.synchronize();
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 0 waits in all_reduce seq 1 for rank 1 (returned) (its stream)"));
  EXPECT_THAT(report.text(), HasSubstr("rank 0 waits in stream synchronize comm"));
}

TEST_P(StreamTest, ACallStartsAfterWhatIsQueuedAndWaitDoesNotBlock) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    SimStream stream(rank, "comm");
    std::vector<int32_t> x = {-1};
    const auto gate = std::make_shared<FutureWork>(rank);
    WorkState::handle(gate).block_current_stream(stream);
    stream.launch([&] { x[0] = rank.rank() + 1; });  // what the call reads
    Work work = pg->all_reduce(x, ReduceOp::kSum, {.stream = &stream});
    EXPECT_EQ(pg->sequence_number(), 1);
    work.wait();
    EXPECT_FALSE(work.is_completed());
    std::vector<int32_t> seen;
    stream.launch([&] { seen = x; });
    gate->resolve();
    stream.synchronize();
    EXPECT_TRUE(work.is_success());
    EXPECT_THAT(seen, ElementsAre(3));
    EXPECT_EQ(work.result()[0].data(), x.data());
  });
}

TEST_P(StreamTest, WaitWithATimeoutBlocksTheRank) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    SimStream stream(rank);
    std::vector<int32_t> x = {rank.rank() + 5};
    Work work = pg->broadcast(x, 1, {.stream = &stream});
    work.wait(absl::Hours(1));
    EXPECT_TRUE(work.is_success());
    EXPECT_THAT(x, ElementsAre(6));
  });
}

TEST_P(StreamTest, AWaitThatTimesOutWithdrawsTheCall) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    SimStream stream(rank, "comm");
    std::vector<int32_t> x = {rank.rank() + 5};
    if (rank.rank() == 1) {
      rank.store().wait({"late"});
      EXPECT_THAT([&] { pg->broadcast(x, 1).wait(); },
                  ThrowsDistError(ErrorKind::kAborted, HasSubstr("timed out after 3ms")));
      return;
    }
    Work work = pg->broadcast(x, 1, {.stream = &stream});
    const auto timed_out =
        ThrowsDistError(ErrorKind::kTimeout,
                        testing::ContainsRegex(
                            "rank 0, group 0, broadcast seq 1.*: timed out after 3ms (waiting for rank 1|in stream)"));
    EXPECT_THAT([&] { work.wait(absl::Milliseconds(3)); }, timed_out);
    EXPECT_TRUE(work.is_completed());
    EXPECT_THAT([&] { work.wait(); }, timed_out);
    rank.store().set("late", "");
    EXPECT_THAT([&] { stream.synchronize(); }, timed_out);
    EXPECT_THAT(x, ElementsAre(5));
  });
}

TEST_P(StreamTest, AWaitThatTimesOutWithdrawsACallThatItsStreamHasNotComeTo) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    SimStream stream(rank, "comm");
    std::vector<int32_t> x = {rank.rank() + 5};
    if (rank.rank() == 1) {
      EXPECT_THAT([&] { pg->all_reduce(x).wait(); },
                  ThrowsDistError(ErrorKind::kAborted, HasSubstr("timed out after 3ms in stream comm")));
      return;
    }
    const auto gate = std::make_shared<FutureWork>(rank);
    WorkState::handle(gate).block_current_stream(stream);
    Work work = pg->all_reduce(x, ReduceOp::kSum, {.stream = &stream});
    EXPECT_THAT(
        [&] { work.wait(absl::Milliseconds(3)); },
        ThrowsDistError(ErrorKind::kTimeout,
                        testing::ContainsRegex("rank 0, group 0, all_reduce seq 1 .stream_test.cc:[0-9]+.: timed out "
                                               "after 3ms in stream comm, which had not come to the call")));
    gate->resolve();
    EXPECT_THAT([&] { stream.synchronize(); }, ThrowsDistError(ErrorKind::kTimeout, HasSubstr("timed out after 3ms")));
    EXPECT_THAT(x, ElementsAre(5));
  });
}

TEST_P(StreamTest, AStreamThatUnwindsWithACallInItFailsTheGroupOnceTheRankGoesOn) {
  for (const bool message : {false, true}) {
    const RunReport report = run_to_failure(2, [message](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<float> x = {1};
      try {
        SimStream stream(rank, "comm");
        stream.launch([&rank] { rank.sleep_for(absl::Milliseconds(3)); });
        if (rank.rank() == 0) {
          Work work = message ? pg->send(x, 1, 0, {.stream = &stream}) : pg->all_reduce(x, {}, {.stream = &stream});
          throw std::runtime_error("bad batch");
        }
        message ? pg->recv(x, 0).wait() : pg->all_reduce(x).wait();
      } catch (const std::runtime_error&) {
      }
      // The rank needs the group; then it needs no more than another rank's news.
      message ? rank.store().wait({"never"}) : pg->barrier().wait();
    });
    EXPECT_THAT(
        report.text(),
        testing::ContainsRegex(
            message ? "group 0: rank 0 dropped stream comm with send .stream_test.cc:[0-9]+. in it while an "
                      "exception unwound, want synchronize.. of the stream before, keep_alive, or the rank to end"
                    : "group 0: rank 0 dropped stream comm with all_reduce seq 1 .stream_test.cc:[0-9]+. in it "
                      "while an exception unwound, want synchronize.. of the stream before, keep_alive, or the "
                      "rank to end"));
  }
}

TEST_P(StreamTest, AStreamThatUnwindsWithACallOfAFailedGroupLeavesNothingBehind) {
  for (const bool message : {false, true}) {
    const RunReport report = run(2, [message](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<float> x = {1};
      if (rank.rank() == 1) {
        rank.store().wait({"queued"});
        pg->abort("enough");
        return rank.store().set("aborted", "");
      }
      const auto gate = std::make_shared<FutureWork>(rank);
      try {
        SimStream stream(rank, "comm");
        WorkState::handle(gate).block_current_stream(stream);
        Work work = message ? pg->send(x, 1, 0, {.stream = &stream}) : pg->all_reduce(x, {}, {.stream = &stream});
        rank.store().set("queued", "");
        rank.store().wait({"aborted"});
        pg->barrier().wait();
        ADD_FAILURE() << "the group has failed";
      } catch (const DistError&) {
      }
      gate->resolve();
    });
    EXPECT_THAT(report.notes, testing::IsEmpty());
  }
}

// Behind a call that was withdrawn, a stream has ended, and says so, not before the call.
TEST_P(StreamTest, AStreamIsNotThroughWithAWithdrawnCallBeforeTheCallHasEnded) {
  for (uint64_t seed = 1; seed <= (deterministic() ? 60U : 5U); ++seed) {
    WorldOptions world = options(2);
    if (deterministic()) world.schedule = Schedule::seeded(seed);
    run(world, [](RankContext& rank) {
      auto pg = init_process_group(rank);
      if (rank.rank() == 1) return rank.store().wait({"told"});
      SimStream stream(rank, "comm");
      std::vector<float> x = {1};
      Work work = pg->all_reduce(x, {}, {.stream = &stream});
      Latch through(1);
      rank.world().spawn_helper([&] {
        EXPECT_THAT([&] { stream.synchronize(); },
                    ThrowsDistError(ErrorKind::kTimeout, HasSubstr("timed out after 2ms")));
        EXPECT_TRUE(work.is_completed());
        through.count_down();
      });
      EXPECT_THAT([&] { work.wait(absl::Milliseconds(2)); },
                  ThrowsDistError(ErrorKind::kTimeout, HasSubstr("timed out after 2ms")));
      through.wait();
      rank.store().set("told", "");
    });
  }
}

TEST_P(StreamTest, AnExceptionOfAKernelThatNobodyAsksForIsALeftover) {
  for (const bool asked : {false, true}) {
    const RunReport report = run(1, [asked](RankContext& rank) {
      SimStream stream(rank, "comm");
      for (const char* what : {"first", "second"}) stream.launch([what] { throw std::runtime_error(what); }, what);
      stream.record().synchronize();
      if (!asked) return;
      EXPECT_THAT(std::string(stream.status().message()), HasSubstr("stream comm: first threw: first"));
    });
    if (asked) {
      EXPECT_THAT(report.notes, testing::IsEmpty());
    } else {
      EXPECT_THAT(report.notes,
                  ElementsAre(HasSubstr("an error that no rank asked for: CollectiveError: rank 0, stream "
                                        "comm: first threw: first (std::runtime_error) [stream_test.cc:")));
    }
  }
}

TEST_P(StreamTest, CallsOfSeveralStreamsKeepTheirNumbers) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    SimStream one(rank, "one");
    SimStream two(rank, "two");
    std::vector<int32_t> x = {1 + rank.rank()};
    std::vector<int32_t> y = {10 + rank.rank()};
    std::vector<int32_t> z = {100 + rank.rank()};
    const auto gate = std::make_shared<FutureWork>(rank);
    WorkState::handle(gate).block_current_stream(one);
    (void)pg->all_reduce(x, ReduceOp::kSum, {.stream = &one});
    (void)pg->all_reduce(y, ReduceOp::kSum, {.stream = &two});
    pg->all_reduce(z).wait();  // third, and first to be done
    EXPECT_THAT(z, ElementsAre(201));
    two.synchronize();
    EXPECT_THAT(y, ElementsAre(21));
    gate->resolve();
    one.synchronize();
    EXPECT_THAT(x, ElementsAre(3));
  });
}

// In the free gear a stream makes its calls beside the rank, each with a timeout of its own: a race of the group's
// state would show under ThreadSanitizer.
TEST_P(StreamTest, CallsOnAStreamHaveTheirOwnTimeouts) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    SimStream stream(rank);
    std::vector<int64_t> on_stream(50, rank.rank() + 1);
    std::vector<int64_t> beside(50, 10 * rank.rank() + 1);
    for (size_t i = 0; i < on_stream.size(); ++i) {
      const absl::Duration timeout = absl::Seconds(100 + i);
      Work work =
          pg->all_reduce(TensorView(&on_stream[i], {1}), ReduceOp::kSum, {.timeout = timeout, .stream = &stream});
      pg->all_reduce(TensorView(&beside[i], {1}), ReduceOp::kSum, {.timeout = 2 * timeout}).wait();
      work.block_current_stream(stream);
    }
    stream.synchronize();
    EXPECT_THAT(on_stream, testing::Each(3));
    EXPECT_THAT(beside, testing::Each(12));
  });
}

TEST_P(StreamTest, SendAndRecvGoThroughStreams) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    SimStream stream(rank);
    std::vector<int32_t> mine = {7 + rank.rank()};
    std::vector<int32_t> got = {0};
    const int peer = 1 - rank.rank();
    if (rank.rank() == 0) {
      (void)pg->send(mine, peer, 0, {.stream = &stream});
      (void)pg->recv(got, peer, 0, {.stream = &stream});
    } else {
      (void)pg->recv(got, peer, 0, {.stream = &stream});
      (void)pg->send(mine, peer, 0, {.stream = &stream});
    }
    stream.synchronize();
    EXPECT_THAT(got, ElementsAre(7 + peer));
  });
}

// The first messages of a rank, of which a stream's thread makes one beside the rank.
TEST_P(StreamTest, MessagesOnAStreamAndBesideItGoThrough) {
  for (int round = 0; round < 20; ++round) {
    run(2, [](RankContext& rank) {
      auto pg = init_process_group(rank);
      SimStream out(rank), in(rank);
      const int peer = 1 - rank.rank();
      std::vector<int32_t> a = {1 + rank.rank()}, b = {0}, c = {5 + rank.rank()}, d = {0};
      (void)pg->send(a, peer, 1, {.stream = &out});
      (void)pg->recv(b, peer, 1, {.stream = &in});
      Work sent = pg->send(c, peer, 2);
      pg->recv(d, peer, 2).wait();
      sent.wait();
      out.synchronize();
      in.synchronize();
      EXPECT_THAT(b, ElementsAre(1 + peer));
      EXPECT_THAT(d, ElementsAre(5 + peer));
    });
  }
}

// Of a stream that is refused nothing is left: the next call has the number that peers expect.
TEST_P(StreamTest, ACallOnAnotherRanksStreamIsTakenBack) {
  std::atomic<SimStream*> lent{nullptr};
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1.0F + static_cast<float>(rank.rank())};
    if (rank.rank() == 0) {
      SimStream stream(rank, "lent");
      lent = &stream;
      rank.store().set("lent", "");
      rank.store().get("tried");
      lent = nullptr;
    } else {
      rank.store().get("lent");
      EXPECT_THAT(error_of([&] { (void)pg->all_reduce(x, ReduceOp::kSum, {.stream = lent.load()}); }),
                  HasSubstr("InvalidArgument: rank 0, stream lent: all_reduce was called by rank 1"));
      rank.store().set("tried", "");
    }
    EXPECT_EQ(pg->sequence_number(), 0);
    pg->all_reduce(x).wait();
    EXPECT_THAT(x, ElementsAre(3.0F));
  });
}

TEST_P(StreamTest, ACallOnAStreamOfAWorldThatHasEndedIsTakenBack) {
  std::optional<SimStream> old;
  run(1, [&](RankContext& rank) { old.emplace(rank); });
  run(1, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    EXPECT_THAT(error_of([&] { (void)pg->all_reduce(x, ReduceOp::kSum, {.stream = &*old}); }),
                HasSubstr("the world has ended"));
    pg->all_reduce(x).wait();
  });
}

TEST(StreamDeathTest, AKernelThatIsLeftByPthreadExitIsNamed) {
  const auto ends = [] {
    (void)run_world({.world_size = 2, .engine = EngineKind::kThreads}, [](RankContext& rank) {
      SimStream stream(rank);
      if (rank.rank() == 1) stream.launch([] { pthread_exit(nullptr); });
      stream.synchronize();
    });
  };
  EXPECT_DEATH(ends(), "rankloom: fatal \\(rank 1\\): left by pthread_exit\\(\\), by the cancellation");
}

#if !defined(RANKLOOM_ASAN) && !defined(RANKLOOM_TSAN)  // these tell of crashes themselves

TEST(StreamDeathTest, ACrashInAKernelNamesTheStreamsRank) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const EngineKind engine : {EngineKind::kThreads, EngineKind::kFibers}) {
    const auto ends = [engine] {
      (void)run_world({.world_size = 2, .engine = engine}, [](RankContext& rank) {
        SimStream stream(rank);
        if (rank.rank() == 1) stream.launch([] { std::abort(); });
        stream.synchronize();
      });
    };
    EXPECT_EXIT(ends(), testing::KilledBySignal(SIGABRT), "rankloom: fatal \\(the stream of rank 1\\): SIGABRT");
  }
}

#endif

TEST_P(StreamTest, CoalescedCallsGoThroughAStream) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    SimStream stream(rank);
    std::vector<int32_t> x = {rank.rank()};
    std::vector<int64_t> y = {rank.rank() == 1 ? 9 : 0};
    pg->start_coalescing();
    Work reduced = pg->all_reduce(x);
    (void)pg->broadcast(y, 1);
    (void)pg->end_coalescing({.stream = &stream});
    stream.synchronize();
    EXPECT_TRUE(reduced.is_success());
    EXPECT_THAT(x, ElementsAre(1));
    EXPECT_THAT(y, ElementsAre(9));
  });
}

TEST_P(StreamTest, AMismatchMarksEveryMembersStreamFailed) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    SimStream stream(rank);
    std::vector<float> x(static_cast<size_t>(rank.rank()) + 1);
    Work work = pg->all_reduce(x, ReduceOp::kSum, {.stream = &stream});
    EXPECT_THAT(error_of([&] { stream.synchronize(); }), HasSubstr("Mismatch: group 0, seq 1"));
    EXPECT_EQ(error_kind(stream.status()), ErrorKind::kMismatch);
    EXPECT_THAT(error_of([&] { work.wait(); }), HasSubstr("Mismatch: group 0, seq 1"));
  });
}

TEST_P(StreamTest, EventsOrderTwoStreams) {
  run(2, [](RankContext& rank) {
    SimStream comm(rank, "comm");
    SimStream compute(rank, "compute");
    std::vector<int> order;
    const auto gate = std::make_shared<FutureWork>(rank);
    WorkState::handle(gate).block_current_stream(comm);
    comm.launch([&] { order.push_back(1); });
    compute.wait_event(comm.record());
    compute.launch([&] { order.push_back(2); });
    compute.wait_event(Stream::Event());  // never recorded: nothing to wait for
    gate->resolve();
    compute.synchronize();
    EXPECT_THAT(order, ElementsAre(1, 2));
  });
}

TEST_P(StreamTest, AStreamMayGoBeforeWhatIsQueued) {
  bool ran = false;
  run(1, [&](RankContext& rank) {
    const auto gate = std::make_shared<FutureWork>(rank);
    Stream::Event event;
    {
      SimStream stream(rank);
      WorkState::handle(gate).block_current_stream(stream);
      stream.launch([&] { ran = true; });
      event = stream.record();
    }
    EXPECT_FALSE(event.query());
    gate->resolve();
    event.synchronize();
    EXPECT_TRUE(ran);
  });
}

TEST_P(StreamTest, ACallThatIsDroppedWithItsStreamIsTakenBackAndNoted) {
  std::vector<float> out(2, 0);
  const RunReport report = run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    const std::vector<float> in = {1.0F + static_cast<float>(rank.rank())};
    if (rank.rank() == 1) {
      const auto gate = std::make_shared<FutureWork>(rank);
      {
        SimStream stream(rank, "comm");
        WorkState::handle(gate).block_current_stream(stream);
        (void)pg->all_gather_into_tensor(out, in, {.stream = &stream});
      }
      out = {-5, -5};
      gate->resolve();
      rank.sleep_for(absl::Milliseconds(1));
      rank.store().set("dropped", "1");
    } else {
      std::vector<float> all(2);
      EXPECT_THAT(error_of([&] { pg->all_gather_into_tensor(all, in).wait(); }),
                  testing::MatchesRegex("Aborted: .*rank 1 aborted group 0: stream comm was dropped with "
                                        "all_gather_into_tensor seq 1 \\[stream_test.cc:[0-9]+\\] in it, want "
                                        "synchronize\\(\\) of the stream before, or keep_alive.*"));
      rank.store().wait({"dropped"});
    }
  });
  EXPECT_THAT(out, ElementsAre(-5, -5));
  EXPECT_THAT(report.notes, testing::Contains(HasSubstr("rank 1, group 0: stream comm was dropped with "
                                                        "all_gather_into_tensor seq 1 [stream_test.cc:")));
}

TEST_P(StreamTest, AStreamThatWaitsForAnEventKeepsWhatIsBeforeIt) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1.0F + static_cast<float>(rank.rank())};
    SimStream last(rank, "last");
    {
      SimStream first(rank, "first"), between(rank, "between");
      (void)pg->all_reduce(x, ReduceOp::kSum, {.stream = &first});
      between.wait_event(first.record());
      last.wait_event(between.record());
    }
    last.synchronize();
    EXPECT_THAT(x, ElementsAre(3));
  });
}

TEST_P(StreamTest, ADescriptionOfTheWorldCallsItByItsName) {
  run(1, [](RankContext& rank) {
    SimStream stream(rank);
    std::atomic<bool> seen = false;
    stream.launch([&] {
      while (!seen) rank.yield();
    });
    std::string text;
    do {
      rank.yield();
      text = rank.world().describe();
    } while (!absl::StrContains(text, "(its "));
    seen = true;
    stream.synchronize();
    EXPECT_THAT(text, HasSubstr("rank 0 (its stream) "));
  });
}

TEST_P(StreamTest, KernelsThatHaveNotBegunAreLeftOutWhenAnExceptionUnwinds) {
  run(1, [](RankContext& rank) {
    const auto gate = std::make_shared<FutureWork>(rank);
    bool ran = false;
    try {
      SimStream stream(rank);
      WorkState::handle(gate).block_current_stream(stream);
      stream.launch([&ran] { ran = true; });
      throw std::runtime_error("caught below");
    } catch (const std::runtime_error&) {
    }
    gate->resolve();
    rank.sleep_for(absl::Milliseconds(1));
    EXPECT_FALSE(ran);
  });
}

TEST_P(StreamTest, RefusesMisuse) {
  std::optional<SimStream> of_zero;
  run(2, [&](RankContext& rank) {
    if (rank.rank() == 0) {
      of_zero.emplace(rank, "zero's");
      rank.store().set("made", "1");
      rank.store().wait({"tried"});
      of_zero.reset();
    } else {
      rank.store().wait({"made"});
      EXPECT_EQ(
          error_of([&] { of_zero->launch([] {}); }),
          "InvalidArgument: rank 0, stream zero's: stream launch was called by rank 1, want the rank that made the "
          "stream" +
              here());
      rank.store().set("tried", "1");
    }
  });
}

// A step: reduce on one stream, use the result on another. `waits`: as it should be.
std::vector<int32_t> step(RankContext& rank, bool waits) {
  auto pg = init_process_group(rank);
  SimStream comm(rank, "comm");
  SimStream compute(rank, "compute");
  std::vector<int32_t> gradient = {rank.rank() + 1};
  std::vector<int32_t> used;
  (void)pg->all_reduce(gradient, ReduceOp::kSum, {.stream = &comm});
  if (waits) compute.wait_event(comm.record());
  compute.launch([&] { used = gradient; });
  compute.synchronize();
  comm.synchronize();
  return used;
}

TEST(StreamSeeds, FindAWaitThatWasForgotten) {
  for (const EngineKind engine : {EngineKind::kFibers, EngineKind::kThreads}) {
    int wrong_without = 0;
    int right_without = 0;
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      for (const bool waits : {true, false}) {
        int right = 0;
        run_world({.world_size = 3, .engine = engine, .schedule = Schedule::seeded(seed)}, [&](RankContext& rank) {
          if (step(rank, waits) == std::vector<int32_t>{6}) ++right;
        }).throw_if_failed();
        if (waits) {
          EXPECT_EQ(right, 3) << "seed " << seed;
        } else {
          right_without += right;
          wrong_without += 3 - right;
        }
      }
    }
    EXPECT_GT(wrong_without, 0);
    EXPECT_GT(right_without, 0) << "it is a race, not a certain failure";
  }
}

// The last handle of a call that owns its tensors goes at a scheduling point: the stream's turn may come there.
TEST(StreamSeeds, AStreamWaitsForARankThatGivesUpWhatTheStreamHolds) {
  int left_out = 0;
  const auto body = [&left_out](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) {
      std::vector<int32_t> x = {0};
      pg->recv(x, 1).wait();
      EXPECT_THAT(x, ElementsAre(7));
      return;
    }
    const auto owner = std::make_shared<std::vector<int32_t>>(1, 7);
    bool ran = false;
    try {
      SimStream stream(rank);
      pg->send(*owner, 0, 0, {.keep_alive = owner}).block_current_stream(stream);
      stream.launch([&ran] { ran = true; });
      throw std::runtime_error("caught below");
    } catch (const std::runtime_error&) {
    }
    const bool ran_before = ran;
    rank.sleep_for(absl::Milliseconds(1));
    EXPECT_EQ(ran, ran_before) << "a kernel ran after an exception had taken what it uses";
    left_out += ran ? 0 : 1;
  };
  for (const EngineKind engine : {EngineKind::kFibers, EngineKind::kThreads}) {
    for (uint64_t seed = 1; seed <= 40; ++seed)
      run_world({.world_size = 2, .engine = engine, .schedule = Schedule::seeded(seed)}, body).throw_if_failed();
  }
  EXPECT_GT(left_out, 0);
}

TEST(StreamSeeds, OneSeedGivesOneOrderOnBothEngines) {
  const auto trace_of = [](EngineKind engine) {
    std::vector<std::string> log;
    run_world({.world_size = 2, .engine = engine, .schedule = Schedule::seeded(5)}, [&](RankContext& rank) {
      SimStream a(rank, "a");
      SimStream b(rank, "b");
      for (int i = 0; i < 4; ++i) {
        a.launch([&log, &rank, i] { log.push_back(std::to_string(rank.rank()) + "a" + std::to_string(i)); });
        b.launch([&log, &rank, i] { log.push_back(std::to_string(rank.rank()) + "b" + std::to_string(i)); });
      }
      a.synchronize();
      b.synchronize();
    }).throw_if_failed();
    return log;
  };
  const std::vector<std::string> threads = trace_of(EngineKind::kThreads);
  EXPECT_EQ(threads.size(), 16U);
  EXPECT_EQ(threads, trace_of(EngineKind::kFibers));
}

// The thread of a kernel is one of the library's, not that of a rank.
TEST_P(StreamTest, AProcessThatAKernelForksIsEndedWhereItReturns) {
  std::string text;
  run(2, [&](RankContext& rank) {
    if (rank.rank() != 1) return;
    int status = -1;
    SimStream stream(rank);
    stream.launch([&] { fork_and_come_back(&status); });
    stream.synchronize();
    text = absl::StrCat(WIFEXITED(status), " ", WEXITSTATUS(status));
  });
  EXPECT_EQ(text, "1 1");
}

// Two worlds side by side, on threads of the caller's; the second has the first one's event.
TEST_P(StreamTest, AnEventOfAnotherWorldIsRefusedAsLongAsThatLives) {
  std::atomic<bool> recorded{false};
  std::atomic<bool> go{false};
  Stream::Event event;
  std::thread other([&] {
    run_world({.world_size = 1}, [&](RankContext& rank) {
      SimStream stream(rank);
      stream.launch([&] {
        while (!go) std::this_thread::yield();
      });
      event = stream.record();
      recorded = true;
      stream.synchronize();
    }).throw_if_failed();
  });
  while (!recorded) std::this_thread::yield();
  run(1, [&](RankContext& rank) {
    SimStream stream(rank);
    EXPECT_THAT(error_of([&] { stream.wait_event(event); }), HasSubstr("another world"));
    if (GetParam().engine == EngineKind::kThreads) {
      std::thread helper([&] { EXPECT_THAT(error_of([&] { stream.wait_event(event); }), HasSubstr("another world")); });
      helper.join();
    }
    stream.synchronize();
  });
  go = true;
  other.join();
  run(1, [&](RankContext& rank) {
    SimStream stream(rank);
    stream.wait_event(event);
    stream.synchronize();
  });
}

// More than are looked through at a time, of which half are done and half are not.
TEST_P(StreamTest, TheEndOfAGroupWaitsForManyCallsThatAreQueued) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    SimStream slow(rank, "slow"), fast(rank, "fast");
    std::vector<int32_t> x(40, 1);
    std::vector<Work> works;
    slow.launch([&] { rank.sleep_for(absl::Milliseconds(1)); });
    for (size_t i = 0; i < 40; ++i) {
      const TensorView one(&x[i], {1});
      works.push_back(pg->all_reduce(one, ReduceOp::kSum, {.stream = i < 20 ? &slow : &fast}));
    }
    destroy_process_group(pg);
    for (Work& work : works) EXPECT_TRUE(work.is_success());
    slow.synchronize();
    fast.synchronize();
    EXPECT_THAT(x, testing::Each(2));
  });
}

}  // namespace
}  // namespace rankloom

// The duties of a stream that waits for a work, for streams of all kinds.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "collectives/work/completion.h"
#include "rankloom/error.h"
#include "rankloom/process_group.h"
#include "rankloom/sync.h"
#include "tests/collectives/streams/stream_kinds.h"
#include "tests/collectives/told.h"
#include "tests/error_of.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST_P(BlockedStreamTest, AnEventBehindABlockedWorkIsNotDone) {
  run(1, [&](RankContext& rank) {
    const std::unique_ptr<Stream> stream = make_stream(rank, "stream");
    const Stream::Event before = stream->record();
    before.synchronize();
    EXPECT_TRUE(before.query());

    const auto work = std::make_shared<FutureWork>(rank);
    WorkState::handle(work).block_current_stream(*stream);
    const Stream::Event behind = stream->record();
    let_streams_run(rank);
    EXPECT_FALSE(behind.query());
    EXPECT_FALSE(stream->query());

    work->resolve();
    stream->synchronize();
    EXPECT_TRUE(behind.query());
    while (!stream->query()) sched_yield();  // the played device takes what it has done off its queue a moment later
    EXPECT_TRUE(stream->status().ok());
  });
}

TEST_P(BlockedStreamTest, AWorkThatIsFreedFirstDoesNotUnblockTheOther) {
  run(1, [&](RankContext& rank) {
    const std::unique_ptr<Stream> stream = make_stream(rank, "stream");
    auto a = std::make_shared<FutureWork>(rank);
    auto b = std::make_shared<FutureWork>(rank);
    WorkState::handle(a).block_current_stream(*stream);
    WorkState::handle(b).block_current_stream(*stream, absl::Hours(10'000'000));  // later than the clock can tell
    b->resolve();
    b.reset();
    const Stream::Event event = stream->record();
    let_streams_run(rank);
    EXPECT_FALSE(event.query());
    a->resolve();
    a.reset();
    stream->synchronize();
    EXPECT_TRUE(event.query());
  });
}

TEST_P(BlockedStreamTest, ATimeoutReleasesTheStreamAndMarksItFailed) {
  run(2, [&](RankContext& rank) {
    const std::unique_ptr<Stream> stream = make_stream(rank, "comm");
    const auto work = std::make_shared<FutureWork>(rank);
    WorkState::handle(work).block_current_stream(*stream, absl::Milliseconds(20));
    const Stream::Event behind = stream->record();
    const std::string text = error_of([&] { stream->synchronize(); });
    EXPECT_THAT(text,
                HasSubstr("Timeout: rank " + std::to_string(rank.rank()) + ", stream comm: waited 20ms for a work: "));
    EXPECT_TRUE(behind.query());
    EXPECT_TRUE(stream->query());
    EXPECT_EQ(error_kind(stream->status()), ErrorKind::kTimeout);
    work->resolve();  // too late, and harmless
  });
}

TEST_P(BlockedStreamTest, AWorkThatFailsMarksTheStreamFailed) {
  run(2, [&](RankContext& rank) {
    const std::unique_ptr<Stream> stream = make_stream(rank, "comm");
    const auto work = std::make_shared<FutureWork>(rank);
    WorkState::handle(work).block_current_stream(*stream);
    work->fail(make_error(ErrorKind::kCollectiveError, "the link is down"));
    EXPECT_EQ(error_of([&] { stream->synchronize(); }), "CollectiveError: the link is down");
    EXPECT_EQ(error_of([&] { stream->synchronize(); }), "CollectiveError: the link is down");  // for good
  });
}

TEST_P(BlockedStreamTest, AWorkThatIsDoneBlocksNothing) {
  run(2, [&](RankContext& rank) {
    const std::unique_ptr<Stream> stream = make_stream(rank, "comm");
    Work().block_current_stream(*stream);
    const auto work = std::make_shared<FutureWork>(rank);
    work->resolve();
    WorkState::handle(work).block_current_stream(*stream);
    stream->synchronize();
    EXPECT_TRUE(stream->query());
    EXPECT_EQ(error_of([&] {
                WorkState::handle(std::make_shared<FutureWork>(rank)).block_current_stream(*stream, absl::Seconds(-1));
              }),
              "InvalidArgument: rank " + std::to_string(rank.rank()) +
                  ", stream comm: block_current_stream: timeout is -1s, want at least 0" + here());
  });
}

TEST_P(BlockedStreamTest, SixtyFourBlockedRanksAreReleasedByTheirDeadline) {
  // Nothing but their deadlines ends these waits.
  run(64, [&](RankContext& rank) {
    const std::unique_ptr<Stream> stream = make_stream(rank, "stream");
    const auto never = std::make_shared<FutureWork>(rank);
    WorkState::handle(never).block_current_stream(*stream, absl::Milliseconds(50));
    EXPECT_THAT(error_of([&] { stream->synchronize(); }),
                HasSubstr("Timeout: rank " + std::to_string(rank.rank()) + ", stream stream: waited 50ms for a work"));
  });
}

TEST_P(BlockedStreamTest, EventsMakeAStreamWaitForAnother) {
  run(2, [&](RankContext& rank) {
    const std::unique_ptr<Stream> comm = make_stream(rank, "comm");
    const std::unique_ptr<Stream> compute = make_stream(rank, "compute");
    const auto gate = std::make_shared<FutureWork>(rank);
    WorkState::handle(gate).block_current_stream(*comm);
    compute->wait_event(comm->record());
    compute->wait_event(Stream::Event());  // never recorded: nothing to wait for
    const Stream::Event behind = compute->record();
    let_streams_run(rank);
    EXPECT_FALSE(behind.query());
    gate->resolve();
    compute->synchronize();
    EXPECT_TRUE(behind.query());
  });
}

// The thread that ends a call has more to do behind the end. Nobody may see the call done and its outputs in use.
TEST_P(CallOnStreamTest, OutputsMayBeUsedAgainOnceTheCallIsSeenDone) {
  const std::vector<std::function<void(RankContext&, Work&, Stream&)>> ways = {
      [](RankContext& /*rank*/, Work& /*work*/, Stream& stream) { stream.synchronize(); },
      [](RankContext& /*rank*/, Work& /*work*/, Stream& stream) { stream.record().synchronize(); },
      [](RankContext& /*rank*/, Work& work, Stream& /*stream*/) { work.wait(absl::Hours(1)); },
      [](RankContext& /*rank*/, Work& work, Stream& /*stream*/) {
        while (!work.is_completed()) {
        }
      },
      [](RankContext& rank, Work& work, Stream& /*stream*/) {
        Promise told(&rank.world().scheduler(), rank.rank());
        work.then([&told](const absl::Status&) { told.set_value(); });
        told.work().wait();
      },
  };
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    const std::unique_ptr<Stream> stream = kind().make(rank, "stream");
    for (size_t i = 0; i < ways.size(); ++i) {
      SCOPED_TRACE(i);
      std::vector<float> x = {1.0f + rank.rank()};
      Work work = pg->all_reduce(kind().view(x), ReduceOp::kSum, {.stream = stream.get()});
      WorkState::of(work)->when_done(
          told([](const absl::Status&) { Completion::run_later([] { absl::SleepFor(absl::Milliseconds(5)); }); }));
      ways[i](rank, work, *stream);
      pg->all_reduce(kind().view(x)).wait();
      EXPECT_THAT(x, ElementsAre(6));
    }
  });
}

TEST_P(CallOnStreamTest, AStreamHasFailedOnceItsCallIsSeenFailed) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1.0f + rank.rank()};
    if (rank.rank() == 1) {
      std::vector<float> longer = {1, 2};
      EXPECT_THAT(error_of([&] { pg->all_reduce(kind().view(longer)).wait(); }), HasSubstr("Mismatch"));
      return;
    }
    const std::unique_ptr<Stream> stream = kind().make(rank, "comm");
    Work work = pg->all_reduce(kind().view(x), ReduceOp::kSum, {.stream = stream.get()});
    WorkState::of(work)->when_done(
        told([](const absl::Status&) { Completion::run_later([] { absl::SleepFor(absl::Milliseconds(5)); }); }));
    EXPECT_THAT(error_of([&] { work.wait(absl::Hours(1)); }), HasSubstr("Mismatch"));
    EXPECT_THAT(stream->status().ToString(), HasSubstr("Mismatch"));
    EXPECT_THAT(error_of([&] { stream->synchronize(); }), HasSubstr("Mismatch"));
  });
}

TEST_P(CallOnStreamTest, AnOwnerIsKeptAsLongAsAWorkIs) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    const std::unique_ptr<Stream> stream = kind().make(rank, "stream");
    auto x = std::make_shared<std::vector<float>>(1, 1.0f + rank.rank());
    const std::weak_ptr<std::vector<float>> kept = x;
    const TensorView view = kind().view(*x);
    Work work = pg->all_reduce(view, ReduceOp::kSum, {.keep_alive = std::move(x), .stream = stream.get()});
    stream->synchronize();
    pg->barrier().wait();
    ASSERT_FALSE(kept.expired());
    EXPECT_EQ(static_cast<const float*>(work.result()[0].data())[0], 3);
    work = Work();
    while (!kept.expired()) rank.sleep_for(absl::Milliseconds(1));  // an owner may end on a helper

    x = std::make_shared<std::vector<float>>(1, 1.0f + rank.rank());
    const std::weak_ptr<std::vector<float>> of_dropped = x;
    const TensorView again = kind().view(*x);
    (void)pg->all_reduce(again, ReduceOp::kSum, {.keep_alive = std::move(x), .stream = stream.get()});
    stream->synchronize();
    while (!of_dropped.expired()) rank.sleep_for(absl::Milliseconds(1));
  });
}

// The others have numbered a call, too, that can never be complete.
TEST_P(CallOnStreamTest, ACallThatItsStreamCannotMakeFailsTheGroup) {
  const RunReport report = run_to_failure(options(2), [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    std::vector<float> y = {2};
    if (rank.rank() == 1) {
      Work first = pg->all_reduce(x);
      Work second = pg->all_reduce(y);
      EXPECT_THAT(error_of([&] { second.wait(); }), HasSubstr("its output overlaps that of all_reduce seq 1"));
      return;
    }
    const std::unique_ptr<Stream> stream = kind().make(rank, "comm");
    Work open = pg->all_reduce(x);
    Work refused = pg->all_reduce(x, ReduceOp::kSum, {.stream = stream.get()});
    stream->synchronize();
  });
  EXPECT_THAT(report.text(), HasSubstr("its output overlaps that of all_reduce seq 1"));
}

// A message has no number that others wait for.
TEST_P(CallOnStreamTest, AMessageThatItsStreamCannotMakeFailsTheStreamOnly) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    if (rank.rank() == 1) {
      pg->send(x, 0, 1).wait();
    } else {
      const std::unique_ptr<Stream> stream = kind().make(rank, "comm");
      Work open = pg->recv(x, 1, 1);
      Work refused = pg->recv(x, 1, 2, {.stream = stream.get()});
      EXPECT_THAT(error_of([&] { stream->synchronize(); }), HasSubstr("its output overlaps that of recv"));
      open.wait();
    }
    pg->barrier().wait();
  });
}

TEST_P(LaunchingStreamTest, RunsWhatIsQueuedInOrder) {
  run(2, [&](RankContext& rank) {
    const std::unique_ptr<Stream> stream = kind().make(rank, "compute");
    std::vector<int> order;
    for (int i = 0; i < 5; ++i) kind().launch(*stream, [&order, &rank, i] { order.push_back(10 * rank.rank() + i); });
    stream->synchronize();
    EXPECT_TRUE(stream->query());
    const int base = 10 * rank.rank();
    EXPECT_THAT(order, ElementsAre(base, base + 1, base + 2, base + 3, base + 4));
  });
}

TEST_P(LaunchingStreamTest, BlocksOnACollectiveWithoutBlockingTheRank) {
  run(3, [&](RankContext& rank) {
    const std::unique_ptr<Stream> stream = kind().make(rank, "compute");
    auto pg = init_process_group(rank);
    std::vector<int32_t> x = {rank.rank(), 1};  // memory of the host
    std::vector<int32_t> seen;
    pg->all_reduce(x).block_current_stream(*stream);  // the handle is gone: the stream holds the call
    kind().launch(*stream, [&] { seen = x; });
    rank.store().add("went on", 1);
    rank.store().wait({"went on"});
    stream->synchronize();
    EXPECT_THAT(seen, ElementsAre(3, 3));
  });
}

// ---- a rank that leaves while its stream has calls

// Each program leaves a call of rank 1 on its stream and ends by an exception; rank 0 waits for it.
using Leaving = void (*)(RankContext& rank, StreamKind& kind, ProcessGroup& pg, std::vector<float>& out);

void leave_a_call(RankContext& rank, StreamKind& kind, ProcessGroup& pg, std::vector<float>& out) {
  std::vector<float> in = {1.0F + static_cast<float>(rank.rank())};
  const std::unique_ptr<Stream> stream = kind.make(rank, "comm");
  const Work work = pg.all_gather_into_tensor(kind.view(out), kind.view(in), {.stream = stream.get()});
  if (rank.rank() == 1) {
    rank.yield();
    throw std::runtime_error("rank 1 gives up");
  }
  stream->synchronize();
}

void leave_a_wait(RankContext& rank, StreamKind& kind, ProcessGroup& pg, std::vector<float>& out) {
  std::vector<float> in = {1.0F + static_cast<float>(rank.rank())};
  const std::unique_ptr<Stream> stream = kind.make(rank, "comm");
  stream->wait_for(pg.all_gather_into_tensor(kind.view(out), kind.view(in)));
  if (rank.rank() == 1) {
    rank.yield();
    throw std::runtime_error("rank 1 gives up");
  }
  stream->synchronize();
}

// The stream outlives the frame of the call, whose handle goes with the frame.
void leave_a_call_on_a_kept_stream(RankContext& rank, StreamKind& kind, ProcessGroup& pg, std::vector<float>& out) {
  std::vector<float> in = {1.0F + static_cast<float>(rank.rank())};
  const std::shared_ptr<Stream> stream = kind.make(rank, "comm");
  rank.world().at_end([stream] {});
  const Work work = pg.all_gather_into_tensor(kind.view(out), kind.view(in), {.stream = stream.get()});
  if (rank.rank() == 1) {
    rank.yield();
    throw std::runtime_error("rank 1 gives up");
  }
  stream->synchronize();
}

// The call stands behind a wait that nobody ends.
void leave_a_call_behind_a_wait(RankContext& rank, StreamKind& kind, ProcessGroup& pg, std::vector<float>& out) {
  std::vector<float> in = {1.0F + static_cast<float>(rank.rank())};
  const std::unique_ptr<Stream> stream = kind.make(rank, "comm");
  const auto never = std::make_shared<FutureWork>(rank);
  if (rank.rank() == 1) stream->wait_for(WorkState::handle(never));
  const Work work = pg.all_gather_into_tensor(kind.view(out), kind.view(in), {.stream = stream.get()});
  if (rank.rank() == 1) {
    rank.yield();
    throw std::runtime_error("rank 1 gives up");
  }
  stream->synchronize();
}

TEST_P(LeftStreamTest, NothingWritesToTheMemoryOfARankThatUnwound) {
  for (const Leaving leave :
       {&leave_a_call, &leave_a_wait, &leave_a_call_on_a_kept_stream, &leave_a_call_behind_a_wait}) {
    for (uint64_t seed = 1; seed <= 24; ++seed) {
      WorldOptions world = options(2);
      if (world.schedule.explores())
        world.schedule = seed % 2 == 0 ? Schedule::late_completion(seed) : Schedule::seeded(seed);
      if (seed % 3 == 0) world.faults = {{.kind = Fault::Kind::kDelay, .op = "all_gather_into_tensor"}};
      std::vector<std::vector<float>> out(2, std::vector<float>(2));
      const RunReport report = run_to_failure(world, [&](RankContext& rank) {
        auto pg = init_process_group(rank);
        std::vector<float>& mine = out[static_cast<size_t>(rank.rank())];
        try {
          leave(rank, kind(), *pg, mine);
        } catch (...) {
          mine = {-5, -5};  // what comes there next
          throw;
        }
      });
      EXPECT_THAT(report.text(), HasSubstr("rank 1 failed: rank 1 gives up")) << "seed " << seed;
      EXPECT_THAT(out[1], ElementsAre(-5, -5)) << "seed " << seed;
      EXPECT_THAT(out[0], AnyOf(ElementsAre(-5, -5), ElementsAre(1, 2))) << "seed " << seed;
    }
  }
}

TEST_P(LeftStreamTest, AWaitThatIsDroppedWithItsStreamTakesItsCallBack) {
  std::vector<float> out(2, 0);
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> in = {1.0F + static_cast<float>(rank.rank())};
    if (rank.rank() == 1) {
      {
        const std::unique_ptr<Stream> stream = kind().make(rank, "comm");
        pg->all_gather_into_tensor(kind().view(out), kind().view(in)).block_current_stream(*stream);
        rank.sleep_for(absl::Milliseconds(1));  // the stream waits by now
      }
      EXPECT_THAT(out, ElementsAre(0, 0));
      out = {-5, -5};
      rank.store().set("dropped", "1");
      rank.sleep_for(absl::Milliseconds(1));
    } else {
      rank.store().wait({"dropped"});
      std::vector<float> all(2);
      EXPECT_THAT(
          error_of([&] { pg->all_gather_into_tensor(kind().view(all), kind().view(in)).wait(); }),
          HasSubstr("rank 1, group 0, all_gather_into_tensor seq 1: the work was dropped unfinished, want wait() "
                    "or keep_alive"));
    }
  });
  EXPECT_THAT(out, ElementsAre(-5, -5));
}

// A stream that waits for what is on it, or for one that waits for it, is not one that the program has.
TEST_P(LeftStreamTest, StreamsThatWaitInACircleAreGivenUp) {
  enum class Circle : uint8_t { kOwnWork, kOwnEvent, kTwo };
  for (const Circle circle : {Circle::kOwnWork, Circle::kOwnEvent, Circle::kTwo}) {
    std::vector<float> out(2, 0);
    run(2, [&](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<float> in = {1.0F + static_cast<float>(rank.rank())};
      if (rank.rank() == 1) {
        {
          const std::unique_ptr<Stream> first = kind().make(rank, "first");
          const std::unique_ptr<Stream> second = kind().make(rank, "second");
          Stream& other = circle == Circle::kTwo ? *second : *first;
          Work work = pg->all_gather_into_tensor(kind().view(out), kind().view(in), {.stream = first.get()});
          if (circle != Circle::kOwnEvent) work.block_current_stream(other);
          if (circle != Circle::kOwnWork) first->wait_event(other.record());
          rank.sleep_for(absl::Milliseconds(1));  // the streams wait by now
        }
        out = {-5, -5};
        rank.store().set("dropped", "1");
        rank.sleep_for(absl::Milliseconds(1));
      } else {
        rank.store().wait({"dropped"});
        std::vector<float> all(2);
        EXPECT_THAT(error_of([&] { pg->all_gather_into_tensor(kind().view(all), kind().view(in)).wait(); }),
                    HasSubstr("dropped"));
      }
    });
    EXPECT_THAT(out, ElementsAre(-5, -5)) << static_cast<int>(circle);
  }
}

// The caller's handle may go, by an exception, too, that the rank catches.
TEST_P(LeftStreamTest, AWorkThatAnExceptionTakesIsKeptByTheStreamThatWaitsForIt) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1.0F + static_cast<float>(rank.rank())};
    const std::unique_ptr<Stream> comm = kind().make(rank, "comm");
    const std::unique_ptr<Stream> waiting = kind().make(rank, "waiting");
    try {
      Work work = pg->all_reduce(kind().view(x), ReduceOp::kSum, {.stream = comm.get()});
      work.block_current_stream(*waiting);
      throw std::runtime_error("caught below");
    } catch (const std::runtime_error&) {
    }
    waiting->synchronize();
    EXPECT_THAT(x, ElementsAre(3));
  });
}

TEST_P(LeftStreamTest, AStreamThatWaitsForAWorkKeepsTheCallsOfAnother) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1.0F + static_cast<float>(rank.rank())};
    const std::unique_ptr<Stream> waiting = kind().make(rank, "waiting");
    {
      const std::unique_ptr<Stream> stream = kind().make(rank, "comm");
      pg->all_reduce(kind().view(x), ReduceOp::kSum, {.stream = stream.get()}).block_current_stream(*waiting);
    }
    waiting->synchronize();
    EXPECT_THAT(x, ElementsAre(3));
  });
}

TEST_P(LeftStreamTest, AnEventOrAWorkKeepsTheCallsOfAStreamThatWent) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1.0F + static_cast<float>(rank.rank())};
    std::vector<float> y = {1.0F + 10 * static_cast<float>(rank.rank())};
    const Stream::Event done = [&] {
      const std::unique_ptr<Stream> stream = kind().make(rank, "first");
      (void)pg->all_reduce(kind().view(x), ReduceOp::kSum, {.stream = stream.get()});
      return stream->record();
    }();
    Work work = [&] {
      const std::unique_ptr<Stream> stream = kind().make(rank, "second");
      return pg->all_reduce(kind().view(y), ReduceOp::kSum, {.stream = stream.get()});
    }();
    done.synchronize();
    EXPECT_THAT(x, ElementsAre(3));
    work.wait(absl::Hours(1));
    EXPECT_THAT(y, ElementsAre(12));
  });
}

TEST_P(LeftStreamTest, ACallThatOwnsItsTensorsOutlivesItsStream) {
  // Goes when the call is done, as a helper of the rank.
  struct Owner {
    explicit Owner(Latch* gone) : gone(*gone) {}
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;
    ~Owner() { gone.count_down(); }
    Latch& gone;
  };
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1.0F + static_cast<float>(rank.rank())};
    Latch gone(1);
    {
      const std::unique_ptr<Stream> stream = kind().make(rank, "comm");
      (void)pg->all_reduce(kind().view(x), ReduceOp::kSum,
                           {.keep_alive = std::make_shared<Owner>(&gone), .stream = stream.get()});
    }
    gone.wait();
    EXPECT_THAT(x, ElementsAre(3));
  });
}

TEST_P(LeftStreamTest, ARankThatCaughtTheExceptionTellsTheOthers) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1.0F + static_cast<float>(rank.rank())};
    if (rank.rank() == 1) {
      const auto gate = std::make_shared<FutureWork>(rank);
      try {
        const std::unique_ptr<Stream> stream = kind().make(rank, "comm");
        WorkState::handle(gate).block_current_stream(*stream);
        const Work work = pg->all_reduce(kind().view(x), ReduceOp::kSum, {.stream = stream.get()});
        throw std::runtime_error("caught below");
      } catch (const std::runtime_error&) {
      }
      EXPECT_THAT(x, ElementsAre(2));
      gate->resolve();
      rank.store().set("left", "1");
    } else {
      rank.store().wait({"left"});
      EXPECT_THAT(error_of([&] { pg->all_reduce(kind().view(x)).wait(); }),
                  AnyOf(HasSubstr("group 0: rank 1 dropped stream comm with all_reduce seq 1 ["),
                        HasSubstr("group 0: rank 1 dropped its all_reduce seq 1 while an exception unwound")));
    }
  });
}

TEST_P(LeftStreamTest, AnEventIsPassedWhenAnExceptionUnwindsWhatStandsBeforeIt) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) return;
    std::vector<float> x = {3};
    Stream::Event behind;
    try {
      const std::unique_ptr<Stream> stream = kind().make(rank, "comm");
      stream->wait_for(pg->recv(kind().view(x), 1));
      behind = stream->record();
      throw std::runtime_error("caught below");
    } catch (const std::runtime_error&) {
    }
    (void)error_of([&] { behind.synchronize(); });  // kinds differ in whether it tells why
    EXPECT_TRUE(behind.query());
    EXPECT_THAT(x, ElementsAre(3));
  });
}

// CUDA's streams run kernels, no functions, and are tested on a GPU only.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LaunchingStreamTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CallOnStreamTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LeftStreamTest);

}  // namespace
}  // namespace rankloom

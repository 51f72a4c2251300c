// What a stream that waits for a work must do, whatever kind it is.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "rankloom/error.h"
#include "rankloom/process_group.h"
#include "tests/collectives/streams/stream_kinds.h"
#include "tests/error_of.h"

namespace rankloom {

using namespace internal;

namespace {

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
    EXPECT_TRUE(stream->query());
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
                  ", stream comm: block_current_stream: timeout is -1s, want at least 0");
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

// CUDA's streams run kernels, no functions.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LaunchingStreamTest);

}  // namespace
}  // namespace rankloom

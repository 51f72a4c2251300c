#pragma once

// What a stream that waits for a work must do, whatever kind it is. Each case runs on one rank.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rankloom/error.h"
#include "rankloom/process_group.h"
#include "rankloom/stream.h"
#include "rankloom/work.h"
#include "rankloom/world.h"
#include "tests/error_of.h"

namespace rankloom {

// A work of the user's own that its future answers for.
class FutureWork final : public WorkState {
 public:
  explicit FutureWork(RankContext& rank) : promise_(&rank.world().scheduler(), rank.rank()) {}
  Future get_future(const std::shared_ptr<WorkState>& /*self*/) override { return promise_.future(); }
  void resolve() { promise_.set_value(); }
  void fail(const absl::Status& status) { promise_.set_error(status); }

 private:
  Promise promise_;
};

// Makes a stream of the kind under test.
using StreamMaker = std::function<std::unique_ptr<Stream>(RankContext&, std::string_view name)>;

// Streams go as far as they can: `stream`, which is blocked, as well as one that is not.
inline void let_streams_run(RankContext& rank, const StreamMaker& make_stream) {
  rank.sleep_for(absl::Milliseconds(1));
  make_stream(rank, "other")->synchronize();
}

inline void event_behind_a_blocked_work_is_not_done(RankContext& rank, const StreamMaker& make_stream) {
  const std::unique_ptr<Stream> stream = make_stream(rank, "stream");
  const Event before = stream->record();
  before.synchronize();
  EXPECT_TRUE(before.query());

  const auto work = std::make_shared<FutureWork>(rank);
  Work(work).block_current_stream(*stream);
  const Event behind = stream->record();
  let_streams_run(rank, make_stream);
  EXPECT_FALSE(behind.query());
  EXPECT_FALSE(stream->query());

  work->resolve();
  stream->synchronize();
  EXPECT_TRUE(behind.query());
  EXPECT_TRUE(stream->query());
  EXPECT_TRUE(stream->status().ok());
}

inline void a_work_that_is_freed_first_does_not_unblock_the_other(RankContext& rank, const StreamMaker& make_stream) {
  const std::unique_ptr<Stream> stream = make_stream(rank, "stream");
  auto a = std::make_shared<FutureWork>(rank);
  auto b = std::make_shared<FutureWork>(rank);
  Work(a).block_current_stream(*stream);
  Work(b).block_current_stream(*stream, absl::Hours(10'000'000));  // later than the clock can tell
  b->resolve();
  b.reset();
  const Event event = stream->record();
  let_streams_run(rank, make_stream);
  EXPECT_FALSE(event.query());
  a->resolve();
  a.reset();
  stream->synchronize();
  EXPECT_TRUE(event.query());
}

inline void a_timeout_releases_the_stream_and_marks_it_failed(RankContext& rank, const StreamMaker& make_stream) {
  const std::unique_ptr<Stream> stream = make_stream(rank, "comm");
  const auto work = std::make_shared<FutureWork>(rank);
  Work(work).block_current_stream(*stream, absl::Milliseconds(20));
  const Event behind = stream->record();
  const std::string text = error_of([&] { stream->synchronize(); });
  EXPECT_THAT(text, testing::HasSubstr("Timeout: rank " + std::to_string(rank.rank()) +
                                       ", stream comm: waited 20ms for a work: "));
  EXPECT_TRUE(behind.query());
  EXPECT_TRUE(stream->query());
  EXPECT_EQ(error_kind(stream->status()), ErrorKind::kTimeout);
  work->resolve();  // too late, and harmless
}

inline void a_work_that_fails_marks_the_stream_failed(RankContext& rank, const StreamMaker& make_stream) {
  const std::unique_ptr<Stream> stream = make_stream(rank, "comm");
  const auto work = std::make_shared<FutureWork>(rank);
  Work(work).block_current_stream(*stream);
  work->fail(make_error(ErrorKind::kCollectiveError, "the link is down"));
  EXPECT_EQ(error_of([&] { stream->synchronize(); }), "CollectiveError: the link is down");
  EXPECT_EQ(error_of([&] { stream->synchronize(); }), "CollectiveError: the link is down");  // for good
}

inline void a_work_that_is_done_blocks_nothing(RankContext& rank, const StreamMaker& make_stream) {
  const std::unique_ptr<Stream> stream = make_stream(rank, "comm");
  Work().block_current_stream(*stream);
  const auto work = std::make_shared<FutureWork>(rank);
  work->resolve();
  Work(work).block_current_stream(*stream);
  stream->synchronize();
  EXPECT_TRUE(stream->query());
  EXPECT_EQ(
      error_of([&] { Work(std::make_shared<FutureWork>(rank)).block_current_stream(*stream, absl::Seconds(-1)); }),
      "InvalidArgument: rank " + std::to_string(rank.rank()) +
          ", stream comm: block_current_stream: timeout is -1s, want at least 0");
}

// For a world of many ranks: nothing but their deadlines ends these waits.
inline void a_deadline_releases_one_of_many(RankContext& rank, const StreamMaker& make_stream) {
  const std::unique_ptr<Stream> stream = make_stream(rank, "stream");
  const auto never = std::make_shared<FutureWork>(rank);
  Work(never).block_current_stream(*stream, absl::Milliseconds(50));
  EXPECT_THAT(
      error_of([&] { stream->synchronize(); }),
      testing::HasSubstr("Timeout: rank " + std::to_string(rank.rank()) + ", stream stream: waited 50ms for a work"));
}

inline void events_order_two_streams(RankContext& rank, const StreamMaker& make_stream) {
  const std::unique_ptr<Stream> comm = make_stream(rank, "comm");
  const std::unique_ptr<Stream> compute = make_stream(rank, "compute");
  const auto gate = std::make_shared<FutureWork>(rank);
  Work(gate).block_current_stream(*comm);
  compute->wait_event(comm->record());
  compute->wait_event(Event());  // never recorded: nothing to wait for
  const Event behind = compute->record();
  let_streams_run(rank, make_stream);
  EXPECT_FALSE(behind.query());
  gate->resolve();
  compute->synchronize();
  EXPECT_TRUE(behind.query());
}

// The rest is for streams that take functions to run: launch().

template <typename LaunchingStream>
void runs_what_is_queued_in_order(RankContext& rank, LaunchingStream& stream) {
  std::vector<int> order;
  for (int i = 0; i < 5; ++i) stream.launch([&order, &rank, i] { order.push_back(10 * rank.rank() + i); });
  stream.synchronize();
  EXPECT_TRUE(stream.query());
  const int base = 10 * rank.rank();
  EXPECT_THAT(order, testing::ElementsAre(base, base + 1, base + 2, base + 3, base + 4));
}

// In a world of 3 ranks.
template <typename LaunchingStream>
void blocks_on_a_collective_without_blocking_the_rank(RankContext& rank, LaunchingStream& stream) {
  auto pg = init_process_group(rank);
  std::vector<int32_t> x = {rank.rank(), 1};  // memory of the host
  std::vector<int32_t> seen;
  pg->all_reduce(x).block_current_stream(stream);  // the handle is gone: the stream holds the call
  stream.launch([&] { seen = x; });
  rank.store().add("went on", 1);
  rank.store().wait({"went on"});
  stream.synchronize();
  EXPECT_THAT(seen, testing::ElementsAre(3, 3));
}

}  // namespace rankloom

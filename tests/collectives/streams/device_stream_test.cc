// Streams of a device and calls on its memory, on a device that is played: all but a real driver's own part.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "rankloom/rankloom.h"
#include "tests/collectives/streams/fake_device.h"
#include "tests/collectives/streams/stream_kinds.h"
#include "tests/collectives/told.h"
#include "tests/error_of.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;

class DeviceStreams : public LaunchingStreamKind {
 public:
  explicit DeviceStreams(const WorldMode& mode) : driver_(std::make_shared<FakeDriver>(mode.schedule.seed() + 1)) {}
  void enter(RankContext& rank) override { use_device(state_of(rank).world(), driver_); }
  std::unique_ptr<Stream> make(RankContext& rank, std::string_view name) override {
    return std::make_unique<FakeDeviceStream>(rank, *driver_, name);
  }
  void launch(Stream& stream, std::function<void()> function) override {
    static_cast<FakeDeviceStream&>(stream).launch(std::move(function));
  }

 protected:
  FakeDriver& driver() { return *driver_; }

 private:
  const std::shared_ptr<FakeDriver> driver_;
};
// The same, with calls on memory of the device.
class DeviceMemoryStreams final : public DeviceStreams {
 public:
  using DeviceStreams::DeviceStreams;
  TensorView view(std::vector<float>& values) const override { return on_device(values); }
};
INSTANTIATE_TEST_SUITE_P(Device, CallOnStreamTest, CallOnStreamTest::every_world_of<DeviceStreams>(),
                         StreamWorldName());
INSTANTIATE_TEST_SUITE_P(DeviceMemory, CallOnStreamTest, CallOnStreamTest::every_world_of<DeviceMemoryStreams>(),
                         StreamWorldName());
INSTANTIATE_TEST_SUITE_P(Device, LeftStreamTest, LeftStreamTest::every_world_of<DeviceStreams>(), StreamWorldName());
INSTANTIATE_TEST_SUITE_P(DeviceMemory, LeftStreamTest, LeftStreamTest::every_world_of<DeviceMemoryStreams>(),
                         StreamWorldName());
INSTANTIATE_TEST_SUITE_P(Device, BlockedStreamTest, BlockedStreamTest::every_world_of<DeviceStreams>(),
                         StreamWorldName());
INSTANTIATE_TEST_SUITE_P(Device, LaunchingStreamTest, LaunchingStreamTest::every_world_of<DeviceStreams>(),
                         StreamWorldName());

class StrictDeviceStreams final : public DeviceStreams {
 public:
  explicit StrictDeviceStreams(const WorldMode& mode) : DeviceStreams(mode) { driver().become_strict(); }
};
INSTANTIATE_TEST_SUITE_P(StrictDevice, LeftStreamTest, LeftStreamTest::every_world_of<StrictDeviceStreams>(),
                         StreamWorldName());
INSTANTIATE_TEST_SUITE_P(StrictDevice, BlockedStreamTest, BlockedStreamTest::every_world_of<StrictDeviceStreams>(),
                         StreamWorldName());
INSTANTIATE_TEST_SUITE_P(StrictDevice, LaunchingStreamTest, LaunchingStreamTest::every_world_of<StrictDeviceStreams>(),
                         StreamWorldName());

class DeviceTest : public EveryWorldTest {
 protected:
  // Worlds whose ranks may use the device.
  RunReport run(int world_size, Program program) {
    return EveryWorldTest::run(world_size, [&](RankContext& rank) {
      enter(rank);
      program(rank);
    });
  }
  RunReport run_to_failure(int world_size, Program program) {
    return EveryWorldTest::run_to_failure(world_size, [&](RankContext& rank) {
      enter(rank);
      program(rank);
    });
  }

  void enter(RankContext& rank) { use_device(state_of(rank).world(), driver_); }
  FakeDriver& driver() { return *driver_; }

 private:
  const std::shared_ptr<FakeDriver> driver_ = std::make_shared<FakeDriver>(GetParam().schedule.seed() + 1);
};
INSTANTIATE_TEST_SUITE_P(Worlds, DeviceTest, every_world(), world_name);

TEST_P(DeviceTest, RanksThatWaitForTheirStreamsDoNotStandBeforeTheCall) {
  constexpr int kRanks = DeviceDriver::kLanes + 4;
  driver().become_strict();
  std::vector<std::vector<float>> x(kRanks);
  run(kRanks, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    FakeDeviceStream stream(rank, driver(), "comm");
    std::vector<float>& mine = x[static_cast<size_t>(rank.rank())] = {static_cast<float>(rank.rank())};
    for (int i = 0; i < 3; ++i) (void)pg->all_reduce(on_device(mine), ReduceOp::kMax, {.stream = &stream});
    stream.synchronize();
    EXPECT_THAT(mine, ElementsAre(kRanks - 1));
  });
}

TEST_P(DeviceTest, RanksRunAheadOfTheDeviceByManyCalls) {
  driver().slow_down(absl::Microseconds(300));
  std::vector<std::vector<float>> x(8);
  run(8, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    FakeDeviceStream stream(rank, driver(), "comm");
    std::vector<float>& mine = x[static_cast<size_t>(rank.rank())] = {static_cast<float>(rank.rank())};
    for (int round = 0; round < 2; ++round) {
      pg->barrier().wait();
      for (int i = 0; i < 20; ++i) (void)pg->all_reduce(on_device(mine), ReduceOp::kMax, {.stream = &stream});
      stream.synchronize();
      EXPECT_THAT(mine, ElementsAre(7));
    }
  });
}

TEST_P(DeviceTest, CallsThatWaitForOtherStreamsLeaveLanesForThoseThatDoNot) {
  constexpr int kRanks = 2 * DeviceDriver::kLanes + 4;
  std::vector<std::vector<float>> x(kRanks);
  std::vector<std::vector<float>> y(kRanks);
  run(kRanks, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    const auto pair = pg->split_group(rank.rank() / 2);
    FakeDeviceStream a(rank, driver(), "a");
    FakeDeviceStream b(rank, driver(), "b");
    std::vector<float>& all = x[static_cast<size_t>(rank.rank())] = {static_cast<float>(rank.rank())};
    std::vector<float>& two = y[static_cast<size_t>(rank.rank())] = {static_cast<float>(rank.rank())};
    if (rank.rank() < 2) rank.store().wait({"all in pairs"});
    (void)pg->all_reduce(on_device(all), ReduceOp::kMax, {.stream = &a});
    // As a program of the user's own: rankloom does not see it.
    const absl::StatusOr<DeviceDriver::EventHandle> event = driver().take_event(/*device=*/0);
    ASSERT_TRUE(event.ok());
    ASSERT_TRUE(driver().record(*event, a.handle()).ok());
    ASSERT_TRUE(driver().wait_event(b.handle(), *event).ok());
    (void)pair->all_reduce(on_device(two), ReduceOp::kMax, {.stream = &b});
    if (rank.rank() >= 2 && rank.store().add("called", 1) == kRanks - 2) rank.store().set("all in pairs", "1");
    b.synchronize();
    EXPECT_THAT(all, ElementsAre(kRanks - 1));
    EXPECT_THAT(two, ElementsAre(rank.rank() / 2 * 2 + 1));
  });
}

TEST_P(DeviceTest, AnEventOfAnotherWorldIsRefused) {
  Stream::Event event;
  run(1, [&](RankContext& rank) { event = FakeDeviceStream(rank, driver(), "first").record(); });
  run(1, [&](RankContext& rank) {
    FakeDeviceStream stream(rank, driver(), "second");
    EXPECT_THAT(
        error_of([&] { stream.wait_event(event); }),
        HasSubstr("InvalidArgument: rank 0, stream second: wait_event: the event is one of another world, want one "
                  "of a stream of this world"));
  });
}

TEST_P(DeviceTest, DeadlinesEndWaitsThoughTheDeviceMakesSomethingNewMeanwhile) {
  driver().become_strict();
  run(3, [&](RankContext& rank) {
    FakeDeviceStream stream(rank, driver(), "comm");
    const auto never = std::make_shared<FutureWork>(rank);
    if (rank.rank() == 0) {
      rank.store().wait({"1 blocked", "2 blocked"});
      // Beyond those that were made before: the device makes one once no stream is blocked.
      for (int i = 0; i <= DeviceDriver::kEvents; ++i) ASSERT_TRUE(driver().take_wait(/*device=*/0).ok());
      return;
    }
    WorkState::handle(never).block_current_stream(stream, absl::Milliseconds(30 * rank.rank()));
    rank.store().set(absl::StrCat(rank.rank(), " blocked"), "1");
    EXPECT_THAT(error_of([&] { stream.synchronize(); }), HasSubstr("Timeout: "));
  });
}

TEST(DeviceStallTest, TheTextOfAStallNamesTheStreamsThatWait) {
  const auto driver = std::make_shared<FakeDriver>();
  std::atomic<bool> told{false};
  std::string text;
  WorldOptions options{.world_size = 1, .stall = absl::Milliseconds(20)};
  options.on_stall = [&](const std::string& what) {
    // A rank that the machine held up may be told of before, when it has blocked fewer.
    if (absl::StrContains(what, "\n    and ") && !told.exchange(true)) text = what;
  };
  run_world(std::move(options), [&](RankContext& rank) {
    use_device(state_of(rank).world(), driver);
    FakeDeviceStream stream(rank, *driver, "comm");
    std::vector<std::shared_ptr<FutureWork>> works;
    for (int i = 0; i < 6; ++i) {
      works.push_back(std::make_shared<FutureWork>(rank));
      WorkState::handle(works.back()).block_current_stream(stream);
    }
    rank.yield();                                         // told of anew from here
    while (!told) absl::SleepFor(absl::Milliseconds(1));  // as a call of the device that waits for the stream
    for (const std::shared_ptr<FutureWork>& work : works) work->resolve();
    stream.synchronize();
  }).throw_if_failed();
  EXPECT_THAT(
      text, testing::ContainsRegex("rank 0 has come to no scheduling point for 20ms of real time.*\n"
                                   "(.*\n)?  streams of the device wait for works, and the device may make calls wait "
                                   "for them .the first launch of a kernel, what makes or frees memory or streams.:\n"
                                   "(    rank 0, stream comm: [^\n]*\n){4}    and 2 more"));
}

// The device has gone on with data that nobody had computed.
TEST_P(DeviceTest, AWaitThatTheDeviceGaveUpMarksTheStreamFailed) {
  run(1, [&](RankContext& rank) {
    FakeDeviceStream stream(rank, driver(), "comm");
    driver().give_up_waits();
    const auto work = std::make_shared<FutureWork>(rank);
    WorkState::handle(work).block_current_stream(stream);
    const Stream::Event behind = stream.record();
    while (!behind.query()) sched_yield();
    work->resolve();
    EXPECT_THAT(error_of([&] { stream.synchronize(); }),
                HasSubstr("stream comm: the device gave up waiting for a work: "));
  });
}

TEST_P(DeviceTest, AnAbortReleasesTheStream) {
  std::shared_ptr<FutureWork> never;
  bool ran = false;
  const RunReport report = run_to_failure(2, [&](RankContext& rank) {
    if (rank.rank() == 1) {
      rank.store().wait({"blocked"});
      throw std::runtime_error("rank 1 gives up");
    }
    FakeDeviceStream stream(rank, driver());
    never = std::make_shared<FutureWork>(rank);
    WorkState::handle(never).block_current_stream(stream);
    stream.launch([&] { ran = true; });
    const Stream::Event behind = stream.record();
    rank.store().set("blocked", "1");
    EXPECT_THAT(error_of([&] { stream.synchronize(); }), HasSubstr("RankFailed: rank 1 failed: rank 1 gives up"));
    // The stream goes on, soon.
    while (!behind.query()) sched_yield();
    EXPECT_EQ(error_kind(stream.status()), ErrorKind::kRankFailed);
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 1 failed: rank 1 gives up"));
  EXPECT_TRUE(ran);
  never.reset();
}

TEST_P(DeviceTest, ADeadlockNamesWhomTheStreamWaitsFor) {
  std::vector<std::vector<float>> x(2, {1});
  const RunReport report = run_to_failure(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) return;
    FakeDeviceStream comm(rank, driver(), "comm");
    FakeDeviceStream compute(rank, driver(), "compute");
    (void)pg->all_reduce(on_device(x[0]), ReduceOp::kSum, {.stream = &comm});
    compute.wait_event(comm.record());
    compute.synchronize();
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 0 waits in stream synchronize compute for rank 1 (returned)"));
}

TEST_P(DeviceTest, ACallStartsAfterWhatIsQueuedAndWaitDoesNotBlock) {
  std::vector<std::vector<int32_t>> x(2, std::vector<int32_t>{-1});
  std::vector<std::vector<int32_t>> seen(2);
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    FakeDeviceStream stream(rank, driver(), "comm");
    std::vector<int32_t>& mine = x[static_cast<size_t>(rank.rank())];
    std::vector<int32_t>& result = seen[static_cast<size_t>(rank.rank())];
    const auto gate = std::make_shared<FutureWork>(rank);
    WorkState::handle(gate).block_current_stream(stream);
    stream.launch([&mine, r = rank.rank()] { mine[0] = r + 1; });  // what the call reads
    Work work = pg->all_reduce(on_device(mine), ReduceOp::kSum, {.stream = &stream});
    EXPECT_EQ(pg->sequence_number(), 1);
    work.wait();
    EXPECT_FALSE(work.is_completed());
    stream.launch([&] { result = mine; });
    gate->resolve();
    stream.synchronize();
    EXPECT_TRUE(work.is_success());
    EXPECT_THAT(result, ElementsAre(3));
    EXPECT_EQ(work.result()[0].data(), mine.data());
  });
}

TEST_P(DeviceTest, ACallOnMemoryOfTheHostIsIssuedWhenTheStreamGetsThere) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    FakeDeviceStream stream(rank, driver());
    std::vector<int32_t> x = {-1};
    std::vector<int32_t> seen;
    stream.launch([&x, r = rank.rank()] { x[0] = 10 * (r + 1); });
    Work reduced = pg->all_reduce(x, ReduceOp::kSum, {.stream = &stream});
    Work met = pg->barrier({.stream = &stream});
    stream.launch([&] { seen = x; });
    stream.synchronize();
    EXPECT_TRUE(reduced.is_success());
    EXPECT_TRUE(met.is_success());
    EXPECT_THAT(seen, ElementsAre(30));
  });
}

// A call in a stream was made, and counts, before the group's end.
TEST_P(DeviceTest, TheEndOfAGroupWaitsForCallsThatAreQueued) {
  run(3, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    FakeDeviceStream stream(rank, driver());
    std::vector<float> x = {1.0f * rank.rank()};
    stream.launch([&] {
      absl::SleepFor(absl::Milliseconds(10));
      x[0] += 1;
    });
    Work reduced = pg->all_reduce(x, ReduceOp::kSum, {.stream = &stream});
    Work met = pg->barrier({.stream = &stream});
    destroy_process_group(pg);
    EXPECT_TRUE(reduced.is_success());
    EXPECT_TRUE(met.is_success());
    EXPECT_THAT(x, ElementsAre(1 + 2 + 3));
    stream.synchronize();
  });
}

// A rank that knows how far a stream is knows that the calls before are done, and may use their memory again.
TEST_P(DeviceTest, WhatAStreamHasWaitedForIsTheRanksAgain) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    FakeDeviceStream stream(rank, driver());
    FakeDeviceStream second(rank, driver());
    std::vector<float> x = {1.0f + rank.rank()};
    const auto reduce = [&](const CallOptions& options = {}) { return pg->all_reduce(x, ReduceOp::kMax, options); };
    std::vector<Work> kept;
    const auto blocks = [&](Stream& blocked) { kept.emplace_back(reduce()).block_current_stream(blocked); };
    blocks(stream);
    stream.synchronize();
    blocks(stream);
    while (!stream.query()) rank.sleep_for(absl::Milliseconds(1));
    blocks(stream);
    stream.record().synchronize();
    blocks(stream);
    for (const Stream::Event event = stream.record(); !event.query();) rank.sleep_for(absl::Milliseconds(1));
    blocks(stream);
    second.wait_event(stream.record());
    second.synchronize();
    // A call behind them in the stream is made when they are done.
    blocks(stream);
    kept.push_back(reduce({.stream = &stream}));
    kept.push_back(reduce({.stream = &stream}));
    stream.synchronize();
    reduce().wait();
    EXPECT_THAT(x, ElementsAre(2));
    // Nobody has heard of this one yet.
    kept.push_back(reduce());
    EXPECT_THAT(error_of([&] { (void)reduce(); }), HasSubstr(", which this rank has not waited for"));
    kept.back().wait();
  });
}

TEST_P(DeviceTest, ACallEndsAtItsOwnTimeout) {
  // The world's is shorter: not that one, of real time on a device, ends the call.
  WorldOptions patient = options(2);
  patient.timeout = absl::Milliseconds(30);
  EveryWorldTest::run(std::move(patient), [&](RankContext& rank) {
    enter(rank);
    auto pg = init_process_group(rank, {.timeout = absl::Seconds(100)});
    std::vector<float> x = {1.0f + rank.rank()};
    std::vector<float> y = {3.0f + rank.rank()};
    FakeDeviceStream stream(rank, driver());
    if (rank.rank() == 1) absl::SleepFor(absl::Milliseconds(100));
    Work of_group = pg->all_reduce(on_device(x), ReduceOp::kSum, {.stream = &stream});
    Work own = pg->all_reduce(y, ReduceOp::kSum, {.timeout = absl::Seconds(90), .stream = &stream});
    stream.synchronize();
    EXPECT_TRUE(of_group.is_success());
    EXPECT_TRUE(own.is_success());
    EXPECT_THAT(x, ElementsAre(3));
    EXPECT_THAT(y, ElementsAre(7));
  });
}

TEST_P(DeviceTest, ACallEndsAtTheDefaultTimeoutAsOneThatIsWaitedFor) {
  const Fault after{.kind = Fault::Kind::kDelay, .rank = 0, .op = "all_reduce", .when = Fault::When::kAfter};
  for (const FaultPlan& faults : {FaultPlan(), FaultPlan({after})}) {
    SCOPED_TRACE(faults.text());
    WorldOptions hasty = options(2);
    hasty.timeout = absl::Milliseconds(30);
    hasty.faults = faults;
    const RunReport report = EveryWorldTest::run_to_failure(std::move(hasty), [&](RankContext& rank) {
      enter(rank);
      auto pg = init_process_group(rank);
      std::vector<float> x = {1};
      FakeDeviceStream stream(rank, driver(), "comm");
      if (rank.rank() == 1) {
        rank.store().wait({"issued"}, absl::Seconds(100));
        absl::SleepFor(absl::Milliseconds(deterministic() ? 100 : 400));
        for (int i = 0; i < 50; ++i) rank.yield();  // to the helper that ends the call
      }
      Work work = pg->all_reduce(on_device(x), ReduceOp::kSum, {.stream = &stream});
      if (rank.rank() == 0) {
        rank.store().set("issued", "");
        EXPECT_THAT(error_of([&] { stream.synchronize(); }), HasSubstr("Timeout: rank 0, "));
      }
      work.wait(absl::Seconds(100));
    });
    EXPECT_THAT(report.text(), testing::Not(HasSubstr("dropped")));
    EXPECT_THAT(report.text(),
                HasSubstr("Timeout: rank 0, group 0, all_reduce seq 1: timed out after 30ms waiting for rank 1"));
  }
}

TEST_P(DeviceTest, AnotherRanksStreamIsRefused) {
  std::unique_ptr<FakeDeviceStream> of_first;
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) of_first = std::make_unique<FakeDeviceStream>(rank, driver(), "of 0");
    pg->barrier().wait();
    std::vector<float> x = {1};
    if (rank.rank() == 1) {
      EXPECT_THAT(
          error_of([&] { (void)pg->all_reduce(x, ReduceOp::kSum, {.stream = of_first.get()}); }),
          HasSubstr("rank 0, stream of 0: all_reduce was called by rank 1, want the rank that made the stream"));
    }
    pg->barrier().wait();
    if (rank.rank() == 0) of_first.reset();
  });
}

// The work that a stream waits for is done where the stream, or a rank that waits for the stream, goes on.
TEST_P(DeviceTest, AStreamGoesOnNoEarlierThanTheWorkIsDone) {
  run(1, [&](RankContext& rank) {
    FakeDeviceStream stream(rank, driver());
    Promise promise(&rank.world().scheduler(), rank.rank());
    const std::shared_ptr<WorkState> work = WorkState::shared(promise.work());
    promise.work().block_current_stream(stream);
    std::atomic<bool> went_on = false;
    stream.launch([&] { went_on = true; });
    work->when_done(told([&](const absl::Status&) {
      absl::SleepFor(absl::Milliseconds(20));
      EXPECT_FALSE(work->is_over());
      EXPECT_FALSE(went_on);
    }));
    promise.set_value();
    stream.synchronize();
    EXPECT_TRUE(work->is_over());
    EXPECT_TRUE(went_on);
  });
}

TEST_P(DeviceTest, WaitWithATimeoutBlocksTheRank) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    FakeDeviceStream stream(rank, driver());
    std::vector<int32_t> x = {rank.rank() + 5};
    Work work = pg->broadcast(on_device(x), 1, {.stream = &stream});
    work.wait(absl::Hours(1));
    EXPECT_TRUE(work.is_success());
    EXPECT_THAT(x, ElementsAre(6));
  });
}

TEST_P(DeviceTest, ATimeoutOfTheCallFailsWorkAndStream) {
  std::vector<std::vector<float>> x(2, {1});
  const RunReport report = run_to_failure(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) {
      rank.sleep_for(absl::Hours(1));
      return;
    }
    FakeDeviceStream stream(rank, driver(), "comm");
    Work work = pg->all_reduce(on_device(x[0]), ReduceOp::kSum, {.timeout = absl::Milliseconds(30), .stream = &stream});
    stream.synchronize();
  });
  EXPECT_THAT(report.text(),
              HasSubstr("Timeout: rank 0, group 0, all_reduce seq 1: timed out after 30ms waiting for rank 1"));
}

TEST_P(DeviceTest, AWaitWhoseTimePassesMeanwhileEndsAfterTheDevice) {
  driver().slow_down(absl::Milliseconds(deterministic() ? 5 : 300));  // long after the time below
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> x = {rank.rank() + 1};
    Work work = pg->all_reduce(on_device(x));
    if (rank.rank() == 1) {
      rank.store().set("called", "1");
      work.wait();
    } else {
      rank.store().wait({"called"});
      const std::string text = error_of([&] { work.wait(absl::Milliseconds(3)); });
      EXPECT_EQ(driver().plans_run(), 1) << text;
      // Virtual time stands still while a device is at work.
      EXPECT_THAT(text,
                  AnyOf("no error",
                        HasSubstr(deterministic() ? "no error"
                                                  : "all_reduce seq 1: timed out after 3ms waiting for its kernel")));
    }
    EXPECT_THAT(x, ElementsAre(3));
    pg->barrier().wait();
  });
}

TEST_P(DeviceTest, CallsOfSeveralStreamsKeepTheirNumbers) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    FakeDeviceStream one(rank, driver(), "one");
    FakeDeviceStream two(rank, driver(), "two");
    std::vector<int32_t> x = {1 + rank.rank()};
    std::vector<int32_t> y = {10 + rank.rank()};
    std::vector<int32_t> z = {100 + rank.rank()};
    const auto gate = std::make_shared<FutureWork>(rank);
    WorkState::handle(gate).block_current_stream(one);
    (void)pg->all_reduce(on_device(x), ReduceOp::kSum, {.stream = &one});
    (void)pg->all_reduce(on_device(y), ReduceOp::kSum, {.stream = &two});
    pg->all_reduce(on_device(z)).wait();  // without a stream; third, and first to be done
    EXPECT_THAT(z, ElementsAre(201));
    two.synchronize();
    EXPECT_THAT(y, ElementsAre(21));
    gate->resolve();
    one.synchronize();
    EXPECT_THAT(x, ElementsAre(3));
  });
}

TEST_P(DeviceTest, SendAndRecvMoveMemoryOfTheDevice) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    FakeDeviceStream stream(rank, driver());
    std::vector<int32_t> mine = {-1};
    std::vector<int32_t> got = {0};
    std::vector<int32_t> more = {0};
    const int peer = 1 - rank.rank();
    stream.launch([&] { mine[0] = 7 + rank.rank(); });
    if (rank.rank() == 0) {
      (void)pg->send(on_device(mine), peer, 0, {.stream = &stream});
      (void)pg->recv(on_device(got), peer, 0, {.stream = &stream});
    } else {
      (void)pg->recv(on_device(got), peer, 0, {.stream = &stream});
      (void)pg->send(on_device(mine), peer, 0, {.stream = &stream});
    }
    stream.synchronize();
    EXPECT_THAT(got, ElementsAre(7 + peer));
    if (rank.rank() == 0) {
      pg->send(on_device(mine), peer, 3).wait();
    } else {
      Work work = pg->recv_any(on_device(more), 3);
      work.wait();
      EXPECT_EQ(work.source(), 0);
      EXPECT_THAT(more, ElementsAre(7));
    }
  });
}

TEST_P(DeviceTest, CoalescedCallsGoThroughAStream) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    FakeDeviceStream stream(rank, driver());
    std::vector<int32_t> x = {rank.rank()};
    std::vector<int64_t> y = {rank.rank() == 1 ? 9 : 0};
    std::vector<int32_t> mine = {40 + rank.rank()};
    std::vector<int32_t> got = {0};
    const int peer = 1 - rank.rank();
    pg->start_coalescing();
    Work reduced = pg->all_reduce(on_device(x));
    (void)pg->broadcast(on_device(y), 1);
    (void)pg->all_reduce(on_device(x));  // needs what the first one gives
    (void)pg->send(on_device(mine), peer);
    (void)pg->recv(on_device(got), peer);
    (void)pg->end_coalescing({.stream = &stream});
    stream.synchronize();
    EXPECT_TRUE(reduced.is_success());
    EXPECT_THAT(x, ElementsAre(2));
    EXPECT_THAT(y, ElementsAre(9));
    EXPECT_THAT(got, ElementsAre(40 + peer));
  });
}

TEST_P(DeviceTest, AMismatchMarksEveryMembersStreamFailed) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    FakeDeviceStream stream(rank, driver());
    std::vector<float> x(static_cast<size_t>(rank.rank()) + 1);
    // The member that completes the call may be told at once.
    const std::string at_once =
        error_of([&] { (void)pg->all_reduce(on_device(x), ReduceOp::kSum, {.stream = &stream}); });
    const std::string later = error_of([&] { stream.synchronize(); });
    EXPECT_THAT(at_once + later, HasSubstr("Mismatch: group 0, seq 1"));
    EXPECT_EQ(error_kind(stream.status()), ErrorKind::kMismatch);
  });
}

TEST_P(DeviceTest, ADeviceThatRefusesALaunchFailsEveryMember) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    driver().fail_runs(1);
    std::vector<float> x = {1};
    EXPECT_THAT(error_of([&] { pg->all_reduce(on_device(x)).wait(); }),
                HasSubstr("CollectiveError: group 0, all_reduce seq 1: fake device: launch failed"));
    EXPECT_THAT(error_of([&] { pg->all_reduce(on_device(x)).wait(); }), HasSubstr("the group failed before"));
  });
}

TEST_P(DeviceTest, ADeviceThatRefusesTheLaunchOfAMessageFailsBothSides) {
  driver().fail_runs(1);
  std::vector<std::string> errors(2);
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(4, 1);
    std::string& error = errors[static_cast<size_t>(rank.rank())];
    error = error_of([&] { rank.rank() == 0 ? pg->send(on_device(x), 1).wait() : pg->recv(on_device(x), 0).wait(); });
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("fake device: launch failed"));
}

TEST_P(DeviceTest, AMessageBetweenTwoDevicesIsRefused) {
  std::vector<std::string> errors(2);
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(1);
    const TensorView mine(x.data(), DType::kFloat32, {1},
                          Device{Device::Kind::kCuda, static_cast<int8_t>(rank.rank())});
    std::string& error = errors[static_cast<size_t>(rank.rank())];
    error = error_of([&] { rank.rank() == 0 ? pg->send(mine, 1).wait() : pg->recv(mine, 0).wait(); });
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("rank 1, group 0, recv from rank 0: the tensor is on cuda:1, the sender's on cuda:0, "
                                 "want one device"));
  }
}

// A call that writes what an earlier one of the block reads.
TEST_P(DeviceTest, CoalescedCallsOfOneBufferComeOneAfterAnother) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1.0F + static_cast<float>(rank.rank())}, all(2);
    pg->start_coalescing();
    (void)pg->all_gather_into_tensor(on_device(all), on_device(x));
    (void)pg->all_reduce(on_device(x));
    pg->end_coalescing().wait();
    EXPECT_THAT(all, ElementsAre(1, 2));
    EXPECT_THAT(x, ElementsAre(3));
  });
}

TEST_P(DeviceTest, ADeviceThatBreaksDownFailsWhatIsOnIt) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    pg->all_reduce(on_device(x)).wait();
    pg->barrier().wait();
    driver().break_down();
    EXPECT_THAT(error_of([&] { pg->all_reduce(on_device(x)).wait(); }),
                HasSubstr("CollectiveError: group 0, all_reduce seq 3: fake device: broken"));
  });
}

TEST_P(DeviceTest, ADeviceThatBreaksDownFailsQuestions) {
  run(1, [&](RankContext& rank) {
    FakeDeviceStream stream(rank, driver(), "comm");
    Stream::Event event = stream.record();
    stream.synchronize();
    EXPECT_TRUE(event.query());
    driver().break_down();
    EXPECT_THAT(error_of([&] {
                  event.query({"dir/job.cc", 7});
                }),
                testing::StrEq("CollectiveError: rank 0: event query: fake device: broken [job.cc:7]"));
    EXPECT_THAT(error_of([&] {
                  stream.query({"dir/job.cc", 8});
                }),
                testing::StrEq("CollectiveError: rank 0, stream comm: stream query: fake device: broken [job.cc:8]"));
  });
}

TEST_P(DeviceTest, WordsAreUsedAgain) {
  run(1, [&](RankContext& rank) {
    FakeDeviceStream stream(rank, driver());
    for (int i = 0; i < 50; ++i) {
      const auto work = std::make_shared<FutureWork>(rank);
      WorkState::handle(work).block_current_stream(stream);
      work->resolve();
      stream.synchronize();
    }
    // A word waits for its stream's mark, which comes a step after what synchronize() waits for.
    EXPECT_LE(driver().words_made(), 3);
  });
}

TEST_P(DeviceTest, ADroppedWorkOnTheDeviceGoesOn) {
  std::vector<std::vector<int32_t>> x = {{1}, {2}};
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    FakeDeviceStream stream(rank, driver());
    const auto gate = std::make_shared<FutureWork>(rank);
    WorkState::handle(gate).block_current_stream(stream);
    // Both are on the device, behind the streams.
    (void)pg->all_reduce(on_device(x[static_cast<size_t>(rank.rank())]), ReduceOp::kSum, {.stream = &stream});
    pg->barrier().wait();
    gate->resolve();
    stream.synchronize();
    EXPECT_EQ(x[static_cast<size_t>(rank.rank())][0], 3);
  });
}

TEST_P(DeviceTest, ACallThatIsDroppedWithItsStreamIsTakenBackAndNoted) {
  std::vector<float> out(2, 0);
  const RunReport report = run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    const std::vector<float> in = {1.0F + static_cast<float>(rank.rank())};
    if (rank.rank() == 1) {
      const auto gate = std::make_shared<FutureWork>(rank);
      {
        FakeDeviceStream stream(rank, driver(), "comm");
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
                                        "all_gather_into_tensor seq 1 \\[device_stream_test.cc:[0-9]+\\] in it, want "
                                        "synchronize\\(\\) of the stream before, or keep_alive.*"));
      rank.store().wait({"dropped"});
    }
  });
  EXPECT_THAT(out, ElementsAre(-5, -5));
  EXPECT_THAT(report.notes, testing::Contains(HasSubstr("rank 1, group 0: stream comm was dropped with "
                                                        "all_gather_into_tensor seq 1 [device_stream_test.cc:")));
}

// The first call, whose work is kept, holds the stream until a task of the library's completes the call: nobody may
// wait there for what is given up then.
TEST_P(DeviceTest, ACallThatIsDroppedWithItsStreamIsTakenBackWhenAnotherOneCompletes) {
  std::vector<std::vector<int32_t>> x = {{1}, {2}};
  std::vector<int32_t> y = {4};
  const RunReport report = run_to_failure(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    const TensorView mine = on_device(x[static_cast<size_t>(rank.rank())]);
    const auto gate = std::make_shared<FutureWork>(rank);
    auto stream = std::make_unique<FakeDeviceStream>(rank, driver(), "comm");
    WorkState::handle(gate).block_current_stream(*stream);
    Work first = pg->all_reduce(mine, ReduceOp::kSum, {.stream = stream.get()});
    if (rank.rank() == 0) (void)pg->all_reduce(on_device(y), ReduceOp::kSum, {.stream = stream.get()});
    if (rank.rank() == 0) stream.reset();
    gate->resolve();
    first.wait();
    if (rank.rank() == 0) return rank.store().set("gone", "");
    rank.store().wait({"gone"});
    pg->barrier().wait();
  });
  EXPECT_EQ(y[0], 4);
  // Free threads may be ahead of what completes the first call.
  EXPECT_THAT(report.text(), testing::AnyOf(HasSubstr("the work was dropped unfinished, want wait() or keep_alive"),
                                            HasSubstr("Mismatch: group 0, seq 2")));
}

// The second call has been launched, behind the gate that the end of `gate` opens: not after what waits for the call.
TEST_P(DeviceTest, ALaunchedCallThatIsDroppedWithItsStreamEnds) {
  std::vector<std::vector<int32_t>> x = {{1}, {2}};
  std::vector<std::vector<int32_t>> y = {{4}, {8}};
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    const auto me = static_cast<size_t>(rank.rank());
    const auto gate = std::make_shared<FutureWork>(rank);
    auto stream = std::make_unique<FakeDeviceStream>(rank, driver(), "comm");
    WorkState::handle(gate).block_current_stream(*stream);
    Work first = pg->all_reduce(on_device(x[me]), ReduceOp::kSum, {.stream = stream.get()});
    (void)pg->all_reduce(on_device(y[me]), ReduceOp::kSum, {.stream = stream.get()});
    if (rank.rank() == 0) stream.reset();
    rank.store().set(rank.rank() == 0 ? "a" : "b", "");
    rank.store().wait({"a", "b"});
    gate->resolve();
    first.wait(absl::Seconds(20));
  });
  EXPECT_EQ(x[0][0], 3);
}

// The recv is on the device, behind its stream's gate, which opens only later.
TEST_P(DeviceTest, AnAbortDoesNotWaitForAMessageOnTheDevice) {
  std::vector<float> x = {3};
  std::vector<float> y = {0};
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    Promise promise(&rank.world().scheduler(), rank.rank());
    FakeDeviceStream stream(rank, driver(), "comm");
    promise.work().block_current_stream(stream);
    Work work = rank.rank() == 0 ? pg->send(on_device(x), 1, 0, {.stream = &stream})
                                 : pg->recv(on_device(y), 0, 0, {.stream = &stream});
    rank.store().set(rank.rank() == 0 ? "a" : "b", "");
    rank.store().wait({"a", "b"});
    if (rank.rank() == 0) pg->abort("no more");
    promise.set_value();
    (void)error_of([&] { work.wait(absl::Seconds(20)); });
    (void)error_of([&] { stream.synchronize(); });
  });
}

// A stream that others have filled goes on at once, and says why.
TEST_P(DeviceTest, AStreamThatIsKeptGoesOnWhenAnExceptionUnwoundItsCalls) {
  std::vector<std::vector<float>> x(2, {1});
  bool ran = false;
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) {
      rank.store().wait({"left"});
      EXPECT_THAT(error_of([&] { pg->all_reduce(on_device(x[1])).wait(); }),
                  HasSubstr("group 0: rank 0 dropped its all_reduce seq 1 while an exception unwound"));
      return;
    }
    FakeDeviceStream stream(rank, driver(), "comm");
    try {
      const Work work = pg->all_reduce(on_device(x[0]), ReduceOp::kSum, {.stream = &stream});
      stream.launch([&] { ran = true; });
      throw std::runtime_error("caught below");
    } catch (const std::runtime_error&) {
    }
    rank.store().set("left", "1");
    EXPECT_EQ(error_of([&] { stream.synchronize(); }), "Aborted: the work was dropped");
    EXPECT_TRUE(ran);
  });
}

TEST_P(DeviceTest, RefusesMisuse) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    FakeDeviceStream mine(rank, driver(), "mine");
    SimStream other(rank);
    const std::string who = "InvalidArgument: rank " + std::to_string(rank.rank());
    EXPECT_EQ(
        error_of([&] { mine.wait_event(other.record()); }),
        who + ", stream mine: wait_event: the event is one of another kind of stream, want one of this kind of device" +
            here());
    EXPECT_EQ(
        error_of([&] { other.wait_event(mine.record()); }),
        who + ", stream stream: wait_event: the event is one of another kind of stream, want a SimStream's" + here());
    std::vector<float> x = {1};
    std::vector<float> y = {1, 2};
    pg->start_coalescing();
    (void)pg->all_reduce(on_device(x));
    (void)pg->all_reduce(y);
    EXPECT_THAT(
        error_of([&] { (void)pg->end_coalescing(); }),
        testing::StartsWith(who + ", group 0, coalesced seq 1: tensors are on cuda:0 and cpu, want one device ["));
    // Before it is numbered, or after: the members count alike.
    TensorView far(x.data(), DType::kFloat32, {1}, Device{Device::Kind::kCuda, static_cast<int8_t>(rank.rank())});
    EXPECT_THAT(error_of([&] { pg->all_reduce(far).wait(); }),
                HasSubstr("members' tensors are on cuda:0 and cuda:1, want one device"));
  });
  EveryWorldTest::run(1, [](RankContext& rank) {
    std::vector<float> x = {1};
    EXPECT_THAT(error_of([&] { (void)init_process_group(rank)->all_reduce(on_device(x)); }),
                testing::StartsWith("InvalidArgument: rank 0, group 0, all_reduce seq 1: a tensor is float32[1] on "
                                    "cuda:0, want use_device() called for the world first (use_cuda(rank)) ["));
  });
}

// Every collective, on memory of the device and of the host.
template <typename T>
std::vector<std::vector<T>> every_collective(ProcessGroup& pg, const std::function<TensorView(std::vector<T>&)>& view) {
  const int n = pg.size();
  const auto un = static_cast<size_t>(n);
  const int rank = pg.rank();
  std::vector<std::vector<T>> results;
  // Values that differ by rank, position and call.
  int salt = 0;
  const auto values = [&](size_t count) {
    std::vector<T> made(count);
    for (size_t i = 0; i < count; ++i) made[i] = static_cast<T>((rank * 7 + static_cast<int>(i) * 3 + ++salt) % 11 + 1);
    return made;
  };
  const auto views = [&](std::vector<std::vector<T>>& tensors) {
    std::vector<TensorView> all;
    for (std::vector<T>& tensor : tensors) all.push_back(view(tensor));
    return all;
  };
  const auto keep = [&](const std::vector<T>& tensor) { results.push_back(tensor); };
  const auto keep_all = [&](const std::vector<std::vector<T>>& tensors) {
    for (const std::vector<T>& tensor : tensors) keep(tensor);
  };
  const auto chunks = [&](size_t count) {
    std::vector<std::vector<T>> made;
    for (int i = 0; i < n; ++i) made.push_back(values(count));
    return made;
  };

  std::vector<T> x = values(19);
  pg.broadcast(view(x), 1).wait();
  keep(x);
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kProduct}) {
    x = values(37);
    pg.all_reduce(view(x), op).wait();
    keep(x);
  }
  for (const ReduceOp::Order::Kind order :
       {ReduceOp::Order::Kind::kTree, ReduceOp::Order::Kind::kRing, ReduceOp::Order::Kind::kSeeded}) {
    x = values(37);
    pg.all_reduce(view(x), ReduceOp::kSum, {.order = ReduceOp::Order{.kind = order, .seed = 3}}).wait();
    keep(x);
  }
  std::vector<std::vector<T>> several = {values(5), values(70)};
  pg.all_reduce_coalesced(views(several)).wait();
  keep_all(several);
  x = values(9);
  pg.reduce(view(x), n - 1).wait();
  keep(x);
  x = values(4);
  std::vector<std::vector<T>> parts(un, std::vector<T>(4));
  pg.all_gather(views(parts), view(x)).wait();
  keep_all(parts);
  std::vector<T> whole(un * 4);
  pg.all_gather_into_tensor(view(whole), view(x)).wait();
  keep(whole);
  if (rank == 0) {
    pg.gather(views(parts), view(x), 0).wait();
    keep_all(parts);
  } else {
    pg.gather({}, view(x), 0).wait();
  }
  several = chunks(6);
  std::vector<T> own(6);
  pg.scatter(view(own), rank == 1 ? views(several) : std::vector<TensorView>{}, 1).wait();
  keep(own);
  several = chunks(6);
  pg.reduce_scatter(view(own), views(several)).wait();
  keep(own);
  whole = values(un * 6);
  pg.reduce_scatter_tensor(view(own), view(whole)).wait();
  keep(own);
  several = chunks(3);
  parts = std::vector<std::vector<T>>(un, std::vector<T>(3));
  pg.all_to_all(views(parts), views(several)).wait();
  keep_all(parts);
  whole = values(un * 2);
  std::vector<T> exchanged(un * 2);
  pg.all_to_all_single(view(exchanged), view(whole), {}, {}).wait();
  keep(exchanged);
  pg.barrier().wait();
  return results;
}

TEST_P(DeviceTest, EveryCollectiveGivesWhatTheHostGives) {
  run(3, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    const auto device = every_collective<float>(*pg, [](std::vector<float>& x) { return on_device(x); });
    const auto host = every_collective<float>(*pg, [](std::vector<float>& x) { return TensorView(x); });
    EXPECT_EQ(device, host);
  });
  EXPECT_LE(driver().most_launches(), 2);  // so a small call is 3 launches at most
}

}  // namespace
}  // namespace rankloom

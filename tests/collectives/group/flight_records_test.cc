// The flight record of a call is closed by whatever ends the call: each backend, a user's own, and what wraps them.

#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "collectives/work/work_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/fake.h"
#include "rankloom/matchers.h"
#include "rankloom/process_group.h"
#include "rankloom/records.h"
#include "rankloom/stream.h"
#include "rankloom/world.h"
#include "tests/collectives/told.h"
#include "tests/world/every_world.h"
#include "world/run_file.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

class FlightRecordsTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, FlightRecordsTest, every_world(), world_name);

// "all_reduce completed", the oldest first.
std::vector<std::string> calls_of(RankContext& rank) {
  std::vector<std::string> calls;
  for (const FlightEntry& entry : state_of(rank).recorder().entries()) {
    calls.push_back(std::string(entry.op) + " " + flight_state_name(entry.state));
    EXPECT_EQ(entry.completed_ns < 0, entry.state == FlightEntry::State::kScheduled) << calls.back();
  }
  return calls;
}

// A rank that sees a call done finds its record closed.
TEST_P(FlightRecordsTest, ARecordIsClosedBeforeListenersAreTold) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int> x = {1};
    std::vector<std::string> seen;
    const auto look = [&](const Work& work) {
      WorkState::of(work)->when_done(told([&](const absl::Status&) { seen = calls_of(rank); }));
    };
    if (rank.rank() == 1) rank.store().wait({"listening"});
    Work reduced = pg->all_reduce(x);
    if (rank.rank() == 0) {
      look(reduced);
      rank.store().set("listening", "");
    }
    reduced.wait();
    pg->start_coalescing();
    if (rank.rank() == 1) rank.store().wait({"listening again"});
    (void)pg->all_reduce(x);
    Work whole = pg->end_coalescing();
    if (rank.rank() == 1) return whole.wait();
    EXPECT_THAT(seen, ElementsAre("all_reduce completed"));
    look(whole);
    rank.store().set("listening again", "");
    whole.wait();
    EXPECT_THAT(seen, ElementsAre("all_reduce completed", "all_reduce completed", "coalesced completed"));
  });
}

// A user's own group: `answer` is its execute().
class OwnGroup final : public ProcessGroup {
 public:
  using Answer = std::function<absl::StatusOr<Work>(CollectiveCall&&)>;
  OwnGroup(RankContext& rank, std::shared_ptr<const Group> group, Answer answer)
      : ProcessGroup(rank, std::move(group)), answer_(std::move(answer)) {}
  absl::StatusOr<Work> execute(CollectiveCall&& call) override { return answer_(std::move(call)); }

 private:
  const Answer answer_;
};

std::shared_ptr<ProcessGroup> own_group(RankContext& rank, OwnGroup::Answer answer) {
  return init_process_group(rank, {.make = [&](RankContext& context, const std::shared_ptr<const Group>& group) {
                              return std::make_shared<OwnGroup>(context, group, std::move(answer));
                            }});
}

TEST_P(FlightRecordsTest, HaveTheDtypeOfTheFirstTensorAndNoneIfThereIsNone) {
  WorldOptions one = options(1);
  one.recorded_calls = 1;  // each call takes over the place of the one before
  run(one, [](RankContext& rank) {
    const auto dtype = [&rank] { return state_of(rank).recorder().entries()[0].dtype; };
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {1};
    pg->all_reduce(x).wait();
    EXPECT_EQ(dtype(), static_cast<uint8_t>(DType::kInt64));
    pg->barrier().wait();
    EXPECT_EQ(dtype(), 0);
  });
}

// Calls of one line, which a record takes for alike where they are.
TEST_P(FlightRecordsTest, HaveWhatDiffersBetweenCallsOfOneLine) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(8);
    const std::vector<std::vector<int64_t>> shapes = {{4}, {4}, {2, 2}, {1}, {}, {1}, {1, 1}, {1}};
    for (const std::vector<int64_t>& shape : shapes)
      pg->all_reduce(TensorView(x.data(), Dims(shape.begin(), shape.end()))).wait();
    const std::vector<int> tags = {0, 0, 3, 4, 4, 0};
    for (const int tag : tags) (rank.rank() == 0 ? pg->send(x, 1, tag) : pg->recv(x, 0, tag)).wait();
    for (const int root : {1, 0, 0}) pg->broadcast(x, root).wait();
    std::vector<std::vector<int64_t>> seen;
    for (const FlightEntry& entry : state_of(rank).recorder().entries()) {
      size_t at = 0;
      if (std::string_view(entry.op) == "all_reduce") seen.push_back(entry.shapes.take(&at));
    }
    std::vector<std::string> texts;
    for (const std::string& line : state_of(rank).recorder().last_calls(100)) {
      if (line.starts_with("send ") || line.starts_with("recv ")) texts.push_back(line.substr(0, line.find(" (")));
    }
    EXPECT_EQ(seen, shapes);
    const std::string what = rank.rank() == 0 ? "send seq $0 to rank 1$1" : "recv seq $0 from rank 0$1";
    std::vector<std::string> want;
    for (size_t i = 0; i < tags.size(); ++i)
      want.push_back(absl::Substitute(what, i + 1, tags[i] == 0 ? "" : absl::StrCat(", tag ", tags[i])));
    EXPECT_EQ(texts, want);
  });
}

// In a run file, also where other calls of the rank never met their peers'.
TEST_P(FlightRecordsTest, ARunFileHasWhenCallsMet) {
  WorldOptions kept = options(2);
  kept.keep_run = true;
  const RunReport report = run_world(kept, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const auto x = std::make_shared<std::vector<float>>(1);
    pg->all_reduce(*x).wait();
    if (rank.rank() == 0) (void)pg->all_reduce(*x, ReduceOp::kSum, {.keep_alive = x});
  });
  EXPECT_THAT(run_file_text(report), testing::ContainsRegex("\"rank\":0,[^\n]*\"arrived\":.[0-9]+,-1.,"));
}

TEST_P(FlightRecordsTest, AUsersWorkThatIsCompletedLaterClosesItsRecordThen) {
  run(2, [](RankContext& rank) {
    std::vector<Promise> promises;
    auto pg = own_group(rank, [&](CollectiveCall&&) {
      // One of no world, too.
      promises.push_back(promises.empty() ? Promise() : Promise(&rank.world().scheduler(), rank.rank()));
      return promises.back().work();
    });
    std::vector<float> x = {1};
    Work first = pg->all_reduce(x);
    Work second = pg->broadcast(x, 0);
    Work third = pg->send(x, 1 - rank.rank());
    EXPECT_THAT(calls_of(rank), ElementsAre("all_reduce scheduled", "broadcast scheduled", "send scheduled"));
    promises[1].set_value();
    EXPECT_THAT(calls_of(rank), ElementsAre("all_reduce scheduled", "broadcast completed", "send scheduled"));
    promises[0].set_error(make_error(ErrorKind::kCollectiveError, "lost"));
    EXPECT_THROW(first.wait(), DistError);
    promises[2].set_value();
    EXPECT_THAT(calls_of(rank), ElementsAre("all_reduce failed", "broadcast completed", "send completed"));
  });
}

// Where ranks are fibers, which lock nothing, on their thread: the ring of records grows meanwhile.
TEST_P(FlightRecordsTest, AUsersWorkThatAThreadCompletesClosesItsRecord) {
  constexpr size_t kCalls = 2'000;
  run(1, [](RankContext& rank) {
    std::mutex mu;
    std::vector<Promise> promises;
    auto pg = own_group(rank, [&](CollectiveCall&&) {
      const std::lock_guard lock(mu);
      promises.emplace_back();
      return promises.back().work();
    });
    std::jthread other([&] {
      for (size_t kept = 0; kept < kCalls;) {
        std::vector<Promise> taken;
        {
          const std::lock_guard lock(mu);
          taken.swap(promises);
        }
        for (Promise& promise : taken) promise.set_value();
        kept += taken.size();
      }
    });
    std::vector<float> x = {1};
    std::vector<Work> works;
    for (size_t i = 0; i < kCalls; ++i) works.push_back(pg->all_reduce(x));
    other.join();
    rank.sleep_for(absl::Milliseconds(1));
    EXPECT_THAT(calls_of(rank), Each("all_reduce completed"));
  });
}

TEST_P(FlightRecordsTest, AUsersWorkThatIsDoneAtOnceClosesItsRecordAtOnce) {
  run(1, [](RankContext& rank) {
    std::vector<absl::StatusOr<Work>> answers;
    Promise good, bad;
    good.set_value();
    bad.set_error(make_error(ErrorKind::kCollectiveError, "lost"));
    answers.push_back(Work());
    answers.push_back(good.work());
    answers.push_back(bad.work());
    answers.push_back(make_error(ErrorKind::kCollectiveError, "refused"));
    size_t next = 0;
    auto pg = own_group(rank, [&](CollectiveCall&&) { return std::move(answers[next++]); });
    std::vector<float> x = {1};
    pg->all_reduce(x).wait();
    pg->all_gather_into_tensor(x, x).wait();
    (void)pg->broadcast(x, 0);
    EXPECT_THROW((void)pg->barrier(), DistError);
    EXPECT_THAT(calls_of(rank), ElementsAre("all_reduce completed", "all_gather_into_tensor completed",
                                            "broadcast failed", "barrier failed"));
  });
}

TEST_P(FlightRecordsTest, AUsersWorkThatGoesWithoutAnEndHasFailed) {
  run(1, [](RankContext& rank) {
    auto pg = own_group(rank, [](CollectiveCall&&) { return Promise().work(); });
    std::vector<float> x = {1};
    Work work = pg->all_reduce(x);
    (void)pg->broadcast(x, 0);
    EXPECT_THAT(calls_of(rank), ElementsAre("all_reduce scheduled", "broadcast failed"));
  });
}

TEST_P(FlightRecordsTest, AUsersWorkMayOutliveTheWorld) {
  std::shared_ptr<Promise> promise;
  std::vector<Work> works;
  run(1, [&](RankContext& rank) {
    auto pg = own_group(rank, [&](CollectiveCall&&) {
      promise = std::make_shared<Promise>(&rank.world().scheduler(), 0);
      return promise->work();
    });
    std::vector<float> x = {1};
    works.push_back(pg->all_reduce(x));
    works.push_back(pg->broadcast(x, 0));
  });
  promise->set_value();
  EXPECT_TRUE(works[1].is_success());
  EXPECT_THROW(works[0].wait(), DistError);
}

TEST_P(FlightRecordsTest, AGroupThatCallsAnotherOneHasARecordOfItsOwn) {
  run(2, [](RankContext& rank) {
    auto inner = init_process_group(rank);
    auto pg = own_group(rank, [&](CollectiveCall&& call) { return inner->all_reduce(call.outputs[0]); });
    std::vector<float> x = {1};
    pg->broadcast(x, 0).wait();  // an all_reduce within
    EXPECT_THAT(calls_of(rank), ElementsAre("broadcast completed", "all_reduce completed"));
  });
}

TEST_P(FlightRecordsTest, AGroupThatPassesItsCallsOnHasTheRecordAlone) {
  run(2, [](RankContext& rank) {
    auto inner = init_process_group(rank);
    auto pg = own_group(rank, [&](CollectiveCall&& call) { return inner->execute(std::move(call)); });
    std::vector<float> x = {1};
    pg->all_reduce(x).wait();
    EXPECT_THAT(calls_of(rank), ElementsAre("all_reduce completed"));
    EXPECT_GE(state_of(rank).recorder().entries()[0].started_ns, 0);  // the kernel's
  });
}

TEST_P(FlightRecordsTest, ACoalescedCallOfAUsersGroupClosesTheRecordsOfItsParts) {
  run(2, [](RankContext& rank) {
    Promise end(&rank.world().scheduler(), rank.rank());
    auto pg = own_group(rank, [&](CollectiveCall&&) { return end.work(); });
    std::vector<float> x = {1}, y(1);
    pg->start_coalescing();
    (void)pg->all_reduce(x);
    (void)pg->send(x, 1 - rank.rank());
    (void)pg->recv(y, 1 - rank.rank());
    Work whole = pg->end_coalescing();
    EXPECT_THAT(calls_of(rank), Each(HasSubstr("scheduled")));
    end.set_value();
    whole.wait();
    EXPECT_THAT(calls_of(rank),
                ElementsAre("all_reduce completed", "send completed", "recv completed", "coalesced completed"));
  });
}

TEST_P(FlightRecordsTest, OfFakeGroupsAreClosedAtOnce) {
  run(1, [](RankContext& rank) {
    const auto record = std::make_shared<CallRecord>();
    auto pg = init_process_group(rank, {.backend = GroupOptions::Backend::kFake,
                                        .fake = FakeOptions{.deny = {OpType::kBroadcast}, .record = record}});
    std::vector<float> x = {1};
    Work work = pg->all_reduce(x);
    EXPECT_THROW((void)pg->broadcast(x, 0), DistError);
    (void)pg->new_group();
    EXPECT_THAT(calls_of(rank), ElementsAre("all_reduce completed", "broadcast failed", "new_group completed"));
    EXPECT_EQ(record->calls(), 1);
  });
}

TEST_P(FlightRecordsTest, OfThreadedGroupsAreClosedWhenTheCallIsDone) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank, {.eager_bytes = 4});
    const int peer = 1 - rank.rank();
    std::vector<float> x = {1}, y(1);
    const std::vector<double> large(1);
    std::vector<double> received(1);
    pg->all_reduce(x).wait();
    pg->send(x, peer).wait();
    pg->recv_any(y).wait();
    Work sent = pg->send(large, peer, 1);
    pg->recv(received, peer, 1).wait();
    sent.wait();
    const FlightEntries entries = state_of(rank).recorder().entries();
    ASSERT_EQ(entries.size(), 5U);
    for (const FlightEntry& entry : entries) {
      EXPECT_EQ(entry.state, FlightEntry::State::kCompleted) << entry.op << entry.seq;
      EXPECT_GE(entry.completed_ns, entry.created_ns);
    }
    EXPECT_GE(entries[0].started_ns, entries[0].created_ns);
    EXPECT_GE(entries[0].completed_ns, entries[0].started_ns);
    EXPECT_EQ(entries[2].peer, peer);
  });
}

TEST_P(FlightRecordsTest, OfThreadedGroupsAreClosedAsFailedWhenAWorkIsDroppedOrItsWaitEnds) {
  run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto other = init_process_group(rank);
    auto third = init_process_group(rank, {.rooted = GroupOptions::Rooted::kTogether});
    std::vector<float> x = {1};
    if (rank.rank() == 0) {
      EXPECT_THROW(pg->all_reduce(x).wait(absl::Milliseconds(1)), DistError);
      EXPECT_THROW(other->recv(x, 1).wait(absl::Milliseconds(1)), DistError);
      (void)third->broadcast(x, 0);
      EXPECT_THAT(calls_of(rank), ElementsAre("all_reduce failed", "recv failed", "broadcast failed"));
      throw std::runtime_error("that was all");
    }
  });
}

TEST_P(FlightRecordsTest, OfCallsOnAStreamAreClosedWithTheCall) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    Promise end(&rank.world().scheduler(), rank.rank());
    auto own = own_group(rank, [&](CollectiveCall&&) { return end.work(); });
    std::vector<float> x = {1};
    SimStream stream(rank, "side");
    (void)pg->all_reduce(x, ReduceOp::kSum, {.stream = &stream});
    (void)own->all_reduce(x, ReduceOp::kSum, {.stream = &stream});
    end.set_value();
    stream.synchronize();
    EXPECT_THAT(calls_of(rank), ElementsAre("all_reduce completed", "all_reduce completed"));
  });
}

TEST_P(FlightRecordsTest, OfCallsWithFaultsAreClosedWithTheCall) {
  WorldOptions world = options(2);
  world.faults = FaultPlan({{.kind = Fault::Kind::kDrop, .rank = 0, .op = "send"},
                            {.kind = Fault::Kind::kDelay, .rank = 0, .op = "broadcast", .when = Fault::When::kAfter}});
  run(std::move(world), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto own = own_group(rank, [](CollectiveCall&&) {
      Promise done;
      done.set_value();
      return done.work();
    });
    std::vector<float> x = {1};
    if (rank.rank() == 0) pg->send(x, 1).wait();
    pg->broadcast(x, 0).wait();
    own->broadcast(x, 0).wait();
    std::vector<std::string> calls = calls_of(rank);
    EXPECT_THAT(calls, Each(HasSubstr("completed")));
    EXPECT_EQ(calls.size(), rank.rank() == 0 ? 3U : 2U);
  });
}

// A dump says of it what PyTorch's say; the call record has its end.
TEST_P(FlightRecordsTest, ACallThatFailedIsRetiredAndNotCompleted) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    if (rank.rank() == 1) return;
    EXPECT_THAT([&] { pg->recv(x, 1).wait(absl::Milliseconds(20)); }, ThrowsDistError(ErrorKind::kTimeout));
    const CallRecord::Call call = (*CallRecord::of_rank(rank))[0];
    EXPECT_GE(call.duration, absl::Milliseconds(20));
    const std::string dump =
        traces::flight_records(rank.world(), 0, {.format = traces::FlightDumpOptions::Format::kJson});
    EXPECT_THAT(dump, AllOf(HasSubstr("\"state\": \"scheduled\""), HasSubstr("\"retired\": true"),
                            HasSubstr("\"time_discovered_completed_ns\": 0,")));
  });
}

// Lists are told as the one tensor that NCCL's records have; a call of one tensor keeps its shape.
TEST_P(FlightRecordsTest, DumpsJoinListsOnly) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const auto mine = static_cast<size_t>(rank.rank()) + 1;
    const std::vector<float> in(mine);
    std::vector<float> a(1), b(2);
    pg->all_gather({a, b}, in).wait();
    const std::vector<float> wide(10);
    std::vector<float> out(10);
    pg->all_to_all_single(out, wide).wait();
    const std::string text =
        traces::flight_records(rank.world(), rank.rank(), {.format = traces::FlightDumpOptions::Format::kJson});
    EXPECT_THAT(text,
                AllOf(HasSubstr(absl::StrCat("\"input_sizes\": [[", mine, "]]")), HasSubstr("\"output_sizes\": [[3]]"),
                      HasSubstr("\"input_sizes\": [[10]]"), HasSubstr("\"output_sizes\": [[10]]")));
  });
}

}  // namespace
}  // namespace rankloom

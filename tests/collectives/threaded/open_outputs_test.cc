// A rank reads or writes the outputs of calls that it has made and not waited for.
#include <cmath>
#include <complex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/explore.h"
#include "rankloom/matchers.h"
#include "rankloom/process_group.h"
#include "rankloom/stream.h"
#include "rankloom/sync.h"
#include "rankloom/world.h"
#include "sim/scheduler/scheduler.h"
#include "tests/world/every_world.h"

namespace rankloom {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::Each;
using testing::HasSubstr;

class OpenOutputsTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, OpenOutputsTest, every_world(), world_name);

constexpr char kWant[] = "want outputs of their own until wait\\(\\)";

TEST_P(OpenOutputsTest, TwoReceivesIntoOneBufferAreRefusedWhicheverComesFirst) {
  for (const int receiver : {0, 1}) {
    const RunReport report = run_to_failure(2, [&](RankContext& rank) {
      auto pg = init_process_group(rank);
      const std::vector<float> a = {1, 2, 3};
      std::vector<float> b(3);
      if (rank.rank() != receiver) {
        Work first = pg->send(a, receiver);
        Work second = pg->send(a, receiver, 7);
        first.wait();
        second.wait();
      } else {
        Work first = pg->recv(b, 1 - receiver);
        Work second = pg->recv(b, 1 - receiver, 7);
        first.wait();
        second.wait();
      }
    });
    EXPECT_THAT(report.text(),
                ContainsRegex(absl::StrCat(
                    "rank ", receiver, " failed: InvalidArgument: rank ", receiver, ", group 0, recv from rank ",
                    1 - receiver, ", tag 7: its output overlaps that of recv seq 1 from rank ", 1 - receiver,
                    " \\[open_outputs_test.cc:[0-9]+\\], which this rank has not waited for, ", kWant)));
  }
}

TEST_P(OpenOutputsTest, OverlapOfCallsInTwoGroupsIsRefusedAndTakesNoNumber) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto other = pg->new_group({0, 1, 2});
    std::vector<float> x(8, static_cast<float>(rank.rank()));
    Work open = pg->all_reduce(TensorView(x.data(), {5}));
    EXPECT_THAT([&] { (void)other->all_reduce(TensorView(x.data() + 4, {4})); },
                ThrowsDistError(ErrorKind::kInvalidArgument,
                                ContainsRegex(absl::StrCat("rank ", rank.rank(),
                                                           ", group 0.1, all_reduce seq 1: its "
                                                           "output overlaps that of all_reduce seq [0-9]+ ",
                                                           "\\[open_outputs_test.cc:[0-9]+\\]"))));
    Work beside = other->all_reduce(TensorView(x.data() + 5, {3}));
    open.wait();
    beside.wait();
    EXPECT_EQ(x, std::vector<float>(8, 3));
    EXPECT_EQ(other->sequence_number(), 1);
  });
}

TEST_P(OpenOutputsTest, ListsAreComparedTensorByTensor) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> out(8, 0);
    const std::vector<float> in = {static_cast<float>(rank.rank() + 1), 7};
    // Two interleaved lists share no byte.
    Work even = pg->all_gather({TensorView(out.data(), {2}), TensorView(out.data() + 4, {2})}, in);
    Work odd = pg->all_gather({TensorView(out.data() + 2, {2}), TensorView(out.data() + 6, {2})}, in);
    EXPECT_THAT([&] { (void)pg->all_reduce(TensorView(out.data() + 6, {1})); },
                ThrowsDistError(ErrorKind::kInvalidArgument, ContainsRegex("overlaps that of all_gather seq 2 \\[")));
    even.wait();
    odd.wait();
    EXPECT_EQ(out, (std::vector<float>{1, 7, 1, 7, 2, 7, 2, 7}));
  });
}

TEST_P(OpenOutputsTest, MembersThatWriteNothingMayUseOneBuffer) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(2, static_cast<float>(rank.rank() + 1));
    if (rank.rank() == 0) {
      Work first = pg->broadcast(x, 0);
      Work second = pg->broadcast(x, 0);
      first.wait();
      second.wait();
    } else {
      std::vector<float> y(2);
      Work first = pg->broadcast(x, 0);
      Work second = pg->broadcast(y, 0);
      first.wait();
      second.wait();
      EXPECT_EQ(x, y);
    }
    std::vector<float> nothing;
    Work one = pg->all_reduce(nothing);
    Work two = pg->all_reduce(nothing);
    one.wait();
    two.wait();
  });
}

TEST_P(OpenOutputsTest, ABufferIsFreeOnceTheRankKnowsThatTheCallIsDone) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(1, 1);
    {
      Work waited = pg->all_reduce(x);
      waited.wait();
      pg->all_reduce(x).wait();
    }
    {
      Work asked = pg->all_reduce(x);
      while (!asked.is_completed()) rank.yield();
      pg->all_reduce(x).wait();
    }
    {
      Work copied = pg->all_reduce(x);
      Work copy = copied;
      copy.wait();
      pg->all_reduce(x).wait();
    }
    {
      Work any[] = {pg->all_reduce(x)};
      wait_any(any);
      pg->all_reduce(x).wait();
    }
    {
      Work told = pg->all_reduce(x);
      told.get_future().value();
      pg->all_reduce(x).wait();
    }
    {
      Work of = pg->all_reduce(x);
      of.result();
      pg->all_reduce(x).wait();
    }
    pg->start_coalescing();
    std::vector<float> y(1, 1);
    Work part = pg->all_reduce(x);
    Work other = pg->all_reduce(y);
    Work whole = pg->end_coalescing();
    part.wait();
    other.wait();
    pg->all_reduce(x).wait();
    pg->all_reduce(y).wait();
    EXPECT_EQ(x[0], 16384);
  });
}

// Whose callback runs knows that the call is done, before its handle was waited for.
TEST_P(OpenOutputsTest, ACallbackMayUseTheBufferAgain) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = {rank.rank() + 1, 10 * rank.rank()};
    Latch done(1);
    Work first = pg->all_reduce(x);
    first.then([&](const absl::Status& status) {
      EXPECT_TRUE(status.ok());
      pg->all_reduce(x).wait();
      done.count_down();
    });
    done.wait();
    first.wait();
    EXPECT_EQ(x, (std::vector<int64_t>{18, 90}));
  });
}

TEST_P(OpenOutputsTest, PartsOfACoalescedCallAreRefused) {
  const RunReport report = run_to_failure(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> a(4, 1);
    std::vector<float> b(4, 1);
    pg->start_coalescing();
    if (rank.rank() == 0) {
      (void)pg->send(a, 1);
      (void)pg->send(b, 1);
    } else {
      (void)pg->recv(b, 0);
      (void)pg->recv(TensorView(b.data() + 3, {1}), 0);
    }
    pg->end_coalescing().wait();
  });
  EXPECT_THAT(
      report.text(),
      ContainsRegex("rank 1 failed: InvalidArgument: rank 1, group 0, coalesced: the output of recv "
                    "\\[open_outputs_test.cc:[0-9]+\\] overlaps that of recv \\[open_outputs_test.cc:[0-9]+\\], "
                    "a call of the same coalesced call, want outputs of their own"));
}

// The call goes on: another handle is kept.
TEST_P(OpenOutputsTest, APartWhoseHandleGoesKeepsTheBuffersOfTheOthersAndItsOwn) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> a(4, 1 + static_cast<float>(rank.rank()));
    std::vector<float> b(4, 1);
    pg->start_coalescing();
    std::optional<Work> first = pg->all_reduce(a);
    Work second = pg->all_reduce(b);
    Work whole = pg->end_coalescing();
    first.reset();
    for (std::vector<float>* const buffer : {&a, &b}) {
      EXPECT_THAT([&] { (void)pg->all_reduce(*buffer); },
                  ThrowsDistError(ErrorKind::kInvalidArgument,
                                  ContainsRegex("all_reduce seq 2: its output overlaps that of coalesced seq 1 "
                                                "\\[open_outputs_test.cc:[0-9]+\\], which this rank has not waited")));
    }
    whole = Work();
    EXPECT_THAT([&] { (void)pg->all_reduce(a); }, ThrowsDistError(ErrorKind::kInvalidArgument));
    second.wait();
    EXPECT_EQ(a, std::vector<float>(4, 3));
    pg->all_reduce(a).wait();
    EXPECT_EQ(a, std::vector<float>(4, 6));
  });
}

TEST_P(OpenOutputsTest, CallsOnOneStreamMayShareABuffer) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    SimStream stream(rank, "s");
    std::vector<float> x(1, 1);
    Work first = pg->all_reduce(x, ReduceOp::kSum, {.stream = &stream});
    Work second = pg->all_reduce(x, ReduceOp::kSum, {.stream = &stream});
    stream.synchronize();
    EXPECT_EQ(x[0], 4);
  });
}

// The rank does not know what a stream knows, before it asks the stream.
TEST_P(OpenOutputsTest, AStreamsWaitIsNotTheRanks) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    SimStream stream(rank, "s");
    std::vector<float> x(1, 1);
    Work open = pg->all_reduce(x);
    open.block_current_stream(stream);
    rank.sleep_for(absl::Milliseconds(1));  // under a schedule the stream has waited by then
    EXPECT_THAT(
        [&] { (void)pg->all_reduce(x); },
        ThrowsDistError(ErrorKind::kInvalidArgument,
                        ContainsRegex("its output overlaps that of all_reduce seq 1 \\[open_outputs_test.cc:")));
    stream.synchronize();
    pg->all_reduce(x).wait();
    EXPECT_EQ(x[0], 4);
  });
}

TEST_P(OpenOutputsTest, ABufferIsFreeForWhateverIsBehindAStreamsWait) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    SimStream stream(rank, "s");
    SimStream other(rank, "t");
    std::vector<float> x(1, 1);
    {
      Work asked = pg->all_reduce(x);
      asked.block_current_stream(stream);
      while (!stream.query()) {
      }
      pg->all_reduce(x).wait();
    }
    {
      Work marked = pg->all_reduce(x);
      marked.block_current_stream(stream);
      Stream::Event event = stream.record();
      event.synchronize();
      pg->all_reduce(x).wait();
    }
    {
      Work marked = pg->all_reduce(x);
      marked.block_current_stream(stream);
      Stream::Event event = stream.record();
      while (!event.query()) {
      }
      pg->all_reduce(x).wait();
    }
    {
      pg->start_coalescing();
      pg->all_reduce(x).block_current_stream(stream);  // nobody but the stream has the part
      Work whole = pg->end_coalescing();
      stream.synchronize();
      pg->all_reduce(x).wait();
    }
    {
      Work before = pg->all_reduce(x);
      before.block_current_stream(stream);
      Work behind = pg->all_reduce(x, ReduceOp::kSum, {.stream = &stream});
      stream.synchronize();
    }
    {
      Work before = pg->all_reduce(x);
      before.block_current_stream(stream);
      stream.launch([&] { pg->all_reduce(x).wait(); });
      stream.synchronize();
    }
    {
      Work before = pg->all_reduce(x);
      before.block_current_stream(stream);
      Stream::Event event = stream.record();
      other.wait_event(event);
      Work behind = pg->all_reduce(x, ReduceOp::kSum, {.stream = &other});
      other.synchronize();
    }
    EXPECT_EQ(x[0], 16384);
  });
}

// Of two tasks that learn of a call's end neither goes on while the other is about to free the outputs. On free threads
// it is a matter of some rounds that they meet.
TEST_P(OpenOutputsTest, ABufferIsFreeForWhicheverTaskComesSecond) {
  run(2, [this](RankContext& rank) {
    auto pg = init_process_group(rank);
    SimStream stream(rank, "s");
    std::vector<float> x(1, 1);
    std::vector<float> y(1, 1);
    for (int i = 0; i < (deterministic() ? 2 : 300); ++i) {
      {
        Work open = pg->all_reduce(x, ReduceOp::kMax);
        open.block_current_stream(stream);
        stream.launch([] {});
        open.wait();
        pg->all_reduce(x, ReduceOp::kMax).wait();
      }
      Work first = pg->all_reduce(x, ReduceOp::kMax);
      Work second = pg->all_reduce(y, ReduceOp::kMax);
      first.block_current_stream(stream);
      second.block_current_stream(stream);
      Promise helped(&rank.world().scheduler(), rank.rank());
      rank.world().scheduler().spawn({.rank = rank.rank(), .kind = internal::TaskKind::kHelper}, [&] {
        stream.synchronize();
        helped.set_value();
      });
      stream.synchronize();
      pg->all_reduce(y, ReduceOp::kMax).wait();
      helped.work().wait();
    }
  });
}

TEST_P(OpenOutputsTest, ACallThatFailedFreesItsBuffer) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto doomed = pg->new_group({0, 1});
    std::vector<float> x(1, 1);
    if (rank.rank() == 0) {
      Work never = doomed->recv(x, 1);
      EXPECT_THAT([&] { never.wait(absl::Milliseconds(20)); }, ThrowsDistError(ErrorKind::kTimeout));
      EXPECT_EQ(x[0], 1);
    }
    pg->all_reduce(x).wait();
    EXPECT_EQ(x[0], 2);
  });
}

// Each method that waits for calls, or ends them, frees their buffers although handles live.
TEST_P(OpenOutputsTest, AGroupThatWasLeftFreesItsBuffers) {
  const std::vector<void (*)(std::shared_ptr<ProcessGroup>)> leaving = {
      [](std::shared_ptr<ProcessGroup> group) { group->shutdown(); },
      [](std::shared_ptr<ProcessGroup> group) { destroy_process_group(std::move(group)); }};
  for (const auto leave : leaving) {
    run(2, [&](RankContext& rank) {
      auto pg = init_process_group(rank);
      auto other = pg->new_group({0, 1});
      std::vector<float> x = {1.0F + static_cast<float>(rank.rank())};
      std::vector<float> y = {5.0F * static_cast<float>(rank.rank())};
      Work open = other->all_reduce(x);
      Work beside = pg->all_reduce(y);
      leave(std::move(other));
      EXPECT_EQ(x[0], 3);
      x[0] = 4;
      EXPECT_THAT(
          [&] { (void)pg->all_reduce(y); },
          ThrowsDistError(ErrorKind::kInvalidArgument, HasSubstr("its output overlaps that of all_reduce seq 2")));
      pg->all_reduce(x).wait();
      EXPECT_EQ(x[0], 8);
      open.wait();
      beside.wait();
      EXPECT_EQ(y[0], 5);
    });
  }
}

// Between two calls of another group that stay open.
TEST_P(OpenOutputsTest, AGroupThatWasLeftTakesNoOthersCallsAlong) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto other = pg->new_group({0, 1});
    std::vector<float> x = {1}, y = {1}, z = {1};
    Work first = pg->all_reduce(x), open = other->all_reduce(y), last = pg->all_reduce(z);
    pg->barrier().wait();
    other->shutdown();
    last.wait();
    pg->all_reduce(z).wait();
    EXPECT_EQ(z[0], 4);
    first.wait();
    open.wait();
  });
}

TEST_P(OpenOutputsTest, ALowerCallHidesNoHigherOne) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(5, 1);
    const auto at = [&x](int i) { return TensorView(x.data() + i, {1}); };
    Work a = pg->all_reduce(at(0)), b = pg->all_reduce(at(4)), c = pg->all_reduce(at(2));
    EXPECT_THAT([&] { (void)pg->all_reduce(at(4)); },
                ThrowsDistError(ErrorKind::kInvalidArgument, HasSubstr("overlaps that of all_reduce seq 2")));
    a.wait();
    b.wait();
    c.wait();
    EXPECT_THAT(x, testing::ElementsAre(2, 1, 2, 1, 2));
  });
}

TEST_P(OpenOutputsTest, AGroupThatItsRankAbortedFreesItsBuffers) {
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto other = pg->new_group({0, 1});
    std::vector<float> x = {1.0F + static_cast<float>(rank.rank())};
    Work never = other->recv(x, 1 - rank.rank());
    pg->barrier().wait();
    other->abort("no need");
    pg->all_reduce(x).wait();
    EXPECT_EQ(x[0], 3);
    EXPECT_THAT([&] { never.wait(); }, ThrowsDistError(ErrorKind::kAborted, HasSubstr(" aborted group 0.1: no need")));
  });
}

TEST_P(OpenOutputsTest, ACallThatReadsWhatAnOpenOneWritesIsRefused) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const int peer = 1 - rank.rank();
    std::vector<float> x = {1.0F + static_cast<float>(rank.rank()), 8, 9};
    std::vector<float> all(4);
    Work open = pg->recv(x, peer);
    const auto refused = [&](const std::string& who, const char* which = "its input overlaps") {
      return ThrowsDistError(
          ErrorKind::kInvalidArgument,
          ContainsRegex(absl::StrCat(
              "rank ", rank.rank(), ", group 0, ", who, ": ", which, " the output of recv seq [0-9]+ from rank ", peer,
              " \\[open_outputs_test.cc:[0-9]+\\], which this rank has not waited for, ", kWant)));
    };
    EXPECT_THAT([&] { (void)pg->send(x, peer, 7); }, refused(absl::StrCat("send to rank ", peer, ", tag 7")));
    EXPECT_THAT([&] { (void)pg->all_gather_into_tensor(all, TensorView(x.data() + 1, {2})); },
                refused("all_gather_into_tensor seq 1"));
    EXPECT_THAT([&] { (void)pg->broadcast(x, rank.rank()); }, refused("broadcast seq 1"));
    EXPECT_THAT(
        [&] {
          (void)pg->all_to_all({TensorView(all.data(), {1}), TensorView(all.data() + 1, {1})},
                               {TensorView(all.data() + 2, {1}), TensorView(x.data(), {1})});
        },
        refused("all_to_all seq 1", "one of its inputs overlaps"));
    const std::vector<float> mine = {10.0F * static_cast<float>(rank.rank()), 3, 4};
    pg->send(mine, peer).wait();
    open.wait();
    EXPECT_EQ(x, (std::vector<float>{10.0F * static_cast<float>(peer), 3, 4}));
    pg->barrier().wait();  // the refused calls took no number
    EXPECT_EQ(pg->sequence_number(), 1);
  });
}

TEST_P(OpenOutputsTest, APartThatReadsWhatAnotherWritesIsRefused) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1.0F + static_cast<float>(rank.rank())};
    const int peer = 1 - rank.rank();
    EXPECT_THAT(
        [&] {
          (void)batch_isend_irecv({{P2POp::Kind::kRecv, x, peer, pg.get()}, {P2POp::Kind::kSend, x, peer, pg.get()}});
        },
        ThrowsDistError(
            ErrorKind::kInvalidArgument,
            ContainsRegex(absl::StrCat("rank ", rank.rank(),
                                       ", group 0, .*: .*input.* overlaps the output of recv .*want outputs "
                                       "of their own"))));
  });
}

TEST_P(OpenOutputsTest, HandlesMayOutliveTheirWorld) {
  std::vector<Work> kept(2);
  std::vector<std::vector<float>> x(2, {1.0F});
  run(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    kept[static_cast<size_t>(rank.rank())] = pg->all_reduce(x[static_cast<size_t>(rank.rank())]);
    pg->barrier().wait();
  });
  for (Work& work : kept) work.wait();
  EXPECT_EQ(x[0][0], 2);
}

TEST_P(OpenOutputsTest, ThousandsMayBeOpen) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(3000);
    std::iota(x.begin(), x.end(), 0.0F);
    std::vector<Work> works;
    for (int i = 0; i < 3000; ++i) {
      const int at = i % 2 == 0 ? i / 2 : 2999 - i / 2;  // neither ascending nor descending
      TensorView element(x.data() + at, {1});
      works.push_back(rank.rank() == 0 ? pg->send(element, 1) : pg->recv(element, 0));
    }
    if (rank.rank() == 1) {
      EXPECT_THAT([&] { (void)pg->recv(TensorView(x.data() + 1500, {1}), 0); },
                  ThrowsDistError(ErrorKind::kInvalidArgument, HasSubstr("overlaps that of recv seq ")));
    }
    wait_all(works);
  });
}

// ---- written between call and completion

using Program = void (*)(RankContext&);

void zero_output(RankContext& rank) {
  auto pg = init_process_group(rank);
  const std::vector<float> in(4, static_cast<float>(rank.rank() + 1));
  std::vector<float> out(8, 9);
  Work work = pg->all_gather_into_tensor(out, in);
  if (rank.rank() == 1) out.assign(8, 0.0F);
  work.wait();
}

void zero_list(RankContext& rank) {
  auto pg = init_process_group(rank);
  const std::vector<int32_t> in(4, rank.rank() + 1);
  std::vector<int32_t> out(8, 9);
  Work work = pg->all_gather({TensorView(out.data(), {4}), TensorView(out.data() + 4, {4})}, in);
  if (rank.rank() == 1) out[7] = 5;
  work.wait();
}

void add_in_place(RankContext& rank) {
  auto pg = init_process_group(rank);
  std::vector<double> x(3, rank.rank() + 1);
  Work work = pg->all_reduce(x);
  if (rank.rank() == 1) x[1] = 4;
  work.wait();
}

void zero_recv(RankContext& rank) {
  auto pg = init_process_group(rank);
  std::vector<float> x(3, 1);
  if (rank.rank() == 0) {
    pg->send(x, 1).wait();
  } else {
    Work work = pg->recv(x, 0);
    x[2] = 0;
    work.wait();
  }
}

void zero_part(RankContext& rank) {
  auto pg = init_process_group(rank);
  std::vector<float> x(3, 1);
  std::vector<float> y(3, 1);
  pg->start_coalescing();
  (void)pg->all_reduce(x);
  (void)pg->all_reduce(y);
  Work work = pg->end_coalescing();
  if (rank.rank() == 1) y[0] = 0;
  work.wait();
}

class WrittenOutputTest : public testing::TestWithParam<std::pair<Program, const char*>> {};
INSTANTIATE_TEST_SUITE_P(Programs, WrittenOutputTest,
                         testing::Values(std::pair(&zero_output, "all_gather_into_tensor"),
                                         std::pair(&zero_list, "all_gather"), std::pair(&add_in_place, "all_reduce"),
                                         std::pair(&zero_recv, "recv"), std::pair(&zero_part, "coalesced")),
                         [](const auto& info) { return info.param.second; });

TEST_P(WrittenOutputTest, IsFoundBySomeSeedWithBothSites) {
  for (const EngineKind engine : {EngineKind::kThreads, EngineKind::kFibers}) {
    std::string text;
    for (uint64_t seed = 1; seed <= 40 && text.empty(); ++seed) {
      const RunReport report =
          run_world({.world_size = 2, .engine = engine, .schedule = Schedule::seeded(seed)}, GetParam().first);
      if (!report.ok()) text = report.text();
    }
    EXPECT_THAT(text,
                ContainsRegex(absl::StrCat(
                    "rank 1, group 0, ", GetParam().second,
                    "[^:]*: an output was written or freed between the call \\[open_outputs_test.cc:[0-9]+\\] and its "
                    "completion, when rank 1 was at [a-z_ ]+[^\\[]*\\[.*open_outputs_test.cc:[0-9]+\\], want it "
                    "left alone until wait\\(\\)")));
  }
}

// Another owner may have the memory by then.
TEST(WrittenOutputOnFibersTest, IsNotOverwrittenWhenTheCallFails) {
  int found = 0;
  const auto program = [&found](bool message, RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(4, static_cast<float>(rank.rank() + 1));
    Work work = !message ? pg->all_reduce(x) : rank.rank() == 1 ? pg->recv(x, 0) : pg->send(x, 1);
    if (rank.rank() == 1) x.assign(4, 5.0F);
    try {
      work.wait();
    } catch (const DistError& error) {
      const bool written = std::string_view(error.what()).find("an output was written or freed") != std::string::npos;
      if (rank.rank() == 1 && written) {
        ++found;
        EXPECT_THAT(x, Each(5.0F));
      }
      throw;
    }
  };
  for (const bool message : {false, true}) {
    found = 0;
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      (void)run_world({.world_size = 2, .engine = EngineKind::kFibers, .schedule = Schedule::seeded(seed)},
                      [&](RankContext& rank) { program(message, rank); });
    }
    EXPECT_GT(found, 0) << message;
  }
}

TEST_P(WrittenOutputTest, IsFoundByAnExhaustiveSearch) {
  const ExploreReport report =
      explore({.world = {.world_size = 2, .engine = EngineKind::kFibers}, .strategies = {Strategy::exhaustive()}},
              GetParam().first);
  ASSERT_TRUE(report.failure.has_value());
  EXPECT_THAT(report.failure->headline, HasSubstr("output was written or freed between the call"));
}

// ---- an exception that is thrown over open calls

class ThrownOverOpenCallsTest : public testing::TestWithParam<EngineKind> {
 protected:
  using Program = absl::FunctionRef<void(RankContext&, ProcessGroup&)>;
  // The text of a run of two ranks that fails. `poison`: unset: as seeds have it, on.
  static std::string text_of(Program program, std::optional<bool> poison = {}) {
    const RunReport report =
        run_world({.world_size = 2, .engine = GetParam(), .schedule = Schedule::seeded(3), .poison = poison},
                  [&](RankContext& rank) { program(rank, *init_process_group(rank)); });
    EXPECT_FALSE(report.ok());
    return report.text();
  }
  static constexpr char kHint[] = "outputs hold NaN or 0xEB until their call completes";
};
INSTANTIATE_TEST_SUITE_P(Engines, ThrownOverOpenCallsTest, testing::Values(EngineKind::kThreads, EngineKind::kFibers),
                         [](const auto& info) { return info.param == EngineKind::kThreads ? "threads" : "fibers"; });

// The handle went with the scope that the exception left.
TEST_P(ThrownOverOpenCallsTest, EndsWithTheCallThatWasOpen) {
  const std::string text = text_of([](RankContext& rank, ProcessGroup& pg) {
    const std::vector<int> in(4, rank.rank());
    std::vector<int> out(2), other(3);
    Work first = pg.reduce_scatter_tensor(out, in);
    if (rank.rank() != 1) {
      first.wait();
      return;
    }
    Work second = pg.all_reduce(other);
    throw std::runtime_error(absl::StrCat("the sum is ", out[0] == 1 ? "right" : "wrong"));
  });
  EXPECT_THAT(text, testing::MatchesRegex(
                        "rank 1 failed: the sum is wrong \\(std::runtime_error\\), after all_reduce seq 2 [^\n]*\n"
                        "outputs hold NaN or 0xEB until their call completes; rank 1 had all_reduce seq 2 "
                        "\\[open_outputs_test.cc:[0-9]+\\], reduce_scatter_tensor seq 1 "
                        "\\[open_outputs_test.cc:[0-9]+\\] open\n.*"))
      << text;
  EXPECT_EQ(text.find(kHint), text.rfind(kHint)) << text;
}

// The rank waited for a part of the call, and so for the call.
TEST_P(ThrownOverOpenCallsTest, NamesNoCallOfWhichAPartWasWaitedFor) {
  const std::string text = text_of([](RankContext& rank, ProcessGroup& pg) {
    std::vector<int> x(3);
    pg.start_coalescing();
    Work part = pg.all_reduce(x);
    Work whole = pg.end_coalescing();
    part.wait();
    if (rank.rank() == 1) throw std::runtime_error("no disk");
  });
  EXPECT_THAT(text, testing::StartsWith("rank 1 failed: no disk")) << text;
  EXPECT_THAT(text, testing::Not(testing::HasSubstr(kHint))) << text;
}

TEST_P(ThrownOverOpenCallsTest, EndsWithACallWhoseHandleLivesOn) {
  std::vector<Work> kept;
  std::vector<int> x(3);
  const std::string text = text_of([&](RankContext& rank, ProcessGroup& pg) {
    if (rank.rank() == 0) return pg.barrier().wait();
    kept.push_back(pg.all_reduce(x));
    throw 7;
  });
  EXPECT_THAT(text, ContainsRegex("\noutputs hold NaN or 0xEB until their call completes; rank 1 had all_reduce seq 1 "
                                  "\\[open_outputs_test.cc:[0-9]+\\] open\n"))
      << text;
}

TEST_P(ThrownOverOpenCallsTest, RanksThatThrowAlikeShareTheLine) {
  const std::string text = text_of([](RankContext&, ProcessGroup& pg) {
    std::vector<int> x(3);
    Work work = pg.all_reduce(x);
    throw std::runtime_error("no sum");
  });
  EXPECT_THAT(text, ContainsRegex("(; ranks 0-1 had|; rank [01] had) all_reduce seq 1 ")) << text;
  EXPECT_EQ(text.find(kHint), text.rfind(kHint)) << text;
}

TEST_P(ThrownOverOpenCallsTest, AValueThatWasReadTooEarlyIsExplained) {
  const std::string text = text_of([](RankContext& rank, ProcessGroup& pg) {
    const std::vector<int> in(4, rank.rank());
    std::vector<int> out(2);
    Work work = pg.reduce_scatter_tensor(out, in);
    const int early = out[0];  // of the rank that comes first the call cannot be done
    work.wait();
    if (early < 0) throw std::runtime_error(absl::StrCat("the sum is ", early));
  });
  EXPECT_THAT(text, ContainsRegex(absl::StrCat("failed: the sum is -336860181 [^\n]*\n", kHint,
                                               "; a value was read before its wait\\(\\), perhaps\n")))
      << text;
  const std::string own = text_of([](RankContext& rank, ProcessGroup&) {
    if (rank.rank() == 1) throw std::runtime_error("the loss is nan");
  });
  EXPECT_THAT(own, HasSubstr(absl::StrCat("\n", kHint, "; a value was read before its wait(), perhaps\n"))) << own;
}

TEST_P(ThrownOverOpenCallsTest, SaysNothingOfCallsThatHaveNoPartInIt) {
  const auto throws = [](RankContext&, ProcessGroup& pg) {
    std::vector<int> x(3);
    Work work = pg.all_reduce(x);
    throw std::runtime_error("no sum");
  };
  EXPECT_THAT(text_of(throws, /*poison=*/false), testing::Not(HasSubstr(kHint)));
  // All was waited for.
  EXPECT_THAT(text_of([](RankContext& rank, ProcessGroup& pg) {
                std::vector<int> x(3);
                pg.all_reduce(x).wait();
                if (rank.rank() == 1) throw std::runtime_error("no disk");
              }),
              testing::Not(HasSubstr(kHint)));
  // An error of the library's says what is wrong itself.
  EXPECT_THAT(text_of([](RankContext&, ProcessGroup& pg) {
                std::vector<int> x(3);
                Work work = pg.all_reduce(x);
                pg.all_reduce(x).wait();
              }),
              AllOf(HasSubstr("its output overlaps that of"), testing::Not(HasSubstr(kHint))));
  // The exception over the call was caught, and the rank went on.
  EXPECT_THAT(text_of([](RankContext& rank, ProcessGroup& pg) {
                auto other = pg.new_group({0, 1});
                try {
                  std::vector<int> x(3);
                  Work work = other->all_reduce(x);
                  if (rank.rank() == 1) throw std::runtime_error("caught");
                  work.wait();
                } catch (const std::exception&) {
                }
                try {
                  pg.barrier().wait();
                } catch (const DistError&) {
                }
                if (rank.rank() == 1) throw std::runtime_error("no disk");
              }),
              testing::Not(ContainsRegex("no disk[^\n]*\noutputs hold")));
}

TEST(WrittenOutput, IsNoneOfACallThatIsDone) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    run_world({.world_size = 2, .engine = EngineKind::kFibers, .schedule = Schedule::seeded(seed)},
              [](RankContext& rank) {
                auto pg = init_process_group(rank);
                std::vector<float> x(3, 1);
                std::vector<float> y(2);
                Work work = pg->all_reduce(x);
                y.assign(2, 3);
                while (!work.is_completed()) rank.yield();
                x.assign(3, 1);
                work.wait();
                if (rank.rank() == 0) pg->reduce(x, 1).wait();
                if (rank.rank() == 1) pg->reduce(x, 1).wait();
              })
        .throw_if_failed();
  }
}

// The list of open outputs is the fibers' own, without a lock: what another thread lets go leaves it there.
TEST(OpenOutputsOnFibersTest, AThreadThatLetsGoOfAHandleTakesNothingFromTheFibersAtOnce) {
  const RunReport report = run_world({.world_size = 2, .engine = EngineKind::kFibers}, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<std::vector<float>> x(200, std::vector<float>(4, static_cast<float>(rank.rank() + 1)));
    std::vector<Work> works;
    for (std::vector<float>& each : x) works.push_back(pg->all_reduce(each));
    pg->barrier().wait();  // all are done, and their outputs open
    std::jthread other([gone = std::move(works)]() mutable {
      while (!gone.empty()) gone.pop_back();
    });
    std::vector<float> y(4, 1);
    for (int i = 0; i < 200; ++i) pg->all_reduce(y).wait();
    other.join();
    rank.sleep_for(absl::Milliseconds(1));  // by then all that was to be done on the fibers' thread is
    for (std::vector<float>& each : x) pg->all_reduce(each).wait();  // none is refused
    EXPECT_EQ(x[199][3], 6);
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

TEST(OpenOutputsOnFibersTest, AnUnfinishedCallThatAThreadLetsGoFailsItsGroupByName) {
  const RunReport report = run_world({.world_size = 2, .engine = EngineKind::kFibers}, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(4), y(4);
    if (rank.rank() == 1) {
      rank.sleep_for(absl::Seconds(1));
    } else {
      std::jthread([work = pg->all_reduce(x)] {});
    }
    pg->all_reduce(y).wait();
  });
  EXPECT_FALSE(report.ok());
  EXPECT_THAT(report.text(), HasSubstr("group 0, all_reduce seq 1: the work was dropped unfinished"));
}

TEST_P(ThrownOverOpenCallsTest, CountsOpenCallsBeyondTheFourth) {
  for (const int open : {4, 6}) {
    const std::string text = text_of([open](RankContext& rank, ProcessGroup& pg) {
      if (rank.rank() == 0) return rank.store().wait({"never"});
      std::vector<std::vector<int>> x(static_cast<size_t>(open), std::vector<int>(3));
      std::vector<Work> works;
      for (std::vector<int>& one : x) works.push_back(pg.all_reduce(one));
      throw std::runtime_error("no disk");
    });
    EXPECT_THAT(text, ContainsRegex(absl::StrCat("rank 1 had (all_reduce seq [0-9] [^,\n]*(, )?){4}",
                                                 open == 4 ? "" : " and 2 more", " open\n")));
  }
}

// NaN of each width, as an early reader finds it.
TEST_P(OpenOutputsTest, PoisonIsNaNInEveryFloat) {
  WorldOptions world = options(2);
  world.poison = true;
  run(world, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<Half> half(3);
    std::vector<BFloat16> brain(3);
    std::vector<double> wide(3);
    std::vector<std::complex<float>> pairs(3);
    if (rank.rank() == 0) {
      rank.store().wait({"looked"});
      pg->send(half, 1, 1).wait();
      pg->send(brain, 1, 2).wait();
      pg->send(wide, 1, 3).wait();
      pg->send(pairs, 1, 4).wait();
    } else {
      std::vector<Work> works;
      works.push_back(pg->recv(half, 0, 1));
      works.push_back(pg->recv(brain, 0, 2));
      works.push_back(pg->recv(wide, 0, 3));
      works.push_back(pg->recv(pairs, 0, 4));
      EXPECT_EQ(half[2].bits, 0x7e00);
      EXPECT_EQ(brain[2].bits, 0x7fc0);
      EXPECT_TRUE(std::isnan(wide[2]));
      EXPECT_TRUE(std::isnan(pairs[2].real()) && std::isnan(pairs[2].imag()));
      rank.store().set("looked", "");
      wait_all(works);
    }
  });
}

}  // namespace
}  // namespace rankloom

// The record of calls: what it keeps, how virtual time passes, what it counts.

#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "collectives/records/call_record_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/device_mesh.h"
#include "rankloom/fake.h"
#include "rankloom/matchers.h"
#include "rankloom/records.h"
#include "rankloom/world.h"
#include "tests/world/every_world.h"
#include "world/run_file.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr absl::Duration kMicro = absl::Microseconds(1);
// A message takes 1 us, a byte 1 ns.
constexpr links::Link kSlow = {.latency = kMicro, .bytes_per_second = 1e9};
constexpr links::Link kFast = {.latency = absl::Nanoseconds(10), .bytes_per_second = 1e12};

struct Recorded {
  explicit Recorded(int64_t rank = 0, int64_t world_size = 4, CostModel model = {.link = kSlow})
      : record(std::make_shared<CallRecord>(std::move(model))),
        pg(make_fake_process_group({.rank = rank, .world_size = world_size, .options = {.record = record}})) {}

  std::shared_ptr<CallRecord> record;
  std::shared_ptr<FakeProcessGroup> pg;
};

TEST(CallRecordTest, KeepsWhatWasCalled) {
  Recorded r(2, 4);
  EXPECT_EQ(r.record->global_rank(), 2);
  EXPECT_EQ(r.record->world_size(), 4);
  std::vector<float> x(6), y(24);
  std::vector<int64_t> z(4);
  r.pg->all_gather_into_tensor(TensorView(y.data(), {8, 3}), TensorView(x.data(), {2, 3})).wait();
  const int line = __LINE__ - 1;
  r.pg->reduce(z, 3, ReduceOp::kMax).wait();
  r.pg->send(z, 1, 7).wait();
  r.pg->all_to_all_single(TensorView(y.data(), {4, 3}), TensorView(x.data(), {2, 3}), {1, 1, 1, 1}, {2, 0, 0, 0})
      .wait();
  r.pg->all_reduce(x, ReduceOp::premul_sum(0.25)).wait();
  ASSERT_EQ(r.record->size(), 5);

  const CallRecord::Call gather = (*r.record)[0];
  EXPECT_EQ(gather.name, "all_gather_into_tensor");
  EXPECT_EQ(gather.op, OpType::kAllGatherIntoTensor);
  EXPECT_EQ(gather.group, 0);
  EXPECT_EQ(gather.seq, 1);
  EXPECT_EQ(gather.batch, -1);
  EXPECT_THAT(gather.inputs, ElementsAre(CallRecord::Call::Tensor{DType::kFloat32, {2, 3}}));
  EXPECT_THAT(gather.outputs, ElementsAre(CallRecord::Call::Tensor{DType::kFloat32, {8, 3}}));
  EXPECT_EQ(gather.input_bytes(), 24);
  EXPECT_EQ(gather.output_bytes(), 96);
  EXPECT_EQ(gather.payload, 96);
  EXPECT_EQ(gather.ring, (CostModel::WireCost{3, 72}));
  EXPECT_EQ(gather.tree, (CostModel::WireCost{2, 72}));
  EXPECT_THAT(gather.code.file, HasSubstr("call_record_test.cc"));
  EXPECT_EQ(gather.code.line, line);

  const CallRecord::Call reduce = (*r.record)[1];
  EXPECT_EQ(reduce.root, 3);
  EXPECT_EQ(reduce.reduce_op, ReduceOp::kMax);
  EXPECT_EQ(reduce.seq, 2);
  const CallRecord::Call send = (*r.record)[2];
  EXPECT_EQ(send.peer, 1);
  EXPECT_EQ(send.tag, 7);
  EXPECT_EQ(send.seq, 1);  // of sends and recvs
  EXPECT_THAT(send.inputs, ElementsAre(CallRecord::Call::Tensor{DType::kInt64, {4}}));
  EXPECT_EQ(send.outputs.size(), 0);
  const CallRecord::Call split = (*r.record)[3];
  EXPECT_THAT(split.in_splits, ElementsAre(2, 0, 0, 0));
  EXPECT_THAT(split.out_splits, ElementsAre(1, 1, 1, 1));
  EXPECT_EQ((*r.record)[4].reduce_op, ReduceOp::premul_sum(0.25));
}

TEST(CallRecordTest, ACallThatNobodyWaitedForHasNoWait) {
  Recorded r;
  const Work held = r.pg->barrier();
  { const Work dropped = r.pg->barrier(); }
  r.pg->barrier().wait();
  EXPECT_EQ((*r.record)[0].waited_before, -1);
  EXPECT_EQ((*r.record)[1].waited_before, -1);
  EXPECT_EQ((*r.record)[2].waited_before, 3);
}

// Also where no call is one of all ranks.
TEST(CallRecordTest, ATimelineSaysHowManyRanksTheWorldHas) {
  const auto record = std::make_shared<CallRecord>();
  auto pg = make_fake_process_group({.rank = 5, .world_size = 64, .options = {.record = record}});
  init_device_mesh(pg, {8, 8}, {"dp", "tp"}).get_group("tp")->barrier().wait();
  EXPECT_THAT(traces::perfetto_json({record}), HasSubstr("\"distributedInfo\": {\"rank\": 5, \"world_size\": 64}, "));
}

TEST(CallRecordTest, KeepsTheScopeOfACall) {
  Recorded r;
  CallRecordState& state = CallRecordState::of(*r.record);
  for (const char* const scope : {"layers.0", "layers.1", static_cast<const char*>(nullptr), "layers.0"}) {
    state.scope = scope;
    r.pg->barrier().wait();
  }
  r.record->compute(kMicro);
  std::vector<std::string> scopes;
  for (size_t i = 0; i < r.record->size(); ++i) scopes.emplace_back(state.scope_at(i));
  EXPECT_THAT(scopes, ElementsAre("layers.0", "layers.1", "", "layers.0", ""));
  EXPECT_EQ(r.record->calls(OpType::kBarrier), 4);
  EXPECT_THAT(traces::perfetto_json({r.record}), HasSubstr("\"Module\": \"layers.1\""));
  EXPECT_THAT(traces::pytorch_trace_json(*r.record),
              HasSubstr("{\"name\": \"module\", \"type\": \"string\", \"value\": \"layers.1\"}"));
}

TEST(CallRecordTest, TellsCallsApartThatDifferInAnything) {
  Recorded r;
  std::vector<float> x(8), y(2);
  const auto reduce = [&](TensorView view, ReduceOp op, int root) { r.pg->reduce(view, root, op).wait(); };
  for (int round = 0; round < 3; ++round) {
    for (const int root : {0, 1}) {
      for (const auto& view : {TensorView(x), TensorView(x.data(), {2, 4}), TensorView(x.data(), {4, 2})}) {
        reduce(view, ReduceOp::kSum, root);
        reduce(view, ReduceOp::kMin, root);
      }
    }
  }
  ASSERT_EQ(r.record->size(), 36);
  for (size_t i = 0; i < 36; ++i) {
    const CallRecord::Call call = (*r.record)[i];
    EXPECT_EQ(call.root, static_cast<int>(i % 12 / 6));
    EXPECT_EQ(call.reduce_op, i % 2 == 0 ? ReduceOp::kSum : ReduceOp::kMin);
    EXPECT_EQ(call.outputs[0].sizes, (std::vector<Dims>{{8}, {2, 4}, {4, 2}}[i % 6 / 2]));
    EXPECT_EQ(call.seq, static_cast<int64_t>(i) + 1);
  }
}

TEST(CallRecordTest, HoldsACallIn48Bytes) {
  Recorded r;
  std::vector<float> x(1024);
  const auto call_each_kind_once = [&] {
    for (size_t i = 1; i <= x.size(); ++i) r.pg->all_reduce(std::span(x).first(i)).wait();
  };
  for (int round = 0; round < 4; ++round) call_each_kind_once();
  ASSERT_EQ(r.record->size(), CallRecordState::kChunk);
  const size_t before = r.record->memory_bytes();  // with the descriptions of all kinds
  constexpr size_t kChunks = 25;
  for (size_t round = 0; round < 4 * kChunks; ++round) call_each_kind_once();
  const size_t calls = r.record->size() - CallRecordState::kChunk;
  ASSERT_EQ(calls, kChunks * CallRecordState::kChunk);
  // And a pointer for 4,096 calls.
  EXPECT_EQ(r.record->memory_bytes() - before, calls * 48 + kChunks * sizeof(void*));
  EXPECT_EQ((r.record->memory_bytes() - before) / calls, 48);
}

TEST(CallRecordTest, LetsVirtualTimePass) {
  // An all_reduce of S bytes among 4: 6 us and 1.5 S ns.
  Recorded r;
  std::vector<uint8_t> x(1000);
  r.record->compute(10 * kMicro, "forward");
  r.pg->all_reduce(x).wait();
  EXPECT_EQ(r.record->now(), 17.5 * kMicro);
  // Two on their way: one after the other, while the program goes on.
  Work first = r.pg->all_reduce(x);
  Work second = r.pg->all_reduce(x);
  r.record->compute(kMicro, "backward");
  EXPECT_EQ(r.record->now(), 18.5 * kMicro);
  second.wait();
  EXPECT_EQ(r.record->now(), 32.5 * kMicro);
  first.wait();
  EXPECT_EQ(r.record->now(), 32.5 * kMicro);
  ASSERT_EQ(r.record->size(), 5);
  const CallRecord::Call compute = (*r.record)[0];
  EXPECT_TRUE(compute.is_compute);
  EXPECT_EQ(compute.name, "forward");
  EXPECT_EQ(compute.duration, 10 * kMicro);
  const CallRecord::Call third = (*r.record)[3];
  EXPECT_EQ(third.issued, 17.5 * kMicro);
  EXPECT_EQ(third.start, 25 * kMicro);
  EXPECT_EQ(third.end(), 32.5 * kMicro);
  EXPECT_EQ((*r.record)[1].waited_before, 2);
  EXPECT_EQ(third.waited_before, 5);
  EXPECT_EQ(r.record->calls(), 3);
}

TEST(CallRecordTest, NothingComesAfterTheEndOfTime) {
  Recorded r;
  constexpr absl::Duration kEnd = absl::Nanoseconds(std::numeric_limits<int64_t>::max());
  r.record->compute(absl::InfiniteDuration(), "forever");
  r.record->compute(absl::InfiniteDuration(), "and on");
  std::vector<uint8_t> x(1000);
  r.pg->all_reduce(x).wait();
  EXPECT_EQ(r.record->now(), kEnd);
  EXPECT_EQ(r.record->end(), kEnd);
  EXPECT_EQ((*r.record)[1].start, kEnd);
  EXPECT_EQ((*r.record)[2].start, kEnd);
}

TEST(CallRecordTest, RunsGroupsSideBySide) {
  Recorded r(5, 8, {.dims = {{"tp", kFast}, {"dp", kSlow}}});
  const DeviceMesh mesh = init_device_mesh(r.pg, {4, 2}, {"dp", "tp"});
  EXPECT_EQ(r.record->size(), 0);  // making groups is no call
  std::vector<uint8_t> x(1000);
  Work slow = mesh.get_group("dp")->all_reduce(x);
  Work fast = mesh.get_group("tp")->all_reduce(x);
  Work free = r.pg->all_reduce(x);  // no link: no time
  free.wait();
  EXPECT_EQ(r.record->now(), absl::ZeroDuration());
  fast.wait();
  EXPECT_EQ(r.record->now(), absl::Nanoseconds(2 * 10 + 1));
  slow.wait();
  EXPECT_EQ(r.record->now(), absl::Nanoseconds(6000 + 1500));
  EXPECT_EQ(r.record->end(), r.record->now());
  ASSERT_EQ(r.record->groups().size(), 3);
  EXPECT_EQ(r.record->groups()[1].label(), "dp");
  EXPECT_EQ(r.record->groups()[1].rank, 2);
  EXPECT_EQ(r.record->groups()[2].label(), "tp");
  EXPECT_EQ(r.record->groups()[2].rank, 1);
  EXPECT_EQ(r.record->groups()[0].label(), "0");
}

TEST(CallRecordTest, AddsUpByGroupAndOperation) {
  Recorded r(0, 8, {.link = kSlow});
  const DeviceMesh mesh = init_device_mesh(r.pg, {4, 2}, {"dp", "tp"});
  std::vector<uint8_t> x(100), y(50);
  for (int i = 0; i < 3; ++i) mesh.get_group("tp")->all_reduce(x).wait();
  mesh.get_group("tp")->all_reduce(y).wait();
  mesh.get_group("dp")->all_reduce(y).wait();
  mesh.get_group("dp")->barrier().wait();
  const std::vector<CallRecord::Totals> totals = r.record->totals();
  ASSERT_EQ(totals.size(), 3);
  EXPECT_EQ(totals[0].group, 1);
  EXPECT_EQ(totals[0].op, OpType::kAllReduce);
  EXPECT_EQ(totals[0].ring, (CostModel::WireCost{6, 75}));
  EXPECT_EQ(totals[1].op, OpType::kBarrier);
  EXPECT_EQ(totals[2].group, 2);
  EXPECT_EQ(totals[2].calls, 4);
  EXPECT_EQ(totals[2].payload, 350);
  EXPECT_EQ(totals[2].ring, (CostModel::WireCost{8, 350}));
  EXPECT_EQ(totals[2].tree, (CostModel::WireCost{8, 700}));
  EXPECT_EQ(totals[2].time, 8 * kMicro + absl::Nanoseconds(350));
  EXPECT_EQ(r.record->text(), "1 x all_reduce on dp\n1 x barrier on dp\n4 x all_reduce on tp");
  EXPECT_THAT(r.record->table(), AllOf(HasSubstr("tp                   2  all_reduce                              4"),
                                       HasSubstr("350 B"), HasSubstr("0.008 ms")));
}

TEST(CallRecordTest, CountsNoBufferTwiceWhicheverRankItIs) {
  for (int rank = 0; rank < 4; ++rank) {
    Recorded r(rank, 4);
    std::vector<std::vector<uint8_t>> parts(4, std::vector<uint8_t>(100));
    std::vector<uint8_t> other(100);
    const std::vector<TensorView> list(parts.begin(), parts.end());
    r.pg->all_gather(list, list[static_cast<size_t>(rank)]).wait();
    EXPECT_EQ(r.record->peak_buffer_bytes(), 400) << rank;
    r.pg->all_gather(list, other).wait();
    EXPECT_EQ(r.record->peak_buffer_bytes(), 500) << rank;
    r.record->clear();
    r.pg->reduce_scatter(list[static_cast<size_t>(rank)], list).wait();
    EXPECT_EQ(r.record->peak_buffer_bytes(), 400) << rank;
    r.pg->reduce_scatter(other, list).wait();
    EXPECT_EQ(r.record->peak_buffer_bytes(), 500) << rank;
  }
}

TEST(CallRecordTest, NumbersMessagesAsTheirGroupDoes) {
  auto record = std::make_shared<CallRecord>();
  const auto pg =
      make_fake_process_group({.rank = 0, .world_size = 2, .options = {.deny = {OpType::kSend}, .record = record}});
  std::vector<uint8_t> x(4);
  EXPECT_ANY_THROW((void)pg->send(x, 1));
  (void)pg->recv(x, 1);
  (void)pg->recv(x, 1);
  ASSERT_EQ(record->size(), 2);
  EXPECT_EQ((*record)[0].seq, 2);
  EXPECT_EQ((*record)[1].seq, 3);
}

// Groups of one name are told apart by their ranks, and messages whose number is lost have no arrow.
TEST(CallRecordTest, ArrowsJoinMembersOfOneCall) {
  const auto arrows = [](int messages, bool groups) {
    std::string text;
    EXPECT_TRUE(run_world({.world_size = 4, .engine = EngineKind::kFibers}, [&](RankContext& rank) {
                  auto pg = init_process_group(rank);
                  std::vector<uint8_t> x(4);
                  for (int i = 0; i < 3 && groups; ++i) {
                    const auto pair = pg->new_group({i, i + 1}, {.name = "pair"});
                    if (pair != nullptr) pair->all_reduce(x).wait();
                  }
                  for (int i = 0; i < messages; ++i) {
                    if (rank.rank() == 0) pg->send(x, 1).wait();
                    if (rank.rank() == 1) pg->recv(x, 0).wait();
                    if (rank.rank() == 1) pg->send(x, 2).wait();
                    if (rank.rank() == 2) pg->recv(x, 1).wait();
                  }
                  pg->barrier().wait();
                  if (rank.rank() == 0) text = traces::perfetto_json(CallRecord::of_world(rank.world()));
                }).ok());
    return (absl::StrContains(text, "\"ph\": \"s\"")
                ? std::vector<std::string>(absl::StrSplit(text, "\"ph\": \"s\"")).size() - 1
                : 0);
  };
  const size_t without = arrows(0, false);
  EXPECT_EQ(arrows(10, false), without + 20);
  EXPECT_EQ(arrows(100, false), without);   // of which a record holds the last 64
  EXPECT_EQ(arrows(0, true), without + 3);  // each of the three calls has two members
}

TEST(CallRecordTest, CountsTheBuffersOfCallsOnTheirWay) {
  Recorded r(0, 4);
  std::vector<uint8_t> x(100), part(25);
  r.pg->all_reduce(x).wait();  // in place: 100
  EXPECT_EQ(r.record->peak_buffer_bytes(), 100);
  r.pg->all_gather_into_tensor(x, part).wait();  // 125
  EXPECT_EQ(r.record->peak_buffer_bytes(), 125);
  EXPECT_EQ(r.record->live_buffer_bytes(), 0);
  {
    Work first = r.pg->all_reduce(x);
    Work second = r.pg->all_gather_into_tensor(x, part);
    EXPECT_EQ(r.record->live_buffer_bytes(), 225);
    first.wait();
    EXPECT_EQ(r.record->live_buffer_bytes(), 125);
  }
  EXPECT_EQ(r.record->live_buffer_bytes(), 0);                         // dropped
  r.pg->all_gather_into_tensor(x, TensorView(x).slice(0, 25)).wait();  // the part lies in the whole
  EXPECT_EQ(r.record->peak_buffer_bytes(), 225);
  std::vector<Work> works;
  for (int i = 0; i < 3; ++i) works.push_back(r.pg->all_reduce(x));
  EXPECT_EQ(r.record->peak_buffer_bytes(), 300);
  r.record->clear();
  EXPECT_EQ(r.record->live_buffer_bytes(), 0);
  EXPECT_EQ(r.record->peak_buffer_bytes(), 0);
  works.clear();
  EXPECT_EQ(r.record->live_buffer_bytes(), 0);
}

TEST(CallRecordTest, OutlivesAndIsOutlivedByWorks) {
  Work work;
  {
    Recorded r;
    std::vector<float> x(2);
    work = r.pg->all_reduce(x);
  }
  work.wait();
  EXPECT_TRUE(work.is_success());
}

TEST(CallRecordTest, KeepsThePartsOfCoalescedCalls) {
  Recorded r;
  std::vector<uint8_t> x(1000), y(2000);
  r.pg->barrier().wait();
  r.pg->start_coalescing();
  (void)r.pg->all_reduce(x);
  (void)r.pg->send(y, 1);
  r.pg->end_coalescing().wait();
  ASSERT_EQ(r.record->size(), 3);
  EXPECT_EQ((*r.record)[0].batch, -1);
  EXPECT_EQ((*r.record)[1].batch, 1);
  EXPECT_EQ((*r.record)[2].batch, 1);
  EXPECT_EQ((*r.record)[2].name, "send");
  EXPECT_EQ((*r.record)[2].start, (*r.record)[1].end());
  EXPECT_EQ((*r.record)[2].waited_before, 3);
  EXPECT_EQ(r.record->now(), (6 + 7.5 + 3) * kMicro);
  EXPECT_EQ(r.record->peak_buffer_bytes(), 3000);
}

TEST(CallRecordTest, CountsSendsAndRecvsAsTheFlightRecorderDoes) {
  Recorded r;
  std::vector<uint8_t> x(10);
  r.pg->send(x, 1).wait();
  r.pg->start_coalescing();
  (void)r.pg->barrier();
  (void)r.pg->send(x, 1);
  (void)r.pg->recv(x, 2);
  r.pg->end_coalescing().wait();
  r.pg->recv_any(x).wait();
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < r.record->size(); ++i) numbers.push_back((*r.record)[i].seq);
  EXPECT_THAT(numbers, ElementsAre(1, 1, 2, 2, 3));
}

TEST(CallRecordTest, StartsAnew) {
  Recorded r;
  std::vector<float> x(2);
  for (int i = 0; i < 5000; ++i) r.pg->all_reduce(x).wait();
  EXPECT_EQ(r.record->calls(), 5000);
  r.record->clear();
  EXPECT_EQ(r.record->calls(), 0);
  EXPECT_EQ(r.record->size(), 0);
  EXPECT_EQ(r.record->now(), absl::ZeroDuration());
  EXPECT_EQ(r.record->text(), "no calls");
  r.pg->all_reduce(x).wait();
  EXPECT_EQ((*r.record)[0].seq, 5001);
  EXPECT_EQ(r.record->totals()[0].calls, 1);
}

TEST(CallRecordTest, HoldsAtMost64BytesACall) {
  Recorded r(0, 1000000);
  static constexpr int kCalls = 200'000;
  for (int i = 0; i < kCalls; ++i) r.pg->all_reduce(TensorView::meta({i % 300, 16}, DType::kBFloat16)).wait();
  EXPECT_EQ(r.record->calls(), kCalls);
  EXPECT_LE(r.record->memory_bytes(), size_t{64} * kCalls);
  EXPECT_EQ((*r.record)[kCalls - 1].outputs[0].sizes, (Dims{(kCalls - 1) % 300, 16}));
}

TEST(CallRecordTest, BelongsToOneRank) {
  Recorded r(0, 4);
  r.pg->set_rank(3);
  EXPECT_EQ(r.record->global_rank(), 3);
  std::vector<float> x(2);
  r.pg->all_reduce(x).wait();
  EXPECT_THAT([&] { r.pg->set_rank(1); },
              ThrowsDistError(ErrorKind::kInvalidArgument,
                              HasSubstr("set_rank: the record is that of rank 3: it has calls or further groups")));
}

// ---- matchers

TEST(CallMatchersTest, CountCalls) {
  Recorded r(0, 8);
  const DeviceMesh mesh = init_device_mesh(r.pg, {4, 2}, {"dp", "tp"});
  std::vector<float> x(2), y(4), z(8);
  for (int i = 0; i < 3; ++i) mesh.get_group("tp")->all_gather_into_tensor(y, x).wait();
  mesh.get_group("dp")->reduce_scatter_tensor(x, z).wait();
  const CallRecord& record = *r.record;
  EXPECT_THAT(record, Calls(3, OpType::kAllGatherIntoTensor, "tp"));
  EXPECT_THAT(record, Calls(0, OpType::kAllGatherIntoTensor, "dp"));
  EXPECT_THAT(record, Not(Calls(2, OpType::kAllGatherIntoTensor, "tp")));
  EXPECT_THAT(record, Calls(1, OpType::kReduceScatterTensor, "mesh_dp"));
  EXPECT_THAT(record, CallsExactly({{3, OpType::kAllGatherIntoTensor, "tp"}, {1, OpType::kReduceScatterTensor, "dp"}}));
  EXPECT_THAT(record, Not(CallsExactly({{3, OpType::kAllGatherIntoTensor, "tp"}})));

  testing::StringMatchResultListener why;
  EXPECT_FALSE(CallsExactly({{2, OpType::kAllGatherIntoTensor, "tp"}, {1, OpType::kReduceScatterTensor, "dp"}})
                   .MatchAndExplain(record, &why));
  EXPECT_EQ(why.str(),
            "which has 3 x all_gather_into_tensor on tp; it is\n1 x reduce_scatter_tensor on dp\n3 x "
            "all_gather_into_tensor on tp");
  testing::StringMatchResultListener one;
  EXPECT_FALSE(Calls(2, OpType::kAllGatherIntoTensor, "tp").MatchAndExplain(record, &one));
  EXPECT_EQ(one.str(), "which has 3 such calls of 4");
  testing::StringMatchResultListener more;
  EXPECT_FALSE(CallsExactly({{1, OpType::kReduceScatterTensor, "dp"}}).MatchAndExplain(record, &more));
  EXPECT_THAT(more.str(), HasSubstr("which has 4 calls, want 1; it is\n"));
  EXPECT_EQ(testing::DescribeMatcher<const CallRecord&>(CallsExactly({{2, OpType::kAllReduce, "tp"}})),
            "has exactly 2 x all_reduce on tp");
  EXPECT_EQ(testing::DescribeMatcher<const CallRecord&>(CallsExactly({}), /*negation=*/true),
            "has not exactly no calls");
  EXPECT_EQ(testing::DescribeMatcher<const CallRecord&>(Calls(2, OpType::kAllReduce, "tp"), /*negation=*/true),
            "has not 2 x all_reduce on tp");
}

// ---- as a run file; the tests of the command `rankloom` read one back

TEST(CallRecordTest, BecomesARunFileWithItsTotals) {
  Recorded r(2, 4);
  r.record->compute(absl::Microseconds(3), "forward");
  std::vector<float> x(100), in(6), out(8);
  {
    const Work open = r.pg->all_reduce(x);
    (void)r.pg->all_reduce(x);
  }
  r.pg->all_to_all_single(out, in, {2, 2, 2, 2}, {3, 1, 1, 1}).wait();
  const std::string text = traces::run_text({r.record});
  EXPECT_THAT(text, HasSubstr("\"text\":\"Fake world: the calls of 1 of 4 ranks\""));
  EXPECT_THAT(text, HasSubstr("\"lanes\":[\"2 compute\",\"2 group 0\"]"));
  EXPECT_THAT(text, HasSubstr("\"name\":\"0\",\"description\":\"default_pg\",\"size\":1,\"of\":4,"));
  // An all_reduce of 400 bytes takes six steps of 1 us and 600 ns; the second waits for the first.
  EXPECT_THAT(text, HasSubstr("\"fake\",\"world_size\":4,\"ranks\":[{\"rank\":2,\"calls\":3,\"compute_ns\":3000,"));
  EXPECT_THAT(text, HasSubstr("\"peak_buffer_bytes\":800,\"totals\":[{\"op\":\"all_reduce\",\"group\":1,\"calls\":2,"
                              "\"payload\":800,\"ring_bytes\":1200,\"tree_bytes\":1600,\"time_ns\":13200}"));
  EXPECT_THAT(text, HasSubstr("\"splits\":[[3,1,1,1],[2,2,2,2]]"));
  EXPECT_THAT(text, HasSubstr("\"rank\":1,\"made\":3,\"kind\":[1,2,3],\"seq\":[1,2,3],\"issued\":[3000,0,0],"
                              "\"arrived\":[0,6600,13200],\"ended\":[6600,13200,16218]"));
}

TEST(CallRecordTest, ARunFileHasTimesUpToTheEndOfTime) {
  Recorded r;
  r.record->compute(absl::InfiniteDuration(), "forever");
  r.record->compute(absl::InfiniteDuration(), "and on");
  EXPECT_THAT(traces::run_text({r.record}), HasSubstr("\"calls\":0,\"compute_ns\":9223372036854775807,"));
}

TEST(CallRecordTest, ARunFileOfNoRecordIsRefused) {
  EXPECT_THAT(
      [] { traces::run_text({nullptr}); },
      ThrowsDistError(ErrorKind::kInvalidArgument, HasSubstr("run_text: record 0 is null, want one [call_record")));
}

// ---- real worlds

class RecordOfARealRankTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, RecordOfARealRankTest, every_world(), world_name);

TEST_P(RecordOfARealRankTest, HasItsCalls) {
  run(4, [](RankContext& rank) {
    const DeviceMesh mesh = init_device_mesh(rank, {2, 2}, {"dp", "tp"});
    std::vector<float> x(2), y(4);
    mesh.get_group("tp")->all_gather_into_tensor(y, x).wait();
    mesh.get_group("dp")->broadcast(x, 1).wait();
    if (mesh.get_local_rank("tp") == 0) mesh.get_group("tp")->send(x, 1, 7).wait();
    if (mesh.get_local_rank("tp") == 1) mesh.get_group("tp")->recv(x, 0, 7).wait();
    const std::shared_ptr<CallRecord> record = CallRecord::of_rank(rank);
    EXPECT_EQ(record->global_rank(), rank.rank());
    EXPECT_EQ(record->world_size(), 4);
    const bool sends = mesh.get_local_rank("tp") == 0;
    EXPECT_THAT(*record, CallsExactly({{1, OpType::kAllGatherIntoTensor, "tp"},
                                       {1, OpType::kBroadcast, "dp"},
                                       {1, sends ? OpType::kSend : OpType::kRecv, "tp"}}));
    ASSERT_EQ(record->size(), 3);
    const CallRecord::Call gather = (*record)[0];
    EXPECT_THAT(gather.outputs, ElementsAre(CallRecord::Call::Tensor{DType::kFloat32, {4}}));
    EXPECT_EQ(gather.ring, (CostModel::WireCost{1, 8}));
    EXPECT_GE(gather.duration, absl::ZeroDuration());
    EXPECT_GE(gather.start, gather.issued);
    EXPECT_THAT(gather.code.file, HasSubstr("call_record_test.cc"));
    EXPECT_EQ((*record)[1].root, 1);
    EXPECT_EQ((*record)[2].peer, sends ? 1 : 0);
    EXPECT_EQ((*record)[2].tag, 7);
    EXPECT_GE(record->peak_buffer_bytes(), 24);
  });
}

TEST_P(RecordOfARealRankTest, HasSplits) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const std::vector<int64_t> give = {1, 2};
    const std::vector<int64_t> want = rank.rank() == 0 ? std::vector<int64_t>{1, 1} : std::vector<int64_t>{2, 2};
    std::vector<float> in(3), out(static_cast<size_t>(want[0] + want[1])), even(2);
    pg->all_to_all_single(out, in, want, give).wait();
    pg->all_to_all_single(even, std::span(in).first(2)).wait();
    const std::shared_ptr<CallRecord> record = CallRecord::of_rank(rank);
    ASSERT_EQ(record->size(), 2);
    EXPECT_EQ((*record)[0].in_splits, give);
    EXPECT_EQ((*record)[0].out_splits, want);
    EXPECT_THAT((*record)[1].in_splits, IsEmpty());
    EXPECT_THAT((*record)[1].out_splits, IsEmpty());
  });
}

TEST_P(RecordOfARealRankTest, TellsOfCallsThatHaveNotEnded) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(2);
    Work work;
    if (rank.rank() == 0) {
      work = pg->recv(x, 1);
      EXPECT_LT((*CallRecord::of_rank(rank))[0].duration, absl::ZeroDuration());
      EXPECT_THAT(traces::run_text({CallRecord::of_rank(rank)}), HasSubstr("\"ended\":[-1],\"state\":\"s\""));
      EXPECT_THAT(traces::perfetto_json({CallRecord::of_rank(rank)}),
                  AllOf(HasSubstr("\"ph\": \"B\""), Not(HasSubstr("\"dur\""))));
      pg->barrier().wait();
      work.wait();
    } else {
      pg->barrier().wait();
      pg->send(x, 0).wait();
    }
    EXPECT_GE((*CallRecord::of_rank(rank))[0].duration, absl::ZeroDuration());
  });
}

// Bytes of a fake world are of any size; their sums stop at what int64 holds.
TEST(CallRecordTest, SumsStopAtTheMostThatIsCounted) {
  Recorded r;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const TensorView huge = TensorView::meta({int64_t{1} << 59}, DType::kFloat64);  // 2^62 bytes
  std::vector<Work> works;
  for (int i = 0; i < 4; ++i) works.push_back(r.pg->all_reduce(huge));
  EXPECT_EQ(r.record->live_buffer_bytes(), kMost);
  for (Work& work : works) work.wait();
  EXPECT_EQ(r.record->live_buffer_bytes(), 0);
  EXPECT_EQ(r.record->peak_buffer_bytes(), kMost);
  ASSERT_EQ(r.record->totals().size(), 1);
  EXPECT_EQ(r.record->totals()[0].payload, kMost);
  EXPECT_EQ(r.record->totals()[0].ring.bytes, kMost);
  EXPECT_EQ(r.record->totals()[0].tree.bytes, kMost);
  EXPECT_THAT(r.record->table(), HasSubstr("9223.37 PB"));
}

TEST(CallRecordTest, TablesHaveBytesInTheUnitThatFits) {
  for (const auto& [bytes, text] :
       std::initializer_list<std::pair<int64_t, const char*>>{{999, " 999 B "},
                                                              {1000, " 1.00 kB "},
                                                              {999'994, " 999.99 kB "},
                                                              {999'995, " 1.00 MB "},
                                                              {999'999, " 1.00 MB "},
                                                              {1'500'000, " 1.50 MB "},
                                                              {2'250'000'000, " 2.25 GB "},
                                                              {3'000'000'000'000, " 3.00 TB "}}) {
    Recorded r;
    r.pg->all_reduce(TensorView::meta({bytes}, DType::kUInt8)).wait();
    EXPECT_THAT(r.record->table(), HasSubstr(text)) << bytes;
  }
}

// A file has fewer calls of a rank than its recorder if there are many ranks.
TEST(RunFileTest, SaysWhyCallsAreNotThere) {
  for (const int recorded : {33'000, 500}) {
    const RunReport report =
        run_world({.world_size = 64, .engine = EngineKind::kFibers, .recorded_calls = recorded, .keep_run = true},
                  [](RankContext& rank) {
                    if (rank.rank() != 0) return;
                    auto alone = init_process_group(rank, {.ranks = {0}});
                    for (int i = 0; i < 32'776; ++i) alone->barrier().wait();
                  });
    ASSERT_TRUE(report.ok()) << report.text();
    EXPECT_THAT(
        run_file_text(report),
        HasSubstr(recorded == 500 ? "\"calls: 32276 of 32776 are gone: WorldOptions::recorded_calls is 500\""
                                  : "\"calls: 8 of 32776 are gone: the most that a file has of a rank is 32768\""));
  }
}

// Names of c10::ScalarType, of caffe2::TypeMeta, and of the collectives as ProcessGroupNCCL records them.
TEST(PytorchTraceTest, HasPytorchsNamesOfAllDTypes) {
  struct Names {
    DType dtype;
    const char* scalar;
    const char* type;
  };
  constexpr Names kNames[] = {
      {DType::kFloat16, "Half", "c10::Half"},
      {DType::kBFloat16, "BFloat16", "c10::BFloat16"},
      {DType::kFloat32, "Float", "float"},
      {DType::kFloat64, "Double", "double"},
      {DType::kInt8, "Char", "signed char"},
      {DType::kUInt8, "Byte", "unsigned char"},
      {DType::kInt16, "Short", "short int"},
      {DType::kInt32, "Int", "int"},
      {DType::kInt64, "Long", "long int"},
      {DType::kBool, "Bool", "bool"},
      {DType::kComplex64, "ComplexFloat", "c10::complex<float>"},
      {DType::kComplex128, "ComplexDouble", "c10::complex<double>"},
      {DType::kFloat8E4M3FN, "Float8_e4m3fn", "c10::Float8_e4m3fn"},
      {DType::kFloat8E5M2, "Float8_e5m2", "c10::Float8_e5m2"},
  };
  static_assert(std::size(kNames) == kDTypeCount);
  for (const Names& names : kNames) {
    Recorded r;
    r.pg->broadcast(TensorView::meta({3}, names.dtype), 0).wait();
    const std::string trace = traces::pytorch_trace_json(*r.record);
    EXPECT_THAT(trace, HasSubstr(absl::StrCat("\"Tensor(", names.type, ")\""))) << names.scalar;
    EXPECT_THAT(trace, HasSubstr(absl::StrCat("\"value\": \"", names.scalar, "\"")));
  }
}

TEST(PytorchTraceTest, HasPytorchsNamesOfAllOperations) {
  Recorded r(0, 2);
  ProcessGroup& pg = *r.pg;
  const TensorView one = TensorView::meta({2}, DType::kFloat32), two = TensorView::meta({4}, DType::kFloat32);
  const std::vector<TensorView> ones = {one, one};
  const auto name_of = [&](Work work) {
    work.wait();
    const std::string trace = traces::pytorch_trace_json(*r.record);
    constexpr std::string_view kBefore = "\"collective_name\", \"type\": \"string\", \"value\": \"";
    const size_t at = trace.rfind(kBefore) + kBefore.size();
    return trace.substr(at, trace.find('"', at) - at);
  };
  EXPECT_EQ(name_of(pg.broadcast(one, 0)), "broadcast");
  EXPECT_EQ(name_of(pg.all_reduce(one)), "allreduce");
  EXPECT_EQ(name_of(pg.all_reduce_coalesced(ones)), "allreduce_coalesced");
  EXPECT_EQ(name_of(pg.reduce(one, 0)), "reduce");
  EXPECT_EQ(name_of(pg.all_gather(ones, one)), "all_gather");
  EXPECT_EQ(name_of(pg.all_gather_into_tensor(two, one)), "_allgather_base");
  EXPECT_EQ(name_of(pg.all_gather_into_tensor_coalesced({two}, {one})), "allgather_into_tensor_coalesced");
  EXPECT_EQ(name_of(pg.gather(ones, one, 0)), "gather");
  EXPECT_EQ(name_of(pg.scatter(one, ones, 0)), "scatter");
  EXPECT_EQ(name_of(pg.reduce_scatter(one, ones)), "reduce_scatter");
  EXPECT_EQ(name_of(pg.reduce_scatter_tensor(one, two)), "_reduce_scatter_base");
  EXPECT_EQ(name_of(pg.reduce_scatter_tensor_coalesced({one}, {two})), "reduce_scatter_tensor_coalesced");
  EXPECT_EQ(name_of(pg.all_to_all(ones, ones)), "all_to_all");
  EXPECT_EQ(name_of(pg.all_to_all_single(two, two)), "all_to_allv");
  EXPECT_EQ(name_of(pg.barrier()), "barrier");
  EXPECT_EQ(name_of(pg.send(one, 1)), "send");
  EXPECT_EQ(name_of(pg.recv(one, 1)), "recv");
}

}  // namespace
}  // namespace rankloom

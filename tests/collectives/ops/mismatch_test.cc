#include "collectives/ops/mismatch.h"

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/ops/op_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/error.h"
#include "tests/collectives/ops/members_agree.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

std::array<float, 64> pool;

TensorView f32(Dims sizes, int offset = 0) {
  return TensorView(pool.data() + offset, DType::kFloat32, std::move(sizes));
}
TensorView typed(DType dtype, Dims sizes) { return TensorView(pool.data(), dtype, std::move(sizes)); }

CollectiveCall call_of(OpType op, int line, std::vector<TensorView> inputs, std::vector<TensorView> outputs) {
  CollectiveCall call;
  call.op = op;
  call.inputs = TensorList(std::move(inputs));
  call.outputs = TensorList(std::move(outputs));
  call.code = {"src/train.cc", line};
  return call;
}
CollectiveCall all_reduce(int line, const TensorView& buffer, ReduceOp op = ReduceOp::kSum) {
  CollectiveCall call = call_of(OpType::kAllReduce, line, {buffer}, {buffer});
  call.reduce_op = op;
  return call;
}
CollectiveCall broadcast(int line, int root, const TensorView& buffer) {
  CollectiveCall call = call_of(OpType::kBroadcast, line, {}, {buffer});
  call.root = root;
  return call;
}
CollectiveCall barrier(int line, std::string label) {
  CollectiveCall call = call_of(OpType::kBarrier, line, {}, {});
  call.label = std::move(label);
  return call;
}
CollectiveCall coalesced(int line, std::vector<CollectiveCall> parts) {
  CollectiveCall call = call_of(OpType::kCoalesced, line, {}, {});
  call.parts = std::move(parts);
  return call;
}
CollectiveCall all_to_all_single(int line, std::vector<int64_t> in, std::vector<int64_t> out, int64_t row = 1) {
  int64_t in_rows = 0;
  int64_t out_rows = 0;
  for (const int64_t split : in) in_rows += split;
  for (const int64_t split : out) out_rows += split;
  CollectiveCall call = call_of(OpType::kAllToAllSingle, line, {f32({in_rows, row})}, {f32({out_rows, row}, 32)});
  call.in_splits = std::move(in);
  call.out_splits = std::move(out);
  return call;
}

using Calls = std::vector<const CollectiveCall*>;

std::string returned(int) { return "returned"; }

// The report for group "0", seq 3, where member i is global rank i + `shift`; `where` tells of a missing one.
std::string report(const Calls& calls, int shift = 0, bool with_last_calls = false,
                   const std::function<std::string(int)>& where = &returned) {
  const auto global = [shift](int member) { return member + shift; };
  const auto last = [with_last_calls](int member) {
    std::vector<std::string> lines;
    if (with_last_calls) lines.push_back(absl::StrCat("seq 3 as member ", member, " saw it"));
    return lines;
  };
  const absl::Status status = describe_mismatch(
      {.group = "0", .seq = 3, .global_rank = global, .last_calls = last, .whereabouts = where}, calls);
  EXPECT_EQ(error_kind(status), ErrorKind::kMismatch);
  return std::string(status.message());
}

TEST(MismatchTest, ShowsTheOperationsWithRanksAndLines) {
  const CollectiveCall a = all_reduce(40, f32({4}));
  const CollectiveCall b = broadcast(52, 0, f32({4}));
  EXPECT_EQ(report({&a, &b, &a, &a, &a, &a}),
            "group 0, seq 3: members issued different calls\n"
            "  field | value      | ranks  | call site\n"
            "  op    | all_reduce | 0, 2-5 | train.cc:40\n"
            "        | broadcast  | 1      | train.cc:52");
}

TEST(MismatchTest, ShowsEveryFieldThatDiffersAndNoOther) {
  const CollectiveCall a = all_reduce(40, f32({2, 3}));
  CollectiveCall b = all_reduce(41, typed(DType::kInt64, {5}), ReduceOp::kMax);
  b.order = {.kind = ReduceOp::Order::Kind::kSeeded, .seed = 7};
  EXPECT_EQ(report({&a, &b}),
            "group 0, seq 3: members issued different calls\n"
            "  field              | value     | ranks | call site\n"
            "  reduce op          | sum       | 0     | train.cc:40\n"
            "                     | max       | 1     | train.cc:41\n"
            "  order of reduction | rank      | 0     | train.cc:40\n"
            "                     | seeded(7) | 1     | train.cc:41\n"
            "  dtype              | float32   | 0     | train.cc:40\n"
            "                     | int64     | 1     | train.cc:41\n"
            "  shape              | [2, 3]    | 0     | train.cc:40\n"
            "                     | [5]       | 1     | train.cc:41");
}

TEST(MismatchTest, ShowsHowAReductionIsRounded) {
  const CollectiveCall a = all_reduce(40, f32({4}));
  CollectiveCall b = all_reduce(41, f32({4}));
  b.order.accumulate_in_float = false;
  CollectiveCall c = all_reduce(42, f32({4}));
  c.order.seed = 3;
  EXPECT_THAT(report({&a, &b, &c}),
              EndsWith("  order of reduction | rank                       | 0     | train.cc:40\n"
                       "                     | rank, rounded at each step | 1     | train.cc:41\n"
                       "                     | rank(3)                    | 2     | train.cc:42"));
}

TEST(MismatchTest, GroupsRanksFieldByField) {
  const CollectiveCall a = all_reduce(1, f32({4}));
  const CollectiveCall b = all_reduce(2, f32({5}));
  const CollectiveCall c = all_reduce(3, typed(DType::kInt32, {5}));
  EXPECT_EQ(report({&a, &b, &c}),
            "group 0, seq 3: members issued different calls\n"
            "  field | value   | ranks | call site\n"
            "  dtype | float32 | 0-1   | train.cc:1, train.cc:2\n"
            "        | int32   | 2     | train.cc:3\n"
            "  shape | [4]     | 0     | train.cc:1\n"
            "        | [5]     | 1-2   | train.cc:2, train.cc:3");
}

TEST(MismatchTest, ShowsRoots) {
  const CollectiveCall a = broadcast(7, 0, f32({4}));
  const CollectiveCall b = broadcast(7, 1, f32({4}));
  EXPECT_EQ(report({&a, &b}),
            "group 0, seq 3: members issued different calls\n"
            "  field | value | ranks | call site\n"
            "  root  | 0     | 0     | train.cc:7\n"
            "        | 1     | 1     | train.cc:7");
}

TEST(MismatchTest, GivesGlobalRanksInASubgroup) {
  const CollectiveCall a = broadcast(7, 0, f32({4}));
  const CollectiveCall b = broadcast(7, 1, f32({4}));
  EXPECT_EQ(report({&a, &b, &b, &b}, /*shift=*/4),
            "group 0, seq 3: members issued different calls\n"
            "  field | value                   | ranks | call site\n"
            "  root  | 0 (rank 4 of the world) | 4     | train.cc:7\n"
            "        | 1 (rank 5 of the world) | 5-7   | train.cc:7");
}

TEST(MismatchTest, ShowsLabels) {
  const CollectiveCall a = barrier(1, "after load");
  const CollectiveCall b = barrier(2, "");
  EXPECT_EQ(report({&a, &b}),
            "group 0, seq 3: members issued different calls\n"
            "  field | value        | ranks | call site\n"
            "  label | \"after load\" | 0     | train.cc:1\n"
            "        | none         | 1     | train.cc:2");
}

TEST(MismatchTest, ShowsDevices) {
  const CollectiveCall a = all_reduce(1, f32({4}));
  const CollectiveCall b = all_reduce(2, TensorView::meta({4}, DType::kFloat32));
  EXPECT_THAT(report({&a, &b}),
              HasSubstr("  device | cpu   | 0     | train.cc:1\n         | meta  | 1     | train.cc:2"));
}

TEST(MismatchTest, ShowsShapesOfLists) {
  const CollectiveCall a = call_of(OpType::kReduceScatter, 1, {f32({2}), f32({1}, 2)}, {f32({2}, 8)});
  const CollectiveCall b = call_of(OpType::kReduceScatter, 2, {f32({2}), f32({2}, 2)}, {f32({2}, 8)});
  EXPECT_THAT(report({&a, &b}),
              HasSubstr("  shape | [2], [1] | 0     | train.cc:1\n        | [2], [2] | 1     | train.cc:2"));
}

TEST(MismatchTest, CountsDtypesOfLists) {
  const auto call = [](int line, DType last) {
    return call_of(OpType::kReduceScatter, line, {f32({1}), f32({1}), typed(last, {1})}, {f32({1})});
  };
  const CollectiveCall a = call(1, DType::kInt64);
  const CollectiveCall b = call(2, DType::kFloat32);
  EXPECT_EQ(report({&a, &b}),
            "group 0, seq 3: members issued different calls\n"
            "  field | value                  | ranks | call site\n"
            "  dtype | 2 x float32, 1 x int64 | 0     | train.cc:1\n"
            "        | 3 x float32            | 1     | train.cc:2");
}

// Lists that differ behind what is shown are not shown as equal.
TEST(MismatchTest, CountsWhatItLeavesOutOfLists) {
  const auto tensors = [](int line, size_t count) {
    CollectiveCall call = call_of(OpType::kAllReduceCoalesced, line, std::vector<TensorView>(count, f32({2})), {});
    call.outputs = call.inputs;
    return call;
  };
  const CollectiveCall a = tensors(1, 8);
  const CollectiveCall b = tensors(2, 9);
  EXPECT_THAT(report({&a, &b}), AllOf(HasSubstr("| [2], [2], [2], [2], [2], [2], [2], [2] "),
                                      HasSubstr("| [2], [2], [2], [2], [2], [2], [2], [2], ... (9 tensors) | 1 ")));
  const CollectiveCall c = coalesced(3, std::vector<CollectiveCall>(8, barrier(1, "")));
  const CollectiveCall d = coalesced(4, std::vector<CollectiveCall>(9, barrier(1, "")));
  EXPECT_THAT(report({&c, &d}), AllOf(Not(HasSubstr("(8 calls)")), HasSubstr("barrier, barrier, ... (9 calls) | 1 ")));
}

TEST(MismatchTest, ShowsThreeSitesOfAValue) {
  const auto sites_of = [](int count) {
    std::vector<CollectiveCall> calls;
    for (int line = 1; line <= count; ++line) calls.push_back(all_reduce(line, f32({4})));
    calls.push_back(all_reduce(9, f32({5})));
    Calls by_rank;
    for (const CollectiveCall& call : calls) by_rank.push_back(&call);
    return report(by_rank);
  };
  EXPECT_THAT(sites_of(3), HasSubstr(" | train.cc:1, train.cc:2, train.cc:3\n"));
  EXPECT_THAT(sites_of(4), HasSubstr(" | train.cc:1, train.cc:2, train.cc:3, ...\n"));
}

TEST(MismatchTest, SaysWhenALineIsUnknown) {
  CollectiveCall a = all_reduce(1, f32({4}));
  CollectiveCall b = all_reduce(2, f32({5}));
  a.code = {};
  EXPECT_THAT(report({&a, &b}), HasSubstr("[4]   | 0     | unknown"));
}

TEST(MismatchTest, NamesThePairWhoseSplitsDiffer) {
  const CollectiveCall a = all_to_all_single(10, {1, 3}, {1, 1});
  const CollectiveCall b = all_to_all_single(20, {1, 1}, {2, 1});
  EXPECT_EQ(report({&a, &b}),
            "group 0, seq 3: members issued different calls\n"
            "  rank 0 sends 3 rows to rank 1, which expects 2 rows (train.cc:10, train.cc:20)");
}

TEST(MismatchTest, NamesThePairWhoseRowsDiffer) {
  const CollectiveCall a = all_to_all_single(10, {0, 3}, {0, 0}, 2);
  const CollectiveCall b = all_to_all_single(20, {0, 1}, {3, 1}, 4);
  EXPECT_THAT(report({&a, &b}),
              EndsWith("\n  rank 0 sends 3 rows of 2 to rank 1, which expects 3 rows of 4 (train.cc:10, train.cc:20)"));
}

TEST(MismatchTest, ShowsShapesOfAnAllGatherWhosePairsDoNotFit) {
  const auto call = [](int line, int own, int first, int second) {
    return call_of(OpType::kAllGather, line, {f32({own})}, {f32({first}, 8), f32({second}, 16)});
  };
  const CollectiveCall a = call(10, 4, 4, 4);
  const CollectiveCall b = call(20, 5, 4, 5);
  EXPECT_EQ(report({&a, &b}),
            "group 0, seq 3: members issued different calls\n"
            "  rank 1 sends 5 elements to rank 0, which expects 4 elements (train.cc:20, train.cc:10)\n"
            "  field | value | ranks | call site\n"
            "  shape | [4]   | 0     | train.cc:10\n"
            "        | [5]   | 1     | train.cc:20");
}

TEST(MismatchTest, CountsPairsBeyondTheFirst) {
  std::vector<CollectiveCall> calls;
  for (int r = 0; r < 4; ++r) {
    std::vector<TensorView> inputs(4, f32({1}));
    std::vector<TensorView> outputs;
    for (int i = 0; i < 4; ++i) outputs.push_back(f32({2}, 8 + 2 * i));
    calls.push_back(call_of(OpType::kAllToAll, 1, inputs, outputs));
  }
  EXPECT_THAT(report({&calls[0], &calls[1], &calls[2], &calls[3]}), EndsWith("\n  and 8 more pairs"));
}

TEST(MismatchTest, ReportsMissingRanksBesideTheDifference) {
  const CollectiveCall a = all_reduce(1, f32({4}));
  const CollectiveCall b = all_reduce(2, f32({5}));
  const auto global = [](int member) { return member; };
  const auto last = [](int) { return std::vector<std::string>{}; };
  const auto where = [](int member) {
    return std::string(member == 4 ? "waits in recv seq 0 [group 0, ring.cc:7]" : "returned");
  };
  const absl::Status status =
      describe_mismatch({.group = "dp", .seq = 9, .global_rank = global, .last_calls = last, .whereabouts = where},
                        Calls{&a, nullptr, nullptr, &b, nullptr, nullptr});
  EXPECT_EQ(std::string(status.message()),
            "group dp, seq 9: members issued different calls\n"
            "  field | value | ranks | call site\n"
            "  shape | [4]   | 0     | train.cc:1\n"
            "        | [5]   | 3     | train.cc:2\n"
            "missing:\n"
            "  ranks 1-2, 5: returned\n"
            "  rank 4: waits in recv seq 0 [group 0, ring.cc:7]");
}

TEST(MismatchTest, SaysThatMembersAreMissingWhereTheOthersAgree) {
  const CollectiveCall a = all_reduce(1, f32({4}));
  EXPECT_EQ(report({&a, nullptr, &a}), "group 0, seq 3: 1 of 3 members did not arrive\nmissing:\n  rank 1: returned");
}

TEST(MismatchTest, CutsManyPlacesOfMissingRanks) {
  const CollectiveCall a = all_reduce(1, f32({4}));
  const auto missing = [&a](size_t members) {
    Calls calls(members, nullptr);
    calls[0] = &a;
    return report(calls, 0, false, [](int member) { return absl::StrCat("place ", member); });
  };
  EXPECT_THAT(missing(17), EndsWith("\n  rank 15: place 15\n  rank 16: place 16"));
  EXPECT_THAT(missing(19), EndsWith("\n  rank 16: place 16\n  ranks 17-18: elsewhere"));
}

TEST(MismatchTest, ListsLastCallsOfOneRankOfEachCall) {
  const CollectiveCall a = all_reduce(1, f32({4}));
  const CollectiveCall b = all_reduce(2, f32({5}));
  EXPECT_THAT(
      report({&a, &a, &b, &b}, /*shift=*/10, /*with_last_calls=*/true),
      EndsWith(
          "\nlast calls of rank 10:\n  seq 3 as member 0 saw it\nlast calls of rank 12:\n  seq 3 as member 2 saw it"));
}

TEST(MismatchTest, ListsLastCallsOfBothRanksOfAPair) {
  const CollectiveCall a = all_to_all_single(10, {0, 0, 0}, {0, 0, 0});
  const CollectiveCall b = all_to_all_single(20, {0, 0, 1}, {0, 0, 0});
  const std::string text = report({&a, &b, &a}, 0, /*with_last_calls=*/true);
  EXPECT_THAT(text, HasSubstr("\nlast calls of rank 1:"));
  EXPECT_THAT(text, HasSubstr("\nlast calls of rank 2:"));
  EXPECT_THAT(text, Not(HasSubstr("last calls of rank 0:")));
}

TEST(MismatchTest, KeepsTheLastFiveCalls) {
  const CollectiveCall a = all_reduce(1, f32({4}));
  const CollectiveCall b = all_reduce(2, f32({5}));
  const auto global = [](int member) { return member; };
  const auto last = [](int member) {
    std::vector<std::string> lines;
    for (int i = 0; member == 0 && i < 7; ++i) lines.push_back(absl::StrCat("call ", i));
    return lines;
  };
  const auto where = [](int) { return std::string(); };
  const absl::Status status = describe_mismatch(
      {.group = "0", .seq = 7, .global_rank = global, .last_calls = last, .whereabouts = where}, Calls{&a, &b});
  EXPECT_THAT(std::string(status.message()),
              EndsWith("last calls of rank 0:\n  call 2\n  call 3\n  call 4\n  call 5\n  call 6"));
}

TEST(MismatchTest, NamesTheCallWithinACoalescedOne) {
  const CollectiveCall a = coalesced(9, {all_reduce(1, f32({4})), broadcast(2, 0, f32({4}))});
  const CollectiveCall b = coalesced(9, {all_reduce(1, f32({4})), broadcast(3, 1, f32({4}))});
  EXPECT_EQ(report({&a, &b}),
            "group 0, seq 3: members issued different calls\n"
            "  field       | value | ranks | call site\n"
            "  call 1 root | 0     | 0     | train.cc:2\n"
            "              | 1     | 1     | train.cc:3");
}

TEST(MismatchTest, ListsCoalescedCallsOfDifferentLength) {
  const CollectiveCall a = coalesced(8, {all_reduce(1, f32({4})), broadcast(2, 0, f32({4}))});
  const CollectiveCall b = coalesced(9, {all_reduce(1, f32({4}))});
  EXPECT_EQ(report({&a, &b}),
            "group 0, seq 3: members issued different calls\n"
            "  field | value                 | ranks | call site\n"
            "  calls | all_reduce, broadcast | 0     | train.cc:8\n"
            "        | all_reduce            | 1     | train.cc:9");
}

TEST(MismatchTest, ComparesASendWithItsRecv) {
  CollectiveCall send = call_of(OpType::kSend, 5, {f32({4})}, {});
  CollectiveCall recv = call_of(OpType::kRecv, 6, {}, {typed(DType::kInt32, {3})});
  send.tag = recv.tag = 2;
  EXPECT_EQ(report({&send, &recv}, /*shift=*/4),
            "group 0, send from rank 4 to rank 5, tag 2, seq 3: sender and receiver issued different calls\n"
            "  field | value   | ranks | call site\n"
            "  dtype | float32 | 4     | train.cc:5\n"
            "        | int32   | 5     | train.cc:6\n"
            "  shape | [4]     | 4     | train.cc:5\n"
            "        | [3]     | 5     | train.cc:6");
}

TEST(MismatchTest, CutsManyValues) {
  std::vector<CollectiveCall> calls;
  for (int r = 0; r < 12; ++r) calls.push_back(all_reduce(1, f32({r + 1})));
  Calls by_rank;
  for (const CollectiveCall& call : calls) by_rank.push_back(&call);
  EXPECT_THAT(report(by_rank),
              EndsWith("[8]          | 7     | train.cc:1\n        | other values | 8-11  | train.cc:1"));
}

TEST(MismatchTest, AgreesWithTheFastComparison) {
  // Each mismatch that members_agree() refuses has a line in the table or a pair, and the other way round.
  std::vector<CollectiveCall> calls = {all_reduce(1, f32({4})),
                                       all_reduce(1, f32({4}), ReduceOp::kMin),
                                       all_reduce(1, f32({4}), ReduceOp::premul_sum(0.5)),
                                       all_reduce(1, f32({4}), ReduceOp::premul_sum(0.25)),
                                       all_reduce(1, f32({2, 2})),
                                       broadcast(1, 0, f32({4})),
                                       broadcast(1, 1, f32({4})),
                                       barrier(1, ""),
                                       barrier(1, "x"),
                                       all_to_all_single(1, {1, 1}, {1, 1}),
                                       all_to_all_single(1, {1, 2}, {1, 2}),
                                       coalesced(1, {all_reduce(1, f32({4}))}),
                                       coalesced(1, {all_reduce(1, f32({5}))})};
  for (const CollectiveCall& a : calls) {
    for (const CollectiveCall& b : calls) {
      const bool reported = report({&a, &b}).find("issued different calls") != std::string::npos;
      EXPECT_EQ(reported, !members_agree(Calls{&a, &b}));
    }
  }
}

}  // namespace
}  // namespace rankloom

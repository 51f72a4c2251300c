#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "collectives/ops/op_table.h"
#include "collectives/records/call_record.h"
#include "gmock/gmock.h"

namespace rankloom {

// How GoogleTest prints them.
inline void PrintTo(const CallRecord& record, std::ostream* out) { *out << record.text(); }
inline void PrintTo(const RecordedCall& call, std::ostream* out) { *out << call.name << " seq " << call.seq; }

// So many calls of an operation on a group: its mesh dimension ("tp"), name ("0.1") or description.
struct ExpectedCalls {
  int64_t count;
  OpType op;
  std::string group;
};

inline void PrintTo(const ExpectedCalls& expected, std::ostream* out) {
  *out << expected.count << " x " << op_row(expected.op).name << " on " << expected.group;
}

// A CallRecord that holds so many calls of this operation on this group, whatever else it holds:
//   EXPECT_THAT(*record, Calls(3, OpType::kAllGatherIntoTensor, "tp"));
MATCHER_P3(Calls, count, op, group,
           std::string(negation ? "has not " : "has ") +
               testing::PrintToString(ExpectedCalls{static_cast<int64_t>(count), op, group})) {
  const int64_t have = arg.calls(op, group);
  *result_listener << "which has " << have << " such calls of " << arg.calls();
  return have == count;
}

// A CallRecord of exactly these calls and no others, in any order:
//   EXPECT_THAT(*record, CallsExactly({{3, OpType::kAllGatherIntoTensor, "tp"}, {1, OpType::kReduceScatterTensor, "dp"}}));
inline testing::Matcher<const CallRecord&> CallsExactly(std::vector<ExpectedCalls> expected) {
  class Exactly {
   public:
    using is_gtest_matcher = void;
    explicit Exactly(std::vector<ExpectedCalls> expected) : expected_(std::move(expected)) {}
    bool MatchAndExplain(const CallRecord& record, testing::MatchResultListener* listener) const {
      bool equal = true;
      int64_t sum = 0;
      for (const ExpectedCalls& one : expected_) {
        const int64_t have = record.calls(one.op, one.group);
        sum += one.count;
        if (have == one.count) continue;
        *listener << (equal ? "which has " : ", ") << have << " x " << op_row(one.op).name << " on " << one.group;
        equal = false;
      }
      if (equal && sum != record.calls()) {
        *listener << "which has " << record.calls() << " calls, want " << sum;
        equal = false;
      }
      if (!equal) *listener << "; it is\n" << record.text();
      return equal;
    }
    void DescribeTo(std::ostream* out) const { describe(out, "has exactly"); }
    void DescribeNegationTo(std::ostream* out) const { describe(out, "has not exactly"); }

   private:
    void describe(std::ostream* out, const char* verb) const {
      *out << verb;
      for (size_t i = 0; i < expected_.size(); ++i)
        *out << (i == 0 ? " " : ", ") << testing::PrintToString(expected_[i]);
      if (expected_.empty()) *out << " no calls";
    }

    std::vector<ExpectedCalls> expected_;
  };
  return Exactly(std::move(expected));
}

}  // namespace rankloom

// The end of a member's wait for a call that ends beside it.

#include "collectives/work/member_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rankloom/rankloom.h"
#include "sim/base/dist_error.h"
#include "tests/error_of.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

// A call that another thread completes just after a wait for it has found its time over.
class CompletedAtTheDeadline final : public MemberWork {
 public:
  CompletedAtTheDeadline(RankContext& rank, absl::Status end)
      : MemberWork(&state_of(rank), call(), Deadline::kNever), end_(std::move(end)) {}

  const char* op() const override { return "all_reduce"; }
  std::string what(bool /*numbered*/) const override { return "all_reduce seq 1"; }
  void append_ranks(std::vector<int>* /*ranks*/) const override {}
  bool take_back(const Withdrawal& /*why*/, const absl::Status& /*ended*/) override {
    taken_back_ = true;
    return false;
  }
  bool taken_back() const { return taken_back_; }

 private:
  static CollectiveCall call() {
    CollectiveCall call;
    call.op = OpType::kAllReduce;
    call.seq = 1;
    call.way.wait_until_ns = 1;
    return call;
  }
  void wait_longer(absl::Duration* /*timeout*/, bool /*timeout_is_default*/, CodeSite /*code*/,
                   absl::Status* waited) override {
    EXPECT_EQ(error_kind(*waited), ErrorKind::kTimeout);
    complete(end_);
  }

  const absl::Status end_;
  bool taken_back_ = false;
};

class MemberWorkTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, MemberWorkTest, every_world(), world_name);

// The other members had that end, too: a Timeout would be this one's alone.
TEST_P(MemberWorkTest, AWaitEndsAsTheCallThatEndedWithIt) {
  run(1, [](RankContext& rank) {
    for (const std::string end : {"", "members issued different calls"}) {
      const auto state = std::make_shared<CompletedAtTheDeadline>(
          rank, end.empty() ? absl::OkStatus() : make_error(ErrorKind::kMismatch, end));
      Work work = WorkState::handle(state);
      EXPECT_EQ(error_of([&] { work.wait(absl::Microseconds(10)); }), end.empty() ? "no error" : "Mismatch: " + end);
      EXPECT_FALSE(state->taken_back());
    }
  });
}

}  // namespace
}  // namespace rankloom

// The end of a member's wait for a call that ends beside it.

#include "collectives/work/member_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
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
  void wait_longer(absl::Duration* /*timeout*/, CodeSite /*code*/, absl::Status* waited) override {
    EXPECT_EQ(error_kind(*waited), ErrorKind::kTimeout);
    complete(end_);
  }

  const absl::Status end_;
  bool taken_back_ = false;
};

class MemberWorkTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, MemberWorkTest, every_world(), world_name);

// The cause of an abort may be a Timeout, which is not that of the wait.
TEST_P(MemberWorkTest, AWaitOnAConditionThatAnAbortEndsThrowsItsCause) {
  if (!deterministic()) GTEST_SKIP() << "a rank that polls is no end of a run without a schedule";
  WorldOptions world = options(2);
  world.stuck_after = absl::Milliseconds(200);
  bool returned = false;
  const RunReport report = run_to_failure(world, [&](RankContext& rank) {
    if (rank.rank() == 1) {
      const Promise never(&rank.world().scheduler(), 1);
      Work work = never.work();
      while (!work.is_completed()) rank.yield();
      return;
    }
    Mutex mu;
    CondVar changed;
    const MutexLock lock(&mu);
    changed.wait_for(&mu, absl::InfiniteDuration(), [] { return false; });
    returned = true;
  });
  EXPECT_FALSE(returned);
  EXPECT_EQ(error_kind(report.cause), ErrorKind::kTimeout) << report.text();
}

// The watchdog counts the steps of such a thread beside those of the ranks.
TEST_P(MemberWorkTest, AThreadMayWaitForAWorkOfNoRankWhileTheWatchdogLooks) {
  if (deterministic()) GTEST_SKIP() << "the watchdog sums up steps by rank in the free gear";
  WorldOptions world = options(2);
  world.stall = absl::Milliseconds(20);
  world.on_stall = [](const std::string&) {};
  run(world, [](RankContext& rank) {
    if (rank.rank() == 1) return;
    Promise promise(&rank.world().scheduler());
    std::thread other([work = promise.work()]() mutable { work.wait(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_NE(rank.world().describe(), "");
    promise.set_value();
    other.join();
  });
}

// Callbacks that complete works with callbacks go on a stack of their own when they are too many.
TEST_P(MemberWorkTest, AnExceptionBelowManyCallbacksIsTheRanksFailure) {
  const RunReport report = run_to_failure(1, [](RankContext& rank) {
    std::vector<Promise> works(1'200);
    for (size_t i = 0; i + 1 < works.size(); ++i)
      works[i].work().then([next = works[i + 1]](const absl::Status&) mutable { next.set_value(); });
    std::atomic<bool> called = false;
    works.back().work().then([&](const absl::Status&) {
      called = true;
      throw std::runtime_error("at the bottom");
    });
    works[0].set_value();
    while (!called) rank.yield();
    rank.sleep_for(absl::Milliseconds(1));
  });
  EXPECT_THAT(report.text(), testing::HasSubstr("at the bottom"));
}

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

TEST(PromiseTest, OneThatWasMovedFromEndsTheSameWork) {
  Promise promise;
  const Promise moved = std::move(promise);
  promise.set_value();  // NOLINT(bugprone-use-after-move): that is what is tried
  EXPECT_TRUE(moved.work().is_success());
}

}  // namespace
}  // namespace rankloom

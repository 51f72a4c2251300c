// What becomes of works that nobody waits in when the world is aborted.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "rankloom/rankloom.h"

namespace rankloom {
namespace {

using ::testing::HasSubstr;

class AbortTest : public testing::TestWithParam<Schedule::Kind> {
 protected:
  static Schedule schedule() { return GetParam() == Schedule::Kind::kFree ? Schedule::free() : Schedule::seeded(3); }
};
INSTANTIATE_TEST_SUITE_P(Gears, AbortTest, testing::Values(Schedule::Kind::kFree, Schedule::Kind::kSeeded),
                         [](const auto& info) { return info.param == Schedule::Kind::kFree ? "free" : "seeded"; });

TEST_P(AbortTest, CompletesTheWorkThatOnlyACallbackWaitsFor) {
  absl::Status told;
  const RunReport report = run_world({.world_size = 2, .schedule = schedule()}, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) {
      rank.store().wait({"issued"});
      throw std::runtime_error("rank 1 gives up");
    }
    auto x = std::make_shared<std::vector<float>>(4, 1.0F);
    Work work = pg->all_reduce(*x, ReduceOp::kSum, {.keep_alive = x});
    work.then([&told](const absl::Status& status) { told = status; });
    rank.store().set("issued", "1");
  });
  EXPECT_FALSE(report.ok());
  EXPECT_THAT(std::string(told.message()), HasSubstr("rank 1 failed: rank 1 gives up"));
}

TEST(Whereabouts, AreAppendedToADeadlock) {
  WorldOptions options{.world_size = 2};
  options.whereabouts = [] { return std::string("stack of rank 0: here"); };
  const RunReport report = run_world(std::move(options), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) pg->barrier().wait();
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 0 waits in barrier seq 1"));
  EXPECT_THAT(report.text(), HasSubstr("stack of rank 0: here"));
}

}  // namespace
}  // namespace rankloom

// The callbacks that wait_any() leaves behind.
#include <atomic>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/work/work_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/error.h"
#include "rankloom/process_group.h"
#include "rankloom/world.h"
#include "tests/collectives/told.h"
#include "tests/world/every_world.h"

namespace rankloom {
namespace {

using internal::WorkState;

class WaitAnyTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, WaitAnyTest, every_world(), world_name);

size_t waiting_callbacks(const std::vector<Work>& works) {
  size_t all = 0;
  for (const Work& work : works) all += WorkState::of(work)->waiting_callbacks();
  return all;
}

// One by one, in the order in which they are done: a loop of n turns would otherwise leave n callbacks at the last.
TEST_P(WaitAnyTest, LeavesNoCallbacksAtTheWorksThatAreNotDone) {
  constexpr int kSends = 12;
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) {
      for (int tag = kSends - 1; tag >= 0; --tag) {
        rank.store().wait({"turn " + std::to_string(tag)});
        const std::vector<int> mine = {tag};
        pg->send(mine, 0, tag).wait();
      }
      return;
    }
    std::vector<std::vector<int>> got(kSends, std::vector<int>(1));
    std::vector<Work> works;
    for (int tag = 0; tag < kSends; ++tag) works.push_back(pg->recv(got[static_cast<size_t>(tag)], 1, tag));
    const std::vector<Work> all = works;
    for (int left = kSends; left > 0; --left) {
      rank.store().set("turn " + std::to_string(left - 1), "1");
      const size_t done = wait_any(works);
      EXPECT_EQ(done, static_cast<size_t>(left - 1));
      EXPECT_EQ(got[done][0], left - 1);
      EXPECT_EQ(waiting_callbacks(all), 0u);
      works.pop_back();
    }
  });
}

TEST_P(WaitAnyTest, LeavesNoCallbacksWhereItEndsByAnAbort) {
  size_t left = 99;
  const RunReport report = run_to_failure(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) {
      rank.store().wait({"made"});
      rank.world().abort("enough of it");
      return;
    }
    std::vector<int> a(1), b(1);
    std::vector<Work> works;
    works.push_back(pg->recv(a, 1, 1));
    works.push_back(pg->recv(b, 1, 2));
    rank.store().set("made", "1");
    try {
      wait_any(works);  // the abort may have ended one of them
    } catch (const DistError&) {
    }
    left = waiting_callbacks(works);
  });
  EXPECT_EQ(left, 0u) << report.text();
}

// A program's own callbacks are its own.
// An abort ends the two calls one after another, and rank 0 looks in between: whichever order that is, one of the lists
// has the call that ends first in second place.
TEST_P(WaitAnyTest, FindsTheFirstOfTheCallsThatFailTogether) {
  if (deterministic()) GTEST_SKIP() << "a failure is one step where a schedule decides";
  for (const bool send_first : {true, false}) {
    size_t done = 9;
    std::atomic<int> ending = 0;
    (void)run_world(options(2), [&](RankContext& rank) {
      auto pg = init_process_group(rank);
      if (rank.rank() == 1) {
        rank.store().wait({"issued"});
        return pg->abort("enough of it");
      }
      std::vector<float> x(1, 1);
      std::vector<float> y(1, 1);
      std::vector<Work> works;
      if (send_first) works.push_back(pg->send(x, 1));
      works.push_back(pg->recv(y, 1));
      if (!send_first) works.push_back(pg->send(x, 1));
      for (const Work& work : works) {
        WorkState::of(work)->when_done(told([&ending](const absl::Status&) {
          ++ending;
          absl::SleepFor(absl::Milliseconds(50));
        }));
      }
      rank.store().set("issued", "1");
      while (ending < 2) absl::SleepFor(absl::Milliseconds(1));
      done = wait_any(works);
    });
    EXPECT_EQ(done, 0U);
  }
}

TEST_P(WaitAnyTest, LeavesTheCallbacksOfTheProgram) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const std::vector<int> mine = {7};
    if (rank.rank() == 1) {
      pg->send(mine, 0, 1).wait();
      rank.store().wait({"asked"});
      pg->send(mine, 0, 2).wait();
      return;
    }
    std::vector<int> a(1), b(1);
    std::vector<Work> works;
    works.push_back(pg->recv(a, 1, 1));
    works.push_back(pg->recv(b, 1, 2));
    works[1].then([&rank](const absl::Status& status) { rank.store().set("told", status.ok() ? "well" : "badly"); });
    EXPECT_EQ(wait_any(works), 0u);
    EXPECT_EQ(WorkState::of(works[1])->waiting_callbacks(), 1u);
    rank.store().set("asked", "1");
    EXPECT_EQ(rank.store().get("told"), "well");
  });
}

// A rank that is stuck there says in what.
TEST_P(WaitAnyTest, NamesItsFirstWork) {
  if (!deterministic()) GTEST_SKIP() << "a free run tells of the ranks that it finds";
  for (const bool both : {true, false}) {
    const RunReport report = run_to_failure(2, [both](RankContext& rank) {
      auto pg = init_process_group(rank);
      if (rank.rank() == 1) return;
      std::vector<int> a(1), b(1);
      std::vector<Work> works;
      works.push_back(pg->recv(a, 1, 1));
      if (both) works.push_back(pg->recv(b, 1, 2));
      wait_any(works);
    });
    EXPECT_THAT(report.text(), testing::HasSubstr(absl::StrCat("rank 0 waits in wait_any of ",
                                                               both ? "2 works" : "1 work", both ? ", the first" : "",
                                                               ": recv seq 1 [group 0, wait_any_test.cc:")));
  }
}

}  // namespace
}  // namespace rankloom

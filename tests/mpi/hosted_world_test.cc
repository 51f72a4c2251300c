// Worlds whose processes have several ranks end with the reports of one process: those that tell where ranks are.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "collectives/mpi/mpi_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/mpi.h"
#include "rankloom/store.h"
#include "tests/error_of.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

using Program = std::function<void(RankContext&)>;

int ranks_of_job() { return ranks_per_process * processes_of_job(); }

std::string report_of_job(WorldOptions options, const Program& program) {
  return run_mpi_world(std::move(options), ranks_per_process, program).text();
}

// Without what differs by design: the command that repeats the run, and the store's kind.
std::string report_of_one_process(WorldOptions options, const Program& program) {
  options.world_size = ranks_of_job();
  options.engine = EngineKind::kFibers;
  options.schedule = Schedule::fifo();
  const std::string text = run_world(std::move(options), program).text();
  return text.substr(0, text.find("\nschedule fifo"));
}

// In every process.
void expect_same_report(const WorldOptions& options, const Program& program, const char* part) {
  const std::string job = absl::StrReplaceAll(report_of_job(options, program), {{"MpiStore", "HashStore"}});
  EXPECT_EQ(job, report_of_one_process(options, program));
  EXPECT_THAT(job, HasSubstr(part));
}

TEST(HostedWorldTest, AReportNamesTheKeysAndTheLinesOfRanksElsewhere) {
  expect_same_report(
      {},
      [](RankContext& rank) {
        Store& store = rank.store();
        if (rank.rank() == 0) store.set("there", "x");
        if (rank.rank() == 1) store.get("own");
        if (rank.rank() == rank.world_size() - 2) {
          PrefixStore prefixed("job 7", std::shared_ptr<Store>(&store, [](Store*) {}));
          prefixed.get("mine");
        }
        if (rank.rank() == rank.world_size() - 1) store.wait({"never", "there", "later"});
      },
      " waits in store wait keys \"never\", \"later\" [hosted_world_test.cc:");
}

// A process has tasks of its own, of no rank; and nobody but the launcher can run the job again.
TEST(HostedWorldTest, ADescriptionNamesRanksOnly) {
  std::string described;
  const RunReport report = run_mpi_world({}, ranks_per_process, [&described](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() % ranks_per_process == 0) {
      rank.sleep_for(absl::Milliseconds(1));
      described = rank.world().describe();
    }
    pg->barrier().wait();
  });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_THAT(described, HasSubstr(" waits in barrier seq 1"));
  EXPECT_THAT(described, Not(HasSubstr("rank -1")));
  EXPECT_THAT(described, Not(HasSubstr("run it again")));
}

TEST(HostedWorldTest, AReportNamesTheBarrierOfTheStoreAndWhoIsMissing) {
  expect_same_report(
      {},
      [](RankContext& rank) {
        if (rank.rank() != 1) store_barrier(rank.store(), "epoch", rank.rank(), rank.world_size());
      },
      " wait in store_barrier \"epoch\" for rank 1 (returned) [hosted_world_test.cc:");
}

TEST(HostedWorldTest, ATimeoutOfTheStoreTellsWhatRanksOfAllProcessesWaitFor) {
  for (const bool last : {true, false}) {
    expect_same_report(
        {},
        [last](RankContext& rank) {
          auto pg = init_process_group(rank);
          std::vector<float> x(3);
          const int gives_up = last ? rank.world_size() - 1 : 0;
          if (rank.rank() == 1) rank.store().get("own");
          if (rank.rank() == 2) rank.sleep_for(absl::Hours(1));
          if (rank.rank() == gives_up) rank.store().wait({"never"}, absl::Seconds(2));
          pg->all_reduce(x).wait();
        },
        "\n  rank 1 waits in store get key \"own\" [hosted_world_test.cc:");
  }
}

TEST(HostedWorldTest, ATimeoutOfABarrierOfTheStoreTellsWhoIsMissing) {
  expect_same_report(
      {},
      [](RankContext& rank) {
        const int last = rank.world_size() - 1;
        if (rank.rank() == 1) rank.sleep_for(absl::Hours(1));
        const auto timeout = absl::Seconds(rank.rank() == last ? 2 : 100);
        store_barrier(rank.store(), "epoch", rank.rank(), rank.world_size(), timeout);
      },
      " wait in store_barrier \"epoch\" for rank 1 [hosted_world_test.cc:");
}

TEST(HostedWorldTest, ATimeoutTellsWhereARankElsewhereIs) {
  for (const bool first_waits : {true, false}) {
    expect_same_report(
        {},
        [first_waits](RankContext& rank) {
          auto pg = init_process_group(rank);
          std::vector<float> x(3);
          pg->barrier().wait();
          const int last = rank.world_size() - 1;
          const int late = first_waits ? last : 0;
          if (rank.rank() == late) rank.store().wait({"never"}, absl::Hours(100));
          const auto timeout = absl::Seconds(rank.rank() == last - late ? 5 : 100);
          pg->all_reduce(x, ReduceOp::kSum, {.timeout = timeout}).wait();
        },
        "\n  last call of rank ");
  }
}

TEST(HostedWorldTest, ATimeoutOfAMessageTellsWhereItsRankIs) {
  expect_same_report(
      {},
      [](RankContext& rank) {
        auto pg = init_process_group(rank);
        std::vector<float> x(3);
        const int last = rank.world_size() - 1;
        if (rank.rank() == 0) pg->send(x, last, 8).wait();
        if (rank.rank() == last) {
          pg->recv(x, 0, 8).wait();
          rank.sleep_for(absl::Hours(1));
        }
        if (rank.rank() == 0) pg->recv(x, last, 5, {.timeout = absl::Seconds(9)}).wait();
      },
      "\n  last point of rank ");
}

TEST(HostedWorldTest, ACaughtTimeoutHasTheTextOfOneProcess) {
  std::string caught;
  const Program program = [&caught](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(3);
    pg->barrier().wait();
    const int last = rank.world_size() - 1;
    if (rank.rank() == last) return rank.sleep_for(absl::Seconds(100));
    if (rank.rank() == 0) caught = error_of([&] { pg->recv(x, last, 5).wait(absl::Milliseconds(50)); });
  };
  (void)report_of_job({}, program);
  const std::string job = std::exchange(caught, "");
  (void)report_of_one_process({}, program);
  if (process_of_job() > 0) return;
  EXPECT_EQ(job, caught);
  EXPECT_THAT(job, HasSubstr(": sleep [hosted_world_test.cc:"));
}

TEST(HostedWorldTest, ADeadlockOverProcessesHasItsCircleAndItsLastCalls) {
  expect_same_report(
      {},
      [](RankContext& rank) {
        auto pg = init_process_group(rank);
        std::vector<float> x(3);
        pg->barrier().wait();
        const int last = rank.world_size() - 1;
        if (rank.rank() == 1) return;
        if (rank.rank() == 0) pg->recv(x, last, 5).wait();
        if (rank.rank() == last) pg->recv(x, 0, 6).wait();
        pg->all_reduce(x).wait();
      },
      "\n  cycle: rank 0 -> rank ");
}

TEST(HostedWorldTest, RanksThatPollWithoutEndAreListedOfAllProcesses) {
  expect_same_report(
      {.stuck_after = absl::Milliseconds(200)},
      [](RankContext& rank) {
        auto pg = init_process_group(rank);
        std::vector<float> x(3);
        while (rank.rank() == 0 || rank.rank() == rank.world_size() - 1) rank.yield();
        pg->all_reduce(x).wait();
      },
      "\n  rank 0 is at yield [hosted_world_test.cc:");
}

TEST(HostedWorldTest, ARunThatComesToMaxStepsListsTheRanksOfAllProcesses) {
  const int64_t grace_ns = std::exchange(endless_grace_ns, 300'000'000'000);
  for (const bool both : {false, true}) {
    expect_same_report(
        {.max_steps = 5000},
        [both](RankContext& rank) {
          auto pg = init_process_group(rank);
          std::vector<float> x(3);
          const bool last = rank.rank() == rank.world_size() - 1;
          if (last || (both && rank.rank() == 0)) {
            rank.sleep_for(absl::Seconds(1));  // all others wait
            if (both && last) rank.store().get("rank 0 is at its yield");
            if (!last) rank.store().set("rank 0 is at its yield", "");
            while (true) rank.yield();
          }
          if (rank.rank() == 1) rank.store().get("never");
          pg->all_reduce(x).wait();
        },
        "Deadlock: the run did not end within 5000 scheduling points\n");
  }
  endless_grace_ns = grace_ns;
}

// A process whose rank comes to no point does not say where its ranks are.
TEST(HostedWorldTest, MaxStepsDoNotWaitForARankThatComputes) {
  const int64_t grace_ns = std::exchange(endless_grace_ns, 100'000'000);
  const std::string text = report_of_job({.max_steps = 3000}, [](RankContext& rank) {
    if (rank.rank() == rank.world_size() - 1) {
      const auto begun = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() - begun < std::chrono::seconds(1)) {
      }
    }
    while (rank.rank() == 0) rank.yield();
    if (rank.rank() == 1) rank.store().get("never");
  });
  endless_grace_ns = grace_ns;
  EXPECT_THAT(text,
              AllOf(StartsWith("Deadlock: the run did not end within 3000 scheduling points\n  rank 0 is at yield"),
                    HasSubstr("\n  rank 1 waits in store get key \"never\" [hosted_world_test.cc:"),
                    Not(HasSubstr(absl::StrCat("rank ", ranks_of_job() - 1, " is")))));
}

// Ends come by messages of other processes, in steps of their own.
TEST(HostedWorldTest, ShutdownWaitsForEndsThatAreOnTheirWay) {
  for (int64_t round = 0; round < 20; ++round) {
    const RunReport report = run_mpi_world({}, ranks_per_process, [round](RankContext& rank) {
      auto pg = init_process_group(rank);
      const int n = rank.world_size();
      const int far = ranks_per_process;
      std::vector<int64_t> x = {rank.rank() + round};
      std::vector<int64_t> y = {100 * rank.rank() + round};
      std::vector<int64_t> z = {-1};
      std::vector<Work> works;
      works.push_back(pg->all_reduce(x));
      works.push_back(pg->send(y, (rank.rank() + far) % n));
      works.push_back(pg->recv(z, (rank.rank() + n - far) % n));
      if (round % 2 == 0) pg->shutdown();
      if (round % 2 == 1) destroy_process_group(pg);
      for (Work& work : works) EXPECT_TRUE(work.is_success()) << "round " << round;
      EXPECT_EQ(x[0], n * round + n * (n - 1) / 2);
      EXPECT_EQ(z[0], 100 * ((rank.rank() + n - far) % n) + round);
    });
    ASSERT_TRUE(report.ok()) << report.text();
    EXPECT_THAT(report.notes, testing::IsEmpty());
  }
}

TEST(HostedWorldTest, HelpersOfCallsThatEndAfterTheirRanksAreServed) {
  std::atomic<int> helped = 0;
  const RunReport report = run_mpi_world({}, ranks_per_process, [&helped](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto x = std::make_shared<std::vector<int64_t>>(1, rank.rank() + 1);
    const auto all_reduce = [&rank, &helped, pg, x] {
      Work work = pg->all_reduce(*x, ReduceOp::kSum, {.keep_alive = x});
      work.then([&rank, &helped, x](const absl::Status& end) {
        EXPECT_TRUE(end.ok()) << end;
        rank.world().spawn_helper([&rank, &helped, x] {
          rank.store().add("sum", (*x)[0]);
          ++helped;
        });
      });
    };
    // The other ranks have ended by then, but for their calls.
    if (rank.rank() > 0) return all_reduce();
    rank.world().spawn_helper([&rank, all_reduce] {
      rank.sleep_for(absl::Milliseconds(50));
      all_reduce();
    });
  });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_EQ(helped, ranks_per_process);
}

// The receiver's process has ended when the sender's lets go of the message.
TEST(HostedWorldTest, ASendThatNobodyReceivesIsANote) {
  const RunReport report = run_mpi_world({}, ranks_per_process, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const int last = rank.world_size() - 1;
    auto x = std::make_shared<std::vector<int64_t>>(1, 7);
    if (rank.rank() == 0) rank.sleep_for(absl::Hours(2));
    if (rank.rank() != last) return;
    rank.sleep_for(absl::Hours(1));
    (void)pg->send(*x, 0, 5, {.keep_alive = x});
  });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_THAT(
      report.notes,
      testing::ElementsAre(HasSubstr(absl::StrCat("rank ", ranks_of_job() - 1, ", group 0, send to rank 0, tag 5: "))));
}

TEST(HostedWorldTest, ARunIsNoDeadlockWhileAnOutsideWakerIsHeld) {
  for (const bool last : {true, false}) {
    const RunReport report = run_mpi_world({}, ranks_per_process, [last](RankContext& rank) {
      if (rank.rank() != (last ? rank.world_size() - 1 : 0)) return;
      Promise promise(&rank.world().scheduler(), rank.rank());
      std::thread outside([&promise, waker = rank.world().outside_waker()] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        promise.set_value();
      });
      const std::string error = error_of([&] { promise.work().wait(); });
      outside.join();
      EXPECT_EQ(error, "no error");
    });
    EXPECT_TRUE(report.ok()) << report.text();
  }
}

// Members are of processes in turn; sums have the group's order of ranks all the same.
TEST(HostedWorldTest, SumsOfAGroupWhoseProcessesAlternateHaveTheBitsOfOneProcess) {
  if (processes_of_job() < 2) GTEST_SKIP() << "want 2 processes";
  const RunReport report = run_mpi_world({}, ranks_per_process, [](RankContext& rank) {
    const int far = ranks_per_process, r = rank.rank();
    if (r != 0 && r != 1 && r != far && r != far + 1) return;
    auto pg = init_process_group(rank, {.ranks = {0, far, 1, far + 1}});
    std::vector<float> x = {std::vector<float>{1e8F, 1, -1e8F, 1}[static_cast<size_t>(pg->rank())]};
    pg->all_reduce(x).wait();
    EXPECT_EQ(x[0], 1);  // process by process: 2
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

}  // namespace
}  // namespace rankloom

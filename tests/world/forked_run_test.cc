// A process that a rank forks is a copy of its run, and is ended where it comes back into the run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>

#include "absl/strings/str_cat.h"
#include "rankloom/store.h"
#include "rankloom/sync.h"
#include "tests/world/every_world.h"
#include "tests/world/forked_child.h"

namespace rankloom {
namespace {

constexpr char kEnded[] =
    "rankloom: a process that a run forked has come back from the run, and is ended: want it to end by itself, by "
    "_exit()\n";

class ForkedRunTest : public EveryWorldTest {
 protected:
  // The end and the stderr of a process that rank 1 of 3 forks, and that then does `act`: "exit code N: TEXT".
  std::string end_of(const std::function<void(RankContext&)>& act) {
    std::string text;
    run(3, [&](RankContext& rank) {
      if (rank.rank() != 1) return rank.store().wait({"over"});
      std::array<int, 2> ends = {-1, -1};
      ASSERT_EQ(pipe(ends.data()), 0);
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        return act(rank);
      }
      close(ends[1]);
      std::array<char, 4096> buffer;
      for (ssize_t got = 0; (got = read(ends[0], buffer.data(), buffer.size())) > 0;)
        text.append(buffer.data(), static_cast<size_t>(got));
      close(ends[0]);
      int status = 0;
      EXPECT_EQ(waitpid(child, &status, 0), child);
      text = absl::StrCat(WIFEXITED(status) ? "exit code " : "signal ",
                          WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), ": ", text);
      rank.store().set("over", "");
    });
    return text;
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, ForkedRunTest, every_world(), world_name);

TEST_P(ForkedRunTest, IsEndedWhereItsRankReturns) {
  EXPECT_EQ(end_of([](RankContext&) {}), absl::StrCat("exit code 1: ", kEnded));
}

TEST_P(ForkedRunTest, IsEndedWhereItsRankThrows) {
  EXPECT_EQ(end_of([](RankContext&) { throw std::runtime_error("no more"); }), absl::StrCat("exit code 1: ", kEnded));
}

TEST_P(ForkedRunTest, IsEndedWhereItsRankWaits) {
  EXPECT_EQ(end_of([](RankContext& rank) { rank.store().wait({"never"}); }), absl::StrCat("exit code 1: ", kEnded));
}

TEST_P(ForkedRunTest, IsEndedWhereItsRankPolls) {
  const auto poll = [](RankContext& rank) {
    while (!rank.store().check({"never"})) rank.yield();
  };
  EXPECT_EQ(end_of(poll), absl::StrCat("exit code 1: ", kEnded));
}

TEST_P(ForkedRunTest, MayEndByItself) {
  EXPECT_EQ(end_of([](RankContext&) { _exit(7); }), "exit code 7: ");
}

TEST_P(ForkedRunTest, AForkedProcessMayRunAWorldOfItsOwn) {
  const WorldOptions own = options(2);
  const auto act = [&own](RankContext&) {
    // Of the threads that ran ranks only this one is there; those of the new world are made anew.
    const RunReport report = run_world(own, [](RankContext& rank) {
      if (rank.rank() == 0) rank.store().set("from 0", "seen");
      if (rank.rank() == 1 && rank.store().get("from 0") != "seen") _exit(3);
    });
    _exit(report.ok() ? 0 : 2);
  };
  EXPECT_EQ(end_of(act), "exit code 0: ");
}

// A thread that holds a lock at the fork, here that of the store, never gives it back in the new process.
TEST(ForkedRunOnThreadsTest, IsEndedByACallThoughALockStaysTaken) {
  std::atomic<bool> over = false;
  std::array<int, 12> ends = {};
  const RunReport report = run_world({.world_size = 3, .engine = EngineKind::kThreads}, [&](RankContext& rank) {
    if (rank.rank() != 1) {
      while (!over) (void)rank.store().check({"never"});
      return;
    }
    std::array<pid_t, ends.size()> children = {};
    for (pid_t& child : children) {
      child = fork();
      ASSERT_GE(child, 0);
      if (child > 0) continue;
      close(STDERR_FILENO);
      (void)rank.store().check({"never"});
      _exit(7);
    }
    for (size_t i = 0; i < children.size(); ++i) {
      int status = 0;
      EXPECT_EQ(waitpid(children[i], &status, 0), children[i]);
      ends[i] = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }
    over = true;
  });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_THAT(ends, testing::Each(1));
}

// Threads of a world of its own come to lie where those of the first process did.
TEST_P(ForkedRunTest, IsEndedByACallAfterAWorldOfItsOwn) {
  const WorldOptions own = options(2);
  const auto act = [&own](RankContext& rank) {
    (void)run_world(own, [](RankContext& inner) { inner.store().set("seen", ""); });
    rank.store().set("over", "");
  };
  EXPECT_EQ(end_of(act), absl::StrCat("exit code 1: ", kEnded));
}

TEST_P(ForkedRunTest, IsEndedByACallOfAMutex) {
  Mutex mutex;
  EXPECT_EQ(end_of([&](RankContext&) { (void)mutex.try_lock(); }), absl::StrCat("exit code 1: ", kEnded));
}

TEST_P(ForkedRunTest, IsEndedWhereAHookOfTheEndReturns) {
  int status = -1;
  run(2, [&](RankContext& rank) {
    if (rank.rank() != 1) return;
    rank.world().at_end([&status] { fork_and_come_back(&status); });
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
}

}  // namespace
}  // namespace rankloom

#include "sim/base/system.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "sim/base/parker.h"

namespace rankloom::internal {
namespace {

using testing::Each;
using testing::Ne;
using testing::SizeIs;

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

std::atomic<int> signalled{0};

TEST(SystemTest, NamesTheProgramWithoutItsFolder) {
  const std::filesystem::path file = std::filesystem::canonical(program_file());
  EXPECT_EQ(program_name(), file.filename().string());
}

TEST(SystemTest, HasTheWordsOfTheCommandLine) {
  const std::vector<std::string> words = program_arguments();
  ASSERT_FALSE(words.empty());
  EXPECT_TRUE(words[0].ends_with(program_name())) << words[0];
}

TEST(SystemTest, HasTheProgramsVariables) {
  ASSERT_EQ(setenv("SYSTEM_TEST", "3 words here", /*replace=*/1), 0);
  bool found = false;
  for (char** variable = environment(); *variable != nullptr; ++variable)
    found = found || std::string_view(*variable) == "SYSTEM_TEST=3 words here";
  EXPECT_TRUE(found);
}

TEST(SystemTest, EachThreadHasANumberOfItsOwn) {
  std::array<int, 3> first = {};
  std::array<int, 3> again = {};
  std::vector<std::thread> threads;
  std::atomic<int> asked{0};
  for (size_t i = 0; i < first.size(); ++i) {
    threads.emplace_back([&, i] {
      first[i] = this_thread();
      ++asked;
      while (asked < 3) std::this_thread::yield();  // a number may come again once its thread has ended
      again[i] = this_thread();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(first, again);
  EXPECT_THAT(first, Each(Ne(0)));
  EXPECT_THAT(std::set<int>(first.begin(), first.end()), SizeIs(3));
}

TEST(SystemTest, AForkedProcessHasAThreadThatCanBeSignalled) {
  const int parents = this_thread();
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGUSR1, [](int) { _exit(3); });
    const int error = signal_thread(this_thread(), SIGUSR1);
    _exit(error != 0 ? error : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_EQ(this_thread(), parents);
}

TEST(SystemTest, TellsAThreadThatComputesFromOneThatSleeps) {
  std::atomic<int> busy{0};
  std::atomic<int> asleep{0};
  std::atomic<bool> stop{false};
  Parker parker;
  std::thread computes([&] {
    busy = this_thread();
    while (!stop) {
    }
  });
  std::thread sleeps([&] {
    asleep = this_thread();
    if (parker.prepare()) parker.sleep(kNever);
  });
  while (busy == 0 || asleep == 0) std::this_thread::yield();
  const auto becomes = [](int thread, bool runs) {
    Parker nobody;
    for (const int64_t until = monotonic_ns() + 10'000'000'000; monotonic_ns() < until;) {
      thread_runs(thread);
      nobody.park(monotonic_ns() + 20'000'000);
      if (thread_runs(thread) == runs) return true;
    }
    return false;
  };
  EXPECT_TRUE(becomes(asleep, false));
  EXPECT_TRUE(becomes(busy, true));
  stop = true;
  parker.unpark();
  computes.join();
  sleeps.join();
  EXPECT_TRUE(becomes(busy, false)) << "it has ended";
}

TEST(SystemTest, SignalsTheThreadThatIsMeantAndNoOther) {
  std::atomic<int> number{0};
  Parker parker;
  signalled = 0;
  struct sigaction action = {};
  action.sa_handler = [](int) { signalled = this_thread(); };
  ASSERT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
  std::thread thread([&] {
    number = this_thread();
    parker.park(kNever);
  });
  while (number == 0) std::this_thread::yield();
  // Again and again: ThreadSanitizer puts off a signal that comes just before its thread sleeps.
  Parker nobody;
  for (const int64_t until = monotonic_ns() + 10'000'000'000; signalled == 0 && monotonic_ns() < until;) {
    EXPECT_EQ(signal_thread(number, SIGUSR1), 0);
    nobody.park(monotonic_ns() + 20'000'000);
  }
  EXPECT_EQ(signalled, number);
  parker.unpark();
  thread.join();
}

TEST(SystemTest, AThreadThatIsNotThereCannotBeSignalled) { EXPECT_EQ(signal_thread(2'000'000'000, SIGUSR1), ESRCH); }

TEST(SystemTest, SocketsEndWithTheProgramAndRaiseNoSignal) {
  std::array<int, 2> ends = {-1, -1};
  ASSERT_TRUE(make_socket_pair(ends.data()));
  for (const int end : ends) EXPECT_EQ(fcntl(end, F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(send(ends[0], "four", 4, kNoSignal), 4);
  std::array<char, 8> bytes = {};
  EXPECT_EQ(recv(ends[1], bytes.data(), bytes.size(), 0), 4);
  EXPECT_EQ(std::string_view(bytes.data()), "four");
  close(ends[1]);
  EXPECT_EQ(send(ends[0], "four", 4, kNoSignal), -1);
  EXPECT_EQ(errno, EPIPE);
  close(ends[0]);
}

}  // namespace
}  // namespace rankloom::internal

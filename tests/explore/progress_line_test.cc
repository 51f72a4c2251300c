// The line of a terminal that tells how far a search is.
#include "harness/explore/progress_line.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/time/time.h"
#include "rankloom/explore.h"

namespace rankloom {
namespace {

using internal::progress_text;
using internal::ProgressLine;
using testing::HasSubstr;
using testing::MatchesRegex;

const ExploreOptions::Progress kHalf = {
    .strategy = "exhaustive", .runs = 1200, .elapsed = absl::Seconds(4), .schedules = 600, .open = 31};

class Terminal {
 public:
  Terminal() : master_(posix_openpt(O_RDWR | O_NOCTTY)) {
    EXPECT_EQ(grantpt(master_), 0);
    EXPECT_EQ(unlockpt(master_), 0);
    file_ = fdopen(open(ptsname(master_), O_RDWR | O_NOCTTY), "w");  // not that of the process
    setenv("TERM", "xterm", 1);
  }
  ~Terminal() {
    if (file_ != nullptr) std::fclose(file_);
    close(master_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  std::FILE* file() { return file_; }
  // Text that was written and not read yet.
  std::string read_all() {
    std::fflush(file_);
    std::string text;
    char bytes[4096];
    for (pollfd ready{.fd = master_, .events = POLLIN, .revents = 0}; poll(&ready, 1, /*timeout=*/0) == 1;) {
      const ssize_t n = read(master_, bytes, sizeof(bytes));
      if (n <= 0) break;
      text.append(bytes, static_cast<size_t>(n));
    }
    return text;
  }

 private:
  int master_;
  std::FILE* file_ = nullptr;
};

TEST(ProgressLineTest, HasRunsSpeedStrategyAndWhatIsLeft) {
  EXPECT_EQ(progress_text(kHalf, 20'000), "exhaustive: 1200 of 20000 runs, 300/s; 600 schedules, 31 or more left");
  EXPECT_EQ(progress_text({.strategy = "random", .runs = 1, .elapsed = absl::ZeroDuration()}, 1),
            "random: 1 of 1 run, 0/s");
}

TEST(ProgressLineTest, IsWrittenAnewAndTakenBack) {
  Terminal terminal;
  ASSERT_NE(terminal.file(), nullptr);
  {
    ProgressLine line(terminal.file());
    EXPECT_TRUE(line.shown());
    line.tell(kHalf, 1'000'000'000'000);  // cut where a narrow terminal ends
    line.tell_shrinking(kHalf);
    line.clear();
    line.clear();  // nothing is there any more
    EXPECT_EQ(terminal.read_all(),
              "\r\x1b[Kexplore: exhaustive: 1200 of 1000000000000 runs, 300/s; 600 schedules, 31 or mo"
              "\r\x1b[Kexplore: a failure in 1200 runs, which is being shrunk\r\x1b[K");
    line.tell(kHalf, 2000);
  }
  EXPECT_THAT(terminal.read_all(), testing::EndsWith("300/s; 600 schedules, 31 or more left\r\x1b[K"));
}

TEST(ProgressLineTest, IsSilentInAFile) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    ProgressLine line(file);
    EXPECT_FALSE(line.shown());
    line.tell(kHalf, 2000);
    line.tell_shrinking(kHalf);
  }
  EXPECT_EQ(std::ftell(file), 0);
  std::fclose(file);
}

// With stderr as a terminal, or as a file.
std::string told_by_a_search(std::FILE* as_stderr, absl::Duration max_time = absl::Milliseconds(700)) {
  std::fflush(stderr);
  const int kept = dup(STDERR_FILENO);
  dup2(fileno(as_stderr), STDERR_FILENO);
  const ExploreReport report = explore({.world = {.world_size = 2, .engine = EngineKind::kFibers},
                                        .strategies = {Strategy::random()},
                                        .max_runs = int64_t{1} << 40,
                                        .max_time = max_time},
                                       [](RankContext& rank) { rank.store().add("n", 1); });
  std::fflush(stderr);
  dup2(kept, STDERR_FILENO);
  close(kept);
  return report.summary();
}

TEST(ProgressLineTest, OfASearch) {
  Terminal terminal;
  ASSERT_NE(terminal.file(), nullptr);
  std::string told;
  // A machine that is busy may have no time for a line within the search.
  for (absl::Duration time = absl::Milliseconds(700); told.empty() && time < absl::Seconds(12); time *= 2) {
    EXPECT_THAT(told_by_a_search(terminal.file(), time), HasSubstr("no failure in "));
    told = terminal.read_all();
  }
  EXPECT_THAT(told, MatchesRegex("(\r\x1b\\[Kexplore: random: [0-9]+ of [^\r]*)+\r\x1b\\[K"));
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  (void)told_by_a_search(file);
  std::fseek(file, 0, SEEK_END);
  EXPECT_EQ(std::ftell(file), 0);
  std::fclose(file);
}

}  // namespace
}  // namespace rankloom

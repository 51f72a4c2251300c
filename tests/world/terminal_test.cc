#include "world/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "world/run_options.h"

namespace rankloom::internal {
namespace {

// A terminal without anybody at it.
class TerminalTest : public testing::Test {
 protected:
  TerminalTest() : master_(posix_openpt(O_RDWR | O_NOCTTY)) {
    EXPECT_GE(master_, 0);
    EXPECT_EQ(grantpt(master_), 0);
    EXPECT_EQ(unlockpt(master_), 0);
    terminal_ = fdopen(open(ptsname(master_), O_RDWR | O_NOCTTY), "w");  // not that of the process
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
  }
  ~TerminalTest() override {
    std::fclose(terminal_);
    close(master_);
    unsetenv("NO_COLOR");
  }

  int master_;
  std::FILE* terminal_ = nullptr;
};

TEST_F(TerminalTest, TakesColoursUnlessSomebodyMinds) {
  ASSERT_NE(terminal_, nullptr);
  EXPECT_TRUE(is_terminal(terminal_));
  EXPECT_TRUE(takes_colours(terminal_));
  setenv("NO_COLOR", "", 1);
  EXPECT_TRUE(takes_colours(terminal_));
  setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(takes_colours(terminal_));
  EXPECT_TRUE(is_terminal(terminal_));
  unsetenv("NO_COLOR");
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(is_terminal(terminal_));
  unsetenv("TERM");
  EXPECT_FALSE(takes_colours(terminal_));
}

TEST_F(TerminalTest, AFileIsNone) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  EXPECT_FALSE(is_terminal(file));
  EXPECT_FALSE(takes_colours(file));
  std::fclose(file);
}

TEST(FailureInColoursTest, MarksHeadlineCircleAndCommand) {
  EXPECT_EQ(failure_in_colours("Deadlock: no rank can move\n  rank 0 waits\n  cycle: rank 0 -> rank 0\n"
                               "schedule fifo, engine fibers; run it again: ./x 'a b'\n"),
            "\x1b[31;1mDeadlock: no rank can move\x1b[0m\n  rank 0 waits\n\x1b[33m  cycle: rank 0 -> rank 0\x1b[0m\n"
            "schedule fifo, engine fibers; run it again: \x1b[1m./x 'a b'\x1b[0m\n");
  EXPECT_EQ(failure_in_colours(""), "\x1b[31;1m\x1b[0m");
}

}  // namespace
}  // namespace rankloom::internal

#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace rankloom {

// Forks within a run. The child, without stderr, returns, as the caller is to do at once; the parent waits for the
// child's end: `*status`, as of waitpid().
inline void fork_and_come_back(int* status) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(STDERR_FILENO);
    return;
  }
  EXPECT_EQ(waitpid(child, status, 0), child);
}

}  // namespace rankloom

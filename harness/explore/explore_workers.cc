#include "harness/explore/explore_workers.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace rankloom::internal {

void Workers::start(absl::FunctionRef<void(Found*, int worker)> search) {
  for (int worker = 1; worker < count_; ++worker) {
    int ends[2];
    if (pipe(ends) != 0) return;  // we search alone
    const pid_t process = fork();
    if (process < 0) {
      close(ends[0]);
      close(ends[1]);
      return;
    }
    if (process > 0) {
      close(ends[1]);
      workers_.push_back({process, ends[0]});
      continue;
    }
    close(ends[0]);
    workers_.clear();
    Found found;
    search(&found, worker);
    const ssize_t written = write(ends[1], &found, sizeof(found));
    // Nothing of the parent's may be flushed or destroyed a second time.
    _exit(written == static_cast<ssize_t>(sizeof(found)) ? 0 : 1);
  }
}

std::optional<Workers::Found> Workers::poll(bool wait) {
  while (!workers_.empty()) {
    std::vector<pollfd> pipes;
    for (const Worker& worker : workers_) pipes.push_back({.fd = worker.pipe, .events = POLLIN, .revents = 0});
    const int ready = ::poll(pipes.data(), pipes.size(), wait ? -1 : 0);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return std::nullopt;
    for (size_t i = 0; i < pipes.size(); ++i) {
      if (pipes[i].revents == 0) continue;
      Found found;
      const bool told = read(workers_[i].pipe, &found, sizeof(found)) == static_cast<ssize_t>(sizeof(found));
      close(workers_[i].pipe);
      waitpid(workers_[i].process, nullptr, 0);
      workers_.erase(workers_.begin() + static_cast<std::ptrdiff_t>(i));
      if (told) runs_ += found.runs;
      if (told && found.strategy >= 0) return found;
      break;
    }
  }
  return std::nullopt;
}

void Workers::stop() {
  for (const Worker& worker : workers_) {
    kill(worker.process, SIGKILL);
    close(worker.pipe);
    waitpid(worker.process, nullptr, 0);
  }
  workers_.clear();
}

}  // namespace rankloom::internal

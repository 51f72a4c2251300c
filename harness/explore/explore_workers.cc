#include "harness/explore/explore_workers.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <new>

namespace rankloom::internal {

void Workers::start(absl::FunctionRef<void(Found*, int worker)> search) {
  for (int worker = 1; worker < count_; ++worker) {
    void* const shared = mmap(nullptr, sizeof(Found), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return;  // we search alone
    auto* const found = new (shared) Found();
    int ends[2] = {-1, -1};
    const pid_t process = pipe(ends) == 0 ? fork() : -1;
    if (process < 0) {
      if (ends[0] >= 0) close(ends[0]);
      if (ends[1] >= 0) close(ends[1]);
      munmap(shared, sizeof(Found));
      return;
    }
    if (process > 0) {
      close(ends[1]);
      workers_.push_back({process, ends[0], found});
      continue;
    }
    close(ends[0]);
    workers_.clear();
    search(found, worker);
    // Nothing of the parent's may be flushed or destroyed a second time.
    _exit(0);
  }
}

Workers::Found Workers::end(size_t worker) {
  const Worker ended = workers_[worker];
  workers_.erase(workers_.begin() + static_cast<std::ptrdiff_t>(worker));
  close(ended.pipe);
  int status = 0;
  waitpid(ended.process, &status, 0);
  Found found = *ended.found;
  munmap(ended.found, sizeof(Found));
  found.died = status;
  return found;
}

std::optional<Workers::Found> Workers::poll(bool wait) {
  while (!workers_.empty()) {
    std::vector<pollfd> pipes;
    for (const Worker& worker : workers_) pipes.push_back({.fd = worker.pipe, .events = POLLIN, .revents = 0});
    const int ready = ::poll(pipes.data(), pipes.size(), wait ? -1 : 0);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return std::nullopt;
    const auto ended = std::find_if(pipes.begin(), pipes.end(), [](const pollfd& pipe) { return pipe.revents != 0; });
    const Found found = end(static_cast<size_t>(ended - pipes.begin()));
    runs_ += found.runs;
    if (found.died != 0 || found.strategy >= 0) return found;
  }
  return std::nullopt;
}

void Workers::stop() {
  while (!workers_.empty()) {
    kill(workers_.back().process, SIGKILL);
    end(workers_.size() - 1);
  }
}

}  // namespace rankloom::internal

#include "harness/explore/forked_workers.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "sim/base/forked_run.h"
#include "sim/base/parker.h"
#include "sim/base/system.h"
#ifdef __linux__
#include <sys/prctl.h>
#endif
#ifdef RANKLOOM_LINUX
#include <sys/syscall.h>
#endif

namespace rankloom::internal {
namespace {

constexpr int64_t kGraceNs = 500'000'000;

// A message is its length, in the byte order of the machine, and its bytes; kExits: none, the process ends by exit().
using Length = uint64_t;
constexpr Length kExits = ~Length{0};

std::string framed(std::string_view message) {
  const Length length = message.size();
  std::string bytes(sizeof(length) + message.size(), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  message.copy(bytes.data() + sizeof(length), message.size());
  return bytes;
}

// Takes the first message off `bytes`, if all of it is there.
std::optional<std::string> take_message(std::string* bytes) {
  Length length = 0;
  if (bytes->size() < sizeof(length)) return std::nullopt;
  std::memcpy(&length, bytes->data(), sizeof(length));
  if (length == kExits || bytes->size() - sizeof(length) < length) return std::nullopt;
  std::string message = bytes->substr(sizeof(length), length);
  bytes->erase(0, sizeof(length) + length);
  return message;
}

// Appends what can be read now. False: the other side is gone.
bool read_some(int socket, bool wait, std::string* bytes) {
  std::array<char, 1 << 16> buffer;
  for (;;) {
    const ssize_t got = recv(socket, buffer.data(), buffer.size(), wait ? 0 : MSG_DONTWAIT);
    if (got > 0) {
      bytes->append(buffer.data(), static_cast<size_t>(got));
      return true;
    }
    if (got < 0 && errno == EINTR) continue;
    return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
}

// exit() destroys the objects of its thread first: without those of a fiber thread a rank that calls exit() would go
// wrong in another way before. The last object that was made is destroyed first. In a process that a run of a worker's
// has forked, nobody is told.
struct EndsAtExit {
  explicit EndsAtExit(int leader) : socket(leader), worker(getpid()) {}
  ~EndsAtExit() {
    if (getpid() == worker) (void)::send(socket, &kExits, sizeof(kExits), kNoSignal);
    write_buffers();
    _exit(EXIT_FAILURE);
  }
  const int socket;
  const pid_t worker;
};

class SocketToLeader final : public LeaderLink {
 public:
  explicit SocketToLeader(int socket) : socket_(socket) {}

  bool send(std::string_view message) override {
    end_copies();
    const std::string bytes = framed(message);
    for (size_t sent = 0; sent < bytes.size() && !gone_;) {
      const ssize_t went = ::send(socket_, bytes.data() + sent, bytes.size() - sent, kNoSignal);
      if (went > 0) sent += static_cast<size_t>(went);
      gone_ = went < 0 && errno != EINTR;
    }
    return !gone_;
  }
  std::optional<std::string> receive(bool wait) override {
    end_copies();
    for (;;) {
      if (std::optional<std::string> message = take_message(&in_); message.has_value()) return message;
      if (gone_) return std::nullopt;
      const size_t before = in_.size();
      gone_ = !read_some(socket_, wait, &in_);
      if (!wait && in_.size() == before) return std::nullopt;
    }
  }
  bool gone() const override { return gone_; }

 private:
  // A process that a run has forked and that comes back from it would speak for the worker as well.
  void end_copies() const {
    if (getpid() != worker_) end_forked_copy();
  }

  const int socket_;
  const pid_t worker_ = getpid();
  std::string in_;
  bool gone_ = false;
};

std::string end_text(int status) {
  if (!WIFSIGNALED(status)) return absl::StrCat("exit code ", WEXITSTATUS(status));
  return absl::StrCat("signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
}

// Signals that a process does not come to by its own mistakes, mostly.
bool sent_by_others(int status) {
  if (!WIFSIGNALED(status)) return false;
  const int signal = WTERMSIG(status);
  return signal == SIGKILL || signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
}

// This process ends when its parent does, also in a run that never ends. The system looks at the thread that forked,
// and that is the one on which the parent searches: it goes on until the search, and with it this process, has ended.
void end_with([[maybe_unused]] pid_t parent) {
#ifdef __linux__  // prctl() has no twin, so wherever twins are tried, too
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(EXIT_FAILURE);  // the parent had ended before
#endif
}

int end_descriptor([[maybe_unused]] pid_t process) {
#if defined(RANKLOOM_LINUX) && defined(SYS_pidfd_open)
  return static_cast<int>(syscall(SYS_pidfd_open, process, 0));
#else
  return -1;
#endif
}

}  // namespace

ForkedWorkers::~ForkedWorkers() {
  const int64_t end_ns = monotonic_ns() + kGraceNs;
  // A worker sees that its leader is gone; until it looks, it makes its run.
  for (const Worker& worker : workers_) {
    if (worker.process > 0) shutdown(worker.socket, SHUT_RDWR);
  }
  for (Worker& worker : workers_) {
    if (worker.process <= 0) continue;
    while (waitpid(worker.process, nullptr, WNOHANG) == 0) {
      const int64_t left_ms = (end_ns - monotonic_ns()) / 1'000'000;
      if (left_ms <= 0) {
        kill(worker.process, SIGKILL);
        waitpid(worker.process, nullptr, 0);
        break;
      }
      pollfd end{.fd = worker.end, .events = POLLIN, .revents = 0};
      poll(&end, 1, static_cast<int>(worker.end >= 0 ? left_ms : std::min<int64_t>(left_ms, 1)));
    }
    close_all(&worker);
  }
}

int ForkedWorkers::start(int count) {
  workers_.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    workers_.emplace_back();
    if (fork_one(&workers_.back())) continue;
    workers_.pop_back();
    break;
  }
  return this->count();
}

bool ForkedWorkers::replace(int worker) { return fork_one(&workers_[static_cast<size_t>(worker)]); }

bool ForkedWorkers::fork_one(Worker* worker) {
  std::array<int, 2> ends = {-1, -1};
  if (!make_socket_pair(ends.data())) {
    refused_ = std::strerror(errno);
    return false;
  }
  write_buffers();  // both processes would write what is there
  const pid_t here = getpid();
  const pid_t process = fork();
  if (process < 0) {
    refused_ = std::strerror(errno);
    close(ends[0]);
    close(ends[1]);
    return false;
  }
  if (process == 0) {
    end_with(here);
    close(ends[0]);
    run_worker(ends[1]);
  }
  close(ends[1]);
  *worker = {.process = process, .socket = ends[0], .end = end_descriptor(process)};
  return true;
}

void ForkedWorkers::run_worker(int socket) {
  // The leader's ends of other workers' sockets: a worker that kept one would hide from these that the leader is gone.
  for (Worker& other : workers_) close_all(&other);
  workers_.clear();
  thread_local EndsAtExit at_exit(socket);
  // Of other threads, those of ranks.
  static const EndsAtExit* const of_process = new EndsAtExit(socket);
  std::atexit([] {
    if (of_process->worker == getpid()) delete of_process;
  });
  SocketToLeader leader(socket);
  // An exception that left this would go on in the program, as that of another process than the one that called.
  int code = EXIT_SUCCESS;
  try {
    work_(&leader);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rankloom: an exception ends a process of explore(): %s\n", error.what());
    code = EXIT_FAILURE;
  } catch (...) {
    std::fprintf(stderr, "rankloom: an exception ends a process of explore()\n");
    code = EXIT_FAILURE;
  }
  write_buffers();
  _exit(code);
}

void ForkedWorkers::close_all(Worker* worker) {
  if (worker->socket >= 0) close(worker->socket);
  if (worker->end >= 0) close(worker->end);
  *worker = {};
}

void ForkedWorkers::send(int worker, std::string_view message) {
  Worker& to = workers_[static_cast<size_t>(worker)];
  if (to.socket < 0) return;
  to.out += framed(message);
  write_out(&to);
}

void ForkedWorkers::write_out(Worker* worker) {
  size_t sent = 0;
  while (sent < worker->out.size()) {
    const ssize_t went =
        ::send(worker->socket, worker->out.data() + sent, worker->out.size() - sent, kNoSignal | MSG_DONTWAIT);
    if (went < 0 && errno == EINTR) continue;
    if (went <= 0) break;  // no room; or the worker is gone, which receive() finds out
    sent += static_cast<size_t>(went);
  }
  worker->out.erase(0, sent);
}

std::optional<WorkerLinks::Event> ForkedWorkers::receive(int64_t ns) {
  const int64_t end_ns = monotonic_ns() + ns;
  while (events_.empty()) {
    // Those that are not there are left out: poll() takes no more than a process may have open.
    std::vector<pollfd> descriptors;
    std::vector<int> numbers;
    for (int i = 0; i < count(); ++i) {
      const Worker& worker = workers_[static_cast<size_t>(i)];
      if (worker.socket < 0) continue;
      const auto events = static_cast<short>(worker.out.empty() ? POLLIN : POLLIN | POLLOUT);
      descriptors.push_back({.fd = worker.socket, .events = events, .revents = 0});
      if (worker.end >= 0) descriptors.push_back({.fd = worker.end, .events = POLLIN, .revents = 0});
      numbers.push_back(i);
    }
    const int64_t left_ns = std::max<int64_t>(0, end_ns - monotonic_ns());
    const int ready = poll(descriptors.data(), descriptors.size(), static_cast<int>((left_ns + 999'999) / 1'000'000));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return std::nullopt;
    auto next = descriptors.begin();
    for (const int number : numbers) {
      Worker& worker = workers_[static_cast<size_t>(number)];
      const pollfd& socket = *next++;
      const bool over = worker.end >= 0 && (next++)->revents != 0;
      if ((socket.revents & POLLOUT) != 0) write_out(&worker);
      if (((socket.revents & ~POLLOUT) != 0 && !read_in(number)) || over) ended(number);
    }
  }
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

bool ForkedWorkers::read_in(int number) {
  Worker& worker = workers_[static_cast<size_t>(number)];
  size_t before = 0;
  bool open = true;
  do {
    before = worker.in.size();
    open = read_some(worker.socket, /*wait=*/false, &worker.in);
  } while (open && worker.in.size() > before);
  while (std::optional<std::string> message = take_message(&worker.in))
    events_.push_back({.worker = number, .message = *std::move(message)});
  worker.exits = worker.in.size() == sizeof(kExits) && std::memcmp(worker.in.data(), &kExits, sizeof(kExits)) == 0;
  return open;
}

void ForkedWorkers::ended(int number) {
  read_in(number);  // its last words
  Worker& worker = workers_[static_cast<size_t>(number)];
  // A worker that has closed its socket and lives on can be told nothing any more.
  int status = 0;
  pid_t waited = waitpid(worker.process, &status, WNOHANG);
  for (const int64_t end_ns = monotonic_ns() + kGraceNs; waited == 0 && monotonic_ns() < end_ns;) {
    poll(nullptr, 0, 1);
    waited = waitpid(worker.process, &status, WNOHANG);
  }
  const bool lives_on = waited == 0;
  if (lives_on) {
    kill(worker.process, SIGKILL);
    waitpid(worker.process, nullptr, 0);
  }
  const bool exits = worker.exits;
  close_all(&worker);
  events_.push_back({.worker = number,
                     .ended = exits        ? "a call of exit()"
                              : lives_on   ? "a closed connection"
                              : waited > 0 ? end_text(status)
                                           : "an unknown code",
                     .by_others = waited > 0 && sent_by_others(status)});
}

}  // namespace rankloom::internal

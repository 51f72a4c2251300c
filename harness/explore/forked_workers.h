#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/explore/campaign_links.h"

namespace rankloom::internal {

// Workers that are processes made by fork(), with a pair of sockets each. Text that the program has printed by the time
// of a fork comes once; text of a worker is there when the worker ends, unless a signal ends it. A worker whose program
// calls exit() ends at once: objects and functions that wait for the end of the process are those of the process that
// was forked.
// Thread-safety: thread-compatible; each worker begins on the thread that calls start() or replace().
class ForkedWorkers final : public WorkerLinks {
 public:
  // `work`: all that a worker does; the process ends after it.
  explicit ForkedWorkers(std::function<void(LeaderLink*)> work) : work_(std::move(work)) {}
  // Ends the workers: those that do not end by themselves within half a second, by SIGKILL.
  ~ForkedWorkers() override;
  ForkedWorkers(const ForkedWorkers&) = delete;
  ForkedWorkers& operator=(const ForkedWorkers&) = delete;

  // Starts so many, or as many as the machine has room for. Result: their number; count() from then on.
  int start(int count);
  // Why the machine has no room for more: the system's words.
  const std::string& refused() const { return refused_; }

  int count() const override { return static_cast<int>(workers_.size()); }
  void send(int worker, std::string_view message) override;
  std::optional<Event> receive(int64_t ns) override;
  bool replace(int worker) override;

  // The process of a worker; -1: it has ended.
  pid_t process(int worker) const { return workers_[static_cast<size_t>(worker)].process; }

 private:
  struct Worker {
    pid_t process = -1;
    int socket = -1;
    int end = -1;          // a descriptor that can be read once the process has ended; -1: the system has none
    std::string out = {};  // bytes that the socket had no room for
    std::string in = {};   // bytes of a message that is not whole yet
    bool exits = false;    // the worker's program calls exit()
  };

  bool fork_one(Worker* worker);
  [[noreturn]] void run_worker(int socket);
  void write_out(Worker* worker);
  // Reads all that there is. False: nothing will come any more.
  bool read_in(int number);
  void ended(int number);
  static void close_all(Worker* worker);

  const std::function<void(LeaderLink*)> work_;
  std::vector<Worker> workers_;
  std::deque<Event> events_;
  std::string refused_;
};

}  // namespace rankloom::internal

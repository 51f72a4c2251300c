#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"

namespace rankloom::internal {

// Processes that search beside this one, made by fork(). Each writes what it found to memory that both have, then ends.
// Thread-safety: thread-compatible.
class Workers {
 public:
  struct Found {
    int strategy = -1;  // -1: nothing was found
    uint64_t round = 0;
    int64_t runs = 0;
    // The run that the process is at, or at which it was when it died.
    int now_strategy = 0;
    uint64_t now_round = 0;
    int died = 0;  // 0, or how the process ended without having told: a status as waitpid() gives it
  };

  // `count`: processes that search, this one included.
  explicit Workers(int count) : count_(count < 1 ? 1 : count) {}
  ~Workers() { stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int count() const { return count_; }

  // `search(found, worker)` runs in each of the others: worker = 1, 2, ...
  void start(absl::FunctionRef<void(Found*, int worker)> search);
  // The findings of one worker, or how it died; nullopt: nothing (yet). `wait`: until one found something or all have
  // ended.
  std::optional<Found> poll(bool wait);
  // Ends those that still search.
  void stop();
  // Runs of all that have ended by themselves.
  int64_t runs() const { return runs_; }

 private:
  // Waits for a worker's end, and forgets the worker.
  Found end(size_t worker);

  struct Worker {
    pid_t process;
    int pipe;  // closed when the process ends
    Found* found;
  };
  const int count_;
  std::vector<Worker> workers_;  // those that have not told yet
  int64_t runs_ = 0;
};

}  // namespace rankloom::internal

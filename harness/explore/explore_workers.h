#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"

namespace rankloom::internal {

// Processes that search beside this one, made by fork(). Each tells what it found through a pipe, then ends.
// Thread-safety: thread-compatible.
class Workers {
 public:
  struct Found {
    int strategy = -1;  // -1: nothing was found
    uint64_t round = 0;
    int64_t runs = 0;
  };

  // `count`: processes that search, this one included.
  explicit Workers(int count) : count_(count < 1 ? 1 : count) {}
  ~Workers() { stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int count() const { return count_; }

  // `search(found, worker)` runs in each of the others: worker = 1, 2, ...
  void start(absl::FunctionRef<void(Found*, int worker)> search);
  // The findings of one worker; nullopt: nothing (yet). `wait`: until one found something or all have ended.
  std::optional<Found> poll(bool wait);
  // Ends those that still search.
  void stop();
  // Runs of all that have ended by themselves.
  int64_t runs() const { return runs_; }

 private:
  struct Worker {
    pid_t process;
    int pipe;
  };
  const int count_;
  std::vector<Worker> workers_;  // those that have not told yet
  int64_t runs_ = 0;
};

}  // namespace rankloom::internal

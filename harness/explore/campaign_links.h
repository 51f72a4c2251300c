#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace rankloom::internal {

// The processes that search for a leader, as the leader sees them: numbers from 0 to count() - 1. Messages are strings
// of bytes; those between two processes arrive whole and in order.
// Thread-safety: thread-compatible.
class WorkerLinks {
 public:
  struct Event {
    int worker = -1;
    std::string message = {};
    // The worker has ended, and no message of it follows: how, "signal 9 (Killed)". Empty: a message.
    std::string ended = {};
    // The worker may have been ended by somebody else: its own doing ends a process in other ways, mostly.
    bool by_others = false;
  };

  virtual ~WorkerLinks() = default;
  virtual int count() const = 0;
  // As texts name it.
  virtual std::string name(int worker) const { return absl::StrCat("process ", worker + 1); }
  // Never blocks. A worker that has ended gets nothing.
  virtual void send(int worker, std::string_view message) = 0;
  // The next event; nullopt: none came in so many nanoseconds of real time.
  virtual std::optional<Event> receive(int64_t ns) = 0;
  // A new process in place of one that has ended. False: there is none to be had.
  virtual bool replace(int worker) = 0;
};

// The leader, as a worker sees it.
class LeaderLink {
 public:
  virtual ~LeaderLink() = default;
  // False: the leader is gone.
  virtual bool send(std::string_view message) = 0;
  // The next message. `wait`: until there is one; nullopt then: the leader is gone. Else nullopt: there is none yet, or
  // the leader is gone, which gone() tells.
  virtual std::optional<std::string> receive(bool wait) = 0;
  virtual bool gone() const = 0;
  // The calling thread makes no more runs.
  virtual void left() {}
};

}  // namespace rankloom::internal

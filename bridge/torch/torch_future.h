#pragma once

#include <memory>

#include "bridge/torch/job.h"

namespace rankloom::bridge {

// Stands for a future of torch's where a rank under a schedule waits: the future's own wait sleeps where no scheduler
// sees it. The gate is opened by the code that completes the future. Thread-safety: all methods.
class FutureGate {
 public:
  FutureGate(std::shared_ptr<Job> job, int rank);

  void open();
  // Blocks the calling rank, or a helper of it. Throws what ends the run, as torch's exceptions.
  void wait();
  // Tells an explored run that the calling task looks at whether the gate is open.
  void look() const;

 private:
  struct State;
  const std::shared_ptr<Job> job_;
  const int rank_;
  const std::shared_ptr<State> state_;
};

// Of the calling thread: futures of a call that is on its way are given out at once, since their owner waits for them
// by a FutureGate.
bool& futures_come_later();

// Of the calling thread: futures are given out when they are complete, since torch waits for them in C++ before
// anything that is queued by then.
bool& futures_are_awaited();

// Of the calling thread: it runs what is chained to a future, at once, in a backward pass. Elsewhere such code may come
// between other calls than here.
bool& calls_come_at_once();

}  // namespace rankloom::bridge
